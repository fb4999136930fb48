"""Plain lines: one per round of a run, one per cell of an experiment."""

from __future__ import annotations

from harmofl.displays.pace import Pace
from harmofl.displays.words import describe_cell, describe_early_stop, describe_images, describe_round, describe_step
from harmofl.events import (
    CellFinished,
    Event,
    ExperimentProgressed,
    ImagesChosen,
    RoundFinished,
    RoundsFinished,
    RunStarted,
    SiteLeftOut,
    StepDone,
)

MOST_STEPS = 20
"""Lines for the parts of one piece of work, such as images that are predicted; of more, about as many are told."""


class PlainDisplay:
    """Prints what concerns the whole federation or experiment, and every site that was left out."""

    def __init__(self) -> None:
        self._run: RunStarted | None = None
        self._images: set[ImagesChosen] = set()
        self._experiment = ""
        self._last = ""
        self._pace = Pace()

    def __call__(self, event: Event) -> None:
        """Print a line, unless the last one says the same."""
        line = self._heading(event) or self._detail(event)
        if line and line != self._last:
            print(line, flush=True)
            self._last = line

    def _heading(self, event: Event) -> str:
        match event:
            case ImagesChosen() if event not in self._images:
                self._images.add(event)
                return describe_images(event)
            case RunStarted():
                self._run = event
                return f"{event.title} on {event.task}: {event.rounds} round{'' if event.rounds == 1 else 's'}"
            case ExperimentProgressed() if event.title != self._experiment:
                self._experiment = event.title
                return f"{event.title}: {event.done} of {event.total} cells are done"
        return ""

    def _detail(self, event: Event) -> str:
        match event:
            case SiteLeftOut():
                return f"  round {event.round}: {event.site} left out: {event.reason}"
            case RoundFinished():
                return f"  round {event.round}: {describe_round(event, self._run)}, {event.seconds:.1f} s"
            case RoundsFinished():
                early = describe_early_stop(event.round, event.without_improvement)
                last = f"  {early}\n" if event.without_improvement else ""
                return f"{last}  scoring and writing the selected model"
            case CellFinished():
                return f"  {event.tried}/{event.total} {describe_cell(event)}"
            case StepDone() if event.total > MOST_STEPS:
                return self._step(event)
        step = describe_step(event)
        return f"  {step}" if step else ""

    def _step(self, step: StepDone) -> str:
        left = self._pace.time_left(step)
        if not _is_told(step):
            return ""
        return f"  {step.done} of {step.total}: {step.what}" + (f", {left}" if left else "")


def _is_told(step: StepDone) -> bool:
    """Whether another twentieth of many steps is done."""
    told, before = (number * MOST_STEPS // step.total for number in (step.done, step.done - 1))
    return bool(step.what) and told > before
