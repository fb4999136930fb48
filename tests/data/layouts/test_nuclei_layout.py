"""MoNuSAC2020, MoNuSeg2018 and TNBC as their archives lay them out."""

from collections import Counter
from pathlib import Path

import pytest

from harmofl.data.layouts.nuclei import layout, list_samples
from harmofl.data.listing import list_layout
from harmofl.data.samples import Listing, Problem, Sample
from harmofl.errors import UsageError

SHARED = Path(__file__).parents[4] / "shared" / "data" / "nuclei-original-layouts"

BREAST = "MoNuSAC_images_and_annotations/TCGA-A2-A0ES-01Z-00-DX1/TCGA-A2-A0ES-01Z-00-DX1_003"
KIDNEY = "MoNuSAC_images_and_annotations/TCGA-B9-A44B-01Z-00-DX1/TCGA-B9-A44B-01Z-00-DX1-2"
LUNG_TEST = "MoNuSAC Testing Data and Annotations/TCGA-49-6743-01Z-00-DX2/TCGA-49-6743-01Z-00-DX2_1"
SEG_IMAGES, SEG_OUTLINES = "MoNuSeg 2018 Training Data/Tissue Images", "MoNuSeg 2018 Training Data/Annotations"
SEG_TEST = "MoNuSegTestData/TCGA-2Z-A9J9-01A-01-TS1"


def touch(folder: Path, *files: str) -> Path:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
    return folder


def pairs(folder: Path, *stems: str, image: str = ".svs") -> Path:
    return touch(folder, *(stem + suffix for stem in stems for suffix in (image, ".xml")))


def images(listing: Listing) -> list[str]:
    return [sample.image for sample in listing.samples]


def test_monusac_sites_are_organs(tmp_path: Path) -> None:
    listing = list_samples(pairs(tmp_path, BREAST, KIDNEY))
    assert listing == Listing(
        (
            Sample("MoNuSAC-breast", f"{BREAST}.svs", mask=f"{BREAST}.xml", patient="TCGA-A2-A0ES"),
            Sample("MoNuSAC-kidney", f"{KIDNEY}.svs", mask=f"{KIDNEY}.xml", patient="TCGA-B9-A44B"),
        )
    )


@pytest.mark.parametrize(
    ("code", "organ"), [("EW", "breast"), ("5P", "kidney"), ("L4", "lung"), ("VP", "prostate"), ("yl", "prostate")]
)
def test_the_organ_follows_from_the_tissue_source_code(tmp_path: Path, code: str, organ: str) -> None:
    pairs(tmp_path, f"monusac-images-and-annotations/p/TCGA-{code}-0001-01Z-00-DX1_1")
    assert [sample.site for sample in list_samples(tmp_path).samples] == [f"MoNuSAC-{organ}"]


def test_an_unknown_organ_is_fatal(tmp_path: Path) -> None:
    folder = "MoNuSAC_images_and_annotations/p"
    listing = list_samples(pairs(tmp_path, BREAST, f"{folder}/TCGA-ZZ-0001-01Z-00-DX1_1", f"{folder}/slide1"))
    assert len(listing.samples) == 1
    first, second = listing.problems
    assert first.fatal
    assert first.file == f"{folder}/TCGA-ZZ-0001-01Z-00-DX1_1.svs"
    assert "tissue-source code ZZ" in first.message
    assert second.fatal
    assert "TCGA" in second.message


def test_a_tif_has_its_channels_reversed_and_gives_way_to_an_svs(tmp_path: Path) -> None:
    pairs(tmp_path, KIDNEY, image=".tif")
    pairs(tmp_path, BREAST, image=".tif")
    pairs(tmp_path, BREAST, image=".SVS")
    assert [(sample.image, sample.reversed_channels) for sample in list_samples(tmp_path).samples] == [
        (f"{BREAST}.SVS", False),
        (f"{KIDNEY}.tif", True),
    ]


def test_an_image_without_outlines_is_fatal_and_outlines_without_image_are_not(tmp_path: Path) -> None:
    pairs(tmp_path, BREAST)
    listing = list_samples(touch(tmp_path, f"{BREAST}x.svs", f"{BREAST}y.xml"))
    assert listing.problems == (
        Problem(f"{BREAST}x.svs", "has no .xml of that name"),
        Problem(f"{BREAST}y.xml", "belongs to no image", fatal=False),
    )
    assert images(listing) == [f"{BREAST}.svs"]


def test_a_set_is_divided_where_its_test_folder_is_there(tmp_path: Path) -> None:
    touch(tmp_path, f"{SEG_IMAGES}/TCGA-18-5592-01Z-00-DX1.tif", f"{SEG_OUTLINES}/TCGA-18-5592-01Z-00-DX1.xml")
    assert [sample.split for sample in list_samples(pairs(tmp_path, BREAST)).samples] == ["", ""]
    pairs(tmp_path, LUNG_TEST)
    assert [(sample.site, sample.split) for sample in list_samples(tmp_path).samples] == [
        ("MoNuSAC-breast", "train"),
        ("MoNuSAC-lung", "test"),
        ("MoNuSeg", ""),
    ]
    pairs(tmp_path, SEG_TEST, image=".tif")
    assert {
        (sample.patient, sample.split) for sample in list_samples(tmp_path).samples if sample.site == "MoNuSeg"
    } == {
        ("TCGA-18-5592", "train"),
        ("TCGA-2Z-A9J9", "test"),
    }


@pytest.mark.parametrize(
    ("images_in", "outlines_in", "test"),
    [
        (SEG_IMAGES, SEG_OUTLINES, False),
        ("Tissue Images", "Annotations", False),
        ("tissue_images", "ANNOTATIONS", False),
        ("sets/MoNuSeg_2018_Training_Data/MoNuSeg_2018_Training_Data/Tissue-Images", None, False),
        ("MoNuSegTrainingData", "MoNuSegTrainingData", False),
        ("MoNuSegTestData/Tissue Images", "MoNuSegTestData/Annotations", True),
        ("monuseg/test/Tissue Images", "monuseg/test/Annotations", True),
        ("monuseg/testing", "monuseg/testing", True),
        ("monuseg-latest", "monuseg-latest", False),
    ],
)
def test_both_arrangements_of_monuseg_are_read(
    tmp_path: Path, images_in: str, outlines_in: str | None, test: bool
) -> None:
    outlines_in = outlines_in or images_in.replace("Tissue-Images", "Annotations")
    image, outlines = f"{images_in}/TCGA-18-5592-01Z-00-DX1.tif", f"{outlines_in}/TCGA-18-5592-01Z-00-DX1.xml"
    listing = list_samples(touch(tmp_path, image, outlines))
    split = "test" if test else ""
    assert listing == Listing((Sample("MoNuSeg", image, mask=outlines, patient="TCGA-18-5592", split=split),))


@pytest.mark.parametrize("name", ["MoNuSegTestData", "MoNuSeg 2018 Training Data"])
def test_the_folder_may_itself_be_monusegs(tmp_path: Path, name: str) -> None:
    stem = "TCGA-18-5592-01Z-00-DX1"
    apart = touch(tmp_path / "a" / name, f"Tissue Images/{stem}.tif", f"Annotations/{stem}.xml")
    beside = pairs(tmp_path / "b" / name, stem, image=".tif")
    for folder in (apart, beside):
        assert [sample.split for sample in list_samples(folder).samples] == ["test" if "Test" in name else ""]


def test_monuseg_images_without_outlines_are_problems(tmp_path: Path) -> None:
    listing = list_samples(touch(tmp_path, f"{SEG_IMAGES}/a.tif", "MoNuSegTestData/b.tif"))
    assert [(problem.file, problem.fatal) for problem in listing.problems] == [
        (f"{SEG_IMAGES}/a.tif", True),
        ("MoNuSegTestData/b.tif", True),
    ]


@pytest.mark.parametrize("folder", ["", "TNBC_NucleiSegmentation/", "x/TNBC_and_Brain_dataset/TNBC/"])
def test_tnbc_is_known_by_its_pairs_of_folders(tmp_path: Path, folder: str) -> None:
    touch(tmp_path, f"{folder}Slide_01/01_1.png", f"{folder}GT_01/01_1.png", f"{folder}Slide_02/02_1.png")
    listing = list_samples(touch(tmp_path, f"{folder}GT_03/03_1.png"))
    assert listing.samples == (
        Sample("TNBC", f"{folder}Slide_01/01_1.png", mask=f"{folder}GT_01/01_1.png", patient="01"),
    )
    assert set(listing.problems) == {
        Problem(f"{folder}Slide_02/02_1.png", "has no mask of that name in GT_02"),
        Problem(f"{folder}GT_03/03_1.png", "belongs to no image", fatal=False),
    }


def test_slides_beyond_tnbcs_own_are_mentioned(tmp_path: Path) -> None:
    listing = list_samples(touch(tmp_path, "Slide_12/12_1.png", "GT_12/12_1.png"))
    assert [sample.patient for sample in listing.samples] == ["12"]
    assert [(problem.file, problem.fatal) for problem in listing.problems] == [("Slide_12", False)]


def test_a_patient_of_monusac_and_monuseg_is_kept_in_monuseg(tmp_path: Path) -> None:
    stem = "TCGA-G9-6356-01Z-00-DX1"
    folder = f"MoNuSAC_images_and_annotations/{stem}"
    pairs(tmp_path, BREAST, f"{folder}/{stem}_1", f"{folder}/{stem}_2")
    assert Counter(sample.site for sample in list_samples(tmp_path).samples)["MoNuSAC-prostate"] == 2
    listing = list_samples(touch(tmp_path, f"{SEG_IMAGES}/{stem}.tif", f"{SEG_OUTLINES}/{stem}.xml"))
    assert [sample.site for sample in listing.samples] == ["MoNuSAC-breast", "MoNuSeg"]
    (problem,) = listing.problems
    assert not problem.fatal
    assert problem.file == folder
    assert "TCGA-G9-6356 is in MoNuSeg too" in problem.message
    assert "2 MoNuSAC image(s) left out" in problem.message


def test_an_archive_unpacked_twice_is_refused(tmp_path: Path) -> None:
    listing = list_samples(pairs(tmp_path, BREAST, f"copy/{BREAST}"))
    assert images(listing) == [f"{BREAST}.svs"]
    assert listing.problems == (Problem(f"copy/{BREAST}.svs", f"the same image as {BREAST}.svs; remove one of them"),)


def test_the_folder_may_itself_be_a_set_or_lie_above_nested_archives(tmp_path: Path) -> None:
    outer = tmp_path / "MoNuSAC_images_and_annotations"
    for folder in (tmp_path, pairs(outer, BREAST), outer / "MoNuSAC_images_and_annotations"):
        assert len(list_samples(folder).samples) == 1


def test_files_that_systems_leave_behind_are_ignored(tmp_path: Path) -> None:
    name = BREAST.rpartition("/")[2]
    touch(tmp_path, f"__MACOSX/{BREAST}.svs", BREAST.replace(name, f"._{name}.svs"), BREAST.replace(name, "Thumbs.db"))
    listing = list_samples(pairs(tmp_path, BREAST, f".hidden/{BREAST}"))
    assert images(listing) == [f"{BREAST}.svs"]
    assert listing.problems == ()


def test_links_that_leave_the_folder_are_refused(tmp_path: Path) -> None:
    outside = pairs(tmp_path / "outside", BREAST, KIDNEY, LUNG_TEST)
    data = pairs(tmp_path / "data", BREAST)
    (data / f"{BREAST}x.svs").symlink_to(outside / f"{BREAST}.svs")
    (data / f"{BREAST}x.xml").symlink_to(data / f"{BREAST}.xml")
    (data / KIDNEY).parent.symlink_to((outside / KIDNEY).parent)
    (data / LUNG_TEST).parents[1].symlink_to((outside / LUNG_TEST).parents[1])
    (data / "again").symlink_to(data)
    listing = list_samples(data)
    assert images(listing) == [f"{BREAST}.svs"]
    assert set(listing.problems) == {
        Problem(f"{BREAST}x.svs", "the path leaves the data folder"),
        Problem(KIDNEY.rpartition("/")[0], "a link that leaves the data folder"),
        Problem(LUNG_TEST.split("/")[0], "a link that leaves the data folder"),
        Problem("again", "a link to another place of the data folder: not followed", fatal=False),
    }


def test_tnbc_links_that_leave_the_folder_are_refused(tmp_path: Path) -> None:
    outside = touch(tmp_path / "outside", "a.png") / "a.png"
    data = touch(tmp_path / "data", "Slide_01/01_1.png", "GT_01/01_1.png", "Slide_01/01_2.png")
    (data / "GT_01/01_2.png").symlink_to(outside)
    listing = list_samples(data)
    assert images(listing) == ["Slide_01/01_1.png"]
    assert listing.problems == (Problem("GT_01/01_2.png", "the path leaves the data folder"),)


def test_a_folder_without_any_set_is_refused_with_advice(tmp_path: Path) -> None:
    own = touch(tmp_path / "own", "manifest.csv", "MoNuSeg/images/a.png")
    wilds = touch(tmp_path / "wilds", "metadata.csv")
    patient = (pairs(tmp_path, BREAST) / BREAST).parent
    archive = touch(tmp_path, "TNBC.zip") / "TNBC.zip"
    for folder, words in {
        tmp_path / "none": "no such folder",
        archive: "unpack it first",
        own: "looks like data for --task classification or segmentation",
        wilds: "looks like data for --task histology",
        patient: f"did you mean the folder {patient.parent}?",
    }.items():
        with pytest.raises(UsageError, match="MoNuSAC2020") as error:
            list_layout(layout, folder, tmp_path / "kept")
        assert words in str(error.value)


def test_names_of_any_bytes_are_problems_that_can_be_printed(tmp_path: Path) -> None:
    strange = b"Slide_01/\xff\x1b.png".decode(errors="surrogateescape")
    touch(tmp_path, "Slide_01/01_1.png", "GT_01/01_1.png")
    try:
        touch(tmp_path, strange, strange.replace("Slide", "GT"))
    except OSError:
        pytest.skip("this file system takes no such name")
    listing = list_samples(tmp_path)
    assert len(listing.samples) == 1
    assert len(listing.problems) == 2
    assert all(str(problem).isprintable() for problem in listing.problems)


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"needs the public images in {SHARED}")
def test_the_real_archives_are_listed() -> None:
    listing = list_samples(SHARED)
    assert listing.problems == ()
    monusac = [sample for sample in listing.samples if sample.site != "TNBC"]
    assert Counter(sample.site for sample in monusac) == {
        "MoNuSAC-breast": 2,
        "MoNuSAC-kidney": 2,
        "MoNuSAC-lung": 1,
        "MoNuSAC-prostate": 2,
    }
    assert len({sample.patient for sample in monusac}) == 6
    assert len(listing.samples) - len(monusac) == 50
    assert len({sample.patient for sample in listing.samples if sample.site == "TNBC"}) == 11
    assert {sample.split for sample in listing.samples} == {""}
