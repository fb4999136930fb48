"""What `harmofl data compare` and `harmofl deploy compare` print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from harmofl.cli.tables import console, make_table

if TYPE_CHECKING:
    from harmofl.analysis.comparison import Comparison


def show_comparison(comparison: Comparison, as_json: bool, out: Path | None) -> None:
    """A line per hospital and the advice; or all of it as JSON."""
    from harmofl.reporting.comparison_page import HEADINGS, PAGE, describe_site

    if as_json:
        print(json.dumps(comparison.to_json(), indent=2))
        return
    shown = console()
    table = make_table(*HEADINGS, whole=HEADINGS[:1])
    for site, survey in comparison.surveys.items():
        table.add_row(*map(Text, describe_site(site, survey)))
    shown.print(table)
    for site, survey in comparison.surveys.items():
        if survey.hidden:
            shown.print(Text(f"{site}: {survey.hidden}"))
    for advice in comparison.advice:
        shown.print(Text.assemble((f"{advice.title}. ", "bold"), advice.reason))
        options = " ".join(_option(name, value) for name, value in advice.options.items())
        if options:
            shown.print(Text(f"    {options}"))
    if out is not None:
        shown.print(Text(f"A page with pictures: {out / PAGE}"))


def _option(name: str, value: str) -> str:
    return f"--method {value}" if name == "method" else f"--set {name}={value}"
