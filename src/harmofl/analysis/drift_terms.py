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
from harmofl.analysis.subjects import Subject, fingerprint, open_runs
from harmofl.data.images import Site
from harmofl.federation.progress import Progress, read_checkpoint
from harmofl.federation.records import RunFolder
from harmofl.federation.store import CorruptVersionError
from harmofl.federation.transports import threads
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
    squared_norms: Tensor, variance: float, epsilon: float, num_steps: float, step_size: float
) -> Mapping[str, float]:
    """The three terms of the bound on the drift, after some local steps of plain gradient descent."""
    num_sites = len(squared_norms)
    moved = (num_steps * step_size) ** 2
    return {
        "gradient": 4 * moved * float(squared_norms.mean()),
        "dissimilarity": 4 * moved * (epsilon * (num_sites - 1) / num_sites) ** 2,
        "noise": 2 * num_steps * step_size**2 * variance,
    }


def measure_terms(runs: Sequence[Path], out: Path, seed: int = 0, device: str = "auto") -> list[RunTerms]:
    """Measure the terms of finished runs on the same data and keep them in `out`; kept ones are not measured again."""
    parts = {"version": __version__, "runs": [fingerprint(run) for run in runs], "seed": seed}
    key = json.dumps(parts, sort_keys=True)
    found = read_terms(out, key)
    if found is None:
        subjects = open_runs(runs, device)
        sites = subjects[0].load_sites()
        with threads(1):
            found = [run_terms(run, subject, sites, out, seed) for run, subject in zip(runs, subjects, strict=True)]
        write_terms(out, found, key)
    return found


def run_terms(run: Path, subject: Subject, sites: Sequence[Site], out: Path, seed: int) -> RunTerms:
    """One run's recorded drift, and what is measured at its models."""
    result = read_run(run)
    measured = [terms_at(each, sites, number, chosen, seed) for number, chosen, each in _models(run, subject, result)]
    folder = Path(os.path.relpath(run.resolve(), out.resolve())).as_posix()
    return RunTerms(folder, subject.label, drift_curves(result), measured)


def drift_curves(run: RunResult) -> dict[str, dict[int, float]]:
    """Each site's recorded drift by round."""
    curves: dict[str, dict[int, float]] = {}
    for record in run.records:
        if record["phase"] == "train" and record.get("drift") is not None:
            curves.setdefault(record["site"], {})[record["round"]] = record["drift"]
    return curves


def _models(run: Path, subject: Subject, result: RunResult) -> Iterator[tuple[int, str, Subject]]:
    """The run at its selected round, and at its last if that is another and its checkpoint is still there."""
    selected, last = result.summary.get("best_round"), subject.settings.training.rounds
    if selected == last:
        yield last, "selected and last", subject
        return
    yield selected or 0, "selected", subject
    try:
        yield last, "last", at_round(subject, RunFolder(run), last)
    except CorruptVersionError:  # a folder may be handed on without its checkpoints
        return


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


def terms_at(subject: Subject, sites: Sequence[Site], number: int, chosen: str, seed: int) -> Terms:
    """Every site's gradient and further local epoch, from the models as they are."""
    gradients = {site.name: gradient_at(subject, site, seed) for site in sites}
    paths = {site.name: local_path(subject, site, epochs=1) for site in sites}
    squared = {name: each.squared_norm for name, each in gradients.items()}
    variances = {name: each.variance for name, each in gradients.items()}
    epsilon = float(gradient_distances(list(gradients.values())).max())
    steps = sum(path.num_steps for path in paths.values()) / len(paths)
    terms = bound(
        torch.tensor(list(squared.values())),
        max(variances.values()),
        epsilon,
        steps,
        subject.settings.training.learning_rate,
    )
    drifts = {name: path.drift for name, path in paths.items()}
    return Terms(number, chosen, squared, variances, epsilon, drifts, terms)
