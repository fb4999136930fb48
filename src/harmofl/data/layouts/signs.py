"""What kind of data a folder seems to hold, so that a wrong folder or task can be pointed out."""

from __future__ import annotations

import os
import re
from pathlib import Path

from harmofl import registry
from harmofl.data.layouts.tree import Tree
from harmofl.errors import UsageError


def open_tree(folder: Path, wanted: str) -> Tree:
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


def describe_missing(folder: Path, wanted: str, signs: str) -> UsageError:
    """Say what was looked for and, if that can be told, which folder or task would be right."""
    return UsageError(f"{folder}: found no {wanted}{_advice(folder, signs)}")


def _advice(folder: Path, signs: str) -> str:
    absolute = Path(os.path.abspath(folder))
    names = _names_in(absolute)
    for layout, tasks in _tasks_by_layout().items():
        if layout != signs and _speak_of(names, layout):
            return f"; the folder looks like data for --task {' or '.join(tasks)}"
    nearby = [absolute.parent, *(absolute / name for name in Tree(absolute).folders(""))]
    right = next((other for other in nearby if _speak_of(_names_in(other), signs)), None)
    return f"; did you mean the folder {right}?" if right else ""


def _tasks_by_layout() -> dict[str, list[str]]:
    """The names of the tasks, by the signs of their layout."""
    tasks: dict[str, list[str]] = {}
    for task in registry.tasks:
        tasks.setdefault(task.layout.signs, []).append(task.name)
    return tasks


def _names_in(folder: Path) -> list[str]:
    """The folder's own name and those in it."""
    try:
        return [name.lower() for name in (folder.name, *os.listdir(folder))]
    except OSError:
        return []


def _speak_of(names: list[str], signs: str) -> bool:
    return bool(signs) and any(re.fullmatch(signs, name) for name in names)
