"""What pieces measure of images and send, made private: a release of its own, in units of the bound a piece states.

A bound follows from the range of intensities alone, so that it tells nothing of a site. Noise for a site is measured by
its radius: with a site's numbers, or with those of grey images in their place. One image more or less, or another one
in its place, moves a mean over n images by two radii / n at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from harmofl.federation.noise import Noise, shorten_and_disturb
from harmofl.methods.bound import Bound
from harmofl.methods.channel import Pieces
from harmofl.methods.combinations import Total
from harmofl.methods.method import Method
from harmofl.methods.model import Model
from harmofl.settings import PrivacySettings
from harmofl.states import State, add_prefix, select_prefix

Noised = tuple[Bound, float]
"""Where what a piece sends must lie, and the deviation of the noise on each of its numbers."""


def senders(method: Method, model: Model) -> Pieces:
    """The pieces that send any number beside the weights; the amplitude of no band has none."""
    pieces = method.pieces().items()
    return {name: piece for name, piece in pieces if any(tensor.numel() for tensor in piece.sends(model).values())}


def noise_of_measurements(privacy: PrivacySettings, otherwise: float) -> float:
    """The noise in units of the most that a site, or an image, can change; `otherwise`: that of updates or steps."""
    return otherwise if privacy.measurement_noise is None else privacy.measurement_noise


def noise_for_sites(privacy: PrivacySettings, sending: Pieces, model: Model, sharing: int) -> dict[str, Noised]:
    """What one site adds for itself to be private.

    `sharing`: how many sites' noise makes that of a sum. What is not summed, but handed on as each site's own, is seen
    by all and gets the whole of it.
    """
    noise = noise_of_measurements(privacy, privacy.site_noise)
    sites = {name: sharing if issubclass(piece.combine, Total) else 1 for name, piece in sending.items()}
    bounds = bounds_of(sending, model)
    return {name: (bound, noise * bound.radius / math.sqrt(sites[name])) for name, bound in bounds.items()}


def noise_for_images(privacy: PrivacySettings, sending: Pieces, model: Model, num_images: int) -> dict[str, Noised]:
    """What a site adds for each of its images to be private."""
    noise = noise_of_measurements(privacy, privacy.image_noise)
    return {name: (bound, noise * 2 * bound.radius / num_images) for name, bound in bounds_of(sending, model).items()}


def hide(sent: State, noised: Mapping[str, Noised], noise: Noise) -> State:
    """What pieces sent, as `piece.name`, brought into their bounds and with noise."""
    hidden = dict(sent)
    for piece, (bound, deviation) in noised.items():
        own = select_prefix(piece, sent)
        hidden |= add_prefix(piece, shorten_and_disturb(own, bound.centre, bound.radius, deviation, noise))
    return hidden


def bounds_of(sending: Pieces, model: Model) -> dict[str, Bound]:
    """The bounds of pieces that have one; a run with others is refused before it starts."""
    found = {name: piece.bound(model) for name, piece in sending.items()}
    return {name: bound for name, bound in found.items() if bound is not None}
