"""Prostate MRI, a folder a site."""

from pathlib import Path

import pytest

from harmofl.data.layouts.prostate import layout, list_samples
from harmofl.data.listing import list_layout
from harmofl.data.samples import Listing, Problem, Sample
from harmofl.errors import UsageError


def touch(folder: Path, *files: str) -> Path:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
    return folder


def cases(folder: Path, *stems: str, mask: str = "_segmentation", suffix: str = ".nii.gz") -> Path:
    return touch(folder, *(f"{stem}{part}{suffix}" for stem in stems for part in ("", mask)))


def test_every_folder_with_pairs_is_a_site(tmp_path: Path) -> None:
    cases(tmp_path, "BIDMC/Case01", "BIDMC/Case00")
    cases(tmp_path, "ISBI_1.5/Case00", mask="_Segmentation")
    cases(tmp_path, "data/sets/Clinic/patient-7", mask="_SEGMENTATION", suffix=".nii")
    assert list_samples(tmp_path) == Listing(
        (
            Sample("BIDMC", "BIDMC/Case00.nii.gz", mask="BIDMC/Case00_segmentation.nii.gz", patient="BIDMC/Case00"),
            Sample("BIDMC", "BIDMC/Case01.nii.gz", mask="BIDMC/Case01_segmentation.nii.gz", patient="BIDMC/Case01"),
            Sample(
                "Clinic",
                "data/sets/Clinic/patient-7.nii",
                mask="data/sets/Clinic/patient-7_SEGMENTATION.nii",
                patient="Clinic/patient-7",
            ),
            Sample(
                "ISBI_1.5",
                "ISBI_1.5/Case00.nii.gz",
                mask="ISBI_1.5/Case00_Segmentation.nii.gz",
                patient="ISBI_1.5/Case00",
            ),
        )
    )


def test_the_folder_itself_may_be_a_site(tmp_path: Path) -> None:
    assert [sample.site for sample in list_samples(cases(tmp_path / "HK", "Case00")).samples] == ["HK"]


def test_sites_of_the_same_name_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    listing = list_samples(cases(tmp_path, "a/HK/Case00", "b/HK/Case00", "b/UCL/Case00"))
    assert [sample.site for sample in listing.samples] == ["UCL", "a-HK", "b-HK"]


def test_a_volume_or_a_mask_alone_is_fatal(tmp_path: Path) -> None:
    cases(tmp_path, "HK/Case00")
    listing = list_samples(touch(tmp_path, "HK/Case01.nii.gz", "HK/Case02_segmentation.nii.gz"))
    assert listing.problems == (
        Problem("HK/Case01.nii.gz", "has no _segmentation beside it"),
        Problem("HK/Case02_segmentation.nii.gz", "belongs to no image"),
    )
    assert len(listing.samples) == 1


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ("Case00_Segmentation.nii.gz", "Case00_Segmentation.nii.gz"),
        ("Case00_segmentation.nii", "Case00_segmentation.nii"),
        ("Case00.nii", "Case00.nii"),
    ],
)
def test_two_files_for_one_case_are_fatal(tmp_path: Path, extra: str, named: str) -> None:
    cases(tmp_path, "HK/Case00", "HK/Case01")
    listing = list_samples(touch(tmp_path, f"HK/{extra}"))
    (problem,) = listing.problems
    assert problem.fatal
    assert problem.file == f"HK/{named}"
    assert "is there again as Case00" in problem.message
    assert [sample.patient for sample in listing.samples] == ["HK/Case01"]


def test_a_folder_of_volumes_without_pairs_is_no_site_but_mentioned(tmp_path: Path) -> None:
    listing = list_samples(touch(cases(tmp_path, "HK/Case00"), "raw/a.nii.gz", "raw/b.nii.gz", "HK/readme.txt"))
    (problem,) = listing.problems
    assert (problem.file, problem.fatal) == ("raw", False)
    assert "none of its 2 volumes" in problem.message


def test_hidden_files_and_deeper_folders_are_not_looked_at(tmp_path: Path) -> None:
    cases(tmp_path, "HK/Case00", "1/2/3/4/Case00", "__MACOSX/HK/Case00", "lost+found/Case00", ".git/Case00")
    listing = list_samples(touch(tmp_path, "HK/._Case00.nii.gz"))
    assert [sample.site for sample in listing.samples] == ["HK"]
    assert listing.problems == ()


@pytest.mark.parametrize("name", ["server", "Average", "x" * 101])
def test_a_folder_whose_name_no_site_can_have_is_refused(tmp_path: Path, name: str) -> None:
    (problem,) = list_samples(cases(tmp_path, f"{name}/Case00")).problems
    assert problem.fatal
    assert problem.file == name


def test_links_that_leave_the_folder_are_refused(tmp_path: Path) -> None:
    outside = cases(tmp_path / "outside", "UCL/Case00")
    data = cases(tmp_path / "data", "HK/Case00")
    (data / "UCL").symlink_to(outside / "UCL")
    (data / "HK" / "Case01.nii.gz").symlink_to(outside / "UCL" / "Case00.nii.gz")
    (data / "HK" / "Case01_segmentation.nii.gz").symlink_to(data / "HK" / "Case00_segmentation.nii.gz")
    (data / "HK" / "Case02.nii.gz").symlink_to(data / "HK" / "gone.nii.gz")
    touch(data, "HK/Case02_segmentation.nii.gz")
    listing = list_samples(data)
    assert [sample.image for sample in listing.samples] == ["HK/Case00.nii.gz"]
    assert listing.problems == (
        Problem("HK/Case01.nii.gz", "the path leaves the data folder"),
        Problem("HK/Case02.nii.gz", "no such file"),
        Problem("UCL", "a link that leaves the data folder"),
    )
    assert [problem.site for problem in listing.problems] == ["HK", "HK", "UCL"]


def test_a_link_inside_the_folder_may_stand_for_a_volume(tmp_path: Path) -> None:
    data = cases(tmp_path, "HK/Case00")
    touch(data, "raw/v.nii.gz", "HK/Case01_segmentation.nii.gz")
    (data / "HK" / "Case01.nii.gz").symlink_to(data / "raw" / "v.nii.gz")
    assert [sample.patient for sample in list_samples(data).samples] == ["HK/Case00", "HK/Case01"]


def test_a_folder_without_pairs_is_refused_with_advice(tmp_path: Path) -> None:
    deep = cases(tmp_path / "deep", "1/2/3/4/Case00")
    own = touch(tmp_path / "own", "manifest.csv")
    nuclei = touch(tmp_path / "nuclei", "Slide_01/01_1.png")
    for folder, words in {
        tmp_path / "none": "no such folder",
        deep: "at most three folders deep",
        own: "looks like data for --task classification or segmentation",
        nuclei: "looks like data for --task nuclei",
    }.items():
        with pytest.raises(UsageError, match=r"NAME\.nii\.gz and NAME_segmentation\.nii\.gz") as error:
            list_layout(layout, folder, tmp_path / "kept")
        assert words in str(error.value)
