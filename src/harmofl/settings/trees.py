"""Settings as trees ({"section": {"name": value}}), as flat names ({"section.name": value}) and as TOML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harmofl.documents import LARGEST_TOML, parse_toml, read_text
from harmofl.errors import UsageError

Tree = dict[str, Any]


def nest(values: Mapping[str, Any]) -> Tree:
    """From {"section.name": value} to {"section": {"name": value}}."""
    tree: Tree = {}
    for name, value in values.items():
        *sections, last = name.split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
            if not isinstance(branch, dict):
                raise UsageError(f"unknown setting {name!r}: {section} is a value, not a section")
        branch[last] = value
    return tree


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """From {"section": {"name": value}} to {"section.name": value}."""
    values: dict[str, Any] = {}
    for name, value in tree.items():
        values |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return values


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Tree:
    """Lay one tree over another, section by section."""
    result = dict(below)
    for name, value in above.items():
        both = isinstance(value, dict) and isinstance(result.get(name), dict)
        result[name] = merge(result[name], value) if both else value
    return result


def read_toml(path: Path) -> Tree:
    """Read a settings file, or say in one line what is wrong with it."""
    try:
        return parse_toml(read_text(path, LARGEST_TOML))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise UsageError(f"{path}: not valid TOML: {error}") from None


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """Turn `section.name=value` texts into values, read as TOML or else as plain text."""
    parsed = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--set {assignment!r}: must be section.name=value")
        try:
            value = parse_toml(f"value = {text}")["value"]
        except ValueError:
            value = text.strip()
        parsed[name.strip()] = value
    return parsed
