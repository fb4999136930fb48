"""How far a hospital's features lie from the batch norm statistics that a model normalizes them with.

Statistics averaged over hospitals fit none that looks different: its features then reach every layer shifted, and the
network sees what it never saw in training.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from harmofl.methods.adaptations import Moments
from harmofl.runs.model_folder import has_one_model, open_model
from harmofl.states import evaluating


def shifts_at_sites(folder: Path, images: Mapping[str, Tensor]) -> dict[str, float]:
    """The shift at each site of a trained model's folder; empty if the model keeps no statistics.

    Args:
        folder: Of the model; where sites have models of their own, each site's is taken.
        images: By site, (N, C, H, W) in [0, 1].
    """
    common = open_model(folder) if has_one_model(folder) else None
    models = {site: (common or open_model(folder, site)).model for site in images}
    shifts = {site: feature_shift(models[site], [batch]) for site, batch in images.items()}
    return {site: shift for site, shift in shifts.items() if shift is not None}


def feature_shift(model: nn.Module, images: Iterable[Tensor]) -> float | None:
    """The distance between a layer's features and its running mean, in its running deviations.

    It is the root mean square over channels, averaged over batch norm layers; 0 is a perfect fit. None if no layer
    keeps statistics.

    Args:
        model: In any mode; it is left as it was.
        images: Batches (N, C, H, W).

    Example:
        >>> import torch
        >>> layer = nn.BatchNorm2d(1)  # running mean 0, running variance 1
        >>> round(feature_shift(layer, [torch.full((2, 1, 4, 4), 3.0)]), 3)
        3.0
    """
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm) and layer.track_running_stats]
    moments = {layer: Moments() for layer in layers}
    hooks = [layer.register_forward_pre_hook(lambda layer, inputs: moments[layer].add(inputs[0])) for layer in layers]
    try:
        with evaluating(model):
            for batch in images:
                model(batch)
    finally:
        for hook in hooks:
            hook.remove()
    shifts = [_shift_of(layer, moments[layer]) for layer in layers if moments[layer].count]
    return sum(shifts) / len(shifts) if shifts else None


def _shift_of(layer: _BatchNorm, moments: Moments) -> float:
    assert layer.running_mean is not None
    assert layer.running_var is not None
    deviation = (layer.running_var.double().cpu() + layer.eps).sqrt()
    distance = (moments.sums / moments.count - layer.running_mean.double().cpu()) / deviation
    return float(distance.square().mean().sqrt())
