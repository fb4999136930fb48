"""A model in plain operators, for runtimes without a Fourier transform."""

from __future__ import annotations

from typing import cast

from harmofl.methods.amplitude_alignment import AmplitudeAlignment
from harmofl.methods.amplitude_normalization import AmplitudeNormalization
from harmofl.methods.layers import BandLayer, Harmonizer
from harmofl.methods.model import Model


def plain_model(model: Model) -> Model:
    """The same model for inference, its harmonizer in plain operators if it is one of ours."""
    harmonizer = model.harmonizer
    # Exactly ours: a subclass may do something else, and is taken as it is.
    if type(harmonizer) in (AmplitudeNormalization, AmplitudeAlignment):
        harmonizer = plain_harmonizer(harmonizer)
    return Model(harmonizer, model.network).eval()


def plain_harmonizer(harmonizer: Harmonizer) -> Harmonizer:
    """What a harmonizer of ours does once its amplitude is fixed."""
    assert isinstance(harmonizer, BandLayer)
    return cast(Harmonizer, harmonizer.plain())
