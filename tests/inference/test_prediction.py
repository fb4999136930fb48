"""Prediction: masks that lie on their images, the same numbers however they are asked for, and no file lost."""

import csv
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.inferers.utils import sliding_window_inference
from PIL import Image
from pydicom import dcmread
from torch import Tensor, nn

import harmofl
from folders import dicom_slice
from harmofl import registry
from harmofl.data.facts import DataFacts
from harmofl.data.formats import read_mask, read_scan
from harmofl.data.preparation import to_tensor
from harmofl.data.scans import Scan
from harmofl.data.windows import pad_to_size, starts
from harmofl.errors import UsageError
from harmofl.events import Event, StepDone
from harmofl.inference import prediction
from harmofl.inference.inputs import find_inputs, stem_of
from harmofl.inference.outcomes import Outcome
from harmofl.inference.outputs import output_stems
from harmofl.inference.overlays import choose_slices
from harmofl.inference.prediction import predict
from harmofl.inference.windows import Windows
from harmofl.runs.model_folder import describe_model, open_model, write_model
from harmofl.settings import DataSettings, resolve

RANDOM = np.random.default_rng(0)
FACTS = DataFacts(False, ("north", "south"), 3, ("background", "foreground"))
SIZE = 32


# --- models -------------------------------------------------------------------------------------------------------


def written(
    folder: Path,
    task_name: str = "segmentation",
    method: str = "harmofl",
    classes: tuple[str, ...] = ("background", "cell"),
    **more: Any,
) -> Path:
    """A model folder with random weights."""
    task, settings, chosen = described(task_name, method, classes, **more)
    model = task.build_model(settings, chosen)
    torch.manual_seed(1)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d) and layer.track_running_stats:
            layer.running_mean.normal_(0, 0.1)  # type: ignore[operator, union-attr]
            layer.running_var.uniform_(0.5, 1.5)  # type: ignore[operator, union-attr]
    if hasattr(model.harmonizer, "amplitude"):
        model.harmonizer.receive({"amplitude": torch.full_like(model.harmonizer.amplitude, 0.4 * SIZE * SIZE)})
    write_model(folder, model, task, settings, FACTS, ["north", "south"], 1)
    return folder


def described(
    task_name: str = "segmentation",
    method: str = "fedavg",
    classes: tuple[str, ...] = ("background", "cell"),
    **more: Any,
) -> Any:
    changes = {"data.size": SIZE, "data.channels": 3, "training.batch_size": 4, "data.classes": list(classes)}
    changes |= {name.replace("__", "."): value for name, value in more.items()}
    settings, chosen = resolve(task_name, method, "smoke", overrides=changes)
    return registry.tasks.find(task_name), settings, chosen


class Brightness(nn.Module):
    """Class 1 where the middle channel is above a half; keeps what it has seen."""

    def __init__(self, classes: int = 2, channel: int = 0) -> None:
        super().__init__()
        self.classes, self.channel = classes, channel
        self.seen: list[Tensor] = []

    def forward(self, images: Tensor) -> Tensor:
        self.seen += list(images.clone())
        value = images[:, self.channel] * (self.classes - 1)
        return torch.stack([-((value - number) ** 2) for number in range(self.classes)], dim=1)


Using = Callable[..., nn.Module]


@pytest.fixture
def using(monkeypatch: pytest.MonkeyPatch) -> Using:
    """Let every prediction use a module of the test's own."""

    def use(module: nn.Module, task_name: str = "segmentation", **more: Any) -> nn.Module:
        task, settings, method = described(task_name, **more)
        monkeypatch.setattr(prediction, "open_model", lambda *_: (module, task, settings, method))
        monkeypatch.setattr(prediction, "read_description", lambda _: {})
        return module

    return use


def picture(path: Path, height: int = 40, width: int = 40, colours: int = 3) -> np.ndarray:
    shape = (height, width, 3) if colours == 3 else (height, width)
    pixels = RANDOM.integers(0, 256, shape, dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


def only(outcomes: list[Outcome]) -> Path:
    (outcome,) = outcomes
    assert outcome.error == ""
    assert outcome.output is not None
    return outcome.output


# --- masks lie where their images do ------------------------------------------------------------------------------

GREY = {"data__channels": 1, "data__intensity": "range"}
ORIENTATIONS = ["LPS", "RAS", "LAS", "SPR", "PIR", "AIL"]


def volume(path: Path, codes: str = "LPS", shape: tuple[int, int, int] = (40, 36, 6)) -> np.ndarray:
    """A volume of zeros with a bright part that is no mirror image of itself; as it is stored."""
    stored = np.zeros(shape, dtype=np.int16)
    stored[5:20, 3:12, 1:4] = 900
    stored[5:9, 12:30, 2:3] = 900
    axes = nib.orientations.axcodes2ornt(codes)
    affine = np.zeros((4, 4))
    for column, (axis, sign) in enumerate(axes):
        affine[int(axis), column] = sign * (0.5, 0.75, 3.0)[column]
    affine[:, 3] = [-11, 22, 33, 1]
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nib.nifti1.Nifti1Image(stored, affine)
    image.header.set_xyzt_units("mm", "sec")
    nib.save(image, path)
    return stored


@pytest.mark.parametrize("codes", ORIENTATIONS)
@pytest.mark.parametrize("resize", [True, False])
def test_a_mask_lies_on_the_bright_voxels_of_the_stored_volume(
    tmp_path: Path, using: Using, codes: str, resize: bool
) -> None:
    """Slices of 32 x 32: scaling does nothing to them, so that every voxel can be right."""
    using(Brightness(), data__resize=resize, **GREY)
    shape = (SIZE, SIZE, 6)
    stored = volume(tmp_path / "case.nii.gz", codes, shape)
    path = only(predict(tmp_path, [tmp_path / "case.nii.gz"], tmp_path / "out"))
    assert path == tmp_path / "out" / "case_mask.nii.gz"
    image, mask = nib.load(tmp_path / "case.nii.gz"), nib.load(path)
    assert np.array_equal(mask.dataobj, stored > 0)
    assert mask.shape == image.shape
    assert np.array_equal(mask.affine, image.affine)
    assert mask.header.get_zooms() == image.header.get_zooms()
    assert mask.header.get_xyzt_units() == ("mm", "sec")
    assert nib.aff2axcodes(mask.affine) == tuple(codes)


@pytest.mark.parametrize("shape", [(40, 36, 6), (20, 90, 3), (17, 5, 2)])
def test_windows_leave_every_voxel_in_its_place(tmp_path: Path, using: Using, shape: tuple[int, int, int]) -> None:
    using(Brightness(), **GREY)
    stored = volume(tmp_path / "case.nii", "RAS", shape)
    assert stored.any()
    path = only(predict(tmp_path, [tmp_path / "case.nii"], tmp_path / "out"))
    assert np.array_equal(nib.load(path).dataobj, stored > 0)


def test_a_scaled_mask_comes_back_to_its_place(tmp_path: Path, using: Using) -> None:
    using(Brightness(), data__resize=True, **GREY)
    stored = volume(tmp_path / "case.nii", "LAS", (70, 50, 6))
    path = only(predict(tmp_path, [tmp_path / "case.nii"], tmp_path / "out"))
    mask = np.asarray(nib.load(path).dataobj)
    assert mask.shape == stored.shape
    overlap = 2 * (mask & (stored > 0)).sum() / (mask.sum() + (stored > 0).sum())
    assert overlap > 0.9  # an edge may move by a pixel


def test_slices_keep_their_order_and_know_their_neighbours(tmp_path: Path, using: Using) -> None:
    """Each slice has its number as its value; the end slices are their own neighbours."""
    module = using(
        Brightness(), data__channels=3, data__neighbours=1, data__intensity=[0.0, 100.0], training__batch_size=2
    )
    stored = np.broadcast_to(np.arange(5.0, dtype=np.float32) * 20, (SIZE, SIZE, 5))
    nib.save(nib.nifti1.Nifti1Image(np.ascontiguousarray(stored), np.eye(4)), tmp_path / "case.nii")
    path = only(predict(tmp_path, [tmp_path / "case.nii"], tmp_path / "out"))
    seen = [[round(float(channel.mean()) * 5) for channel in image] for image in module.seen]
    assert seen == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 4]]
    mask = np.asarray(nib.load(path).dataobj)
    assert mask[0, 0].tolist() == [0, 0, 0, 0, 1]  # the first channel of the last slice is above a half


def dicom_series(folder: Path, slices: int = 4) -> np.ndarray:
    """Slices (S, rows, columns) whose files' names are not in the order of the body."""
    folder.mkdir(parents=True)
    pixels = np.zeros((slices, 36, 40))
    pixels[1:3, 4:9, 20:38] = 500
    pixels[2, 20:30, 3:6] = 500
    for number, name in enumerate(itertools.islice(("d", "b", "c", "a", "f", "e"), slices)):
        dicom_slice(pixels[number], 5 + 3 * number, "1.2.3").save_as(folder / name, enforce_file_format=True)
    return pixels > 0


def test_a_dicom_series_becomes_a_nifti_mask_in_the_right_place(tmp_path: Path, using: Using) -> None:
    using(Brightness(), **GREY)
    bright = dicom_series(tmp_path / "series")
    path = only(predict(tmp_path, [tmp_path / "series"], tmp_path / "out"))
    assert path == tmp_path / "out" / "series_mask.nii.gz"
    mask = nib.load(path)
    # DICOM counts to the left and back, NIfTI to the right and front: the first two axes turn their signs.
    assert np.allclose(mask.affine, [[-0.5, 0, 0, -10], [0, -0.75, 0, -20], [0, 0, 3, 5], [0, 0, 0, 1]])
    assert np.array_equal(np.asarray(mask.dataobj).transpose(2, 1, 0), bright)


def test_a_dicom_series_becomes_a_dicom_segmentation_if_wanted(tmp_path: Path, using: Using) -> None:
    pytest.importorskip("highdicom")
    using(Brightness(), **GREY)
    bright = dicom_series(tmp_path / "series")
    picture(tmp_path / "other.png", colours=1)
    outcomes = predict(tmp_path, [tmp_path / "series", tmp_path / "other.png"], tmp_path / "out", dicom_seg=True)
    assert [outcome.output for outcome in outcomes] == [
        tmp_path / "out" / "series_mask.dcm",
        tmp_path / "out" / "other_mask.png",
    ]
    segmentation = dcmread(tmp_path / "out" / "series_mask.dcm")
    assert [segment.SegmentLabel for segment in segmentation.SegmentSequence] == ["cell"]
    groups = segmentation.PerFrameFunctionalGroupsSequence
    heights = {
        float(group.PlanePositionSequence[0].ImagePositionPatient[2]): frame
        for group, frame in zip(groups, segmentation.pixel_array, strict=True)
    }
    assert sorted(heights) == [8, 11]  # only slices with something in them have a frame
    assert np.array_equal(heights[8], bright[1])
    assert np.array_equal(heights[11], bright[2])


def test_pages_of_a_tiff_become_pages_of_a_mask(tmp_path: Path, using: Using) -> None:
    import tifffile

    using(Brightness(), **GREY)
    pages = RANDOM.integers(0, 256, (3, 40, 50), dtype=np.uint8)
    tifffile.imwrite(tmp_path / "stack.tif", pages, photometric="minisblack")
    path = only(predict(tmp_path, [tmp_path / "stack.tif"], tmp_path / "out"))
    assert path.name == "stack_mask.tif"
    low, high = int(pages.min()), int(pages.max())
    assert np.array_equal(tifffile.imread(path) == 255, pages > (low + high) / 2)


@pytest.mark.parametrize("size", [(32, 32), (20, 50), (64, 33), (7, 100), (100, 100), (1, 1)])
@pytest.mark.parametrize("resize", [True, False])
def test_a_picture_of_any_size_gets_a_mask_of_its_size(tmp_path: Path, size: tuple[int, int], resize: bool) -> None:
    model = written(tmp_path / "model", data__resize=resize)
    picture(tmp_path / "a.png", *size)
    path = only(predict(model, [tmp_path / "a.png"], tmp_path / "out"))
    with Image.open(path) as mask:
        assert (mask.height, mask.width) == size
        assert mask.mode == "L"
        assert set(np.unique(mask)) <= {0, 255}


VALUES = {
    ("background", "cell"): ("L", [0, 255]),
    ("0", "255"): ("L", [0, 255]),
    ("0", "1"): ("P", [0, 1]),
    ("background", "cell", "edge"): ("P", [0, 1, 2]),
    ("0", "10", "200"): ("P", [0, 10, 200]),
    ("0", "10", "2000"): ("I;16", [0, 10, 2000]),
}


@pytest.mark.parametrize("classes", VALUES, ids="-".join)
def test_mask_values_are_those_of_training(tmp_path: Path, using: Using, classes: tuple[str, ...]) -> None:
    using(Brightness(len(classes)), classes=classes, **GREY)
    column = np.linspace(0, 255, len(classes)).astype(np.uint8)
    Image.fromarray(np.repeat(column, 20)[None].repeat(30, axis=0)).save(tmp_path / "a.png")
    path = only(predict(tmp_path, [tmp_path / "a.png"], tmp_path / "out"))
    mode, values = VALUES[classes]
    with Image.open(path) as mask:
        assert mask.mode == mode
    labels = read_mask(path, read_scan(tmp_path / "a.png")).labels
    assert labels[0, 0].tolist() == np.repeat(values, 20).tolist()


def test_a_mask_in_colours_shows_every_class_in_another(tmp_path: Path, using: Using) -> None:
    using(Brightness(4), classes=("none", "a", "b", "c"), **GREY)
    Image.fromarray(np.repeat(np.array([0, 85, 170, 255], dtype=np.uint8), 10)[None].repeat(9, 0)).save(
        tmp_path / "a.png"
    )
    path = only(predict(tmp_path, [tmp_path / "a.png"], tmp_path / "out"))
    with Image.open(path) as mask:
        shown = np.asarray(mask.convert("RGB"))
    assert len({tuple(pixel) for pixel in shown[0].tolist()}) == 4
    assert shown[0, 0].tolist() == [0, 0, 0]


# --- the numbers --------------------------------------------------------------------------------------------------


def test_an_image_of_the_input_size_gets_the_models_own_logits(tmp_path: Path) -> None:
    folder = written(tmp_path / "model")
    pixels = picture(tmp_path / "a.png", SIZE, SIZE)
    model = harmofl.load_model(folder)
    with torch.no_grad():
        logits = model(torch.from_numpy(pixels).permute(2, 0, 1)[None] / 255)
    path = only(predict(folder, [tmp_path / "a.png"], tmp_path / "out"))
    with Image.open(path) as mask:
        assert np.array_equal(np.asarray(mask) > 0, logits[0].argmax(dim=0).numpy() > 0)


def data_of(**changes: Any) -> DataSettings:
    return DataSettings(size=SIZE, **changes)


@pytest.mark.parametrize("size", [(32, 70), (100, 40), (90, 90), (33, 33), (20, 70)])
@pytest.mark.parametrize("overlap", [0.0, 0.25, 0.6])
def test_windows_give_what_monais_sliding_window_gives(tmp_path: Path, size: tuple[int, int], overlap: float) -> None:
    model = harmofl.load_model(written(tmp_path / "model", classes=("none", "a", "b")))
    pixels = RANDOM.integers(0, 256, (2, 3, *size), dtype=np.uint8)
    windows = Windows(Scan(pixels), data_of(), 3, resize=False, overlap=overlap)
    with torch.no_grad():
        labels = windows.labels(model(window[None])[0] for window in windows)
        expected = sliding_window_inference(
            to_tensor(pad_to_size(pixels, (SIZE, SIZE))), (SIZE, SIZE), 4, model, overlap=overlap, mode="gaussian"
        )
    assert np.array_equal(labels, expected.argmax(dim=1).numpy()[:, : size[0], : size[1]])


@pytest.mark.parametrize(
    ("length", "overlap", "expected"),
    [(32, 0.25, [0]), (33, 0.25, [0, 1]), (56, 0.25, [0, 24]), (80, 0.25, [0, 24, 48]), (64, 0.0, [0, 32])],
)
def test_windows_cover_a_length(length: int, overlap: float, expected: list[int]) -> None:
    assert starts(length, SIZE, overlap) == expected


def test_every_window_is_harmonized_on_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path / "model")
    picture(tmp_path / "a.png", 50, 70)
    model, *rest = open_model(folder)
    seen: list[Tensor] = []
    model.harmonizer.register_forward_hook(lambda _layer, _inputs, output: seen.extend(output))
    monkeypatch.setattr(prediction, "open_model", lambda *_: (model, *rest))
    predict(folder, [tmp_path / "a.png"], tmp_path / "out")
    assert len(seen) == 2 * 3
    for window in seen:  # the mean is the one of training, in each
        assert window.shape == (3, SIZE, SIZE)
        assert torch.allclose(window.mean(dim=(1, 2)), torch.full((3,), 0.4), atol=1e-5)


def test_one_at_a_time_or_in_a_batch_the_probabilities_are_the_same(tmp_path: Path) -> None:
    folder = written(tmp_path / "model", "classification", classes=("a", "b", "c"))
    for number in range(7):
        picture(tmp_path / "in" / f"{number}.png", 30 + number, 40)
    together = predict(folder, [tmp_path / "in"], tmp_path / "out")
    alone = predict(folder, [tmp_path / "in"], tmp_path / "alone", batch_size=1)
    single = [predict(folder, [outcome.image], tmp_path / str(number))[0] for number, outcome in enumerate(together)]
    chances = [[list(each.probabilities.values()) for each in group] for group in (together, alone, single)]
    assert np.ptp(np.array(chances), axis=0).max() < 1e-5
    assert np.ptp(np.array(chances[0]), axis=0).max() > 1e-5  # and they differ between images


def test_one_at_a_time_or_in_a_batch_the_masks_are_the_same(tmp_path: Path) -> None:
    folder = written(tmp_path / "model")
    for number in range(5):
        picture(tmp_path / "in" / f"{number}.png", 30 + 8 * number, 45)
    predict(folder, [tmp_path / "in"], tmp_path / "together", batch_size=3)
    for number in range(5):
        predict(folder, [tmp_path / "in" / f"{number}.png"], tmp_path / "alone", batch_size=1)
        name = f"{number}_mask.png"
        assert (tmp_path / "together" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


def test_a_trained_models_masks_score_as_its_evaluation_says(tmp_path: Path) -> None:
    """Volumes of the network's size, stored in several orientations: what is scored is what is written."""
    for (site, codes), number in itertools.product([("north", "LPS"), ("south", "RAS")], range(4)):
        path = tmp_path / "data" / site / f"Case{number}.nii.gz"
        stored = volume(path, codes, (48, 48, 4))
        noisy = stored + RANDOM.normal(300, 60, stored.shape).astype(np.float32)
        affine = nib.load(path).affine
        nib.save(nib.nifti1.Nifti1Image(noisy, affine), path)
        nib.save(
            nib.nifti1.Nifti1Image((stored > 0).astype(np.uint8), affine),
            path.with_name(f"Case{number}_segmentation.nii.gz"),
        )
    changes = {"federation.workers": 1, "data.cache": str(tmp_path / "cache"), "training.rounds": 3}
    harmofl.train("prostate", "harmofl", preset="smoke", data=tmp_path / "data", settings=changes, out=tmp_path / "run")
    model = tmp_path / "run" / "model"
    scores = harmofl.evaluate(
        model, data=tmp_path / "data", split="all", settings={"data.cache": str(tmp_path / "cache")}
    )
    outcomes = predict(model, [tmp_path / "data"], tmp_path / "out")
    assert [bool(outcome.left_out) for outcome in outcomes] == [False] * 8 + [True] * 8  # the masks beside the volumes
    for site in ("north", "south"):
        dice = []
        for number in range(4):
            truth = nib.load(tmp_path / "data" / site / f"Case{number}_segmentation.nii.gz")
            mask = nib.load(tmp_path / "out" / site / f"Case{number}_mask.nii.gz")
            assert np.array_equal(mask.affine, truth.affine)
            one, other = np.asarray(truth.dataobj) > 0, np.asarray(mask.dataobj) > 0
            sums = one.sum(axis=(0, 1)) + other.sum(axis=(0, 1))
            both = (one & other).sum(axis=(0, 1))
            dice += [1.0 if total == 0 else 2 * common / total for common, total in zip(both, sums, strict=True)]
        assert np.mean(dice) == pytest.approx(scores[site]["metric"], abs=1e-6)
    volume(tmp_path / "other.nii.gz", "PSR", (48, 48, 4))
    (outcome,) = predict(model, [tmp_path / "other.nii.gz"], tmp_path / "out")
    assert outcome.notes == ("its slices are sagittal, those of the training images axial",)
    assert not any(each.notes for each in outcomes)


# --- classes ------------------------------------------------------------------------------------------------------


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_classes_are_written_as_a_table_in_the_order_of_the_images(tmp_path: Path) -> None:
    folder = written(tmp_path / "model", "classification", classes=("benign", 'with, comma and "quotes"'))
    names = ["b.png", "a, really.png", "c.jpg"]
    for name in names:
        picture(tmp_path / name, 60, 40)
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n cut off")
    images = [tmp_path / name for name in [*names[:2], "broken.png", names[2]]]
    outcomes = predict(folder, images, tmp_path / "out")
    rows = rows_of(tmp_path / "out" / "predictions.csv")
    assert [row["image"] for row in rows] == [str(path) for path in images]
    assert list(rows[0]) == ["image", "class", "p_benign", 'p_with, comma and "quotes"', "error"]
    for row, outcome in zip(rows, outcomes, strict=True):
        assert row["error"] == outcome.error
        assert row["class"] == outcome.label
        if outcome.error:
            assert (row["class"], row["p_benign"], outcome.output) == ("", "", None)
            continue
        chances = dict(outcome.probabilities)
        assert sum(chances.values()) == pytest.approx(1, abs=1e-5)
        assert float(row["p_benign"]) == pytest.approx(chances["benign"], abs=1e-6)
        assert chances[outcome.label] == max(chances.values())
        assert outcome.output == tmp_path / "out" / "predictions.csv"
    assert [bool(outcome.error) for outcome in outcomes] == [False, False, True, False]


def test_a_name_that_is_no_text_costs_no_row(tmp_path: Path) -> None:
    folder = written(tmp_path / "model", "classification")
    (tmp_path / "in").mkdir()
    name = os.fsdecode(b"M\xfcller, A.png")
    for each in ("a.png", name, "Müller.png"):
        picture(tmp_path / "in" / each)
    events: list[Event] = []
    outcomes = predict(folder, [tmp_path / "in"], tmp_path / "out", watch=events.append)
    assert not any(outcome.error for outcome in outcomes)
    assert all(isinstance(event, StepDone) and event.what.isprintable() for event in events)
    rows = rows_of(tmp_path / "out" / "predictions.csv")
    assert {Path(row["image"]).name for row in rows} == {"a.png", "Müller.png", r"M\udcfcller, A.png"}
    assert all(row["class"] for row in rows)


def test_a_mask_and_an_overlay_have_a_name_that_is_no_text(tmp_path: Path, using: Using) -> None:
    using(Brightness(), **GREY)
    volume(tmp_path / os.fsdecode(b"M\xfcller.nii"))
    (outcome,) = predict(tmp_path, [tmp_path / os.fsdecode(b"M\xfcller.nii")], tmp_path / "out", overlay=True)
    assert outcome.error == ""
    assert sorted(os.listdir(os.fsencode(tmp_path / "out"))) == [b"M\xfcller_mask.nii.gz", b"M\xfcller_overlay.png"]


class Levels(nn.Module):
    """A class's probability is the image's mean."""

    def forward(self, images: Tensor) -> Tensor:
        mean = images.mean(dim=(1, 2, 3)).clamp(1e-6, 1 - 1e-6)
        return torch.stack([torch.log(1 - mean), torch.log(mean)], dim=1)


def test_a_volumes_probabilities_are_the_mean_over_its_slices(tmp_path: Path, using: Using) -> None:
    using(Levels(), "classification", data__channels=1, data__intensity=[0.0, 100.0], training__batch_size=2)
    stored = np.ascontiguousarray(np.broadcast_to(np.float32([10, 20, 90]), (40, 30, 3)))
    nib.save(nib.nifti1.Nifti1Image(stored, np.eye(4)), tmp_path / "case.nii")
    (outcome,) = predict(tmp_path, [tmp_path / "case.nii"], tmp_path / "out")
    assert outcome.probabilities["cell"] == pytest.approx(0.4, abs=1e-4)
    assert outcome.label == "background"


def test_there_is_no_overlay_of_a_class(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = written(tmp_path / "model", "classification")
    picture(tmp_path / "a.png")
    (outcome,) = predict(folder, [tmp_path / "a.png"], tmp_path / "out", overlay=True)
    assert outcome.overlay is None
    assert "nothing to draw" in caplog.text
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["predictions.csv"]


# --- which images -------------------------------------------------------------------------------------------------


def found(*images: Any, out: Path) -> list[str]:
    return [each.name for each in find_inputs(images, out) if not each.left_out]


def left_out(folder: Path, out: Path, asked: str = "") -> dict[str, str]:
    """What is not predicted of a folder, each with the reason."""
    inputs = find_inputs([folder / asked], out)
    return {Path(each.name).relative_to(folder).as_posix(): each.left_out for each in inputs if each.left_out}


def test_folders_patterns_and_files_are_inputs_each_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("in/b.png", "in/a.png", "in/deep/er/c.jpg", "in/.hidden.png", "in/.folder/d.png"):
        picture(tmp_path / name)
    (tmp_path / "in" / "notes.txt").write_text("no image")
    dicom_series(tmp_path / "in" / "series")
    monkeypatch.chdir(tmp_path)
    out = Path("out")
    everything = ["in/a.png", "in/b.png", "in/deep/er/c.jpg", "in/series"]
    assert found("in", out=out) == everything
    assert found("in/series", out=out) == ["in/series"]
    assert found("in/*.png", out=out) == ["in/a.png", "in/b.png"]
    assert found("in/**/*.[jp][pn]g", out=out) == ["in/a.png", "in/b.png", "in/deep/er/c.jpg"]
    assert sorted(found("**", out=out)) == everything
    assert found("in/b.png", "in", "./in/b.png", tmp_path / "in" / "a.png", out=out) == [
        "in/b.png",
        "in/a.png",
        "in/deep/er/c.jpg",
        "in/series",
    ]


def test_dicom_files_named_or_matched_one_by_one_are_a_series(tmp_path: Path, using: Using) -> None:
    using(Brightness(), **GREY)
    bright = dicom_series(tmp_path / "series")
    picture(tmp_path / "series" / "z.png")
    files = [tmp_path / "series" / name for name in "bdca"]
    out = tmp_path / "out"
    whole = [str(tmp_path / "series")]
    assert found(*files, out=out) == whole
    assert found(f"{tmp_path}/series/[a-d]", out=out) == whole
    assert found(*files, files[0], f"{tmp_path}/series/?", out=out) == whole
    assert found(files[1], out=out) == [str(files[1])]
    assert found(files[1], tmp_path / "series" / "z.png", files[0], out=out) == [
        str(files[0]),
        str(files[1].parent / "z.png"),
    ]
    path = only(predict(tmp_path, files[:3], out))  # of four slices the first three
    assert path == out / "b_mask.nii.gz"
    assert np.array_equal(np.asarray(nib.load(path).dataobj).transpose(2, 1, 0), bright[:3])


@pytest.mark.parametrize("series", ["1.2.8", ""])
def test_files_named_one_by_one_that_do_not_say_where_they_lie_are_pictures(tmp_path: Path, series: str) -> None:
    views = [tmp_path / "views" / name for name in ("front", "side")]
    for path in views:
        path.parent.mkdir(exist_ok=True)
        view = dicom_slice(np.eye(36) * 500, 0, series)
        del view.ImagePositionPatient
        view.save_as(path, enforce_file_format=True)
    assert found(*views, out=tmp_path / "out") == [str(path) for path in views]
    assert found(views[0].parent, out=tmp_path / "out") == [str(views[0].parent)]  # as in training


def test_each_series_of_a_folder_is_an_input_and_so_is_each_view_of_an_x_ray(tmp_path: Path, using: Using) -> None:
    using(Brightness(), **GREY)
    folder = tmp_path / "in"
    bright = dicom_series(folder)
    for name, series in (("x1", "1.2.8"), ("x2", "1.2.8"), ("y", "1.2.9")):
        view = dicom_slice(np.eye(36 if name == "x1" else 20) * 500, 0, series)
        del view.ImagePositionPatient
        view.save_as(folder / name, enforce_file_format=True)
    outcomes = predict(tmp_path, [folder], tmp_path / "out")
    assert [Path(outcome.image).name for outcome in outcomes] == ["a", "x1", "x2", "y"]
    assert [outcome.error for outcome in outcomes] == [""] * 4
    shapes = [nib.load(outcome.output).shape for outcome in outcomes]
    assert shapes == [(40, 36, 4), (36, 36, 1), (20, 20, 1), (20, 20, 1)]
    assert np.array_equal(np.asarray(nib.load(outcomes[0].output).dataobj).transpose(2, 1, 0), bright)
    listed = predict(tmp_path, [f"{folder}/*"], tmp_path / "listed")
    assert [outcome.image for outcome in listed] == [outcome.image for outcome in outcomes]


def test_a_segmentation_object_belongs_to_one_series_of_a_folder(tmp_path: Path, using: Using) -> None:
    pytest.importorskip("highdicom")
    using(Brightness(), **GREY)
    dicom_series(tmp_path / "in")
    dicom_slice(np.eye(20) * 500, 0, "1.2.9").save_as(tmp_path / "in" / "other", enforce_file_format=True)
    outcomes = predict(tmp_path, [tmp_path / "in"], tmp_path / "out", dicom_seg=True)
    assert [outcome.error for outcome in outcomes] == ["", ""]
    segmentation = dcmread(tmp_path / "out" / "a_mask.dcm")
    (referenced,) = segmentation.ReferencedSeriesSequence
    assert referenced.SeriesInstanceUID == "1.2.3"


def test_folders_that_are_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    picture(tmp_path / "archive" / "p1" / "a.png")
    picture(tmp_path / "in" / "p2" / "b.png")
    (tmp_path / "in" / "p1").symlink_to(tmp_path / "archive" / "p1")
    (tmp_path / "in" / "p2" / "up").symlink_to(tmp_path / "in")
    names = [Path(name).relative_to(tmp_path / "in").as_posix() for name in found(tmp_path / "in", out=tmp_path / "o")]
    assert names == ["p1/a.png", "p2/b.png"]


def test_a_name_with_brackets_is_a_file_if_there_is_one(tmp_path: Path) -> None:
    picture(tmp_path / "scan[1].png")
    picture(tmp_path / "scan1.png")
    assert found(tmp_path / "scan[1].png", out=tmp_path / "out") == [str(tmp_path / "scan[1].png")]


def test_masks_beside_their_images_are_left_out_and_said_so(tmp_path: Path) -> None:
    for name in ("a.png", "a_Segmentation.png", "lonely_mask.png", "b/images/x.png", "b/masks/x.png"):
        picture(tmp_path / "in" / name)
    names = [Path(name).relative_to(tmp_path / "in").as_posix() for name in found(tmp_path / "in", out=tmp_path / "o")]
    assert names == ["a.png", "lonely_mask.png", "b/images/x.png"]
    assert left_out(tmp_path / "in", tmp_path / "o") == {
        "a_Segmentation.png": "a mask or overlay of an image there; name the file to predict it",
        "b/masks": "it lies beside a folder of images",
    }
    named = tmp_path / "in" / "a_Segmentation.png"
    assert found(named, out=tmp_path / "o") == [str(named)]
    both = find_inputs([tmp_path / "in", named], tmp_path / "o")
    assert [each.left_out for each in both if each.name == str(named)] == [""]


@pytest.mark.parametrize("asked", ["", "**/*"])
def test_every_file_that_is_not_read_is_named(tmp_path: Path, asked: str) -> None:
    picture(tmp_path / "in" / "a.png")
    dicom_series(tmp_path / "in" / "series")
    others = ("scan.bmp", "series/notes.txt", "below/volume.gipl")
    for name in (*others, ".hidden", "Thumbs.db", "series/DICOMDIR", ".git/config"):
        (tmp_path / "in" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_bytes(b"something")
    reasons = left_out(tmp_path / "in", tmp_path / "o", asked)
    assert sorted(reasons) == sorted(others)
    assert set(reasons.values()) == {"not an image that can be read (PNG, JPEG, TIFF, SVS, NIfTI, DICOM, MHA, NRRD)"}


def test_what_is_left_out_is_among_the_outcomes_after_the_images(tmp_path: Path, using: Using) -> None:
    using(Brightness(), **GREY)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.bmp").write_bytes(b"BM")
    picture(tmp_path / "in" / "a.png", colours=1)
    done, other = predict(tmp_path, [tmp_path / "in"], tmp_path / "out")
    assert done.output is not None
    assert done.left_out == ""
    assert other == Outcome(str(tmp_path / "in" / "0.bmp"), left_out=other.left_out)
    assert other.left_out.startswith("not an image that can be read")


@pytest.mark.parametrize("out", ["in/predicted", "in"])
@pytest.mark.parametrize("asked", ["in", "in/**/*.png"])
def test_outputs_are_not_the_inputs_of_the_next_run(
    tmp_path: Path, using: Using, monkeypatch: pytest.MonkeyPatch, out: str, asked: str
) -> None:
    using(Brightness(), **GREY)
    picture(tmp_path / "in" / "a.png", colours=1)
    picture(tmp_path / "in" / "b.png", colours=1)
    monkeypatch.chdir(tmp_path)
    for again in (False, True):
        outcomes = predict(tmp_path, [asked], Path(out), overlay=True, overwrite=again)
        assert [outcome.image for outcome in outcomes if not outcome.left_out] == ["in/a.png", "in/b.png"]


def test_nothing_at_all_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.gipl").write_text("ObjectType = Image")
    for images, words in (
        ([tmp_path / "missing.png"], "missing.png: no such file"),
        ([tmp_path / "empty"], "empty: no images in this folder"),
        ([tmp_path / "other"], "other: no images in this folder; .*a.gipl: left out: not an image that can be read"),
        ([f"{tmp_path}/*.png"], "no image matches this"),
        ([], "no images given"),
    ):
        with pytest.raises(UsageError, match=words):
            find_inputs(images, tmp_path / "out")


def test_one_bad_file_is_reported_and_the_rest_done(tmp_path: Path) -> None:
    folder = written(tmp_path / "model")
    picture(tmp_path / "a.png")
    picture(tmp_path / "grey.png", colours=1)
    (tmp_path / "b.png").write_bytes((tmp_path / "a.png").read_bytes()[:200])
    (tmp_path / "c.nii.gz").write_text("nothing of the kind")
    picture(tmp_path / "d.png")
    names = ["a.png", "b.png", "c.nii.gz", "missing.png", "grey.png", "d.png"]
    events: list[Event] = []
    outcomes = predict(folder, [tmp_path / name for name in names], tmp_path / "out", watch=events.append)
    assert [Path(outcome.image).name for outcome in outcomes] == names
    assert [outcome.error == "" for outcome in outcomes] == [True, False, False, False, False, True]
    assert outcomes[3].error == "no such file"
    assert "1 channel, the model takes 3" in outcomes[4].error
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a_mask.png", "d_mask.png"]
    steps = [event for event in events if isinstance(event, StepDone)]
    assert [(step.done, step.total) for step in steps] == [(done, 6) for done in range(7)]
    assert steps == events


def test_a_file_that_cannot_be_written_is_reported_and_leaves_nothing(
    tmp_path: Path, using: Using, monkeypatch: pytest.MonkeyPatch
) -> None:
    using(Brightness(), **GREY)
    for name in ("a", "b"):
        picture(tmp_path / "in" / f"{name}.png", colours=1)
    replace = os.replace

    def full(source: Any, target: Any) -> None:
        if Path(target).name == "a_mask.png":
            raise OSError(28, "No space left on device", str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    first, second = predict(tmp_path, [tmp_path / "in"], tmp_path / "out")
    assert "No space left on device" in first.error
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["b_mask.png"]
    assert second.error == ""


# --- where outputs go ---------------------------------------------------------------------------------------------


def test_outputs_lie_as_their_images_do(tmp_path: Path) -> None:
    images = [tmp_path / name for name in ("in/north/a.png", "in/south/a.png", "in/south/deep/b.nii.gz")]
    places = ["out/north/a", "out/south/a", "out/south/deep/b"]
    assert output_stems(images, Path("out")) == dict(zip(images, map(Path, places), strict=True))
    assert output_stems(images[:1], Path("out")) == {images[0]: Path("out/a")}


def test_no_two_images_share_an_output(tmp_path: Path) -> None:
    names = ["a.png", "a.tif", "A.nii.gz", "a_png.jpg", "b.png"]
    stems = [stem.name for stem in output_stems([tmp_path / name for name in names], Path("out")).values()]
    assert stems == ["a_png_2", "a_tif", "A_nii_gz", "a_png", "b"]
    assert len({stem.lower() for stem in stems}) == len(names)


@pytest.mark.parametrize(
    ("name", "stem"),
    [("a.nii.gz", "a"), ("a.b.PNG", "a.b"), ("IM.0001", "IM.0001"), ("1.2.840", "1.2.840"), (".png", ".png")],
)
def test_stems(name: str, stem: str) -> None:
    assert stem_of(Path(name)) == stem


def test_two_formats_of_one_name_get_a_mask_each(tmp_path: Path, using: Using) -> None:
    using(Brightness(), **GREY)
    picture(tmp_path / "in" / "a.png", colours=1)
    picture(tmp_path / "in" / "a.jpg", colours=1)
    outcomes = predict(tmp_path, [tmp_path / "in"], tmp_path / "out", overlay=True)
    assert [outcome.error for outcome in outcomes] == ["", ""]
    names = ["a_jpg_mask.png", "a_jpg_overlay.png", "a_png_mask.png", "a_png_overlay.png"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names


def test_a_file_among_the_images_is_never_replaced(tmp_path: Path, using: Using) -> None:
    using(Brightness(), **GREY)
    picture(tmp_path / "a.png", colours=1)
    truth = picture(tmp_path / "a_mask.png", colours=1)
    picture(tmp_path / "b.png", colours=1)
    images = [tmp_path / "a.png", tmp_path / "b.png"]
    for overwrite in (False, True):
        first, second = predict(tmp_path, images, tmp_path, overwrite=overwrite)
        assert "already exists, among the images" in first.error
        assert second.output == tmp_path / "b_mask.png"
        (tmp_path / "b_mask.png").unlink()
    with Image.open(tmp_path / "a_mask.png") as kept:
        assert np.array_equal(kept, truth)


def test_nothing_of_an_earlier_prediction_is_replaced_unless_wanted(tmp_path: Path, using: Using) -> None:
    module = using(Brightness(), **GREY)
    for name in ("a", "b", "c"):
        picture(tmp_path / "in" / f"{name}.png", colours=1)
    predict(tmp_path, [tmp_path / "in" / "a.png", tmp_path / "in" / "b.png"], tmp_path / "out")
    before, seen = (tmp_path / "out" / "a_mask.png").read_bytes(), len(module.seen)  # type: ignore[arg-type]
    picture(tmp_path / "in" / "a.png", colours=1)
    with pytest.raises(
        UsageError, match=r"a_mask\.png already exists \(and 1 more\): choose another --out, or .*overwrite"
    ):
        predict(tmp_path, [tmp_path / "in"], tmp_path / "out")
    assert len(module.seen) == seen  # type: ignore[arg-type]
    only(predict(tmp_path, [tmp_path / "in" / "c.png"], tmp_path / "out"))
    assert (tmp_path / "out" / "a_mask.png").read_bytes() == before
    predict(tmp_path, [tmp_path / "in"], tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "a_mask.png").read_bytes() != before


def test_a_table_of_an_earlier_prediction_is_kept(tmp_path: Path, using: Using) -> None:
    using(Levels(), "classification", data__channels=1)
    picture(tmp_path / "a.png", colours=1)
    picture(tmp_path / "b.png", colours=1)
    predict(tmp_path, [tmp_path / "a.png"], tmp_path / "out")
    with pytest.raises(UsageError, match=r"predictions\.csv already exists: choose another --out"):
        predict(tmp_path, [tmp_path / "b.png"], tmp_path / "out")
    predict(tmp_path, [tmp_path / "b.png"], tmp_path / "out", overwrite=True)
    assert [Path(row["image"]).name for row in rows_of(tmp_path / "out" / "predictions.csv")] == ["b.png"]


def test_an_interrupted_prediction_leaves_the_table_of_what_was_done(tmp_path: Path, using: Using) -> None:
    using(Levels(), "classification", data__channels=1, training__batch_size=1)
    for name in "abcd":
        picture(tmp_path / "in" / f"{name}.png", colours=1)

    def interrupted(event: Event) -> None:
        if isinstance(event, StepDone) and event.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict(tmp_path, [tmp_path / "in"], tmp_path / "out", watch=interrupted)
    rows = rows_of(tmp_path / "out" / "predictions.csv")
    assert [Path(row["image"]).name for row in rows] == ["a.png", "b.png"]
    assert all(row["class"] for row in rows)


def test_an_output_folder_that_cannot_be_is_a_usage_error(tmp_path: Path) -> None:
    folder = written(tmp_path / "model")
    picture(tmp_path / "a.png")
    with pytest.raises(UsageError, match=r"a\.png"):
        predict(folder, [tmp_path / "a.png"], tmp_path / "a.png" / "out")


# --- overlays -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "longest"), [((40, 30), 512), ((900, 700), 900), ((100, 3000), 2048)])
def test_an_overlay_is_a_picture_of_sensible_size(
    tmp_path: Path, using: Using, size: tuple[int, int], longest: int
) -> None:
    using(Brightness(), **GREY)
    pixels = np.zeros(size, dtype=np.uint8)
    pixels[10:20, 10:20] = 255
    Image.fromarray(pixels).save(tmp_path / "a.png")
    (outcome,) = predict(tmp_path, [tmp_path / "a.png"], tmp_path / "out", overlay=True)
    assert outcome.overlay == tmp_path / "out" / "a_overlay.png"
    with Image.open(outcome.overlay) as drawn:
        assert max(drawn.size) == longest
        colours = np.asarray(drawn).reshape(-1, 3)
    assert (np.ptp(colours, axis=1) > 50).any()  # the grey image has an outline in colour


def test_an_overlay_of_a_volume_shows_the_slices_with_foreground(tmp_path: Path, using: Using) -> None:
    using(Brightness(), **GREY)
    volume(tmp_path / "case.nii.gz")
    (outcome,) = predict(tmp_path, [tmp_path / "case.nii.gz"], tmp_path / "out", overlay=True)
    assert outcome.overlay is not None
    with Image.open(outcome.overlay) as drawn:
        assert 600 < drawn.width < 1600
        assert 250 < drawn.height < 1200


def test_slices_are_chosen_by_their_foreground_and_shown_in_order() -> None:
    areas = np.array([0, 5, 9, 1, 0, 7])
    assert choose_slices(areas) == [1, 2, 3, 5]
    assert choose_slices(np.arange(30)) == list(range(18, 30))
    assert choose_slices(np.zeros(3, dtype=np.int64)) == [0, 1, 2]
    assert len(choose_slices(np.zeros(100, dtype=np.int64))) == 12


# --- models of each site, and what is refused ---------------------------------------------------------------------


def test_where_each_site_has_its_model_one_must_be_chosen(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    for number, site in enumerate(("north", "south")):
        written(folder / "sites" / site, method="fedbn", seed=number + 4)
    task, settings, _ = described(method="fedbn")
    describe_model(folder, task, settings, FACTS, ["north", "south"], 1)
    picture(tmp_path / "a.png", 60, 60)
    with pytest.raises(UsageError, match=r"one model per site.*north, south; .*harmofl adapt"):
        predict(folder, [tmp_path / "a.png"], tmp_path / "out")
    with pytest.raises(UsageError, match="unknown site 'nord'"):
        predict(folder, [tmp_path / "a.png"], tmp_path / "out", site="nord")
    masks = [
        only(predict(folder, [tmp_path / "a.png"], tmp_path / site, site=site)).read_bytes()
        for site in ("north", "south")
    ]
    assert masks[0] != masks[1]


def test_a_model_that_looks_at_the_whole_batch_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = written(tmp_path / "model", model__norm="batch-statistics")
    for name in "abc":
        picture(tmp_path / "in" / f"{name}.png")
    predict(folder, [tmp_path / "in"], tmp_path / "out")
    assert caplog.text.count("depends on the images beside it") == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [({"overlap": 1.0}, "overlap = 1.0"), ({"overlap": -0.1}, "overlap"), ({"batch_size": 0}, "batch_size = 0")],
)
def test_wrong_options_are_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        predict(tmp_path, [tmp_path], tmp_path / "out", **options)


def test_dicom_segmentations_need_their_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highdicom", None)
    with pytest.raises(UsageError, match=r"harmofl\[dicom-seg\]"):
        predict(tmp_path, [tmp_path], tmp_path / "out", dicom_seg=True)


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a model folder"):
        predict(tmp_path, [tmp_path], tmp_path / "out")
