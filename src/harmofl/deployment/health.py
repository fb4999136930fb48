"""Whether a party is well: what `/health` and `/metrics` say. It names no image, no patient and no path of data."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harmofl.deployment.approvals import Approvals
from harmofl.deployment.engine import find_engine
from harmofl.deployment.figures import AuditReader
from harmofl.deployment.kits import ServerKit, SiteKit
from harmofl.deployment.prometheus import Metric, counter, gauge
from harmofl.deployment.status import Status, read_status
from harmofl.version import __version__

LEAST_SPACE = 2**30
"""Bytes below which a disk is nearly full."""


@dataclass
class Health:
    """Looks at a party's folder, whenever somebody asks."""

    kit: ServerKit | SiteKit
    _log: AuditReader = field(init=False)

    def __post_init__(self) -> None:
        self._log = AuditReader(self.kit.folder)

    def report(self) -> dict[str, Any]:
        """The answer to `/health`."""
        figures, status = self._log.figures(), self.status()
        problems = list(self.problems())
        return {
            "ok": not problems,
            "problems": problems,
            "party": self.party,
            "engine": self.kit.federation.engine,
            "version": __version__,
            "running": True,
            "connected": list(status.connected),
            "since": status.since,
            "last_run": figures.last_run,
            "last_round": figures.last_round,
            "last_answer": figures.last_answer,
            "last_error": figures.last_error,
            "disk_free_bytes": self.free_bytes(),
        }

    def metrics(self) -> str:
        """The answer to `/metrics`, in Prometheus' text format."""
        figures, well = self._log.figures(), not list(self.problems())
        about = {"party": self.party, "engine": self.kit.federation.engine, "version": __version__}
        metrics = [
            gauge("info", "Which party this is.", 1, **about),
            gauge("healthy", "1 if /health finds no problem.", well),
            gauge("connected", "Sites connected; at a site, 1 if it is.", len(self.status().connected)),
            gauge("disk_free_bytes", "Space left where the party's folder is.", self.free_bytes()),
            gauge("last_round", "The last round of training that was answered.", figures.last_round),
            counter("rounds_total", "Rounds of training that were answered.", figures.rounds),
            counter("refusals_total", "Requests, messages and strangers refused.", figures.refusals),
            counter("received_bytes_total", "Bytes of models and messages received.", figures.received),
            counter("sent_bytes_total", "Bytes of models and messages sent.", figures.sent),
        ]
        for (asked, outcome), number in sorted(figures.answers.items()):
            metrics.append(counter("answers_total", "Answers, by outcome.", number, asked=asked, outcome=outcome))
        for asked, seconds in sorted(figures.seconds.items()):
            metrics.append(counter("answer_seconds_total", "Seconds until answers were there.", seconds, asked=asked))
        return "".join(Metric.lines([*metrics, *self._own_metrics()]))

    def _own_metrics(self) -> Iterator[Metric]:
        from harmofl.deployment.tls.certificates import read_validity

        for path in self._certificates():
            ends = read_validity(path).ends.timestamp()
            yield gauge("certificate_ends_seconds", "When a certificate expires (Unix time).", ends, file=path.name)
        if isinstance(self.kit, SiteKit):
            yield gauge("approvals_waiting", "Runs that wait for approval here.", len(Approvals(self.kit).waiting()))
        else:
            sites = len(ServerKit.open(self.kit.folder).federation.sites)
            yield gauge("sites", "Sites in the federation.", sites)

    @property
    def party(self) -> str:
        """The site's name, or "server"."""
        return self.kit.name if isinstance(self.kit, SiteKit) else "server"

    def status(self) -> Status:
        """Who is connected, as far as is known."""
        return read_status(self.kit.folder) or Status()

    def problems(self) -> Iterator[str]:
        """What somebody should look at, one line each."""
        status = self.status()
        if isinstance(self.kit, SiteKit) and not status.connected:
            yield f"not connected: {status.error}" if status.error else "not connected"
        yield from self.troubles()

    def troubles(self) -> Iterator[str]:
        """Problems of this machine: its disk, its certificates, its clock."""
        from harmofl.deployment.tls.checks import check_certificate

        if self.free_bytes() < LEAST_SPACE:
            yield f"the disk is nearly full: {self.free_bytes() // 2**20} MB are free"
        for path in self._certificates():
            finding = check_certificate(path, path.name)
            if not finding.ok:
                yield f"{finding.what}; {finding.hint}"

    def free_bytes(self) -> int:
        """Space left on the party's disk."""
        return shutil.disk_usage(self.kit.folder).free

    def _certificates(self) -> list[Path]:
        from harmofl.deployment.tls.certificates import certificate_files

        enrollment = find_engine(self.kit.federation.engine).enrollment
        return certificate_files((self.kit.folder / enrollment.authority).parent) if enrollment else []
