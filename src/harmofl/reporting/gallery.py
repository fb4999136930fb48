"""Folders of pictures with captions: what `harmofl pictures` leaves, and what a report shows of it."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harmofl.documents import read_json
from harmofl.errors import UsageError

FOLDER = "pictures"
"""Where a report looks for them, below the folder of a run or of an experiment."""
FILE = "pictures.json"
LARGEST = 6 * 2**20
"""Bytes of all pictures on a page, which is sent by mail; encoded they take a third more."""


@dataclass(frozen=True)
class Photo:
    """A picture for a page; empty if the page has no room for it, and the caption says where it is."""

    source: str
    """A data URL."""
    caption: str


def read_gallery(folder: Path) -> list[Photo]:
    """The pictures that lie below a run's or an experiment's folder, as many as a page has room for."""
    photos, room = [], LARGEST
    for path, caption in list_pictures(folder / FOLDER):
        content = path.read_bytes()
        if len(content) <= room:
            room -= len(content)
            photos.append(Photo(f"data:image/png;base64,{base64.b64encode(content).decode()}", caption))
        else:
            photos.append(Photo("", f"{path.relative_to(folder).as_posix()}: {caption}"))
    return photos


def list_pictures(folder: Path) -> Iterator[tuple[Path, str]]:
    """The pictures in a folder and below, with their captions."""
    for listing in sorted(folder.rglob(FILE)):
        try:
            content = read_json(listing)
            pairs = [(str(figure["name"]), str(figure["caption"])) for figure in content["figures"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{listing} cannot be read: {error!r}") from None
        for name, caption in pairs:
            path = listing.parent / f"{Path(name).name}.png"  # never a file elsewhere
            if path.exists():
                yield path, caption
