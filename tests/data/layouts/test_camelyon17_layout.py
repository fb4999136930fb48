"""Camelyon17 in WILDS' layout."""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from harmofl.data.layouts.camelyon17 import layout, list_samples
from harmofl.data.listing import list_layout
from harmofl.data.samples import Problem, Sample
from harmofl.errors import UsageError

HEADER = ",patient,node,x_coord,y_coord,tumor,slide,center,split"
ROWS = ["0,004,4,3328,21792,1,0,0,0", "1,004,4,3200,22272,0,0,0,0", "2,20,2,96,192,1,5,1,1"]
FIRST = "patches/patient_004_node_4/patch_patient_004_node_4_x_3328_y_21792.png"
SECOND = "patches/patient_004_node_4/patch_patient_004_node_4_x_3200_y_22272.png"
THIRD = "patches/patient_020_node_2/patch_patient_020_node_2_x_96_y_192.png"


def make(
    folder: Path, rows: Iterable[str] = ROWS, files: Iterable[str] = (FIRST, SECOND, THIRD), header: str = HEADER
) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "metadata.csv").write_text("\n".join([header, *rows]) + "\n")
    (folder / "patches").mkdir(exist_ok=True)
    for file in files:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).touch()
    return folder


def test_sites_are_centers_and_labels_words(tmp_path: Path) -> None:
    listing = list_samples(make(tmp_path))
    assert listing.samples == (
        Sample("center-0", SECOND, "normal", patient="4"),
        Sample("center-0", FIRST, "tumor", patient="4"),
        Sample("center-1", THIRD, "tumor", patient="20"),
    )
    assert listing.problems == ()


def test_the_folder_may_be_the_one_that_wilds_makes(tmp_path: Path) -> None:
    make(tmp_path / "camelyon17_v1.0")
    assert [sample.image for sample in list_samples(tmp_path).samples] == [
        f"camelyon17_v1.0/{image}" for image in (SECOND, FIRST, THIRD)
    ]


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    make(tmp_path, ["1,0,004,4,3328,21792,extra"], header="Tumor,center, patient ,node,x_coord,y_coord,other")
    assert list_samples(tmp_path).samples == (Sample("center-0", FIRST, "tumor", patient="4"),)


def test_a_patient_folder_that_was_not_downloaded_is_left_out(tmp_path: Path) -> None:
    listing = list_samples(make(tmp_path, files=[FIRST, SECOND]))
    assert len(listing.samples) == 2
    assert listing.problems == (
        Problem("patches/patient_020_node_2", "not there: its 1 patches (center-1) are left out", fatal=False),
    )


def test_a_file_missing_from_a_folder_that_is_there_is_fatal(tmp_path: Path) -> None:
    listing = list_samples(make(tmp_path, files=[FIRST, THIRD]))
    assert listing.problems == (Problem(SECOND, "listed in metadata.csv but not there"),)
    assert len(listing.samples) == 2


def test_many_missing_files_of_a_folder_are_one_problem(tmp_path: Path) -> None:
    rows = [f"{x},004,4,{x},0,0,0,0,0" for x in range(30)]
    names = [f"patches/patient_004_node_4/patch_patient_004_node_4_x_{x}_y_0.png" for x in range(30)]
    listing = list_samples(make(tmp_path, rows, names[:5]))
    (problem,) = listing.problems
    assert problem.file == "patches/patient_004_node_4"
    assert problem.fatal
    assert problem.message.startswith("25 of 30 patches listed in metadata.csv are missing, the first: patch_patient")
    assert len(listing.samples) == 5


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("3,004,4,1,2,2,0,0,0", "tumor must be 0 or 1, found 2"),
        ("3,004,4,1,2,yes,0,0,0", "tumor must be a whole number, found 'yes'"),
        ("3,004,4,1.5,2,1,0,0,0", "x_coord must be a whole number, found '1.5'"),
        ("3,../../x,4,1,2,1,0,0,0", "patient must be a whole number, found '../../x'"),
        ("3,004,4,1,²,1,0,0,0", "y_coord must be a whole number, found '²'"),
        ("3,004,4,1", "the row is too short"),
        (ROWS[0], f"repeats an earlier row about {FIRST.rpartition('/')[2]}"),
        ("0,004,4,3328,21792,0,0,0,0", f"contradicts an earlier row about {FIRST.rpartition('/')[2]}"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, row: str, message: str) -> None:
    listing = list_samples(make(tmp_path, [*ROWS, "", row]))
    assert listing.problems == (Problem("metadata.csv line 6", message, fatal="repeats" not in message),)
    assert len(listing.samples) == 3


@pytest.mark.parametrize("content", [b"\x89PNG\r\n\x1a\n\0\0", b"patient,node\n\xff\xfe\xfa", b'patient,"node', b""])
def test_a_table_that_is_no_text_is_refused(tmp_path: Path, content: bytes) -> None:
    (make(tmp_path) / "metadata.csv").write_bytes(content)
    with pytest.raises(UsageError, match=r"metadata\.csv"):
        list_samples(tmp_path)


def test_missing_columns_are_named_with_those_found(tmp_path: Path) -> None:
    make(tmp_path, header=",patient,node,x_coord,y_coord,tumour,slide,hospital,split")
    with pytest.raises(
        UsageError, match=r"no columns tumor, center in its header \(found: patient, node.*mean tumor by t"
    ):
        list_samples(tmp_path)


def test_links_are_followed_only_inside(tmp_path: Path) -> None:
    outside = tmp_path / "outside.png"
    outside.touch()
    data = make(tmp_path / "data", files=[THIRD])
    (data / FIRST).parent.mkdir()
    (data / FIRST).symlink_to(outside)
    (data / SECOND).symlink_to(data / THIRD)
    listing = list_samples(data)
    assert [sample.image for sample in listing.samples] == [SECOND, THIRD]
    assert listing.problems == (Problem(FIRST, "the path leaves the data folder"),)


def test_linked_folders_and_tables_must_not_leave_the_folder(tmp_path: Path) -> None:
    other = make(tmp_path / "other")
    data = make(tmp_path / "data", files=[FIRST, SECOND])
    (data / THIRD).parent.symlink_to((other / THIRD).parent)
    listing = list_samples(data)
    assert listing.problems == (Problem("patches/patient_020_node_2", "the path leaves the data folder"),)
    for name in ("patches", "metadata.csv"):
        linked = make(tmp_path / f"linked-{name}", files=[])
        (linked / name).rename(tmp_path / f"moved-{name}")
        (linked / name).symlink_to(other / name)
        with pytest.raises(UsageError, match="leaves the data folder"):
            list_samples(linked)


def test_a_patch_that_is_no_file_is_refused(tmp_path: Path) -> None:
    data = make(tmp_path, files=[SECOND, THIRD])
    (data / FIRST).mkdir()
    assert list_samples(data).problems == (Problem(FIRST, "not a regular file"),)


def test_a_folder_without_the_layout_is_refused_with_advice(tmp_path: Path) -> None:
    data = make(tmp_path / "wilds" / "data")
    for folder, words in {
        tmp_path / "none": "no such folder",
        data / "metadata.csv": "is a file",
        data / "patches": f"did you mean the folder {data}",
        tmp_path / "wilds": f"did you mean the folder {data}",
    }.items():
        with pytest.raises(UsageError, match=r"WILDS' layout") as error:
            list_samples(folder)
        assert words in str(error.value)


def test_a_table_whose_patches_are_all_absent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no patch that metadata\.csv lists"):
        list_samples(make(tmp_path, files=[]))
    (tmp_path / "patches").rmdir()
    with pytest.raises(UsageError, match="no folder patches beside it"):
        list_samples(tmp_path)


def test_a_kept_listing_is_used_until_something_changes(tmp_path: Path) -> None:
    data, kept = make(tmp_path / "data", files=[FIRST, SECOND]), tmp_path / "cache" / "kept"
    first = list_layout(layout, data, kept)
    assert first.problems
    not_listed = replace(layout, list_samples=lambda folder: pytest.fail("listed again"))
    assert list_layout(not_listed, data, kept) == first
    make(data)
    assert len(list_layout(layout, data, kept).samples) == 3
    (data / SECOND).unlink()
    assert len(list_layout(layout, data, kept).samples) == 2
    make(data, ROWS[:1])
    assert len(list_layout(layout, data, kept).samples) == 1


def test_a_kept_listing_of_another_folder_is_not_used(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    list_layout(layout, make(tmp_path / "one"), kept)
    assert len(list_layout(layout, make(tmp_path / "two", ROWS[:1]), kept).samples) == 1


@pytest.mark.parametrize("damage", [b"", b"{", b"[]\n[]", b"null", b"\xff\0\n", b'{"stamp": 1}\n', b"[" * 100_000])
def test_a_damaged_kept_listing_is_made_again(tmp_path: Path, damage: bytes) -> None:
    data, kept = make(tmp_path / "data"), tmp_path / "kept"
    listing = list_layout(layout, data, kept)
    good = kept.read_bytes()
    for content in (damage, good[:-5], good.replace(b"center-1", b"center-2")):
        kept.write_bytes(content)
        assert list_layout(layout, data, kept) == listing
        assert kept.read_bytes() == good


def test_a_listing_that_cannot_be_kept_is_still_given(tmp_path: Path) -> None:
    data = make(tmp_path / "data")
    assert len(list_layout(layout, data, tmp_path).samples) == 3  # a folder
    assert len(list_layout(layout, data, data / "metadata.csv" / "kept").samples) == 3


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="the superuser reads everything")
def test_a_patient_folder_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    data = make(tmp_path)
    (data / THIRD).parent.chmod(0)
    (problem,) = list_samples(data).problems
    assert problem.message.startswith("cannot be read")
    (data / THIRD).parent.chmod(0o755)
