"""Decoded images on disk: made once, found again by their content, mapped into memory page by page.

An entry is a folder that is complete from the moment it has its name: it is written under another name and then
renamed, so a killed process leaves nothing that looks whole, and of two processes that make the same one wins.
The whole cache may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from harmofl.data.preparation import Planes, widen
from harmofl.data.scans import Mask, Note
from harmofl.errors import RunError
from harmofl.files import PART

Item = TypeVar("Item")
Result = TypeVar("Result")

ABANDONED_AFTER = 24 * 3600
"""Seconds after which a half-made entry belongs to no living process."""

THREADS = max(2, min(8, os.cpu_count() or 2))
"""Decoders spend their time outside of Python's lock, or waiting for the disk."""

PRIVATE_FOLDER = 0o700
"""The mode of a folder that only its owner may enter."""

FOLDERS = ("decoded", "fingerprints", "listings", "phantoms")
"""What the cache folder holds."""

WIDENED_AT_ONCE = 2**20
"""Values that are in memory while what was written becomes wider."""

MOST_AHEAD = 2**29
"""Bytes of images, as far as they can be told beforehand, that are decoded before they are needed."""


def default_cache() -> Path:
    """The user's cache folder; HARMOFL_CACHE names another."""
    named = os.environ.get("HARMOFL_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "harmofl"


@dataclass(frozen=True)
class Decoded:
    """One sample as the network sees it, with what is worth knowing of the original."""

    planes: Planes
    masks: Mask | None
    tiles: int
    """Planes per slice."""
    facts: dict[str, float]
    """height, width, slices, channels, minimum, mean, maximum of the original, and how it was stored."""
    values: list[int]
    """The mask's distinct values."""
    notes: list[Note] = field(default_factory=list)
    """What a careful owner would want to know of its files."""
    places: NDArray[np.int64] | None = None
    """Of a volume with a mask, some voxels of every label.

    Its planes (C, D, H, W) and masks (D, H, W) are written flat, as volumes may differ in size.
    """

    @property
    def is_whole_volume(self) -> bool:
        """Whether it is one volume of its own size."""
        return self.places is not None

    @property
    def channels(self) -> int:
        """Of the planes."""
        return int(self.planes.shape[0 if self.is_whole_volume else 1])


@dataclass(frozen=True)
class Entry:
    """All samples of a site in one place."""

    planes: Planes
    masks: NDArray[Any] | None
    sample: NDArray[np.int64]
    """(P,) the sample that a plane belongs to."""
    slice: NDArray[np.int64]
    """(P,) its place among the sample's slices."""
    tiles: NDArray[np.int64]
    """(samples,) planes per slice."""
    foreground: NDArray[np.int64]
    """(P,) pixels of the mask that are not zero."""
    facts: dict[str, NDArray[np.float64]]
    values: list[list[int]]
    """The distinct mask values of each sample."""
    notes: list[list[Note]]
    """The notes of each sample."""
    places: list[NDArray[np.int64]] | None = None
    """Of volumes with masks, some voxels of every label; planes and masks are then flat, one volume after the other."""

    @property
    def channels(self) -> int:
        """Of every plane."""
        return int(self.planes.shape[1] if self.places is None else self.facts["grid_channels"][0])


class Cache:
    """Where entries and fingerprints lie."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, key: str) -> Entry | None:
        """The entry of that key, if there is one that is whole."""
        place = self._place(key)
        try:
            index = json.loads((place / "index.json").read_text(encoding="utf-8"))
            with open(place / "index.npz", "rb") as file, np.load(file, allow_pickle=False) as arrays:
                loaded = {name: arrays[name] for name in arrays.files}
            planes = _mapped(place / "planes.bin", index["planes"])
            masks = _mapped(place / "masks.bin", index["masks"]) if index["masks"] else None
            own = {name: loaded[name] for name in ("sample", "slice", "tiles", "foreground")}
            values = index["values"]
            notes = [[Note(about, text) for about, text in of_sample] for of_sample in index["notes"]]
        except (FileNotFoundError, ValueError, KeyError, TypeError, EOFError, BadZipFile, RecursionError):
            shutil.rmtree(place, ignore_errors=True)  # not there, or damaged: made again
            return None
        except OSError as error:
            hint = "if the cache is another user's, choose another folder with data.cache"
            raise RunError(f"{place}: {error.strerror or error}: {hint}") from error
        facts = {name.removeprefix("fact."): array for name, array in loaded.items() if name.startswith("fact.")}
        places = np.split(loaded["places"], loaded["places_end"][:-1]) if "places" in loaded else None
        return Entry(planes=planes, masks=masks, facts=facts, values=values, notes=notes, places=places, **own)

    def make(self, key: Callable[[], str], decoded: Iterable[Decoded]) -> Entry:
        """Write an entry from samples that come one by one, and few are in memory; its key is asked for at the end."""
        half_made = self.folder / "decoded"
        try:
            self.claim()
            self._remove_abandoned(half_made)
            with tempfile.TemporaryDirectory(dir=half_made, suffix=PART, ignore_cleanup_errors=True) as temporary:
                _write_entry(Path(temporary) / "entry", decoded)
                place = self._place(key())
                place.parent.mkdir(exist_ok=True)
                with suppress(OSError):  # another process was faster
                    os.rename(Path(temporary) / "entry", place)
        except OSError as error:
            hint = "the cache of decoded images cannot be written; choose another folder with data.cache"
            raise RunError(f"{self.folder}: {error.strerror or error}: {hint}") from error
        entry = self.open(place.name)
        if entry is None:
            raise RunError(f"{place}: the cache entry cannot be read back")
        return entry

    def claim(self) -> None:
        """Make the folders, for their owner's eyes only: they hold what the images hold.

        A cache folder that was there already stays as it is, as other things may lie in it.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=PRIVATE_FOLDER)
        for name in FOLDERS:
            folder = self.folder / name
            folder.mkdir(exist_ok=True, mode=PRIVATE_FOLDER)
            with suppress(PermissionError):  # it is someone else's
                folder.chmod(PRIVATE_FOLDER)

    def _place(self, key: str) -> Path:
        return self.folder / "decoded" / key[:2] / key

    def _remove_abandoned(self, folder: Path) -> None:
        for path in folder.glob(f"*{PART}"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > ABANDONED_AFTER:
                    shutil.rmtree(path, ignore_errors=True)


def chosen_cache(folder: str | None) -> Cache:
    """The cache in a folder that the user has named, or in the user's cache folder."""
    return Cache(Path(folder).expanduser() if folder else default_cache())


def digest(*parts: Any) -> str:
    """A short name for anything that JSON can hold."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _mapped(path: Path, description: dict[str, Any]) -> NDArray[Any]:
    shape, dtype = tuple(description["shape"]), np.dtype(description["dtype"])
    if path.stat().st_size != int(np.prod(shape)) * dtype.itemsize:
        raise ValueError("not the size that the index says")
    return np.memmap(path, dtype=dtype, mode="r", shape=shape)


def _write_entry(place: Path, decoded: Iterable[Decoded]) -> None:
    place.mkdir()
    columns: dict[str, list[Any]] = {"sample": [], "slice": [], "tiles": [], "foreground": []}
    facts: dict[str, list[float]] = {}
    values: list[list[int]] = []
    notes: list[list[Note]] = []
    places: list[NDArray[np.int64]] = []
    with Stack(place / "planes.bin", brightness=True) as planes, Stack(place / "masks.bin") as masks:
        for number, each in enumerate(decoded):
            count = 1 if each.is_whole_volume else len(each.planes)
            planes.append(each.planes.reshape(-1) if each.is_whole_volume else each.planes)
            if each.masks is not None:
                masks.append(each.masks.reshape(-1) if each.is_whole_volume else each.masks)
            if each.places is not None:
                places.append(each.places)
            columns["sample"].append(np.full(count, number))
            columns["slice"].append(np.arange(count) // each.tiles)
            columns["tiles"].append(np.array([each.tiles]))
            columns["foreground"].append(_foreground(each))
            values.append(each.values)
            notes.append(each.notes)
            for name, value in each.facts.items():
                facts.setdefault(name, []).append(value)
        index = {
            "planes": planes.description(),
            "masks": masks.description() if masks.count else None,
            "values": values,
            "notes": notes,
        }
    arrays = {name: np.concatenate(parts).astype(np.int64) for name, parts in columns.items()}
    if places:
        arrays |= {"places": np.concatenate(places), "places_end": np.cumsum([len(each) for each in places])}
    np.savez(place / "index.npz", **arrays, **{f"fact.{name}": np.array(found) for name, found in facts.items()})  # type: ignore[arg-type]
    (place / "index.json").write_text(json.dumps(index), encoding="utf-8")


def _foreground(decoded: Decoded) -> NDArray[Any]:
    if decoded.masks is None:
        return np.zeros(len(decoded.planes))
    if decoded.is_whole_volume:
        return np.array([np.count_nonzero(decoded.masks)])
    counts: NDArray[Any] = np.count_nonzero(decoded.masks, axis=(1, 2))
    return counts


class Stack:
    """Arrays of one shape written one after the other; they become wider if a wider type comes."""

    def __init__(self, path: Path, brightness: bool = False) -> None:
        """`brightness`: the largest value of a type stands for 1; otherwise values are labels."""
        self.path = path
        self.brightness = brightness
        self.count = 0
        self._file: BinaryIO = open(path, "wb")  # noqa: SIM115
        self._shape: tuple[int, ...] = ()
        self._dtype: np.dtype[Any] = np.dtype(np.uint8)

    def __enter__(self) -> Stack:
        return self

    def __exit__(self, *reason: object) -> None:
        self._file.close()

    def append(self, array: NDArray[Any]) -> None:
        """Add (N, …) arrays at the end."""
        if self.count == 0:
            self._shape, self._dtype = array.shape[1:], array.dtype
        if array.dtype.itemsize > self._dtype.itemsize:
            self._widen(array.dtype)
        self._file.write(np.ascontiguousarray(self._as_wide(array)).data)
        self.count += len(array)

    def description(self) -> dict[str, Any]:
        """What it takes to map the file; everything is on disk afterwards."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return {"shape": [self.count, *self._shape], "dtype": self._dtype.name}

    def _as_wide(self, array: NDArray[Any]) -> NDArray[Any]:
        if array.dtype == self._dtype:
            return array
        return widen(array) if self.brightness else array.astype(self._dtype)

    def _widen(self, dtype: np.dtype[Any]) -> None:
        self._file.close()
        before, self._dtype = self._dtype, dtype
        old = self.path.rename(self.path.with_suffix(".old"))
        self._file = open(self.path, "wb")  # noqa: SIM115
        if self.count:
            rows = np.memmap(old, dtype=before, mode="r", shape=(self.count, *self._shape))
            at_once = max(1, WIDENED_AT_ONCE // max(1, rows[0].size))
            for start in range(0, self.count, at_once):
                self._file.write(np.ascontiguousarray(self._as_wide(rows[start : start + at_once])).data)
        old.unlink()


def map_in_threads(
    task: Callable[[Item], Result], items: Sequence[Item], cost: Callable[[Item], int]
) -> Iterator[Result]:
    """Results in order, a few computed ahead: so few that together they cost no more bytes than memory can spare."""
    with ThreadPoolExecutor(THREADS) as pool:
        waiting: deque[tuple[Future[Result], int]] = deque()
        spent = 0
        for item in items:
            price = cost(item)
            while waiting and (len(waiting) >= 2 * THREADS or spent + price > MOST_AHEAD):
                future, paid = waiting.popleft()
                spent -= paid
                yield future.result()
            waiting.append((pool.submit(task, item), price))
            spent += price
        for future, _ in waiting:
            yield future.result()
