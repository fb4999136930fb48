"""Make the pictures in docs/: a contact sheet of each task's synthetic hospitals, and the demo's samples.

python benchmarks/pictures.py [DEMO_FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from PIL import Image
from torch import Tensor

from harmofl import registry
from harmofl.api import check_data
from harmofl.experiments.demo import harmonized_samples, load_test_images
from harmofl.reporting.image_grid import image_grid
from harmofl.reporting.style import to_png
from harmofl.settings import resolve
from harmofl.tasks.task import Phantom

DOCS = Path(__file__).parent.parent / "docs"
SIZES = {"histology": 96, "nuclei": 128, "prostate": 192}
COLUMNS = 8


def phantom_of(task: str) -> Phantom:
    """A task's synthetic hospitals."""
    phantom = registry.tasks.find(task).phantom
    if phantom is None:
        raise SystemExit(f"{task} has no synthetic hospitals")
    return phantom


def contact_sheet(name: str) -> None:
    """One row per site: all alike at shift 0, and like real hospitals at shift 1."""
    phantom = phantom_of(name)
    rows: dict[str, dict[str, Tensor]] = {site: {} for site in phantom.sites}
    for shift in (0.0, 1.0):
        overrides = {"data.shift": shift, "data.size": SIZES[name], "data.images": phantom.fewest_images}
        settings, _ = resolve(name, "fedavg", "small", overrides=overrides)
        for site in phantom.sites:
            images = phantom.make_images(site, settings.data).images
            spread = torch.linspace(0, len(images) - 1, COLUMNS + 2).long()[1:-1]
            rows[site][f"shift {shift:g}"] = images[spread]
    figure = image_grid(rows, gray=name == "prostate")
    (DOCS / f"phantom-{name}.png").write_bytes(to_png(figure, dpi=110))


def folder_of_phantoms(folder: Path) -> Path:
    """The nuclei phantom as a hospital's own images would lie: pictures, masks and a manifest."""
    phantom = phantom_of("nuclei")
    settings, _ = resolve("nuclei", "fedavg", "small", overrides={"data.size": 128, "data.images": 40})
    lines = ["site,patient,image,mask"]
    for site in phantom.sites:
        made = phantom.make_images(site, settings.data)
        for number, (image, mask) in enumerate(zip(made.images, made.targets, strict=True)):
            name = f"{site}/{number:03d}"
            (folder / site).mkdir(parents=True, exist_ok=True)
            Image.fromarray((255 * image).byte().permute(1, 2, 0).numpy()).save(folder / f"{name}.png")
            Image.fromarray((255 * mask).byte().numpy()).save(folder / f"{name}-mask.png")
            lines.append(f"{site},{made.groups[number]},{name}.png,{name}-mask.png")
    (folder / "manifest.csv").write_text("\n".join(lines) + "\n")
    return folder


def main() -> None:
    """Draw all of them."""
    for name in SIZES:
        contact_sheet(name)
    with TemporaryDirectory() as temporary:
        folder = folder_of_phantoms(Path(temporary))
        check_data("segmentation", folder, sheet=DOCS / "contact-sheet.png")
    with Image.open(DOCS / "contact-sheet.png") as sheet:
        few_colors = sheet.convert("RGB").quantize(128)
    few_colors.save(DOCS / "contact-sheet.png", optimize=True)  # a third of the bytes
    if len(sys.argv) > 1:
        model = Path(sys.argv[1]) / "harmofl" / "model"
        figure = harmonized_samples(model, load_test_images(model))
        (DOCS / "demo-samples.png").write_bytes(to_png(figure, dpi=110))


if __name__ == "__main__":
    main()
