"""The file that describes an experiment: which methods, variations and seeds, and what it shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harmofl import registry
from harmofl.errors import STRICT, UsageError, describe, unknown_name
from harmofl.files import folder_name, write_whole
from harmofl.plugins import load_plugins, plugins_in
from harmofl.settings import Tree, flatten, merge, read_toml

Name = Annotated[str, Field(pattern="[A-Za-z0-9]", description="at least a letter or a digit, as it names a folder")]
Seed = Annotated[int, Field(ge=0, lt=2**31)]

GIVEN_ELSEWHERE = {
    "task": "task",
    "preset": "preset",
    "seed": "seeds",
    "method": "the row's method",
    "method.name": "the row's method",
    "data.folder": "--data",
}
"""Settings that a plan's `settings` may not hold, and what gives them instead."""


NOT_INHERITED = ("extends", "title", "paper")
"""Fields that a file does not take over from the one that it extends."""


class Part(BaseModel):
    """A part of the file: frozen, and strict about names."""

    model_config = ConfigDict(frozen=True, **STRICT)


class Row(Part):
    """A row of the table: a method, perhaps with settings of its own."""

    name: Name
    method: str
    settings: Tree = {}
    seeds: list[Seed] | None = Field(None, min_length=1)
    """Its own, where a row costs more than its further seeds teach; the plan's if unset."""


class Variation(Part):
    """A change of settings for every row, for those in `only`, or for all but those in `without`."""

    name: Name
    settings: Tree = {}
    only: list[str] | None = Field(None, min_length=1)
    without: list[str] = []

    def has(self, row: str) -> bool:
        """Whether a row meets it."""
        return (self.only is None or row in self.only) and row not in self.without


class Paper(Part):
    """What a paper printed: per row one number, or number and spread, for each column; the last is the average."""

    source: str
    columns: list[str] = Field(min_length=1)
    scores: dict[str, list[float | Annotated[list[float], Field(min_length=2, max_length=2)]]]
    digits: Literal[1, 2] = 2
    """Digits after the point, as printed."""


class Plan(Part):
    """An experiment."""

    title: str
    extends: str | None = None
    """Another file, relative to this one, whose fields hold where this one is silent."""
    task: str
    shows: Literal["table", "convergence", "curve", "samples"] = "table"
    """`samples`: images of every site; nothing is trained."""
    axis: str | None = None
    """The setting along which a curve runs."""
    preset: str | None = None
    seeds: list[Seed] = Field([0], min_length=1)
    settings: Tree = {}
    rows: list[Row] = []
    variations: list[Variation] = []
    baseline: str | None = None
    """The variation with which the others are compared; the first if unset."""
    reference: str | None = None
    """The row with which the others are compared; FedAvg's if unset, or the first if there is none."""
    hold_out: Literal["each"] | None = None
    """Each site in turn takes no part, and the model is scored on it."""
    divide_rounds_by_local_epochs: bool = False
    """Divide the rounds by the local epochs, so that every variation passes over the images equally often."""
    scores: Literal["test", "validation"] = "test"
    """On which images the scores that it shows were taken; a choice between methods is made on validation images."""
    paper: Paper | None = None
    """What a paper printed; in a file, the name of another file stands for what that one has."""

    @property
    def reference_row(self) -> str:
        """The row with which the others are compared."""
        fedavg = next((row.name for row in self.rows if row.method == "fedavg"), None)
        return self.reference or fedavg or (self.rows[0].name if self.rows else "")

    @property
    def usual_variation(self) -> str:
        """The variation with which the others are compared; empty if nothing varies."""
        return self.baseline or (self.variations[0].name if self.variations else "")

    def row(self, name: str) -> Row:
        """The row of that name."""
        return next(row for row in self.rows if row.name == name)

    def seeds_of(self, row: str) -> list[Seed]:
        """The seeds with which a row is run."""
        return self.row(row).seeds or self.seeds


def read_plan(path: Path) -> Plan:
    """Read an experiment's file, or say in one line which field is wrong, and what is allowed."""
    return _read(path, ())[1]


def copy_plan(path: Path, folder: Path) -> None:
    """Write an experiment's file into a folder, under its own name; with what it takes from other files."""
    tree, plan = _read(path, ())
    text = path.read_text(encoding="utf-8")
    if plan.extends or isinstance(read_toml(path).get("paper"), str) or plugins_in(plan.settings):
        text = tomli_w.dumps({name: value for name, value in tree.items() if name != "extends"})
    write_whole(folder / path.name, text)


def _read(path: Path, extended_by: tuple[Path, ...]) -> tuple[Tree, Plan]:
    """Read a file and those that it extends, each a valid plan of its own; `extended_by`: the files that led here."""
    try:
        tree = read_toml(path)
        if "extends" in tree:
            base, _ = _read(_extended_file(path, tree["extends"], extended_by), (*extended_by, path.resolve()))
            tree = _extend(base, tree)
        if isinstance(tree.get("paper"), str):
            tree = tree | {"paper": read_toml(_other_file(path, "paper", tree["paper"])).get("paper")}
        tree = _find_plugins(tree, path.parent)
        return tree, parse_plan(tree)
    except UsageError as error:
        message = str(error)
        raise UsageError(message if message.startswith(str(path)) else f"{path}: {message}") from None


def _find_plugins(tree: Tree, folder: Path) -> Tree:
    """The same file with the paths of plugins that lie beside it; others are seen from where the command runs."""
    settings = tree.get("settings")
    if not isinstance(settings, dict) or not (named := plugins_in(settings)):
        return tree
    files = [str((folder / file).resolve()) if (folder / file).is_file() else file for file in named]
    return merge(tree, {"settings": {"plugins": {"files": files}}})


def _other_file(path: Path, field: str, name: object) -> Path:
    if not isinstance(name, str):
        raise UsageError(f"{field} = {name!r}: must be the name of another experiment's file")
    file = path.parent / name
    if not file.is_file():
        known = [other.name for other in path.parent.glob("*.toml") if other.name != path.name]
        raise unknown_name(f"file in {field}", name, known)
    return file


def _extended_file(path: Path, name: object, extended_by: tuple[Path, ...]) -> Path:
    file = _other_file(path, "extends", name)
    if file.resolve() in (*extended_by, path.resolve()):
        raise UsageError(f"extends = {name!r}: the files extend one another in a circle")
    return file


def _extend(base: Tree, tree: Tree) -> Tree:
    """Lay a file over the one that it extends: settings are merged, everything else is replaced."""
    return merge({name: value for name, value in base.items() if name not in NOT_INHERITED}, tree)


def parse_plan(tree: Tree) -> Plan:
    """Load the plugins that it names; check names, then values, then what belongs together."""
    if isinstance(tree.get("settings"), dict):
        load_plugins(plugins_in(tree["settings"]))
    _check_fields(Plan, tree)
    tree = tree | {"rows": _expand_rows(tree.get("rows", [])), "variations": tree.get("variations", [])}
    for field, model in (("rows", Row), ("variations", Variation)):
        for place, part in enumerate(_tables(tree, field), start=1):
            _check_fields(model, part, f"{field}[{place}].")
    if isinstance(tree.get("paper"), dict):
        _check_fields(Paper, tree["paper"], "paper.")
    try:
        plan = Plan.model_validate(tree)
    except ValidationError as error:
        raise UsageError(describe(error)) from None
    _check_whole(plan)
    return plan


def _expand_rows(rows: Any) -> Any:
    """Turn rows that are only a method's key into tables, under the method's own name."""
    if not isinstance(rows, list):
        return rows
    return [{"name": registry.methods.find(row).name, "method": row} if isinstance(row, str) else row for row in rows]


def _tables(tree: Tree, field: str) -> list[Tree]:
    parts = tree[field]
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        allowed = "a list of methods and tables" if field == "rows" else "a list of tables"
        raise UsageError(f"{field} = {parts!r}: must be {allowed}, each begun with [[{field}]] or in braces")
    return parts


def _check_fields(model: type[Part], tree: Tree, prefix: str = "") -> None:
    for name in tree.keys() - model.model_fields.keys():
        raise unknown_name("field", prefix + name, [prefix + known for known in model.model_fields])
    for name, info in model.model_fields.items():
        if info.is_required() and name not in tree:
            raise UsageError(f"{prefix}{name} is missing")


def _check_whole(plan: Plan) -> None:
    registry.tasks.find(plan.task)
    if plan.shows == "samples":
        _check_trains_nothing(plan)
    elif not plan.rows:
        raise UsageError(f"rows = []: shows = {plan.shows!r} needs at least one, such as ['fedavg']")
    if (plan.shows == "curve") != (plan.axis is not None):
        raise UsageError(f"axis = {plan.axis!r}: only a curve has an axis, such as 'method.radius'")
    rows = [row.name for row in plan.rows]
    check_distinct("rows", map(folder_name, rows))
    check_distinct("variations", (folder_name(variation.name) for variation in plan.variations))
    check_distinct("seeds", plan.seeds)
    _check_settings("settings", plan.settings)
    for row in plan.rows:
        registry.methods.find(row.method)
        check_distinct(f"seeds of row {row.name!r}", row.seeds or ())
        _check_settings(f"settings of row {row.name!r}", row.settings)
    for variation in plan.variations:
        _check_settings(f"settings of variation {variation.name!r}", variation.settings)
        _check_known("row", [*(variation.only or ()), *variation.without], rows)
    _check_known("baseline", filter(None, [plan.baseline]), [variation.name for variation in plan.variations])
    _check_known("reference", filter(None, [plan.reference]), rows)
    if plan.paper:
        _check_paper(plan.paper, rows)
    if plan.hold_out and plan.scores == "validation":
        raise UsageError("scores = 'validation': a site that takes no part (hold_out) has no validation images")


def _check_trains_nothing(plan: Plan) -> None:
    for name in ("rows", "variations", "hold_out", "paper"):
        if getattr(plan, name):
            raise UsageError(f"{name}: shows = 'samples' trains nothing, so there is none")


def check_distinct(field: str, values: Iterable[object]) -> None:
    """Raise an error if a value occurs twice."""
    for value, count in Counter(values).items():
        if count > 1:
            raise UsageError(f"{field}: {value!r} occurs {count} times, and each has a folder of its own")


def _check_settings(where: str, settings: Mapping[str, Any]) -> None:
    named = flatten(settings)
    for name, instead in GIVEN_ELSEWHERE.items():
        if name in named:
            raise UsageError(f"{where}: {name} is given by {instead}")


def _check_known(what: str, names: Iterable[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise unknown_name(what, name, known)


def _check_paper(paper: Paper, rows: Sequence[str]) -> None:
    _check_known("row", paper.scores, rows)
    for name, scores in paper.scores.items():
        if len(scores) != len(paper.columns):
            raise UsageError(f"paper.scores.{name}: {len(scores)} numbers for {len(paper.columns)} columns")
