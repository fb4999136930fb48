"""One process per cell, for as long as this process lives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from harmofl.experiments.cells import Cell
from harmofl.experiments.child import PREFIX, TRAINED
from harmofl.files import write_whole
from harmofl.runs.folder import RunFolder

COMMAND = [sys.executable, "-c", "from harmofl.experiments.child import main; main()"]
SECONDS_TO_LEAVE = 10


class CellProcess:
    """A cell that is being run, from the start or from where its folder left off."""

    def __init__(self, cell: Cell, out: Path, workers: int, trained: Path | None = None) -> None:
        """`trained`: a folder for what rounds of training gave, which another cell may use."""
        self.cell = cell
        self.run = RunFolder(out / cell.path)
        config, self._log = (self.run.path.with_name(self.run.path.name + end) for end in (".toml", ".log"))
        write_whole(config, cell.settings.to_toml())
        options = [str(config), str(self.run.path), str(workers), *(["resume"] if self.run.config.exists() else [])]
        options += [f"{TRAINED}{trained}"] if trained else []
        self._started = time.monotonic()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*COMMAND, *options],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(),
            )

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return time.monotonic() - self._started

    @property
    def round(self) -> int:
        """The newest round with a checkpoint."""
        return max(self.run.checkpoints.versions(), default=0)

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended, successfully or not."""
        return self._process.poll() is not None

    def error(self) -> str | None:
        """Why the process failed, if it did: the last line that it printed."""
        code = self._process.wait()
        self._close_pipe()
        if code == 0:
            return None
        if code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        said = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        # The command's own last word, as what it printed before may be written after it.
        last = next((line for line in reversed(said) if line.startswith(PREFIX)), said[-1] if said else "")
        return last.removeprefix(PREFIX) or f"exit code {code}"

    def stop(self) -> None:
        """End the process; the run can be resumed from its last checkpoint."""
        self._close_pipe()
        try:
            self._process.wait(SECONDS_TO_LEAVE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _close_pipe(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()


def _environment() -> dict[str, str]:
    """The environment, in which this package is found where it was found here."""
    places = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(place for place in places if place),
        "PYTHONIOENCODING": "utf-8",
    }
