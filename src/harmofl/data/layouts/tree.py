"""What lies below a data folder: each folder is read once, and no link leads out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from harmofl.data.samples import Problem, inside

Kind = Literal["file", "folder", "link", "other"]

LEAVES = "a link that leaves the data folder"
SYSTEM_FOLDERS = {"__MACOSX", "lost+found", "$RECYCLE.BIN", "System Volume Information"}


def read_folder(path: Path | str) -> dict[str, Kind]:
    """Return what a folder holds, without asking for each file on its own: that takes minutes for many."""
    with os.scandir(path) as entries:
        return {entry.name: _kind(entry) for entry in entries}


def _kind(entry: os.DirEntry[str]) -> Kind:
    if entry.is_symlink():
        return "link"
    if entry.is_file(follow_symlinks=False):
        return "file"
    return "folder" if entry.is_dir(follow_symlinks=False) else "other"


def join(*parts: str) -> str:
    """Join relative paths with forward slashes, leaving out empty ones."""
    return "/".join(part for part in parts if part)


def printable(path: str) -> str:
    """Show a path safely: names on disk may hold any byte."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in path
    )


class Tree:
    """A data folder; paths are relative to it, with forward slashes, "" being the folder itself."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._contents: dict[str, dict[str, Kind]] = {}
        self._refused_folders: dict[str, str] = {}
        self._problems: dict[Problem, None] = {}

    @property
    def name(self) -> str:
        """The data folder's own name, as its user spelled it."""
        return os.path.basename(os.path.abspath(self.root))

    @property
    def problems(self) -> list[Problem]:
        """What was met while reading folders."""
        return list(self._problems)

    def contents(self, folder: str) -> dict[str, Kind]:
        """Return what a folder holds; nothing, and a problem, if it cannot be read."""
        if folder not in self._contents:
            try:
                self._contents[folder] = read_folder(self.root / folder)
            except OSError as error:
                self._add(Problem(printable(folder or "."), f"cannot be read ({error.strerror})"))
                self._contents[folder] = {}
        return self._contents[folder]

    def files(self, folder: str, *suffixes: str) -> list[str]:
        """Return the visible files of a folder whose names end so, in any case; links are checked by `refusal`."""
        return sorted(
            name
            for name, kind in self.contents(folder).items()
            if kind != "folder" and not name.startswith(".") and name.lower().endswith(suffixes)
        )

    def folders(self, folder: str) -> list[str]:
        """Return the visible folders of a folder; links to folders are not followed, but mentioned."""
        visible = []
        for name, kind in sorted(self.contents(folder).items()):
            if name.startswith(".") or name in SYSTEM_FOLDERS:
                continue
            if kind == "folder":
                visible.append(name)
            elif kind == "link" and os.path.isdir(self.root / folder / name):
                self._mention_link(join(folder, name))
        return visible

    def _mention_link(self, path: str) -> None:
        if inside(self.root, path):
            self._add(Problem(printable(path), LEAVES))
        else:  # what it leads to is met in its own place, and must not count twice
            self._add(Problem(printable(path), "a link to another place of the data folder: not followed", fatal=False))

    def _add(self, problem: Problem) -> None:
        self._problems[problem] = None

    def walk(self, depth: int, folder: str = "") -> Iterator[str]:
        """Go through a folder and those below it, down to a depth, in a stable order."""
        yield folder
        if depth > 0:
            for name in self.folders(folder):
                yield from self.walk(depth - 1, join(folder, name))

    def refusal(self, path: str, folder_allowed: bool = False) -> str:
        """Say why a path cannot be used; empty if it is a file, or an allowed folder, that lies in the data folder."""
        if not path.isprintable():
            return "a name with characters that cannot be printed"
        parent, _, name = path.rpartition("/")
        refused = self._folder_refusal(parent)
        if refused:
            return refused
        kind = self.contents(parent).get(name)
        if kind == "file" or (kind == "folder" and folder_allowed):
            return ""
        return inside(self.root, path) or self._wrong_kind(path, folder_allowed)

    def _folder_refusal(self, folder: str) -> str:
        if folder and folder not in self._refused_folders:
            self._refused_folders[folder] = inside(self.root, folder) or (
                "" if os.path.isdir(self.root / folder) else "no such file"
            )
        return self._refused_folders.get(folder, "")

    def _wrong_kind(self, path: str, folder_allowed: bool) -> str:
        if os.path.isfile(self.root / path):
            return ""
        if os.path.isdir(self.root / path):
            return "" if folder_allowed else "a folder, not a file"
        return "not a regular file"
