"""The plans that come with harmofl, known by their names: the paper's tables, ablations and curves."""

from __future__ import annotations

from pathlib import Path

from harmofl.errors import UsageError, unknown_name

IN_WHEEL = Path(__file__).parent / "plans"
IN_CHECKOUT = Path(__file__).parents[3] / "experiments"


def shipped_plans() -> dict[str, Path]:
    """The files of the plans that come with harmofl, by name.

    >>> shipped_plans()["table-nuclei"].name
    'table-nuclei.toml'
    """
    folder = IN_WHEEL if IN_WHEEL.is_dir() else IN_CHECKOUT
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def find_plan(file: Path | str) -> Path:
    """The file of a plan: the one that is named, or else the one that comes with harmofl under this name."""
    path = Path(file)
    if path.is_file() or path.suffix or path.name != str(file):
        return path
    plans = shipped_plans()
    if not plans:
        raise UsageError(f"{file}: no such file, and no plans came with this installation")
    if path.name not in plans:
        raise unknown_name("file or plan", path.name, plans)
    return plans[path.name]
