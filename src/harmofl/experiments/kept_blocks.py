"""The blocks of a page of results: what stands between a mark and its end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from harmofl.errors import UsageError, unknown_name
from harmofl.experiments.kept_figures import FIGURES

MARK = re.compile(
    r"<!-- (?P<kind>summary|overview|table|flatness|epsilon)(?:: (?P<name>[\w., -]+?))?"
    r"(?:; figures: (?P<figures>[\w, -]+?))?(?:; variations: (?P<variations>[^>]+?))? -->"
)
END = "<!-- end -->"


@dataclass(frozen=True)
class Block:
    """A part of the page that is made of results."""

    mark: str
    kind: str
    name: str
    """Of an experiment; an overview has several, with commas between them."""
    figures: tuple[str, ...]
    heading: str
    """The nearest one above."""
    variations: tuple[str, ...] = ()
    """Those that an overview shows side by side."""


def read_blocks(text: str) -> Iterator[tuple[Block | None, str]]:
    """Yield each block with the text before it, and at last the text after all of them."""
    place = 0
    for mark in MARK.finditer(text):
        if mark.start() < place:
            raise UsageError(f"{mark[0]} stands inside another block: is an {END} missing?")
        end = text.find(END, mark.end())
        if end < 0:
            raise UsageError(f"{mark[0]} has no {END}")
        headings = re.findall(r"^#+ (.+)$", text[: mark.start()], flags=re.MULTILINE)
        names = _split(mark["figures"], ",")
        for name in names:
            if name not in FIGURES:
                raise unknown_name("figure", name, FIGURES)
        heading, variations = headings[-1] if headings else "", _split(mark["variations"], "|")
        block = Block(mark[0], mark["kind"], mark["name"] or "", names, heading, variations)
        yield block, text[place : mark.start()]
        place = end + len(END)
    yield None, text[place:]


def _split(text: str | None, separator: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(separator) if name.strip())


def anchor(heading: str) -> str:
    """Where a heading is found on the page, as GitHub names it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
