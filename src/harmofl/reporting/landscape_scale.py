"""What all figures of one landscape share: the scale of losses with its ticks and colours, and the names of planes."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harmofl.analysis.losses import Array
from harmofl.analysis.results import Landscape, View
from harmofl.reporting.style import MUTED

if TYPE_CHECKING:
    from matplotlib.colors import Normalize

COLOUR_MAP = "viridis"
LEVELS = 15
PLANES = {
    "near": "two random filter-normalized directions",
    "wide": "the same directions, seen from farther away",
    "drift": "the plane of the sites' own paths",
}
MEAN = "mean over sites"


@dataclass(frozen=True)
class Scale:
    """One scale of losses for all panels of a figure; logarithmic where they span more than a decade."""

    low: float
    high: float

    @classmethod
    def of(cls, losses: Array) -> Scale:
        """From the lowest to the highest finite loss."""
        finite = losses[np.isfinite(losses)]
        low, high = float(finite.min()), float(finite.max())
        return cls(low, high if high > low else low + 1.0)  # a flat one

    @property
    def is_log(self) -> bool:
        """Whether equal steps are equal ratios."""
        return self.low > 0 and self.high > 10 * self.low

    @property
    def levels(self) -> Array:
        """Where contours lie."""
        make = np.geomspace if self.is_log else np.linspace
        return np.asarray(make(self.low, self.high, LEVELS), dtype=np.float64)

    @property
    def ticks(self) -> list[float]:
        """A few round numbers within the scale."""
        from matplotlib.ticker import LogLocator, MaxNLocator

        locator: Any = MaxNLocator(5)
        if self.is_log:
            locator = LogLocator(subs=(1, 2, 5) if self.high < 1000 * self.low else (1,))
        values = locator.tick_values(self.low, self.high)
        return [float(tick) for tick in values if self.low <= tick <= self.high]

    def norm(self) -> Normalize:
        """From losses to colours."""
        from matplotlib.colors import LogNorm, Normalize

        return LogNorm(self.low, self.high) if self.is_log else Normalize(self.low, self.high)

    def clip(self, losses: Array) -> Array:
        """Keep losses within the scale; what is not finite counts as highest."""
        return np.clip(np.nan_to_num(losses, nan=self.high, posinf=self.high), self.low, self.high)

    def heights(self, losses: Array) -> Array:
        """What a surface shows: losses, or their logarithms."""
        return np.log10(self.clip(losses)) if self.is_log else self.clip(losses)


def axis_ticks(view: View) -> tuple[list[float], list[str]]:
    """Three places, none at the edge, where the labels of neighbouring panels would meet."""
    ticks = [-view.span / 2, 0.0, view.span / 2]
    return ticks, [f"{tick:.2g}".replace("-", "−") for tick in ticks]


def lowest_place(view: View, losses: Array) -> tuple[float, float, float]:
    """The coordinates of the lowest loss that was computed, and the loss."""
    row, column = np.unravel_index(int(np.nanargmin(losses)), losses.shape)
    return float(view.axis[column]), float(view.axis[row]), float(losses[row, column])


def finish_colour_bar(bar: Any, scale: Scale, landscape: Landscape) -> None:
    """Write round numbers and the loss's name beside a bar of colours."""
    bar.ax.minorticks_off()
    bar.ax.set_yticks(scale.ticks, [f"{tick:g}" for tick in scale.ticks])
    words = f"{landscape.loss_name} on training images" + (", log scale" if scale.is_log else "")
    # A row of panels is not very high.
    bar.set_label(textwrap.fill(words, width=12 + 16 * len(landscape.runs), break_on_hyphens=False), color=MUTED)
    bar.outline.set_visible(False)
