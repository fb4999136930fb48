"""Tables of methods, tasks, presets and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args, get_origin

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from harmofl.cli.tables import console, make_table

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


def show_methods() -> None:
    """Every method with its paper, idea, settings and defaults."""
    from harmofl import registry

    table = make_table("--method", "idea", "settings", whole=["--method"], show_lines=True)
    for method in registry.methods:
        own = {f"method.{name}": value for name, value in method.settings.items()}
        values = own | dict(method.defaults) | dict(method.requires)
        settings = "\n".join(
            [
                *(f"{name}, not set" if value is None else f"{name} = {value!r}" for name, value in values.items()),
                *map(str, method.requires_where),
            ]
        )
        limit = f"FedAvg at: {method.limit}" if method.limit else ""
        idea = Text("\n".join(filter(None, (method.idea, limit)))).append(f"\n{method.paper}", "dim")
        table.add_row(Text(method.key, "bold"), idea, Text(settings))
    console().print(table)


def show_tasks() -> None:
    """Every task with its sites and presets, then every setting of a run."""
    from harmofl import registry

    shown = console()
    named = ("--task", "score", "synthetic sites")
    table = make_table("--task", "what", "score", "synthetic sites", "with --data", whole=named, show_lines=True)
    for name in registry.tasks.names():
        task = registry.tasks.find(name)
        synthetic = "\n".join(task.phantom.sites) if task.phantom else "none"
        table.add_row(Text(name, "bold"), task.title, task.main_score, Text(synthetic), Text(task.about_data))
    shown.print(table)
    for name in registry.tasks.names():
        shown.print(_presets_of(name))
    shown.print(_every_setting())


def _presets_of(name: str) -> Table:
    from harmofl import registry
    from harmofl.settings import flatten

    presets = {preset: flatten(dict(values)) for preset, values in registry.tasks.find(name).presets.items()}
    settings = dict.fromkeys(key for values in presets.values() for key in values)
    title, tight = f"What the presets of {name} set", {"box": SIMPLE_HEAD, "pad_edge": False, "padding": (0, 1, 0, 0)}
    table = make_table("setting", *presets, whole=["setting"], title=title, **tight)
    for setting in settings:
        table.add_row(_condition(setting), *(str(values.get(setting, "")) for values in presets.values()))
    return table


def _condition(setting: str) -> str:
    """A setting of a preset by the name that one types, and for what it is meant if not for every run."""
    from harmofl import registry
    from harmofl.settings.resolution import REAL_IMAGES, VOLUMES

    first, _, rest = setting.partition(".")
    meant = {REAL_IMAGES: "with --data", VOLUMES: "with data.dimensions=3"}
    if first in meant:
        return f"{_condition(rest)} ({meant[first]})"
    method, _, own = rest.partition(".")
    return f"{first}.{own} ({method} only)" if method in registry.methods else setting


def _every_setting() -> Table:
    from harmofl.settings import Section, Settings

    title = "Every setting; presets and methods change some defaults"
    table = make_table("--set", "default", "meaning", whole=["--set"], title=title)
    for name, info in Settings.model_fields.items():
        section = info.annotation
        if isinstance(section, type) and issubclass(section, Section):
            for inner, field in section.model_fields.items():
                table.add_row(f"{name}.{inner}", str(field.default), _meaning(field))
        elif name != "method":
            table.add_row(name, "" if info.is_required() else str(info.default), _meaning(info))
    table.add_row("method.*", "", "the settings of the chosen method: see `harmofl methods`")
    return table


def _meaning(field: FieldInfo) -> str:
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    return escape(f"{field.description} ({', '.join(map(str, choices))})" if choices else str(field.description))
