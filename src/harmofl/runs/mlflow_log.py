"""A run in MLflow: its settings, every number of every round and site, the model and the report."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from harmofl.displays.tensorboard import numbers_in
from harmofl.errors import UsageError
from harmofl.events import Event, RoundFinished, RunStarted
from harmofl.extras import require
from harmofl.files import write_whole
from harmofl.runs.folder import RunFolder
from harmofl.settings import flatten, read_toml

logger = logging.getLogger(__name__)

QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # it would report to its makers
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # of a server that does not answer, it would wait for minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
MOST_METRICS = 1000
"""In one message."""
LONGEST_VALUE = 6000
"""Characters of a parameter."""
SECRET = re.compile("pass|pwd|token|secret|key", re.IGNORECASE)
"""What names of an address's parameters tell that their values are nobody's business."""
NETWORK_ERROR = re.compile(r"\[Errno -?\d+\] ([^\[\]()'\"]+)")
"""The part of a long message that says why nobody was reached, such as "Connection refused"."""
MASK = "***"
KEPT = ("config.toml", "data.json", "records.jsonl", "summary.json", "model")


@contextmanager
def log_to_mlflow(out: Path, where: str | None = None) -> Iterator[MlflowLog]:
    """Log a run to MLflow for a block, as a watch.

    Args:
        out: The run's folder. A run that is resumed goes on in the MLflow run that it began, which `mlflow.json` there
            names.
        where: A folder, made if it is not there, or the address of a tracking server; `out/mlflow` by default.
    """
    require("mlflow", "--log mlflow")
    log = MlflowLog(out, _address(where or str(out / "mlflow")))
    log.check()
    try:
        yield log
    except KeyboardInterrupt:
        log.end("KILLED")
        raise
    except BaseException:
        log.end("FAILED")
        raise
    log.end("FINISHED")


def _address(where: str) -> str:
    """A tracking address: a folder holds a database."""
    return where if "://" in where else f"sqlite:///{Path(where).absolute() / 'mlflow.db'}"


@dataclass
class MlflowLog:
    """A watch that logs numbers with every round. If MLflow stops answering, it says so once and the run goes on."""

    out: Path
    address: str
    _run: str | None = None
    _waiting: list[Any] = field(default_factory=list)
    _broken: bool = False

    def check(self) -> None:
        """Raise an error if a server does not answer; a folder is not made yet, as it may be the run's own."""
        if self._folder is None:
            try:
                self._client().search_experiments(max_results=1)
            except Exception as error:  # whatever MLflow and what carries its messages raise
                raise UsageError(f"--log-to {self._shown}: {self._reason(error)}") from None

    def __call__(self, event: Event) -> None:
        """Take an event's numbers; log them when a round is finished."""
        if isinstance(event, RunStarted):
            self._try(self._start, event)
        if self._run is None:
            return
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        step = getattr(event, "round", 0)
        self._waiting += [Metric(_allowed(name), value, now, step) for name, value in numbers_in(event).items()]
        if isinstance(event, RoundFinished):
            self._try(self._send)

    def keep_files(self, *more: Path) -> None:
        """Keep what a finished run wrote, its model included, and other files, such as a report."""
        paths = [*(self.out / name for name in KEPT), *more]
        self._try(self._keep, [path for path in paths if path.exists()])

    def end(self, status: str) -> None:
        """Log the rest, and how the run ended."""
        self._try(self._end, status)

    def _try(self, act: Any, *arguments: Any) -> None:
        if self._broken:
            return
        try:
            act(*arguments)
        except Exception as error:
            self._broken = True
            logger.warning("MLflow (%s): %s; the run goes on without it", self._shown, self._reason(error))

    def _start(self, event: RunStarted) -> None:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        client, notes = self._client(), self.out / "mlflow.json"
        before = json.loads(notes.read_text(encoding="utf-8")) if notes.exists() else {}
        if before.get("address") in (self._shown, self.address):  # before 0.2, passwords stood there
            self._run = str(before["run"])
            client.update_run(self._run, status="RUNNING")
            return
        tags = {"harmofl.task": event.task, "harmofl.method": event.method}
        run = client.create_run(self._experiment(event.task), run_name=self.out.resolve().name, tags=tags)
        self._run = run.info.run_id
        write_whole(notes, json.dumps({"address": self._shown, "run": self._run}) + "\n")
        self._log_settings()

    def _experiment(self, task: str) -> str:
        client, name = self._client(), f"harmofl {task}"
        found = client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        place = None if self._folder is None else (self._folder / "files").as_uri()
        return str(client.create_experiment(name, artifact_location=place))

    def _log_settings(self) -> None:
        from mlflow.entities import Param

        values = flatten(read_toml(RunFolder(self.out).config))
        params = [Param(name, str(value)[:LONGEST_VALUE]) for name, value in values.items()]
        self._client().log_batch(self._run, params=params)

    def _send(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:MOST_METRICS], self._waiting[MOST_METRICS:]
            self._client().log_batch(self._run, metrics=batch)

    def _keep(self, paths: list[Path]) -> None:
        for path in paths:
            act = self._client().log_artifacts if path.is_dir() else self._client().log_artifact
            act(self._run, str(path), path.name if path.is_dir() else None)

    def _end(self, status: str) -> None:
        if self._run is not None:
            self._send()
            self._client().set_terminated(self._run, status)

    @property
    def _shown(self) -> str:
        """The address as it may stand in files and logs."""
        return hide_secrets(self.address, self.address)

    def _reason(self, error: Exception) -> str:
        line = _first_line(error)
        if "Max retries exceeded" in line:
            cause = NETWORK_ERROR.search(line)
            line = f"no MLflow server answers there ({cause[1] if cause else 'it was tried several times'})"
        return hide_secrets(line, self.address)

    @property
    def _folder(self) -> Path | None:
        return Path(self.address.removeprefix("sqlite:///")).parent if self.address.startswith("sqlite:") else None

    def _client(self) -> Any:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        for name in ("mlflow", "alembic"):  # they tell of tables that they make
            logging.getLogger(name).setLevel(logging.WARNING)
        logging.getLogger("urllib3").setLevel(logging.ERROR)  # of every attempt; the last one's error is told
        return MlflowClient(tracking_uri=self.address)


def secrets_in(address: str) -> list[str]:
    """The passwords, tokens and keys in an address, as written and as meant.

    >>> secrets_in("https://me:p%40ss@mlflow.example.org/?token=abc")
    ['p%40ss', 'abc', 'p@ss']
    """
    try:
        parts = urlsplit(address)
    except ValueError:  # whoever opens it will say so
        return []
    # A name without a password is a token.
    found = [parts.password or ("" if parts.password is not None else parts.username or "")]
    found += [value for name, value in parse_qsl(parts.query) if SECRET.search(name)]
    return list(dict.fromkeys(each for each in [*found, *map(unquote, found)] if each))


def hide_secrets(text: str, address: str) -> str:
    """A text without the passwords, tokens and keys of an address.

    >>> hide_secrets("no answer from http://me:pass@there:5000", "http://me:pass@there:5000")
    'no answer from http://me:***@there:5000'
    """
    for secret in sorted(secrets_in(address), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def _allowed(name: str) -> str:
    """A name with the characters that MLflow allows."""
    return re.sub(r"[^/\w.\- ]", "_", name)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
