"""The errors that users meet, and the suggestion of a near name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UsageError(Exception):
    """Wrong usage, settings or data: exit code 2."""


class RunError(Exception):
    """A run that cannot go on: exit code 1."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> UsageError:
    """Say which names are known, and which of them was probably meant."""
    names = sorted(known)
    near = get_close_matches(str(name), names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return UsageError(f"unknown {kind} {str(name)!r}{hint} (known: {', '.join(names)})")
