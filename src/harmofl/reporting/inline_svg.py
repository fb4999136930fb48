"""Matplotlib's SVG inside an HTML page."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

from harmofl.errors import UsageError
from harmofl.reporting.style import INK, MUTED, PAPER, RULE

if TYPE_CHECKING:
    from markupsafe import Markup


def inline_svg(svg: str, name: str, alt: str) -> Markup:
    """Fit matplotlib's SVG into an HTML page: with the page's colours and unique ids, without styles and metadata."""
    from markupsafe import Markup

    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style\b.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(url\(|href=")#', rf"\1#{name}-", svg)
    for variable, colour in {"ink": INK, "muted": MUTED, "rule": RULE, "paper": PAPER}.items():
        svg = svg.replace(colour, f"var(--{variable}, {colour})")
    view_box = re.search(r'viewBox="[^"]*"', svg)
    if view_box is None:
        raise UsageError(f"the SVG of {name!r} has no viewBox")
    opening = f'<svg {view_box[0]} role="img" aria-label="{html.escape(alt)}">'
    return Markup(re.sub(r"<svg\b[^>]*>", lambda _: opening, svg, count=1))
