"""Every problem on which training would fail is named."""

import re
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch

from folders import (
    blob,
    broken,
    classification_folder,
    dicom_slice,
    opened,
    picture,
    save_volume,
    segmentation_folder,
    write_manifest,
)
from harmofl.data.formats import read_scan
from harmofl.data.inspection import check_for_training, find_problems
from harmofl.data.samples import Problem
from harmofl.errors import UsageError
from volumes import write_hospitals


def test_a_truncated_image_is_named(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path)
    path = folder / "site-1/p2-1.png"
    path.write_bytes(path.read_bytes()[:-200])
    assert "1 problem: site-1/p2-1.png: " in broken(folder)


def test_every_problem_counts_and_the_first_five_are_named(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path)
    for path in sorted((folder / "site-0").glob("*mask.png"))[:7]:
        picture(path, np.zeros((9, 9), dtype=np.uint8))
    message = broken(folder)
    assert "7 problems: site-0/p0-0-mask.png: the mask is 9 x 9" in message.replace("×", "x")
    assert " (and 6 more like it) (`harmofl data check` says more)" in message


def test_problems_come_in_the_order_of_lines() -> None:
    lines = [Problem(f"manifest.csv, line {number}", "no such file") for number in (10, 9, 101)]
    assert [problem.file.rpartition(" ")[2] for problem in sorted(lines)] == ["9", "10", "101"]


def test_a_label_outside_the_classes_is_named(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path)
    picture(folder / "site-0/p0-0-mask.png", np.full((40, 40), 3, dtype=np.uint8))
    message = broken(folder, classes=["0", "255"])
    assert "site-0/p0-0-mask.png: label 3 is none of the classes (0, 255)" in message
    message = broken(classification_folder(tmp_path / "c"), "classification", classes=["healthy", "sick"])
    assert "label 'ill' is none of the classes (healthy, sick)" in message


def series_folder(folder: Path, affine: np.ndarray | None) -> Path:
    """Four DICOM series with NIfTI masks; without an affine, those have that of their series."""
    rows = []
    for number in range(4):
        series = folder / f"p{number}"
        series.mkdir(parents=True)
        for place in range(3):
            dicom_slice(np.full((32, 32), place), 3.0 * place, f"1.2.{number}").save_as(
                series / f"{place}.dcm", enforce_file_format=True
            )
        mask = np.zeros((32, 32, 3), np.uint8)  # (columns, rows, slices), a corner that no turn leaves in its place
        mask[:4, :4, 1] = 1
        where = read_scan(series).geometry.affine if affine is None else affine
        save_volume(folder / f"p{number}.nii.gz", mask, where)
        rows.append({"site": "A", "patient": f"p{number}", "image": f"p{number}", "mask": f"p{number}.nii.gz"})
    return write_manifest(folder, rows)


def test_masks_with_an_identity_affine_are_never_turned_onto_a_dicom_series(tmp_path: Path) -> None:
    message = broken(series_folder(tmp_path / "identity", np.eye(4)))
    assert "p0.nii.gz: it is not on the grid of its image: its affine is a default one" in message
    assert "data.mask_grid = 'voxels' takes them so (its image: p0)" in message
    for folder, data in (
        (tmp_path / "identity", {"mask_grid": "voxels"}),
        (series_folder(tmp_path / "right", None), {}),
    ):
        images = opened("segmentation", folder, **data)
        check_for_training(images)
        masks = images.whole("A").load(torch.arange(3)).targets
        assert masks[1].nonzero().tolist() == [[row, column] for row in range(4) for column in range(4)]
        assert not masks[0].any()
        assert not masks[2].any()


def test_a_picture_instead_of_a_mask_is_recognized(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path, channels=1)
    noise = np.arange(1600, dtype=np.uint16).reshape(40, 40)
    picture(folder / "site-0/p0-0-mask.png", noise)
    assert "1600 different values: a mask holds a few labels" in broken(folder)


def test_a_patient_on_two_sides_is_refused_unless_images_are_split(tmp_path: Path) -> None:
    rows = []
    for number in range(8):
        picture(tmp_path / f"{number}.png", blob(20, number, 1)[0])
        split = ("train", "val", "test", "train")[number % 4]
        row = {"site": "A", "image": f"{number}.png", "label": str(number // 4), "split": split}
        rows.append(row | {"patient": "Ann" if number in (0, 1) else f"p{number}"})
    write_manifest(tmp_path, rows)
    message = broken(tmp_path, "classification")
    assert "1.png: patient Ann of A is in val, but 0.png of the same patient is in train" in message
    check_for_training(opened("classification", tmp_path, split_by="image"))


def test_images_of_other_channels_are_refused_with_the_setting_that_mends_it(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path)
    picture(folder / "site-0/p1-0.png", blob(40, 0, 1)[0])
    message = broken(folder)
    assert "site-0/p1-0.png: 1 channel, where site-0/p0-0.png has 3: data.color = 'rgb' or 'grey'" in message
    check_for_training(opened("segmentation", folder, color="rgb"))
    check_for_training(opened("segmentation", folder, color="grey"))


def test_a_volume_of_other_channels_is_refused_with_what_its_fourth_axis_is(tmp_path: Path) -> None:
    write_hospitals(tmp_path)
    path = tmp_path / "A" / "Case01.nii.gz"
    image = nibabel.load(path)
    nibabel.save(nibabel.Nifti1Image(np.stack([np.asarray(image.dataobj)] * 3, axis=-1), image.affine), path)
    message = broken(tmp_path, "prostate")
    assert "A/Case01.nii.gz: 3 channels, where A/Case00.nii.gz has 1: the fourth axis of a volume holds" in message
    assert "data.color" not in message


def test_sites_of_different_channels_are_refused_too(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path)
    for path in (folder / "site-1").glob("*[0-9].png"):
        picture(path, blob(40, 0, 1)[0])
    assert "differ in their number of channels (site-0 3, site-1 1)" in broken(folder)
    with pytest.raises(UsageError, match="differ in their number of channels"):
        opened("segmentation", folder).facts()


def test_a_site_of_which_nothing_can_be_read_is_named(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path)
    for path in (folder / "site-1").glob("*[0-9].png"):
        path.write_bytes(b"")
    assert "not one of this site's images could be read" in str(opened_problems(folder))


def opened_problems(folder: Path) -> list[str]:
    images = opened("segmentation", folder)
    return [str(problem) for problem in find_problems(images)]


def test_problems_of_one_site_do_not_hide_those_of_another(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path)
    (folder / "site-0/p0-0.png").write_bytes(b"")
    manifest = (folder / "manifest.csv").read_text().splitlines()
    few = [line for line in manifest if not re.match("site-1,p[2-9]", line)]
    (folder / "manifest.csv").write_text("\n".join(few))
    problems = "; ".join(opened_problems(folder))
    assert "site-0/p0-0.png" in problems
    assert "site-1: 2 patients cannot be split" in problems


def test_files_that_cannot_be_opened_never_stand_for_one_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = segmentation_folder(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("harmofl.data.file_hashes.hash_file", lambda path: "")
        assert "site-0/p0-0-mask.png: cannot be opened (and 39 more like it)" in broken(folder)
    images = opened("segmentation", folder)
    check_for_training(images)
    first, second = (images.whole(site).load(torch.arange(4)).images for site in images.sites)
    assert not torch.equal(first, second)


def test_someone_must_be_left_to_train(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path, sites=1)
    assert "no site is left to train on" in broken(folder, hold_out_site="site-0")


def test_a_site_with_too_few_patients_is_refused_with_a_way_out(tmp_path: Path) -> None:
    message = broken(segmentation_folder(tmp_path, patients=2))
    assert "site-0: 2 patients cannot be split into train, val, test; it takes 3 or more" in message
    assert "data.split_by = 'image'" in message
