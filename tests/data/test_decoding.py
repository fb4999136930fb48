"""Images are decoded once, into the cache."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from folders import (
    blob,
    camelyon17_folder,
    opened,
    picture,
    prostate_folder,
    segmentation_folder,
)
from harmofl import registry
from harmofl.data.inspection import check_for_training
from harmofl.events import Event, ImagesRead
from harmofl.settings import resolve
from runs import environment


@pytest.mark.long
def test_readers_can_start_in_many_threads_of_a_new_process(tmp_path: Path) -> None:
    """Their libraries are imported late, and a module that two threads import at once may be seen half made."""
    folder = prostate_folder(tmp_path, cases=12, shape=(20, 20, 3))
    script = (
        "from harmofl.settings import resolve; from harmofl import registry; import sys;"
        "from harmofl.data.inspection import check_for_training;"
        "data = resolve('prostate', 'fedavg', 'smoke', overrides={'data.folder': sys.argv[1]})[0].data;"
        "check_for_training(registry.tasks.find('prostate').open_folder(data))"
    )
    for _ in range(3):
        shutil.rmtree(os.environ["HARMOFL_CACHE"])
        done = subprocess.run(
            [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, env=environment()
        )
        assert done.returncode == 0, done.stderr


def decoded_sites(folder: Path, **data: Any) -> list[str]:
    """The sites whose images had to be decoded."""
    settings, _ = resolve("segmentation", "fedavg", "smoke", overrides={"data.folder": str(folder)} | data)
    seen: list[Event] = []
    check_for_training(registry.tasks.find("segmentation").open_folder(settings.data, seen.append))
    return sorted({event.site for event in seen if isinstance(event, ImagesRead) and event.doing == "decoding"})


def test_a_second_start_decodes_nothing_and_a_changed_file_its_site_only(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path / "data")
    assert decoded_sites(folder) == ["site-0", "site-1"]
    assert decoded_sites(folder) == []
    folder = folder.rename(tmp_path / "moved")
    assert decoded_sites(folder) == []  # found by content, wherever it lies
    assert decoded_sites(folder, **{"data.size": 16}) == ["site-0", "site-1"]
    picture(folder / "site-1/p0-0.png", blob(40, 99)[0])
    assert decoded_sites(folder) == ["site-1"]


def test_a_kept_listing_is_for_its_owners_eyes_only_in_a_folder_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o755)
    images = opened("histology", camelyon17_folder(tmp_path / "data"), cache=str(tmp_path / "cache"))
    assert list((tmp_path / "cache" / "listings").rglob("*.jsonl"))
    check_for_training(images)
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "cache").iterdir())


def test_images_stay_on_disk_until_they_are_asked_for(tmp_path: Path) -> None:
    images = opened("segmentation", segmentation_folder(tmp_path)).whole("site-0")
    assert isinstance(images.planes, np.memmap)  # type: ignore[attr-defined]
    assert images.nbytes == 20 * 4 * 3 * 32 * 32 * 4 * 30 // 80  # the smoke preset's limit of 30 tiles, as floats
