"""Make the pictures in docs/: a contact sheet of each task's synthetic hospitals, and the demo's samples.

python benchmarks/pictures.py [DEMO_FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from harmofl.demo import harmonized_samples
from harmofl.reporting import figures
from harmofl.settings import resolve
from harmofl.tasks import PAPER_TASKS, find

DOCS = Path(__file__).parent.parent / "docs"
SIZES = {"histology": 96, "nuclei": 128, "prostate": 192}
COLUMNS = 8


def contact_sheet(name: str) -> None:
    """One row per site: all alike at shift 0, and like real hospitals at shift 1."""
    phantom = find(name).phantom
    rows = {site: {} for site in phantom.sites}
    for shift in (0.0, 1.0):
        overrides = {"data.shift": shift, "data.size": SIZES[name], "data.images": phantom.fewest_images}
        settings, _ = resolve(name, "fedavg", "small", overrides=overrides)
        for site in phantom.sites:
            images = phantom.make_images(site, settings.data).images
            spread = torch.linspace(0, len(images) - 1, COLUMNS + 2).long()[1:-1]
            rows[site][f"shift {shift:g}"] = images[spread]
    figure = figures.image_grid(rows, gray=name == "prostate")
    (DOCS / f"phantom-{name}.png").write_bytes(figures.to_png(figure, dpi=110))


def main() -> None:
    for name in PAPER_TASKS:
        contact_sheet(name)
    if len(sys.argv) > 1:
        figure = harmonized_samples(Path(sys.argv[1]) / "harmofl" / "model")
        (DOCS / "demo-samples.png").write_bytes(figures.to_png(figure, dpi=110))


if __name__ == "__main__":
    main()
