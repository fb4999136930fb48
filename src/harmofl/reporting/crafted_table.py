"""What a server with crafted weights read, as a page."""

from __future__ import annotations

from collections.abc import Sequence

from harmofl.analysis.crafted_weights import AHEAD, READ
from harmofl.runs.folder import Record

ABOUT = f"""\
# Pieces of training images in the update of crafted weights

Each channel of the first convolution can show one piece. A piece counts as read if it is that of a trained image to
{READ:g} dB or more, and {AHEAD:g} dB nearer to it than to any piece of images that were not trained on.
"""


def crafted_page(record: Record) -> str:
    """The page of `crafted.json`."""
    about = [str(record[name]) for name in ("task", "site", "network")]
    about += [f"pieces of {record['piece']} pixels", f"seed {record['seed']}"]
    return f"{ABOUT}\n{', '.join(about)}.\n\n{crafted_table([record])}"


def crafted_table(records: Sequence[Record]) -> str:
    """A row for each case; of several studies of the same cases, one number after the other."""
    rows = [_row(cases) for cases in zip(*(record["cases"] for record in records), strict=True)]
    head = "| what the site sent | pieces read | dB to a trained image | dB to another image |\n|---|---|---|---|"
    return "\n".join([head, *rows]) + "\n"


def _row(cases: Sequence[Record]) -> str:
    read = ", ".join(str(case["read"]) for case in cases)
    levels = [", ".join(_number(case[name]) for case in cases) for name in ("psnr", "psnr_others")]
    return f"| {cases[0]['case']} | {read} of {cases[0]['channels']} | {levels[0]} | {levels[1]} |"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
