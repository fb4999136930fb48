import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text

from harmofl.reporting.privacy_figures import (
    WAYS,
    in_words,
    inversion_grid,
    retrieval_grid,
    similarity_by_number,
    write_privacy_pages,
)
from harmofl.reporting.style import to_svg


def retrieval(frame: str, band: Any, images: int, ssim: float) -> dict[str, Any]:
    chance = {"chance_psnr": 12.0, "chance_ssim": 0.2, "chance_ssim_upper": 0.3, "flat_psnr": 15.0, "flat_ssim": 0.25}
    return {"frame": frame, "band": band, "images": images, "psnr": 14.2, "ssim": ssim} | chance


STUDY: dict[str, Any] = {
    "task": "histology",
    "network": "densenet-small",
    "site": "hospital-0",
    "synthetic": True,
    "image_shape": [3, 32, 32],
    "colour": True,
    "seed": 0,
    "seconds": 61.2,
    "gradient_inversion": [
        {"network": "control", "case": "gradient of one image", "way": "without", "psnr": 31.25, "ssim": 0.971},
        {"network": "control", "case": "gradient of one image", "way": "HarmoFL", "psnr": 38.0, "ssim": 0.99},
        {"network": "trained", "case": "gradient of one image", "way": "without", "psnr": 15.0, "ssim": 0.2},
    ],
    "gradient_inversion_chance": {"another image": {"psnr": 12.0, "ssim": 0.1}, "flat image": {"psnr": 16, "ssim": 0}},
    "phase_retrieval": [
        *(retrieval("whole", "full", n, 0.2) for n in (1, 2)),
        *(retrieval("whole", 0.1, n, 0.1) for n in (1, 2)),
        *(retrieval("margin", "full", n, 0.9) for n in (1, 2)),
        *(retrieval("margin", 0.1, n, 0.1) for n in (1, 2)),
    ],
    "minimum": {"whole, full": 1, "whole, 0.1": 1, "margin, full": None},
}


def pictures() -> dict[str, Any]:
    images = np.zeros((2, 3, 8, 8), dtype=np.uint8)
    inversion = [f"inversion/control/gradient of one image/{way}" for way in ("without", "truth", "HarmoFL")]
    retrievals = [
        f"retrieval/{frame}/{band}/{n}" for frame in ("whole", "margin") for band in ("full", 0.1) for n in "12"
    ]
    return dict.fromkeys([*inversion, *retrievals], images)


def test_the_page_says_every_number_once_and_what_was_not_reached() -> None:
    page = in_words(STUDY)
    assert "| network | what was sent | without | HarmoFL |" in page
    assert "| control | gradient of one image | 31.2 / 0.97 | 38.0 / 0.99 |" in page
    assert "| trained | gradient of one image | 15.0 / 0.20 |  |" in page
    assert "| margin frame | full | 2 | 14.2 | 0.900 | 0.200 | 0.300 | 0.250 |" in page
    assert "- whole, full: 1\n" in page
    assert "- margin, full: more than 2\n" in page


def test_the_page_names_the_method_and_the_band_of_the_trained_network() -> None:
    assert "The trained network" not in in_words(STUDY)  # of a study that did not note it
    plain = in_words(STUDY | {"method": "FedAvg", "band": None, "harmonized": False})
    assert "The trained network is of a run of FedAvg.\n" in plain
    harmonized = in_words(STUDY | {"method": "HarmoFL", "band": 0.1, "harmonized": True})
    assert "The trained network is of a run of HarmoFL with radius 0.1: in all its columns but HarmoFL" in harmonized


def test_similarity_is_drawn_for_every_frame_and_band_with_chance_behind() -> None:
    axes = similarity_by_number(STUDY["phase_retrieval"]).axes
    assert [each.get_title(loc="left") for each in axes[:2]] == ["Whole frame,\nband full", "Whole frame,\nradius 0.1"]
    np.testing.assert_allclose(axes[2].lines[0].get_xydata(), [[1, 0.9], [2, 0.9]])
    assert [len(each.collections) for each in axes] == [1, 1, 1, 1]


def test_grids_name_their_rows_and_put_the_truth_first() -> None:
    grid = to_svg(inversion_grid(pictures()))
    assert grid.index(">truth</text>") < grid.index(">without</text>") < grid.index(">HarmoFL</text>")
    svg = to_svg(retrieval_grid(pictures()))
    assert ">radius 0.1</text>" in svg
    assert ">n = 2</text>" in svg


def test_neighbouring_slices_are_no_colours() -> None:
    each = np.array([0, 100, 200], dtype=np.uint8)[:, None, None]
    slices = {name: images + each for name, images in pictures().items()}
    for grid in (inversion_grid, retrieval_grid):
        shown = [picture.get_array() for axes in grid(slices, colour=False).axes for picture in axes.images]
        assert {tuple(array[0, 0].tolist()) for array in shown} == {(100 / 255, 100 / 255, 100 / 255, 1.0)}


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_pages_are_made_again_from_what_a_study_wrote(tmp_path: Path, channels: int) -> None:
    (tmp_path / "privacy.json").write_text(json.dumps(STUDY | {"colour": channels == 3}))
    images = {name: np.zeros((2, channels, 8, 8), dtype=np.uint8) for name in pictures()}
    np.savez_compressed(tmp_path / "images.npz", **images)
    write_privacy_pages(tmp_path)
    assert (tmp_path / "privacy.md").read_text() == in_words(STUDY)
    assert len(list(tmp_path.glob("privacy-*.png"))) == len(list(tmp_path.glob("privacy-*.svg"))) == 3


def test_headings_of_the_inverted_images_do_not_overlap() -> None:
    images = np.zeros((1, 3, 16, 16), dtype=np.uint8)
    figure = inversion_grid({f"inversion/control/gradient of one image/{way}": images for way in WAYS})
    figure.draw_without_rendering()
    headings = {text.get_text().replace("\n", " "): text for axes in figure.axes for text in axes.findobj(Text)}
    boxes = [headings[way].get_window_extent() for way in WAYS]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    assert boxes[-1].x1 <= figure.bbox.x1
