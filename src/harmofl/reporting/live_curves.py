"""Small charts as SVG text, drawn anew every few seconds: without matplotlib, which would take a second for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from harmofl.reporting.style import COLOURS, INK

if TYPE_CHECKING:
    from markupsafe import Markup

WIDTH, HEIGHT = 400.0, 230.0
LEFT, RIGHT, TOP, BOTTOM = 44.0, 10.0, 12.0, 34.0
DASHES = ("", "5 2", "1.5 2", "7 2 1.5 2")
MOST_TICKS = 6
COLOURED = tuple(colour for colour in COLOURS if colour != INK)  # ink is for the mean

Scale = Callable[[float], float]


@dataclass(frozen=True)
class Line:
    """A curve over rounds."""

    name: str
    values: Mapping[int, float]
    colour: str
    dash: str = ""
    bold: bool = False


def site_line(name: str, values: Mapping[int, float], index: int) -> Line:
    """The curve of the site with this number; colours come again with other dashes."""
    return Line(name, values, COLOURED[index % len(COLOURED)], DASHES[index // len(COLOURED) % len(DASHES)])


def line_chart(lines: Sequence[Line], label: str) -> Markup:
    """A chart of curves over rounds; `label` says what it shows, for those who do not see it."""
    from markupsafe import Markup

    shown = [line for line in lines if line.values]
    if not shown:
        return Markup("")
    rounds = sorted({number for line in shown for number in line.values})
    values = [value for line in shown for value in line.values.values()]
    steps = nice_ticks(min(values), max(values))
    across = _scale(rounds[0], max(rounds[-1], rounds[0] + 1), LEFT, WIDTH - RIGHT)
    down = _scale(steps[0], steps[-1], HEIGHT - BOTTOM, TOP)
    parts = [_grid(step, down(step)) for step in steps]
    parts += [_round_label(number, across(number)) for number in round_ticks(rounds)]
    parts += [_path(line, across, down) for line in shown]
    axis = f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.1f}" y="{HEIGHT - 4}" text-anchor="middle">round</text>'
    opening = f'<svg viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="img" aria-label="{escape(label)}">'
    return Markup(f"{opening}{''.join(parts)}{axis}</svg>")


def nice_ticks(low: float, high: float) -> list[float]:
    """Round numbers from below the lowest value to above the highest.

    >>> nice_ticks(0.12, 0.57)
    [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    >>> nice_ticks(2.0, 2.0)
    [1.4, 1.6, 1.8, 2.0, 2.2, 2.4, 2.6]
    """
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.25 * max(1.0, abs(low)), high + 0.25 * max(1.0, abs(high))
    rough = (high - low) / (MOST_TICKS - 1)
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def round_ticks(rounds: Sequence[int]) -> list[int]:
    """At most six of the rounds, evenly spaced.

    >>> round_ticks(range(1, 21))
    [4, 8, 12, 16, 20]
    """
    span = rounds[-1] - rounds[0] + 1
    step = next(size for size in (1, 2, 4, 5, 10, 20, 25, 50, 100, 200, 500, 10**9) if span / size <= MOST_TICKS - 1)
    return [number for number in rounds if number % step == 0] or [rounds[0]]


def _scale(low: float, high: float, start: float, end: float) -> Scale:
    """From values to places on the page."""
    factor = (end - start) / (high - low)
    return lambda value: start + (value - low) * factor


def _grid(step: float, y: float) -> str:
    rule = f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="rule"/>'
    return f'{rule}<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{step:g}</text>'


def _round_label(number: int, x: float) -> str:
    return f'<text x="{x:.1f}" y="{HEIGHT - 19}" text-anchor="middle">{number}</text>'


def _path(line: Line, across: Scale, down: Scale) -> str:
    points = [(across(number), down(value)) for number, value in sorted(line.values.items())]
    width = 2.6 if line.bold else 1.3
    dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
    where = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    path = f'<polyline points="{where}" fill="none" stroke="{line.colour}" stroke-width="{width}"{dash}/>'
    x, y = points[-1]
    dot = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{3.2 if line.bold else 2}" fill="{line.colour}"/>'
    return f"<g><title>{escape(line.name)}</title>{path}{dot}</g>"
