"""What the bound on the sites' drift is made of (Theorem 3.1 of HarmoFL), measured at a model.

The bound on Γ = (1/KN) Σ_k Σ_i E‖θ_{i,k} − θ‖² after K local steps of size η is the sum of three terms:

    4K²η² · mean_i ‖∇F_i(θ)‖²  +  4K²η² · ε²(N − 1)²/N²  +  2Kη²σ²

The theorem is not taken as proven here: its terms are shown beside the drift that was measured. They are measured
afterwards, at the rounds of which a run keeps the model: the selected one and the last.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from harmofl import __version__
from harmofl.analysis.directions import flattened
from harmofl.analysis.local_paths import local_path
from harmofl.analysis.losses import Batch, as_in_training
from harmofl.analysis.measured_terms import RunTerms, Terms, read_terms, write_terms
from harmofl.analysis.results import Landscape
from harmofl.analysis.subjects import Subject, Watch, WorkDone, fingerprint, open_runs
from harmofl.data.folder import silent
from harmofl.data.images import Site
from harmofl.devices import threads
from harmofl.federation.progress import Progress, read_checkpoint
from harmofl.federation.records import RunFolder
from harmofl.federation.store import CorruptVersionError
from harmofl.models.network import Model
from harmofl.reporting.runs import RunResult, read_run
from harmofl.states import load, snapshot, unprefixed
from harmofl.tasks.losses import Loss


@dataclass(frozen=True)
class SiteGradient:
    """A site's gradient ∇F_i at a model, and the variance σ² = E‖g_i − ∇F_i‖² of its mini-batches' gradients."""

    mean: Tensor
    variance: float

    @property
    def squared_norm(self) -> float:
        """‖∇F_i‖²."""
        return float(self.mean.square().sum())


def site_gradient(network: nn.Module, batches: Iterable[Batch], loss: Loss) -> SiteGradient:
    """The gradients that the site's steps would follow, batch norm included; a batch counts by its images."""
    weights = list(network.parameters())
    mean, variance, seen = torch.zeros((), device=weights[0].device), 0.0, 0
    with as_in_training(network):
        for inputs, targets in batches:
            gradient = flattened(list(torch.autograd.grad(loss(network(inputs), targets), weights)))
            # Welford's update: the difference of two large sums would lose the variance of a small one.
            seen += len(inputs)
            distance = gradient - mean
            mean = mean + distance * (len(inputs) / seen)
            variance += len(inputs) * float((distance * (gradient - mean)).sum())
    return SiteGradient(mean, variance / seen)


def gradient_at(subject: Subject, site: Site, seed: int) -> SiteGradient:
    """A site's gradient at a run's final model, on all its training images."""
    batches = subject.batches(site, len(site.train), seed)
    return site_gradient(subject.models[site.name].network, batches, subject.loss)


def measure_gradients(run: Path, seed: int = 0, device: str = "auto") -> dict[str, SiteGradient]:
    """Every site's gradient at the final model of a finished run."""
    (subject,) = open_runs([run], device)
    with threads(1):
        return {site.name: gradient_at(subject, site, seed) for site in subject.load_sites()}


def gradient_distances(gradients: Sequence[SiteGradient]) -> Tensor:
    """‖∇F_i − ∇F_j‖ for every two sites (N, N); the largest is ε."""
    return torch.stack([torch.stack([(one.mean - other.mean).norm() for other in gradients]) for one in gradients])


def bound(
    squared_norms: Sequence[float], variance: float, epsilon: float, num_steps: float, step_size: float
) -> Mapping[str, float]:
    """The three terms of the bound on the drift, after some local steps of plain gradient descent."""
    num_sites = len(squared_norms)
    moved = (num_steps * step_size) ** 2
    return {
        "gradient": 4 * moved * sum(squared_norms) / num_sites,
        "dissimilarity": 4 * moved * (epsilon * (num_sites - 1) / num_sites) ** 2,
        "noise": 2 * num_steps * step_size**2 * variance,
    }


def measure_terms(
    runs: Sequence[Path],
    subjects: Sequence[Subject],
    landscape: Landscape,
    out: Path,
    seed: int = 0,
    watch: Watch = silent,
) -> list[RunTerms]:
    """The terms of runs whose landscape was looked at, kept in `out`; kept ones are not measured again.

    At the selected rounds they were measured with the landscape; those of the last rounds are measured here.
    """
    parts = {"version": __version__, "runs": [fingerprint(run) for run in runs], "seed": seed}
    key = json.dumps(parts, sort_keys=True)
    found = read_terms(out, key)
    if found is None:
        with threads(1):
            found = list(_all_terms(runs, subjects, landscape, out, seed, watch))
        write_terms(out, found, key)
    return found


def _all_terms(
    runs: Sequence[Path], subjects: Sequence[Subject], landscape: Landscape, out: Path, seed: int, watch: Watch
) -> Iterator[RunTerms]:
    results = [read_run(run) for run in runs]
    ends = [_at_end(*each) for each in zip(runs, subjects, results, strict=True)]
    sites = subjects[0].load_sites() if any(ends) else []
    work = WorkDone("drift", len(sites) * sum(end is not None for end in ends), watch)
    for number, (run, result, end) in enumerate(zip(runs, results, ends, strict=True)):
        selected, last = result.summary.get("best_round"), subjects[number].settings.training.rounds
        chosen = "selected and last" if selected == last else "selected"
        measured = [terms_in(landscape, number, selected or 0, chosen)]
        if end:
            measured.append(terms_at(end, sites, last, "last", seed, work))
        folder = Path(os.path.relpath(run.resolve(), out.resolve())).as_posix()
        yield RunTerms(folder, subjects[number].label, drift_curves(result), measured)


def drift_curves(run: RunResult) -> dict[str, dict[int, float]]:
    """Each site's recorded drift by round."""
    curves: dict[str, dict[int, float]] = {}
    for record in run.records:
        if record["phase"] == "train" and record.get("drift") is not None:
            curves.setdefault(record["site"], {})[record["round"]] = record["drift"]
    return curves


def _at_end(run: Path, subject: Subject, result: RunResult) -> Subject | None:
    """The run at its last round, if another one was selected and the last one's checkpoint is still there."""
    last = subject.settings.training.rounds
    if result.summary.get("best_round") == last:
        return None
    try:
        return at_round(subject, RunFolder(run), last)
    except CorruptVersionError:  # a folder may be handed on without its checkpoints
        return None


def at_round(subject: Subject, folder: RunFolder, number: int) -> Subject:
    """The same run with the models of another round, of which it has a checkpoint."""
    progress = read_checkpoint(folder, number)
    return replace(subject, models={site: _at_site(subject, folder, progress, site) for site in subject.sites})


def _at_site(subject: Subject, folder: RunFolder, progress: Progress, site: str) -> Model:
    """What the site would evaluate in that round: the server's entries, and its own where it keeps some."""
    kept = folder.site_store(site).newest(at_most=progress.round)
    model = copy.deepcopy(subject.models[site])
    load(model.network, snapshot(model.network) | progress.state | unprefixed("own", kept))
    blank = snapshot(subject.method.harmonizer(subject.task.image_shape(subject.settings.data)))
    load(model.harmonizer, blank | unprefixed("harmonizer", kept))
    if progress.measurement:
        model.harmonizer.receive(progress.measurement)
    model.harmonizer.freeze()
    return model.eval()


def terms_at(subject: Subject, sites: Sequence[Site], number: int, chosen: str, seed: int, work: WorkDone) -> Terms:
    """Every site's gradient and further local epoch, from the models as they are."""
    gradients, paths = [], []
    for site in sites:
        gradients.append(gradient_at(subject, site, seed))
        paths.append(local_path(subject, site, epochs=1))
        work.step(subject.label, site.name)
    return _terms(
        number,
        chosen,
        [site.name for site in sites],
        squared=[gradient.squared_norm for gradient in gradients],
        variances=[gradient.variance for gradient in gradients],
        epsilon=float(gradient_distances(gradients).max()),
        drifts=[path.drift for path in paths],
        num_steps=sum(path.num_steps for path in paths) / len(paths),
        step_size=subject.settings.training.learning_rate,
    )


def terms_in(landscape: Landscape, run: int, number: int = 0, chosen: str = "selected") -> Terms:
    """What was measured at a run's model together with its landscape."""
    return _terms(
        number,
        chosen,
        landscape.sites,
        squared=landscape.squared_gradients[run].tolist(),
        variances=landscape.variances[run].tolist(),
        epsilon=float(landscape.distances[run].max()),
        drifts=landscape.drifts[run].tolist(),
        num_steps=float(landscape.num_steps[run].mean()),
        step_size=float(landscape.step_sizes[run]),
    )


def _terms(
    number: int,
    chosen: str,
    sites: Sequence[str],
    squared: Sequence[float],
    variances: Sequence[float],
    epsilon: float,
    drifts: Sequence[float],
    num_steps: float,
    step_size: float,
) -> Terms:
    """One entry per site; the theorem takes the largest variance."""
    terms = bound(squared, max(variances), epsilon, num_steps, step_size)
    by_site = [dict(zip(sites, values, strict=True)) for values in (squared, variances, drifts)]
    return Terms(number, chosen, by_site[0], by_site[1], epsilon, by_site[2], terms)
