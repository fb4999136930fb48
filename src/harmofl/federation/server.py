"""The server: rounds, quorum, model selection, the end. It knows no engine, only a Transport."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from harmofl.data.facts import DataFacts
from harmofl.errors import DiskError, RunError
from harmofl.events import RoundsFinished, RoundStarted, Watch, event_of, ignore
from harmofl.federation.bounds import Verdict, all_finite
from harmofl.federation.client import sites_differ
from harmofl.federation.filters.chain import Filters
from harmofl.federation.messages import Reply, Request
from harmofl.federation.participation import Participation
from harmofl.federation.plausible import Plausible
from harmofl.federation.privacy import epsilon_after_round, sharing_sites, summarize_privacy
from harmofl.federation.private_measurements import senders
from harmofl.federation.round_records import (
    record_measurement,
    record_problem,
    record_round,
    record_scores,
    record_training,
    run_started,
)
from harmofl.federation.round_requests import Requests
from harmofl.federation.rounds import Updates
from harmofl.federation.secure_rounds import choose_rounds
from harmofl.federation.sites import Sites, list_reasons
from harmofl.federation.transports import Transport
from harmofl.methods.channel import announce, open_memories
from harmofl.methods.method import Method
from harmofl.runs.checkpoints import Progress, newest_checkpoint, read_checkpoint, write_checkpoint
from harmofl.runs.folder import Record, RunFolder
from harmofl.runs.model_folder import describe_model, start_from, write_model
from harmofl.runs.selection import Selection
from harmofl.runs.site_models import score_unseen
from harmofl.runs.store import CorruptVersionError
from harmofl.runs.summary import summarize
from harmofl.settings import Settings
from harmofl.states import State, load, snapshot
from harmofl.tasks.task import Source, Task

logger = logging.getLogger(__name__)


class Server:
    """Runs a federation over a transport, from the last checkpoint in its folder to the summary."""

    def __init__(
        self,
        task: Task,
        method: Method,
        settings: Settings,
        transport: Transport,
        folder: RunFolder,
        run: str,
        watch: Watch = ignore,
        source: Source | None = None,
    ) -> None:
        self.task = task
        self.source = source
        self.method = method
        self.settings = settings
        self.folder = folder
        self.watch = watch
        self.site_names = task.sites_of(settings.data)
        self.num_participants = len(task.participants(method, settings.data))
        self.participation = Participation.of(settings)
        model = task.build_model(settings, method)
        if settings.model.initial:
            start_from(model.network, Path(settings.model.initial))
        self.initial = snapshot(model.network)
        self.shared = method.shares(model.network)
        self.requests = Requests(run, settings, self.initial, self.shared)
        self.sites_differ = sites_differ(method, model)
        self.pieces = method.pieces()
        self.sending = senders(method, model)
        self.fewest = sharing_sites(settings, method)
        self._warned = False
        plausible = Plausible.of(task, settings, method.pooled)
        announced, filters = announce(self.pieces, model), Filters.at_server(settings, method, model)
        self.sites = Sites(transport, settings.federation, announced, watch, plausible, filters)
        self.rounds = choose_rounds(method, model, settings, self.sites, self.num_participants)

    def run(self) -> Record:
        """Run every round that is still to run; return the summary."""
        sites = self.sites.wait_for(len(self.site_names))
        self.sites.expect(self.rounds.largest({name: self.initial[name] for name in self.shared}))
        checkpoint = newest_checkpoint(self.folder)
        self.watch(
            run_started(self.task, self.method, self.settings, sites, done=checkpoint.round if checkpoint else 0)
        )
        progress = checkpoint or self._start(sites)
        while progress.round < self.settings.training.rounds and not self._stalled(progress):
            progress = self._run_round(progress, sites)
        return self._finish(progress, sites)

    # --- rounds ------------------------------------------------------------------------------------------------

    def _stalled(self, progress: Progress) -> int:
        """How many rounds had no better score, if enough to stop, else 0; the newest model is not scored yet."""
        longest = self.settings.training.stop_after
        last_scored = self.participation.last_scored(progress.round - 1)
        stalled = progress.selection.rounds_without_improvement(last_scored)
        return stalled if longest is not None and stalled >= longest else 0

    def _stopped_early(self, progress: Progress) -> Record:
        """What the summary says of a run that did not need all its rounds."""
        stalled = self._stalled(progress) if progress.round < self.settings.training.rounds else 0
        return {"stopped_early": {"round": progress.round, "without_improvement": stalled}} if stalled else {}

    def _start(self, sites: list[str]) -> Progress:
        """Before round 1: the initial model, and what the method's pieces measure first."""
        started = time.perf_counter()
        higher_is_better = self.task.score_for(self.settings).higher_is_better
        robust = self.method.withstands_a_site(self.settings.federation.clip_updates)
        selection = Selection(not self.shared, {}, higher_is_better, robust)
        progress = Progress(0, self.initial, selection)
        self.folder.keep_records(0)
        if any(piece.measures_first for piece in self.pieces.values()):
            progress = self._measure(progress, sites)
        progress = replace(progress, seconds=time.perf_counter() - started, kept=(0,))
        write_checkpoint(self.folder, progress)
        return progress

    def _measure(self, progress: Progress, sites: list[str]) -> Progress:
        requests = self.requests.measure(progress, sites)
        records: list[Record] = []
        measured: dict[str, bool] = {}
        with self._records_of_failure(records):
            updates = self.rounds.open(requests, records, {}, progress.combined)
            for arrival in self.sites.ask(updates.requests, records, updates.expected):
                if arrival.usable:
                    updates.add(arrival.reply)
                    measured[arrival.reply.site] = bool(arrival.reply.sent or arrival.reply.state)  # masked: a row
                    records.append(record_measurement(requests[arrival.reply.site], arrival.reply))
            self._leave_out(updates.finish(), requests, measured, records)
            self.sites.require_quorum(sum(measured.values()), len(sites), 0, records, self.fewest)
            combined = updates.combining.value()
            self._check_finite(0, updates, combined)
        self.folder.append(records)
        return replace(progress, combined=combined, num_records=len(records))

    @contextmanager
    def _records_of_failure(self, records: list[Record]) -> Iterator[None]:
        """Write records also if a round fails, for whoever looks for the cause; a resumed run drops them again."""
        try:
            yield
        except DiskError:
            raise  # there is no room for them, and no site is to blame
        except RunError:
            self.folder.append(records)
            raise

    def _run_round(self, progress: Progress, sites: list[str]) -> Progress:
        """Send the model, fold the sites' replies into the next one, and write it down.

        The sites also score the model that they receive, so that a round is one message: its scores belong to the
        round before.
        """
        started = time.perf_counter()
        number = progress.round + 1
        asked = self.participation.asked(sites, number)
        is_scored = self.participation.is_scored(progress.round)
        requests = self.requests.train(progress, sites, asked, is_scored)
        self.watch(RoundStarted(number, tuple(asked)))
        start = {name: progress.state[name] for name in self.shared}
        records: list[Record] = []
        scores: dict[str, float] = {}
        losses: dict[str, float] = {}
        with self._records_of_failure(records):
            updates = self.rounds.open(requests, records, start, progress.combined)
            for arrival in self.sites.ask(updates.requests, records, updates.expected):
                reply = arrival.reply
                scores |= self._note_scores(progress.round, reply, records)
                if not arrival.usable or requests[reply.site].kind != "train":
                    continue
                updates.add(reply)
                losses[reply.site] = reply.metrics["train"]["loss"]
                self._note(record_training(requests[reply.site], reply, arrival.num_bytes), records)
            verdict = updates.finish()
            self._leave_out(verdict, requests, losses, records)
            self.sites.require_quorum(len(losses), len(asked), number, records, self.fewest)

            rate = self.settings.federation.server_learning_rate
            state, memory = updates.aggregation.finish(progress.memory, rate, len(losses) / self.num_participants)
            combined = updates.combining.value()
            self._check_finite(number, updates, state, memory, combined)
        seconds = time.perf_counter() - started
        records.append(
            record_round(number, list(losses.values()), scores, seconds, records, shortened=verdict.shortened)
        )
        records[-1] |= self._warn_of_few(len(losses)) | ({"asked": asked} if len(asked) < len(sites) else {})
        records[-1] |= epsilon_after_round(self.settings, self.method, self.sending, number)
        self.folder.append(records)
        following = progress.advance(
            state=state,
            memory=memory,
            combined=combined,
            scores=scores,
            num_records=len(records),
            seconds=seconds,
            trained=losses,
        )
        write_checkpoint(self.folder, following)
        self.watch(event_of(records[-1]))
        return following

    def _warn_of_few(self, num_answers: int) -> Record:
        """What the server's record says if too few sites answered for what its rule promises; also logged, once."""
        fewest = self.method.server_rule.fewest_sites
        if num_answers >= fewest:
            return {}
        if not self._warned:
            self._warned = True
            logger.warning(
                "%d sites answered: %s needs %d to withstand a bad one", num_answers, self.method.name, fewest
            )
        return {"warning": f"{num_answers} sites answered, {fewest} are needed to withstand a bad one"}

    def _leave_out(
        self, verdict: Verdict, requests: Mapping[str, Request], answered: dict[str, Any], records: list[Record]
    ) -> None:
        """Record which sites do not count in this round, and why."""
        for site, reason in verdict.left_out.items():
            del answered[site]
            self._note(record_problem(requests[site], site, reason), records)

    def _check_finite(self, number: int, updates: Updates, *states: State) -> None:
        """Raise an error before a model that nobody can use is written, and name the site to look at."""
        if all_finite(*states):
            return
        raise RunError(
            f"round {number}: all updates together give NaN or infinity, and {updates.longest()}. The last checkpoint "
            "is kept. federation.clip_updates or a robust method (median, trimmed-mean, multi-krum, geometric-median) "
            "limits what one site can do"
        )

    def _note(self, record: Record, records: list[Record]) -> None:
        records.append(record)
        self.watch(event_of(record))

    def _note_scores(self, number: int, reply: Reply, records: list[Record], **more: bool) -> dict[str, float]:
        """Record a reply's scores of the model of a round; return the validation metrics by site."""
        for record in record_scores(number, reply, **more):
            self._note(record, records)
        return {site: scores["metric"] for site, scores in reply.metrics.get("val", {}).items()}

    # --- the end -----------------------------------------------------------------------------------------------

    def _finish(self, progress: Progress, sites: list[str]) -> Record:
        """Score the last model, choose the best round, score that one thoroughly, and write model and summary."""
        started = time.perf_counter()
        stopped = self._stopped_early(progress)
        self.watch(RoundsFinished(progress.round, stopped.get("stopped_early", {}).get("without_improvement", 0)))
        records: list[Record] = []
        selection = self._score_last_model(progress, sites, records)
        selected = self._read_selected(progress, selection, sites)
        self._test(selected, sites, progress.round, records)
        self._write_model(selected[sites[0]], selection)
        self._score_unseen_site(progress.round, records)
        self.folder.append(records)
        seconds = progress.seconds + time.perf_counter() - started
        summary = summarize(self.task, self.method, self.settings, selection, records, seconds) | stopped
        summary |= summarize_privacy(self.settings, self.method, self.sending, progress.round, self.folder.records)
        self.folder.finish(summary)
        return summary

    def _score_last_model(self, progress: Progress, sites: list[str], records: list[Record]) -> Selection:
        scores: dict[str, float] = {}
        requests = self.requests.evaluate(progress, sites)
        for reply in self.sites.usable_replies(requests, records):
            scores |= self._note_scores(progress.round, reply, records)
        selection = progress.selection.after(progress.round, scores)
        if not selection.best:
            reasons = list_reasons(records) or "none sent validation scores"
            raise RunError(f"no site scored any round, so no model can be selected ({reasons})")
        return selection

    def _read_selected(self, progress: Progress, selection: Selection, sites: list[str]) -> dict[str, Progress]:
        """For each site, the checkpoint of the round of its selected model; a site never scored has the last one."""
        scored = selection.best if selection.per_site else sites
        rounds = {site: selection.round_for(site) if site in scored else progress.round for site in sites}
        try:
            others = {number: read_checkpoint(self.folder, number) for number in {*rounds.values()} - {progress.round}}
        except CorruptVersionError as error:
            raise RunError(f"the checkpoint of the best round cannot be read: {error}") from None
        return {site: others.get(number, progress) for site, number in rounds.items()}

    def _test(self, selected: Mapping[str, Progress], sites: list[str], number: int, records: list[Record]) -> None:
        """Let every site score its selected model with every metric."""
        requests = self.requests.test(selected)
        num_scored = 0
        for reply in self.sites.usable_replies(requests, records):
            self._note_scores(requests[reply.site].round, reply, records, selected=True)
            num_scored += 1
        with self._records_of_failure(records):
            self.sites.require_quorum(num_scored, len(sites), number, records)

    def _score_unseen_site(self, number: int, records: list[Record]) -> None:
        """Record the scores at the hospital that took no part, if there is one."""
        site = self.settings.data.hold_out_site
        if site is not None:
            scores, note = score_unseen(self.folder.model, self.settings, self.method, self.source)
            record: Record = {"round": number, "site": site, "phase": "unseen"} | dict(scores)
            self._note(record | ({"note": note} if note else {}), records)

    def _write_model(self, chosen: Progress, selection: Selection) -> None:
        """Write the whole model, or its description if every site has its own (it wrote that itself)."""
        best, facts = None if selection.per_site else chosen.round, DataFacts.read(self.folder.data)
        if self.sites_differ:
            describe_model(self.folder.model, self.task, self.settings, facts, self.site_names, best)
            return
        model = self.task.build_model(self.settings, self.method)
        load(model.network, chosen.state)
        memories = open_memories(self.pieces, {}, chosen.combined)
        for name, piece in self.pieces.items():
            piece.receive(model, memories[name])
        model.harmonizer.freeze()
        write_model(self.folder.model, model, self.task, self.settings, facts, self.site_names, best)
