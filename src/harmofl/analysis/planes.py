"""The losses of runs on planes through their models: two random ones, and that of the sites' own paths.

The near plane keeps its reach, which is that of the sharpness. The wide one, in the same directions, and the plane of
the paths grow, at most a few times, until the lowest loss of every run and site lies inside. Each growth doubles the
reach and keeps every point that was computed: the new ones stand twice as far apart, outside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from harmofl.analysis.assumed_constants import Point
from harmofl.analysis.directions import Weights, principal_directions, project, random_direction
from harmofl.analysis.drift_terms import SiteGradient
from harmofl.analysis.loaded_runs import LoadedRun
from harmofl.analysis.local_paths import LocalPath
from harmofl.analysis.losses import Array, Batches, Mode, as_in_training, surface
from harmofl.analysis.results import Options, View, is_lowest_at_edge
from harmofl.data.images import seed_of
from harmofl.events import StepDone, Watch
from harmofl.models.network import Network
from harmofl.states import evaluating

Plane = tuple[Weights, Weights]

WIDER = 8
"""How much wider the second scale is, as in the paper."""

MARGIN = 1.3
"""How far the drift plane reaches at first beyond the site that goes farthest."""

DRIFT_POINTS = 9
"""Along each axis of the drift plane before it grows; it is so small that the loss is smooth in it."""


@dataclass(frozen=True)
class Look:
    """What is known of one run before its planes are computed; one entry per site."""

    run: LoadedRun
    batches: list[Batches]
    paths: list[LocalPath]
    gradients: list[SiteGradient]
    rises: list[list[float]]
    betas: list[float] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    """All sites' gradients at the model, and where the sites go from it."""

    @property
    def networks(self) -> list[Network]:
        """Every site's."""
        return [model.network for model in self.run.models.values()]

    @property
    def steps(self) -> list[Weights]:
        """All sites' paths together."""
        return [step for path in self.paths for step in path.steps]


class Progress:
    """Reports how much of one kind of work is done; a plane that grows adds to it."""

    def __init__(self, what: str, total: int, watch: Watch) -> None:
        self._what, self._done, self._total, self._watch = what, 0, total, watch

    def add(self, parts: int) -> None:
        """Expect more parts."""
        self._total += parts

    def step(self, run: str, site: str) -> None:
        """Report that one more part is done."""
        self._done += 1
        self._watch(StepDone(f"{self._what} {run} at {site}", self._done, self._total))


def random_views(looks: Sequence[Look], options: Options, progress: Progress) -> Iterator[View]:
    """Yield the near and the wide plane."""
    planes = [random_plane(look.networks[0], options.seed) for look in looks]
    for name, span, growths in (("near", options.span, 0), ("wide", options.span * WIDER, options.growths)):
        yield view_of(name, looks, planes, grid_axis(span, options.points), evaluating, growths, progress)


def random_plane(network: Network, seed: int) -> Plane:
    """Draw two filter-normalized directions, the same draw for all networks of one architecture."""
    first, second = (random_direction(network, seed_of(seed, "axis", number)) for number in range(2))
    return first, second


def drift_view(looks: Sequence[Look], options: Options, progress: Progress) -> View:
    """Compute the plane of the sites' paths, on one scale for all runs."""
    planes = [principal_directions(look.steps) for look in looks]
    places = [project(step, plane)[0] for look, plane in zip(looks, planes, strict=True) for step in look.steps]
    axis = grid_axis(MARGIN * max(float(place.abs().max()) for place in places), DRIFT_POINTS)
    return view_of("drift", looks, planes, axis, as_in_training, options.growths, progress)


def grid_axis(span: float, points: int) -> Array:
    """Coordinates from −span to span; the middle one is exactly zero."""
    half = points // 2
    return np.arange(-half, half + 1, dtype=np.float64) * (span / half)


def grow_axis(axis: Array) -> Array:
    """Double an axis's reach: all its coordinates and, outside, new ones with twice the distance of the last ones."""
    outside = 2 * axis[axis > axis[-1] / 2]
    return np.concatenate([-outside[::-1], axis, outside])


def view_of(
    name: str,
    looks: Sequence[Look],
    planes: Sequence[Plane],
    axis: Array,
    mode: Mode,
    growths: int,
    progress: Progress,
) -> View:
    """Compute the losses of every run and site on a grid that grows where it must, and place the sites' paths in it."""
    losses = grid_losses(looks, planes, axis, mode, progress)
    for _ in range(growths):
        if not is_lowest_at_edge(losses).any():
            break
        axis = grow_axis(axis)
        progress.add(losses.shape[0] * losses.shape[1] * len(axis))
        losses = grid_losses(looks, planes, axis, mode, progress, known=losses)
    pairs = list(zip(looks, planes, strict=True))
    seen = [[path_in(plane, path) for path in look.paths] for look, plane in pairs]
    return View(
        name=name,
        axis=axis,
        losses=losses,
        paths=np.array([[places for places, _ in each] for each in seen]),
        shares=np.array([[share for _, share in each] for each in seen]),
    )


def grid_losses(
    looks: Sequence[Look],
    planes: Sequence[Plane],
    axis: Array,
    mode: Mode,
    progress: Progress,
    known: Array | None = None,
) -> Array:
    """Compute the losses (R, S, P, P) on a grid; `known` are those of its middle (R, S, Q, Q)."""
    losses = []
    for run, (look, plane) in enumerate(zip(looks, planes, strict=True)):
        for site, (name, network) in enumerate(zip(look.run.sites, look.networks, strict=True)):
            inner = None if known is None else known[run, site]
            for row in surface(network, plane, axis, look.batches[site], look.run.loss, mode, inner):
                losses.append(row)
                progress.step(look.run.label, name)
    return np.reshape(losses, (len(looks), -1, len(axis), len(axis)))


def path_in(plane: Plane, path: LocalPath) -> tuple[Array, float]:
    """A path's places in a plane (E + 1, 2), from the model on, and the part of its end that lies there."""
    steps = [project(step, plane) for step in path.steps]
    places = [np.zeros(2), *(place.cpu().numpy() for place, _ in steps)]
    return np.stack(places), steps[-1][1]
