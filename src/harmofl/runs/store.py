"""Versions of named tensors on disk, one file a round: the server's checkpoints, and what a site keeps."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from harmofl.documents import parse_json
from harmofl.files import write_whole
from harmofl.states import State

logger = logging.getLogger(__name__)


NOTES, CHECKSUM = "notes", "sha256"


class CorruptVersionError(Exception):
    """A file that cannot be read: cut short or damaged."""


def checksum(state: State, notes: str) -> str:
    """The SHA-256 of named tensors and notes."""
    total = hashlib.sha256(notes.encode())
    for name in sorted(state):
        tensor = state[name].contiguous()
        total.update(f"\0{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        total.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def check(about: Mapping[str, str], state: State) -> None:
    """Raise an error if a file is not as it was written; files of before 0.2 have no checksum."""
    if set(about) - {NOTES, CHECKSUM}:
        raise ValueError("damaged: it holds something else than was written")
    if CHECKSUM in about and about[CHECKSUM] != checksum(state, about[NOTES]):
        raise ValueError("damaged: its checksum differs")


class Store:
    """A folder of versions, each written whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, version: int) -> Path:
        """Where a version lies."""
        return self.folder / f"round-{version:05d}.safetensors"

    def versions(self) -> list[int]:
        """The versions there are, oldest first."""
        return sorted(int(path.stem[6:]) for path in self.folder.glob("round-*.safetensors") if path.stem[6:].isdigit())

    def latest(self, at_most: int) -> int | None:
        """The newest version up to a round, as a site that missed rounds has no version of its own for them."""
        return max((version for version in self.versions() if version <= at_most), default=None)

    def save(self, version: int, state: State, notes: Mapping[str, Any] | None = None) -> None:
        """Write one version with JSON notes."""
        text = json.dumps(notes or {})
        write_whole(self.path(version), save(state, metadata={NOTES: text, CHECKSUM: checksum(state, text)}))

    def load(self, version: int) -> tuple[State, dict[str, Any]]:
        """Read one version and its notes."""
        try:
            with safe_open(self.path(version), framework="pt") as file:
                about = file.metadata() or {}
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            check(about, state)
            notes = parse_json(about[NOTES])
            if not isinstance(notes, dict):
                raise ValueError("its notes are no table")
            return state, notes
        except (SafetensorError, OSError, KeyError, ValueError, RuntimeError) as error:
            raise CorruptVersionError(f"{self.path(version)}: {error}") from None

    def newest(self, at_most: int) -> State:
        """The newest state up to a round that can be read; nothing if there is none."""
        for version in reversed([version for version in self.versions() if version <= at_most]):
            try:
                return self.load(version)[0]
            except CorruptVersionError as error:
                logger.warning("using an older state, as the newest cannot be read: %s", error)
        return {}

    def remove_between(self, first: int, last: int) -> None:
        """Remove the versions after one and before another."""
        for version in self.versions():
            if first < version < last:
                self.path(version).unlink(missing_ok=True)

    def prune(self, keep: Iterable[int]) -> None:
        """Remove every version that none of these rounds would start from."""
        needed = {self.latest(at_most=version) for version in keep}
        for version in self.versions():
            if version not in needed:
                self.path(version).unlink(missing_ok=True)
