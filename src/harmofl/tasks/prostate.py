"""Prostate MRI segmentation: six data sources in the paper; a slice and its two neighbours as channels."""

from __future__ import annotations

from harmofl.data.images import LabelledImages
from harmofl.data.phantoms import prostate as phantom
from harmofl.settings import DataSettings
from harmofl.tasks.losses import dice_and_cross_entropy
from harmofl.tasks.presets import with_common_presets
from harmofl.tasks.scores import segmentation_scores
from harmofl.tasks.task import Task

PAPER = {
    "data": {"size": 384, "images": 30},
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
    },
}
SMALL = {
    "data": {"size": 48, "images": 24},
    "model": {"features": 8},
    "training": {
        "rounds": 12,
        "batch_size": 4,
        "learning_rate": 2e-3,
        "learning_rate_schedule": "cosine",
        "augmentation": "none",
    },
}
SMOKE = {
    "data": {"size": 32, "images": 10},
    "model": {"features": 4},
    "training": {"rounds": 2, "batch_size": 8},
}

SLICES = 8
"""Slices per case of the phantom."""


def make_images(site: str, data: DataSettings) -> LabelledImages:
    """The phantom of one site: `data.images` cases of eight slices."""
    return phantom.make_site(site, data.images, SLICES, data.size, data.shift, data.seed)


task = Task(
    name="prostate",
    title="prostate MRI segmentation",
    metric_name="dice",
    sites=phantom.SITES,
    num_classes=2,
    channels=3,
    make_images=make_images,
    loss=dice_and_cross_entropy,
    score=segmentation_scores,
    presets=with_common_presets(PAPER, SMALL, SMOKE),
)
