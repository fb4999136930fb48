"""MoNuSeg2018: nuclei of seven and more organs, one site.

Input: 1000×1000 RGB regions at 40× of TCGA slides, `Tissue Images/*.tif` in `MoNuSeg 2018 Training Data`; the test
images side by side with their outlines in `MoNuSegTestData`. Either arrangement is read in both.
Label: the outlines of all nuclei (Aperio XML), `Annotations/*.xml`.
Sites: MoNuSeg.
Licence: CC BY-NC-SA 4.0. From https://monuseg.grand-challenge.org.
"""

from __future__ import annotations

import re

from harmofl.data.layouts.monusac import tcga_patient
from harmofl.data.layouts.pairs import by_stem, pair
from harmofl.data.layouts.tree import Tree, join
from harmofl.data.samples import Problem, Sample, of_site

SITE = "MoNuSeg"
IMAGES, OUTLINES = "tissueimages", "annotations"


def plain(name: str) -> str:
    """Return a folder's name as archives and people vary it: case, spaces, underscores and hyphens do not count."""
    return re.sub(r"[ _-]", "", name).lower()


def find(tree: Tree, folder: str) -> tuple[dict[str, str], dict[str, str]] | None:
    """Return the images and outlines of a folder, by stem; None if it is no folder of MoNuSeg's."""
    inner = {plain(name): join(folder, name) for name in tree.folders(folder)}
    if IMAGES in inner:
        outlines = by_stem(tree, inner[OUTLINES], ".xml") if OUTLINES in inner else {}
        return by_stem(tree, inner[IMAGES], ".tif"), outlines
    names = _names(tree, folder)
    if not any("monuseg" in name for name in names) or names[-1] in (IMAGES, OUTLINES):
        return None
    images, outlines = by_stem(tree, folder, ".tif"), by_stem(tree, folder, ".xml")
    belongs = images if "monuseg" in names[-1] else images.keys() & outlines.keys()
    return (images, outlines) if belongs else None


def split_of(tree: Tree, folder: str) -> str:
    """Return test if the folder, or the nearest above it that says either, is one of test images."""
    for name in reversed(_names(tree, folder)):
        if "train" in name:
            return "train"
        if re.search(r"(?<!la)test", name):  # but not "latest"
            return "test"
    return "train"


def read_set(
    tree: Tree, images: dict[str, str], outlines: dict[str, str], split: str
) -> tuple[list[Sample], list[Problem]]:
    """List the images of a training or test folder."""
    pairs = pair(tree, images, outlines, "outlines (.xml of that name)")
    samples = [
        Sample(site=SITE, image=image, mask=mask, patient=tcga_patient(stem) or stem, split=split)
        for stem, (image, mask) in pairs.files.items()
    ]
    return samples, of_site(SITE, pairs.problems)


def _names(tree: Tree, folder: str) -> list[str]:
    """The plain names from the data folder down; its own counts only where it speaks of the set."""
    own = plain(tree.name)
    names = [plain(name) for name in folder.split("/") if name]
    return [own, *names] if "monuseg" in own else names
