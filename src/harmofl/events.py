"""What happens while something runs, as typed events for whoever watches: displays, loggers, tests.

A `watch` is any function that takes one event. It is called in the process and thread that does the work, so it should
return soon; an exception in it ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

SERVER = "server"


@dataclass(frozen=True)
class ImagesChosen:
    """Which images are used: the first event of every start."""

    images: str
    """A folder, "synthetic hospitals", or "at the sites"."""

    limit: int = 0
    """At most so many images (slices, tiles) of each site that trains, as data.limit says; 0: all."""


@dataclass(frozen=True)
class ImagesRead:
    """Some files of a site's images are read, or decoded into the cache."""

    site: str
    doing: Literal["reading", "decoding"]
    done: int
    total: int


@dataclass(frozen=True)
class ImagesReady:
    """All images of a site are decoded."""

    site: str
    total: int


@dataclass(frozen=True)
class SitesAwaited:
    """A run over a network waits for its sites."""

    sites: tuple[str, ...]


@dataclass(frozen=True)
class RunStarted:
    """The rounds begin, or go on."""

    task: str
    method: str
    """The key by which it is chosen."""
    title: str
    """The method's name for people."""
    sites: tuple[str, ...]
    rounds: int
    done: int
    """Rounds that an earlier process did."""
    score: str
    """The name of the score that selects the best round."""
    unit: str
    """The score's unit: with "%", values from 0 to 1 are printed times 100."""


@dataclass(frozen=True)
class RoundStarted:
    """A round begins."""

    round: int
    asked: tuple[str, ...]
    """The sites that train in it: all, or some of them (`federation.participation`)."""


@dataclass(frozen=True)
class SiteAnswered:
    """A site has trained in a round, or measured before the first one; the numbers are those of `records.jsonl`."""

    round: int
    site: str
    phase: str
    numbers: Mapping[str, float]


@dataclass(frozen=True)
class SiteScored:
    """A model is scored on a site's images of one part: val, test, or unseen for a site that took no part."""

    round: int
    site: str
    part: str
    scores: Mapping[str, float]
    selected: bool = False
    """Whether it is the selected model."""


@dataclass(frozen=True)
class SiteLeftOut:
    """A site gave no usable answer in a round."""

    round: int
    site: str
    phase: str
    reason: str


@dataclass(frozen=True)
class RoundFinished:
    """The sites' answers are averaged and written down."""

    round: int
    loss: float
    seconds: float
    previous_score: float | None = None
    """The mean validation score of the model of the round before, which the sites scored as they received it."""
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class RoundsFinished:
    """All rounds are done: the best model is scored and written."""

    round: int
    without_improvement: int = 0
    """The rounds without a better score that ended the run before its time (`training.stop_after`); 0: none did."""


@dataclass(frozen=True)
class StepDone:
    """A part of other work is done, such as an image predicted or a site scored."""

    what: str
    """In words, for people; may be empty."""
    done: int
    total: int


@dataclass(frozen=True)
class RunningCell:
    """A cell of an experiment that is being trained."""

    cell: str
    round: int
    rounds: int
    seconds: float


@dataclass(frozen=True)
class ExperimentProgressed:
    """Where an experiment stands; sent several times a second."""

    title: str
    total: int
    done: int
    failed: int
    running: tuple[RunningCell, ...] = ()
    seconds_left: float | None = None


@dataclass(frozen=True)
class CellFinished:
    """A cell of an experiment is done, or failed."""

    cell: str
    seconds: float
    tried: int
    """Cells that are done or failed, this one included."""
    total: int
    score: str = ""
    """With its unit, for people."""
    error: str = ""


Event = (
    ImagesChosen
    | ImagesRead
    | ImagesReady
    | SitesAwaited
    | RunStarted
    | RoundStarted
    | SiteAnswered
    | SiteScored
    | SiteLeftOut
    | RoundFinished
    | RoundsFinished
    | StepDone
    | ExperimentProgressed
    | CellFinished
)
Watch = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Watch nothing."""


@dataclass(frozen=True)
class Watchers:
    """Several watchers as one.

    >>> seen: list[Event] = []
    >>> Watchers((seen.append, ignore))(RoundsFinished(12))
    >>> seen
    [RoundsFinished(round=12, without_improvement=0)]
    """

    watches: tuple[Watch, ...] = field(default=())

    def __call__(self, event: Event) -> None:
        """Pass the event on to all of them."""
        for watch in self.watches:
            watch(event)


def event_of(record: Mapping[str, Any]) -> Event:
    """The event for a line of `records.jsonl`.

    >>> event_of({"round": 2, "site": "A", "phase": "train", "error": "no answer"})
    SiteLeftOut(round=2, site='A', phase='train', reason='no answer')
    """
    number, site, phase = record["round"], record["site"], record["phase"]
    if "error" in record:
        return SiteLeftOut(number, site, phase, record["error"])
    if site == SERVER:
        left_out = tuple(record.get("left_out", ()))
        return RoundFinished(number, record["loss"], record["seconds"], record.get("previous_val"), left_out)
    numbers = {
        name: value
        for name, value in record.items()
        if name not in ("round", "selected") and isinstance(value, (int, float))
    }
    if phase in ("val", "test", "unseen"):
        return SiteScored(number, site, phase, numbers, selected=bool(record.get("selected")))
    return SiteAnswered(number, site, phase, numbers)
