"""The images of a folder in every layout, and the sites that are chosen."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from folders import (
    blob,
    broken,
    camelyon17_folder,
    classification_folder,
    nuclei_folder,
    opened,
    picture,
    prostate_folder,
    save_volume,
    segmentation_folder,
    write_manifest,
)
from harmofl.data.folder import ImageFolder
from harmofl.data.inspection import check_for_training, find_image_problems
from harmofl.errors import UsageError

REAL = Path(__file__).parents[2] / "../shared/data"
real_data = pytest.mark.skipif(not REAL.is_dir(), reason="the real images are not beside this checkout")


def found(images: ImageFolder) -> tuple[list[str], int, list[str]]:
    facts = images.facts()
    return list(facts.sites), facts.channels, list(facts.classes)


def counts(images: ImageFolder) -> dict[str, list[int]]:
    return {site: [len(part) for part in images.parts(site)] for site in images.sites}


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
def test_the_real_original_files_load() -> None:
    folder = REAL / "nuclei-original-layouts"
    images = opened("nuclei", folder, preset="small", split_by="image", sites=["MoNuSAC-breast", "TNBC"], limit=2000)
    assert not find_image_problems(images)
    masks = images.whole("MoNuSAC-breast").load(torch.arange(5)).targets
    assert 0.02 < masks.float().mean() < 0.6
    assert len(images.whole("TNBC")) == 50 * 16  # 512 pixels: 4 × 4 tiles of 128


def test_some_sites_take_part_and_one_may_be_held_out(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path, sites=4)
    images = opened("segmentation", folder, sites=["site-0", "site-2"], hold_out_site="site-3")
    assert images.sites == ["site-0", "site-2"]
    assert len(images.whole("site-3")) == 10 * 4  # the limit is for those who train
    with pytest.raises(UsageError, match=r"unknown site 'site-9'; did you mean 'site-"):
        opened("segmentation", folder, sites=["site-9"])


def test_one_site_alone_is_what_it_is_if_no_other_was_listed(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path)
    (folder / "site-1" / "p0-0.png").unlink()
    one = opened("segmentation", folder).only("site-0")
    check_for_training(one)
    assert one.facts() == opened("segmentation", folder, sites=["site-0"]).facts()


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
