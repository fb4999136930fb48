"""Aperio's outlines: filled by pixel centres, united, clipped, and never trusted."""

import time
from pathlib import Path
from xml.etree.ElementTree import parse

import numpy as np
import pytest

from harmofl.data.formats import read_mask, read_scan
from harmofl.data.scans import Scan, UnreadableError

DATA = Path(__file__).parents[3] / ".." / "shared" / "data" / "nuclei-original-layouts"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the real nuclei images are not beside this checkout")

Corners = list[tuple[float, float]]


def region(corners: Corners, **attributes: str) -> str:
    vertices = "".join(f'<Vertex X="{x}" Y="{y}" Z="0"/>' for x, y in corners)
    extra = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return f'<Region Id="1"{extra}><Vertices>{vertices}</Vertices></Region>'


def annotation(*regions: str, name: str = "Epithelial") -> str:
    head = f'<Annotation><Attributes><Attribute Name="{name}" Id="0"/></Attributes>'
    return f"{head}<Regions>{''.join(regions)}</Regions></Annotation>"


def mask_of(tmp_path: Path, *annotations: str, height: int = 8, width: int = 10) -> np.ndarray:
    path = tmp_path / "outlines.xml"
    path.write_text(f"<Annotations>{''.join(annotations)}</Annotations>")
    return read_mask(path, Scan(np.zeros((1, 3, height, width), np.uint8))).labels[0]


def box(left: float, top: float, right: float, bottom: float) -> str:
    return region([(left, top), (right, top), (right, bottom), (left, bottom)])


def test_a_box_covers_its_pixels_exactly(tmp_path: Path) -> None:
    expected = np.zeros((8, 10), np.uint8)
    expected[1:4, 2:7] = 1
    mask = mask_of(tmp_path, annotation(box(2, 1, 7, 4)))
    np.testing.assert_array_equal(mask, expected)
    assert mask.dtype == np.uint8


def test_a_pixel_belongs_to_the_outline_that_holds_its_centre(tmp_path: Path) -> None:
    assert mask_of(tmp_path, annotation(box(2.4, 1.4, 3.6, 2.6)))[1:3, 2:4].all()
    assert mask_of(tmp_path, annotation(box(2.6, 1.6, 4.4, 3.4))).sum() == 1


def test_direction_does_not_matter_and_loops_have_no_holes(tmp_path: Path) -> None:
    corners: Corners = [(1, 1), (6, 1), (6, 6), (1, 6)]
    once = mask_of(tmp_path, annotation(region(corners)))
    np.testing.assert_array_equal(mask_of(tmp_path, annotation(region(corners[::-1]))), once)
    np.testing.assert_array_equal(mask_of(tmp_path, annotation(region(corners + corners))), once)


def test_overlapping_outlines_are_united_over_all_annotations(tmp_path: Path) -> None:
    mask = mask_of(tmp_path, annotation(box(0, 0, 4, 4)), annotation(box(2, 2, 6, 6), name="Lymphocyte"))
    assert mask.sum() == 16 + 16 - 4
    assert mask.max() == 1


def test_outlines_out_of_the_frame_are_clipped(tmp_path: Path) -> None:
    assert mask_of(tmp_path, annotation(box(-5, -5, 2, 3))).sum() == 6
    assert mask_of(tmp_path, annotation(box(8, 6, 1e12, 1e12))).sum() == 4
    assert mask_of(tmp_path, annotation(box(-1e9, -1e9, 1e9, 1e9))).sum() == 80
    assert mask_of(tmp_path, annotation(box(20, 20, 30, 30), box(-9, -9, -1, -1))).sum() == 0


def test_ambiguous_annotations_and_negative_regions_are_skipped(tmp_path: Path) -> None:
    negative = region([(0, 0), (4, 0), (4, 4)], NegativeROA="1")
    assert mask_of(tmp_path, annotation(box(0, 0, 4, 4), name="Ambiguous"), annotation(negative)).sum() == 0


def test_points_and_lines_mark_nothing_and_slivers_their_corners(tmp_path: Path) -> None:
    line = region([(1, 1), (5, 5), (1, 1)])
    assert mask_of(tmp_path, annotation(region([(3, 3)]), region([]), line)).sum() == 0
    sliver = mask_of(tmp_path, annotation(box(1.0, 2.6, 8.0, 2.9)))  # area 2.1, between two rows of centres
    assert sliver[2].tolist() == [0, 1, 0, 0, 0, 0, 0, 0, 1, 0]
    assert mask_of(tmp_path, annotation(box(1.6, 2.6, 1.9, 2.9))).sum() == 0


def test_no_outlines_is_an_empty_mask_with_a_note(tmp_path: Path) -> None:
    assert mask_of(tmp_path, annotation()).sum() == 0
    scan = Scan(np.zeros((1, 3, 8, 10), np.uint8))
    assert read_mask(tmp_path / "outlines.xml", scan).notes == (("mask", "it holds no outlines: the mask is empty"),)
    mask_of(tmp_path, annotation(box(0, 0, 1, 1)))
    assert read_mask(tmp_path / "outlines.xml", scan).notes == ()


@pytest.mark.parametrize("x", ["abc", "nan", "inf", ""])
def test_a_vertex_that_is_no_number_names_its_region(tmp_path: Path, x: str) -> None:
    broken = region([(0, 0), (4, 0)]).replace('X="4"', f'X="{x}"').replace('Id="1"', 'Id="17"')
    with pytest.raises(UnreadableError, match="region '17'"):
        mask_of(tmp_path, annotation(broken))


@pytest.mark.parametrize(
    "text",
    [
        '<!DOCTYPE Annotations [<!ENTITY a "x">]><Annotations>&a;</Annotations>',
        '<!DOCTYPE Annotations SYSTEM "file:///etc/passwd"><Annotations/>',
        '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><Annotations>&x;</Annotations>',
    ],
)
def test_document_types_and_entities_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.xml").write_text(text)
    with pytest.raises(UnreadableError, match="document type or entities"):
        read_mask(tmp_path / "a.xml", Scan(np.zeros((1, 3, 8, 8), np.uint8)))


@pytest.mark.parametrize("text", ["<html></html>", "<Annotations><Annotation>", "<", "<a>\0</a>"])
def test_other_and_broken_texts_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.xml").write_text(text)
    with pytest.raises(UnreadableError):
        read_mask(tmp_path / "a.xml", Scan(np.zeros((1, 3, 8, 8), np.uint8)))


def test_outlines_do_not_fit_a_volume(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text("<Annotations/>")
    with pytest.raises(UnreadableError, match="volume"):
        read_mask(tmp_path / "a.xml", Scan(np.zeros((2, 1, 8, 8), np.uint8)))


def test_a_thousand_nuclei_are_filled_fast(tmp_path: Path) -> None:
    angle = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    centres = np.random.default_rng(0).uniform(0, 1000, (1000, 2))
    rings = [[(x + 15 * np.cos(a), y + 15 * np.sin(a)) for a in angle] for x, y in centres]
    start = time.process_time()
    mask_of(tmp_path, annotation(*(region(ring) for ring in rings)), height=1000, width=1000)
    assert time.process_time() - start < 3  # a tenth of that on a quiet machine


@needs_data
def test_filled_areas_agree_with_what_aperio_measured(tmp_path: Path) -> None:
    errors = []
    for path in sorted(DATA.rglob("*.xml")):
        for one in list(parse(path).getroot().iter("Region"))[::6]:
            corners = np.array([(float(v.attrib["X"]), float(v.attrib["Y"])) for v in one.iter("Vertex")])
            moved = corners - corners.min(axis=0)
            width, height = moved.max(axis=0).astype(int) + 1
            area = mask_of(tmp_path, annotation(region(moved.tolist())), height=height, width=width).sum()
            errors.append(area / float(one.attrib["Area"]) - 1)
    assert len(errors) > 300
    assert abs(np.mean(errors)) < 0.001
    assert np.mean(np.abs(errors)) < 0.005


@needs_data
def test_real_outlines_mark_the_dark_pixels() -> None:
    path = next(DATA.rglob("TCGA-86-8672-01Z-00-DX1_2.svs"))
    scan = read_scan(path)
    mask = read_mask(path.with_suffix(".xml"), scan).labels[0].astype(bool)
    grey = scan.pixels[0].mean(axis=0)
    assert grey[mask].mean() < grey[~mask].mean() - 20
