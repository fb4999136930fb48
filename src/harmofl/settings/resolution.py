"""How a run's settings are put together: schema, task's preset, method's defaults, file, single settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from harmofl import registry
from harmofl.errors import UsageError, unknown_name
from harmofl.plugins import loaded_plugins, plugins_in
from harmofl.settings.schema import Settings, validate
from harmofl.settings.trees import Tree, flatten, merge, nest

if TYPE_CHECKING:
    from harmofl.methods.method import Method

OF_ONE_TASK = ("sites", "channels", "classes")
"""Choices of a file that mean nothing for another task."""

REAL_IMAGES = "real_images"
"""The part of a preset that holds for images of a folder, not of a phantom."""

VOLUMES = "volumes"
"""The part of a preset that holds for data.dimensions = 3; it may have a part for images of a folder, too."""

ADDED_SECTIONS = ("prediction", "privacy")
"""What a whole file written by 0.1 lacks."""


def resolve(
    task: str | None = None,
    method: str | Method | None = None,
    preset: str | None = None,
    file: Tree | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> tuple[Settings, Method]:
    """Lay the layers over one another: schema, task's preset, method's defaults, file, overrides."""
    written, given = Layer.of(file or {}), Layer.of(nest(overrides or {}))
    task = task or given.task or written.task
    if not task:
        raise UsageError("no task given: name one with --task or in the configuration file")
    chosen_task = registry.tasks.find(task)
    chosen = _find_method(method or given.method or written.method)
    if given.method and not chosen.is_called(given.method):
        raise UsageError(f"method.name = {given.method!r}: --method says {chosen.key!r}")
    preset = preset or given.preset or written.preset or "small"
    if preset not in chosen_task.presets:
        raise unknown_name("preset", preset, chosen_task.presets)

    folder = given.folder if given.names_folder else written.folder
    dimensions = given.dimensions or written.dimensions or 2
    written = written.own_choices(chosen_task.name, chosen, preset, bool(folder), dimensions)
    base = preset_values(chosen_task.presets[preset], folder, dimensions)
    for values in (_wishes_for(chosen, base.pop("method", {})), written.of_method, given.of_method):
        chosen = _with_settings(chosen, values)
    tree = _lay(base, chosen, written, given)
    names = {"task": chosen_task.name, "preset": preset, "method": {"name": chosen.key} | chosen.settings}
    files = {"files": list(dict.fromkeys([*map(os.path.abspath, plugins_in(tree)), *loaded_plugins()]))}
    settings = validate(tree | names | {"plugins": merge(tree.get("plugins", {}), files)})
    _check_requirements(settings, chosen)
    chosen_task.check(settings)
    if settings.model.statistics == "site" and settings.model.norm != "batch":
        raise UsageError(f"model.statistics = 'site': model.norm = {settings.model.norm!r} keeps no statistics")
    return settings, chosen.with_statistics(settings.model.statistics)


def _lay(base: Tree, method: Method, written: Layer, given: Layer) -> Tree:
    """Lay what a method wants over a preset, and a file and single settings over both."""
    schema = Settings(task="", method={}).model_dump()
    wanted = nest(method.defaults)
    for _ in range(2):  # what the method requires may depend on the others
        tree = reduce(merge, (base, wanted, written.sections, given.sections))
        wanted = nest({**method.defaults, **method.requirements(flatten(merge(schema, tree)))})
    return tree


def preset_values(preset: Mapping[str, Any], folder: str | None, dimensions: object = 2) -> Tree:
    """What a preset sets: some of it, under `real_images` and `volumes`, for such images only."""
    values = dict(preset)
    of_volumes = values.pop(VOLUMES, {})
    if dimensions == 3:
        values = merge(values, of_volumes)
    of_folder = values.pop(REAL_IMAGES, {})
    return merge(values, of_folder) if folder else values


@dataclass(frozen=True)
class Layer:
    """One place that settings come from: what it names, what it sets of the run, what it sets of the method."""

    task: str | None
    method: str | None
    preset: str | None
    sections: Tree
    of_method: Tree

    @classmethod
    def of(cls, tree: Tree) -> Layer:
        """Take a tree apart."""
        of_method = tree.get("method", {})
        if not isinstance(of_method, dict):
            raise UsageError(f"method = {of_method!r}: must be a section; name it with method.name")
        task, preset, method = (
            str(name) if name else None for name in (tree.get("task"), tree.get("preset"), of_method.get("name"))
        )
        sections = {name: value for name, value in tree.items() if name not in ("task", "preset", "method")}
        settings = {name: value for name, value in of_method.items() if name != "name"}
        return cls(task, method, preset, sections, settings)

    @property
    def folder(self) -> str | None:
        """Where the images lie, if it says so."""
        data = self.sections.get("data", {})
        folder: str | None = data.get("folder") if isinstance(data, dict) else None
        return folder

    @property
    def dimensions(self) -> object:
        """Whether images are slices (2) or volumes (3), if it says so."""
        data = self.sections.get("data", {})
        return data.get("dimensions") if isinstance(data, dict) else None

    @property
    def names_folder(self) -> bool:
        """Whether it says where the images lie; an empty name asks for the phantom."""
        data = self.sections.get("data")
        return isinstance(data, dict) and "folder" in data

    def own_choices(self, task: str, method: Method, preset: str, of_folder: bool, dimensions: object) -> Layer:
        """What in it is the user's own, if it was written for another run: the rest came from what it named.

        The images always are: a run on a hospital's images must never turn into one on synthetic hospitals by itself.
        """
        same_method = self.method is None or method.is_called(self.method)
        needed = Settings.model_fields.keys() - {"method", "task", "preset", *ADDED_SECTIONS}
        complete = needed <= self.sections.keys()
        same_kind = bool(self.folder) == of_folder and (self.dimensions or 2) == dimensions
        same_images = same_kind or not complete  # a short file holds the user's own choices only
        if same_method and same_images and self.task in (None, task) and self.preset in (None, preset):
            return self
        images = {"data.folder": self.folder, "data.dimensions": self.dimensions}
        where = {name: value for name, value in images.items() if value}
        of_method = method if same_method else self.method
        before, _ = resolve(self.task or task, of_method, self.preset or preset, overrides=where)
        usual = flatten(before.model_dump(mode="json"))
        values = flatten({**self.sections, "method": self.of_method})
        own = nest({name: value for name, value in values.items() if usual.get(name, ...) != value} | where)
        if self.task not in (None, task) and "data" in own:
            own["data"] = {name: value for name, value in own["data"].items() if name not in OF_ONE_TASK}
        own_of_method = own.pop("method", {})
        return replace(self, sections=own, of_method=own_of_method if same_method else {})


def _find_method(name: str | Method | None) -> Method:
    if not name:
        raise UsageError("no method given: name one with --method (we recommend freshbn) or in the configuration file")
    return registry.methods.find(name) if isinstance(name, str) else name


def _wishes_for(method: Method, section: Tree) -> Tree:
    """A preset's settings for a method: those of pieces that it has, and those under its own name.

    What was written in the method's code stays: a preset speaks of settings at their class's default only.
    """
    wishes = {**section, **section.get(method.key, {})}
    return {name: value for name, value in wishes.items() if name in method.usual_settings}


def _with_settings(method: Method, values: Tree) -> Method:
    for name, value in values.items():
        if value is None and method.settings.get(name) is not None:
            raise UsageError(
                f"method.{name} = None: TOML cannot express it in a run's file; only a method's code can set it"
            )
    return method.with_settings(**values)


def _check_requirements(settings: Settings, method: Method) -> None:
    values = flatten(settings.model_dump())
    for name, needed in method.requirements(values).items():
        if values[name] != needed:
            raise UsageError(f"{name} = {values[name]!r}: {method.name} needs {needed!r}")
