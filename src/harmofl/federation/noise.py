"""Where the noise of differential privacy comes from.

Noise protects only against those who cannot guess it. In a simulation there is nobody to protect from, and it comes
from the run's seed. A hospital draws it from a key of its own, which the system's secure source made and which never
leaves: the seed of a run is known to the server. From one key, round and all that was received always comes the same
noise, so that a round that is repeated after a crash tells nothing new; another model, or other combined tensors, give
other noise, which does not cancel in a difference.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Generator, Tensor

from harmofl.data.images import seed_of
from harmofl.federation.messages import Request
from harmofl.files import PRIVATE, write_whole
from harmofl.runs.store import checksum
from harmofl.states import State, add_prefix

KEY, KEY_LENGTH = "noise.key", 32
SUMMANDS = 4
"""Normal numbers that make one: the sum of several hides in which order floating-point numbers lie (Holohan and
Braghin, 2021), by which a single one could be told apart."""


class Noise(Protocol):
    """A source of independent normal numbers."""

    def normal(self, like: Tensor, deviation: float) -> Tensor:
        """As many as a tensor has, in double precision, on its device."""

    def seed(self) -> int:
        """A seed that is as secret as the noise."""


class SeededNoise:
    """Noise that everybody who knows the seed can repeat: for simulations."""

    def __init__(self, *parts: object) -> None:
        self._parts = parts
        self._generator = Generator().manual_seed(seed_of(*parts, "noise"))

    def normal(self, like: Tensor, deviation: float) -> Tensor:
        """From torch's generator."""
        drawn = torch.randn(like.shape, generator=self._generator, dtype=torch.float64)
        return drawn.to(like.device) * deviation

    def seed(self) -> int:
        """From the same words, for another purpose."""
        return seed_of(*self._parts, "order")


class SecretNoise:
    """Noise that only the owner of a key can repeat: the output of SHAKE-256 over the key and a place."""

    def __init__(self, key: bytes, place: str) -> None:
        self._start = key + hashlib.sha256(place.encode()).digest()
        self._count = 0

    def normal(self, like: Tensor, deviation: float) -> Tensor:
        """By the method of Box and Muller."""
        number = like.numel()
        pairs = self._uniform(2, SUMMANDS * math.ceil(number / 2))
        radius, angle = np.sqrt(-2 * np.log(pairs[0])), 2 * np.pi * pairs[1]
        numbers = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
        drawn = numbers.reshape(SUMMANDS, -1).sum(axis=0)[:number] / math.sqrt(SUMMANDS)
        return torch.from_numpy(drawn).reshape(like.shape).to(like.device) * deviation

    def seed(self) -> int:
        """From the key, for another purpose."""
        return int.from_bytes(hashlib.shake_256(self._start + b"seed").digest(7), "little")

    def _uniform(self, rows: int, columns: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """Numbers in (0, 1], of 53 bits each."""
        self._count += 1
        stream = hashlib.shake_256(self._start + self._count.to_bytes(8, "little"))
        bits = np.frombuffer(stream.digest(8 * rows * columns), dtype="<u8")
        return ((bits >> np.uint64(11)) + 1).astype(np.float64).reshape(rows, columns) / 2.0**53


def shorten_and_disturb(tensors: State, centre: State, clip: float, deviation: float, noise: Noise) -> State:
    """Bring tensors together no farther than `clip` from a centre, and add noise to every number.

    In double precision, in the order of names. The same tensors if there is nothing to shorten and no noise.
    """
    changes = {name: tensors[name].double() - centre[name].double() for name in sorted(tensors)}
    length = math.sqrt(sum(float(change.square().sum()) for change in changes.values()))
    scale = min(1.0, clip / length) if length else 1.0
    if scale == 1 and not deviation:
        return tensors
    return {
        name: (centre[name].double() + scale * change + noise.normal(change, deviation)).to(tensors[name].dtype)
        for name, change in changes.items()
    }


def open_noise(seed: int | None, folder: Path, site: str, request: Request, purpose: str) -> Noise:
    """The noise of a site in a round.

    `seed`: of the run, in a simulation; None at a hospital, whose key then lies in the folder of its store.
    """
    if seed is not None:
        return SeededNoise(seed, request.round, site, purpose)
    received = checksum(request.state | add_prefix("combined", request.combined), str(request.counted))
    place = f"{request.run} {request.round} {purpose} {received}"
    return SecretNoise(_own_key(folder / KEY), place)


def _own_key(path: Path) -> bytes:
    """The site's key, made when there is none: nobody but its owner may read it."""
    if not path.exists():
        write_whole(path, secrets.token_bytes(KEY_LENGTH), PRIVATE)
    key = path.read_bytes()
    if len(key) != KEY_LENGTH:
        raise ValueError(f"{path.name}: {len(key)} bytes, not {KEY_LENGTH}; delete it, and another is made")
    return key
