"""Images are called by their files, and slices and tiles of one file told apart."""

from pathlib import Path

import torch

from folders import segmentation_folder
from harmofl import registry
from harmofl.analysis.image_names import image_name
from harmofl.data.images import LabelledImages, join_sets
from harmofl.settings import DataSettings


def names(folder: Path) -> list[str]:
    task = registry.tasks.find("segmentation")
    data = DataSettings(folder=str(folder), size=16, sites=["site-0"], cache=str(folder / "cache"))
    source = task.open(data)
    images = join_sets(source.parts("site-0"))
    return [image_name(source, "site-0", images, place) for place in range(len(images))]


def test_a_picture_is_called_by_its_file(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path, patients=4, images=1, size=16)
    files = {path.name for path in (folder / "site-0").iterdir()}
    assert set(names(folder)) <= files
    assert len(set(names(folder))) == 4


def test_tiles_of_a_picture_are_numbered(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path, patients=4, images=1, size=32)
    called = names(folder)
    assert len(called) == len(set(called)) == 16
    assert {name.rpartition(", ")[2] for name in called} == {"tile 1", "tile 2", "tile 3", "tile 4"}


def test_synthetic_images_have_numbers() -> None:
    task = registry.tasks.find("nuclei")
    images = LabelledImages(torch.zeros(2, 3, 8, 8), torch.zeros(2, 8, 8), torch.arange(2))
    assert image_name(task.open(DataSettings()), "TNBC", images, 1) == "image 2"
