"""How a task's four presets are made of its three differences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harmofl.settings import merge

PAPER_TEXT = {"method": {"band": "full", "decay": 0.1, "schedule": "first-round"}}
"""HarmoFL as the paper's text has it."""

PAPER_CODE = {
    "data": {"split_by": "image"},
    "method": {"band": "dc", "decay": 0.0, "schedule": "first-round"},
    "model": {"norm": "batch-statistics"},
}
"""HarmoFL as the code released with the paper reads."""

PAPER_CODE_SCORE = {"training": {"score": "dice_with_background"}}
"""Its score in segmentation."""

RELATIVE_RADIUS = {"densenet121": 2.0e-4, "unet": 7.7e-4}
"""The paper's radius of 0.05 as a part of ‖θ‖, for its own networks at initialization.

‖θ‖ is 250 for DenseNet121 with 64 features and 65 for the U-Net with 32, both with batch norm. The norm of a small
network is several times smaller, so the same radius would be several times stronger there.
"""


def with_common_presets(
    paper: Mapping[str, Any], small: Mapping[str, Any], smoke: Mapping[str, Any], code: Mapping[str, Any] | None = None
) -> dict[str, Mapping[str, Any]]:
    """`paper`, `paper-code`, and the two sizes for few cores; `smoke` builds on `small`.

    `code`: what the released code has otherwise than the paper's text, in this task alone.
    """
    on_two_cores = merge(merge(paper, _same_perturbation(paper["model"]["network"])), small)
    return {
        "paper": merge(paper, PAPER_TEXT),
        "paper-code": merge(merge(paper, PAPER_CODE), code or {}),
        "small": on_two_cores,
        "smoke": merge(on_two_cores, smoke),
    }


def _same_perturbation(network: str) -> Mapping[str, Any]:
    """HarmoFL's radius for networks of other sizes than the paper's."""
    relative = RELATIVE_RADIUS.get(network)
    return {"method": {"radius_relative": relative}} if relative else {}
