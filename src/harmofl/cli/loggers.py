"""`--log`: what also takes a run's numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harmofl.errors import UsageError
from harmofl.events import Watch, Watchers

if TYPE_CHECKING:
    from harmofl.runs.mlflow_log import MlflowLog


class Logger(StrEnum):
    """What `--log` may name."""

    tensorboard = "tensorboard"
    mlflow = "mlflow"


Log = Annotated[
    list[Logger],
    typer.Option(
        "--log",
        help="Also log to TensorBoard (OUT/tensorboard) or MLflow; may be given twice. Extras of the same names.",
    ),
]
LogTo = Annotated[
    str | None,
    typer.Option("--log-to", metavar="WHERE", help="MLflow's folder or server; OUT/mlflow if not given."),
]


@dataclass
class Loggers:
    """The loggers of one run."""

    watches: list[Watch] = field(default_factory=list)
    mlflow: MlflowLog | None = None

    def beside(self, watch: Watch) -> Watch:
        """A watch that also logs."""
        return Watchers((watch, *self.watches))

    def keep_files(self, out: Path) -> None:
        """Give MLflow the finished run's model and report."""
        if self.mlflow is not None:
            self.mlflow.keep_files(*_report(out))


def _report(out: Path) -> list[Path]:
    from harmofl.experiments.report import write_report
    from harmofl.extras import missing_packages

    return [] if missing_packages("reports") else [write_report(out)]


@contextmanager
def open_loggers(names: Sequence[Logger], out: Path, where: str | None) -> Iterator[Loggers]:
    """The loggers that the user asked for, until the run ends."""
    from harmofl.displays.tensorboard import log_to_tensorboard
    from harmofl.runs.mlflow_log import hide_secrets, log_to_mlflow

    if where and Logger.mlflow not in names:
        raise UsageError(f"--log-to {hide_secrets(where, where)}: only for --log mlflow")
    loggers = Loggers()
    with ExitStack() as stack:
        if Logger.tensorboard in names:
            loggers.watches.append(stack.enter_context(log_to_tensorboard(out / "tensorboard")))
        if Logger.mlflow in names:
            loggers.mlflow = stack.enter_context(log_to_mlflow(out, where))
            loggers.watches.append(loggers.mlflow)
        yield loggers
