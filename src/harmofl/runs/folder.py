"""What a run writes and reads: a folder with its configuration, records, checkpoints, model and summary."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harmofl.data.facts import DataFacts
from harmofl.displays.profiling import part
from harmofl.documents import read_json
from harmofl.errors import UsageError, describe
from harmofl.files import claim, remove_parts, sync_folder, write_whole
from harmofl.runs.live_samples import LiveSamples
from harmofl.runs.store import CorruptVersionError, Store
from harmofl.settings import Settings, differences, read_toml

logger = logging.getLogger(__name__)

Record = dict[str, Any]
RUN = re.compile(r"[0-9a-f]{32}")


def digest_of(text: str) -> str:
    """The SHA-256 of some text."""
    return hashlib.sha256(text.encode()).hexdigest()


def read_identifier(path: Path) -> str:
    """The run's name in a file; empty if it is missing or damaged. Files of before 0.2 have no checksum."""
    try:
        values = read_json(path)
        found, checksum = values["run"], values.get("sha256")
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return ""
    whole = isinstance(found, str) and RUN.fullmatch(found) and set(values) <= {"run", "sha256"}
    return found if whole and checksum in (None, digest_of(found)) else ""


class RunFolder:
    """One run's folder. Only one process may write to it at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = Store(path / "checkpoint")
        self._lock: int | None = None
        self._records_digest = hashlib.sha256()

    @property
    def config(self) -> Path:
        """Every setting, resolved."""
        return self.path / "config.toml"

    @property
    def data(self) -> Path:
        """What was found in the images."""
        return self.path / "data.json"

    @property
    def records(self) -> Path:
        """One JSON object a line."""
        return self.path / "records.jsonl"

    @property
    def summary(self) -> Path:
        """The scores; a folder with it holds a finished run."""
        return self.path / "summary.json"

    @property
    def failure(self) -> Path:
        """Why the run could not go on, while it has not been resumed."""
        return self.path / "failure.txt"

    @property
    def live(self) -> Path:
        """What the sites have answered in the round that is under way."""
        return self.path / ".live.json"

    @property
    def samples(self) -> LiveSamples:
        """What the newest model finds on an image of each site, while the run's process is there."""
        return LiveSamples(self.path / ".samples")

    @property
    def profile(self) -> Path:
        """Where the time went, if that was measured."""
        return self.path / "profile.json"

    @property
    def profile_parts(self) -> Path:
        """What each process of the run has measured, while the run is under way."""
        return self.path / ".profile"

    @property
    def lock(self) -> Path:
        """Locked while a process writes here."""
        return self.path / ".lock"

    @property
    def model(self) -> Path:
        """The selected model."""
        return self.path / "model"

    def site_store(self, site: str) -> Store:
        """What a site keeps between rounds."""
        return Store(self.path / "checkpoint" / "sites" / site)

    def begin(self, settings: Settings, facts: DataFacts, resume: bool) -> str:
        """Claim the folder for a new run, or for one that is resumed; return the run's identifier."""
        check = partial(self._check_resumable, settings, facts) if resume else self._check_unused
        try:
            check()
            self.path.mkdir(parents=True, exist_ok=True)
            self._claim()
            check()  # again, as another process may have been here between
            remove_parts(self.path)
            self.failure.unlink(missing_ok=True)
            if not resume:
                write_whole(self.config, settings.to_toml())
            if not self.data.exists():
                facts.write(self.data)
            return self._identifier()
        except OSError as error:
            self.release()
            raise UsageError(f"--out {self.path}: {error.strerror or error}") from error
        except UsageError:
            self.release()
            raise

    def check_start(self, resume: bool) -> None:
        """Raise an error if no run can be started here, or none resumed; the folder is not claimed yet."""
        try:
            if not resume:
                self._check_unused()
            elif not self.config.exists():
                raise UsageError(f"{self.path} holds no run to resume: leave out --resume to start one")
        except OSError as error:
            raise UsageError(f"--out {self.path}: {error.strerror or error}") from error

    def check_free(self) -> None:
        """Raise an error if another process writes here; the folder is not claimed yet."""
        self._claim()
        self.release()

    def _check_unused(self) -> None:
        """Raise an error if the folder holds anything but hidden files, such as the lock that a killed run leaves."""
        if self.path.is_dir() and any(not path.name.startswith(".") for path in self.path.iterdir()):
            reason = "already holds a run: add --resume to continue it, or" if self.config.exists() else "is not empty:"
            raise UsageError(f"{self.path} {reason} choose another --out")

    def _check_resumable(self, settings: Settings, facts: DataFacts) -> None:
        self.check_start(resume=True)
        try:
            before = Settings.model_validate(read_toml(self.config))
        except ValidationError as error:
            raise UsageError(f"{self.config}: {describe(error)}") from None
        changed = differences(before, settings)
        if changed:
            raise UsageError(
                f"{self.path} was started with other settings ({', '.join(changed)}): "
                f"resume with {self.config}, or choose another --out"
            )
        if self.data.exists() and (what := facts.difference(DataFacts.read(self.data))):
            raise UsageError(f"{self.path}: the {what} have changed since the run began")

    def _claim(self) -> None:
        self._lock = claim(self.lock, f"{self.path} is in use by another process")

    def release(self) -> None:
        """Let another process write here."""
        if self._lock is not None:
            with suppress(OSError):
                self.live.unlink(missing_ok=True)
            self.samples.remove()
            os.close(self._lock)
            self._lock = None

    def _identifier(self) -> str:
        """The run's name, by which sites over a network know it; it stands in two files, should one be damaged."""
        files = [self.path / "checkpoint" / name for name in ("run.json", "run-copy.json")]
        known = [read_identifier(path) for path in files]
        if not any(known) and any(path.exists() for path in files):
            raise UsageError(f"{files[0]} and its copy are damaged: sites no longer know which run this is")
        identifier = next(filter(None, known), None) or uuid.uuid4().hex
        for path, found in zip(files, known, strict=True):
            if found != identifier:
                if path.exists():
                    logger.warning("%s was damaged, and is written again", path)
                write_whole(path, json.dumps({"run": identifier, "sha256": digest_of(identifier)}) + "\n")
        return identifier

    def append(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Add records and see them on disk before anything refers to them."""
        is_new = not self.records.exists()
        lines = "".join(json.dumps(record) + "\n" for record in records).encode()
        with part("checkpoint"), self.records.open("ab") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        self._records_digest.update(lines)
        if is_new:
            sync_folder(self.path)

    @property
    def records_checksum(self) -> str:
        """The SHA-256 of all records so far."""
        return self._records_digest.hexdigest()

    def keep_records(self, count: int, checksum: str = "") -> None:
        """Drop what was recorded after a checkpoint: it will be recorded again.

        `checksum`: what those that are kept had then; empty if it was not noted.
        """
        lines = self.records.read_bytes().splitlines(keepends=True) if self.records.exists() else []
        if len(lines) < count:
            raise CorruptVersionError(f"{self.records}: {len(lines)} records, but the checkpoint knows of {count}")
        content = b"".join(lines[:count])
        digest = hashlib.sha256(content)
        if checksum and digest.hexdigest() != checksum:
            raise CorruptVersionError(f"{self.records}: damaged, or changed since they were written")
        write_whole(self.records, content)
        self._records_digest = digest

    def read_summary(self) -> Record:
        """The summary of a finished run."""
        try:
            summary: Record = read_json(self.summary)
        except ValueError as error:
            raise UsageError(f"{self.summary} is damaged: {error}") from None
        return summary

    def fail(self, problem: str) -> None:
        """Write why the run cannot go on, if that can still be written."""
        with suppress(OSError):
            write_whole(self.failure, f"{problem}\n")

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary: from now on the run is done."""
        write_whole(self.path / "checkpoint" / "records.sha256", self.records_checksum + "\n")
        write_whole(self.summary, json.dumps(summary, indent=2) + "\n")
