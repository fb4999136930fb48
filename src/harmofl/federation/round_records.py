"""What a run says of itself: its start, and the records of a round (each site's training and scores, the server)."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from harmofl.events import SERVER, RunStarted
from harmofl.federation.messages import EXCHANGES, Reply, Request
from harmofl.methods.method import Method
from harmofl.runs.folder import Record
from harmofl.settings import Settings
from harmofl.states import num_bytes
from harmofl.tasks.task import Task


def run_started(task: Task, method: Method, settings: Settings, sites: Sequence[str], done: int) -> RunStarted:
    """What those who watch a run hear first; `done`: rounds that an earlier process did."""
    score = task.score_for(settings)
    return RunStarted(
        task=task.name,
        method=method.key,
        title=method.name,
        sites=tuple(sites),
        rounds=settings.training.rounds,
        done=done,
        score=score.name,
        unit=score.unit,
    )


def record_measurement(request: Request, reply: Reply) -> Record:
    """What a site's measurement before round 1 cost."""
    return {"round": request.round, "site": reply.site, "phase": "measure"} | _traffic(request, reply)


def record_training(request: Request, reply: Reply, bytes_up: int) -> Record:
    """A site's training in a round; `bytes_up`: what came from the site, before filters were taken back."""
    place = {"round": request.round, "site": reply.site, "phase": "train"}
    traffic = _traffic(request, reply) | {"bytes_up": bytes_up}
    return place | traffic | {"num_steps": reply.num_steps} | dict(reply.metrics["train"])


def record_scores(number: int, reply: Reply, **more: bool) -> Iterator[Record]:
    """A reply's scores of the model of a round, by the site that the images come from."""
    for phase in ("val", "test"):
        for site, scores in reply.metrics.get(phase, {}).items():
            yield {"round": number, "site": site, "phase": phase} | dict(scores) | more


def record_problem(request: Request, site: str, problem: str) -> Record:
    """Why a site is left out."""
    around = "train" if request.round else "measure"  # what secure aggregation exchanges keys for
    phase = {"evaluate": "test", **dict.fromkeys(EXCHANGES, around)}.get(request.kind, request.kind)
    return {"round": request.round, "site": site, "phase": phase, "error": problem}


def record_round(
    number: int,
    losses: Sequence[float],
    scores: Mapping[str, float],
    seconds: float,
    others: Sequence[Record],
    shortened: Mapping[str, float] | None = None,
) -> Record:
    """The server's own record of a round: means over sites, who is left out, and whose update was shortened."""
    record: Record = {
        "round": number,
        "site": SERVER,
        "phase": "train",
        "loss": statistics.fmean(losses),
        "seconds": seconds,
    }
    if scores:
        record["previous_val"] = statistics.fmean(scores.values())
    left_out = [other["site"] for other in others if "error" in other and other["phase"] == "train"]
    named = {"left_out": left_out, "shortened": dict(shortened or {})}
    return record | {name: value for name, value in named.items() if value}


def _traffic(request: Request, reply: Reply) -> Record:
    return {
        "num_examples": reply.num_examples,
        "bytes_down": num_bytes(request.state, request.combined),
        "bytes_up": num_bytes(reply.state, reply.sent),
    }
