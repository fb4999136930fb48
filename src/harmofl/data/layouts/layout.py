"""What a layout is: how the images of a data set lie in a folder. A new one is one file, with the task it is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harmofl.data.samples import Listing


@dataclass(frozen=True)
class Layout:
    """How images lie in a folder.

    Attributes:
        list_samples: from the folder to its samples and to whatever is wrong with files; it opens no image.
        wanted: what was looked for, in the words of the error for a folder without any sample.
        signs: a regular expression of file and folder names, in lower case, that speak of this data set, so that a
            wrong folder or task can be pointed out.
        stamp: where listing takes long, what changes whenever the listing would; it is then kept in the cache.
    """

    list_samples: Callable[[Path], Listing]
    wanted: str = "image"
    signs: str = ""
    stamp: Callable[[Path], Mapping[str, Any]] | None = None
