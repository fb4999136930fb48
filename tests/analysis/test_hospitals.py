"""Images that stand for a hospital, and harmonization just as a federation does it."""

from pathlib import Path

import pytest
import torch

from folders import classification_folder, segmentation_folder
from harmofl.analysis import hospitals as module
from harmofl.analysis.hospitals import (
    BEFORE,
    Hospitals,
    choose,
    embedding,
    first_of_same,
    harmonization,
    kinds_in,
    looks_at,
    median_place,
    parse_band,
)
from harmofl.data.images import LabelledImages, join_sets
from harmofl.errors import UsageError
from harmofl.settings import resolve
from harmofl.tasks.data_facts import find_data_facts
from runs import serve


def opened(task: str = "histology", folder: Path | None = None, **values: object) -> Hospitals:
    overrides = values | ({"data.folder": str(folder)} if folder else {})
    settings, _ = resolve(task, "fedavg", "smoke", overrides=overrides)
    return Hospitals(find_data_facts(settings).complete(settings))


@pytest.fixture(scope="module")
def histology() -> Hospitals:
    return opened()


def test_the_shared_amplitude_is_that_of_a_federation(histology: Hospitals, tmp_path: Path) -> None:
    sent = serve(tmp_path / "run", method="harmofl", rounds=1).requests("train", 1)
    for band in ("dc", 0.2):
        found = harmonization(histology, [band])
        shared = found.layers[str(band)].measurement()["amplitude"]
        if band == "dc":
            assert torch.allclose(shared.float(), sent["hospital-0"].combined["harmonizer.amplitude"], rtol=1e-6)
        assert found.shared.shape == (3, 32, 17)
        assert torch.allclose(found.shared, torch.stack(list(found.amplitudes.values())).double().mean(0), rtol=1e-6)


def test_full_harmonization_gives_every_image_the_same_spectrum(histology: Hospitals) -> None:
    looks = looks_at(histology, harmonization(histology, ["full"]).layers)
    described = torch.cat([look.statistics["full"] for look in looks]).unflatten(1, (3, -1))
    decided = described[..., [0, 1, *range(8, 16)]]  # mean, std, rings: what the amplitudes decide
    differs = (decided - decided.median(dim=0).values).abs() > 1e-5
    assert differs.double().mean() < 0.01  # a frequency that an image lacks has no phase, and stays as it is


def test_band_none_changes_nothing(histology: Hospitals) -> None:
    looks = looks_at(histology, harmonization(histology, ["none"]).layers)
    found = embedding(looks)
    assert torch.equal(found.common["none"], found.common[BEFORE])
    assert torch.equal(found.own["none"], found.own[BEFORE])
    assert found.probes["none"] == found.probes[BEFORE]


def test_the_probe_tells_brighter_sites_apart_until_the_means_are_shared(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path, sites=2, patients=8, size=32)
    hospitals = opened("segmentation", folder)
    found = embedding(looks_at(hospitals, harmonization(hospitals, ["dc"]).layers))
    assert found.probes[BEFORE].accuracy == 1
    assert found.probes["dc"].accuracy < 0.8
    assert found.common["dc"].shape == (len(found.sites), 2)


def test_images_are_drawn_where_they_are_many(histology: Hospitals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_IMAGES", 7)
    assert len(histology.some("hospital-1")[0]) == 7
    assert torch.equal(histology.some("hospital-1")[0].groups, histology.some("hospital-1")[0].groups)


def test_images_that_do_not_fit_into_memory_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = opened().some("hospital-0")[0].load(torch.arange(3)).images
    monkeypatch.setattr(module, "LARGEST_KEPT", 1)
    hospitals = opened()
    assert torch.equal(hospitals.some("hospital-0")[0].load(torch.arange(3)).images, first)
    assert not hospitals._kept


def test_a_patient_is_one_whatever_is_split(tmp_path: Path) -> None:
    by_image = {"data.split_by": "image"}
    phantom = opened(**by_image, **{"data.images": 24})
    whole = phantom.source.whole("hospital-0")
    images, names = phantom.some("hospital-0")
    assert names == [f"image {number + 1}" for number in range(len(whole))]
    assert len(images.groups.unique()) == len(whole.groups.unique()) < len(whole)
    folder = segmentation_folder(tmp_path, patients=4, images=3, size=32)
    assert len(opened("segmentation", folder, **by_image).some("site-0")[0].groups.unique()) == 4


def test_patients_are_numbered_part_by_part() -> None:
    """As in earlier versions, so that the same probe deals out the same folds."""
    hospitals = opened()
    groups = join_sets(hospitals.parts("hospital-0")).groups
    assert torch.equal(hospitals.some("hospital-0")[0].groups, groups)
    assert first_of_same(torch.tensor([0, 1, 2, 3]), torch.tensor([7, 5, 7, 5])).tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(("values", "place"), [([3.0, 1.0, 2.0], 2), ([4.0, 1.0, 2.0, 3.0], 2), ([5.0], 0)])
def test_the_median_is_the_lower_one_of_two(values: list[float], place: int) -> None:
    assert median_place(torch.tensor(values)) == place


def test_the_chosen_image_is_of_the_kind_and_of_median_brightness() -> None:
    brightness = torch.tensor([0.1, 0.5, 0.3, 0.9, 0.7])
    images = LabelledImages(
        brightness[:, None, None, None].expand(5, 1, 2, 2), torch.tensor([0, 1, 1, 1, 0]), torch.arange(5)
    )
    chosen = choose(images, "abcde", brightness, images.targets == 1)
    assert chosen is not None
    assert (chosen.name, chosen.out_of) == ("b", 3)
    assert chosen.brightness == pytest.approx(0.5)
    assert float(chosen.image[0, 0, 0]) == pytest.approx(0.5)
    assert choose(images, "abcde", brightness, images.targets == 2) is None


def test_an_image_with_an_empty_mask_is_of_another_kind() -> None:
    masks = torch.zeros(2, 2, 2, dtype=torch.int64)
    masks[1, 0, 0] = 2
    assert kinds_in(LabelledImages(torch.zeros(2, 1, 2, 2), masks, torch.arange(2))).tolist() == [0, 1]


def test_samples_are_one_per_class_and_a_class_that_a_site_lacks_is_none(tmp_path: Path) -> None:
    folder = classification_folder(tmp_path, sites=2, images=12, classes=("healthy", "ill"))
    manifest = (folder / "manifest.csv").read_text()
    lines = [line.replace(",ill", ",healthy") if "site-1" in line else line for line in manifest.splitlines()]
    (folder / "manifest.csv").write_text("\n".join(lines) + "\n")
    first, second = looks_at(opened("classification", folder))
    assert {name: int(sample.target) for name, sample in first.samples.items() if sample} == {"healthy": 0, "ill": 1}
    assert second.samples["ill"] is None
    assert first.statistics == {}


def test_a_segmentation_example_has_something_to_find() -> None:
    for look in looks_at(opened("prostate", **{"data.images": 10})):
        assert (look.example.target > 0).any()


def test_neighbouring_slices_are_no_colours() -> None:
    assert opened("nuclei").is_colour
    assert not opened("prostate").is_colour


@pytest.mark.parametrize(("text", "band"), [("dc", "dc"), ("0.2", 0.2), ("full", "full"), ("none", "none")])
def test_bands_are_read_as_they_are_written(text: str, band: object) -> None:
    assert parse_band(text) == band


@pytest.mark.parametrize("text", ["some", "2", "-1", "nan"])
def test_an_unknown_band_is_named_with_what_is_allowed(text: str) -> None:
    with pytest.raises(UsageError, match=f"band = '{text}': must be 'none', 'dc', 'full' or a radius"):
        parse_band(text)
