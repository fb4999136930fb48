"""Classes of whole volumes, and volumes as DICOM series."""

from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch

import harmofl
from harmofl.data.volume_decoding import fit_volume
from harmofl.settings import DataSettings
from harmofl.tasks.custom import classification
from volumes import write_case, write_hospitals


def write_classes(folder: Path) -> Path:
    """Eight patients; those that are ill have a bright ellipsoid."""
    rows = ["site,patient,image,label"]
    for number in range(8):
        write_case(folder, f"p{number}", seed=number)
        if number % 2:
            image = nibabel.load(folder / f"p{number}.nii.gz")
            healthy = np.random.default_rng(number).normal(100, 30, image.shape).astype(np.int16)
            nibabel.save(nibabel.Nifti1Image(healthy, image.affine), folder / f"p{number}.nii.gz")
        rows.append(f"A,p{number},p{number}.nii.gz,{'healthy' if number % 2 else 'ill'}")
    (folder / "manifest.csv").write_text("\n".join(rows) + "\n")
    return folder


def test_a_volume_is_brought_to_the_networks_size_whole() -> None:
    volume = np.arange(4 * 6 * 8, dtype=np.uint16).reshape(1, 4, 6, 8)
    cut = fit_volume(volume, (2, 4, 4), resampled=True)
    assert np.array_equal(cut, volume[:, 1:3, 1:5, 2:6])
    assert fit_volume(volume, (8, 6, 8), resampled=True).shape == (1, 8, 6, 8)
    scaled = fit_volume(volume, (2, 3, 4), resampled=False)
    assert scaled.shape == (1, 2, 3, 4)
    assert scaled[0, 0, 0, 0] == round(volume[0, :2, :2, :2].mean())


def test_classes_of_volumes_are_learned_and_predicted(tmp_path: Path) -> None:
    folder = write_classes(tmp_path / "data")
    settings = {"data.dimensions": 3, "data.cache": str(tmp_path / "cache"), "training.rounds": 1}
    run = tmp_path / "run"
    harmofl.train("classification", "fedavg", preset="smoke", data=folder, out=run, workers=1, settings=settings)
    data = DataSettings(folder=str(folder), cache=str(tmp_path / "cache"), dimensions=3, patch=[16, 32, 32])
    site = classification.load_site("A", data)
    assert site.train.load(torch.arange(2)).images.shape == (2, 1, 16, 32, 32)
    outcomes = harmofl.predict(run, [folder / "p0.nii.gz", folder / "p1.nii.gz"], out=tmp_path / "out", progress=False)
    assert [outcome.error for outcome in outcomes] == ["", ""]
    assert all(set(outcome.probabilities) == {"healthy", "ill"} for outcome in outcomes)


def test_the_check_of_a_folder_counts_and_shows_volumes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = write_hospitals(tmp_path / "data")
    settings = {"data.dimensions": 3, "data.spacing": [2.0, 2.0, 2.0], "data.cache": str(tmp_path / "cache")}
    check, sheet = harmofl.check_data(
        "prostate", folder, preset="smoke", settings=settings, sheet=tmp_path / "sheet.png", progress=False
    )
    rows = [row for row in check.rows if row.site == "A"]
    assert [(row.split, row.images) for row in rows] == [("train", 2), ("val", 1), ("test", 1)]
    assert rows[0].foreground is not None
    # An ellipsoid of half axes 8, 7 and 7 mm in a volume of 32 · 30 · 28 mm.
    assert rows[0].foreground["prostate"] == pytest.approx(4 / 3 * np.pi * 8 * 7 * 7 / (32 * 30 * 28), rel=0.15)
    assert sheet is not None
    assert sheet.stat().st_size > 10_000
