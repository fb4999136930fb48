"""A run's settings as a hospital sees them: their digest, and in plain words what is unusual about them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from harmofl import registry
from harmofl.errors import UsageError
from harmofl.methods.method import Method
from harmofl.settings import Section, Settings, flatten, resolve
from harmofl.settings.schema import AT_THE_SITES, free_to_change

OF_THE_IMAGES = ("data.sites", "data.channels", "data.classes", "data.site_sizes")
"""What the images of all sites decide before the first round, after the run was approved."""
NOT_APPROVED = ("device", "preset", "data.folder", "data.hold_out_site", "model.initial")
"""What changes no result, or is the hospital's own to decide."""
SAFER = (("federation.secure_aggregation", True),)
"""Values that only protect a hospital more than every preset does."""
SMALLEST = "smallest"
LENGTH = 32


def approved_values(settings: Settings) -> dict[str, Any]:
    """The settings that an approval is for."""
    left_out = {*OF_THE_IMAGES[:3]}
    return {name: value for name, value in _results_of(settings).items() if name not in left_out}


def digest_of(values: Mapping[str, Any]) -> str:
    """A name for settings: the same settings have the same, at every party.

    Half of a SHA-256: a server chooses what it has approved, and of shorter names it could find two settings with one.
    """
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


def digests(settings: Settings) -> list[str]:
    """The digests under which a run may have been approved, its own first.

    A run that was approved with the size of the smallest site has a number there once that is known, so that a number
    may stand for "smallest". The other way round it does not: who approves 500 images has not approved "smallest".
    """
    values = approved_values(settings)
    found = [digest_of(values)]
    if type(values["data.site_sizes"]) is int:
        found.append(digest_of(values | {"data.site_sizes": SMALLEST}))
    return found


class AskedDigests:
    """The digests of the settings that a server sends, as the hospitals' approvals and logs have them."""

    def __init__(self, *wanted: Settings) -> None:
        """`wanted`: settings as they were before the images of all sites were known."""
        self._asked = {digests(settings)[0] for settings in wanted}

    def __call__(self, sent: Mapping[str, Any]) -> str:
        """The digest of what was asked for first: with "smallest", not with the number that it came to."""
        settings, _ = resolve(file=dict(sent))
        own, *others = digests(settings)
        found = own if own in self._asked else next((each for each in others if each in self._asked), own)
        self._asked.add(found)
        return found


def run_digest(settings: Settings) -> str:
    """A digest of all that must stay the same in every request of a run."""
    return digest_of(_results_of(settings))


def _results_of(settings: Settings) -> dict[str, Any]:
    """The settings on which results depend, or what a hospital tells."""
    left_out = {*free_to_change(settings), *NOT_APPROVED}
    return {name: value for name, value in flatten(settings.model_dump(mode="json")).items() if name not in left_out}


def usual_values(settings: Settings, method: Method) -> dict[str, list[Any]]:
    """The values that each setting has in the presets of the task, with this method."""
    usual: dict[str, list[Any]] = {}
    task = registry.tasks.find(settings.task)
    for preset in task.presets:
        overrides = {"data.folder": AT_THE_SITES, "data.dimensions": settings.data.dimensions}
        try:
            values, _ = resolve(task.name, method.key, preset, overrides=overrides)
        except UsageError:
            continue
        for name, value in approved_values(values).items():
            usual.setdefault(name, []).append(value)
    return usual


def unusual(settings: Settings, method: Method) -> dict[str, list[Any]]:
    """The settings whose value is in no preset, and the values that they have there."""
    usual = usual_values(settings, method)
    found = {
        name: usual.get(name, [])
        for name, value in approved_values(settings).items()
        if value not in usual.get(name, []) and (name, value) not in SAFER
    }
    return {name: list({json.dumps(value): value for value in values}.values()) for name, values in found.items()}


def describe_run(settings: Settings, method: Method) -> list[str]:
    """What would be done, in plain words."""
    training, data = settings.training, settings.data
    return [
        f"{method.name} on {settings.task}: {training.rounds} rounds of {training.local_epochs} epochs, batches of "
        f"{training.batch_size}, {training.optimizer} at {training.learning_rate:g}",
        f"network {settings.model.network} with {settings.model.features} features, images of {data.size} pixels, "
        f"seed {settings.seed}",
        "the server sees the sum of all sites' updates"
        if settings.federation.secure_aggregation
        else "the server sees this hospital's own updates (federation.secure_aggregation = false)",
        describe_privacy(settings),
    ]


def describe_privacy(settings: Settings) -> str:
    """Which differential privacy a run has, also where it has none: that is usual, and still worth knowing."""
    privacy = settings.privacy
    site, image = privacy.site_level != "none", privacy.image_level
    levels = [f"{privacy.site_level} at site level, noise {privacy.site_noise:g}"] * site
    levels += [f"at image level, noise {privacy.image_noise:g}"] * image
    if levels and privacy.measurement_noise is not None:
        levels[-1] += f", noise {privacy.measurement_noise:g} on measurements of images"
    return f"differential privacy: {' and '.join(levels) or 'none'}"


def describe_unusual(settings: Settings, method: Method) -> list[str]:
    """What differs from every preset, a line each."""
    values = approved_values(settings)
    lines = []
    for name, usual in sorted(unusual(settings, method).items()):
        ordinary = f" (usual: {' or '.join(map(str, usual))})" if usual else ""
        lines.append(f"{name} = {values[name]}{ordinary}: {meaning_of(name)}")
    return lines


def meaning_of(name: str) -> str:
    """What a setting means, from the schema."""
    section, _, inner = name.rpartition(".")
    if section == "method":
        return "a setting of the method"
    fields = Settings.model_fields
    if section:
        kind = fields[section].annotation
        assert isinstance(kind, type)
        assert issubclass(kind, Section)
        fields = kind.model_fields
    return fields[inner].description or ""
