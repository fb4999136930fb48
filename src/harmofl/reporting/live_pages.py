"""The pages that follow runs while they run, as text: one run's, or that of all runs in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from harmofl.errors import UsageError
from harmofl.reporting.gallery import FOLDER, list_pictures
from harmofl.reporting.live_pictures import caption, draw_sample
from harmofl.reporting.live_view import settings_of, view
from harmofl.reporting.templates import render
from harmofl.runs.compared import ListedRun, list_runs
from harmofl.runs.folder import RunFolder
from harmofl.runs.status import is_run, read_status

EVERY = 2
"""Seconds between two looks."""


@dataclass(frozen=True)
class LivePages:
    """Every page of a folder: of its own run, or of the runs in it, which are named in the address."""

    folder: Path

    def page(self, run: str = "") -> str:
        """A whole page, which goes on asking for its content."""
        place = self._place(run)
        values = view(read_status(place)) if place else {"title": f"Runs in {self._name}"}
        return render(
            "live.html.j2",
            title=values["title"],
            folder=run or self._name,
            back=bool(run),
            content=_markup(self.content(run)),
            settings=settings_of(read_status(place)) if place else {},
            every=EVERY,
        )

    def content(self, run: str = "") -> str:
        """What changes on it."""
        place = self._place(run)
        return self._all_runs() if place is None else self._one_run(place, run)

    def picture(self, run: str, number: int) -> bytes:
        """One of a run's pictures."""
        place = self._place(run) or self.folder
        pictures = list(list_pictures(place / FOLDER))
        if not 0 <= number < len(pictures):
            raise UsageError(f"picture {number}: {len(pictures)} are there")
        return pictures[number][0].read_bytes()

    def sample(self, run: str, site: str) -> bytes:
        """What the newest model finds on an image of a site."""
        place = self._place(run) or self.folder
        for sample in RunFolder(place).samples.read():
            if sample.site == site:
                return draw_sample(sample)
        raise UsageError(f"{site}: no image of it is there")

    @property
    def _name(self) -> str:
        return self.folder.resolve().name

    def _place(self, run: str) -> Path | None:
        """The folder of the run that an address names; None for the list of all."""
        if is_run(self.folder):
            return self.folder
        if not run:
            return None
        found = {listed.name: listed.status.folder for listed in list_runs(self.folder)}
        if run not in found:
            raise UsageError(f"{run}: no such run")
        return found[run]

    def _one_run(self, place: Path, run: str) -> str:
        captions = [caption for _, caption in list_pictures(place / FOLDER)]
        sources = ["picture?" + urlencode({"run": run, "number": number}) for number in range(len(captions))]
        pictures = [*_samples(place, run), *zip(sources, captions, strict=True)]
        return render("live_content.html.j2", **view(read_status(place)), pictures=pictures)

    def _all_runs(self) -> str:
        runs = list_runs(self.folder)
        return render("live_runs.html.j2", title=f"Runs in {self._name}", sentence=_count(runs), runs=runs)


def _samples(place: Path, run: str) -> Iterator[tuple[str, str]]:
    for sample in RunFolder(place).samples.read():
        # The round is there for the browser: with a new one it asks again.
        yield "sample?" + urlencode({"run": run, "site": sample.site, "round": sample.round}), caption(sample)


def _count(runs: list[ListedRun]) -> str:
    states = [run.status.state for run in runs]
    parts = [f"{states.count(state)} {state}" for state in ("running", "finished", "stopped", "failed")]
    counted = ", ".join(part for part in parts if not part.startswith("0 "))
    return f"{len(runs)} run{'' if len(runs) == 1 else 's'}: {counted}." if runs else "There is no run here yet."


def _markup(text: str) -> str:
    from markupsafe import Markup

    return Markup(text)
