"""Why a site is not connected: what `harmofl deploy check` would find, for the site's own log."""

from __future__ import annotations

import logging
import threading
import time

from harmofl.deployment.engine import find_engine
from harmofl.deployment.kits import SiteKit
from harmofl.deployment.logs import name_cause

logger = logging.getLogger(__name__)

PAUSE = 60.0
"""Seconds between two explanations."""


def explain_absence(kit: SiteKit) -> str:
    """The first thing that is wrong with the site's certificates, its clock or the way to the server; or nothing."""
    try:
        for finding in find_engine(kit.federation.engine).check_site(kit):
            if not finding.ok:
                return f"{finding.what} ({finding.hint})" if finding.hint else finding.what
    except Exception as error:
        return f"the reason cannot be found: {name_cause(error)}"
    return ""


class Absence:
    """Explains in the log why a site is away: not more often than once a minute, and without holding anybody up."""

    def __init__(self, kit: SiteKit) -> None:
        self._kit = kit
        self._explained_at = -PAUSE

    def explain(self) -> None:
        """Look for the reason in the background, and log it."""
        if time.monotonic() - self._explained_at < PAUSE:
            return
        self._explained_at = time.monotonic()
        threading.Thread(target=self._explain, name="harmofl-absence", daemon=True).start()

    def _explain(self) -> None:
        reason = explain_absence(self._kit)
        if reason:
            logger.warning("%s: not connected: %s", self._kit.name, reason)
