"""The loss around the selected global model of finished runs: on planes, along the sites' own paths, and as one number.

Three planes through the model: `near` and `wide` (8 × wider) in two random filter-normalized directions, the same draw
for all runs, and `drift`, the plane that holds most of the paths that the sites take from here. The random planes show
the model as it is used, in eval mode; the drift plane shows what the sites descend, batch norm on each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from harmofl.analysis.archive import key_of, load_landscape, save_landscape
from harmofl.analysis.directions import Weights, principal_directions, projected, random_direction
from harmofl.analysis.drift_terms import SiteGradient, gradient_at, gradient_distances, write_all_terms
from harmofl.analysis.loaded_runs import LoadedRun, fingerprint, load_runs, open_images
from harmofl.analysis.local_paths import LocalPath, local_path
from harmofl.analysis.losses import (
    Array,
    Batches,
    Mode,
    as_in_training,
    losses_at,
    mean_loss,
    side_by_side,
    surface,
)
from harmofl.analysis.results import Landscape, Options, View
from harmofl.data.folder import silent
from harmofl.data.images import Site, seed_of
from harmofl.devices import threads
from harmofl.models.network import Network
from harmofl.states import evaluating
from harmofl.tasks.task import Source

Watch = Callable[[dict[str, Any]], None]
Plane = tuple[Weights, Weights]

WIDER = 8
"""How much wider the second scale is, as in the paper."""

MARGIN = 1.3
"""How far the drift plane reaches beyond the site that goes farthest."""

OPERATIONS = 5e12
"""Floating-point operations for all planes, a minute or so on two cores: they decide for how many points and images
there is time."""

FEWEST_IMAGES, MOST_IMAGES = 8, 128
POINTS = (17, 15, 13, 11, 9)


def landscape(
    runs: Sequence[Path],
    out: Path,
    points: int = 0,
    span: float = 0.1,
    local_epochs: int = 3,
    images: int = 0,
    directions: int = 20,
    seed: int = 0,
    device: str = "auto",
    watch: Watch = silent,
) -> Landscape:
    """Look at the loss around the selected models of runs on the same data; what is found is kept in `out`.

    points:       along each axis of the random planes; 0: as many as there is time for, by the size of the network
    span:         how far the near plane reaches, in units of each filter's norm
    local_epochs: how long each site trains on from the global model
    images:       training images per site; 0: as many as there is time for
    directions:   random directions over which the sharpness is a mean
    """
    options = Options(points, span, local_epochs, images, directions, seed)
    loaded = load_runs(runs, device)
    source, settings = open_images(loaded[0].task, loaded[0].settings)
    labels = [run.label for run in loaded]
    key = key_of([fingerprint(run.finished) for run in loaded], labels, settings.data, options)
    path = out / "landscape.npz"
    found = load_landscape(path, key)
    if found is None:
        with threads(1):
            found = survey(loaded, source, options, watch)
        save_landscape(path, found, key)
    write_all_terms(runs, found, out)
    return found


@dataclass(frozen=True)
class Look:
    """What was found at one run before its planes are known; one entry per site."""

    run: LoadedRun
    batches: list[Batches]
    paths: list[LocalPath]
    gradients: list[SiteGradient]
    rises: list[list[float]]

    @property
    def networks(self) -> list[Network]:
        """Every site's."""
        return [model.network for model in self.run.models.values()]

    @property
    def steps(self) -> list[Weights]:
        """All sites' paths together."""
        return [step for path in self.paths for step in path.steps]


class WorkDone:
    """Tells the watch how much of the work is done."""

    def __init__(self, total: int, watch: Watch) -> None:
        self._done, self._total, self._watch = 0, total, watch

    def step(self, run: str, site: str) -> None:
        """One more part is done."""
        self._done += 1
        self._watch({"phase": "landscape", "done": self._done, "total": self._total, "run": run, "site": site})


def survey(runs: Sequence[LoadedRun], source: Source, options: Options, watch: Watch) -> Landscape:
    """Compute everything: first what spans the planes, then the planes."""
    first = runs[0]
    sites = first.load_sites(source)
    options = in_time(runs, options)
    rows_per_site = 1 + 2 * options.points + drift_points(options)
    work = WorkDone(len(runs) * len(sites) * rows_per_site, watch)
    looks = [look_at(run, sites, options, work) for run in runs]
    views = [*random_views(looks, options, work), drift_view(looks, options, work)]
    return Landscape(
        runs=tuple(run.label for run in runs),
        sites=tuple(first.sites),
        loss_name=first.settings.training.loss,
        num_images=tuple(sum(len(inputs) for inputs, _ in batches) for batches in looks[0].batches),
        radius=options.radius,
        views={view.name: view for view in views},
        rises=np.array([look.rises for look in looks]),
        squared_gradients=np.array([[each.squared_norm for each in look.gradients] for look in looks]),
        variances=np.array([[each.variance for each in look.gradients] for look in looks]),
        distances=np.stack([gradient_distances(look.gradients).cpu().numpy() for look in looks]),
        drifts=np.array([[path.drift for path in look.paths] for look in looks]),
        num_steps=np.array([[path.num_steps for path in look.paths] for look in looks]),
        step_sizes=np.array([run.settings.training.learning_rate for run in runs]),
    )


def in_time(runs: Sequence[LoadedRun], options: Options) -> Options:
    """Choose points and images where that is left open: the same on every machine, as they change the numbers."""
    first = runs[0]
    in_all = OPERATIONS / (operations_per_image(first) * len(first.sites) * len(runs))

    def images(points: int) -> float:
        return in_all / num_points(replace(options, points=points))

    points = options.points or next((points for points in POINTS if images(points) >= FEWEST_IMAGES), POINTS[-1])
    count = options.images or min(max(FEWEST_IMAGES, round(images(points))), MOST_IMAGES)
    return replace(options, points=points, images=count)


def operations_per_image(run: LoadedRun) -> int:
    """Floating-point operations of one pass."""
    network = next(iter(run.models.values())).network
    device = next(network.parameters()).device
    image = torch.zeros(1, *run.task.image_shape(run.settings.data), device=device)
    with FlopCounterMode(display=False) as counter, evaluating(network):
        network(image)
    return int(counter.get_total_flops())


def num_points(options: Options) -> int:
    """Of all planes of a run."""
    return 2 * options.points**2 + drift_points(options) ** 2


def look_at(run: LoadedRun, sites: Sequence[Site], options: Options, work: WorkDone) -> Look:
    """Everything of one run but its planes, sites side by side: each on a copy of its model and on one thread."""

    def seen(site: Site) -> tuple[Batches, LocalPath, SiteGradient, list[float]]:
        own = run.copy_for(site.name)
        batches = list(own.batches(site, options.images, options.seed))
        path, gradient = local_path(own, site, options.local_epochs), gradient_at(own, site, options.seed)
        return batches, path, gradient, list(loss_rises(own.models[site.name].network, batches, own, options))

    look = Look(run, [], [], [], [])
    with ThreadPoolExecutor(side_by_side(look.networks[0])) as pool:
        for site, (batches, path, gradient, rises) in zip(sites, pool.map(seen, sites), strict=True):
            look.batches.append(batches)
            look.paths.append(path)
            look.gradients.append(gradient)
            look.rises.append(rises)
            work.step(run.label, site.name)
    return look


def loss_rises(network: Network, batches: Batches, run: LoadedRun, options: Options) -> Iterator[float]:
    """Yield how much the loss rises at the radius, in one random direction after the other."""
    with evaluating(network):
        centre = mean_loss(network, batches, run.loss)
    point = np.array([[options.radius]])
    for number in range(options.directions):
        direction = random_direction(network, seed_of(options.seed, "sharpness", number))
        (moved,) = losses_at(network, [direction], point, batches, run.loss)
        yield moved - centre


def random_views(looks: Sequence[Look], options: Options, work: WorkDone) -> Iterator[View]:
    """The near and the wide plane."""
    seeds = [seed_of(options.seed, "axis", number) for number in range(2)]
    planes = [_plane(random_direction(look.networks[0], seed) for seed in seeds) for look in looks]
    for name, span in (("near", options.span), ("wide", options.span * WIDER)):
        yield view_of(name, looks, planes, grid_axis(span, options.points), evaluating, work)


def drift_view(looks: Sequence[Look], options: Options, work: WorkDone) -> View:
    """The plane of the sites' paths, on one scale for all runs."""
    planes = [principal_directions(look.steps) for look in looks]
    places = [projected(step, plane)[0] for look, plane in zip(looks, planes, strict=True) for step in look.steps]
    span = MARGIN * max(float(place.abs().max()) for place in places)
    return view_of("drift", looks, planes, grid_axis(span, drift_points(options)), as_in_training, work)


def drift_points(options: Options) -> int:
    """Along each axis of the drift plane, which is so small that the loss is smooth in it."""
    return max(5, options.points // 4 * 2 + 1)


def grid_axis(span: float, points: int) -> Array:
    """Coordinates from −span to span; the middle one is exactly zero."""
    half = points // 2
    return np.arange(-half, half + 1, dtype=np.float64) * (span / half)


def view_of(name: str, looks: Sequence[Look], planes: Sequence[Plane], axis: Array, mode: Mode, work: WorkDone) -> View:
    """The losses of every run and site on a grid, with the sites' paths."""
    pairs = list(zip(looks, planes, strict=True))
    seen = [[path_in(plane, path) for path in look.paths] for look, plane in pairs]
    return View(
        name=name,
        axis=axis,
        losses=np.array([list(_surfaces(look, plane, axis, mode, work)) for look, plane in pairs]),
        paths=np.array([[places for places, _ in each] for each in seen]),
        shares=np.array([[share for _, share in each] for each in seen]),
    )


def _surfaces(look: Look, plane: Plane, axis: Array, mode: Mode, work: WorkDone) -> Iterator[list[list[float]]]:
    for site, network, batches in zip(look.run.sites, look.networks, look.batches, strict=True):
        rows = []
        for row in surface(network, plane, axis, batches, look.run.loss, mode):
            rows.append(row)
            work.step(look.run.label, site)
        yield rows


def path_in(plane: Plane, path: LocalPath) -> tuple[Array, float]:
    """A path's places in a plane (E + 1, 2), from the model on, and the part of its end that lies there."""
    found = [projected(step, plane) for step in path.steps]
    places = [np.zeros(2), *(place.cpu().numpy() for place, _ in found)]
    return np.stack(places), found[-1][1]


def _plane(directions: Iterator[Weights]) -> Plane:
    first, second = directions
    return first, second
