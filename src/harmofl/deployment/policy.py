"""What a hospital refuses, whatever the server asks: paths, endless work, and spectra that could show one image."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from harmofl.deployment.kits import SiteKit
from harmofl.deployment.own_images import OwnImages
from harmofl.deployment.site_policy import Policy, too_few
from harmofl.documents import read_json
from harmofl.errors import RefusalError
from harmofl.federation.messages import Kind, Request
from harmofl.files import write_whole
from harmofl.methods.pieces import Piece
from harmofl.settings import Settings, flatten

RUN = re.compile(r"[0-9a-f]{32}")
PATHS = ("data.folder", "data.cache", "model.initial", "plugins.files")
MOST_ROUNDS = 10**6
MOST = {
    "federation.threads": 64,
    "training.local_epochs": 1000,
    "training.batch_size": 2**16,
    "data.images": 10**5,
    "data.patches": 10**4,
}
"""Settings with which a server could keep this machine busy for ever, and the largest values that are accepted."""
PIXELS = ("intensity", "color", "neighbours")
"""Data settings with which a server could have other spectra of the same images."""
OF_VOLUMES = ("dimensions", "spacing", "patch", "patches", "foreground")
"""The same where the images are volumes."""


def check_plain_fields(request: Request) -> None:
    """Refuse what no server of ours would send; a run's name becomes part of a path here."""
    if not (isinstance(request.run, str) and RUN.fullmatch(request.run)):
        raise RefusalError(f"run {request.run!r:.80}: not the name of a run")
    if request.kind not in get_args(Kind):
        raise RefusalError(f"request {request.kind!r:.80}: must be one of {', '.join(get_args(Kind))}")
    rounds = (request.round, *request.keep, *(() if request.counted is None else (request.counted,)))
    if not all(type(number) is int and 0 <= number <= MOST_ROUNDS for number in rounds):
        raise RefusalError(f"rounds must be whole numbers from 0 to {MOST_ROUNDS}")
    if not isinstance(request.settings, dict) or not isinstance(request.exchange, dict):
        raise RefusalError("settings, and what is exchanged, must be tables")


def refuse_paths(wanted: Mapping[str, Any]) -> None:
    """Refuse a request that names a place on this machine."""
    values = flatten(wanted)
    for name in PATHS:
        if values.get(name):
            raise RefusalError(f"{name} names a path, and the server does not decide where things are at this site")


def require_secure_aggregation(settings: Settings, policy: Policy) -> None:
    """Refuse a run in which the server would see this hospital's own updates, if the hospital does not want that."""
    if policy.require_secure_aggregation and not settings.federation.secure_aggregation:
        raise RefusalError(
            "federation.secure_aggregation = false: this hospital takes part only if it is true "
            "(require_secure_aggregation in its site.toml)"
        )


def refuse_too_much(settings: Settings) -> None:
    """Refuse values that no training needs."""
    values = flatten(settings.model_dump(mode="json"))
    for name, most in MOST.items():
        if values[name] > most:
            raise RefusalError(f"{name} = {values[name]}: at most {most} is accepted here")


def refuse_thin_averages(revealing: Iterable[Piece]) -> None:
    """Refuse moving averages: one can be the spectrum of its first or last image alone, however many there are."""
    for piece in revealing:
        if not piece.measures_first:
            schedule = getattr(piece, "schedule", "unknown")
            raise RefusalError(f"method.schedule = {schedule!r}: only the mean spectrum of all images is shared here")


def refuse_windows(settings: Settings, kit: SiteKit) -> None:
    """Refuse a window that is not the hospital's: a narrow one leaves all images but one blank."""
    window = settings.data.intensity
    if isinstance(window, list) and window != kit.settings.intensity:
        hint = "the hospital allows one window of its choice by `intensity` in its site.toml"
        raise RefusalError(f"data.intensity = {window}: no spectrum is shared of images in this window ({hint})")


def describe_view(settings: Settings) -> str:
    """Say how the server's settings turn files into pixels."""
    names = PIXELS + (OF_VOLUMES if settings.data.dimensions == 3 else ())
    return ", ".join(f"{name} {getattr(settings.data, name)}" for name in names)


def apply_own_choices(settings: Settings, kit: SiteKit) -> Settings:
    """Replace in the server's settings what the hospital decides for itself."""
    own = kit.settings
    fewest = max(own.min_images_for_amplitude, settings.data.min_images_for_amplitude)
    folder = str(kit.data) if kit.data else None
    changed = settings.with_values(
        "data", folder=folder, cache=str(kit.cache), hold_out_site=None, min_images_for_amplitude=fewest
    )
    return changed.model_copy(update={"device": own.device})


def refuse_few_images(own: OwnImages, policy: Policy, only_training: bool = False) -> None:
    """Refuse what uses so few images, or those of so few patients, that numbers could tell of one of them."""
    site = own.site
    scored = {} if only_training else {"val": site.val[site.name], "test": site.test[site.name]}
    parts = {"train": site.train, **scored}
    images = {part: len(each) for part, each in parts.items()}
    patients = {part: own.num_patients(each) for part, each in parts.items()}
    problems = (too_few(images, policy.fewest_images, "images"), too_few(patients, policy.fewest_patients, "patients"))
    if found := [problem for problem in problems if problem]:
        raise RefusalError(f"with these settings too few are used here: {'; '.join(found)} (policy in its site.toml)")


def remember(path: Path, fingerprint: str, otherwise: str) -> None:
    """Write down which images, or masks, something started with; refuse to continue with others."""
    if not path.exists():
        write_whole(path, json.dumps({"fingerprint": fingerprint}) + "\n")
    elif read_json(path).get("fingerprint") != fingerprint:
        raise RefusalError(otherwise)
