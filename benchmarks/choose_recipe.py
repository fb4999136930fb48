"""Choose the recipe that we recommend from kept validation scores, by the rule of docs/protocol.md.

python benchmarks/choose_recipe.py [RESULTS]

RESULTS: the folder of kept results, `results` by default
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harmofl.experiments.cells import read_experiment
from harmofl.experiments.kept import Kept
from harmofl.experiments.results import gather
from harmofl.reporting.comparisons import FEWEST_PAIRS, LEVEL, Values, paired_differences, sign_flip_p, wilcoxon_p
from harmofl.reporting.tables import MethodScores, methods_of

ROOT = Path(__file__).parent.parent
TILES = "nuclei-tiles"
TASKS = (TILES, "histology", "nuclei", "prostate")
BASELINE = "FedAvg"
LARGEST_LOSS = 1.0
"""Points that a candidate may lose at a site against the baseline, on average over schedules and seeds."""
SMALLEST_GAIN = 0.3
"""Points for which one more piece is worth having."""
SCREENING = ("cosine", 0)
"""Schedule and seed with which every candidate is run, before those that go on make all other runs."""
LARGEST_LOSS_ON_PHANTOMS = 0.5
"""Points that a candidate may lose on them in the screening; if it loses more, it is not run on the tiles."""
NUM_SCREENED = 2
"""Candidates beside the baseline that go on."""
SCREENING_TIE = 0.1
"""Points below the last of them within which another one goes on, too."""

EFFORT: Mapping[str, tuple[int, int]] = {
    "FedAvg": (0, 1),
    "FedRDN": (1, 1),
    "SiteAlign": (1, 1),
    "Momentum-SAM": (1, 1),
    "perturbation": (1, 2),
    "SCAFFOLD": (1, 1),
    "FedAvgM": (1, 1),
    "FedRDN, weights by examples": (2, 1),
    "FedRDN with Momentum-SAM": (2, 1),
    "FedRDN with SCAFFOLD": (2, 1),
}
"""Of each candidate: pieces beyond FedAvg, and passes a step."""

Setting = tuple[str, str]
"""Task and schedule."""
Scores = Mapping[str, Mapping[Setting, MethodScores]]
"""By candidate and setting."""


@dataclass(frozen=True)
class MissingRun:
    """A run that has not been made yet."""

    task: str
    candidate: str
    schedule: str
    seed: int

    @property
    def is_for_screening(self) -> bool:
        """Whether the screening needs it."""
        return (self.schedule, self.seed) == SCREENING

    def __str__(self) -> str:
        return f"{self.candidate} on {self.task}, {self.schedule}, seed {self.seed}"


@dataclass(frozen=True)
class Place:
    """What the rule makes of a candidate, in points against the baseline."""

    name: str
    gain: float
    worst_site: float
    worst_at: str

    @property
    def is_eligible(self) -> bool:
        """Whether no site pays for the others."""
        return self.worst_site >= -LARGEST_LOSS


def place(name: str, scores: Scores) -> Place:
    """Weigh a candidate against the baseline."""
    own, base = scores[name], scores[BASELINE]
    gains = {setting: float(paired_differences(own[setting], base[setting]).mean()) for setting in base}
    worst_at, worst = min(_gains_at_sites(own, base).items(), key=lambda item: item[1])
    return Place(name, weigh(gains), worst, worst_at)


def weigh(gains: Mapping[Setting, float]) -> float:
    """The mean over settings, in which the real tiles count as much as all phantoms together."""
    parts = [[gain for (task, _), gain in gains.items() if (task == TILES) is real] for real in (True, False)]
    return float(np.mean([np.mean(part) for part in parts if part]))


def _gains_at_sites(own: Mapping[Setting, MethodScores], base: Mapping[Setting, MethodScores]) -> dict[str, float]:
    """The mean gain at each site of each task, over schedules and seeds."""
    found: dict[str, list[float]] = {}
    for setting, method in own.items():
        for site in base[setting].runs[0].scores:
            lead = method.score.lead(method.mean_at(site), base[setting].mean_at(site))
            found.setdefault(f"{setting[0]}, {site}", []).append(lead)
    return {where: float(np.mean(gains)) for where, gains in found.items()}


def is_tie(best: Place, other: Place, scores: Scores) -> bool:
    """Whether a candidate is as good as the best: the gap is small, or could be noise."""
    if best.gain - other.gain < SMALLEST_GAIN:
        return True
    pairs = [
        paired_differences(scores[best.name][setting], scores[other.name][setting]) for setting in scores[BASELINE]
    ]
    differences: Values = np.concatenate(pairs)
    noise = max(sign_flip_p(differences), wilcoxon_p(differences)) >= LEVEL
    return len(differences) < FEWEST_PAIRS or noise


def lost_on_phantoms(scores: Scores) -> list[str]:
    """The candidates that lose too much on the phantoms to be run on the tiles, by the screening's runs alone."""
    base = _on_phantoms(scores[BASELINE])
    own = {name: _on_phantoms(settings) for name, settings in scores.items()}
    gains = {name: [paired_differences(own[name][each], base[each]).mean() for each in base] for name in own}
    return [name for name, found in gains.items() if np.mean(found) < -LARGEST_LOSS_ON_PHANTOMS]


def _on_phantoms(own: Mapping[Setting, MethodScores]) -> dict[Setting, MethodScores]:
    return {setting: method for setting, method in _of_screening(own).items() if setting[0] != TILES}


def screen(scores: Scores) -> tuple[list[str], list[Place]]:
    """The candidates that go on to the choice, and the places of all that were run on the tiles.

    Only the screening's runs count.
    """
    lost = lost_on_phantoms(scores)
    places = rank({name: _of_screening(own) for name, own in scores.items() if name not in lost})
    others = [each for each in places if each.name != BASELINE]
    last = others[min(NUM_SCREENED, len(others)) - 1].gain
    return [BASELINE, *(each.name for each in others if each.gain >= last - SCREENING_TIE)], places


def _of_screening(own: Mapping[Setting, MethodScores]) -> dict[Setting, MethodScores]:
    schedule, seed = SCREENING
    return {
        setting: MethodScores(method.label, tuple(run for run in method.runs if run.seed == seed))
        for setting, method in own.items()
        if setting[1] == schedule
    }


def rank(scores: Scores) -> list[Place]:
    """All candidates, the one with the highest gain first."""
    return sorted((place(name, scores) for name in scores), key=lambda each: -each.gain)


def choose(scores: Scores) -> tuple[str, list[Place]]:
    """The chosen candidate, and all of them, the best first."""
    places = rank(scores)
    eligible = [each for each in places if each.is_eligible]
    ties = [each for each in eligible if is_tie(eligible[0], each, scores)]
    return min(ties, key=lambda each: (*EFFORT[each.name], -each.gain)).name, places


def read_scores(results: Path) -> tuple[Scores, list[MissingRun]]:
    """Every candidate's validation scores from kept results, and which runs are missing."""
    # First the plans, whose plugins the kept settings of some candidates need.
    # The folder of images is not opened: kept results say what they are of.
    plans = {task: read_experiment(_plan(task), "images" if task == TILES else None) for task in TASKS}
    kept = Kept(results)
    found: dict[str, dict[Setting, MethodScores]] = {}
    missing: list[MissingRun] = []
    for task, plan in plans.items():
        done = gather(plan, kept=kept)
        missing += [MissingRun(task, cell.row, str(cell.variation), cell.seed) for cell in done.missing]
        places = {cell.label: (cell.row, str(cell.variation)) for cell in done.experiment.cells}
        runs = done.lines()
        for method in methods_of(runs) if runs else ():
            row, schedule = places[method.label]
            found.setdefault(row, {})[task, schedule] = method
    return found, missing


def _plan(task: str) -> Path:
    return ROOT / "experiments" / f"recipe-{task}.toml"


def table(places: Sequence[Place], remarks: Mapping[str, str]) -> str:
    """The ranking in Markdown."""
    lines = ["| candidate | gain | worst site | pieces, passes | |", "|---|---:|---|---|---|"]
    for each in places:
        remark = remarks.get(each.name, "" if each.is_eligible else "a site loses too much")
        effort = ", ".join(map(str, EFFORT[each.name]))
        where = f"{each.worst_site:+.2f} ({each.worst_at})"
        lines.append(f"| {each.name} | {each.gain:+.2f} | {where} | {effort} | {remark} |")
    return "\n".join(lines)


def is_complete(missing: Sequence[MissingRun], stage: str) -> bool:
    """Whether nothing is missing for a stage; says what is."""
    if missing:
        print(f"{len(missing)} runs are missing for the {stage}, such as {missing[0]}", file=sys.stderr)
    return not missing


def main() -> int:
    """Print both stages and the choice, or what is missing for them."""
    scores, missing = read_scores(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "results")
    needed = [each for each in missing if each.is_for_screening]
    if not is_complete([each for each in needed if each.task != TILES], "screening on phantoms"):
        return 1
    lost = lost_on_phantoms(scores)
    print(f"More than {LARGEST_LOSS_ON_PHANTOMS} points lost on the phantoms: {'; '.join(lost) or 'by none'}.\n")
    if not is_complete([each for each in needed if each.candidate not in lost], "screening on the tiles"):
        return 1
    screened, places = screen(scores)
    remarks = {each.name: "goes on" if each.name in screened else "two gained more" for each in places}
    print("Screening:", table(places, remarks), sep="\n\n", end="\n\n")
    if not is_complete([each for each in missing if each.candidate in screened], "choice"):
        return 1
    chosen, places = choose({name: scores[name] for name in screened})
    print("Choice:", table(places, {chosen: "**chosen**"}), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
