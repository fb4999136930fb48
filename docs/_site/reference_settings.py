"""The reference of every setting, from the one schema, the methods and the presets of the tasks."""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic_core import PydanticUndefined

from harmofl import registry
from harmofl.settings import Section, Settings, flatten


def settings_reference() -> str:
    """A table for each section, each method and each preset."""
    return "\n\n".join([*_sections(), _methods(), _presets()])


def _sections() -> list[str]:
    sections = {
        name: info.annotation
        for name, info in Settings.model_fields.items()
        if isinstance(info.annotation, type) and issubclass(info.annotation, Section)
    }
    top = {name: info for name, info in Settings.model_fields.items() if name not in (*sections, "method")}
    parts = [f"## The run\n\n{_table('', top, Settings)}"]
    for name, section in sections.items():
        parts.append(f"## `[{name}]`\n\n{section.__doc__}\n\n{_table(f'{name}.', section.model_fields, section)}")
    return parts


def _table(prefix: str, fields: Any, section: type[Section]) -> str:
    schema = section.model_json_schema()["properties"]
    rows = [
        _row(f"`{prefix}{name}`", _default(info.default), _allowed(schema[name]), _escape(info.description or ""))
        for name, info in fields.items()
    ]
    return "\n".join(["| setting | default | allowed | meaning |", "|---|---|---|---|", *rows])


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "needed"
    return "unset" if value is None else f"`{json.dumps(value)}`"


def _allowed(schema: dict[str, Any]) -> str:
    """What a value may be, in words."""
    if "anyOf" in schema:
        parts = [_allowed(part) for part in schema["anyOf"] if part.get("type") != "null"]
        return ", or ".join(part for part in parts if part)
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    kinds = {"integer": "a whole number", "number": "a number", "boolean": "`true` or `false`", "string": "a text"}
    limits = {
        "minimum": "at least",
        "exclusiveMinimum": "more than",
        "maximum": "at most",
        "exclusiveMaximum": "less than",
    }
    bounds = [f"{words} {_number(schema[key])}" for key, words in limits.items() if key in schema]
    if schema.get("type") == "array":
        return "a list"
    return ", ".join([kinds.get(schema.get("type", ""), "a value"), *bounds])


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _methods() -> str:
    rows = [_row(f"`{method.key}`", _escape(method.idea), _values(method.settings)) for method in registry.methods]
    table = "\n".join(["| method | idea | settings, with their defaults |", "|---|---|---|", *rows])
    return f"## `[method]`\n\n`method.name` is the method; its pieces' fields are its settings.\n\n{table}"


def _values(settings: dict[str, Any]) -> str:
    return ", ".join(f"`{name} = {json.dumps(value)}`" for name, value in settings.items()) or "–"


def _presets() -> str:
    parts = ["## Presets\n\nWhat a preset sets for a task, over the defaults above."]
    for task in registry.tasks:
        names = list(task.presets)
        values = {name: flatten(task.presets[name]) for name in names}
        settings = sorted({setting for preset in values.values() for setting in preset})
        rows = [
            f"| `{setting}` | " + " | ".join(_cell(values[name].get(setting)) for name in names) + " |"
            for setting in settings
        ]
        head = ["| setting | " + " | ".join(f"`{name}`" for name in names) + " |", "|---|" + "---|" * len(names)]
        parts.append("\n".join([f"### Task `{task.name}`", "", *head, *rows]))
    return "\n\n".join(parts)


def _cell(value: Any) -> str:
    return "" if value is None else f"`{json.dumps(value)}`"


def _escape(text: str) -> str:
    """Text for a cell of a table; settings that it names are code."""
    text = text.replace("|", "\\|").replace("[low, high]", "`[low, high]`").replace("[0, 1]", "`[0, 1]`")
    text = text.replace("see the first table", "the tasks are below, with their presets")
    return re.sub(r"\b((?:data|model|training|federation|method)\.[a-z_]+)\b", r"`\1`", text)
