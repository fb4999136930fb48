"""Content hashes of files, kept so that a file is read again only when it has changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from harmofl.data.cache import THREADS, Cache, digest
from harmofl.data.formats.content import ITK_SUFFIXES
from harmofl.data.formats.itk import data_file_of
from harmofl.data.scans import UnreadableError
from harmofl.files import write_whole

Hashes = dict[str, str]
"""By path; empty for a file that cannot be read."""


def hash_files(
    cache: Cache, folder: Path, name: str, paths: Sequence[str], watch: Callable[[int], None] = lambda count: None
) -> Hashes:
    """The hashes of files below a folder; `name`: whose, as they are kept together.

    A file is read again only if its size or one of its times has changed.
    """
    kept_at = cache.folder / "fingerprints" / f"{digest(str(folder.resolve()), name)}.json"
    kept = _read_kept(kept_at)
    marks = {path: _mark(folder / path) for path in paths}
    hashes = {path: kept[path][1] for path in paths if path in kept and kept[path][0] == marks[path]}
    hashes = {path: content for path, content in hashes.items() if content}
    missing = [path for path in paths if path not in hashes]
    with ThreadPoolExecutor(THREADS) as pool:
        for path, content in zip(missing, pool.map(lambda path: hash_file(folder / path), missing), strict=True):
            hashes[path] = content
            watch(1)
    if missing:
        with suppress(OSError):  # only a shortcut is lost
            cache.claim()
            write_whole(kept_at, json.dumps({path: [marks[path], hashes[path]] for path in paths if hashes[path]}))
    return hashes


def hash_file(path: Path) -> str:
    """The hash of a file, or of all files of a folder; empty if one of them cannot be read."""
    total = hashlib.sha256()
    try:
        for each in files_of(path):
            with open(each, "rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
    except OSError:
        return ""
    return total.hexdigest()


def _read_kept(path: Path) -> dict[str, tuple[Any, str]]:
    """What was noted of each file, if the note can be read."""
    try:
        noted = json.loads(path.read_text(encoding="utf-8"))
        return {name: (marks, content) for name, (marks, content) in noted.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def files_of(path: Path) -> list[Path]:
    """The files of a folder, or a file, with the one beside it that holds what it only describes."""
    if path.is_dir():
        return sorted(each for each in path.iterdir() if each.is_file())
    if path.suffix.lower() in ITK_SUFFIXES:
        with suppress(UnreadableError):  # reading will say it, and what is missing beside it
            beside = data_file_of(path)
            return [path, beside] if beside is not None and beside.is_file() else [path]
    return [path]


def _mark(path: Path) -> list[list[int]]:
    """What changes when a file does."""
    try:
        stats = [each.stat() for each in files_of(path)]
    except OSError:
        return []
    return [[each.st_size, each.st_mtime_ns, each.st_ctime_ns] for each in stats]
