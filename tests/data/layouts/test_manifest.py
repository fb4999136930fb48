"""One's own data, listed in manifest.csv."""

import csv
import io
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harmofl.data.layouts.manifest import list_samples
from harmofl.data.layouts.site_names import name_refusal
from harmofl.data.samples import Listing, Problem, Sample
from harmofl.errors import UsageError

SHARED = Path(__file__).parents[4] / "shared" / "data" / "nuclei-tiles"


def make(folder: Path, text: str, *files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.csv").write_text(text, encoding="utf-8", newline="")
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
    return folder


def classify(folder: Path) -> Listing:
    return list_samples(folder, "classification")


def problems_of(folder: Path, row: str, header: str = "site,image,label,split,patient") -> list[str]:
    """What is wrong with one row; a.png, a folder and another file are there."""
    make(folder, f"{header}\n{row}\n", "a.png", "series/1.dcm", "images/b.png")
    listing = list_samples(folder, "segmentation" if "mask" in header else "classification")
    assert all(problem.file == "manifest.csv line 2" and problem.fatal for problem in listing.problems)
    assert bool(listing.samples) != bool(listing.problems)
    return [problem.message for problem in listing.problems]


def test_every_column_reaches_its_sample(tmp_path: Path) -> None:
    text = "site,split,patient,image,mask\nb,train,p1,x/1.png,m/1.png\na,,,x/2.png,m/2.png\n"
    make(tmp_path, text, "x/1.png", "x/2.png", "m/1.png", "m/2.png")
    assert list_samples(tmp_path, "segmentation") == Listing(
        (
            Sample("a", "x/2.png", mask="m/2.png"),
            Sample("b", "x/1.png", mask="m/1.png", patient="p1", split="train"),
        )
    )


@pytest.mark.parametrize(
    "text",
    [
        "site,image,label\nA,a.png,yes",
        "\ufeffsite,image,label\r\nA,a.png,yes\r\n",
        " Label ; SITE;image;notes\n yes;A ; a.png ;x\n",
        "image\tsite\tlabel\na.png\tA\tyes\t\t\n",
        '\n\n"site","image","label"\n\n"A","a.png","yes"\n,,\n',
        "site,image,label\rA,.\\a.png,yes\r",
        "site,image,label,mask\nA,.//a.png,yes,nowhere.png\n",
    ],
)
def test_tables_as_people_and_spreadsheets_write_them_are_read(tmp_path: Path, text: str) -> None:
    assert classify(make(tmp_path, text, "a.png")) == Listing((Sample("A", "a.png", label="yes"),))


@pytest.mark.parametrize(
    ("written", "split"),
    [
        ("Train", "train"),
        ("training", "train"),
        ("VALIDATION", "val"),
        ("valid", "val"),
        ("dev", "val"),
        ("testing", "test"),
    ],
)
def test_splits_have_synonyms(tmp_path: Path, written: str, split: str) -> None:
    make(tmp_path, f"site,image,label,split\nA,a.png,yes,{written}\n", "a.png")
    assert classify(tmp_path).samples[0].split == split


def test_an_image_may_be_a_folder_of_a_series_and_paths_may_be_of_windows(tmp_path: Path) -> None:
    assert problems_of(tmp_path, "A,series,yes") == []
    assert problems_of(tmp_path, "A,images\\b.png,yes") == []
    assert classify(tmp_path).samples[0].image == "images/b.png"


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        (",a.png,yes", ["site is empty"]),
        ("A,,yes", ["image is empty"]),
        ("A", ["image is empty", "label is empty"]),
        ("A,a.png,,holdout", ["label is empty", "split must be train, val, test or empty, found 'holdout'"]),
        ("A,gone.png,yes", ["image gone.png: no such file"]),
        ("A,gone/a.png,yes", ["image gone/a.png: no such file"]),
        ("A,a.png/b.png,yes", ["image a.png/b.png: no such file"]),
        (f"A,{'x' * 5000},yes", [f"image {'x' * 194}: no such file"]),
        ("A,/etc/hosts,yes", ["image /etc/hosts: the path leaves the data folder; paths are relative to it"]),
        ("A,images/../a.png,yes", ["image images/../a.png: the path leaves the data folder; paths are relative to it"]),
        ("A,..\\a.png,yes", ["image ../a.png: the path leaves the data folder; paths are relative to it"]),
        ("A,C:\\a.png,yes", ["image C:/a.png: the path leaves the data folder; paths are relative to it"]),
        ("A,.,yes", ["image .: the data folder itself"]),
        ("A,a\x1b.png,yes", ["image a\\x1b.png: a name with characters that cannot be printed"]),
        ("A/B,a.png,yes", ["a site's name cannot hold / or \\, found 'A/B'"]),
        ("..,a.png,yes", ["a site's name cannot begin with a dot, found '..'"]),
        ("A\x07,a.png,yes", ["a site's name cannot hold characters that cannot be printed"]),
        (f"{'s' * 101},a.png,yes", [f"a site's name cannot be longer than 100 bytes, found '{'s' * 20}'…"]),
        ("average,a.png,yes", ["a site cannot be called 'average': a run's records use that word"]),
        ("A,a.png,y\x07", ["label holds characters that cannot be printed"]),
        ("A,a.png,yes,,,more", ["more values than columns; a value that holds the delimiter must stand in quotes"]),
    ],
)
def test_every_problem_of_a_row_is_named(tmp_path: Path, row: str, messages: list[str]) -> None:
    assert problems_of(tmp_path, row) == messages


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ("A,a.png,images/b.png", []),
        ("A,a.png,", ["mask is empty"]),
        ("A,a.png,gone.png", ["mask gone.png: no such file"]),
        ("A,a.png,series", ["mask series: a folder, not a file"]),
        ("A,a.png,./a.png", ["the mask is the image itself"]),
    ],
)
def test_a_mask_is_a_file_of_its_own(tmp_path: Path, row: str, messages: list[str]) -> None:
    assert problems_of(tmp_path, row, "site,image,mask") == messages


def test_lines_are_counted_as_an_editor_does(tmp_path: Path) -> None:
    text = 'site,image,label,notes\n\nA,a.png,yes,"two\nlines"\nA,gone.png,yes,\n'
    assert [problem.file for problem in classify(make(tmp_path, text, "a.png")).problems] == ["manifest.csv line 5"]


def test_an_image_listed_twice_is_fatal_only_if_the_rows_disagree(tmp_path: Path) -> None:
    text = "site,image,label\nA,a.png,yes\nA,.\\a.png,yes\nB,a.png,no\n"
    listing = classify(make(tmp_path, text, "a.png"))
    assert listing == Listing(
        (Sample("A", "a.png", label="yes"),),
        (
            Problem("manifest.csv line 3", "image a.png is already on line 2", fatal=False),
            Problem("manifest.csv line 4", "image a.png is already on line 2, with another site and label"),
        ),
    )


def test_sites_that_differ_in_case_only_are_mentioned(tmp_path: Path) -> None:
    listing = classify(make(tmp_path, "site,image,label\nUcl,a.png,x\nUCL,b.png,x\n", "a.png", "b.png"))
    assert len(listing.samples) == 2
    assert [problem.fatal for problem in listing.problems] == [False]


@pytest.mark.parametrize(("row", "site"), [("3,gone.png,1,2", "3"), ("3,1,gone.png,x", ""), ("3,gone.png,1,2,9", "")])
def test_a_row_that_cannot_be_used_is_its_sites_unless_another_site_stands_where_none_belongs(
    tmp_path: Path, row: str, site: str
) -> None:
    text = f"site,image,label,patient\n1,a.png,0,1\n2,b.png,1,1\n{row}\n"
    listing = classify(make(tmp_path, text, "a.png", "b.png"))
    assert {problem.site for problem in listing.problems} == {site}


def test_a_folder_of_other_images_is_no_series(tmp_path: Path) -> None:
    text = "site,image,label\nA,scans/1/a.png,x\nA,scans,x\nA,scans/1,x\nA,series,x\n"
    listing = classify(make(tmp_path, text, "scans/1/a.png", "series/1.dcm"))
    assert [sample.image for sample in listing.samples] == ["scans/1/a.png", "series"]
    assert [problem.message for problem in listing.problems] == [
        "image scans: a folder that holds other images of the table",
        "image scans/1: a folder that holds other images of the table",
    ]


def test_links_are_followed_only_inside(tmp_path: Path) -> None:
    outside = make(tmp_path / "outside", "", "1.png")
    rows = "".join(f"A,{name},x\n" for name in ("linked.png", "folder/1.png", "folder", "alias.png", "loop.png"))
    data = make(tmp_path / "data", f"site,image,label\n{rows}", "real.png")
    (data / "linked.png").symlink_to(outside / "1.png")
    (data / "folder").symlink_to(outside)
    (data / "alias.png").symlink_to("real.png")
    (data / "loop.png").symlink_to("loop.png")
    listing = classify(data)
    assert [sample.image for sample in listing.samples] == ["alias.png"]
    assert [problem.message for problem in listing.problems] == [
        "image linked.png: the path leaves the data folder",
        "image folder/1.png: the path leaves the data folder",
        "image folder: the path leaves the data folder",
        "image loop.png: no such file",
    ]


def test_a_manifest_that_is_a_link_out_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "outside", "site,image,label\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "manifest.csv").symlink_to(tmp_path / "outside" / "manifest.csv")
    with pytest.raises(UsageError, match="leaves the data folder"):
        classify(tmp_path / "data")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    make(tmp_path, "site,image,label\nA,pipe.png,x\n")
    os.mkfifo(tmp_path / "pipe.png")
    assert [problem.message for problem in classify(tmp_path).problems] == ["image pipe.png: not a regular file"]
    (tmp_path / "manifest.csv").unlink()
    os.mkfifo(tmp_path / "manifest.csv")
    with pytest.raises(UsageError, match=r"found no manifest\.csv"):
        classify(tmp_path)


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("classification", "", "no columns site, image, label in its header (found: nothing)"),
        ("classification", "site,image,label\n", "names no image"),
        ("classification", "site,image,labels\nA,a.png,x", "no column label in its header (found: site, image, labels"),
        ("classification", "site,image,labels\nA,a.png,x\n", "; did you mean label by labels?"),
        ("classification", "split;image;label\n", "no column site in its header (found: split, image, label)"),
        ("classification", "site,image,mask\n", "a table with mask is for --task segmentation"),
        ("segmentation", "site,image,label\n", "a table with label is for --task classification"),
        ("classification", "site,image,label,image\nA,a.png,x,b.png", "more than one column is called image"),
        ("classification", "site,image,label\nA,a\0.png,x", "NUL"),
        ("classification", f"site,image,label\nA,{'x' * 200_000},x", "line 2: not a table"),
        ("classification", 'site,image,label\nA,a.png,x\nA,"b.png,x\n', "line 3: not a table"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_used_is_refused(
    tmp_path: Path, kind: Literal["classification", "segmentation"], text: str, words: str
) -> None:
    with pytest.raises(UsageError) as error:
        list_samples(make(tmp_path, text, "a.png"), kind)
    assert words in str(error.value)
    assert "manifest.csv" in str(error.value)


def test_a_missing_manifest_is_refused_with_an_example_and_advice(tmp_path: Path) -> None:
    data = make(tmp_path / "data" / "mine", "", "images/a.png")
    nuclei = tmp_path / "nuclei"
    (nuclei / "TNBC_NucleiSegmentation").mkdir(parents=True)
    for folder, words in {
        data / "images": f"did you mean the folder {data}? It should look like this:",
        tmp_path / "data": f"did you mean the folder {data}? It should look like this:",
        nuclei: "looks like data for --task nuclei. It should look like this:",
    }.items():
        with pytest.raises(UsageError, match=r"found no manifest\.csv") as error:
            list_samples(folder, "segmentation")
        assert words in str(error.value)
        assert "\nsite,split,patient,image,mask\nhospital-1,train," in str(error.value)
    for folder in (tmp_path / "none", data / "manifest.csv"):
        with pytest.raises(UsageError, match="manifest"):
            classify(folder)


@pytest.fixture(scope="module")
def images() -> Iterator[Path]:
    """A folder with images 0.png to 9.png, for many tables."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(10):
            (Path(folder) / f"{number}.png").touch()
        yield Path(folder)


words = st.text(st.characters(exclude_categories=("C", "Z")) | st.sampled_from(",;\"' "), min_size=1, max_size=20).map(
    str.strip
)
sites = words.filter(lambda name: name and len(name.encode()) <= 100 and not set(name) & set("/\\") and name[0] != ".")
samples = st.lists(
    st.builds(
        Sample,
        site=sites.filter(lambda name: not name_refusal(name)),
        image=st.integers(0, 9).map("{}.png".format),
        label=words.filter(bool),
        patient=words | st.just(""),
        split=st.sampled_from(("train", "val", "test", "")),
    ),
    min_size=1,
    max_size=10,
    unique_by=lambda sample: sample.image,
)


@given(samples, st.permutations(["site", "image", "label", "patient", "split", "notes"]), st.sampled_from(",;\t"))
@settings(deadline=None)
def test_any_table_of_valid_rows_is_read_back(
    images: Path, samples: list[Sample], columns: list[str], delimiter: str
) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter)
    writer.writerows([columns, *([getattr(sample, name, "a, b; c") for name in columns] for sample in samples)])
    listing = classify(make(images, text.getvalue()))
    assert listing.samples == tuple(sorted(samples, key=lambda sample: (sample.site, sample.image)))
    assert not any(problem.fatal for problem in listing.problems)


headers = st.sampled_from(
    [b"", b"site,image,label\n", b"site;image;label;split\n", b"\xef\xbb\xbfsite\timage\tlabel\n"]
)


@given(headers, st.binary(max_size=200) | st.text(max_size=100).map(lambda text: text.encode(errors="replace")))
@settings(deadline=None)
def test_any_content_is_read_or_refused(images: Path, header: bytes, content: bytes) -> None:
    (images / "manifest.csv").write_bytes(header + content)
    try:
        listing = classify(images)
    except UsageError as error:
        assert "manifest.csv" in str(error)  # noqa: PT017
    else:
        assert listing.samples or listing.problems


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"needs the public tiles in {SHARED}")
def test_the_real_tiles_are_listed() -> None:
    listing = list_samples(SHARED, "segmentation")
    assert listing.problems == ()
    counts = Counter((sample.site, sample.split) for sample in listing.samples)
    organs = [f"MoNuSAC-{organ}" for organ in ("breast", "kidney", "lung", "prostate")]
    tiles = {"train": 80, "val": 20, "test": 40}
    expected = {(site, split): tiles[split] for site in (*organs, "MoNuSeg", "TNBC") for split in tiles}
    assert counts == expected | {("TNBC", "train"): 78}
    assert all(sample.patient for sample in listing.samples)


def test_an_absolute_path_inside_the_folder_is_taken(tmp_path: Path) -> None:
    folder = make(tmp_path / "data", "", "a.png")
    linked = tmp_path / "link"
    linked.symlink_to(folder)
    for opened, path in ((folder, folder / "a.png"), (linked, linked / "a.png"), (linked, folder / "a.png")):
        make(folder, f"site,image,label\nA,{path},yes\n")
        assert classify(opened) == Listing((Sample("A", "a.png", "yes"),))
    make(folder, f"site,image,label\nA,{tmp_path / 'data-2' / 'a.png'},yes\n")
    assert "leaves the data folder" in str(classify(folder).problems)
