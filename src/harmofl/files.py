"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harmofl.errors import UsageError

try:
    import fcntl
except ImportError:  # pragma: no cover - no advisory locks on this system
    fcntl = None  # type: ignore[assignment]

PART = ".part"
PRIVATE = 0o600
"""The mode of a file that only its owner may read."""


TRIES, PAUSE = 5, 0.02
"""How often a lock is tried for, and the seconds between."""

FULL_OR_BROKEN = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""What is wrong with a disk, not with what was asked for."""


def find_disk_failure(error: BaseException | None, folder: Path) -> OSError | None:
    """The failure of a disk behind an error: full, over quota or broken, or a folder that cannot be written."""
    while error is not None:
        if isinstance(error, OSError) and (error.errno in FULL_OR_BROKEN or _lies_in(error.filename, folder)):
            return error
        error = error.__cause__
    return None


def _lies_in(path: object, folder: Path) -> bool:
    return isinstance(path, (str, os.PathLike)) and Path(path).absolute().is_relative_to(folder.absolute())


def what_failed(error: OSError) -> str:
    """One line: the file, if it is one file's problem, and what is wrong with it."""
    reason = error.strerror or str(error) or type(error).__name__
    return reason if error.filename is None or error.errno in FULL_OR_BROKEN else f"{error.filename}: {reason}"


def remove_parts(folder: Path) -> None:
    """Remove what a kill in the middle of `write_whole` left behind, anywhere below a folder."""
    for path in folder.rglob(f".*{PART}"):
        path.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes | str, mode: int = 0o644, lasting: bool = True) -> None:
    """Write a file so that a reader, a full disk or a kill at any moment never sees a part of it.

    With mode 0o600 nobody but its owner can read it, not even for the moment in which it is written. What is not
    `lasting`, as it goes with the process that wrote it, need not survive a power cut: nobody waits for the disk.
    """
    data = content.encode() if isinstance(content, str) else content
    make_folder(path.parent)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PART)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            if lasting:
                os.fsync(file.fileno())
        os.chmod(temporary, mode)  # until here, by mkstemp: 0o600
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if lasting:
        sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, so that a power cut does not take their names back."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for place in missing:
        sync_folder(place.parent)


def sync_folder(folder: Path) -> None:
    """See the names in a folder on disk, where the system can: a file that was renamed is only then safe."""
    try:
        handle = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except OSError:  # a system, or a right, without it: the file itself is on disk already
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno in FULL_OR_BROKEN:
            raise
    finally:
        os.close(handle)


def claim(path: Path, message: str) -> int:
    """Lock a file for this process, whose end frees it; the message is for whoever comes second."""
    handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    for _ in range(TRIES):
        if _lock(handle):
            return handle
        time.sleep(PAUSE)  # someone may only have looked whether it is locked
    os.close(handle)
    raise UsageError(message)


def _lock(handle: int, shared: bool = False) -> bool:
    if fcntl is None:  # pragma: no cover
        return True
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def is_claimed(path: Path) -> bool:
    """Whether a process holds a lock on a file; a file that is not there is not made."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _lock(handle, shared=True)
    finally:
        os.close(handle)


@contextmanager
def claimed(path: Path, message: str) -> Iterator[None]:
    """Hold such a lock for a while."""
    handle = claim(path, message)
    try:
        yield
    finally:
        os.close(handle)


def wait_for_lock(handle: int) -> None:
    """Lock an open file until it is closed, as soon as no other process has locked it."""
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX)


def check_writable(folder: Path) -> None:
    """Refuse a folder in which nothing could be written, before what is to be written there has been computed."""
    nearest = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not nearest.is_dir():
        raise UsageError(f"--out {folder}: {nearest} is a file")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UsageError(f"--out {folder}: {nearest} cannot be written to")


def folder_name(name: str) -> str:
    """A name as a folder: `+ amplitude` becomes `amplitude`."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")
