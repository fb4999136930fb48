"""What every reader is held to: no damaged, hostile or odd file may surprise the caller."""

from __future__ import annotations

import logging
import math
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

import numpy as np

from harmofl.data.scans import Mask, Pixels, UnreadableError
from harmofl.extras import extra_of, how_to_install

PIXEL_LIMIT = 89_478_485
"""Of one picture or slice; Pillow's own limit against decompression bombs."""
VOXEL_LIMIT = 2**29
"""Of everything in one file or series, channels included: 512 x 512 x 2048."""
CHATTY = ("nibabel", "tifffile", "pydicom", "highdicom", "PIL")
"""Libraries that log or warn about every oddity of a file."""
TOLERANCE = 1e-3
"""How far from a whole number a label may lie; scaled or resampled masks are rarely exact."""


class Shared:
    """A change of the whole process, such as silence: the first thread inside makes it, the last one undoes it."""

    def __init__(self, change: Callable[[], AbstractContextManager[None]]) -> None:
        self._change = change
        self._lock = threading.Lock()
        self._inside = 0
        self._undo = ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._undo.enter_context(self._change())
            self._inside += 1

    def __exit__(self, *reason: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._undo.close()


@contextmanager
def _silence() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in CHATTY]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


_quiet = Shared(_silence)


def quiet() -> AbstractContextManager[None]:
    """Keep the readers' warnings and log lines from the user, who gets one plain message or none."""
    return _quiet


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn whatever a decoder raises into an `UnreadableError`; on damaged files they raise nearly anything."""
    with quiet():
        try:
            yield
        except UnreadableError:
            raise
        except ModuleNotFoundError as error:
            raise _without_library(what, error) from error
        except MemoryError:
            raise UnreadableError("too large for the memory of this computer") from None
        except Exception as error:
            raise UnreadableError(f"cannot be read as a {what}: {_words(error)}") from error


def _without_library(what: str, error: ModuleNotFoundError) -> UnreadableError:
    extra = extra_of(error)
    return UnreadableError(how_to_install(extra, f"reading a {what}") if extra else str(error))


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror  # its full text would name the file
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text if len(text) <= 200 else f"{text[:200]}…"


def describe_shape(shape: Sequence[object]) -> str:
    """A shape in words: 64 x 64 x 20."""
    return " x ".join(str(size) for size in shape)


def check_size(width: int, height: int, rest: int = 1) -> None:
    """Refuse, before anything is decoded, a declared size of nothing or of far too much."""
    if min(width, height, rest) < 1:
        raise UnreadableError(f"has no pixels ({describe_shape((width, height))})")
    if width * height > PIXEL_LIMIT:
        raise too_large((width, height), PIXEL_LIMIT)
    if width * height * rest > VOXEL_LIMIT:
        raise too_large((width, height, rest), VOXEL_LIMIT)


def too_large(shape: Sequence[int], limit: int) -> UnreadableError:
    """The error for a declared size above a limit."""
    return UnreadableError(
        f"too large: {describe_shape(shape)} = {math.prod(shape):,} pixels, at most {limit:,} are read"
    )


def to_plain_type(pixels: Pixels) -> Pixels:
    """Pixels as scans hold them: uint8 as it is, every other number as finite float32."""
    if pixels.size == 0:
        raise UnreadableError("has no pixels")
    if pixels.dtype.kind not in "buif":
        raise UnreadableError(f"holds values of type {pixels.dtype}; only whole and real numbers are read")
    if pixels.dtype == np.uint8:
        return np.ascontiguousarray(pixels)
    if pixels.dtype == np.bool_:
        return np.ascontiguousarray(pixels, dtype=np.uint8)
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = np.ascontiguousarray(pixels, dtype=np.float32)
    if not np.isfinite(numbers).all():
        raise UnreadableError("holds pixels that are not finite numbers (NaN or infinity)")
    return numbers


def to_whole_numbers(labels: Mask) -> Mask:
    """Labels as the smallest of uint8, uint16 and int32 that holds them."""
    if labels.size == 0:
        raise UnreadableError("has no pixels")
    if labels.dtype.kind not in "buif":
        raise UnreadableError(f"holds values of type {labels.dtype}; the labels of a mask are whole numbers")
    if labels.dtype.kind == "f":
        labels = _rounded(labels)
    low, high = int(labels.min()), int(labels.max())
    for kind in (np.uint8, np.uint16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return np.ascontiguousarray(labels, dtype=kind)
    raise UnreadableError(f"holds labels from {low} to {high}, which is more than 32 bits hold")


def _rounded(labels: Mask) -> Mask:
    if not np.isfinite(labels).all():
        raise UnreadableError("holds labels that are not finite numbers (NaN or infinity)")
    rounded = np.rint(labels)
    broken = np.abs(labels - rounded) > TOLERANCE
    if broken.any():
        raise UnreadableError(f"holds labels that are not whole numbers, such as {labels[broken][0]:g}")
    return rounded
