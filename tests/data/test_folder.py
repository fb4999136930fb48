import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from folders import (
    blob,
    camelyon17_folder,
    classification_folder,
    dicom_slice,
    nuclei_folder,
    picture,
    prostate_folder,
    save_volume,
    segmentation_folder,
    volume,
    write_manifest,
)
from harmofl import registry
from harmofl.data.division import draw_stratified
from harmofl.data.folder import ImageFolder
from harmofl.data.formats import read_scan
from harmofl.data.images import LabelledImages, seed_of
from harmofl.data.inspection import check_for_training, find_image_problems, find_problems
from harmofl.data.samples import Problem
from harmofl.errors import UsageError
from harmofl.events import Event, ImagesRead
from harmofl.settings import resolve
from runs import environment

REAL = Path(__file__).parents[2] / "../shared/data"
real_data = pytest.mark.skipif(not REAL.is_dir(), reason="the real images are not beside this checkout")


def opened(task: str, folder: Path, preset: str = "smoke", **data: Any) -> ImageFolder:
    overrides = {"data.folder": str(folder)} | {f"data.{name}": value for name, value in data.items()}
    settings, _ = resolve(task, "fedavg", preset, overrides=overrides)
    return registry.tasks.find(task).open_folder(settings.data)


def found(images: ImageFolder) -> tuple[list[str], int, list[str]]:
    facts = images.facts()
    return list(facts.sites), facts.channels, list(facts.classes)


def counts(images: ImageFolder) -> dict[str, list[int]]:
    return {site: [len(part) for part in images.parts(site)] for site in images.sites}


# --- each layout --------------------------------------------------------------------------------------------------


def test_camelyon17_has_a_site_per_center_split_by_patient(tmp_path: Path) -> None:
    images = opened("histology", camelyon17_folder(tmp_path), preset="paper")
    check_for_training(images)
    assert found(images) == (["center-0", "center-1"], 3, ["normal", "tumor"])
    # Four patients of six patches each: one to test, one to val, two to train.
    assert counts(images) == {"center-0": [12, 6, 6], "center-1": [12, 6, 6]}
    groups = [set(part.groups.tolist()) for part in images.parts("center-0")]
    assert not groups[0] & groups[1] | groups[1] & groups[2] | groups[0] & groups[2]
    batch = images.whole("center-1").load(torch.arange(24))
    assert batch.images.shape == (24, 3, 96, 96)
    # Every other patch holds tumor, and is brighter.
    assert batch.targets.bincount().tolist() == [12, 12]
    brightness = batch.images.mean(dim=(1, 2, 3))
    assert brightness[batch.targets == 1].min() > brightness[batch.targets == 0].max()


def test_camelyon17_training_images_are_cut_to_the_smallest_site_each_class_alike(tmp_path: Path) -> None:
    camelyon17_folder(tmp_path / "small", centers=1, patches=6)
    folder = camelyon17_folder(tmp_path / "large", centers=2, patches=12)
    lines = (folder / "metadata.csv").read_text().splitlines()
    # Of the first center keep half of the patches.
    kept = [line for line in lines if not (line.endswith(",0,0") and int(line.split(",")[3]) >= 6 * 96)]
    (folder / "metadata.csv").write_text("\n".join(kept) + "\n")
    images = opened("histology", folder, preset="paper")
    assert counts(images) == {"center-0": [12, 6, 6], "center-1": [12, 12, 12]}
    labels = images.parts("center-1")[0].labels
    assert labels is not None
    assert labels.bincount().tolist() == [6, 6]
    uncut = opened("histology", folder, preset="paper", site_sizes="all")
    assert counts(uncut)["center-1"] == [24, 12, 12]


def test_nuclei_outlines_become_tiles_with_masks_and_test_folders_are_kept(tmp_path: Path) -> None:
    images = opened("nuclei", nuclei_folder(tmp_path), preset="small", size=64)
    check_for_training(images)
    assert found(images) == (["MoNuSeg", "TNBC"], 3, ["background", "nucleus"])
    # 70 pixels make two tiles of 64 each way. MoNuSeg: three training patients, of which one to val; TNBC: five.
    assert counts(images) == {"MoNuSeg": [8, 4, 4], "TNBC": [12, 4, 4]}
    mask = images.whole("MoNuSeg").load(torch.tensor([0])).targets[0]
    assert mask[10:30, 10:30].all()
    assert mask[40:60, 40:60].all()
    assert mask.sum() == 2 * 20 * 20


def test_nuclei_are_resized_in_the_papers_way(tmp_path: Path) -> None:
    images = opened("nuclei", nuclei_folder(tmp_path), preset="paper", size=35)
    assert counts(images)["MoNuSeg"] == [2, 1, 1]
    mask = images.whole("MoNuSeg").load(torch.tensor([0])).targets[0]
    assert mask[5:15, 5:15].all()
    assert mask.sum() == 2 * 10 * 10


def test_prostate_slices_come_with_their_neighbours(tmp_path: Path) -> None:
    images = opened("prostate", prostate_folder(tmp_path), preset="small", size=36, resize=False)
    check_for_training(images)
    assert found(images) == (["BIDMC", "HK"], 3, ["background", "prostate"])
    # Four cases of five or six slices, two tiles each (40 pixels wide): a case to val, one to test.
    assert sum(counts(images)["HK"]) == (5 + 6 + 5 + 6) * 2
    case = images.whole("BIDMC").load(torch.arange(10)).images  # five slices × two tiles
    middles = case[::2, 1]
    assert torch.equal(case[2, 0], middles[0])
    assert torch.equal(case[2, 2], middles[2])
    assert torch.equal(case[0, 0], middles[0])  # the end slices are their own neighbours
    assert torch.equal(case[8, 2], middles[4])


def test_prostate_papers_slices_are_those_with_prostate(tmp_path: Path) -> None:
    everything = opened("prostate", prostate_folder(tmp_path), preset="small", size=40)
    chosen = opened("prostate", tmp_path, preset="paper", size=40)
    assert len(everything.whole("HK")) == 22
    assert len(chosen.whole("HK")) == 22 - 4 * 2  # the first and the last slice of each case hold none
    assert chosen.whole("HK").load(torch.arange(14)).targets.flatten(1).any(dim=1).all()
    # Neighbours are the volume's, also where they hold no prostate.
    first = chosen.whole("HK").load(torch.tensor([0])).images[0]
    assert torch.equal(first[0], everything.whole("HK").load(torch.tensor([0])).images[0, 1])


def test_sites_that_store_their_volumes_otherwise_are_turned_alike(tmp_path: Path) -> None:
    pixels = np.zeros((16, 16, 3), dtype=np.float32)
    pixels[:4, :4] = 100  # left and front, or right and back: the affine says which
    for site, sign in (("A", 1), ("B", -1)):
        array = pixels if sign > 0 else pixels[::-1, ::-1]
        for case in range(3):
            affine = np.diag([sign * 0.5, sign * 0.5, 3.0, 1.0])
            save_volume(tmp_path / site / f"Case{case}.nii.gz", np.ascontiguousarray(array) + case, affine)
            mask = (array > 0).astype(np.uint8)
            save_volume(tmp_path / site / f"Case{case}_segmentation.nii.gz", np.ascontiguousarray(mask), affine)
    images = opened("prostate", tmp_path, size=16)
    first, second = (images.whole(site).load(torch.arange(3)) for site in ("A", "B"))
    assert torch.equal(first.images, second.images)
    assert torch.equal(first.targets, second.targets)


def test_own_pictures_without_patients_are_split_one_by_one(tmp_path: Path) -> None:
    images = opened("classification", classification_folder(tmp_path, images=10))
    check_for_training(images)
    assert found(images) == (["site-0", "site-1"], 1, ["healthy", "ill"])
    assert counts(images) == {"site-0": [6, 2, 2], "site-1": [6, 2, 2]}


def test_a_manifests_own_split_is_kept_and_what_it_lacks_is_drawn_from_training(tmp_path: Path) -> None:
    rows = []
    for number in range(10):
        picture(tmp_path / f"{number}.png", blob(20, number, 1)[0])
        split = "test" if number < 3 else "train"
        rows.append({"site": "A", "image": f"{number}.png", "label": str(number % 2), "split": split})
    images = opened("classification", write_manifest(tmp_path, rows))
    train, val, test = images.parts("A")
    assert (len(train), len(val), len(test)) == (6, 1, 3)
    assert test.groups.tolist() == [0, 1, 2]


@pytest.mark.parametrize(("dtype", "channels"), [(np.uint8, 1), (np.uint16, 1), (np.float32, 1), (np.uint16, 5)])
def test_own_images_may_have_any_depth_and_number_of_channels(tmp_path: Path, dtype: type, channels: int) -> None:
    import tifffile

    rows = []
    for number in range(6):
        shape = (20 + number, 24, channels) if channels > 1 else (20 + number, 24)
        pixels = np.random.default_rng(number).uniform(0, 200, shape).astype(dtype)
        mask = (pixels.reshape(20 + number, 24, -1)[..., 0] > 100).astype(np.uint8) * (1 + number % 2)
        tifffile.imwrite(tmp_path / f"{number}.tif", pixels, photometric="minisblack", planarconfig="contig")
        picture(tmp_path / f"{number}-mask.png", mask)
        rows.append({"site": "A", "image": f"{number}.tif", "mask": f"{number}-mask.png"})
    images = opened("segmentation", write_manifest(tmp_path, rows), size=16)
    check_for_training(images)
    assert found(images) == (["A"], channels, ["0", "1", "2"])
    batch = images.whole("A").load(torch.arange(4))
    assert batch.images.shape == (4, channels, 16, 16)
    assert 0 <= batch.images.min() < batch.images.max() <= 1


@real_data
def test_the_real_tiles_load_with_their_own_split() -> None:
    images = opened("segmentation", REAL / "nuclei-tiles", preset="small")
    check_for_training(images)
    expected = {site: [80 if site != "TNBC" else 78, 20, 40] for site in images.sites}
    assert (len(images.sites), counts(images)) == (6, expected)
    assert images.facts().classes == ("0", "255")


@real_data
def test_the_real_tiles_keep_the_names_that_kept_results_know_them_by() -> None:
    images = opened("segmentation", REAL / "nuclei-tiles", size=128, limit=0)
    facts = images.facts()
    assert list(facts.fingerprints) == [
        "933b8370c70c258ac54cee767fa72a53",
        "b352fa0e04273be6e2dd4ad8ea27dab1",
        "5f1eca6aaf6548d5b5d8e582a43f0cc4",
        "a65bc79f31e5dffec777f074ef624fe7",
        "fa0a2adaf32b47175bbce080259ee162",
        "2677ac287851c19accce1698a5a83640",
    ]
    assert list(facts.annotations) == [
        "d80aca12f4ea0becc16c394df534b080",
        "904b422b467b2f2cbe2f3d5b7aa794bb",
        "94ef3a1803eba03f6198f9e4883fefff",
        "318b2976842551589b153b5d241a2d25",
        "7fb827bb34a314b9760c99c2a83e590f",
        "1bd9a03588bb8627d166b11874f8b9bc",
    ]
    breast = images.decoded("MoNuSAC-breast")
    assert images.recipe.key(breast.samples, breast.prints) == "0e2d0f24a56cf1da75c218562db59d79"


@real_data
def test_the_real_original_files_load() -> None:
    folder = REAL / "nuclei-original-layouts"
    images = opened("nuclei", folder, preset="small", split_by="image", sites=["MoNuSAC-breast", "TNBC"], limit=2000)
    assert not find_image_problems(images)
    masks = images.whole("MoNuSAC-breast").load(torch.arange(5)).targets
    assert 0.02 < masks.float().mean() < 0.6
    assert len(images.whole("TNBC")) == 50 * 16  # 512 pixels: 4 × 4 tiles of 128


def test_readers_can_start_in_many_threads_of_a_new_process(tmp_path: Path) -> None:
    """Their libraries are imported late, and a module that two threads import at once may be seen half made."""
    folder = prostate_folder(tmp_path, cases=12, shape=(20, 20, 3))
    script = (
        "from harmofl.settings import resolve; from harmofl import registry; import sys;"
        "from harmofl.data.inspection import check_for_training;"
        "data = resolve('prostate', 'fedavg', 'smoke', overrides={'data.folder': sys.argv[1]})[0].data;"
        "check_for_training(registry.tasks.find('prostate').open_folder(data))"
    )
    for _ in range(3):
        shutil.rmtree(os.environ["HARMOFL_CACHE"])
        done = subprocess.run(
            [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, env=environment()
        )
        assert done.returncode == 0, done.stderr


# --- choices ------------------------------------------------------------------------------------------------------


def test_some_sites_take_part_and_one_may_be_held_out(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path, sites=4)
    images = opened("segmentation", folder, sites=["site-0", "site-2"], hold_out_site="site-3")
    assert images.sites == ["site-0", "site-2"]
    assert len(images.whole("site-3")) == 10 * 4  # the limit is for those who train
    with pytest.raises(UsageError, match=r"unknown site 'site-9'; did you mean 'site-"):
        opened("segmentation", folder, sites=["site-9"])


def test_what_is_wrong_with_a_site_that_takes_no_part_does_not_matter(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path / "own", sites=4)
    (folder / "site-1/p0-0.png").unlink()
    shutil.rmtree(folder / "site-3")
    assert "21 problems: manifest.csv line 12: image site-1/p0-0.png" in broken(folder)
    assert "1 problem: manifest.csv line 12: image" in broken(folder, sites=["site-0", "site-1"])
    assert "1 problem: manifest.csv line 12: image" in broken(folder, sites=["site-0"], hold_out_site="site-1")
    check_for_training(opened("segmentation", folder, sites=["site-0", "site-2"]))


MOVED = [
    "Doe, Jane,site-0,site-0/0.png,healthy,",  # a comma too many, and so "Jane" for a site
    "Doe, Jane,site-0,site-0/0.png,healthy",
    "Doe, site-1,site-0,site-0/0.png,healthy,",  # to the name of another site
    "p0;site-0;site-0/0.png;healthy;",
    '"p0","Jane",site-0,site-0/0.png,healthy',
]


@pytest.mark.parametrize("row", MOVED)
def test_rows_whose_values_moved_to_other_columns_are_never_left_out_silently(tmp_path: Path, row: str) -> None:
    folder = classification_folder(tmp_path)
    lines = (folder / "manifest.csv").read_text().splitlines()
    lines = ["patient,site,image,label,comment", *(f",{line}," for line in lines[1:])]
    lines[1] = row
    (folder / "manifest.csv").write_text("\n".join(lines))
    shutil.rmtree(folder / "site-1")
    assert "manifest.csv line 2: " in broken(folder, "classification", sites=["site-0"])
    lines[1] = ",site-0,site-0/0.png,healthy,"
    (folder / "manifest.csv").write_text("\n".join(lines))
    check_for_training(opened("classification", folder, sites=["site-0"]))  # not one image of site-1 is there


def test_what_is_wrong_with_another_site_does_not_matter_in_the_papers_sets(tmp_path: Path) -> None:
    prostate = prostate_folder(tmp_path / "prostate")
    (prostate / "HK/Case01.nii.gz").unlink()
    assert "HK/Case01_Segmentation.nii.gz: belongs to no image" in broken(prostate, "prostate", size=40)
    check_for_training(opened("prostate", prostate, sites=["BIDMC"], size=40))
    nuclei = nuclei_folder(tmp_path / "nuclei")
    (nuclei / "MoNuSegTestData/TCGA-XX-0003-01Z.xml").unlink()
    (nuclei / "MoNuSAC_images_and_annotations/TCGA-EV-0001").mkdir(parents=True)
    (nuclei / "MoNuSAC_images_and_annotations/TCGA-EV-0001/TCGA-EV-0001-01Z.svs").touch()
    assert "2 problems: " in broken(nuclei, "nuclei")
    check_for_training(opened("nuclei", nuclei, sites=["TNBC"]))
    centers = camelyon17_folder(tmp_path / "camelyon17")
    next((centers / "patches/patient_020_node_1").iterdir()).unlink()
    for _ in range(2):  # listed, and from what was kept
        assert "listed in metadata.csv but not there" in broken(centers, "histology")
        check_for_training(opened("histology", centers, sites=["center-0"]))


def test_a_limit_draws_the_same_images_every_time(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path)
    first, second = (opened("segmentation", folder, limit=7).whole("site-0") for _ in range(2))
    other = opened("segmentation", folder, limit=7, seed=1).whole("site-0")
    assert len(first) == 7
    pixels = [each.load(torch.arange(7)).images for each in (first, second, other)]
    assert torch.equal(pixels[0], pixels[1])
    assert not torch.equal(pixels[0], pixels[2])


def test_a_limit_in_classification_decodes_no_more_than_it_takes(tmp_path: Path) -> None:
    images = opened("classification", classification_folder(tmp_path, images=20), limit=6)
    entry = images.decoded("site-0").entry
    assert entry is not None
    assert len(entry.planes) == 6


def test_a_limit_draws_whole_volumes(tmp_path: Path) -> None:
    folder = prostate_folder(tmp_path, cases=6)
    images = opened("prostate", folder, limit=22, size=40)
    chosen = images.whole("HK")
    assert 15 <= len(chosen) <= 22
    counts = chosen.groups.unique(return_counts=True)[1].tolist()
    assert set(counts) <= {5, 6}  # every slice of the cases that were drawn
    assert len(opened("prostate", folder, limit=3, size=40).whole("HK").groups.unique()) == 3


def volumes_folder(folder: Path, patients: list[str], splits: list[str]) -> Path:
    """A site of volumes of five slices each."""
    rows = []
    for number, (patient, split) in enumerate(zip(patients, splits, strict=True)):
        pixels, mask = volume((16, 16, 5), number)
        image, labels = (f"{number:02}{part}.nii" for part in ("", "-mask"))
        save_volume(folder / image, pixels, np.eye(4))
        save_volume(folder / labels, mask, np.eye(4))
        rows.append({"site": "A", "patient": patient, "split": split, "image": image, "mask": labels})
    return write_manifest(folder, rows)


@pytest.mark.parametrize("limit", [1, 15, 22, 30])
def test_a_limit_draws_volumes_of_as_many_patients_as_it_can(tmp_path: Path, limit: int) -> None:
    folder = volumes_folder(tmp_path, list("ppppppppqqrs"), [""] * 12)
    for seed in range(5):
        images = opened("segmentation", folder, limit=limit, seed=seed, size=16)
        check_for_training(images)
        numbers = images.whole("A").groups.unique(return_counts=True)[1].tolist()
        assert len(numbers) == min(4, max(3, limit // 5))
        assert sum(numbers) == 5 * max(3, limit // 5)


@pytest.mark.parametrize(
    ("splits", "expected"),
    [
        (["train"] * 9 + ["val", "test", "test"], [{"train"}, {"val"}, {"test"}]),
        (["train"] * 2 + ["test"] * 10, [{"train"}, {"train"}, {"test"}]),
        ([""] * 2 + ["val"] * 10, [{""}, {"val"}, {""}]),
    ],
)
@pytest.mark.parametrize("limit", [1, 22])
def test_a_limit_draws_volumes_of_every_split_that_is_named(
    tmp_path: Path, splits: list[str], expected: list[set[str]], limit: int
) -> None:
    folder = volumes_folder(tmp_path, [f"p{number}" for number in range(12)], splits)
    for seed in range(5):
        images = opened("segmentation", folder, limit=limit, seed=seed, size=16)
        check_for_training(images)
        assert [{splits[number] for number in part.groups.tolist()} for part in images.parts("A")] == expected


def test_a_limit_draws_volumes_as_chance_has_them_where_each_is_a_patient(tmp_path: Path) -> None:
    folder = volumes_folder(tmp_path, [f"p{number}" for number in range(12)], [""] * 12)
    for limit, count in ((1, 3), (22, 4)):
        images = opened("segmentation", folder, limit=limit, size=16).whole("A")
        generator = torch.Generator().manual_seed(seed_of(0, "A", "limit"))
        expected = torch.randperm(12, generator=generator)[:count]
        assert images.groups.unique().tolist() == expected.sort().values.tolist()


def test_a_volume_that_follows_its_patient_does_so_under_a_limit(tmp_path: Path) -> None:
    folder = volumes_folder(tmp_path, list("pppppppqrs"), ["test"] + [""] * 9)
    for seed in range(5):
        _, _, test = opened("segmentation", folder, limit=20, seed=seed, size=16).parts("A")
        assert test.groups.unique().tolist() == [0]


def test_stratified_draws_keep_the_classes_in_proportion() -> None:
    labels = torch.tensor([0] * 30 + [1] * 10)
    images = LabelledImages(torch.zeros(40, 1, 1, 1), labels, torch.arange(40))
    for wanted in (4, 8, 20, 40):
        assert labels[draw_stratified(images, wanted, seed=1)].bincount().tolist() == [3 * wanted // 4, wanted // 4]


def test_unassigned_images_follow_their_patient(tmp_path: Path) -> None:
    rows = []
    for number in range(12):
        picture(tmp_path / f"{number}.png", blob(20, number, 1)[0])
        row = {"site": "A", "image": f"{number}.png", "label": str(number % 2), "patient": f"p{number // 2}"}
        rows.append(row | {"split": "test" if number == 0 else ""})
    train, val, test = (
        set(part.groups.tolist()) for part in opened("classification", write_manifest(tmp_path, rows)).parts("A")
    )
    assert test == {0}
    assert not train & val | train & test | val & test


def test_the_fingerprint_tells_the_images_and_their_split(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path)
    first = opened("segmentation", folder).fingerprint("site-0")
    assert opened("segmentation", folder).fingerprint("site-0") == first
    assert opened("segmentation", folder, seed=1).fingerprint("site-0") != first
    assert opened("segmentation", folder, limit=9).fingerprint("site-0") != first
    picture(folder / "site-0/p0-0.png", blob(40, 99)[0])
    assert opened("segmentation", folder).fingerprint("site-0") != first


@pytest.mark.parametrize("kind", ["classification", "segmentation"])
def test_masks_and_labels_are_told_apart_from_the_images(tmp_path: Path, kind: str) -> None:
    folder = classification_folder(tmp_path) if kind == "classification" else segmentation_folder(tmp_path)
    first = opened(kind, folder, hold_out_site="site-1").facts()
    assert opened(kind, folder, hold_out_site="site-1").facts() == first
    if kind == "classification":
        manifest = folder / "manifest.csv"
        manifest.write_text(manifest.read_text().replace("site-1/2.png,healthy", "site-1/2.png,ill"))
    else:
        picture(folder / "site-1/p0-0-mask.png", blob(40, 99)[1])
    then = opened(kind, folder, hold_out_site="site-1").facts()
    assert [one == other for one, other in zip(first.annotations, then.annotations, strict=True)] == [True, False]
    assert replace(then, annotations=first.annotations) == first


def test_masks_are_read_once_to_tell_them_apart(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path)
    settings, _ = resolve("segmentation", "fedavg", "smoke", overrides={"data.folder": str(folder)})
    read = []
    for _ in range(2):
        seen: list[Event] = []
        registry.tasks.find("segmentation").open_folder(settings.data, seen.append).facts()
        read.append(len([event for event in seen if isinstance(event, ImagesRead) and event.doing == "reading"]))
    assert read == [2 * 10 * 2, 0]  # images and masks of two sites


def test_the_fingerprint_under_another_name_is_the_one_that_the_site_had(tmp_path: Path) -> None:
    for kind, make in (("classification", classification_folder), ("segmentation", segmentation_folder)):
        folder = make(tmp_path / kind)
        trained = opened(kind, folder, limit=6).fingerprint("site-0")
        manifest = folder / "manifest.csv"
        manifest.write_text(manifest.read_text().replace("\nsite-0,", "\nclinic,"))
        settings, _ = resolve(kind, "fedavg", "smoke", overrides={"data.folder": str(folder), "data.limit": 6})
        images = registry.tasks.find(kind).open_folder(settings.data, limited=["site-0", "site-1"])
        assert images.fingerprint("clinic") != trained
        assert images.fingerprint("clinic", trained_as="site-0") == trained


# --- the cache ----------------------------------------------------------------------------------------------------


def decoded_sites(folder: Path, **data: Any) -> list[str]:
    """The sites whose images had to be decoded."""
    settings, _ = resolve("segmentation", "fedavg", "smoke", overrides={"data.folder": str(folder)} | data)
    seen: list[Event] = []
    check_for_training(registry.tasks.find("segmentation").open_folder(settings.data, seen.append))
    return sorted({event.site for event in seen if isinstance(event, ImagesRead) and event.doing == "decoding"})


def test_a_second_start_decodes_nothing_and_a_changed_file_its_site_only(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path / "data")
    assert decoded_sites(folder) == ["site-0", "site-1"]
    assert decoded_sites(folder) == []
    folder = folder.rename(tmp_path / "moved")
    assert decoded_sites(folder) == []  # found by content, wherever it lies
    assert decoded_sites(folder, **{"data.size": 16}) == ["site-0", "site-1"]
    picture(folder / "site-1/p0-0.png", blob(40, 99)[0])
    assert decoded_sites(folder) == ["site-1"]


def test_a_kept_listing_is_for_its_owners_eyes_only_in_a_folder_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o755)
    images = opened("histology", camelyon17_folder(tmp_path / "data"), cache=str(tmp_path / "cache"))
    assert list((tmp_path / "cache" / "listings").rglob("*.jsonl"))
    check_for_training(images)
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "cache").iterdir())


def test_images_stay_on_disk_until_they_are_asked_for(tmp_path: Path) -> None:
    images = opened("segmentation", segmentation_folder(tmp_path)).whole("site-0")
    assert isinstance(images.planes, np.memmap)  # type: ignore[attr-defined]
    assert images.nbytes == 20 * 4 * 3 * 32 * 32 * 4 * 30 // 80  # the smoke preset's limit of 30 tiles, as floats


# --- problems -----------------------------------------------------------------------------------------------------


def broken(folder: Path, task: str = "segmentation", **data: Any) -> str:
    with pytest.raises(UsageError) as caught:
        check_for_training(opened(task, folder, **data))
    return str(caught.value)


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
    assert "site-0/p1-0.png: 1 channels, where site-0/p0-0.png has 3: data.color = 'rgb' or 'grey'" in message
    check_for_training(opened("segmentation", folder, color="rgb"))
    check_for_training(opened("segmentation", folder, color="grey"))


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
