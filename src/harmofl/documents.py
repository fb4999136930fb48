"""JSON and TOML whose size and depth are limited before they are parsed: a file or a message may hold anything."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

DEEPEST = 64
LARGEST_JSON = 2**28
LARGEST_TOML = 2**20
MEGABYTE = 2**20
MOST_PARTS = 16
"""Of a dotted key in TOML; the time that it takes grows with their square."""

_JSON_TEXT = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_TOML_TEXT = re.compile(
    r'"""(?:[^\\]|\\.)*?(?:"""|\Z)|' + r"'''.*?(?:'''|\Z)|" + r'"(?:[^"\\\n]|\\.)*+"?|' + r"'[^'\n]*+'?|#[^\n]*+",
    re.DOTALL,
)
_WORD = r"[^\s.,=\[\]{}#]"
_LONG_KEY = re.compile(rf"(?<!{_WORD})(?:{_WORD}++[ \t]*+\.[ \t]*+){{{MOST_PARTS}}}")


def parse_json(text: str | bytes, largest: int = LARGEST_JSON) -> Any:
    """Read JSON; ValueError if it is none, too large or nested too deeply.

    >>> parse_json('{"a": [1, 2]}')
    {'a': [1, 2]}
    >>> parse_json("[" * 1000)
    Traceback (most recent call last):
    ValueError: nested more than 64 deep
    """
    words = text.decode("utf-8") if isinstance(text, bytes) else text
    _check_size(len(words), largest)
    if words.count("[") + words.count("{") > DEEPEST:
        _check_depth(_JSON_TEXT.sub("", words))
    return json.loads(words)


def parse_toml(text: str, largest: int = LARGEST_TOML) -> dict[str, Any]:
    """Read TOML; ValueError if it is none, too large, nested too deeply, or holds a NUL character."""
    _check_size(len(text), largest)
    plain = _TOML_TEXT.sub("x", text)
    _check_depth(plain)
    if _LONG_KEY.search(plain):
        raise ValueError(f"a key of more than {MOST_PARTS} parts")
    tree = tomllib.loads(text)
    if "\\u0000" in text.lower() or "\\x00" in text.lower():
        _refuse_nul(tree)
    return tree


def read_json(path: Path, largest: int = LARGEST_JSON) -> Any:
    """Read a file of JSON, whose size is seen first; OSError or ValueError say what is wrong with it."""
    _check_size(path.stat().st_size, largest)
    return parse_json(path.read_bytes(), largest)


def read_text(path: Path, largest: int) -> str:
    """Read a file of text, whose size is seen first."""
    _check_size(path.stat().st_size, largest)
    return path.read_text(encoding="utf-8")


def _check_size(size: int, largest: int) -> None:
    if size > largest:
        raise ValueError(f"{size / MEGABYTE:.0f} MB: at most {largest / MEGABYTE:.0f} are read")


def _check_depth(brackets: str) -> None:
    depth = 0
    for letter in re.findall(r"[\[\]{}]", brackets):
        depth += 1 if letter in "[{" else -1
        if depth > DEEPEST:
            raise ValueError(f"nested more than {DEEPEST} deep")


def _refuse_nul(tree: object) -> None:
    """Raise an error for text that no path and no name may hold."""
    waiting = [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str) and "\0" in value:
            raise ValueError(f"{value!r:.80} holds a NUL character")
