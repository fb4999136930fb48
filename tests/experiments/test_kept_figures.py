from pathlib import Path

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from harmofl.experiments.kept_figures import Drawing

ROOT = Path(__file__).parents[2]


def test_every_lines_colour_survives_in_the_file(tmp_path: Path) -> None:
    figure = Figure(figsize=(6.4, 4.4))
    axes = figure.add_subplot()
    for index in range(7):
        axes.fill_between([0, 9], [index, 2], [index + 4, 8], alpha=0.15, color=f"C{index}")
        axes.plot([0, 9], [index, 9 - index], linewidth=1.2, color=f"C{index}")
    Drawing("x.png", "", "", "abc", lambda: figure).write(tmp_path / "x.png")
    pixels = np.asarray(Image.open(tmp_path / "x.png").convert("RGB"), float)
    for index in range(7):
        colour = 255 * np.asarray(to_rgb(f"C{index}"))
        assert np.abs(pixels - colour).max(2).min() < 12, f"no pixel of colour {index}"


def test_the_figures_of_the_pages_of_results_are_small() -> None:
    sizes = [path.stat().st_size for path in (ROOT / "docs" / "figures").glob("*/*.png")]
    assert max(sizes) < 100_000
    assert sum(sizes) < 1_500_000
