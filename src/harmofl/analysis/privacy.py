"""What could be learned from what sites share: three attacks, and how many images an amplitude should average.

Writes `privacy.json` (every number) and `images.npz` (every reconstruction).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Generator, Tensor, nn

from harmofl.analysis.amplitude_inversion import invert_amplitude, picture_of_amplitude
from harmofl.analysis.frames import FRAMES, nearest_of, put_in_frame, window
from harmofl.analysis.gradient_inversion import LocalTraining, Loss, Search, Use, invert, update_of
from harmofl.analysis.hospitals import has_colours
from harmofl.analysis.phase_retrieval import Knowledge, at_best, half_spectrum, retrieve
from harmofl.analysis.privacy_target import CONTROL, FEWEST_OTHERS, TRAINED, Effort, Target, open_target
from harmofl.analysis.similarity import psnr, ssim
from harmofl.data.images import seed_of
from harmofl.devices import threads
from harmofl.events import StepDone, Watch, ignore
from harmofl.files import write_whole
from harmofl.methods.amplitude_normalization import AmplitudeNormalization
from harmofl.methods.layers import Band, Harmonizer
from harmofl.runs.folder import Record

BANDS: tuple[Band, ...] = ("full", 0.1, "dc")
UPPER = 0.95
"""Quantile of chance that a reconstruction must exceed."""
ONE = "gradient of one image"
SHOWN = 0
"""Which draw the pictures show."""


@dataclass(frozen=True)
class Case:
    """What a site sent."""

    name: str
    num_images: int
    training: LocalTraining


@dataclass(frozen=True)
class Way:
    """What the attacker makes of an amplitude. `average`: whether it is the site's, or the image's own."""

    name: str
    use: Use | None = None
    average: bool = True
    harmonized: bool = False
    """The site trained on images with the shared amplitude, and the attacker searches among such images."""


WAYS = (
    Way("without"),
    Way("start", "start"),
    Way("penalty", "penalty"),
    Way("held", "projection"),
    Way("own", "projection", average=False),
    Way("HarmoFL", harmonized=True),
)
BRIEF_WAYS = tuple(way for way in WAYS if way.name in ("without", "penalty"))


def attack_run(run: Path, out: Path, effort: Effort, seed: int = 0, watch: Watch = ignore) -> Record:
    """Run all attacks on one site's training images of a finished run; return what `privacy.json` then holds."""
    started = time.perf_counter()
    with threads(1):  # the tensors are small
        target = open_target(run, effort, seed)
        study = Study(target, effort, seed, watch)
        gradient, amplitude, phase = study.gradient_inversion(), study.amplitude_inversion(), study.phase_retrieval()
    record = {
        "task": target.task.name,
        "method": target.method.name,
        "band": target.method.settings.get("band"),
        "harmonized": type(target.harmonizer) is not Harmonizer,
        "network": target.settings.model.network,
        "site": target.site,
        "synthetic": target.settings.data.folder is None,
        "image_shape": list(target.shape),
        "colour": has_colours(target.task, target.settings.data),
        "seed": seed,
        "effort": asdict(effort),
        "gradient_inversion": gradient,
        "gradient_inversion_chance": study.chance_of_one(),
        "amplitude_inversion": amplitude,
        "phase_retrieval": phase,
        "minimum": minima(phase),
        "recommended_minimum": largest(minima(phase).values()),
        "seconds": round(time.perf_counter() - started, 1),
    }
    out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out / "images.npz", **study.pictures)  # type: ignore[arg-type]
    write_whole(out / "privacy.json", json.dumps(record, indent=1) + "\n")
    return record


class Study:
    """All attacks on one target; keeps the pictures."""

    def __init__(self, target: Target, effort: Effort, seed: int, watch: Watch) -> None:
        self.target = target
        self.effort = effort
        self.seed = seed
        self.watch = watch
        self.images = target.images.images
        self.counts = [n for n in effort.averaged if n + FEWEST_OTHERS <= len(self.images)]
        self.pictures: dict[str, np.ndarray[Any, Any]] = {}
        self.attacks = list(self._attacks())
        retrievals = len(FRAMES) * len(BANDS) * len(self.counts)
        self.done, self.total = 0, len(self.attacks) + len(target.networks) + retrievals

    def _tell(self, what: str) -> None:
        self.watch(StepDone(what, self.done, self.total))
        self.done += 1

    def _keep(self, name: str, images: Tensor) -> None:
        self.pictures[name] = (images.clamp(0, 1) * 255).round().to(torch.uint8).numpy()

    def _generator(self, *names: object) -> Generator:
        return Generator().manual_seed(seed_of(self.seed, *names))

    # --- gradient inversion

    def _cases(self) -> tuple[Case, ...]:
        training = self.target.settings.training
        of_sgd = "" if training.optimizer == "sgd" else " of SGD"  # steps of Adam are not looked at
        local = LocalTraining(self.effort.local_steps, training.learning_rate, training.momentum, training.weight_decay)
        return (
            Case(ONE, 1, LocalTraining()),
            Case(f"gradient of {self.effort.batch} images", self.effort.batch, LocalTraining()),
            Case(f"update of one image, {self.effort.local_steps} steps{of_sgd}", 1, local),
        )

    def _attacks(self) -> Iterator[tuple[str, Case, Way]]:
        for network in self.target.networks:
            for number, case in enumerate(self._cases()):
                for way in WAYS if network == CONTROL or number == 0 else BRIEF_WAYS:
                    yield network, case, way

    def gradient_inversion(self) -> list[Record]:
        """One record per network, case and way; scores are means over images."""
        return [self._attack(*attack) for attack in self.attacks]

    def _attack(self, name: str, case: Case, way: Way) -> Record:
        self._tell(f"gradient inversion: {name} network, {case.name}, {way.name}")
        harmonizer = self._harmonizer(name, way)
        network = nn.Sequential(harmonizer, self.target.networks[name]).eval()
        loss: Loss = self.target.task.loss(self.target.settings)
        update = update_of(network, loss, case.training)
        search = search_for(name, self.effort)
        scores, distances = [], []
        for trial in range(self.effort.images):
            places = torch.arange(trial * case.num_images, (trial + 1) * case.num_images) % len(self.images)
            truth, targets = self.images[places], self.target.images.targets[places]
            sent = update(truth, targets)
            known = self._knowledge(truth if not way.average else self.images) if way.use else None
            generator = self._generator("inversion", trial)  # the same starts for every way
            guess = invert(update, sent, targets, self.target.shape, search, generator, known, way.use or "penalty")
            shown, truth = harmonizer(guess.images), harmonizer(truth)
            shown = shown[best_order(shown, truth)]
            scores.append([float(psnr(shown, truth).mean()), float(ssim(shown, truth).mean())])
            distances.append(guess.distance)
            if trial == SHOWN:
                place = f"inversion/{name}/{case.name}"
                self._keep(f"{place}/{way.name}", shown)
                self._keep(f"{place}/{'its input' if way.harmonized else 'truth'}", truth)
        means = np.mean(scores, axis=0)
        return {
            "network": name,
            "case": case.name,
            "way": way.name,
            "psnr": round_off(means[0]),
            "ssim": round_off(means[1]),
            "distance": round_off(float(np.mean(distances)), 7),
            "each": [{"psnr": round_off(one), "ssim": round_off(other)} for one, other in scores],
        }

    def _harmonizer(self, network: str, way: Way) -> Harmonizer:
        """What the site puts before a network: where a run trained it, the run's own, unless HarmoFL is looked at."""
        if way.harmonized:
            return self._shared_amplitude()
        return self.target.harmonizer if network == TRAINED else Harmonizer()

    def _shared_amplitude(self) -> AmplitudeNormalization:
        layer = AmplitudeNormalization(self.target.shape, "full")
        layer.measure([self.images])
        layer.freeze()
        return layer.eval()

    def _knowledge(self, images: Tensor, band: Band = "full") -> Knowledge:
        """What the attacker has once a site has sent the mean amplitude of these images."""
        return knowledge_of([images], band, torch.ones(images.shape[-2:], dtype=torch.bool))

    def chance_of_one(self) -> Record:
        """What another image of the site, or a flat one of its mean colours, scores against the images attacked."""
        truth = self.images[: self.effort.images]
        others = self.images[self.effort.images : self.effort.images + 32]
        pairs = [(other[None], one[None]) for one in truth for other in others]
        guessed, wanted = (torch.cat(side) for side in zip(*pairs, strict=True))
        flat = self.images.mean(dim=(0, -2, -1), keepdim=True).expand_as(truth)
        return {
            "another image": {
                "psnr": round_off(psnr(guessed, wanted).mean()),
                "ssim": round_off(ssim(guessed, wanted).mean()),
            },
            "flat image": {"psnr": round_off(psnr(flat, truth).mean()), "ssim": round_off(ssim(flat, truth).mean())},
        }

    def amplitude_inversion(self) -> list[Record]:
        """The paper's own attack: gradients of amplitudes, a record per network; scores are means over images."""
        return [self._invert_amplitudes(name) for name in self.target.networks]

    def _invert_amplitudes(self, name: str) -> Record:
        self._tell(f"gradient inversion of amplitudes: {name} network")
        update = update_of(
            self.target.networks[name].eval(), self.target.task.loss(self.target.settings), LocalTraining()
        )
        found = [
            invert_amplitude(
                self.images[trial : trial + 1],
                self.target.images.targets[trial : trial + 1],
                update,
                search_for(name, self.effort),
                self._generator("inversion", trial),
            )
            for trial in range(self.effort.images)
        ]
        self._keep(f"inversion/{name}/{ONE}/its amplitude", picture_of_amplitude(self.images[SHOWN : SHOWN + 1]))
        self._keep(f"inversion/{name}/{ONE}/amplitude", found[SHOWN].picture)
        means = np.mean([[each.against_image, each.against_amplitude] for each in found], axis=0)
        scores = {"against the image": means[0], "against the amplitude": means[1]}
        each = {truth: {"psnr": round_off(one), "ssim": round_off(other)} for truth, (one, other) in scores.items()}
        return {"network": name, **each}

    # --- phase retrieval

    def phase_retrieval(self) -> list[Record]:
        """One record per frame, band and number of averaged images."""
        return [self._retrieval(frame, band, n) for frame in FRAMES for band in BANDS for n in self.counts]

    def _retrieval(self, frame: str, band: Band, count: int) -> Record:
        self._tell(f"phase retrieval: {frame} frame, band {band}, {count} images")
        height, width = self.images.shape[-2:]
        place = (slice(None), slice(None), *window(frame, height, width))
        draws = [self._draw(number, count) for number in range(self.effort.draws)]
        truths = [put_in_frame(self.images[inside], frame) for inside, _ in draws]
        support = put_in_frame(torch.ones(1, 1, height, width), frame)[0, 0] > 0
        known = knowledge_of(truths, band, support)
        generator = self._generator("retrieval", frame, count)
        retrieved = retrieve(known, self.effort.retrieval_restarts, self.effort.retrieval_iterations, generator)

        scores, chance, flat = [], [], []
        for number, (truth, (_, outside)) in enumerate(zip(truths, draws, strict=True)):
            score, nearest, fitted = nearest_of(retrieved[number], truth, place)
            scores.append(score)
            others = self.images[outside]
            seen = at_best(others, self._knowledge(others, band))  # a blur may score more than a sharp image
            chance += [nearest_of(other, truth, place)[0] for other in put_in_frame(seen, frame)]
            mean = put_in_frame(
                self.images[outside].mean(dim=(0, -2, -1), keepdim=True).expand_as(self.images[:1]), frame
            )
            flat.append(nearest_of(mean[0], truth, place)[0])
            if number == SHOWN:
                self._keep(f"retrieval/{frame}/{band}/{count}", torch.stack([nearest, fitted]))
        values, by_chance = np.array(scores), np.array(chance)
        return {
            "frame": frame,
            "band": band,
            "images": count,
            "psnr": round_off(values[:, 0].mean()),
            "ssim": round_off(values[:, 1].mean()),
            "ssim_each": [round_off(value) for value in values[:, 1]],
            "chance_psnr": round_off(by_chance[:, 0].mean()),
            "chance_ssim": round_off(by_chance[:, 1].mean()),
            "chance_ssim_upper": round_off(float(np.quantile(by_chance[:, 1], UPPER))),
            "flat_psnr": round_off(np.array(flat)[:, 0].mean()),
            "flat_ssim": round_off(np.array(flat)[:, 1].mean()),
        }

    def _draw(self, number: int, count: int) -> tuple[Tensor, Tensor]:
        """Images that are averaged, and others; a larger average holds the smaller ones of the same draw."""
        order = torch.randperm(len(self.images), generator=self._generator("draw", number))
        return order[:count], order[count : count + self.effort.others]


def search_for(network: str, effort: Effort) -> Search:
    """The attacker's settings, found by trying a few on one image: a smooth network needs no help from smoothness."""
    if network == CONTROL:
        return Search(effort.iterations, effort.restarts, smoothness=1e-4, penalty=1e-5)
    return Search(effort.iterations, effort.restarts, smoothness=0.1, penalty=0.001)


def best_order(guesses: Tensor, truth: Tensor) -> Tensor:
    """Which reconstruction belongs to which image of a batch: an update does not tell their order."""
    pairs = torch.stack([psnr(guesses, one.expand_as(guesses)) for one in truth])
    return torch.from_numpy(linear_sum_assignment(-pairs.numpy())[1])


def knowledge_of(groups: Sequence[Tensor], band: Band, support: Tensor) -> Knowledge:
    """What sites with these images would send, made by the very layer that sends it; (groups, C, H, W // 2 + 1)."""
    amplitudes = []
    for images in groups:
        channels, height, width = images.shape[1:]
        layer = AmplitudeNormalization((channels, height, width), band)
        layer.measure([images])
        amplitude, inside = half_spectrum(layer)
        amplitudes.append(amplitude)
    return Knowledge(torch.stack(amplitudes), inside, support)


def minima(phase: Sequence[Record]) -> dict[str, int | None]:
    """For each frame and band, the fewest averaged images from which on a reconstruction is no better than chance.

    Chance: the upper quantile of what other images of the site score, seen in the same band. None: a reconstruction
    was better even at the largest number.
    """
    fewest: dict[str, int | None] = {}
    for frame, band in dict.fromkeys((record["frame"], record["band"]) for record in phase):
        records = [record for record in phase if (record["frame"], record["band"]) == (frame, band)]
        better = [record["images"] for record in records if record["ssim"] > record["chance_ssim_upper"]]
        enough = [record["images"] for record in records if record["images"] > max(better, default=0)]
        fewest[f"{frame}, {band}"] = min(enough, default=None)
    return fewest


def largest(values: Iterable[int | None]) -> int | None:
    """The largest of the minima; None if one was not reached."""
    reached = list(values)
    return None if None in reached else max(value for value in reached if value is not None)


def round_off(value: Any, digits: int = 4) -> float:
    """Round to a few digits: these are estimates, and people read them."""
    return round(float(value), digits)
