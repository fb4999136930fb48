"""Surveys over a network: the server asks every site what its images are like, before training."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from harmofl.analysis.survey import Survey, read_survey
from harmofl.deployment.coordinator import NO_RUN, RunOptions, ask_for_facts, audited, wait_for_quorum
from harmofl.deployment.engine import find_engine
from harmofl.deployment.kits import ServerKit
from harmofl.errors import RunError
from harmofl.events import Watch, ignore
from harmofl.federation.messages import Request, settings_to_send
from harmofl.federation.transports import Transport
from harmofl.settings import Settings
from harmofl.tasks.data_facts import announce_images

logger = logging.getLogger(__name__)


def ask_for_surveys(
    kit: ServerKit, options: RunOptions, wait: float = 60.0, watch: Watch = ignore, as_scanned: bool = False
) -> tuple[Settings, dict[str, Survey]]:
    """At the server: ask every site; return the settings of a run, and what the sites tell.

    `as_scanned`: of volumes of their own spacing, not of one.
    """
    options.check()
    wanted, _ = options.resolve(synthetic=False)
    with kit.lock_runs(), find_engine(kit.federation.engine).connect(kit) as reached:
        transport = audited(kit.folder, reached, "deploy compare, or plan", "started")
        names = wait_for_quorum(transport, kit.federation.sites, wanted, wait, watch)
        facts = ask_for_facts(options, wanted, transport, names)
        settings = facts.complete(options.resolve(facts.synthetic)[0])
        announce_images(settings.data, watch)
        asked = settings.with_values("data", spacing=None) if as_scanned else settings
        return settings, collect_surveys(asked, transport, facts.sites)


def collect_surveys(settings: Settings, transport: Transport, names: Sequence[str]) -> dict[str, Survey]:
    """Ask for surveys; a site that tells nothing is named, and all is well while two remain."""
    request = Request(NO_RUN, "survey", 0, settings=settings_to_send(settings))
    surveys: dict[str, Survey] = {}
    refused: dict[str, str] = {}
    for reply in transport.ask(dict.fromkeys(names, request), settings.federation.timeout):
        survey = None if reply.error else read_survey(reply.description)
        if survey is None:
            refused[reply.site] = reply.error or "its survey cannot be read"
        else:
            surveys[reply.site] = survey
    _mention(refused)
    if not surveys:
        raise RunError(f"no site told anything of its images ({_reasons(refused)})")
    return dict(sorted(surveys.items()))


def _mention(refused: Mapping[str, str]) -> None:
    if refused:
        logger.warning("without some sites: %s", _reasons(refused))


def _reasons(refused: Mapping[str, str]) -> str:
    return "; ".join(f"{site}: {reason}" for site, reason in sorted(refused.items()))
