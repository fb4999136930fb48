"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

PART = ".part"


def remove_parts(folder: Path) -> None:
    """Remove what a kill in the middle of `write_whole` left behind, anywhere below a folder."""
    for path in folder.rglob(f".*{PART}"):
        path.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file so that a reader, a full disk or a kill at any moment never sees a part of it."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PART)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
