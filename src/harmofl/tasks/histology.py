"""Breast histology classification: does a patch hold tumor? Camelyon17 in the paper, five hospitals."""

from __future__ import annotations

import torch.nn.functional as F

from harmofl.data.images import LabelledImages
from harmofl.data.phantoms import histology as phantom
from harmofl.settings import DataSettings
from harmofl.tasks.presets import with_common_presets
from harmofl.tasks.scores import classification_scores
from harmofl.tasks.task import Task

PAPER = {
    "data": {"size": 96, "images": 4000},
    "model": {"network": "densenet121", "features": 64},
    "training": {
        "rounds": 100,
        "batch_size": 128,
        "optimizer": "sgd",
        "learning_rate": 1e-3,
        "momentum": 0.9,
        "weight_decay": 1e-4,
    },
}
SMALL = {
    "data": {"size": 48, "images": 1000},
    "model": {"network": "densenet-small", "features": 16},
    "training": {"rounds": 16, "batch_size": 32, "learning_rate": 1e-2, "learning_rate_schedule": "cosine"},
}
SMOKE = {
    "data": {"size": 32, "images": 24},
    "model": {"features": 8},
    "training": {"rounds": 2, "batch_size": 8},
}


def make_images(site: str, data: DataSettings) -> LabelledImages:
    """The phantom of one hospital."""
    return phantom.make_site(site, data.images, data.size, data.shift, data.seed)


task = Task(
    name="histology",
    title="breast histology classification",
    metric_name="accuracy",
    sites=phantom.SITES,
    num_classes=2,
    channels=3,
    make_images=make_images,
    loss=F.cross_entropy,
    score=classification_scores,
    presets=with_common_presets(PAPER, SMALL, SMOKE),
    fewest_images=3 * phantom.IMAGES_PER_PATIENT,
)
