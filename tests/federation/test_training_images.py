"""A folder of images is opened once in each process of a run, and decoded once in all."""

import json
from pathlib import Path
from typing import Any

import pytest

import harmofl
from folders import prostate_folder, segmentation_folder
from harmofl.data import decoding
from harmofl.data import folder as image_folder
from harmofl.data.listing import FolderListing


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that this process lists, as it goes."""
    listed: list[Path] = []
    list_folder = image_folder.list_folder

    def count(*arguments: Any) -> FolderListing:
        listing = list_folder(*arguments)
        listed.append(listing.folder)
        return listing

    monkeypatch.setattr(image_folder, "list_folder", count)
    return listed


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
def test_a_run_opens_its_folder_once(tmp_path: Path, listings: list[Path], method: str, workers: int) -> None:
    folder = segmentation_folder(tmp_path / "data", sites=3)
    settings = {"data.hold_out_site": "site-2"}
    out = tmp_path / "run"
    harmofl.train("segmentation", method, data=folder, preset="smoke", settings=settings, workers=workers, out=out)
    assert listings == [folder]


def test_images_that_are_in_the_cache_are_not_decoded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listings: list[Path]
) -> None:
    folder = prostate_folder(tmp_path / "data")
    for number in range(2):
        out = tmp_path / f"run-{number}"
        harmofl.train("prostate", "fedavg", data=folder, preset="smoke", workers=1, out=out)
        monkeypatch.setattr(decoding.Recipe, "decode", lambda *arguments: pytest.fail("decoded again"))
    assert len(listings) == 2


def test_a_model_says_how_its_images_were_stored(tmp_path: Path) -> None:
    folder = prostate_folder(tmp_path / "data")
    harmofl.train("prostate", "fedbn", data=folder, preset="smoke", workers=1, out=tmp_path / "run")
    for place in ("model", "model/sites/BIDMC"):
        description = json.loads((tmp_path / "run" / place / "model.json").read_text())
        assert description["training_images"] == {"depths": ["not 8-bit"], "views": ["axial"]}
