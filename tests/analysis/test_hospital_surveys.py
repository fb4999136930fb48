from pathlib import Path

import nibabel
import numpy as np
import pytest

from harmofl.analysis.hospital_surveys import surveys_of
from harmofl.settings import Settings, resolve
from harmofl.tasks.data_facts import open_images
from volumes import write_hospitals


def settings_for(folder: Path, **given: object) -> Settings:
    named = {f"data.{name}": value for name, value in given.items()}
    settings, _ = resolve("prostate", "fedavg", "smoke", overrides={"data.folder": str(folder), **named})
    return open_images(settings).facts.complete(settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hospitals(tmp_path_factory.mktemp("scans"), cases=6)


def test_volumes_as_they_were_scanned_are_told_in_one_orientation(folder: Path, tmp_path: Path) -> None:
    settings = settings_for(folder, dimensions=3, cache=str(tmp_path)).with_values("data", spacing=None)
    surveys = surveys_of(settings)
    # A has columns of 1, rows of 1 and slices of 2 mm. B was scanned sagittally: what are slices there, 1.5 mm apart,
    # lead from right to left, as columns do on the common grid.
    assert surveys["A"].spacing == pytest.approx([2.0, 1.0, 1.0], rel=1e-4)
    assert surveys["B"].spacing == pytest.approx([1.2, 1.2, 1.5], rel=1e-4)
    assert surveys["A"].size == [14, 30, 32]
    assert surveys["B"].size == [26, 28, 22]
    box = [length * step for length, step in zip(surveys["A"].object_size or [], [2.0, 1.0, 1.0], strict=True)]
    assert box == pytest.approx([14, 14, 16], abs=2.5)  # an ellipsoid with half-axes of 8, 7 and 7 mm


@pytest.mark.parametrize(("invalid", "spacing"), [(False, [1.5, 1.2, 1.2]), (True, None)])
def test_a_volume_that_does_not_say_how_it_lies_tells_its_spacing_or_none(
    tmp_path: Path, invalid: bool, spacing: list[float] | None
) -> None:
    folder = write_hospitals(tmp_path / "scans", cases=4)
    for path in (folder / "B").iterdir():
        image = nibabel.load(path)
        image.set_qform(None, 0)
        image.set_sform(np.diag([0, 0, 0, 1]) if invalid else None, 2 if invalid else 0)
        nibabel.save(image, path)
    settings = settings_for(folder, dimensions=3, cache=str(tmp_path / "cache")).with_values("data", spacing=None)
    surveys = surveys_of(settings)
    assert surveys["A"].spacing == pytest.approx([2.0, 1.0, 1.0], rel=1e-4)
    assert surveys["B"].spacing == (spacing and pytest.approx(spacing))


def test_slices_and_resampled_volumes_tell_what_the_files_are_like(folder: Path, tmp_path: Path) -> None:
    for settings in (
        settings_for(folder, cache=str(tmp_path)),
        settings_for(folder, dimensions=3, cache=str(tmp_path)),
    ):
        surveys = surveys_of(settings)
        assert surveys["A"].size == [14, 30, 32]
        assert surveys["A"].spacing == pytest.approx([2.0, 1.0, 1.0], rel=1e-4)
        assert surveys["B"].spacing == pytest.approx([1.5, 1.2, 1.2], rel=1e-4)
        assert surveys["A"].original[0] < 100 < surveys["A"].original[2]
