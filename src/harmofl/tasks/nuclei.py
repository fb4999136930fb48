"""Nuclei segmentation: MoNuSAC2020 (four sites), MoNuSeg2018 and TNBC in the paper."""

from __future__ import annotations

from dataclasses import replace

from harmofl.data.images import LabelledImages
from harmofl.data.layouts.nuclei import layout
from harmofl.data.phantoms import nuclei as phantom
from harmofl.settings import DataSettings
from harmofl.tasks.presets import PAPER_CODE_SCORE, with_common_presets
from harmofl.tasks.task import Phantom, Task

PAPER = {
    "data": {"size": 256, "images": 200},
    "model": {"network": "unet", "features": 32},
    "training": {
        "rounds": 500,
        "batch_size": 8,
        "optimizer": "adam",
        "learning_rate": 1e-4,
        "momentum": 0.9,
        "second_momentum": 0.99,
        "weight_decay": 1e-4,
        "loss": "dice",
    },
    "real_images": {"data": {"resize": True}},
}
SMALL = {
    "data": {"size": 64, "images": 160},
    "model": {"features": 8},
    # The Dice loss alone is so small that MOON's term would outweigh it at the usual weight of 1, which a short
    # training of a small network never gets over.
    "method": {"moon": {"mu": 0.05}},
    "training": {"rounds": 12, "batch_size": 4, "learning_rate": 2e-3, "learning_rate_schedule": "cosine"},
    "real_images": {"data": {"size": 128, "resize": False, "limit": 150}},
}
SMOKE = {
    "data": {"size": 32, "images": 20},
    "model": {"features": 4},
    "training": {"rounds": 2},
    "real_images": {"data": {"size": 64, "limit": 30}},
}

SITE_SIZES = (1.0, 0.8, 0.6, 0.5, 0.7, 0.4)
"""The paper keeps the sites' unequal sizes in this task, and so does the phantom."""


def make_images(site: str, data: DataSettings) -> LabelledImages:
    """The phantom of one site, every nucleus marked as foreground."""
    count = max(10, round(data.images * SITE_SIZES[phantom.SITES.index(site)]))
    images = phantom.make_site(site, count, data.size, data.shift, data.seed)
    return replace(images, targets=(images.targets > 0).long())


task = Task(
    name="nuclei",
    title="nuclei segmentation",
    kind="segmentation",
    main_score="dice",
    layout=layout,
    about_data="MoNuSAC2020 (a site is an organ), MoNuSeg2018 and TNBC as downloaded, whichever are there",
    presets=with_common_presets(PAPER, SMALL, SMOKE, PAPER_CODE_SCORE),
    classes=("background", "nucleus"),
    channels=3,
    phantom=Phantom(phantom.SITES, make_images, drawn_once=True),
)
