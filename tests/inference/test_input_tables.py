"""Images that a table names, and headers with their voxels beside them."""

from pathlib import Path

import pytest

from folders import picture
from harmofl.inference.inputs import find_inputs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    import numpy as np

    for name in ("p1/t2.png", "p1/adc.png", "p2/t2.png", "p2/adc.png"):
        picture(tmp_path / name, np.zeros((4, 4), dtype=np.uint8))
    return tmp_path


@pytest.mark.parametrize(
    "text",
    [
        "patient,image_t2,image_adc\n1,p1/t2.png,p1/adc.png\n2,p2/t2.png,p2/adc.png\n",
        '"image_t2";"image_adc";"a, b, c, d"\n"p1/t2.png";"p1/adc.png";""\n"p2/t2.png";"p2/adc.png";""\n',
        "image_t2\timage_adc\np1\\t2.png\tp1\\adc.png\np2\\t2.png\tp2\\adc.png\n",
    ],
)
def test_a_table_names_the_channels_whatever_divides_its_columns(folder: Path, text: str) -> None:
    (folder / "cases.csv").write_text(text)
    found = find_inputs([folder / "cases.csv"], folder / "out")
    assert [(each.path, each.more) for each in found] == [
        (folder / name / "t2.png", (folder / name / "adc.png",)) for name in ("p1", "p2")
    ]
    assert not any(each.error for each in found)


def test_the_voxels_of_a_header_are_not_named_as_left_out(tmp_path: Path) -> None:
    (tmp_path / "scan.mhd").write_text("ObjectType = Image\nNDims = 3\nElementDataFile = scan.raw\n")
    (tmp_path / "scan.raw").write_bytes(b"voxels")
    (tmp_path / "other.raw").write_bytes(b"of no header")
    found = {each.path.name: each.left_out for each in find_inputs([tmp_path], tmp_path / "out")}
    assert list(found) == ["scan.mhd", "other.raw"]
    assert found["other.raw"].startswith("not an image")
