"""The errors that users meet, and the suggestion of a near name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ConfigDict, ValidationError


STRICT: ConfigDict = {"strict": True, "extra": "forbid", "allow_inf_nan": False}
"""How settings are checked: "0.5" is no number and true is no 1, as quiet conversions hide mistakes."""


MOST_LISTED = 40
"""Names that a message lists; of more, only the nearest is named."""


class UsageError(Exception):
    """Wrong usage, settings or data: the message names what is wrong and what is allowed; exit code 2.

    >>> from harmofl.settings import resolve
    >>> resolve("nuclei", "fedawg")
    Traceback (most recent call last):
    harmofl.errors.UsageError: unknown method 'fedawg'; did you mean 'fedavg'? ...
    """


class RefusalError(UsageError):
    """What a site will not do, or cannot; the reason names nothing of its own, and the server may read it."""


class RunError(Exception):
    """A run that cannot go on: the message says why, and what is kept; exit code 1.

    Unlike a `UsageError` it may pass: free the disk, wait for sites, and call `harmofl.train(..., resume=True)`.

    >>> issubclass(RunError, UsageError)
    False
    """


class DiskError(RunError):
    """A disk of this machine is full or broken: no site can go on, and no round counts."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> UsageError:
    """Say which name was probably meant and, unless they are many, which names there are."""
    names = sorted(known)
    near = get_close_matches(str(name), names, n=1) or [other for other in names if other.endswith(f".{name}")]
    hint = f"; did you mean {near[0]!r}?" if near else ""
    if len(names) > MOST_LISTED:
        names = [other for other in names if other.partition(".")[0] == str(name).partition(".")[0]] or names
    listed = "" if near and len(names) > MOST_LISTED else f" (known: {', '.join(names) or 'none'})"
    return UsageError(f"unknown {kind} {str(name)!r}{hint}{listed}")


LONGEST_VALUE = 200
"""Letters of a wrong value in an error."""


def describe(error: ValidationError, prefix: str = "") -> str:
    """One line that names each wrong setting, its value and what is allowed."""
    lines = []
    for problem in error.errors(include_url=False):
        name = prefix + ".".join(str(part) for part in problem["loc"] if part != "function-before")
        message = problem["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
        if problem["type"] == "too_short":  # pydantic's own words are a sentence of another form
            message = f"a list of at least {problem['ctx']['min_length']}"
        elif problem["type"] == "list_type":
            message = "a list, in square brackets"
        about_several = not problem["loc"]  # such a message names them itself
        value = _shorten(repr(problem["input"]))
        lines.append(f"{prefix}{message}" if about_several else f"{name} = {value}: must be {message}")
    return "; ".join(dict.fromkeys(lines))


def _shorten(value: str) -> str:
    """A value with an end: what somebody sends may have none, and what is allowed must still be read."""
    return value if len(value) <= LONGEST_VALUE else f"{value[:LONGEST_VALUE]}…"
