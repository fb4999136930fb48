"""Events in words."""

from __future__ import annotations

from collections.abc import Sequence

from harmofl.events import (
    CellFinished,
    Event,
    ImagesChosen,
    ImagesRead,
    RoundFinished,
    RunStarted,
    SitesAwaited,
    SiteScored,
    StepDone,
)

MOST_NAMES = 10
"""Sites that a line names."""


def describe_images(event: ImagesChosen) -> str:
    """Which images are used, and whether they are only some of a folder's.

    >>> describe_images(ImagesChosen("/images", limit=30))
    'Images: /images, at most 30 of each training site (data.limit)'
    """
    limit = f", at most {event.limit} of each training site (data.limit)" if event.limit else ""
    return f"Images: {event.images}{limit}"


def describe_step(event: Event) -> str:
    """Work outside of rounds; empty for everything else."""
    match event:
        case ImagesRead():
            return f"{event.doing} the images of {event.site}"
        case SitesAwaited():
            return f"waiting for sites: {name_some(event.sites)}"
        case SiteScored(part="unseen"):
            return f"{event.site}, which took no part, scored"
        case StepDone():
            return event.what
    return ""


def name_some(names: Sequence[str]) -> str:
    """Names in a line; of many, the first ones.

    >>> name_some(["A", "B"]), name_some([str(number) for number in range(500)])
    ('A, B', '0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 490 more')
    """
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def describe_round(event: RoundFinished, run: RunStarted | None) -> str:
    """Loss and validation score of a round; the score is of the model that the sites received."""
    loss = f"loss {event.loss:.3f}"
    if run is None or event.previous_score is None:
        return loss
    return f"{loss}, validation of round {event.round - 1}: {format_score(event.previous_score, run.unit)}"


def describe_early_stop(round: int, without_improvement: int) -> str:
    """Why a run ended before its last round.

    >>> describe_early_stop(12, 1)
    'ended after round 12, as the mean validation score had not improved for 1 round'
    """
    rounds = f"{without_improvement} round{'' if without_improvement == 1 else 's'}"
    return f"ended after round {round}, as the mean validation score had not improved for {rounds}"


def describe_cell(event: CellFinished) -> str:
    """What came of a cell."""
    if event.error:
        return f"{event.cell} failed: {event.error}"
    return f"{event.cell}: {event.score} in {duration(event.seconds)}"


def format_score(value: float, unit: str) -> str:
    """A score with its unit."""
    return f"{100 * value:.1f} %" if unit == "%" else f"{value:.2f} {unit}".rstrip()


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(41.2), duration(130), duration(9000)
    ('41 s', '2 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
