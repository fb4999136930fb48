"""Breast histology classification: does a patch hold tumor? Camelyon17 in the paper, five hospitals."""

from __future__ import annotations

from harmofl.data.images import LabelledImages
from harmofl.data.layouts.camelyon17 import layout
from harmofl.data.phantoms import histology as phantom
from harmofl.settings import DataSettings
from harmofl.tasks.presets import with_common_presets
from harmofl.tasks.task import Phantom, Task

PAPER = {
    "data": {"size": 96, "images": 4000, "resize": True, "site_sizes": "smallest"},
    "model": {"network": "densenet121", "features": 64},
    "training": {
        "rounds": 100,
        "batch_size": 128,
        "optimizer": "sgd",
        "learning_rate": 1e-3,
        "momentum": 0.9,
        "weight_decay": 1e-4,
        "loss": "cross-entropy",
    },
}
SMALL = {
    "data": {"size": 48, "images": 1000},
    "model": {"network": "densenet-small", "features": 16},
    "training": {"rounds": 16, "batch_size": 32, "learning_rate": 1e-2, "learning_rate_schedule": "cosine"},
    "real_images": {"data": {"size": 96, "limit": 2000}},
}
SMOKE = {
    "data": {"size": 32, "images": 24},
    "model": {"features": 8},
    "training": {"rounds": 2, "batch_size": 8},
    "real_images": {"data": {"size": 32, "limit": 60}},
}


def make_images(site: str, data: DataSettings) -> LabelledImages:
    """The phantom of one hospital."""
    return phantom.make_site(site, data.images, data.size, data.shift, data.seed)


task = Task(
    name="histology",
    title="breast histology classification",
    kind="classification",
    main_score="accuracy",
    layout=layout,
    about_data="Camelyon17 patches in the WILDS layout; a site is a center",
    presets=with_common_presets(PAPER, SMALL, SMOKE),
    classes=("normal", "tumor"),
    channels=3,
    phantom=Phantom(phantom.SITES, make_images, fewest_images=3 * phantom.IMAGES_PER_PATIENT, drawn_once=True),
)
