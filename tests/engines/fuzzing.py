"""Seeded damage: bytes and values that no program of ours would write."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from harmofl.errors import RunError, UsageError

DEEP = "[" * 5000 + "]" * 5000
ODD: list[Any] = [None, True, -1, 0, 2**63, 2**200, 1e308, -0.5, "", "x", "\0", "../..", [], [[]], {}, {"a": {}}]
TEXTS = ["\0", "\\u0000", "[" * 300, "{" * 300, DEEP, '"', "\n", "=", "a." * 400, "1e999", "NaN", "\udcff", "é", "-"]
PATIENCE = 20


def damaged_bytes(content: bytes, chance: random.Random) -> bytes:
    """Some bytes flipped, dropped, doubled, cut off or put in."""
    data = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 8])):
        place = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0 if place < len(data):
                data[place] ^= 1 << chance.randrange(8)
            case 1:
                del data[place:]
            case 2:
                del data[place : place + chance.randrange(1, 20)]
            case 3:
                data[place:place] = data[place : place + chance.randrange(1, 50)]
            case _:
                data[place:place] = chance.choice(TEXTS).encode(errors="surrogateescape")
    return bytes(data)


def damaged_tree(tree: Any, chance: random.Random) -> Any:
    """One value of a tree replaced, dropped or doubled."""
    copy = json.loads(json.dumps(tree))
    places = list(_places(copy))
    if not places:
        return chance.choice(ODD)
    holder, key = chance.choice(places)
    match chance.randrange(4):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[str(chance.choice(["x", "", "a" * 300, "\0"]))] = holder[key]
        case _:
            holder[key] = chance.choice(ODD)
    return copy


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in list(pairs):
        yield tree, key
        yield from _places(value)


def damaged_json(content: bytes, chance: random.Random) -> bytes:
    """A document of JSON with another value, or with damaged bytes."""
    if chance.random() < 0.6:
        return json.dumps(damaged_tree(json.loads(content), chance)).encode()
    return damaged_bytes(content, chance)


@contextmanager
def in_time(seconds: int = PATIENCE) -> Iterator[None]:
    """A hang is an error."""

    def stop(number: int, frame: object) -> None:
        raise AssertionError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def try_cases(count: int, seed: str, case: Callable[[random.Random], None]) -> int:
    """Run so many cases; an error that a user may meet is fine, and every other one names the case. Return how many."""
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        try:
            with in_time():
                case(chance)
        except (UsageError, RunError, OSError):
            continue
        except BaseException as error:
            raise AssertionError(f"{seed}, case {number}: {error!r}") from error
    return count
