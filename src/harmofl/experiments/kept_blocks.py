"""The blocks of a page of results: what stands between a mark and its end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from harmofl.errors import UsageError, unknown_name
from harmofl.experiments.kept_figures import FIGURES

MARK = re.compile(
    r"<!-- (?P<kind>summary|table|flatness|epsilon)(?:: (?P<name>[\w.-]+))?(?:; figures: (?P<figures>[\w, -]+?))? -->"
)
END = "<!-- end -->"


@dataclass(frozen=True)
class Block:
    """A part of the page that is made of results."""

    mark: str
    kind: str
    name: str
    figures: tuple[str, ...]
    heading: str
    """The nearest one above."""


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
        names = tuple(name.strip() for name in (mark["figures"] or "").split(",") if name.strip())
        for name in names:
            if name not in FIGURES:
                raise unknown_name("figure", name, FIGURES)
        block = Block(mark[0], mark["kind"], mark["name"] or "", names, headings[-1] if headings else "")
        yield block, text[place : mark.start()]
        place = end + len(END)
    yield None, text[place:]


def anchor(heading: str) -> str:
    """Where a heading is found on the page, as GitHub names it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
