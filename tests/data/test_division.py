"""Which images count, whose they are, and which are for training, validation and test."""

from pathlib import Path

import numpy as np
import pytest
import torch

from folders import (
    blob,
    classification_folder,
    opened,
    picture,
    prostate_folder,
    save_volume,
    segmentation_folder,
    volume,
    write_manifest,
)
from harmofl.data.division import draw_stratified
from harmofl.data.images import LabelledImages, seed_of
from harmofl.data.inspection import check_for_training


def test_a_limit_draws_the_same_images_every_time(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path)
    first, second = (opened("segmentation", folder, limit=7).whole("site-0") for _ in range(2))
    other = opened("segmentation", folder, limit=7, seed=1).whole("site-0")
    assert len(first) == 7
    pixels = [each.load(torch.arange(7)).images for each in (first, second, other)]
    assert torch.equal(pixels[0], pixels[1])
    assert not torch.equal(pixels[0], pixels[2])


def test_a_limit_in_classification_decodes_no_more_than_it_takes(tmp_path: Path) -> None:
    images = opened("classification", classification_folder(tmp_path, images=20), limit=6)
    entry = images.decoded("site-0").entry
    assert entry is not None
    assert len(entry.planes) == 6


def test_a_limit_draws_whole_volumes(tmp_path: Path) -> None:
    folder = prostate_folder(tmp_path, cases=6)
    images = opened("prostate", folder, limit=22, size=40)
    chosen = images.whole("HK")
    assert 15 <= len(chosen) <= 22
    counts = chosen.groups.unique(return_counts=True)[1].tolist()
    assert set(counts) <= {5, 6}  # every slice of the cases that were drawn
    assert len(opened("prostate", folder, limit=3, size=40).whole("HK").groups.unique()) == 3


def volumes_folder(folder: Path, patients: list[str], splits: list[str]) -> Path:
    """A site of volumes of five slices each."""
    rows = []
    for number, (patient, split) in enumerate(zip(patients, splits, strict=True)):
        pixels, mask = volume((16, 16, 5), number)
        image, labels = (f"{number:02}{part}.nii" for part in ("", "-mask"))
        save_volume(folder / image, pixels, np.eye(4))
        save_volume(folder / labels, mask, np.eye(4))
        rows.append({"site": "A", "patient": patient, "split": split, "image": image, "mask": labels})
    return write_manifest(folder, rows)


@pytest.mark.parametrize("limit", [1, 15, 22, 30])
def test_a_limit_draws_volumes_of_as_many_patients_as_it_can(tmp_path: Path, limit: int) -> None:
    folder = volumes_folder(tmp_path, list("ppppppppqqrs"), [""] * 12)
    for seed in range(5):
        images = opened("segmentation", folder, limit=limit, seed=seed, size=16)
        check_for_training(images)
        numbers = images.whole("A").groups.unique(return_counts=True)[1].tolist()
        assert len(numbers) == min(4, max(3, limit // 5))
        assert sum(numbers) == 5 * max(3, limit // 5)


@pytest.mark.parametrize(
    ("splits", "expected"),
    [
        (["train"] * 9 + ["val", "test", "test"], [{"train"}, {"val"}, {"test"}]),
        (["train"] * 2 + ["test"] * 10, [{"train"}, {"train"}, {"test"}]),
        ([""] * 2 + ["val"] * 10, [{""}, {"val"}, {""}]),
    ],
)
@pytest.mark.parametrize("limit", [1, 22])
def test_a_limit_draws_volumes_of_every_split_that_is_named(
    tmp_path: Path, splits: list[str], expected: list[set[str]], limit: int
) -> None:
    folder = volumes_folder(tmp_path, [f"p{number}" for number in range(12)], splits)
    for seed in range(5):
        images = opened("segmentation", folder, limit=limit, seed=seed, size=16)
        check_for_training(images)
        assert [{splits[number] for number in part.groups.tolist()} for part in images.parts("A")] == expected


def test_a_limit_draws_volumes_as_chance_has_them_where_each_is_a_patient(tmp_path: Path) -> None:
    folder = volumes_folder(tmp_path, [f"p{number}" for number in range(12)], [""] * 12)
    for limit, count in ((1, 3), (22, 4)):
        images = opened("segmentation", folder, limit=limit, size=16).whole("A")
        generator = torch.Generator().manual_seed(seed_of(0, "A", "limit"))
        expected = torch.randperm(12, generator=generator)[:count]
        assert images.groups.unique().tolist() == expected.sort().values.tolist()


def test_a_volume_that_follows_its_patient_does_so_under_a_limit(tmp_path: Path) -> None:
    folder = volumes_folder(tmp_path, list("pppppppqrs"), ["test"] + [""] * 9)
    for seed in range(5):
        _, _, test = opened("segmentation", folder, limit=20, seed=seed, size=16).parts("A")
        assert test.groups.unique().tolist() == [0]


def test_stratified_draws_keep_the_classes_in_proportion() -> None:
    labels = torch.tensor([0] * 30 + [1] * 10)
    images = LabelledImages(torch.zeros(40, 1, 1, 1), labels, torch.arange(40))
    for wanted in (4, 8, 20, 40):
        assert labels[draw_stratified(images, wanted, seed=1)].bincount().tolist() == [3 * wanted // 4, wanted // 4]


def test_unassigned_images_follow_their_patient(tmp_path: Path) -> None:
    rows = []
    for number in range(12):
        picture(tmp_path / f"{number}.png", blob(20, number, 1)[0])
        row = {"site": "A", "image": f"{number}.png", "label": str(number % 2), "patient": f"p{number // 2}"}
        rows.append(row | {"split": "test" if number == 0 else ""})
    train, val, test = (
        set(part.groups.tolist()) for part in opened("classification", write_manifest(tmp_path, rows)).parts("A")
    )
    assert test == {0}
    assert not train & val | train & test | val & test


def test_an_image_of_a_volume_is_a_slice(tmp_path: Path) -> None:
    images = opened("segmentation", volumes_folder(tmp_path, list("pqrs"), [""] * 4), size=16, split_by="image")
    parts = images.parts("A")
    assert [len(part) for part in parts] == [13, 3, 4]  # of 20 slices
    assert len(parts[0].groups.unique()) == 4  # of every volume: a case is still scored as a whole
    by_patient = opened("segmentation", tmp_path, size=16).parts("A")
    assert [len(part) for part in by_patient] == [10, 5, 5]


def test_slices_at_the_ends_of_volumes_can_be_left_out(tmp_path: Path) -> None:
    rows = []
    for number in range(3):
        pixels, mask = volume((16, 16, 5), number)
        mask[:] = 0
        mask[4:8, 4:8, :4] = 1  # the first slice, three inner ones, not the last
        save_volume(tmp_path / f"{number}.nii", pixels, np.eye(4))
        save_volume(tmp_path / f"{number}-mask.nii", mask, np.eye(4))
        rows.append({"site": "A", "image": f"{number}.nii", "mask": f"{number}-mask.nii"})
    write_manifest(tmp_path, rows)
    for slices, count in {"all": 15, "with-foreground": 12, "inner-with-foreground": 9}.items():
        assert len(opened("segmentation", tmp_path, size=16, slices=slices).whole("A")) == count
