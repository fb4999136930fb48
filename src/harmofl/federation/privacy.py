"""What differential privacy needs of a run, and what a run says of it afterwards."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

from torch.nn.modules.batchnorm import _BatchNorm

from harmofl import registry
from harmofl.errors import UsageError
from harmofl.extras import require
from harmofl.federation.accounting import Release, epsilon, total_epsilon
from harmofl.federation.participation import Participation, quorum
from harmofl.federation.private_measurements import noise_of_measurements, senders
from harmofl.methods.channel import Pieces
from harmofl.methods.method import Method
from harmofl.methods.model import Model
from harmofl.methods.radius import Radius
from harmofl.methods.server_rules import ServerRule
from harmofl.methods.steps import descend
from harmofl.runs.folder import Record
from harmofl.settings import Settings

PER_IMAGE = ("cross-entropy",)
"""Losses that are a mean over images; the others look at a batch as a whole."""


def check_privacy(settings: Settings, method: Method, model: Model) -> None:
    """Raise an error for a run whose ε could not be computed, or would be wrong; filters check sites' updates."""
    privacy = settings.privacy
    if privacy.image_level or privacy.site_level != "none":
        require("privacy", "differential privacy")  # its accountant works at the server
    if privacy.image_level:
        check_image_privacy(settings, method, model)


# --- sites -------------------------------------------------------------------------------------------------------


def check_site_privacy(settings: Settings, method: Method, model: Model) -> None:
    """Raise an error if noise on updates would not keep what its ε promises."""
    level = settings.privacy.site_level
    place = f"privacy.site_level = {level!r}"
    _check_sent(place, method, model)
    state, shared = model.network.state_dict(), method.shares(model.network)
    if method.pooled or not shared:
        raise UsageError(f"{place}: {method.name} sends no site updates")
    for name in shared:
        if not state[name].is_floating_point() and not name.endswith("num_batches_tracked"):
            raise UsageError(f"{place}: the network's entry {name} holds whole numbers, to which no noise can be added")
    if level == "central":
        _check_sum(place, settings, method)


def _check_sent(place: str, method: Method, model: Model) -> None:
    """Raise an error for a piece that sends numbers whose size has no known bound."""
    for name, piece in senders(method, model).items():
        if piece.bound(model) is None:
            raise UsageError(
                f"{place}: {method.name} also sends {name}.{next(iter(piece.sends(model)))}, whose size has no "
                "known bound, which the noise needs; choose a method that sends weights only, such as fedavg, fedprox "
                "or silobn, or one whose measurements have a bound, such as harmofl or fedrdn"
            )


def _check_sum(place: str, settings: Settings, method: Method) -> None:
    """Central noise is for a plain sum of updates, in which each has the same weight."""
    rule, federation = method.server_rule, settings.federation
    if rule.needs_every_update or type(rule).effective_steps is not ServerRule.effective_steps:
        raise UsageError(
            f"{place}: {method.name} does not combine updates by a plain sum; choose privacy.site_level = 'local', or "
            "another method"
        )
    if federation.weights != "uniform":
        raise UsageError(f"{place}: federation.weights = {federation.weights!r} must be 'uniform', or 'local' chosen")
    if federation.clip_updates is not None:
        raise UsageError(
            f"{place}: federation.clip_updates = {federation.clip_updates:g} must be unset, as it compares one site's "
            "update with the others'; privacy.site_clip bounds them all"
        )


def sharing_sites(settings: Settings, method: Method) -> int:
    """How many sites share the noise of a round: as many as the round needs, or one if each adds all of it."""
    if settings.privacy.site_level != "central":
        return 1
    sites = registry.tasks.find(settings.task).participants(method, settings.data)
    return quorum(settings.federation, len(Participation.of(settings).asked(sites, 1)))


def site_deviation(settings: Settings, method: Method) -> float:
    """The standard deviation of the noise that one site adds to its update.

    Central: the shares of as many sites as make a round give the noise of the sum; where more answer, there is more.
    """
    privacy = settings.privacy
    return privacy.site_noise * privacy.site_clip / math.sqrt(sharing_sites(settings, method))


def most_rounds_asked(settings: Settings, method: Method, number: int) -> int:
    """In how many rounds, up to this one, the site that was asked most often was asked."""
    if settings.federation.participation == 1:
        return number
    sites = registry.tasks.find(settings.task).participants(method, settings.data)
    drawing = Participation.of(settings)
    asked = Counter(site for each in range(1, number + 1) for site in drawing.asked(sites, each))
    return max(asked.values(), default=0)


def site_releases(settings: Settings, method: Method, sending: Pieces, number: int) -> list[Release]:
    """What the busiest site has released up to a round: its updates, then what each piece sent."""
    privacy, rounds = settings.privacy, most_rounds_asked(settings, method, number)
    noise = noise_of_measurements(privacy, privacy.site_noise)
    times = [
        piece.sends_in(0) + min(rounds, sum(piece.sends_in(each) for each in range(1, number + 1)))
        for piece in sending.values()
    ]
    return [Release(privacy.site_noise, rounds), *(Release(noise, each) for each in times)]


def epsilon_after_round(settings: Settings, method: Method, sending: Pieces, number: int) -> Record:
    """For the server's record of a round: ε of all that a site has released so far; empty without noise."""
    if settings.privacy.site_level == "none":
        return {}
    spent = total_epsilon(site_releases(settings, method, sending, number), settings.privacy.delta)
    return {"epsilon": spent} if math.isfinite(spent) else {}


# --- images ------------------------------------------------------------------------------------------------------


def check_image_privacy(settings: Settings, method: Method, model: Model) -> None:
    """Raise an error if gradients of single images cannot be had, or something else of them would leave."""
    place = "privacy.image_level = true"
    _check_sent(place, method, model)
    _check_measurements(place, settings, method, model)
    if settings.model.norm not in ("group", "instance") or _has_batch_norm(model):
        raise UsageError(
            f"{place}: model.norm = {settings.model.norm!r} must be 'group' or 'instance': batch norm mixes the images "
            "of a batch, so that no image has a gradient of its own"
        )
    if not _steps_are_plain(method):
        hint = "; method.radius = 0 makes them plain" if isinstance(method.step, Radius) else ""
        raise UsageError(
            f"{place}: {method.name} has steps of its own, whose use of gradients the noise does not cover{hint}"
        )
    if method.penalties:
        raise UsageError(f"{place}: {method.name} adds terms to the loss that are not a mean over images")
    if settings.training.loss not in PER_IMAGE:
        raise UsageError(
            f"{place}: training.loss = {settings.training.loss!r} looks at a batch as a whole; choose "
            f"{' or '.join(map(repr, PER_IMAGE))}, a mean over images"
        )
    if settings.training.precision != "float32" or settings.training.compile:
        raise UsageError(f"{place}: gradients of single images need training.precision = 'float32', and no compilation")
    if method.pooled and settings.training.pooled_batch != "site":
        raise UsageError(f"{place}: training.pooled_batch = {settings.training.pooled_batch!r} must be 'site'")
    if settings.data.dimensions == 3:
        raise UsageError(f"{place}: data.dimensions = 3: patches of one volume would count as several images")


def _check_measurements(place: str, settings: Settings, method: Method, model: Model) -> None:
    """Raise an error for a measurement in which one image may count for more than one of all."""
    rounds = range(1, settings.training.rounds + 1)
    for piece in senders(method, model).values():
        if any(piece.sends_in(number) for number in rounds):
            raise UsageError(
                f"{place}: {method.name} measures images while it trains, when a few of them make up the average; "
                "choose method.schedule = 'before-training', which takes the mean over all"
            )
    if model.harmonizer.mixes_images:
        raise UsageError(
            f"{place}: {method.name} changes each image by a mean over all images of its site, so that no gradient is "
            "of one image alone; choose fedrdn, or harmofl with method.radius = 0"
        )


def epsilon_of_images(settings: Settings, sending: Pieces, num_images: int, num_steps: int) -> Record:
    """For a site's record of a round: ε of one image after this many steps in all; empty without noise."""
    privacy = settings.privacy
    if not privacy.image_level:
        return {}
    steps = Release(privacy.image_noise, num_steps, min(1.0, settings.training.batch_size / num_images))
    measured = Release(noise_of_measurements(privacy, privacy.image_noise), len(sending))
    spent = total_epsilon([steps, measured], privacy.delta)
    return {"epsilon": spent} if math.isfinite(spent) else {}


def _steps_are_plain(method: Method) -> bool:
    return method.step is descend or (isinstance(method.step, Radius) and method.step.is_zero)


def _has_batch_norm(model: Model) -> bool:
    return any(isinstance(layer, _BatchNorm) and not _is_instance(layer) for layer in model.network.modules())


def _is_instance(layer: object) -> bool:
    return type(layer).__name__.startswith("InstanceNorm")


# --- the end -----------------------------------------------------------------------------------------------------


def summarize_privacy(settings: Settings, method: Method, sending: Pieces, number: int, records: Path) -> Record:
    """For the summary: ε in all and of one round, and how they came about; empty without noise."""
    privacy = settings.privacy
    said: Record = {}
    if privacy.site_level != "none":
        updates, *measured = releases = site_releases(settings, method, sending, number)
        said["site"] = {
            "level": privacy.site_level,
            "clip": privacy.site_clip,
            "noise": privacy.site_noise,
            "rounds": updates.steps,
            "epsilon": _finite(total_epsilon(releases, privacy.delta)),
            "epsilon_of_a_round": _finite(epsilon(privacy.site_noise, 1, privacy.delta)),
        } | _measured(sum(each.steps for each in measured), noise_of_measurements(privacy, privacy.site_noise))
    if privacy.image_level:
        said["image"] = {
            "clip": privacy.image_clip,
            "noise": privacy.image_noise,
            "epsilon": _newest(records),
        } | _measured(len(sending), noise_of_measurements(privacy, privacy.image_noise))
    return {"privacy": {"delta": privacy.delta, "accountant": _accountant()} | said} if said else {}


def _measured(times: int, noise: float) -> Record:
    return {"measurements": {"times": times, "noise": noise}} if times else {}


def _accountant() -> str:
    import opacus

    return f"RDP, Opacus {opacus.__version__}"


def _newest(records: Path) -> dict[str, float]:
    """The last ε of every site in the records."""
    lines = map(json.loads, records.read_text().splitlines())
    return {each["site"]: each["epsilon"] for each in lines if "epsilon" in each and "num_steps" in each}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
