"""Where a run stands after a round, and its checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harmofl.displays.profiling import part
from harmofl.errors import RunError
from harmofl.runs.folder import RunFolder
from harmofl.runs.selection import Selection
from harmofl.runs.store import CorruptVersionError
from harmofl.states import State, add_prefix, select_prefix

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """Where a run stands after a round: all that a checkpoint holds."""

    round: int
    state: State
    selection: Selection
    memory: State = field(default_factory=dict)
    """What the server rule remembers."""
    combined: State = field(default_factory=dict)
    """What the method's pieces sent, combined over sites."""
    num_records: int = 0
    seconds: float = 0.0
    kept: tuple[int, ...] = ()
    """Rounds that this checkpoint or the one before may need."""
    counted: Mapping[str, int | None] = field(default_factory=dict)
    """For each site that has trained, the last round of it that counted; it goes on from what it kept then. None: the
    last that it kept, as a run of 0.1 did not note which that was."""

    def advance(
        self,
        *,
        state: State,
        memory: State,
        combined: State,
        scores: Mapping[str, float],
        num_records: int,
        seconds: float,
        trained: Iterable[str],
    ) -> Progress:
        """Where the run stands one round later; the scores are those of the model of this round."""
        number = self.round + 1
        selection = self.selection.after(self.round, scores)
        return Progress(
            round=number,
            state=state,
            memory=memory,
            combined=combined,
            selection=selection,
            num_records=self.num_records + num_records,
            seconds=self.seconds + seconds,
            # This checkpoint and the one before, should this one be damaged, and the best round as each knows it.
            kept=tuple(sorted({number, self.round} | selection.rounds() | self.selection.rounds())),
            counted={**self.counted, **dict.fromkeys(trained, number)},
        )


def write_checkpoint(folder: RunFolder, progress: Progress) -> None:
    """Write the checkpoint of a round, and drop those that nothing may need again."""
    notes = {
        "round": progress.round,
        "selection": progress.selection.to_json(),
        "num_records": progress.num_records,
        "seconds": progress.seconds,
        "kept": progress.kept,
        "counted": dict(progress.counted),
        "records": folder.records_checksum,
    }
    tensors = (
        add_prefix("state", progress.state)
        | add_prefix("memory", progress.memory)
        | add_prefix("combined", progress.combined)
    )
    with part("checkpoint"):
        folder.checkpoints.save(progress.round, tensors, notes)
        folder.checkpoints.prune(progress.kept)


def newest_checkpoint(folder: RunFolder) -> Progress | None:
    """The newest checkpoint that can be read, with the records put back as they were then."""
    last: Exception | None = None
    for version in reversed(folder.checkpoints.versions()):
        try:
            progress = read_checkpoint(folder, version)
            _, notes = folder.checkpoints.load(version)
            folder.keep_records(progress.num_records, notes.get("records", ""))
        except CorruptVersionError as error:
            logger.warning("checkpoint of round %d cannot be read, using the one before (%s)", version, error)
            last = error
            continue
        return progress
    if last is not None:
        raise RunError(
            f"no checkpoint in {folder.checkpoints.folder} can be read: start again with another --out ({last})"
        )
    return None


def read_checkpoint(folder: RunFolder, version: int) -> Progress:
    """The checkpoint of one round."""
    tensors, notes = folder.checkpoints.load(version)
    try:
        progress = _progress_of(tensors, notes)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptVersionError(f"{folder.checkpoints.path(version)}: its notes are damaged: {error!r}") from None
    if progress.round != version or type(progress.num_records) is not int or progress.num_records < 0:
        raise CorruptVersionError(f"{folder.checkpoints.path(version)}: its notes are of another round, or damaged")
    return progress


def _progress_of(tensors: State, notes: Mapping[str, Any]) -> Progress:
    return Progress(
        round=notes["round"],
        state=select_prefix("state", tensors),
        memory=select_prefix("memory", tensors),
        combined=select_prefix("combined", tensors),
        selection=Selection.from_json(notes["selection"]),
        num_records=notes["num_records"],
        seconds=notes["seconds"],
        kept=tuple(notes["kept"]),
        # Before 0.2 a checkpoint named the sites only.
        counted=notes["counted"] if "counted" in notes else dict.fromkeys(notes.get("trained", ())),
    )
