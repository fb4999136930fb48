"""A plan in words (plan.md) and as settings that `harmofl train --config` takes (plan.toml)."""

from __future__ import annotations

import os
import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from harmofl.analysis.plan import Plan, Step, make_plan
from harmofl.analysis.survey import Survey
from harmofl.errors import UsageError
from harmofl.events import Watch, ignore
from harmofl.files import write_whole
from harmofl.reporting.comparison_page import (
    HEADINGS,
    compare_images,
    comparison_of,
    describe_site,
    settings_to_compare,
)
from harmofl.reporting.table_formats import markdown_escape, markdown_line
from harmofl.settings import Settings, Tree, flatten, read_toml, resolve

WORDS, SETTINGS = "plan.md", "plan.toml"
WIDTH = 110
PLAIN = ("seed", "device")
SECTIONS = ("data", "model", "training", "federation", "prediction", "plugins")
PLACES = ("data.folder", "data.cache")


def plan_images(
    task: str | None,
    data: Path | None = None,
    preset: str | None = None,
    config: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    watch: Watch = ignore,
) -> Plan:
    """Plan a training on the images of a folder, or of synthetic hospitals."""
    given = dict(settings or {})
    wanted = settings_to_compare(task, data, preset, config, without_method(given))
    compared = compare_images(as_scanned(wanted), watch)
    plan = make_plan(wanted, compared.comparison).with_choices(own_choices(given, config))
    if given != without_method(given):
        resolve(file=tomllib.loads(to_toml(plan)))  # a method's settings are known once the method is
    return plan


def own_choices(settings: Mapping[str, Any], config: Path | None = None) -> dict[str, Any]:
    """What of a run the user has chosen already, but for a file's method and where the images lie."""
    given = {**flatten(read_toml(config) if config else {}), **settings}
    kept = {name: value for name, value in given.items() if name.partition(".")[0] in (*PLAIN, *SECTIONS)}
    kept |= {name: value for name, value in settings.items() if name not in without_method(settings)}
    return {name: value for name, value in kept.items() if name not in PLACES}


def without_method(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by which images are looked at: the plan names the method, or keeps the user's."""
    return {name: value for name, value in settings.items() if not name.startswith("method.")}


def as_scanned(settings: Settings) -> Settings:
    """The same settings with volumes of their own spacing, as a plan must know it."""
    return settings.with_values("data", spacing=None)


def plan_surveys(settings: Settings, surveys: Mapping[str, Survey], choices: Mapping[str, Any]) -> Plan:
    """Plan a training from what sites told, but for what the user has chosen."""
    return make_plan(settings, comparison_of(settings, surveys)).with_choices(choices)


def write_plan(out: Path, plan: Plan, images_here: bool = True) -> list[Path]:
    """Write the plan's settings, and last its words; a file of settings that the user has changed is not replaced."""
    settings, written = to_toml(plan, images_here), out / SETTINGS
    if written.is_file() and written.read_text(encoding="utf-8") != settings:
        raise UsageError(
            f"{written} already exists and says something else: rename it if the changes are yours, or choose another "
            "--out"
        )
    write_whole(written, settings)
    write_whole(out / WORDS, to_words(plan, images_here))
    return [written, out / WORDS]


def to_toml(plan: Plan, images_here: bool = True) -> str:
    """Settings with their reasons as comments; TOML that a run's settings are read from."""
    settings = plan.settings
    lines = ["# Made by `harmofl plan` from what the hospitals reported. Every number may be changed.", ""]
    lines += [_line("task", settings.task), _line("preset", settings.preset)]
    lines += [_line(step.name, step.value) for step in plan.steps if step.name in PLAIN]
    sections: dict[str, list[Step]] = {}
    for step in plan.steps:
        if step.name not in PLAIN:
            sections.setdefault(step.name.partition(".")[0], []).append(step)
    if images_here and settings.data.folder:
        where = Step("data.folder", os.path.abspath(settings.data.folder), "Where the images lie.")
        sections.setdefault("data", []).insert(0, where)
    for name, steps in sections.items():
        lines += ["", f"[{name}]"]
        for step in steps:
            lines += [*_comment(step.reason), _line(step.name.partition(".")[2], step.value)]
    return "\n".join(lines) + "\n"


def _line(name: str, value: Any) -> str:
    tree: Tree = {name: value}
    if isinstance(value, list) and not any(isinstance(each, str) for each in value):
        return f"{name} = {value!r}"  # in one line, where tomli_w would take one for each number
    return tomli_w.dumps(tree).rstrip("\n")


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, WIDTH)]


def to_words(plan: Plan, images_here: bool = True) -> str:
    """The plan as Markdown."""
    comparison, command = plan.comparison, "train" if images_here else "deploy run"
    sites = [describe_site(site, survey) for site, survey in comparison.surveys.items()]
    steps = [(step.name, str(step.value), step.reason) for step in plan.steps]
    parts = [
        f"# Plan: {plan.settings.task}, {comparison.images}",
        f"Made from what {len(comparison.surveys)} hospitals tell of their training images; the budget is that of the "
        f"preset `{plan.settings.preset}`.",
        "## What to train",
        _table(("setting", "value", "why"), steps),
        *(["## To keep in mind", "\n".join(f"- {note}" for note in plan.notes)] if plan.notes else []),
        "## What the hospitals reported",
        _table(HEADINGS, sites),
        "## How",
        f"```\nharmofl {command} --config {SETTINGS} --out runs/planned\n```",
        f"Every number of `{SETTINGS}` may be changed, there or with `--set NAME=VALUE`; what it does not name is the "
        "preset's.",
    ]
    return "\n\n".join(parts) + "\n"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[markdown_escape(cell) for cell in row] for row in (headings, *rows)]
    return "\n".join(map(markdown_line, [cells[0], ["---"] * len(headings), *cells[1:]]))
