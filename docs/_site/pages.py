"""A Sphinx extension: fills in what pages do not hold themselves, and leads their links to the site's own pages.

A page says `<!-- made: NAME -->` where something is filled in. On a forge, which shows the same files, it is a comment.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from reference_api import api_reference
from reference_commands import command_reference
from reference_settings import settings_reference

ROOT = Path(__file__).parents[2]
MADE = ROOT / "docs" / "_made"
MAKERS = {"api": api_reference, "commands": command_reference, "settings": settings_reference}
OWN_PAGES = {
    "CHANGELOG.md": "docs/changelog.md",
    "CONTRIBUTING.md": "docs/contributing.md",
    "README.md": "docs/index.md",
    "SECURITY.md": "docs/security.md",
}
"""Where the site has what lies outside of docs/."""

INDEX = ROOT / "docs" / "index.md"
MARK = re.compile(r"<!-- made: (\w+)(?: (.+?))? -->")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def fill_in(app: Sphinx, name: str, source: list[str]) -> None:
    """Change a page's text before it is read."""
    page = f"docs/{name}.md"
    if (ROOT / page).exists():
        source[0] = MARK.sub(lambda mark: _made(mark[1], mark[2] or "", page), source[0])
        source[0] = lead_links(source[0], page, page)


def _made(what: str, argument: str, page: str) -> str:
    if what == "file":
        return lead_links((ROOT / argument).read_text(encoding="utf-8"), argument, page)
    if what == "picture":
        file, _, words = argument.partition(" ")
        path = posixpath.relpath(f"docs/_made/{file}", posixpath.dirname(page))
        return f"![{words}]({path})" if (MADE / file).exists() else ""
    return other_pages() if what == "rest" else MAKERS[what]()


def other_pages() -> str:
    """The pages of this folder that the index does not name, a line each: a new one needs no other place."""
    named = set(INDEX.read_text(encoding="utf-8").split())
    return "\n".join(sorted(page.stem for page in INDEX.parent.glob("*.md") if page.stem not in {*named, "index"}))


def lead_links(text: str, written_in: str, shown_in: str) -> str:
    """Links as they must stand in the page where a text is shown, if they are right in the file where it is written."""

    def lead(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(written_in), link[3]))
        if not (ROOT / target).exists():
            return link[0]  # for the check of links to find
        if (ROOT / target).is_dir():
            return link[2]
        path = posixpath.relpath(OWN_PAGES.get(target, target), posixpath.dirname(shown_in))
        if target.endswith(".md") and not target.startswith("docs/") and target not in OWN_PAGES:
            return f"{{download}}`{link[2]} <{path}>`"
        return f"{link[1]}[{link[2]}]({path}{link[4] or ''})"

    parts = re.split(r"(```.*?```)", text, flags=re.DOTALL)  # code stays as it is
    return "".join(part if part.startswith("```") else LINK.sub(lead, part) for part in parts)


def plain_text(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text: a star, a bar or a last underscore outside of code means itself."""
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            parts = re.split(r"(`[^`]*`)", line)
            lines[number] = "".join(part if part.startswith("`") else _escape(part) for part in parts)


def _escape(text: str) -> str:
    return re.sub(r"(?<=\w)_(?!\w)", r"\\_", re.sub(r"[*|]", r"\\\g<0>", text))


def setup(app: Sphinx) -> dict[str, Any]:
    """Join Sphinx."""
    app.connect("source-read", fill_in)
    app.connect("autodoc-process-docstring", plain_text, priority=100)  # before napoleon's
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
