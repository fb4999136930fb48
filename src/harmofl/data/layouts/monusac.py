"""MoNuSAC2020: cells of four organs, each organ a site.

Input: RGB regions at 40× of TCGA slides, `MoNuSAC_images_and_annotations/<patient>/<image>.svs` or `.tif`;
the test images in `MoNuSAC Testing Data and Annotations/`.
Label: the outlines (Aperio XML, beside the image) of four cell types; other nuclei are not outlined.
Sites: MoNuSAC-breast, -kidney, -lung, -prostate, from the tissue-source code in the file name.
Licence: CC BY-NC-SA 4.0. From https://monusac-2020.grand-challenge.org.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from harmofl.data.layouts.pairs import by_stem, pair
from harmofl.data.layouts.tree import Tree, join, printable
from harmofl.data.samples import Problem, Sample, of_site

TRAINING, TESTING = "monusacimagesandannotations", "monusactestingdataandannotations"

ORGANS = {
    code: organ
    for organ, codes in {
        "breast": "A2 E2 BH S3 B6 EW D8 E9",
        "kidney": "UZ P4 B9 G7 EV MH F9 DW 5P SX 2Z IZ",
        "lung": "MP 69 86 55 78 73 L4 49 50",
        "prostate": "EJ J4 KK V1 G9 YL X4 VP",
    }.items()
    for code in codes.split()
}

_TCGA = re.compile(r"(TCGA-([0-9A-Z]{2})-[0-9A-Z]+)", re.IGNORECASE)


def tcga_patient(stem: str) -> str:
    """Return the patient that a TCGA file name begins with; empty if it does not."""
    match = _TCGA.match(stem)
    return match[1].upper() if match else ""


def read_set(tree: Tree, folder: str, split: str) -> tuple[list[Sample], list[Problem]]:
    """List the images of a training or test folder: one folder a patient."""
    samples: list[Sample] = []
    problems: list[Problem] = []
    for patient in tree.folders(folder):
        place = join(folder, patient)
        pairs = pair(tree, by_stem(tree, place, ".svs", ".tif"), by_stem(tree, place, ".xml"), ".xml of that name")
        for problem in pairs.problems:
            problems += of_site(_site(PurePosixPath(problem.file).name), [problem])
        for stem, (image, outlines) in pairs.files.items():
            site = _site(stem)
            if not site:
                problems.append(Problem(printable(image), _no_organ(_TCGA.match(stem))))
                continue
            samples.append(
                Sample(
                    site=site,
                    image=image,
                    mask=outlines,
                    patient=tcga_patient(stem),
                    split=split,
                    # in the .tif copies that circulate, red and blue have changed places
                    reversed_channels=image.lower().endswith(".tif"),
                )
            )
    return samples, problems


def _site(name: str) -> str:
    """Return the site that a file's name tells; empty if it does not."""
    match = _TCGA.match(name)
    organ = ORGANS.get(match[2].upper()) if match else None
    return f"MoNuSAC-{organ}" if organ else ""


def _no_organ(match: re.Match[str] | None) -> str:
    if match is None:
        return "the organ cannot be told: the name does not begin with TCGA-<tissue-source code>-<patient>"
    return f"the organ of tissue-source code {match[2]} is not known (known: {', '.join(sorted(ORGANS))})"
