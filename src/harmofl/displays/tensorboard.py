"""Every number of a run as TensorBoard shows it: one curve per site."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harmofl.events import SERVER, Event, RoundFinished, SiteAnswered, SiteScored, Watch
from harmofl.extras import require


@contextmanager
def log_to_tensorboard(folder: Path) -> Iterator[Watch]:
    """A watch that writes to a folder, which is made when the first number comes."""
    require("tensorboard", "--log tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    writers: list[Any] = []

    def log(event: Event) -> None:
        numbers = numbers_in(event)
        if numbers and not writers:  # made late, so that the run's folder is still empty when the run claims it
            writers.append(SummaryWriter(str(folder)))
        for name, value in numbers.items():
            writers[0].add_scalar(name, value, getattr(event, "round", 0))

    try:
        yield log
    finally:
        for writer in writers:
            writer.close()


def numbers_in(event: Event) -> Mapping[str, float]:
    """The numbers of an event, by the names of their curves.

    >>> numbers_in(SiteScored(3, "A", "val", {"metric": 0.5}))
    {'val-metric/A': 0.5}
    """
    match event:
        case SiteAnswered():
            return {f"{event.phase}-{name}/{event.site}": value for name, value in event.numbers.items()}
        case SiteScored():
            return {f"{event.part}-{name}/{event.site}": value for name, value in event.scores.items()}
        case RoundFinished():
            scores = {} if event.previous_score is None else {"previous_val": event.previous_score}
            numbers = {"loss": event.loss, "seconds": event.seconds} | scores
            return {f"train-{name}/{SERVER}": value for name, value in numbers.items()}
    return {}
