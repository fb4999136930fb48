"""TNBC: nuclei of triple-negative breast cancer, one site.

Input: 512×512 RGB regions at 40×, `Slide_NN/NN_k.png`: 50 of eleven patients.
Label: a mask of nuclei of the same name in `GT_NN/`.
Sites: TNBC. The set names no split.
Licence: CC BY 4.0. From https://zenodo.org/records/1175282 (`TNBC_NucleiSegmentation`).
"""

from __future__ import annotations

import re

from harmofl.data.layouts.pairs import by_stem, pair
from harmofl.data.layouts.tree import Tree, join, printable
from harmofl.data.samples import Problem, Sample, of_site

SITE = "TNBC"
SUFFIX = ".png"
PATIENTS = 11


def find(tree: Tree, folder: str) -> tuple[dict[str, str], dict[str, str]] | None:
    """Return the folders of images and of masks by patient; None if there is no pair of them."""
    slides, masks = _numbered(tree, folder, "slide"), _numbered(tree, folder, "gt")
    return (slides, masks) if slides.keys() & masks.keys() else None


def read_set(tree: Tree, slides: dict[str, str], masks: dict[str, str]) -> tuple[list[Sample], list[Problem]]:
    """List the images of every slide folder."""
    samples: list[Sample] = []
    problems: list[Problem] = []
    for patient in sorted(slides.keys() | masks.keys()):
        images = by_stem(tree, slides[patient], SUFFIX) if patient in slides else {}
        truths = by_stem(tree, masks[patient], SUFFIX) if patient in masks else {}
        pairs = pair(tree, images, truths, f"mask of that name in GT_{patient}")
        problems += pairs.problems
        if int(patient) > PATIENTS and pairs.files:
            problems.append(Problem(printable(slides[patient]), _foreign(), fatal=False))
        samples += [Sample(site=SITE, image=image, mask=mask, patient=patient) for image, mask in pairs.files.values()]
    return samples, of_site(SITE, problems)


def _numbered(tree: Tree, folder: str, kind: str) -> dict[str, str]:
    pattern = re.compile(rf"{kind}[ _-]?([0-9]+)", re.IGNORECASE)
    matches = ((name, pattern.fullmatch(name)) for name in tree.folders(folder))
    return {match[1]: join(folder, name) for name, match in matches if match}


def _foreign() -> str:
    return (
        f"TNBC has {PATIENTS} patients: check that this slide is breast, as archives with brain tissue number on; "
        "it is taken as TNBC"
    )
