"""The loss around the selected global model of finished runs: on planes, along the sites' own paths, and as one number.

Three planes through the model: `near` and `wide` (8 × wider) in two random filter-normalized directions, the same draw
for all runs, and `drift`, the plane that holds most of the paths that the sites take from here. The random planes show
the model as it is used, in eval mode; the drift plane shows what the sites descend, batch norm on each batch. The
wide plane and the drift plane grow until the lowest loss of every run and site lies inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from harmofl.analysis.archive import key_of, load_landscape, save_landscape
from harmofl.analysis.assumed_constants import Point, estimate_beta, mean_step, moved_by
from harmofl.analysis.directions import random_direction
from harmofl.analysis.drift_terms import SiteGradient, gradient_at, gradient_distances
from harmofl.analysis.loaded_runs import LoadedRun, fingerprint, load_runs, open_images
from harmofl.analysis.local_paths import LocalPath, combine_from_models, local_path
from harmofl.analysis.losses import Batches, losses_at, mean_loss, side_by_side
from harmofl.analysis.planes import DRIFT_POINTS, Look, Progress, drift_view, random_views
from harmofl.analysis.results import Landscape, Options
from harmofl.analysis.run_terms import write_all_terms
from harmofl.data.folder import ImageFolder
from harmofl.data.images import Site, seed_of
from harmofl.devices import threads
from harmofl.events import Watch, ignore
from harmofl.models.network import Network
from harmofl.states import evaluating
from harmofl.tasks.task import Source

OPERATIONS = 5e12
"""Floating-point operations for all planes before they grow, a minute or so on two cores: they decide how many points
and images there are."""

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
    growths: int = 2,
    seed: int = 0,
    device: str = "auto",
    watch: Watch = ignore,
) -> Landscape:
    """Compute the loss around the selected models of runs on the same data, and keep it in `out`.

    points:       along each axis of the random planes; 0: as many as there is time for, by the size of the network
    span:         how far the near plane reaches, in units of each filter's norm
    local_epochs: how long each site trains on from the global model
    images:       training images per site; 0: as many as there is time for
    directions:   random directions over which the sharpness is a mean
    growths:      how often a plane may double its reach until the lowest loss of every run and site lies inside
    """
    options = Options(points, span, local_epochs, images, directions, growths, seed)
    loaded = load_runs(runs, device)
    source, _ = open_images(loaded[0].task, loaded[0].settings, loaded[0].finished.facts)
    facts = source.facts() if isinstance(source, ImageFolder) else None
    labels = [run.label for run in loaded]
    key = key_of([fingerprint(run.finished) for run in loaded], labels, facts, options)
    path = out / "landscape.npz"
    result = load_landscape(path, key)
    if result is None:
        with threads(1):
            result = survey(loaded, source, options, watch)
        save_landscape(path, result, key)
    write_all_terms(runs, result, out)
    return result


def survey(runs: Sequence[LoadedRun], source: Source, options: Options, watch: Watch) -> Landscape:
    """Compute everything: first what spans the planes, then the planes."""
    first = runs[0]
    sites = first.load_sites(source)
    options = fit_time(runs, options)
    grids = len(runs) * len(sites)
    first_steps = Progress("training on from", grids, watch)
    looks = [look_at(run, sites, options, first_steps) for run in runs]
    progress = Progress("the loss around", grids * (2 * options.points + DRIFT_POINTS), watch)
    views = [*random_views(looks, options, progress), drift_view(looks, options, progress)]
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
        betas=np.array([look.betas for look in looks]),
        points=np.array([[list(vars(point).values()) for point in look.points] for look in looks]),
    )


def fit_time(runs: Sequence[LoadedRun], options: Options) -> Options:
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
    """Count the points of all planes of a run before they grow."""
    return 2 * options.points**2 + DRIFT_POINTS**2


def look_at(run: LoadedRun, sites: Sequence[Site], options: Options, progress: Progress) -> Look:
    """Compute everything of one run but its planes, sites side by side: each on a copy of its model and one thread."""

    combined = combine_from_models(run)

    def look_at_site(site: Site) -> tuple[Batches, LocalPath, SiteGradient, list[float]]:
        own = run.copy_for(site.name)
        batches = list(own.batches(site, options.images, options.seed))
        path = local_path(own, site, options.local_epochs, combined)
        gradient = gradient_at(own, site, options.seed)
        return batches, path, gradient, list(loss_rises(own.models[site.name].network, batches, own, options))

    look = Look(run, [], [], [], [])
    with ThreadPoolExecutor(side_by_side(look.networks[0])) as pool:
        for site, (batches, path, gradient, rises) in zip(sites, pool.map(look_at_site, sites), strict=True):
            look.batches.append(batches)
            look.paths.append(path)
            look.gradients.append(gradient)
            look.rises.append(rises)
            progress.step(run.label, site.name)
        look_ahead(look, sites, options, pool)
    return look


def look_ahead(look: Look, sites: Sequence[Site], options: Options, pool: ThreadPoolExecutor) -> None:
    """Add what the constants of the bound's theorem are estimated from: gradients where the sites go."""
    together = mean_step([path.steps[0] for path in look.paths])

    def look_at_site(number: int) -> tuple[float, SiteGradient]:
        site, step = sites[number], look.paths[number].steps[0]
        own = look.run.copy_for(site.name)
        with moved_by(own.models[site.name].network, step):
            beta = estimate_beta(look.gradients[number], gradient_at(own, site, options.seed), step)
        with moved_by(own.models[site.name].network, together):
            return beta, gradient_at(own, site, options.seed)

    betas, gradients = zip(*pool.map(look_at_site, range(len(sites))), strict=True)
    look.betas.extend(betas)
    look.points.extend([Point.of(look.gradients), Point.of(gradients)])


def loss_rises(network: Network, batches: Batches, run: LoadedRun, options: Options) -> Iterator[float]:
    """Yield how much the loss rises at the radius, in one random direction after the other."""
    with evaluating(network):
        centre = mean_loss(network, batches, run.loss)
    point = np.array([[options.radius]])
    for number in range(options.directions):
        direction = random_direction(network, seed_of(options.seed, "sharpness", number))
        (moved,) = losses_at(network, [direction], point, batches, run.loss)
        yield moved - centre
