"""What kind of data a folder seems to hold, so that a wrong folder or task can be pointed out."""

from __future__ import annotations

import os
import re
from pathlib import Path

from harmofl.data.layouts.tree import Tree
from harmofl.errors import UsageError

OWN_DATA = "classification or segmentation"

_SIGNS = {
    OWN_DATA: re.compile(r"manifest\.csv"),
    "histology": re.compile(r"metadata\.csv|camelyon17_v.*"),
    "nuclei": re.compile(r"monusac[ _-].*|monuseg.*|tissue[ _-]images|slide[ _-]\d+|tnbc.*"),
    "prostate": re.compile(r".*_segmentation\.nii(\.gz)?"),
}


def open_folder(folder: Path, wanted: str) -> Tree:
    """Return the data folder, or say that it is none."""
    if os.path.isdir(folder):
        return _readable(Tree(folder))
    reason = "is a file, not a folder" if os.path.lexists(folder) else "no such folder"
    packed = "; unpack it first" if folder.suffix.lower() in (".zip", ".gz", ".tar", ".tgz", ".7z", ".rar") else ""
    raise UsageError(f"{folder}: {reason}{packed} (looked for {wanted})")


def _readable(tree: Tree) -> Tree:
    tree.contents("")
    for problem in tree.problems:
        raise UsageError(f"{tree.root}: {problem.message}")
    return tree


def nothing_found(folder: Path, wanted: str, task: str) -> UsageError:
    """Say what was looked for and, if that can be told, which folder or task would be right."""
    return UsageError(f"{folder}: found no {wanted}{_advice(folder, task)}")


def _advice(folder: Path, task: str) -> str:
    absolute = Path(os.path.abspath(folder))
    others = [other for other in _tasks_of(absolute) if other != task]
    if others:
        return f"; the folder looks like data for --task {others[0]}"
    nearby = [absolute.parent, *_subfolders(absolute)]
    right = next((other for other in nearby if task in _tasks_of(other)), None)
    return f"; did you mean the folder {right}?" if right else ""


def _tasks_of(folder: Path) -> list[str]:
    """The tasks that the folder's name or those in it speak of."""
    try:
        names = [name.lower() for name in (folder.name, *os.listdir(folder))]
    except OSError:
        return []
    return [task for task, sign in _SIGNS.items() if any(sign.fullmatch(name) for name in names)]


def _subfolders(folder: Path) -> list[Path]:
    return [folder / name for name in Tree(folder).folders("")]
