"""Pictures of images and of runs: what is drawn, what is written beside it, and what a report shows of it."""

import base64
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import harmofl.api as api
from folders import classification_folder, segmentation_folder
from harmofl.analysis.appearance import FAINTEST
from harmofl.analysis.hospitals import Harmonization
from harmofl.errors import RunError, UsageError
from harmofl.events import Event, ImagesChosen, StepDone
from harmofl.experiments.report import write_report
from harmofl.reporting import gallery
from harmofl.reporting.appearance_figures import _scale
from harmofl.reporting.case_figures import FALSE_ALARM, FOUND, MISSED, WRONG_CLASS, mark_mask, short_method
from harmofl.reporting.gallery import read_gallery
from harmofl.reporting.pictures import Page, write_pictures
from harmofl.reporting.sheets import lines_of, picture
from harmofl.runs.finished import FinishedRun
from runs import train

FIGURES = ("samples", "amplitude", "embedding")


def written(out: Path) -> dict[str, Any]:
    """The numbers; every figure that they list is there, and every file is whole."""
    numbers: dict[str, Any] = json.loads((out / "pictures.json").read_text())
    names = [figure["name"] for figure in numbers["figures"]]
    expected = {f"{name}.{suffix}" for name in names for suffix in ("png", "svg")} | {"pictures.json", "pictures.md"}
    assert {path.name for path in out.iterdir()} == expected
    for name in names:
        with Image.open(out / f"{name}.png") as image:
            assert image.width > 500
        assert (out / f"{name}.svg").read_text().rstrip().endswith("</svg>")
    for figure in numbers["figures"]:
        assert figure["caption"] in (out / "pictures.md").read_text()
    return numbers


@pytest.mark.parametrize("task", ["histology", "nuclei", "prostate"])
def test_every_phantom_is_drawn_before_and_after(task: str, tmp_path: Path) -> None:
    seen: list[Event] = []
    files = api.pictures(out=tmp_path, task=task, preset="smoke", watch=seen.append)
    assert all(file.exists() for file in files)
    numbers = written(tmp_path)
    assert [figure["name"] for figure in numbers["figures"]] == list(FIGURES)
    probe = numbers["probe"]
    assert probe["before"]["accuracy"] >= probe["full"]["accuracy"] - 0.1
    assert probe["chance"] == pytest.approx(1 / len(numbers["images"]))
    assert set(probe["dc"]["per_site"]) == set(numbers["images"]) == set(numbers["chosen"])
    images, *steps = seen
    assert images == ImagesChosen("synthetic hospitals")
    assert all(isinstance(step, StepDone) and step.done < step.total for step in steps)


def test_own_images_of_any_kind_are_drawn_with_any_bands(tmp_path: Path) -> None:
    masks = segmentation_folder(tmp_path / "masks", size=32, channels=1)
    api.pictures(out=tmp_path / "one", task="segmentation", data=masks, preset="smoke", bands=["0.1"])
    assert set(written(tmp_path / "one")["probe"]) == {"chance", "folds", "before", "0.1"}
    assert "Images: masks" in (tmp_path / "one" / "pictures.md").read_text()
    labels = classification_folder(tmp_path / "labels", sites=7, images=10, classes=("a", "b", "c"))
    api.pictures(out=tmp_path / "two", task="classification", data=labels, preset="smoke", bands=["none"])
    chosen = written(tmp_path / "two")["chosen"]["site-6"]
    assert set(chosen) == {"example", "a", "b", "c"}
    assert chosen["a"]["name"].endswith(".png")
    assert f">{chosen['a']['name']}</text>" in (tmp_path / "two" / "samples.svg").read_text()


def test_what_cannot_be_drawn_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown task 'nucleus'; did you mean 'nuclei'"):
        api.pictures(out=tmp_path, task="nucleus")
    with pytest.raises(UsageError, match="band = 'half': must be"):
        api.pictures(out=tmp_path, task="nuclei", bands=["half"])
    with pytest.raises(UsageError, match="nothing to draw: name a task"):
        api.pictures(out=tmp_path)
    with pytest.raises(UsageError, match="preset = 'smoke': runs have their own"):
        api.pictures(["run"], out=tmp_path, preset="smoke")
    with pytest.raises(UsageError, match="no synthetic hospitals"):
        api.pictures(out=tmp_path, task="segmentation")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="file"):
        write_pictures(tmp_path / "file", "Nothing", [], {})


@pytest.fixture(scope="module")
def nuclei(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("runs")
    for method in ("fedavg", "local"):
        train(out / method, method, "nuclei", rounds=1, data__sites=["MoNuSeg", "TNBC"])
    return {method: out / method for method in ("fedavg", "local")}


def test_segmentations_of_every_method_stand_beside_the_truth(nuclei: dict[str, Path], tmp_path: Path) -> None:
    api.pictures(list(nuclei.values()), out=tmp_path)
    numbers = written(tmp_path)
    names = [figure["name"] for figure in numbers["figures"]]
    assert names == ["segmentations", "segmentations-1-monuseg", "segmentations-2-tnbc"]
    for cases in numbers["cases"].values():
        best, median, worst = cases
        assert best["mean_dice"] >= median["mean_dice"] >= worst["mean_dice"]
        assert best["mean_dice"] == pytest.approx(np.mean(list(best["dice"].values())))
    assert {case["site"] for case in numbers["cases"]["segmentations-2-tnbc"]} == {"TNBC"}
    assert list(best["dice"]) == ["FedAvg", "local"]
    assert best["name"] == f"image {best['test_image']}"
    assert f">{best['name']}</text>" in (tmp_path / "segmentations-2-tnbc.svg").read_text()


def test_classes_of_every_method_are_drawn_with_how_sure_they_are(tmp_path: Path) -> None:
    train(tmp_path / "run", rounds=1)
    api.pictures([tmp_path / "run"], out=tmp_path / "out")
    (kinds,) = written(tmp_path / "out")["cases"].values()
    assert list(kinds) == ["surest and right", "least sure", "surest and wrong"]
    assert set(kinds["least sure"][0]["probabilities"]) == {"normal", "tumor"}


def test_what_was_found_and_missed_differs_in_colour_and_in_lightness() -> None:
    from matplotlib.colors import to_rgb

    found, truth = torch.tensor([[1, 1, 0], [0, 2, 0]]), torch.tensor([[1, 0, 1], [0, 1, 0]])
    shown = mark_mask(np.ones((2, 3, 3)), found, truth)
    assert shown[0].tolist() == [list(to_rgb(colour)) for colour in (FOUND, FALSE_ALARM, MISSED)]
    assert shown[1].tolist() == [[1, 1, 1], list(to_rgb(WRONG_CLASS)), [1, 1, 1]]
    grey = sorted(np.dot(to_rgb(colour), [0.299, 0.587, 0.114]) for colour in (FOUND, FALSE_ALARM, MISSED, WRONG_CLASS))
    assert min(np.diff([*grey, 1.0])) > 0.1
    assert (
        grey[-1] < mark_mask(np.zeros((1, 1, 3)), torch.zeros(1, 1), torch.zeros(1, 1)).min()
    )  # the darkest behind them


def test_only_with_several_classes_one_can_be_taken_for_another() -> None:
    words = "purple was found as another class"
    assert words in Page("segmentations", "all hospitals", 3, [], several_classes=True).caption
    assert words not in Page("segmentations", "all hospitals", 3, [], several_classes=False).caption


def test_what_tells_two_runs_of_a_method_apart_is_left_of_a_long_name() -> None:
    assert short_method("HarmoFL") == "HarmoFL"
    assert short_method("FedAvg (seed-0)") != short_method("FedAvg (seed-1)")
    assert len(short_method("HarmoFL, band up to 0.05")) == len("HarmoFL, band") == 13


def test_a_hospital_with_a_single_patient_is_named_in_the_caption(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path / "images", patients=4, images=3, size=32, channels=1)
    manifest = folder / "manifest.csv"
    manifest.write_text(re.sub(r"^site-1,p\d,", "site-1,p0,", manifest.read_text(), flags=re.MULTILINE))
    settings = {"data.split_by": "image"}
    api.pictures(out=tmp_path / "out", task="segmentation", data=folder, preset="smoke", settings=settings)
    caption = next(each["caption"] for each in written(tmp_path / "out")["figures"] if each["name"] == "embedding")
    assert "whose patient it has not seen (of site-1, with a single patient: images that it has not seen): " in caption


def test_spectra_of_large_images_share_one_scale_of_colours() -> None:
    found = Harmonization({}, {}, torch.ones(1, 256, 129))
    images = [torch.full((1, 256, 256), 0.5)] * 2**8  # with the shared one more than 2**24 amplitudes
    assert _scale([images], found)["vmin"] == pytest.approx(math.log10(FAINTEST))


def test_colours_are_shown_as_they_are_and_slices_by_their_middle_one() -> None:
    image = torch.tensor([-0.5, 0.25, 2.0])[:, None, None].expand(3, 2, 2)
    assert picture(image, True)[0, 0].tolist() == [0, 0.25, 1]
    assert picture(image, False)[0, 0].tolist() == [0.25, 0.25, 0.25]


@pytest.mark.parametrize(("count", "lines"), [(5, (1, 5)), (6, (1, 6)), (7, (2, 4)), (11, (2, 6)), (13, (3, 5))])
def test_tiles_are_spread_evenly_over_lines(count: int, lines: tuple[int, int]) -> None:
    assert lines_of(count, 6) == lines


# --- on the page ---------------------------------------------------------------------------------------------------


def pictures_in(folder: Path, *captions: str, size: int = 10) -> None:
    folder.mkdir(parents=True)
    figures = [{"name": f"figure-{number}", "caption": caption} for number, caption in enumerate(captions)]
    (folder / "pictures.json").write_text(json.dumps({"figures": figures}))
    for figure in figures:
        (folder / f"{figure['name']}.png").write_bytes(b"\x89PNG" + bytes(size))


def test_a_report_shows_the_pictures_below_its_folder(make_run: Callable[..., FinishedRun]) -> None:
    folder = make_run("fedavg", {"A": 0.9, "B": 0.8}).folder
    assert "Pictures</h2>" not in write_report(folder).read_text()
    pictures_in(folder / "pictures" / "looks", "Images <of> A")
    text = write_report(folder).read_text()
    encoded = base64.b64encode(b"\x89PNG" + bytes(10)).decode()
    assert f'src="data:image/png;base64,{encoded}"' in text
    assert "<figcaption>Images &lt;of&gt; A</figcaption>" in text


def test_an_experiments_report_does_too(experiment: Path) -> None:
    pictures_in(experiment / "pictures", "Segmentations of all")
    assert "Segmentations of all" in write_report(experiment).read_text()


def test_pictures_that_a_page_has_no_room_for_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery, "LARGEST", 250)
    pictures_in(tmp_path / "pictures", "first", "second", "third", size=100)
    photos = read_gallery(tmp_path)
    assert [bool(photo.source) for photo in photos] == [True, True, False]
    assert photos[2].caption == "pictures/figure-2.png: third"


def test_a_picture_is_never_taken_from_elsewhere(tmp_path: Path) -> None:
    pictures_in(tmp_path / "pictures", "first")
    (tmp_path / "secret.png").write_bytes(b"secret")
    listing = {"figures": [{"name": "../secret", "caption": "?"}, {"name": "figure-0", "caption": "first"}]}
    (tmp_path / "pictures" / "pictures.json").write_text(json.dumps(listing))
    assert [photo.caption for photo in read_gallery(tmp_path)] == ["first"]
    (tmp_path / "pictures" / "pictures.json").write_text("{}")
    with pytest.raises(UsageError, match=r"pictures\.json cannot be read"):
        read_gallery(tmp_path)
