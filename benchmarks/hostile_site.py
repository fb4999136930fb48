"""One of six hospitals is hostile for a whole run: what it costs the other five, with every rule that withstands it.

Whole federations on synthetic prostate MRI, small preset, statistics of the site. Each score is the mean test Dice of
the five honest hospitals; the measure is the plain mean without the sixth. Runs that `hostile_site.json` has are not
made again:

    python benchmarks/hostile_site.py --seeds 0 1 2
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch

from harmofl.federation.messages import Reply, Request
from harmofl.federation.training import train
from harmofl.federation.transports import Clients
from harmofl.states import State

HERE = Path(__file__).parent
RECORDS = HERE / "hostile_site.json"
PAGE = HERE.parent / "docs" / "deployment.md"
MARK, END = "<!-- hostile site -->", "<!-- end -->"

TASK = "prostate"
HONEST = ("BIDMC", "HK", "I2CVB", "ISBI", "ISBI_1.5")
HOSTILE = "UCL"
COMMON: Mapping[str, object] = {"model.statistics": "site", "federation.workers": 1}

Attack = Callable[[State, State, int], State]


# ---- what a hostile site sends instead of its update ----


def scaled(by: float) -> Attack:
    """The update times a number."""

    def attack(start: State, end: State, number: int) -> State:
        moved = {name: start[name] + by * (tensor - start[name]) for name, tensor in end.items()}
        return possible(moved, end)

    return attack


def random(start: State, end: State, number: int) -> State:
    """Noise, entry by entry as long as the update: nothing tells it by its length."""
    generator = torch.Generator().manual_seed(number)
    noise = {name: torch.randn(tensor.shape, generator=generator) for name, tensor in end.items()}
    lengths = {name: (tensor - start[name]).float().norm() for name, tensor in end.items()}
    moved = {name: start[name] + noise[name] * lengths[name] / noise[name].norm().clamp_min(1e-9) for name in end}
    return possible(moved, end)


def possible(moved: State, end: State) -> State:
    """With the types of the update, and no negative variance: the server would leave it out at once."""
    return {
        name: (tensor.abs() if name.endswith("running_var") else tensor).to(end[name].dtype)
        for name, tensor in moved.items()
        if end[name].is_floating_point()
    } | {name: tensor for name, tensor in end.items() if not tensor.is_floating_point()}


ATTACKS: Mapping[str, Attack] = {"flips": scaled(-1), "flips × 20": scaled(-20), "× 50": scaled(50), "noise": random}
RULES: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "plain mean": ("fedavg", {}),
    "`clip_updates = 1`": ("fedavg", {"federation.clip_updates": 1.0}),
    "`median`": ("median", {}),
    "`trimmed-mean`": ("trimmed-mean", {}),
    "`krum`": ("krum", {}),
    "`multi-krum`": ("multi-krum", {}),
    "`geometric-median`": ("geometric-median", {}),
}
WITHOUT = "is not there"


@contextmanager
def hostile(attack: Attack) -> Iterator[None]:
    """The hostile site answers with what the attack makes of its update."""
    honest = Clients.answer

    def answer(clients: Clients, site: str, request: Request) -> Reply:
        reply = honest(clients, site, request)
        if site != HOSTILE or request.kind != "train" or reply.error:
            return reply
        return replace(reply, state=attack(request.state, reply.state, request.round))

    with patch.object(Clients, "answer", answer):
        yield


# ---- runs ----


def score(rule: str, attack: str, seed: int) -> float:
    """The honest sites' mean test score of one run, in percent."""
    torch.set_num_threads(1)
    method, changes = RULES[rule]
    settings = {**COMMON, **changes, "seed": seed}
    if attack == WITHOUT:
        settings["data.sites"] = list(HONEST)
    with tempfile.TemporaryDirectory() as folder, hostile(ATTACKS[attack]) if attack in ATTACKS else nullcontext():
        train(TASK, method, preset="small", settings=settings, out=Path(folder) / "run")
        test = json.loads((Path(folder) / "run" / "summary.json").read_text(encoding="utf-8"))["test"]
    return 100 * statistics.mean(float(test[site]) for site in HONEST)


def all_runs(seeds: list[int]) -> Iterator[tuple[str, str, int]]:
    """Rule, attack and seed of every run."""
    for seed in seeds:
        for rule in RULES:
            for attack in (WITHOUT, *ATTACKS):
                yield rule, attack, seed


def key(rule: str, attack: str, seed: int) -> str:
    """The name of a run in the records."""
    return f"{rule}, {attack}, seed {seed}"


# ---- the table ----


def table(records: Mapping[str, float]) -> str:
    """Rules by attacks: what the hostile site costs, mean and range over the seeds that have been run."""
    seeds = sorted({int(name.rsplit(" ", 1)[1]) for name in records})
    columns = (WITHOUT, *ATTACKS)
    lines = [f"| the sixth site | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    for rule in RULES:
        cells = [cost(records, rule, attack, seeds) for attack in columns]
        lines.append(f"| {rule} | {' | '.join(cells)} |")
    without = [records[key("plain mean", WITHOUT, seed)] for seed in seeds]
    words = f"The plain mean of five honest sites: {statistics.mean(without):.1f} % Dice."
    return "\n".join([*lines, "", f"{words} Seeds: {', '.join(map(str, seeds))}."])


def cost(records: Mapping[str, float], rule: str, attack: str, seeds: list[int]) -> str:
    """The difference to the plain mean of the honest sites."""
    found = [
        records[key(rule, attack, seed)] - records[key("plain mean", WITHOUT, seed)]
        for seed in seeds
        if key(rule, attack, seed) in records
    ]
    if not found:
        return "not run"
    spread = f" ({min(found):+.1f} to {max(found):+.1f})" if len(found) > 1 else ""
    return f"{statistics.mean(found):+.1f}{spread}"


def write(records: Mapping[str, float]) -> None:
    """Keep the records, and put the table on its page."""
    RECORDS.write_text(json.dumps(records, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(MARK)
    after = rest.split(END, 1)[1]
    PAGE.write_text(f"{before}{MARK}\n{table(records)}\n{END}{after}", encoding="utf-8")


def main() -> None:
    """Make the runs that are missing, two at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    records: dict[str, float] = json.loads(RECORDS.read_text(encoding="utf-8")) if RECORDS.exists() else {}
    missing = [run for run in all_runs(options.seeds) if key(*run) not in records]
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(score, *run): key(*run) for run in missing}
        for future in as_completed(futures):
            records[futures[future]] = round(future.result(), 3)
            print(futures[future], records[futures[future]], flush=True)
            write(records)


if __name__ == "__main__":
    main()
