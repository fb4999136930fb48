"""A run over a real network: the same server loop as in one process, with what the sites say of their images."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harmofl import registry
from harmofl.data.facts import DataFacts
from harmofl.deployment.audit import AuditedTransport, audit_log, user_name, write_entry
from harmofl.deployment.descriptions import combine_descriptions, in_words, is_description, outvote
from harmofl.deployment.engine import find_engine
from harmofl.deployment.kits import ServerKit
from harmofl.deployment.run_settings import AskedDigests
from harmofl.errors import RunError, UsageError
from harmofl.events import SitesAwaited, Watch, ignore
from harmofl.federation.messages import Reply, Request, settings_to_send
from harmofl.federation.participation import quorum
from harmofl.federation.training import run_federation
from harmofl.federation.transports import Transport, limit_replies
from harmofl.methods.method import Method
from harmofl.plugins import load_plugins, plugins_in
from harmofl.runs.folder import Record, RunFolder
from harmofl.settings import Settings, Tree, flatten, read_toml, resolve
from harmofl.settings.schema import AT_THE_SITES
from harmofl.tasks.data_facts import announce_images

logger = logging.getLogger(__name__)

NO_RUN = "0" * 32
LARGEST_DESCRIPTION = 2**24


@dataclass(frozen=True)
class RunSites:
    """The sites of one run; a site that has left the federation since is not asked."""

    transport: Transport
    names: Sequence[str]

    def sites(self, minimum: int, timeout: float) -> list[str]:
        """Wait for enough of them."""
        self.transport.sites(minimum, timeout)
        return list(self.names)

    def limit_replies(self, largest: int) -> None:
        """Refuse larger replies before they are read, if the engine can."""
        limit_replies(self.transport, largest)

    def ask(self, requests: Mapping[str, Request], timeout: float) -> Iterator[Reply]:
        """Ask the sites that are still in the federation."""
        registered = set(self.transport.sites(0, 0))
        yield from (Reply(site, error="no longer in the federation") for site in requests.keys() - registered)
        here = {site: request for site, request in requests.items() if site in registered}
        if here:
            yield from self.transport.ask(here, timeout)


@dataclass(frozen=True)
class RunOptions:
    """What to train, as the user asked for it: a task, a method, a preset, a file of settings, single settings."""

    task: str | None = None
    method: str | Method | None = None
    preset: str | None = None
    file: Tree = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Raise an error for settings that only a site, or only a run on one machine, can have."""
        values = flatten(self.file) | dict(self.given)
        for name in ("data.folder", "data.cache", "data.hold_out_site"):
            if values.get(name) not in (None, AT_THE_SITES):
                raise UsageError(f"{name} = {values[name]!r}: over a network, each site decides where its images are")

    def resolve(self, synthetic: bool) -> tuple[Settings, Method]:
        """Resolve the settings as for phantoms, or as for a folder of images whose place only the sites know."""
        where = {"data.folder": "" if synthetic else AT_THE_SITES}
        settings, method = resolve(self.task, self.method, self.preset, self.file, {**self.given, **where})
        if method.pooled:
            raise UsageError(f"{method.name} needs all images in one place and is not available over a network")
        return settings, method


def read_options(
    task: str | None,
    method: str | None,
    preset: str | None,
    config: Path | None,
    given: Mapping[str, Any],
    resumed: Path | None = None,
) -> RunOptions:
    """What is to be trained, from options and a settings file; the file of a run that is resumed is its own."""
    if resumed and config is None and RunFolder(resumed).config.exists():
        config = RunFolder(resumed).config
    file = read_toml(config) if config else {}
    load_plugins(plugins_in(file))
    return RunOptions(task, method, preset, file, given)


def coordinate(
    kit: ServerKit,
    options: RunOptions,
    out: Path,
    resume: bool = False,
    wait: float = 60.0,
    watch: Watch = ignore,
) -> Record:
    """Train over the network and return the summary; `wait`: seconds to wait for all sites, and then for a quorum."""
    check_run(options, out, resume)
    with kit.lock_runs(), find_engine(kit.federation.engine).connect(kit) as reached:
        wanted, _ = options.resolve(synthetic=False)
        transport = audited(kit.folder, reached, "deploy run", f"started: {out}", wanted)
        return run_over(transport, kit.federation.sites, options, out, resume, wait, watch)


def check_run(options: RunOptions, out: Path, resume: bool) -> None:
    """Raise the errors that need no site, before anyone waits for one."""
    options.check()
    options.resolve(synthetic=False)
    RunFolder(out).check_start(resume)


def run_over(
    transport: Transport,
    expected: Sequence[str],
    options: RunOptions,
    out: Path,
    resume: bool = False,
    wait: float = 60.0,
    watch: Watch = ignore,
) -> Record:
    """Train over any transport to the expected sites, whoever provisioned it, and return the summary."""
    wanted, _ = options.resolve(synthetic=False)
    names = wait_for_quorum(transport, expected, wanted, wait, watch)
    facts = DataFacts.read(RunFolder(out).data) if resume else ask_for_facts(options, wanted, transport, names)
    settings, method = options.resolve(facts.synthetic)
    announce_images(settings.data, watch)
    sites = RunSites(transport, facts.sites)
    return run_federation(settings, facts, method, out, resume, watch, transport=nullcontext(sites))


def audited(folder: Path, transport: Transport, asked: str, outcome: str, *wanted: Settings) -> AuditedTransport:
    """Write down who starts something at the server; return a transport that writes down what sites are asked.

    `folder`: the server's, in which its log is. `wanted`: the settings of the run, as hospitals approve them.
    """
    path = audit_log(folder)
    write_entry(path, who=user_name(), asked=asked, outcome=outcome)
    digest_of = AskedDigests(*wanted)
    return AuditedTransport(transport, path, lambda request: digest_of(request.settings))


def wait_for_quorum(
    transport: Transport, sites: Sequence[str], settings: Settings, seconds: float, watch: Watch
) -> list[str]:
    """Wait for all sites, and after a while for as many as make a quorum."""
    needed = quorum(settings.federation, len(sites))
    watch(SitesAwaited(tuple(sites)))
    try:
        return sorted(transport.sites(len(sites), seconds))
    except RunError as error:
        timeout = settings.federation.timeout
        logger.warning("%s; starting as soon as %d are connected (waiting at most %.0f s)", error, needed, timeout)
        return sorted(transport.sites(needed, timeout))


def ask_for_facts(options: RunOptions, wanted: Settings, transport: Transport, names: Sequence[str]) -> DataFacts:
    """Ask the sites what their images are like."""
    request = Request(NO_RUN, "describe", 0, settings=settings_to_send(wanted))
    limit_replies(transport, LARGEST_DESCRIPTION)
    replies = list(transport.ask(dict.fromkeys(names, request), wanted.federation.timeout))
    descriptions = {
        reply.site: reply.description for reply in replies if not reply.error and is_description(reply.description)
    }
    refused = {reply.site: reply.error or "no description" for reply in replies if reply.site not in descriptions}
    reasons = in_words(refused)
    if len(descriptions) < quorum(wanted.federation, len(names)):
        raise RunError(f"{len(descriptions)} of {len(names)} sites can take part ({reasons})")
    if refused:
        logger.warning("continuing without some sites: %s", reasons)
    agreeing, odd = outvote(descriptions, wanted.data.site_sizes == "smallest")
    if len(agreeing) < quorum(wanted.federation, len(names)):
        raise RunError(f"{len(agreeing)} of {len(names)} sites agree on what their images are like ({in_words(odd)})")
    if odd:
        logger.warning("leaving out sites whose images do not fit to the others': %s", in_words(odd))
    names = [name for name in names if name not in odd]
    synthetic = bool(next(iter(agreeing.values()))["synthetic"])
    settings, _ = options.resolve(synthetic)
    if synthetic:
        task = registry.tasks.find(settings.task)
        return DataFacts(True, tuple(names), task.phantom_channels(settings.data), task.classes)
    return combine_descriptions(agreeing, settings, names)
