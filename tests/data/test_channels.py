import re
import shutil
import subprocess
import sys
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch

import harmofl
from harmofl.data.channels import join_channels
from harmofl.data.formats import read_scan
from harmofl.data.scans import Scan, UnreadableError
from harmofl.data.volumes import VolumeSet
from harmofl.settings import DataSettings
from harmofl.tasks.custom import segmentation
from volumes import SLICES_LAST, coordinates, write_case

COARSE = SLICES_LAST @ np.diag([2.0, 2.0, 1.0, 1.0])
"""Every other column and row of the same slices."""


def write_linear(path: Path, shape: tuple[int, ...], affine: np.ndarray) -> None:
    """A volume whose values are a linear function of the place in the body."""
    places = coordinates(shape, affine)
    nibabel.save(nibabel.Nifti1Image((places[0] + 2 * places[1]).astype(np.float32), affine), path)


def test_a_channel_on_other_voxels_is_resampled_to_the_first(tmp_path: Path) -> None:
    write_linear(tmp_path / "t2.nii.gz", (16, 14, 4), SLICES_LAST)
    write_linear(tmp_path / "adc.nii.gz", (8, 7, 4), COARSE)
    joined = join_channels([read_scan(tmp_path / "t2.nii.gz"), read_scan(tmp_path / "adc.nii.gz")])
    assert joined.pixels.shape == (4, 2, 14, 16)
    assert np.allclose(joined.pixels[:, 0, :-1, :-1], joined.pixels[:, 1, :-1, :-1], atol=1e-4)


def test_channels_that_do_not_say_where_they_lie_must_be_of_one_size() -> None:
    flat = Scan(np.zeros((2, 1, 8, 8), dtype=np.uint8))
    assert join_channels([flat, flat]).pixels.shape == (2, 2, 8, 8)
    with pytest.raises(UnreadableError, match="its channel 2 has another size"):
        join_channels([flat, Scan(np.zeros((2, 1, 8, 9), dtype=np.uint8))])


@pytest.fixture
def hospital(tmp_path: Path) -> Path:
    """Four patients with T2 and a coarser ADC each, and a manifest that names both."""
    folder = tmp_path / "data"
    rows = ["site,patient,image_t2,image_adc,mask"]
    for number in range(4):
        write_case(folder, f"p{number}", seed=number)
        write_linear(folder / f"p{number}_adc.nii.gz", (16, 15, 14), COARSE)
        rows.append(f"A,p{number},p{number}.nii.gz,p{number}_adc.nii.gz,p{number}_segmentation.nii.gz")
    (folder / "manifest.csv").write_text("\n".join(rows) + "\n")
    return folder


def test_the_manifest_names_channels_in_columns_of_their_own(hospital: Path, tmp_path: Path) -> None:
    data = DataSettings(folder=str(hospital), cache=str(tmp_path / "cache"), dimensions=3, spacing=[2.0, 2.0, 2.0])
    folder = segmentation.open_folder(data)
    assert folder.channels == 2
    train = folder.parts("A")[0]
    assert isinstance(train, VolumeSet)
    image = train.load(torch.tensor([0])).images[0]
    assert len(image) == 2
    # The second channel rises towards the right and the front: from the first to the last column and row it falls.
    assert image[1, 0, 0, 0] > image[1, 0, -1, -1]


def test_a_channel_that_is_missing_is_a_problem_of_its_row(hospital: Path, tmp_path: Path) -> None:
    (hospital / "p2_adc.nii.gz").unlink()
    data = DataSettings(folder=str(hospital), cache=str(tmp_path / "cache"), dimensions=3)
    problems = segmentation.open_folder(data).listing.problems
    assert [str(problem) for problem in problems] == ["manifest.csv line 4: image p2_adc.nii.gz: no such file"]


def test_the_cards_script_puts_channels_on_the_first_ones_voxels(hospital: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    for path in hospital.glob("*_segmentation.nii.gz"):
        mask = nibabel.load(path)
        nibabel.save(nibabel.Nifti1Image(5 * np.asarray(mask.dataobj), mask.affine), path)
    settings = {"data.dimensions": 3, "data.spacing": [3.0, 2.0, 2.0], "data.cache": str(tmp_path / "cache")}
    settings |= {"training.rounds": 3, "training.batch_size": 2, "training.learning_rate": 0.02}
    run, place = tmp_path / "run", tmp_path / "elsewhere"
    harmofl.train("segmentation", "fedavg", preset="smoke", data=hospital, out=run, workers=1, settings=settings)
    harmofl.export(run, format="onnx", out=place)
    ours = nibabel.load(harmofl.predict(run, hospital / "manifest.csv", out=tmp_path / "out", progress=False)[0].output)
    shutil.copy(hospital / "p0.nii.gz", place / "channel-1.nii.gz")
    shutil.copy(hospital / "p0_adc.nii.gz", place / "channel-2.nii.gz")
    (script,) = re.findall(r"makes it:\n\n```python\n(.*?)```", (place / "MODEL.md").read_text(), re.DOTALL)
    subprocess.run([sys.executable, "-I", "-c", script], cwd=place, check=True)
    theirs = nibabel.load(place / "mask.nii.gz")
    assert np.array_equal(ours.affine, theirs.affine)
    first, second = np.asarray(ours.dataobj), np.asarray(theirs.dataobj)
    assert set(np.unique(first)) == set(np.unique(second)) == {0, 5}
    assert 2 * ((first == 5) & (second == 5)).sum() / ((first == 5).sum() + (second == 5).sum()) >= 0.999


def test_a_model_of_two_channels_predicts_the_cases_of_a_table(hospital: Path, tmp_path: Path) -> None:
    settings = {"data.dimensions": 3, "data.spacing": [3.0, 3.0, 3.0], "data.cache": str(tmp_path / "cache")}
    settings |= {"training.rounds": 1, "data.patches": 1, "model.standardize": True}
    run = tmp_path / "run"
    harmofl.train("segmentation", "fedavg", preset="smoke", data=hospital, out=run, workers=1, settings=settings)
    outcomes = harmofl.predict(run, hospital / "manifest.csv", out=tmp_path / "out", progress=False)
    assert [outcome.error for outcome in outcomes] == [""] * 4
    assert nibabel.load(outcomes[0].output).shape == (32, 30, 14)
    (alone,) = harmofl.predict(run, hospital / "p0.nii.gz", out=tmp_path / "alone", progress=False)
    assert "1 channel, the model takes 2" in alone.error
    assert "a table that names the file of each channel" in alone.error
