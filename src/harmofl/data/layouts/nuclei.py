"""Nuclei of three public sets as their archives lay them out: MoNuSAC2020, MoNuSeg2018 and TNBC, six sites.

Whichever of them is found below the folder is read; see `monusac`, `monuseg` and `tnbc` for input, label and licence.
A set's own test folder is its test split; without one its images are left to be divided by patient.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from operator import attrgetter
from pathlib import Path, PurePosixPath

from harmofl.data.layouts import monusac, monuseg, tnbc
from harmofl.data.layouts.layout import Layout
from harmofl.data.layouts.monuseg import plain
from harmofl.data.layouts.signs import open_tree
from harmofl.data.layouts.tree import Tree
from harmofl.data.samples import Listing, Problem, Sample

WANTED = (
    "MoNuSAC2020 (MoNuSAC_images_and_annotations/), MoNuSeg2018 (Tissue Images/ with Annotations/, MoNuSegTestData/) "
    "or TNBC (Slide_NN/ with GT_NN/), at most three folders deep"
)
DEPTH = 3


def list_samples(folder: Path) -> Listing:
    """List the images of every set that is there."""
    tree = open_tree(folder, WANTED)
    problems: list[Problem] = []
    sets: dict[str, list[Sample]] = {"MoNuSAC": [], "MoNuSeg": [], "TNBC": []}
    for place in list(tree.walk(DEPTH)):
        for name, (samples, wrong) in _read(tree, place).items():
            sets[name] += samples
            problems += wrong
    problems += tree.problems
    sets["MoNuSAC"], shared = _without_shared_patients(sets["MoNuSAC"], sets["MoNuSeg"])
    samples = [sample for of_set in sets.values() for sample in _divided_by_test_folder(of_set)]
    unique, repeated = _without_copies(sorted(samples, key=attrgetter("site", "image")))
    return Listing(tuple(unique), tuple(sorted(problems + shared + repeated)))


def _read(tree: Tree, folder: str) -> dict[str, tuple[list[Sample], list[Problem]]]:
    """Read one folder as each of the sets that it is."""
    sets = {}
    name = plain(PurePosixPath(folder).name or tree.name)
    if name in (monusac.TRAINING, monusac.TESTING):
        sets["MoNuSAC"] = monusac.read_set(tree, folder, "train" if name == monusac.TRAINING else "test")
    if files := monuseg.find(tree, folder):
        sets["MoNuSeg"] = monuseg.read_set(tree, *files, monuseg.split_of(tree, folder))
    if folders := tnbc.find(tree, folder):
        sets["TNBC"] = tnbc.read_set(tree, *folders)
    return sets


def _divided_by_test_folder(samples: list[Sample]) -> list[Sample]:
    """Leave the division open where a set has no test images."""
    if any(sample.split == "test" for sample in samples):
        return samples
    return [replace(sample, split="") for sample in samples]


def _without_shared_patients(dropped: list[Sample], kept: list[Sample]) -> tuple[list[Sample], list[Problem]]:
    """Keep a patient of both sets in one: across two sites it would be on both sides of a split."""
    shared = {sample.patient for sample in kept}
    first: dict[str, str] = {}
    for sample in dropped:
        if sample.patient in shared:
            first.setdefault(sample.patient, sample.image)
    counts = Counter(sample.patient for sample in dropped)
    problems = [
        Problem(
            str(PurePosixPath(image).parent),
            f"patient {patient} is in MoNuSeg too and kept there only: {counts[patient]} MoNuSAC image(s) left out",
            fatal=False,
        )
        for patient, image in first.items()
    ]
    return [sample for sample in dropped if sample.patient not in shared], problems


def _without_copies(samples: list[Sample]) -> tuple[list[Sample], list[Problem]]:
    """Refuse a second copy of an image, as of an archive unpacked twice: it could lie on both sides of a split."""
    unique: dict[tuple[str, str], Sample] = {}
    problems = []
    for sample in samples:
        before = unique.setdefault((sample.site, PurePosixPath(sample.image).stem), sample)
        if before is not sample:
            message = f"the same image as {before.image}; remove one of them"
            problems.append(Problem(sample.image, message, site=sample.site))
    return list(unique.values()), problems


layout = Layout(list_samples, WANTED, signs=r"monusac[ _-].*|monuseg.*|tissue[ _-]images|slide[ _-]\d+|tnbc.*")
