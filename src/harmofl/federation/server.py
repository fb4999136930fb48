"""The server: rounds, quorum, model selection, the end. It knows no engine, only a Transport."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from torch import nn

from harmofl.errors import RunError, UsageError
from harmofl.events import SERVER, RoundsFinished, RunStarted, Watch, event_of, ignore
from harmofl.federation.checks import problem_with, without_bad_scores
from harmofl.federation.client import sites_differ
from harmofl.federation.messages import Kind, Reply, Request, as_sent
from harmofl.federation.transports import Transport, in_order
from harmofl.methods.aggregation import start_aggregation
from harmofl.methods.channel import Combining, announce, open_memories
from harmofl.methods.method import Method
from harmofl.methods.model import Model
from harmofl.methods.sharing import running_statistics
from harmofl.runs.checkpoints import Progress, newest_checkpoint, read_checkpoint, write_checkpoint
from harmofl.runs.folder import Record, RunFolder
from harmofl.runs.model_folder import describe_model, first_misfit, open_model, write_model
from harmofl.runs.selection import Selection
from harmofl.runs.site_models import score_unseen
from harmofl.runs.store import CorruptVersionError
from harmofl.runs.summary import summarize
from harmofl.settings import Settings
from harmofl.states import load, num_bytes, snapshot
from harmofl.tasks.task import Task

logger = logging.getLogger(__name__)


class Server:
    """Drives a federation over a transport, from where its folder stands to the summary."""

    def __init__(
        self,
        task: Task,
        method: Method,
        settings: Settings,
        transport: Transport,
        folder: RunFolder,
        run: str,
        watch: Watch = ignore,
    ) -> None:
        self.task = task
        self.method = method
        self.settings = settings
        self.transport = transport
        self.folder = folder
        self.run_identifier = run
        self.watch = watch
        self.sites = task.sites_of(settings.data)
        model = task.build_model(settings, method)
        if settings.model.initial:
            start_from(model.network, Path(settings.model.initial))
        self.initial = snapshot(model.network)
        self.shared = method.shares(model.network)
        self.sites_differ = sites_differ(method, model)
        pools = settings.federation.running_variances == "pooled"
        self.pooled = running_statistics(model.network) if pools else {}
        self.trainable = {name for name, _ in model.network.named_parameters()}
        self.pieces = method.pieces()
        self.announced = announce(self.pieces, model)

    def run(self) -> Record:
        """Run every round that is still to run; return the summary."""
        timeout = self.settings.federation.timeout
        sites = sorted(self.transport.sites(minimum=quorum(self.settings, len(self.sites)), timeout=timeout))
        restored = newest_checkpoint(self.folder)
        self._announce(sites, done=restored.round if restored else 0)
        progress = restored or self._begun(sites)
        while progress.round < self.settings.training.rounds:
            progress = self._next_round(progress, sites)
        return self._finished(progress, sites)

    def _announce(self, sites: list[str], done: int) -> None:
        score = self.task.score_for(self.settings)
        started = RunStarted(
            task=self.task.name,
            method=self.method.key,
            title=self.method.name,
            sites=tuple(sites),
            rounds=self.settings.training.rounds,
            done=done,
            score=score.name,
            unit=score.unit,
        )
        self.watch(started)

    # --- one round ---------------------------------------------------------------------------------------------

    def _begun(self, sites: list[str]) -> Progress:
        """Before round 1: the initial model, and what the method's pieces measure first."""
        started = time.perf_counter()
        selection = Selection(not self.shared, {}, self.task.score_for(self.settings).higher_is_better)
        progress = Progress(0, self.initial, selection)
        self.folder.keep_records(0)
        if any(piece.measures_first for piece in self.pieces.values()):
            progress = self._measure(progress, sites)
        progress = replace(progress, seconds=time.perf_counter() - started, kept=(0,))
        write_checkpoint(self.folder, progress)
        return progress

    def _measure(self, progress: Progress, sites: list[str]) -> Progress:
        requests = {site: self._request("measure", site, progress, 0) for site in sites}
        combining = Combining(self.pieces, progress.combined, len(sites))
        records: list[Record] = []
        num_measured = 0
        for reply in self._accepted(requests, records, state_names=[]):
            combining.add(reply.site, reply.sent)
            num_measured += bool(reply.sent)
            place = {"round": 0, "site": reply.site, "phase": "measure"}
            records.append(place | self._traffic(requests[reply.site], reply))
        self._require_quorum(num_measured, sites, 0, records)
        self.folder.append(records)
        return replace(progress, combined=combining.value(), num_records=len(records))

    def _next_round(self, progress: Progress, sites: list[str]) -> Progress:
        """Send the model, fold the sites' answers into the next one, and write it down.

        The sites also score the model that they receive, so that a round is one message: its scores belong to the
        round before.
        """
        started = time.perf_counter()
        number = progress.round + 1
        requests = {site: self._request("train", site, progress, number, score=progress.round > 0) for site in sites}
        start = {name: progress.state[name] for name in self.shared}
        aggregation = start_aggregation(self.method.server_rule, start, self.trainable, self.pooled)
        combining = Combining(self.pieces, progress.combined, len(sites))
        records: list[Record] = []
        scores: dict[str, float] = {}
        losses: dict[str, float] = {}
        for reply, usable in self._answers(requests, records, self.shared):
            scores |= self._score_records(progress.round, reply, records)
            if not usable:
                continue
            aggregation.add(reply.state, self._weight(reply), reply.num_steps, self._momentum())
            combining.add(reply.site, reply.sent)
            losses[reply.site] = reply.metrics["train"]["loss"]
            records.append(self._train_record(number, requests[reply.site], reply))
            self.watch(event_of(records[-1]))
        self._require_quorum(len(losses), sites, number, records)

        learning_rate = self.settings.federation.server_learning_rate
        state, memory = aggregation.finish(progress.memory, learning_rate)
        seconds = time.perf_counter() - started
        records.append(self._server_record(number, list(losses.values()), scores, seconds, records))
        self.folder.append(records)
        selection = progress.selection.after(progress.round, scores)
        following = Progress(
            round=number,
            state=state,
            memory=memory,
            combined=combining.value(),
            selection=selection,
            num_records=progress.num_records + len(records),
            seconds=progress.seconds + seconds,
            # This checkpoint and the one before, should this one be damaged, and the best round as each knows it.
            kept=tuple(sorted({number, progress.round} | selection.rounds() | progress.selection.rounds())),
            trained=tuple(sorted({*progress.trained, *losses})),
        )
        write_checkpoint(self.folder, following)
        self.watch(event_of(records[-1]))
        return following

    def _request(self, kind: Kind, site: str, progress: Progress, number: int, **more: bool) -> Request:
        has_own = kind == "train" and site in progress.trained  # it may not have had it yet in a round to evaluate
        state = progress.state if has_own else self.initial | progress.state
        return Request(
            run=self.run_identifier,
            kind=kind,
            round=number,
            state=state if kind != "measure" else {},
            combined=progress.combined,
            settings=as_sent(self.settings),
            keep=progress.kept,
            **more,
        )

    def _accepted(
        self, requests: Mapping[str, Request], records: list[Record], state_names: list[str]
    ) -> Iterator[Reply]:
        """Ask all sites; yield the good replies in the order of names, and record why others are left out."""
        return (reply for reply, usable in self._answers(requests, records, state_names) if usable)

    def _answers(
        self, requests: Mapping[str, Request], records: list[Record], state_names: list[str]
    ) -> Iterator[tuple[Reply, bool]]:
        """All replies in the order of names, and whether they can be used; scores of the others may still count."""
        expected = {name: self.initial[name] for name in state_names}
        replies = self.transport.ask(requests, timeout=self.settings.federation.timeout)
        for reply in in_order(replies, sorted(requests)):
            request = requests[reply.site]
            problem = problem_with(reply, request.kind, expected, self.announced)
            if not problem:
                yield reply, True
                continue
            phase = request.kind if request.kind != "evaluate" else "test"
            records.append({"round": request.round, "site": reply.site, "phase": phase, "error": problem})
            logger.info("round %d: %s left out: %s", request.round, reply.site, problem)
            self.watch(event_of(records[-1]))
            yield without_bad_scores(reply), False

    def _weight(self, reply: Reply) -> float:
        return float(reply.num_examples) if self.settings.federation.weights == "examples" else 1.0

    def _momentum(self) -> float:
        """SGD's momentum; with Adam a step counts as one, which is our choice."""
        return self.settings.training.momentum if self.settings.training.optimizer == "sgd" else 0.0

    def _require_quorum(self, num_answers: int, sites: list[str], number: int, records: list[Record]) -> None:
        needed = quorum(self.settings, len(sites))
        if num_answers < needed:
            self.folder.append(records)  # a resumed run drops them again
            sites_by_reason: dict[str, list[str]] = {}
            for record in records:
                if "error" in record:
                    sites_by_reason.setdefault(record["error"], []).append(record["site"])
            reasons = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in sites_by_reason.items())
            raise RunError(
                f"round {number}: {num_answers} of {len(sites)} sites gave a usable answer, {needed} are needed "
                f"({reasons}). The last checkpoint is kept: mend the cause and go on with --resume, or start again "
                "with other settings (a lower training.learning_rate, if training diverged) and another --out"
            )

    # --- records -----------------------------------------------------------------------------------------------

    def _traffic(self, request: Request, reply: Reply) -> Record:
        return {
            "num_examples": reply.num_examples,
            "bytes_down": num_bytes(request.state, request.combined),
            "bytes_up": num_bytes(reply.state, reply.sent),
        }

    def _train_record(self, number: int, request: Request, reply: Reply) -> Record:
        place = {"round": number, "site": reply.site, "phase": "train"}
        steps = {"num_steps": reply.num_steps}
        return place | self._traffic(request, reply) | steps | dict(reply.metrics["train"])

    def _score_records(self, number: int, reply: Reply, records: list[Record], **more: bool) -> dict[str, float]:
        """Record a reply's scores of the model of a round; return the validation metrics by site."""
        for phase in ("val", "test"):
            for site, scores in reply.metrics.get(phase, {}).items():
                records.append({"round": number, "site": site, "phase": phase} | dict(scores) | more)
                self.watch(event_of(records[-1]))
        return {site: scores["metric"] for site, scores in reply.metrics.get("val", {}).items()}

    def _server_record(
        self,
        number: int,
        losses: list[float],
        scores: Mapping[str, float],
        seconds: float,
        records: list[Record],
    ) -> Record:
        record = {
            "round": number,
            "site": SERVER,
            "phase": "train",
            "loss": statistics.fmean(losses),
            "seconds": seconds,
        }
        if scores:
            record["previous_val"] = statistics.fmean(scores.values())
        left_out = [r["site"] for r in records if "error" in r]
        return record | ({"left_out": left_out} if left_out else {})

    # --- the end -----------------------------------------------------------------------------------------------

    def _finished(self, progress: Progress, sites: list[str]) -> Record:
        """Score the last model, choose the best round, score that one thoroughly, and write model and summary."""
        started = time.perf_counter()
        self.watch(RoundsFinished(progress.round))
        records: list[Record] = []
        scores: dict[str, float] = {}
        requests = {site: self._request("evaluate", site, progress, progress.round) for site in sites}
        for reply in self._accepted(requests, records, state_names=[]):
            scores |= self._score_records(progress.round, reply, records)
        selection = progress.selection.after(progress.round, scores)
        if not selection.best:
            raise RunError("no site scored any round, so no model can be selected")

        selected = self._selected(progress, selection, sites)
        requests = {
            site: self._request("evaluate", site, chosen, chosen.round, thorough=True)
            for site, chosen in selected.items()
        }
        num_scored = 0
        for reply in self._accepted(requests, records, state_names=[]):
            self._score_records(requests[reply.site].round, reply, records, selected=True)
            num_scored += 1
        self._require_quorum(num_scored, sites, progress.round, records)
        self._write_model(selected[sites[0]], selection)
        unseen = self._unseen_record(progress.round)
        self.folder.append(records + unseen)
        seconds = progress.seconds + time.perf_counter() - started
        summary = summarize(self.task, self.method, self.settings, selection, records + unseen, seconds)
        self.folder.finish(summary)
        return summary

    def _unseen_record(self, number: int) -> list[Record]:
        """The scores at the hospital that took no part, if there is one."""
        site = self.settings.data.hold_out_site
        if site is None:
            return []
        scores, note = score_unseen(self.folder.model, self.settings, self.method)
        record: Record = {"round": number, "site": site, "phase": "unseen"} | dict(scores)
        record |= {"note": note} if note else {}
        self.watch(event_of(record))
        return [record]

    def _selected(self, progress: Progress, selection: Selection, sites: list[str]) -> dict[str, Progress]:
        """For each site, the checkpoint of the round of its selected model; a site never scored has the last one."""
        scored = selection.best if selection.per_site else sites
        rounds = {site: selection.round_for(site) if site in scored else progress.round for site in sites}
        try:
            others = {number: read_checkpoint(self.folder, number) for number in {*rounds.values()} - {progress.round}}
        except CorruptVersionError as error:
            raise RunError(f"the checkpoint of the best round cannot be read: {error}") from None
        return {site: others.get(number, progress) for site, number in rounds.items()}

    def _write_model(self, chosen: Progress, selection: Selection) -> None:
        """The whole model, or its description if every site keeps a part of its own (it wrote that itself)."""
        best = None if selection.per_site else chosen.round
        if self.sites_differ:
            describe_model(self.folder.model, self.task, self.settings, self.sites, best)
            return
        model = self.task.build_model(self.settings, self.method)
        load(model.network, chosen.state)
        memories = open_memories(self.pieces, {}, chosen.combined)
        for name, piece in self.pieces.items():
            piece.receive(model, memories[name])
        model.harmonizer.freeze()
        write_model(self.folder.model, model, self.task, self.settings, self.sites, best)


def check_pieces(method: Method, model: Model) -> None:
    """Raise an error for a piece that measures before training, but announces nothing: no site would be asked."""
    for piece in method.pieces().values():
        if piece.measures_first and not piece.sends(model):
            raise UsageError(
                f"{method.name}: {type(piece).__name__} measures images before training, but announces nothing to "
                "send; a harmonizer's measurement() must return every tensor that sites will send from the start, with "
                "its name, shape and type, zeros for example"
            )


def quorum(settings: Settings, num_sites: int) -> int:
    """How many sites make a round."""
    return max(1, math.ceil(settings.federation.quorum * num_sites))


def start_from(network: nn.Module, folder: Path) -> None:
    """Copy the weights of a model folder into a network of the same shape."""
    model = open_model(folder).model
    try:
        load(network, snapshot(model.network))
    except RuntimeError as error:
        raise UsageError(f"model.initial = {str(folder)!r}: does not fit: {first_misfit(error)}") from None
