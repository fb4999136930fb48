"""A run over a real network: the same server loop as in one process, with what the sites say of their images."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harmofl import registry
from harmofl.data.classes import Classes
from harmofl.data.facts import DataFacts
from harmofl.deployment.engine import find_engine
from harmofl.deployment.kits import ServerKit
from harmofl.errors import RunError, UsageError
from harmofl.events import ImagesChosen, SitesAwaited, Watch, ignore
from harmofl.federation.messages import Reply, Request, settings_to_send
from harmofl.federation.sites import quorum
from harmofl.federation.training import run_federation
from harmofl.federation.transports import Transport
from harmofl.methods.method import Method
from harmofl.plugins import load_plugins, plugins_in
from harmofl.runs.folder import Record, RunFolder
from harmofl.settings import Settings, Tree, flatten, read_toml, resolve
from harmofl.settings.schema import AT_THE_SITES

logger = logging.getLogger(__name__)

NO_RUN = "0" * 32
MOST_CHANNELS, MOST_CLASSES, LONGEST_NAME = 1024, 1024, 100


@dataclass(frozen=True)
class RunSites:
    """The sites of one run; a site that has left the federation since is not asked."""

    transport: Transport
    names: Sequence[str]

    def sites(self, minimum: int, timeout: float) -> list[str]:
        """Wait for enough of them."""
        self.transport.sites(minimum, timeout)
        return list(self.names)

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
    options.check()
    wanted, _ = options.resolve(synthetic=False)
    RunFolder(out).check_start(resume)  # or an error, before anyone waits
    with kit.lock_runs(), find_engine(kit.federation.engine).connect(kit) as transport:
        names = wait_for_quorum(transport, kit.federation.sites, wanted, wait, watch)
        facts = DataFacts.read(RunFolder(out).data) if resume else ask_for_facts(options, wanted, transport, names)
        settings, method = options.resolve(facts.synthetic)
        watch(ImagesChosen(settings.data.images_used))
        sites = RunSites(transport, facts.sites)
        return run_federation(settings, facts, method, out, resume, watch, transport=nullcontext(sites))


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
    replies = list(transport.ask(dict.fromkeys(names, request), wanted.federation.timeout))
    descriptions = {
        reply.site: reply.description for reply in replies if not reply.error and is_description(reply.description)
    }
    refused = {reply.site: reply.error or "no description" for reply in replies if reply.site not in descriptions}
    reasons = "; ".join(f"{site}: {reason}" for site, reason in sorted(refused.items()))
    if len(descriptions) < quorum(wanted.federation, len(names)):
        raise RunError(f"{len(descriptions)} of {len(names)} sites can take part ({reasons})")
    if refused:
        logger.warning("continuing without some sites: %s", reasons)
    synthetic = common_value(
        "their images being synthetic", {site: words["synthetic"] for site, words in descriptions.items()}
    )
    settings, _ = options.resolve(synthetic)
    if synthetic:
        task = registry.tasks.find(settings.task)
        return DataFacts(True, tuple(names), task.phantom_channels(settings.data), task.classes)
    return combine_descriptions(descriptions, settings, names)


def is_description(values: Mapping[str, Any]) -> bool:
    """Whether a site's description has the fields and types that it should have."""
    if values.get("synthetic") is True:
        return True
    channels, classes, num_train = (values.get(name) for name in ("channels", "classes", "num_train"))
    return (
        values.get("synthetic") is False
        and (type(channels) is int and 0 < channels <= MOST_CHANNELS)
        and (type(num_train) is int and 0 < num_train < 2**31)
        and (isinstance(classes, list) and len(classes) <= MOST_CLASSES)
        and all(isinstance(name, str) and len(name) < LONGEST_NAME and name.isprintable() for name in classes)
    )


def combine_descriptions(
    descriptions: Mapping[str, Mapping[str, Any]], settings: Settings, names: Sequence[str]
) -> DataFacts:
    """Decide what depends on the images of all sites together."""
    classes = settings.data.classes or join_classes([description["classes"] for description in descriptions.values()])
    channels = {site: description["channels"] for site, description in descriptions.items()}
    return DataFacts(
        synthetic=False,
        sites=tuple(names),
        channels=common_value("channels", channels),
        classes=tuple(classes),
        smallest_site=min(description["num_train"] for description in descriptions.values()),
    )


def common_value(what: str, values: Mapping[str, Any]) -> Any:
    """Return the one value that all sites have, or raise an error."""
    if len(set(values.values())) > 1:
        listed = ", ".join(f"{site} {value}" for site, value in sorted(values.items()))
        hint = "; data.color = 'rgb' or 'grey' makes them alike" if what == "channels" else ""
        raise RunError(f"the sites differ in {what}: {listed}{hint}")
    return next(iter(values.values()))


def join_classes(named: Sequence[Sequence[str]]) -> list[str]:
    """Return all sites' classes; 0 and 1 at one site are 0 and 255 at another."""
    if all(len(names) == 2 and names[0] == "0" and names[1] in ("1", "255") for names in named):
        return ["0", min(names[1] for names in named)]
    return list(Classes.of_labels({name for names in named for name in names}, None).names)
