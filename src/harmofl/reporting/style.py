"""The one look of all figures: colours, lines and markers, and how a figure becomes a file.

Methods differ in colour (Okabe and Ito's palette, safe for colour-blind readers) and also in line style and marker, for
grey prints. Pyplot and the global settings are left alone.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from harmofl.files import write_whole
from harmofl.labels import installed_fonts, readable

if TYPE_CHECKING:
    # Imported where it is used: loading matplotlib takes longer than most commands.
    from matplotlib.figure import Figure

# Nothing else has exactly these colours: the page looks for them in an SVG to follow its light or dark theme.
INK, MUTED, RULE, PAPER = "#1c2127", "#5d6671", "#d9dde2", "#fffffe"

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", INK, "#e69f00", "#56b4e9")
LINES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.2, 1.6)), (0, (6, 2, 1.2, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "h")

STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 11,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.titlesize": 12.5,
    "axes.titleweight": "bold",
    "figure.facecolor": PAPER,
    "font.size": 11,
    "grid.color": RULE,
    "grid.linewidth": 0.7,
    "legend.columnspacing": 1.5,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "legend.labelcolor": INK,
    "lines.linewidth": 2.0,
    "lines.markersize": 6,
    "savefig.facecolor": "auto",
    "svg.fonttype": "none",
    "svg.hashsalt": "harmofl",  # the same records give the same bytes
    "text.color": INK,
    "text.parse_math": False,  # a site may have a $ in its name
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 10.5,
    "ytick.labelsize": 10.5,
}

_Arguments = ParamSpec("_Arguments")


@contextmanager
def _style() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(STYLE | {"font.family": [*installed_fonts(), "sans-serif"]}):
        yield


def styled(draw: Callable[_Arguments, Figure]) -> Callable[_Arguments, Figure]:
    """Draw in the one style, then put matplotlib's settings back."""

    @functools.wraps(draw)
    def wrapper(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Figure:
        with _style():
            return draw(*args, **kwargs)

    return wrapper


def line_style(index: int) -> dict[str, Any]:
    """The colour, line and marker of the method or site with this number."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": LINES[index % len(LINES)],
        "marker": MARKERS[index % len(MARKERS)],
        "markeredgecolor": PAPER,
        "markeredgewidth": 0.8,
    }


def to_png(figure: Figure, dpi: int = 160) -> bytes:
    """Render as PNG."""
    return _render(figure, "png", dpi)


def to_svg(figure: Figure, dpi: int = 200) -> str:
    """Render as SVG whose text stays text; dpi is that of the photographs in it."""
    return _render(figure, "svg", dpi).decode("utf-8")


def _render(figure: Figure, file_format: str, dpi: int) -> bytes:
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_text(readable(text.get_text()))
    buffer = io.BytesIO()
    metadata = {"Date": None} if file_format == "svg" else {}
    with _style():
        figure.savefig(buffer, format=file_format, dpi=dpi, metadata=metadata)
    return buffer.getvalue()


def write_figures(figures: Mapping[str, Figure], folder: Path, dpi: int = 160) -> list[Path]:
    """Write each figure as PNG and as SVG, under its name."""
    paths = []
    for name, figure in figures.items():
        for suffix, content in ((".png", to_png(figure, dpi)), (".svg", to_svg(figure))):
            paths.append(folder / f"{name}{suffix}")
            write_whole(paths[-1], content)
    return paths
