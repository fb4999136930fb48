"""What the server asks of the sites in each part of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from harmofl.federation.messages import Kind, Request, settings_to_send
from harmofl.runs.checkpoints import Progress
from harmofl.settings import Settings
from harmofl.states import State


class Requests:
    """Makes the requests of one run, from where it stands."""

    def __init__(self, run: str, settings: Settings, initial: State, shared: Iterable[str]) -> None:
        """`initial`: the whole network before round 1. `shared`: the names of its entries that travel."""
        self._run = run
        self._settings = settings_to_send(settings)
        self._initial = initial
        self._all_travel = initial.keys() <= {*shared}

    def measure(self, progress: Progress, sites: Iterable[str]) -> dict[str, Request]:
        """Ask sites to look at their images before round 1."""
        return {site: self._request("measure", site, progress, 0) for site in sites}

    def train(self, progress: Progress, sites: Iterable[str], asked: Iterable[str], score: bool) -> dict[str, Request]:
        """Ask some sites to train in the next round; with `score`, all sites score the model that they receive."""
        number = progress.round + 1
        requests = {site: self._request("train", site, progress, number, score=score) for site in asked}
        others = [site for site in sites if site not in requests] if score else []
        return requests | self.evaluate(progress, others)

    def evaluate(self, progress: Progress, sites: Iterable[str]) -> dict[str, Request]:
        """Ask sites to score the newest model."""
        return {site: self._request("evaluate", site, progress, progress.round) for site in sites}

    def test(self, selected: Mapping[str, Progress]) -> dict[str, Request]:
        """Ask every site to score its selected model with every metric."""
        return {
            site: self._request("evaluate", site, progress, progress.round, thorough=True)
            for site, progress in selected.items()
        }

    def _request(self, kind: Kind, site: str, progress: Progress, number: int, **more: Any) -> Request:
        has_own = kind == "train" and site in progress.counted  # it may not have had it yet in a round to evaluate
        state = progress.state if has_own or self._all_travel else self._initial | progress.state
        return Request(
            run=self._run,
            kind=kind,
            round=number,
            state=state if kind != "measure" else {},
            combined=progress.combined,
            settings=self._settings,
            keep=progress.kept,
            counted=progress.counted.get(site, 0),
            **more,
        )
