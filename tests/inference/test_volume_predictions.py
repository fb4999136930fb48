"""A model for volumes at work: predictions on a scan's own voxels, and the same from its exported file alone."""

import re
import subprocess
import sys
from pathlib import Path

import nibabel
import numpy as np
import pytest

import harmofl
from folders import dicom_slice
from harmofl.analysis.cases import Gallery
from harmofl.data.formats import read_mask, read_scan
from harmofl.runs.finished import read_run
from volumes import SAGITTAL, SLICES_LAST, write_case, write_hospitals


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model trained on two hospitals for long enough to find the ellipsoids."""
    folder = tmp_path_factory.mktemp("volumes")
    settings = {
        "data.dimensions": 3,
        "data.cache": str(folder / "cache"),
        "data.spacing": [2.0, 2.0, 2.0],
        "data.patches": 4,
        "training.rounds": 4,
        "training.batch_size": 2,
        "training.learning_rate": 0.02,
    }
    data = write_hospitals(folder / "data")
    harmofl.train("prostate", "harmofl", preset="smoke", data=data, out=folder / "run", workers=1, settings=settings)
    return folder / "run"


def dice(first: np.ndarray, second: np.ndarray) -> float:
    return float(2 * (first * second).sum() / (first.sum() + second.sum()))


@pytest.mark.parametrize(("affine", "shape"), [(SLICES_LAST, (40, 36, 16)), (SAGITTAL, (28, 26, 22))])
def test_a_mask_lies_on_the_scans_own_voxels(run: Path, tmp_path: Path, affine: np.ndarray, shape: tuple) -> None:
    write_case(tmp_path / "in", "new", seed=7, affine=affine, shape=shape)
    (outcome, left_out) = harmofl.predict(run, tmp_path / "in", out=tmp_path / "out", progress=False)
    assert left_out.left_out
    assert outcome.output is not None
    found, truth = nibabel.load(outcome.output), nibabel.load(tmp_path / "in" / "new_segmentation.nii.gz")
    assert found.shape == shape
    assert np.array_equal(found.affine, truth.affine)
    assert np.array_equal(found.header.get_zooms(), truth.header.get_zooms())
    assert dice(np.asarray(found.dataobj), np.asarray(truth.dataobj)) > 0.3  # chance: a tenth of the voxels


def test_the_cards_script_gives_the_same_mask_without_this_package(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    write_case(tmp_path, "scan", seed=8, affine=SAGITTAL, shape=(32, 30, 26))
    harmofl.export(run, format="onnx", out=tmp_path)
    card = (tmp_path / "MODEL.md").read_text()
    (script,) = re.findall(r"as `harmofl predict` makes it:\n\n```python\n(.*?)```", card, re.DOTALL)
    assert "harmofl" not in script
    assert "torch" not in script
    subprocess.run([sys.executable, "-I", "-c", script], cwd=tmp_path, check=True)
    (outcome,) = harmofl.predict(run, tmp_path / "scan.nii.gz", out=tmp_path / "out", progress=False)
    ours, theirs = nibabel.load(outcome.output), nibabel.load(tmp_path / "mask.nii.gz")
    assert np.array_equal(ours.affine, theirs.affine)
    assert np.asarray(ours.dataobj).sum() > 100
    assert dice(np.asarray(ours.dataobj), np.asarray(theirs.dataobj)) >= 0.999


def test_mirror_images_and_overlap_can_be_chosen_for_a_prediction(run: Path, tmp_path: Path) -> None:
    write_case(tmp_path / "in", "new", seed=9, shape=(40, 36, 16))
    masks = {}
    for name, options in {"plain": {}, "again": {"overlap": 0.25, "mirror": False}, "mirror": {"mirror": True}}.items():
        image = tmp_path / "in" / "new.nii.gz"
        (outcome,) = harmofl.predict(run, image, out=tmp_path / name, progress=False, **options)
        masks[name] = np.asarray(nibabel.load(outcome.output).dataobj)
    assert np.array_equal(masks["plain"], masks["again"])
    assert not np.array_equal(masks["plain"], masks["mirror"])


def test_scores_of_whole_volumes_do_not_depend_on_how_they_are_stored(run: Path, tmp_path: Path) -> None:
    """The same scan, stored along other axes, gets the same score."""
    write_case(tmp_path / "data" / "A", "Case00", seed=3)
    folder = tmp_path / "data" / "B"
    folder.mkdir()
    for path in (tmp_path / "data" / "A").iterdir():
        image = nibabel.load(path)
        turned = image.as_reoriented(nibabel.orientations.axcodes2ornt("SRA"))
        nibabel.save(turned, folder / path.name)
    settings = {"data.cache": str(tmp_path / "cache")}
    scores = harmofl.evaluate(run, data=tmp_path / "data", split="all", settings=settings, progress=False)
    assert scores["A"]["metric"] == pytest.approx(scores["B"]["metric"], abs=1e-3)
    assert scores["A"]["hd95_mm"] == pytest.approx(scores["B"]["hd95_mm"], abs=1e-3)


def test_a_dicom_series_gets_a_dicom_segmentation_on_its_own_slices(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("highdicom")
    folder = tmp_path / "series"
    folder.mkdir()
    random = np.random.default_rng(0)
    rows, columns, slices = (axis - size / 2 for axis, size in zip(np.ogrid[:36, :48, :10], (36, 48, 10), strict=True))
    inside = (rows * 0.75 / 8) ** 2 + (columns * 0.5 / 8) ** 2 + (slices * 3 / 8) ** 2 <= 1
    pixels = (100 + 300 * inside + random.normal(0, 30, inside.shape)).clip(0)
    for number in range(10):
        dicom_slice(pixels[..., number], 3.0 * number, "1.2.3").save_as(
            folder / f"{9 - number}.dcm", enforce_file_format=True
        )
    (nifti,) = harmofl.predict(run, folder, out=tmp_path / "nifti", progress=False)
    (segmentation,) = harmofl.predict(run, folder, out=tmp_path / "seg", dicom_seg=True, progress=False)
    scan = read_scan(folder)
    assert segmentation.output is not None
    assert segmentation.output.suffix == ".dcm"
    found = [read_mask(path, scan).labels for path in (nifti.output, segmentation.output)]
    assert found[0].sum() > 50
    assert np.array_equal(found[0], found[1])


def test_pictures_are_not_drawn_of_volumes(run: Path, tmp_path: Path) -> None:
    with pytest.raises(harmofl.UsageError, match="works on images, not on volumes"):
        Gallery([read_run(run)])


def test_a_single_slice_is_refused(run: Path, tmp_path: Path) -> None:
    write_case(tmp_path, "flat", seed=1, shape=(20, 20, 1))
    (outcome,) = harmofl.predict(run, tmp_path / "flat.nii.gz", out=tmp_path / "out", progress=False)
    assert "one slice, not a volume" in outcome.error
