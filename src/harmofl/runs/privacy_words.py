"""What a finished run's privacy is, in plain words: for the end of a run, and for the model card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TRUST = {
    "central": "against all who see the models but not single updates; the server is trusted, unless secure "
    "aggregation hides them from it",
    "local": "against everybody, the server too",
}


def describe_privacy(summary: Mapping[str, Any]) -> list[str]:
    """One sentence for each level that a run's summary tells of; none if there was no noise."""
    said = summary.get("privacy", {})
    lines = []
    if site := said.get("site"):
        spent = _epsilon(site["epsilon"])
        each = _epsilon(site["epsilon_of_a_round"])
        how = f"clip {site['clip']:g}, noise {site['noise']:g}, {site['rounds']} rounds of {each} each{_measured(site)}"
        lines.append(f"site level: {spent} at δ = {said['delta']:g} ({how}), {TRUST[site['level']]}")
    if image := said.get("image"):
        found = ", ".join(f"{name} {_epsilon(value)}" for name, value in image["epsilon"].items()) or _epsilon(None)
        how = f"clip {image['clip']:g}, noise {image['noise']:g}{_measured(image)}"
        lines.append(f"image level: {found} at δ = {said['delta']:g} ({how}), against everybody, the server too")
    return lines


def _measured(level: Mapping[str, Any]) -> str:
    found = level.get("measurements")
    if not found:
        return ""
    plural = "s" if found["times"] > 1 else ""
    return f", {found['times']} measurement{plural} of images with noise {found['noise']:g}"


def _epsilon(value: float | None) -> str:
    return "no bound, as there is no noise" if value is None else f"ε = {value:.3g}"
