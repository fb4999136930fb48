"""What `harmofl data check` finds, on small folders in which everything is known by construction."""

import csv
import io
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import nibabel
import numpy as np
import pytest
from PIL import Image
from rich.cells import cell_len
from rich.console import Console

from harmofl import registry
from harmofl.api import check_data
from harmofl.data.check import Check, check_images, to_json
from harmofl.data.clean_manifest import write_clean_manifest
from harmofl.data.samples import Problem, Sample
from harmofl.errors import UsageError
from harmofl.reporting.check_table import to_rich
from harmofl.settings import resolve

SIZE = 16
REAL = Path(__file__).parents[3] / "shared" / "data"
COLUMNS = {"classification": "label", "segmentation": "mask"}

Cells = dict[str, str]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARMOFL_CACHE", str(tmp_path / "cache"))


class Folder:
    """A folder with a manifest, of as many images as asked for."""

    def __init__(self, root: Path, kind: str) -> None:
        self.root = root
        self.kind = kind
        self.rows: list[Cells] = []
        self.random = np.random.default_rng(0)
        root.mkdir()

    def add(self, site: str, name: str, truth: Any = None, shape: Sequence[int] = (SIZE, SIZE), **cells: str) -> Path:
        """An image of noise with its label, or with a mask of these values."""
        pixels = self.random.integers(1, 255, shape).astype(np.uint8)
        path = self.save(f"{name}.png", pixels)
        if self.kind == "segmentation":
            mask = np.zeros(shape[:2], np.uint8)
            mask[:4, :8] = 1
            self.save(f"{name}-mask.png", mask if truth is None else np.asarray(truth, np.uint8))
            truth = f"{name}-mask.png"
        self.rows.append({"site": site, "image": f"{name}.png", COLUMNS[self.kind]: str(truth)} | cells)
        return path

    def save(self, name: str, pixels: np.ndarray) -> Path:
        Image.fromarray(pixels).save(self.root / name)
        return self.root / name

    def fill(self, site: str, count: int = 12, **cells: str) -> None:
        """Images of which nothing bad can be said; every third is "b", the others "a"."""
        for number in range(count):
            self.add(site, f"{site}-{number:02}", None if self.kind == "segmentation" else "aab"[number % 3], **cells)

    def row(self, name: str) -> Cells:
        return next(row for row in self.rows if row["image"] == f"{name}.png")

    def check(self, **settings: Any) -> Check:
        with open(self.root / "manifest.csv", "w", newline="") as file:
            names = dict.fromkeys(name for row in self.rows for name in row)
            writer = csv.DictWriter(file, list(names), restval="")
            writer.writeheader()
            writer.writerows(self.rows)
        return check(self.kind, self.root, **settings)


def check(task: str, root: Path, **settings: Any) -> Check:
    overrides = {f"data.{name}": value for name, value in settings.items()} | {"data.folder": str(root)}
    data = resolve(task, "fedavg", "smoke", overrides={"data.size": SIZE, "data.limit": 1000} | overrides)[0].data
    chosen = registry.tasks.find(task)
    return check_images(chosen, chosen.open_folder(data))


@pytest.fixture
def pictures(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "data", "classification")


@pytest.fixture
def masks(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "data", "segmentation")


@pytest.fixture(params=["classification", "segmentation"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    return Folder(tmp_path / "data", request.param)


def about(found: Check, file: str) -> list[Problem]:
    return [problem for problem in found.problems if problem.file == file]


def only(found: Check) -> Problem:
    assert len(found.problems) == 1, found.problems
    return found.problems[0]


def printed(found: Check, width: int = 100) -> str:
    shown = io.StringIO()
    Console(width=width, file=shown).print(*to_rich(found, width), sep="\n")
    return shown.getvalue()


# --- numbers -----------------------------------------------------------------------------------------------------


def test_good_data_have_no_problems(either: Folder) -> None:
    either.fill("north", 20)
    either.fill("south", 20)
    found = either.check()
    assert found.ok
    assert not found.problems
    assert found.sites == ("north", "south")
    assert found.images == 40


def test_counts_images_and_classes_per_site_and_split(pictures: Folder) -> None:
    for split, labels in {"train": "aaab", "val": "ab", "test": "bbb"}.items():
        for number, label in enumerate(labels):
            pictures.add("north", f"{split}-{number}", label, split=split, patient=f"{split}-{number // 2}")
    rows = {row.split: row for row in pictures.check().rows}
    assert [(split, row.images, row.files, row.patients) for split, row in rows.items()] == [
        ("train", 4, 4, 2),
        ("val", 2, 2, 1),
        ("test", 3, 3, 2),
    ]
    assert [row.labels for row in rows.values()] == [{"a": 3, "b": 1}, {"a": 1, "b": 1}, {"a": 0, "b": 3}]
    assert rows["train"].foreground is None


def test_unassigned_images_are_counted_as_training_would_divide_them(pictures: Folder) -> None:
    pictures.fill("north", 20)
    assert [(row.split, row.images) for row in pictures.check().rows] == [("train", 13), ("val", 3), ("test", 4)]


def test_limits_and_equal_sizes_count(pictures: Folder) -> None:
    pictures.fill("north", 20)
    pictures.fill("south", 40)
    rows = {(row.site, row.split): row.images for row in pictures.check(site_sizes="smallest").rows}
    assert rows["south", "train"] == rows["north", "train"] == 13
    limited = pictures.check(limit=10)
    assert [row.images for row in limited.rows] == [6, 2, 2] * 2
    assert "At most 10 images of a site" in printed(limited)


def test_tiles_and_their_files_are_counted(masks: Folder) -> None:
    for split in ("train", "val", "test"):
        masks.add("north", f"{split}-a", shape=(32, 48, 3), split=split)  # 2 × 3 tiles
        masks.add("north", f"{split}-b", shape=(16, 32, 3), split=split)  # 1 × 2 tiles
    row = masks.check().rows[0]
    assert (row.images, row.files, row.patients) == (8, 2, None)
    assert (row.height, row.width, row.channels, row.slices) == ((16, 32), (32, 48), (3, 3), (1, 1))


def test_intensities_are_those_of_the_files(pictures: Folder) -> None:
    for number, split in enumerate(["train", "train", "val", "test"]):
        pictures.add("north", f"{number}", "ab"[number % 2], split=split)
    pictures.save("0.png", np.full((4, 4), 10, np.uint8))
    pictures.save("1.png", np.repeat(np.array([[0, 200]], np.uint8), 6, axis=0))  # 12 pixels, mean 100
    row = pictures.check().rows[0]
    assert row.intensity == pytest.approx((0, (16 * 10 + 12 * 100) / 28, 200))


def test_shares_of_pixels_and_of_empty_images(masks: Folder) -> None:
    two = np.zeros((SIZE, SIZE))
    two[:8] = 1  # half
    two[8:12, :8] = 2  # an eighth
    for split in ("train", "val", "test"):
        masks.add("north", f"{split}-0", two, split=split)
        masks.add("north", f"{split}-1", np.zeros((SIZE, SIZE)), split=split)
    found = masks.check()
    assert found.classes == ("0", "1", "2")
    for row in found.rows:
        assert row.foreground == {"1": 1 / 4, "2": 1 / 16}
        assert row.without_foreground == 0.5


def test_a_site_that_is_held_out_has_one_row(either: Folder) -> None:
    either.fill("north")
    either.fill("south", 7)
    found = either.check(hold_out_site="south")
    assert found.sites == ("north",)
    assert [(row.split, row.images) for row in found.rows if row.site == "south"] == [("held out", 7)]
    assert found.images == 12


def test_a_site_that_cannot_be_divided_is_shown_as_the_data_says(either: Folder) -> None:
    either.fill("north")
    either.fill("south", 4, patient="one")
    found = either.check()
    assert not found.ok
    assert only_fatal(found).message.startswith("south: 1 patient cannot be split")
    assert [(row.split, row.images) for row in found.rows if row.site == "south"] == [("unassigned", 4)]


def only_fatal(found: Check) -> Problem:
    fatal = [problem for problem in found.problems if problem.fatal]
    assert len(fatal) == 1, fatal
    return fatal[0]


# --- problems ----------------------------------------------------------------------------------------------------


def test_an_unreadable_image(either: Folder) -> None:
    either.fill("north", 20)
    path = either.add("north", "broken", None if either.kind == "segmentation" else "a")
    path.write_bytes(path.read_bytes()[:60])
    found = either.check()
    assert not found.ok
    assert only_fatal(found).file == "broken.png"
    assert sum(row.images for row in found.rows) == 20


def test_a_mask_of_another_size(masks: Folder) -> None:
    masks.fill("north", 20)
    masks.add("north", "wrong", np.ones((SIZE, SIZE + 1)))
    problem = only_fatal(masks.check())
    assert problem.file == "wrong-mask.png"
    assert re.search(r"16.*17|17.*16", problem.message)


def test_a_label_outside_the_classes(pictures: Folder) -> None:
    pictures.fill("north", 20)
    pictures.add("north", "odd", "c")
    problem = only_fatal(pictures.check(classes=["a", "b"]))
    assert (problem.file, "'c'" in problem.message) == ("odd.png", True)


def test_a_mask_value_outside_the_classes(masks: Folder) -> None:
    masks.fill("north", 20)
    masks.add("north", "odd", np.full((SIZE, SIZE), 7))
    problem = only_fatal(masks.check(classes=["0", "1"]))
    assert (problem.file, "7" in problem.message) == ("odd-mask.png", True)


def test_an_empty_site(either: Folder) -> None:
    either.fill("north", 20)
    either.fill("south", 3)
    for path in either.root.glob("south-0?.png"):
        path.write_text("nothing")
    found = either.check()
    assert {problem.file for problem in found.problems if problem.fatal} == {
        "south",
        *(f"south-0{number}.png" for number in range(3)),
    }
    assert [(row.images, row.files) for row in found.rows if row.site == "south"] == [(0, 3)]


def test_a_patient_on_two_sides(either: Folder) -> None:
    either.fill("north", 12, patient="p", split="train")
    for number, split in enumerate(["test", "val", "test", "val"]):
        either.add(
            "north", f"other-{number}", None if either.kind == "segmentation" else "b", split=split, patient=split
        )
    either.row("other-0")["patient"] = "p"
    found = either.check()
    problem = only_fatal(found)
    assert (problem.file, "patient p of north" in problem.message) == ("other-0.png", True)
    assert either.check(split_by="image").ok


def test_patients_of_one_name_on_different_sides_at_different_sites_are_mentioned(either: Folder) -> None:
    for site, patients in {"north": "pqr", "south": "prq"}.items():
        for patient, split in zip(patients, ("train", "val", "test"), strict=True):
            for number in range(12):
                truth = None if either.kind == "segmentation" else "ab"[number % 2]
                either.add(site, f"{site}-{patient}-{number}", truth, patient=patient, split=split)
    problem = only(either.check())
    assert not problem.fatal
    assert "q (val of north, test of south); r (test of north, val of south): if one name" in problem.message
    assert not either.check(split_by="image").problems
    for row in either.rows:
        row["patient"] += f" of {row['site']}"
    assert not either.check().problems


def test_a_path_that_leaves_the_folder(either: Folder) -> None:
    either.fill("north", 20)
    outside = either.root.parent / "outside.png"
    Image.new("L", (SIZE, SIZE)).save(outside)
    (either.root / "link.png").symlink_to(outside)
    for image in ("../outside.png", str(outside), "link.png"):
        either.rows.append(either.rows[0] | {"image": image})
    fatal = [problem for problem in either.check().problems if problem.fatal]
    assert [problem.file for problem in fatal] == [f"manifest.csv line {line}" for line in (22, 23, 24)]


def test_a_duplicate_names_the_other_file(pictures: Folder) -> None:
    pictures.fill("north", 12, split="train")
    for split in ("val", "test"):
        pictures.add("north", split, "a", split=split)
    copy(pictures, "north-00", "copy", site="north", split="train", label="a")
    found = pictures.check()
    assert found.ok
    assert about(found, "north-00.png")[0].message == "the same image as copy.png"


def test_a_duplicate_in_another_split_is_said_loudly(pictures: Folder) -> None:
    pictures.fill("north", 12, split="train")
    pictures.add("north", "val", "a", split="val")
    copy(pictures, "north-00", "zebra", site="north", split="test", label="b")
    problem = only(pictures.check())
    assert problem == Problem(
        "zebra.png",
        "ALSO IN train of north: the same image as north-00.png, here in test of north, which is labelled a (here b)"
        "; scores on an image that was trained on say nothing",
        fatal=False,
    )


def test_a_duplicate_at_another_site_is_said_loudly_and_first(pictures: Folder) -> None:
    for site in ("north", "south"):
        pictures.fill(site, 14)
    pictures.save("north-05.png", np.full((SIZE, SIZE), 9, np.uint8))
    copy(pictures, "north-00", "zebra", site="south", label="a")
    found = pictures.check()
    assert found.ok
    assert [problem.file for problem in found.problems if problem.file.endswith(".png")] == [
        "zebra.png",
        "north-05.png",
    ]
    assert re.match(
        r"ALSO IN \w+ of north: the same image as north-00.png, here in \w+ of south", found.problems[0].message
    )


def copy(folder: Folder, name: str, other: str, **cells: str) -> None:
    (folder.root / f"{other}.png").write_bytes((folder.root / f"{name}.png").read_bytes())
    folder.rows.append({"image": f"{other}.png"} | cells)


def test_a_site_whose_masks_are_all_empty(masks: Folder) -> None:
    masks.fill("north", 20)
    for number in range(20):
        masks.add("south", f"south-{number}", np.zeros((SIZE, SIZE)))
    found = masks.check()
    assert found.ok
    assert [str(problem) for problem in found.problems] == ["south: not one of this site's masks marks anything"]


def test_an_image_of_one_value(either: Folder) -> None:
    either.fill("north", 20)
    either.save("north-03.png", np.full((SIZE, SIZE), 77, np.uint8))
    assert only(either.check()) == Problem("north-03.png", "nothing to see: every pixel is 77", fatal=False)


def test_a_site_with_few_training_images(either: Folder) -> None:
    either.fill("north", 20)
    either.fill("south", 8)  # 2 to test, 1 to val
    (problem,) = [problem for problem in either.check().problems if "training images" in problem.message]
    assert (problem.file, problem.fatal) == ("south", False)
    assert "only 5 training images" in problem.message


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_split_of_one_class_is_mentioned(pictures: Folder, split: str) -> None:
    for part, count in (("train", 30), ("val", 12), ("test", 12)):
        for number in range(count):
            label = "a" if part == split else "ab"[number % 2]
            pictures.add("north", f"{part}-{number:02}", label, split=part)
    found = only(pictures.check())
    assert not found.fatal
    count = {"train": 30, "val": 12, "test": 12}[split]
    assert str(found) == f"north: all {count} {split} images are of one class, a"


def test_a_split_whose_masks_are_all_empty_is_mentioned(masks: Folder) -> None:
    masks.fill("north", 20, split="train")
    for split in ("val", "test"):
        for number in range(3):
            truth = np.zeros((SIZE, SIZE)) if split == "val" else None
            masks.add("north", f"{split}-{number}", truth, split=split)
    assert str(only(masks.check())) == "north: not one of its val masks marks anything"


def test_more_validation_than_training_images_are_mentioned(either: Folder) -> None:
    for part, count in (("train", 12), ("val", 15), ("test", 6)):
        for number in range(count):
            label = None if either.kind == "segmentation" else "ab"[number % 2]
            either.add("north", f"{part}-{number:02}", label, split=part)
    found = only(either.check())
    assert (str(found), found.fatal) == ("north: more validation images (15) than training images (12)", False)


def test_images_that_are_mirrored_to_fill_the_input_are_mentioned(either: Folder) -> None:
    either.fill("north", 10)
    for number in range(2):
        truth = np.eye(12, 14) if either.kind == "segmentation" else "a"
        either.add("north", f"small-{number}", truth, shape=(12, 14))
    said = "2 of 12 images are smaller than data.size = 16 (the smallest is 12 × 14): mirrored at their ends to fill it"

    def found(**settings: Any) -> list[str]:
        problems = either.check(**settings).problems
        return [problem.message for problem in problems if "smaller than" in problem.message]

    scales = either.kind == "classification"
    assert found() == ([] if scales else [f"{said}; a smaller data.size, or data.resize = true, avoids that"])
    assert found(resize=True) == []


def test_one_class_alone_and_patients_on_two_sides_are_both_found(pictures: Folder) -> None:
    for number, split in enumerate(["train", "train", "val", "test"]):
        pictures.add("north", f"{number}", "a", split=split, patient="p" if split != "val" else "q")
    found = pictures.check()
    assert [problem.file for problem in found.problems if problem.fatal] == ["", "3.png"]
    assert "two classes or more" in found.problems[0].message
    assert [row.labels for row in found.rows] == [{"a": 2}, {"a": 1}, {"a": 1}]


def test_sites_that_differ_in_channels(pictures: Folder) -> None:
    pictures.fill("north", 20)
    for number in range(20):
        pictures.add("south", f"south-{number}", "ab"[number % 2], shape=(SIZE, SIZE, 3))
    found = pictures.check()
    assert "channels (north 1, south 3)" in only_fatal(found).message
    assert found.channels is None
    assert pictures.check(color="grey").channels == 1


@pytest.fixture
def hospital(tmp_path: Path) -> Path:
    """Twelve cases of 6 slices, two of which hold a prostate."""
    root = tmp_path / "prostate" / "UCL"
    root.mkdir(parents=True)
    random = np.random.default_rng(0)
    for number in range(12):
        volume = random.integers(0, 900, (20, 24, 6)).astype(np.int16)
        mask = np.zeros(volume.shape, np.uint8)
        mask[5:10, 5:10, 2:4] = 1
        affine = np.diag([0.5, 0.5, 3, 1])
        nibabel.save(nibabel.Nifti1Image(volume, affine), root / f"Case{number:02}.nii.gz")
        if number == 4:
            affine = np.diag([0.5, 0.5, 4, 1])
        nibabel.save(nibabel.Nifti1Image(mask, affine), root / f"Case{number:02}_segmentation.nii.gz")
    return root.parent


def test_a_mask_whose_affine_differs_is_mentioned_also_from_the_cache(hospital: Path) -> None:
    for found in (check("prostate", hospital), check("prostate", hospital)):
        problem = only(found)
        assert (problem.file, problem.fatal) == ("UCL/Case04_segmentation.nii.gz", False)
        assert "its voxels measure 0.5 x 0.5 x 4 mm, the image's 0.5 x 0.5 x 3 mm" in problem.message
        assert problem.message.endswith("(its image: UCL/Case04.nii.gz)")


def test_a_mask_that_may_not_lie_on_its_image_can_be_refused(hospital: Path) -> None:
    problem = only_fatal(check("prostate", hospital, mask_grid="refuse"))
    assert problem.file == "UCL/Case04_segmentation.nii.gz"
    assert problem.message.endswith("(its image: UCL/Case04.nii.gz)")
    assert check("prostate", hospital, mask_grid="voxels").ok


def test_images_of_two_depths_are_mentioned_where_they_are_scaled_differently(pictures: Folder) -> None:
    pictures.fill("north", 20)
    pictures.fill("south", 20)
    for number in range(3):
        pixels = pictures.random.integers(0, 60000, (SIZE, SIZE)).astype(np.uint16)
        pictures.save(f"south-{number:02}.png", pixels)
    for found in (pictures.check(), pictures.check()):  # the second time from the cache
        problem = only(found)
        assert found.ok
        assert problem.message.startswith(
            "images differ in depth: 8-bit: 20 of north, 17 of south (such as north-00.png); "
            "not 8-bit: 3 of south (such as south-00.png): data.intensity = 'auto' scales the two differently"
        )
    assert not pictures.check(intensity="percentile").problems


def test_volumes_cut_along_another_axis_are_mentioned(hospital: Path) -> None:
    path = hospital / "UCL" / "Case04.nii.gz"
    for name in (path, path.with_name("Case04_segmentation.nii.gz")):
        image = nibabel.load(name)
        nibabel.save(nibabel.Nifti1Image(np.asarray(image.dataobj), np.diag([0.5, 0.5, 3, 1])[[2, 0, 1, 3]]), name)
    problem = only(check("prostate", hospital))
    assert not problem.fatal
    assert problem.message.startswith(
        "volumes differ in the plane of their slices: axial: 11 of UCL (such as UCL/Case00"
    )
    assert "sagittal: 1 of UCL (such as UCL/Case04.nii.gz)" in problem.message


def test_whole_volumes_may_lie_along_any_axis_and_tell_their_spacing(hospital: Path) -> None:
    for name in ("Case04.nii.gz", "Case04_segmentation.nii.gz"):
        image = nibabel.load(hospital / "UCL" / name)
        sagittal = np.diag([0.5, 0.5, 4, 1])[[2, 0, 1, 3]]
        nibabel.save(nibabel.Nifti1Image(np.asarray(image.dataobj), sagittal), hospital / "UCL" / name)
    found = check("prostate", hospital, dimensions=3)
    assert not any("plane of their slices" in problem.message for problem in found.problems)
    spacings = {row.split: row.spacing for row in found.rows}
    in_plane = ((0.5, 0.5), (0.5, 0.5))
    assert set(spacings.values()) == {((3.0, 3.0), *in_plane), ((3.0, 4.0), *in_plane)}
    assert "3–4×0.5" in printed(found)
    assert {row.spacing for row in check("prostate", hospital).rows} == {None}


def test_volumes_are_counted_by_slice(hospital: Path) -> None:
    everything = check("prostate", hospital).rows
    chosen = check("prostate", hospital, slices="with-prostate").rows
    assert [(row.split, row.files, row.patients, row.images) for row in everything] == [
        ("train", 8, 8, 48),
        ("val", 2, 2, 12),
        ("test", 2, 2, 12),
    ]
    assert [row.images for row in chosen] == [16, 4, 4]
    assert {row.slices for row in everything} == {(6, 6)}
    assert [row.without_foreground for row in everything] == [pytest.approx(4 / 6)] * 3
    assert [row.without_foreground for row in chosen] == [0] * 3


def test_nothing_that_can_be_used_is_a_problem_too(either: Folder) -> None:
    either.fill("north", 4)
    for row in either.rows:
        row["image"] = f"lost-{row['image']}"
    found = either.check()
    assert not found.ok
    assert not found.rows
    assert {problem.file for problem in found.problems} >= {f"manifest.csv line {line}" for line in range(2, 6)}
    assert "Training would fail" in printed(found)


def test_what_is_no_data_set_at_all_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"manifest\.csv"):
        check("classification", tmp_path)


# --- how it is told ----------------------------------------------------------------------------------------------


def test_json_is_complete(either: Folder) -> None:
    either.fill("north", 20)
    path = either.add("north", "broken", None if either.kind == "segmentation" else "a")
    path.write_text("nothing")
    found = either.check()
    told = to_json(found)
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert told.keys() == {
        *("ok", "images", "task", "folder", "kind", "sites", "classes", "channels", "limit", "rows", "problems")
    }
    assert (told["ok"], told["images"], told["sites"]) == (False, 20, ["north"])
    assert [row["split"] for row in told["rows"]] == ["train", "val", "test"]
    assert all(len(row["intensity"]) == 3 and len(row["height"]) == 2 for row in told["rows"])
    assert [problem["file"] for problem in told["problems"]] == ["broken.png"]
    assert told["problems"][0].keys() == {"file", "message", "fatal", "site"}


def test_the_last_line_says_whether_training_would_work(either: Folder) -> None:
    either.fill("north", 20)
    assert printed(either.check()).rstrip().endswith("Training would work: 1 site, 20 images.")
    (either.root / "north-03.png").write_text("nothing")
    text = printed(either.check())
    assert "✗ north-03.png: " in text
    assert " ".join(text.split()).endswith(
        "Training would fail: 1 problem must be fixed first (marked ✗); "
        "--write-clean-manifest FILE lists the images that can be used."
    )


def test_the_last_line_does_not_offer_a_manifest_that_was_written(either: Folder) -> None:
    either.fill("north", 20)
    (either.root / "north-03.png").write_text("nothing")
    parts = to_rich(either.check(), 100, wrote_manifest=True)
    assert str(parts[-1]) == "Training would fail: 1 problem must be fixed first (marked ✗)."


def test_the_table_fits_100_columns(masks: Folder) -> None:
    two = np.zeros((32, 48))
    two[:4], two[4:8] = 1, 2
    for number in range(20):
        masks.add("[a hospital] with a long name", f"{number}", two, shape=(32, 48), patient=f"{number}")
    text = printed(masks.check())
    assert max(map(len, text.splitlines())) <= 100
    assert "[a " in text
    for word in ("images", "files", "patients", "size", "foreground", "empty", "train", "32×48"):
        assert word in text
    assert "…" not in re.sub(r"\d…\d", "", text)  # nothing is cut off


@pytest.mark.parametrize("width", [40, 60, 80])
def test_where_the_table_has_no_room_its_columns_stand_below_one_another_and_none_is_cut(
    masks: Folder, width: int
) -> None:
    for number in range(20):
        masks.add(
            "東京大学医学部附属病院, pathology", f"{number}", np.ones((32, 48)), shape=(32, 48), patient=f"{number}"
        )
    found = masks.check()
    deep = tuple(replace(row, intensity=(4369, 40921.5, 64764.2)) for row in found.rows)
    text = printed(replace(found, rows=deep), width)
    assert max(map(cell_len, text.splitlines())) <= width
    assert text.count("pathology") > 1
    for word in ("images", "files", "patients", "size", "4369…64764", "40922", "foreground", "100.0 %", "empty"):
        assert word in text


def test_many_problems_of_one_kind_do_not_hide_the_others(either: Folder) -> None:
    either.fill("north", 20)
    either.rows += [either.rows[0] | {"image": f"missing-{number}.png"} for number in range(900)]
    either.rows[901]["site"] = "../elsewhere"
    found = either.check()
    assert len([problem for problem in found.problems if problem.fatal]) == 901
    text = printed(found)
    assert text.count("✗ manifest.csv") == 4
    assert "✗ manifest.csv line 22: image missing-0.png: no such file" in text
    assert "  … and 897 more like it, 900 in all (--json lists them)" in text
    assert "a site's name cannot hold / or" in text


# --- a manifest of the rest --------------------------------------------------------------------------------------


def clean(folder: Folder, path: Path, **settings: Any) -> list[Cells]:
    folder.check()
    overrides = {f"data.{name}": value for name, value in settings.items()} | {"data.size": SIZE}
    check_data(folder.kind, folder.root, preset="smoke", settings=overrides, clean_manifest=path)
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_clean_manifest_holds_the_rows_that_can_be_used(either: Folder, tmp_path: Path) -> None:
    either.fill("north", 20, patient="p, 1")
    either.fill("south, too", 20)
    (either.root / "north-03.png").write_text("nothing")
    either.row("north-07")["image"] = "missing.png"
    rows = clean(either, tmp_path / "clean.csv")
    expected = [row for row in either.rows if row["image"] not in ("north-03.png", "missing.png")]
    truth = COLUMNS[either.kind]
    assert rows == [
        {"site": row["site"], "split": "", "patient": row.get("patient", ""), "image": row["image"], truth: row[truth]}
        for row in sorted(expected, key=lambda row: (row["site"], row["image"]))
    ]
    either.rows = [row | {"patient": ""} for row in rows]  # one patient cannot be divided
    assert either.check().ok


def test_a_clean_manifest_leaves_out_what_no_class_has(pictures: Folder, tmp_path: Path) -> None:
    pictures.fill("north", 20)
    pictures.row("north-00")["label"] = "z"
    assert "north-00.png" not in [row["image"] for row in clean(pictures, tmp_path / "clean.csv", classes=["a", "b"])]


def test_a_clean_manifest_never_replaces_the_one_that_was_checked(pictures: Folder) -> None:
    pictures.fill("north", 20)
    with pytest.raises(UsageError, match="this is the manifest that was checked"):
        clean(pictures, pictures.root / "manifest.csv")


def test_a_public_set_gets_a_manifest_too_unless_one_cannot_say_what_it_needs(tmp_path: Path, hospital: Path) -> None:
    check_data("prostate", hospital, preset="smoke", clean_manifest=tmp_path / "manifest.csv")
    shutil.copy(tmp_path / "manifest.csv", hospital / "manifest.csv")
    found = check("segmentation", hospital, resize=True)
    assert {row.site for row in found.rows} == {"UCL"}
    assert sum(row.files for row in found.rows) == 12
    swapped = Sample(site="a", image="a.tif", mask="a.xml", reversed_channels=True)
    decoded = SimpleNamespace(samples=[swapped])
    images = SimpleNamespace(
        all_sites=["a"], decoded=lambda site: decoded, listing=SimpleNamespace(folder=hospital), kind="segmentation"
    )
    with pytest.raises(UsageError, match="red and blue are swapped"):
        write_clean_manifest(tmp_path / "other.csv", cast(Any, images), found)


# --- real data ---------------------------------------------------------------------------------------------------

needs = pytest.mark.skipif(not REAL.is_dir(), reason=f"the real images are not at hand: {REAL}")


@needs
def test_real_tiles() -> None:
    found = check("segmentation", REAL / "nuclei-tiles", size=128)
    assert found.ok
    images = {(row.site, row.split): row.images for row in found.rows}
    sites = [f"MoNuSAC-{organ}" for organ in ("breast", "kidney", "lung", "prostate")] + ["MoNuSeg", "TNBC"]
    expected = {(site, split): count for site in sites for split, count in (("train", 80), ("val", 20), ("test", 40))}
    assert images == expected | {("TNBC", "train"): 78}
    assert not found.problems


@needs
def test_real_files_in_their_own_layouts() -> None:
    found = check("nuclei", REAL / "nuclei-original-layouts", size=128)
    assert not found.ok  # of MoNuSAC there are 7 images of 6 patients in 4 organs
    assert all("cannot be split" in problem.message for problem in found.problems if problem.fatal)
    files = {site: sum(row.files for row in found.rows if row.site == site) for site in found.sites}
    assert files.pop("TNBC") == 50
    assert sum(files.values()) == 7
