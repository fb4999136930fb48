"""How requests reach the sites: what an engine provides, and all sites in this process (`workers.py`: in several)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from harmofl import registry
from harmofl.data.facts import DataFacts
from harmofl.devices import threads
from harmofl.errors import DiskError
from harmofl.federation.client import Client
from harmofl.federation.failures import describe_fully
from harmofl.federation.messages import Reply, Request
from harmofl.federation.trained_rounds import TrainedRounds
from harmofl.federation.waiting import Waiting
from harmofl.files import find_disk_failure, what_failed
from harmofl.methods.method import Method
from harmofl.runs.finished import read_facts
from harmofl.runs.folder import RunFolder
from harmofl.settings import Settings

if TYPE_CHECKING:
    from harmofl.tasks.task import Source


MOST_SHOWN = 24


class Transport(Protocol):
    """All that an engine provides."""

    def sites(self, minimum: int, timeout: float) -> list[str]:
        """Wait for sites and return their names."""

    def ask(self, requests: Mapping[str, Request], timeout: float) -> Iterator[Reply]:
        """Send each site its request; yield one reply per site, in any order."""


@runtime_checkable
class LimitsReplies(Protocol):
    """A transport that refuses larger replies before it reads them; whoever has no such function reads them first."""

    def limit_replies(self, largest: int) -> None:
        """Refuse replies of more bytes from now on."""


def limit_replies(transport: object, largest: int) -> None:
    """Tell a transport how large replies may be, if it can refuse larger ones."""
    if isinstance(transport, LimitsReplies):
        transport.limit_replies(largest)


def sort_replies(replies: Iterable[Reply], sites: Sequence[str]) -> Iterator[Reply]:
    """Yield replies in the order of sites, each as soon as its turn comes: sums never depend on who was faster."""
    waiting = Waiting()
    remaining = deque(sites)
    for reply in replies:
        waiting.put(reply)
        while remaining and remaining[0] in waiting:
            yield waiting.take(remaining.popleft())
    for site in remaining:
        yield waiting.take(site) if site in waiting else Reply(site, error="no answer")


@dataclass
class Clients:
    """The sites that one process simulates, made when first asked for; they share one model as their workspace."""

    settings: Settings
    method: Method
    folder: Path
    source: Source | None = None
    """The images; opened when first needed, and once."""
    trained: Path | None = None
    """A folder for what rounds of training gave (`trained_rounds.py`)."""
    _made: dict[str, Client] = field(default_factory=dict)
    _facts: DataFacts | None = None

    @cached_property
    def _shown(self) -> frozenset[str]:
        """The sites of which the live page shows an image: nobody looks at hundreds, and each takes time."""
        task = registry.tasks.find(self.settings.task)
        return frozenset(task.participants(self.method, self.settings.data)[:MOST_SHOWN])

    def answer(self, site: str, request: Request) -> Reply:
        """Let one site answer."""
        try:
            return self._client(site).answer(request)
        except Exception as error:  # its data could not be loaded
            return Reply(site, error=self._describe(error))

    def _describe(self, error: Exception) -> str:
        """What the server hears of a site's error; a disk's failure is not one site's, and stops the run."""
        if isinstance(error, DiskError):
            raise error
        if failure := find_disk_failure(error, self.folder):
            raise DiskError(what_failed(failure)) from error
        return describe_fully(error)

    def _client(self, site: str) -> Client:
        if site not in self._made:
            task, run = registry.tasks.find(self.settings.task), RunFolder(self.folder)
            self.source = self.source or task.open(self.settings.data)
            model = next((client.model for client in self._made.values()), None)
            self._facts = facts = self._facts or read_facts(run.path)
            self._made[site] = Client(
                site=task.load_site(site, self.settings.data, self.source),
                task=task,
                method=self.method,
                settings=self.settings,
                facts=facts,
                trained=TrainedRounds(self.trained, site, self.settings, self.method, facts) if self.trained else None,
                model=model or task.build_model(self.settings, self.method),
                store=run.site_store(site),
                model_folder=run.model / "sites" / site,
                describe_error=self._describe,
                samples=run.samples if site in self._shown else None,
                simulated=True,
            )
        return self._made[site]


class InProcess:
    """All sites in this process, one after the other."""

    def __init__(
        self,
        settings: Settings,
        method: Method,
        folder: Path,
        source: Source | None = None,
        trained: Path | None = None,
    ) -> None:
        self._sites = registry.tasks.find(settings.task).participants(method, settings.data)
        self._threads = settings.federation.threads
        self._clients = Clients(settings, method, folder, source, trained)

    def sites(self, minimum: int, timeout: float) -> list[str]:
        """Every site is always there."""
        return list(self._sites)

    def ask(self, requests: Mapping[str, Request], timeout: float) -> Iterator[Reply]:
        """Answer in the order of names; nothing here can be interrupted by a timeout."""
        for site in sorted(requests):
            with threads(self._threads):
                reply = self._clients.answer(site, requests[site])
            yield reply

    def close(self) -> None:
        """Nothing is left running."""
