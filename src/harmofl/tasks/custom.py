"""A hospital's own images: classes or masks that a manifest names."""

from __future__ import annotations

from harmofl.data.layouts.manifest import layouts
from harmofl.tasks.presets import PAPER_CODE_SCORE, with_common_presets
from harmofl.tasks.task import Task

ABOUT = (
    "manifest.csv: site,image,{truth} and, if you have them, split and patient; "
    "PNG, JPEG, TIFF, NIfTI, DICOM, MHA or NRRD"
)


CLASSIFICATION = (
    {
        "data": {"size": 224, "resize": True},
        "model": {"network": "densenet121", "features": 64},
        "training": {"rounds": 100, "batch_size": 32, "optimizer": "sgd", "learning_rate": 1e-3},
        "volumes": {"data": {"patch": [64, 128, 128]}, "training": {"batch_size": 4}},
    },
    {
        "data": {"size": 96},
        "model": {"network": "densenet-small", "features": 16},
        "training": {"rounds": 20, "batch_size": 16, "learning_rate": 1e-2, "learning_rate_schedule": "cosine"},
        "volumes": {"data": {"patch": [32, 64, 64]}},
    },
    {
        "data": {"size": 32, "limit": 60},
        "model": {"features": 8},
        "training": {"rounds": 2, "batch_size": 8},
        "volumes": {"data": {"patch": [16, 32, 32]}},
    },
)
"""The sizes large, small and tiny; the first is what the paper's histology task would be with larger images."""

SEGMENTATION = (
    {
        "data": {"size": 256},
        "model": {"network": "unet", "features": 32},
        "training": {"rounds": 300, "batch_size": 8, "learning_rate": 1e-4, "loss": "dice-cross-entropy"},
        "volumes": {
            "data": {"patch": [64, 128, 128]},
            "model": {"network": "dynunet"},
            "training": {"batch_size": 2},
        },
    },
    {
        "data": {"size": 128},
        "model": {"features": 8},
        "method": {"moon": {"mu": 0.05}},
        "training": {"rounds": 20, "batch_size": 4, "learning_rate": 2e-3, "learning_rate_schedule": "cosine"},
        "volumes": {"data": {"patch": [16, 64, 64]}},
    },
    {
        "data": {"size": 32, "limit": 30},
        "model": {"features": 4},
        "training": {"rounds": 2},
        "volumes": {"data": {"patch": [8, 16, 16], "limit": 0}},
    },
)

classification = Task(
    name="classification",
    title="classification of your own images",
    kind="classification",
    main_score="accuracy",
    layout=layouts["classification"],
    about_data=ABOUT.format(truth="label"),
    presets=with_common_presets(*CLASSIFICATION),
)

segmentation = Task(
    name="segmentation",
    title="segmentation of your own images",
    kind="segmentation",
    main_score="dice",
    layout=layouts["segmentation"],
    about_data=ABOUT.format(truth="mask"),
    presets=with_common_presets(*SEGMENTATION, PAPER_CODE_SCORE),
)
