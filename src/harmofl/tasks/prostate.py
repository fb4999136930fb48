"""Prostate MRI segmentation: six data sources in the paper; a slice and its two neighbours as channels."""

from __future__ import annotations

from harmofl.data.images import LabelledImages
from harmofl.data.layouts.prostate import layout
from harmofl.data.phantoms import prostate as phantom
from harmofl.data.phantoms.prostate_volumes import make_volumes
from harmofl.settings import DataSettings
from harmofl.tasks.presets import with_common_presets
from harmofl.tasks.task import Phantom, Task

PAPER = {
    "data": {
        "size": 384,
        "images": 30,
        "resize": True,
        "intensity": "percentile",
        "neighbours": 1,
        "site_sizes": "smallest",
    },
    "model": {"network": "unet", "features": 32},
    "training": {
        "rounds": 500,
        "batch_size": 16,
        "optimizer": "adam",
        "learning_rate": 1e-4,
        "momentum": 0.9,
        "second_momentum": 0.99,
        "weight_decay": 1e-4,
        "augmentation": "dihedral",
        "loss": "dice-cross-entropy",
    },
    "volumes": {
        "data": {"neighbours": 0, "spacing": [3.0, 0.6, 0.6], "patch": [16, 192, 192]},
        "model": {"network": "dynunet"},
        "training": {"batch_size": 2},
    },
    "real_images": {"data": {"slices": "with-prostate"}},
}
SMALL = {
    "data": {"size": 48, "images": 24},
    "volumes": {
        "data": {"spacing": [3.0, 3.5, 3.5], "patch": [16, 32, 32], "patches": 4},
        "training": {"batch_size": 2, "rounds": 16},
        "real_images": {"data": {"spacing": [3.0, 1.2, 1.2], "patch": [16, 64, 64], "patches": 2, "limit": 0}},
    },
    "model": {"features": 8},
    "method": {"moon": {"mu": 0.05}},  # as for nuclei
    "training": {
        "rounds": 12,
        "batch_size": 4,
        "learning_rate": 2e-3,
        "learning_rate_schedule": "cosine",
        "augmentation": "none",
    },
    "real_images": {"data": {"size": 128, "slices": "all", "limit": 300, "site_sizes": "all"}},
}
SMOKE = {
    "data": {"size": 32, "images": 10},
    "volumes": {
        "data": {"spacing": [6.0, 6.0, 6.0], "patch": [8, 16, 16], "patches": 1},
        "training": {"rounds": 2},
        "real_images": {"data": {"spacing": [6.0, 4.0, 4.0], "patch": [8, 16, 16]}},
    },
    "model": {"features": 4},
    "training": {"rounds": 2, "batch_size": 8},
    "real_images": {"data": {"size": 48, "limit": 60}},
}

PAPER_CODE = {
    "training": {"score": "dice_with_background", "loss": "joint", "second_momentum": 0.999},
    "real_images": {"data": {"slices": "inner-with-foreground"}},
}
"""What the released code has otherwise than the paper's text."""

SLICES = 8
"""Slices per case of the phantom."""


def make_images(site: str, data: DataSettings) -> LabelledImages:
    """The phantom of one site: `data.images` cases of eight slices, or as many volumes."""
    if data.dimensions == 3:
        return make_volumes(site, data.images, data.size, data.shift, data.seed, data.spacing)
    return phantom.make_site(site, data.images, SLICES, data.size, data.shift, data.seed)


task = Task(
    name="prostate",
    title="prostate MRI segmentation",
    kind="segmentation",
    main_score="dice",
    layout=layout,
    about_data="CaseNN.nii.gz with CaseNN_segmentation.nii.gz; every folder with such pairs is a site",
    presets=with_common_presets(PAPER, SMALL, SMOKE, PAPER_CODE),
    classes=("background", "prostate"),
    channels=3,
    phantom=Phantom(phantom.SITES, make_images, volume_channels=1, drawn_once=True),
)
