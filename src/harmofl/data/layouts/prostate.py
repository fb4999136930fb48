"""Prostate MRI of several hospitals: where is the prostate?

Input: T2-weighted volumes, `<SITE>/CaseNN.nii.gz` (any stem; `.nii`, `.mha`, `.mhd`, `.nrrd` and `.nhdr` too).
Label: a volume of labels beside each, `CaseNN_segmentation.nii.gz` (in any case).
Sites: every folder that holds such pairs, named after the folder; the public set has BIDMC, HK, I2CVB, ISBI, ISBI_1.5
and UCL. A case is a patient.
Licence: that of the sources, NCI-ISBI 2013, I2CVB and PROMISE12, each its own.
From https://liuquande.github.io/SAML/ (Liu, Dou and Heng, 2020).
"""

from __future__ import annotations

import re
from collections import Counter
from operator import attrgetter
from pathlib import Path, PurePosixPath

from harmofl.data.formats.content import ITK_SUFFIXES
from harmofl.data.layouts.layout import Layout
from harmofl.data.layouts.pairs import Pairs, pair
from harmofl.data.layouts.signs import open_tree
from harmofl.data.layouts.site_names import name_refusal
from harmofl.data.layouts.tree import Tree, join, printable
from harmofl.data.samples import Listing, Problem, Sample, of_site

WANTED = "folder with pairs NAME.nii.gz and NAME_segmentation.nii.gz, at most three folders deep"
DEPTH = 3
MASK = "_segmentation"

SUFFIXES = (".nii", ".nii.gz", *ITK_SUFFIXES)

_VOLUME = re.compile(rf"(?P<stem>.+?)(?P<mask>{MASK})?\.(nii(\.gz)?|mh[ad]|nrrd|nhdr)", re.IGNORECASE)


def list_samples(folder: Path) -> Listing:
    """List the cases of every folder that holds pairs."""
    tree = open_tree(folder, WANTED)
    pairs = {place: _pairs(tree, place) for place in tree.walk(DEPTH)}
    sites = _site_names(tree, [place for place, paired in pairs.items() if paired.files])
    problems = [
        problem
        for place, paired in pairs.items()
        for problem in of_site(sites.get(place) or _folder_name(tree, place), paired.problems)
    ]
    for problem in tree.problems:
        problems += of_site(_folder_name(tree, problem.file), [problem])
    samples = [
        # a Case00 of one site is not that of another
        Sample(site=site, image=image, mask=mask, patient=f"{site}/{stem}")
        for place, site in sites.items()
        for stem, (image, mask) in pairs[place].files.items()
    ]
    problems += _wrong_names(sites)
    return Listing(tuple(sorted(samples, key=attrgetter("site", "image"))), tuple(sorted(problems)))


def _pairs(tree: Tree, folder: str) -> Pairs:
    """Pair the volumes and masks of a folder; one without any pair is no site."""
    volumes: dict[str, list[str]] = {}
    masks: dict[str, list[str]] = {}
    for name in tree.files(folder, *SUFFIXES):
        if match := _VOLUME.fullmatch(name):
            (masks if match["mask"] else volumes).setdefault(match["stem"], []).append(join(folder, name))
    if not volumes.keys() & masks.keys():
        return Pairs(problems=_not_a_site(folder, len(volumes) + len(masks)))
    doubled = {stem for paths in (volumes, masks) for stem, names in paths.items() if len(names) > 1}
    pairs = pair(
        tree,
        {stem: names[0] for stem, names in volumes.items() if stem not in doubled},
        {stem: names[0] for stem, names in masks.items() if stem not in doubled},
        f"{MASK} beside it",
        lone_mask_is_fatal=True,
    )
    for stem in sorted(doubled):
        paths = next(names for names in (masks.get(stem, []), volumes.get(stem, [])) if len(names) > 1)
        others = ", ".join(PurePosixPath(path).name for path in paths[1:])
        pairs.problems.append(Problem(printable(paths[0]), printable(f"is there again as {others}; remove one")))
    return pairs


def _not_a_site(folder: str, num_files: int) -> list[Problem]:
    if not num_files:
        return []
    message = f"no site: none of its {num_files} volumes form a pair NAME.nii.gz and NAME{MASK}.nii.gz"
    return [Problem(printable(folder or "."), message, fatal=False)]


def _site_names(tree: Tree, folders: list[str]) -> dict[str, str]:
    """Name each folder's site after it; after its whole path where two folders are called the same."""
    names = {folder: _folder_name(tree, folder) for folder in folders}
    uses = Counter(names.values())
    return {folder: name if uses[name] == 1 else folder.replace("/", "-") or name for folder, name in names.items()}


def _folder_name(tree: Tree, folder: str) -> str:
    return PurePosixPath(folder).name or tree.name


def _wrong_names(sites: dict[str, str]) -> list[Problem]:
    uses = Counter(sites.values())
    problems = [
        Problem(printable(folder), refused, site=site)
        for folder, site in sites.items()
        if (refused := name_refusal(site))
    ]
    clashes = {folder: site for folder, site in sites.items() if uses[site] > 1}
    message = "its site has the name of another's"
    return problems + [Problem(printable(folder), message, site=site) for folder, site in clashes.items()]


layout = Layout(list_samples, WANTED, signs=r".*_segmentation\.(nii(\.gz)?|mh[ad]|nrrd|nhdr)")
