"""Which runs a hospital has approved: one file for each set of settings, in its state folder."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harmofl.deployment.audit import user_name
from harmofl.deployment.kits import SiteKit
from harmofl.deployment.run_settings import SMALLEST, approved_values, digests, unusual
from harmofl.documents import read_json
from harmofl.errors import RefusalError, UsageError
from harmofl.files import write_whole
from harmofl.methods.method import Method
from harmofl.settings import Settings

MOST_WAITING = 100
"""Sets of settings that wait for a person; of more, nothing is written down."""
POLICY = "the hospital's policy"


@dataclass(frozen=True)
class Approvals:
    """The approvals of one hospital."""

    kit: SiteKit

    @property
    def folder(self) -> Path:
        """Where they are."""
        return self.kit.state("approvals")

    def admit(self, run: str | None, settings: Settings, method: Method) -> str:
        """Return the digest under which a run is approved; refuse it if it is not, or if it is one run too many.

        `run`: its name; None before it has one, when the server asks what the images are like.
        """
        found, asked = self.digest(settings), settings
        if not self.is_approved(found) or self._approval(found)["by"] == POLICY:  # which may have changed since
            found, asked, reason = self._ask_policy(settings, method)
            if reason:
                self._path(found).unlink(missing_ok=True)
                self._ask(found, asked)
                raise RefusalError(
                    f"it waits for the hospital's approval ({reason}): `harmofl deploy approve {found}` there"
                )
            self.approve(found, self.kit.settings.policy.runs, POLICY)
        if run is not None:
            self._count(found, run)
        return found

    def digest(self, settings: Settings) -> str:
        """The digest under which settings are approved; if they are not, their own."""
        known = digests(settings)
        return next((digest for digest in known if self.is_approved(digest)), known[0])

    def _ask_policy(self, settings: Settings, method: Method) -> tuple[str, Settings, str]:
        """The digest of settings and these as the policy sees them, and why a person has to decide, if one has to.

        A number of images that the policy does not allow may be what "smallest" came to, which it may.
        """
        readings = [settings]
        if type(settings.data.site_sizes) is int:
            readings.append(settings.with_values("data", site_sizes=SMALLEST))
        readings.sort(key=lambda reading: not self.is_approved(digests(reading)[0]))
        reasons = [self._why_not(reading, method) for reading in readings]
        chosen = reasons.index("") if "" in reasons else 0
        return digests(readings[chosen])[0], readings[chosen], reasons[chosen]

    def _why_not(self, settings: Settings, method: Method) -> str:
        """Why a person has to decide; empty if the hospital's policy does."""
        policy, values = self.kit.settings.policy, approved_values(settings)
        if policy.approval == "none":
            return ""
        if policy.approval == "ask":
            return "every run does"
        odd = [name for name in unusual(settings, method) if not policy.permits(name, values[name])]
        listed = ", ".join(f"{name} = {values[name]}" for name in sorted(odd))
        return f"its policy does not allow {listed}" if odd else ""

    def is_approved(self, digest: str) -> bool:
        """Whether settings are approved."""
        return self._path(digest).exists()

    def _path(self, digest: str) -> Path:
        return self.folder / f"{digest}.approved.json"

    def _approval(self, digest: str) -> dict[str, Any]:
        """Who approved settings, and for how many runs."""
        try:
            content = read_json(self._path(digest))
            return {"by": str(content["by"]), "runs": int(content["runs"])}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RefusalError(f"what it noted of the approval {digest} is damaged") from error

    def approve(self, digest: str, runs: int, by: str = "") -> None:
        """Approve settings for so many runs."""
        content = {"by": by or user_name(), "at": time.strftime("%FT%TZ", time.gmtime()), "runs": runs}
        write_whole(self._path(digest), json.dumps(content) + "\n")

    def refuse(self, beginning: str) -> str:
        """Forget settings, and their approval, by the beginning of their digest; return all of it."""
        known = sorted({path.name.partition(".")[0] for path in self.folder.glob("*.json")})
        matching = [digest for digest in known if digest.startswith(beginning)]
        if len(matching) != 1:
            raise UsageError(f"{beginning!r}: waiting or approved here: {', '.join(known) or 'nothing'}")
        for path in self.folder.glob(f"{matching[0]}.*json"):
            path.unlink()
        return matching[0]

    def waiting(self) -> dict[str, Mapping[str, Any]]:
        """The settings that wait for approval, by digest."""
        files = sorted(self.folder.glob("*.asked.json"))
        unread = {path.name.partition(".")[0]: path for path in files}
        return {digest: _read_asked(path) for digest, path in unread.items() if not self.is_approved(digest)}

    def _ask(self, digest: str, settings: Settings) -> None:
        path = self.folder / f"{digest}.asked.json"
        if not path.exists() and len(list(self.folder.glob("*.asked.json"))) < MOST_WAITING:
            write_whole(path, json.dumps(settings.model_dump(mode="json")) + "\n")

    def _count(self, digest: str, run: str) -> None:
        """Refuse a run beyond those that were approved: each could score a few models more."""
        path = self.folder / f"{digest}.runs.json"
        started = read_json(path) if path.exists() else []
        if run in started:
            return
        most = self._approval(digest)["runs"]
        if len(started) >= most:
            raise RefusalError(f"{most} runs with these settings were approved, and as many were started ({digest})")
        write_whole(path, json.dumps([*started, run]) + "\n")


def _read_asked(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
        if isinstance(content, dict):
            return content
    except (OSError, ValueError):
        pass
    raise UsageError(f"{path} is damaged: delete it, and the run will ask again")
