"""A run over a real network: the same server loop as in one process, with what the sites say of their images."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harmofl.data.classes import Classes
from harmofl.deployment.engine import find_engine
from harmofl.deployment.kits import ServerKit
from harmofl.errors import RunError, UsageError
from harmofl.events import ImagesChosen, SitesAwaited, Watch, ignore
from harmofl.federation.messages import Reply, Request, as_sent
from harmofl.federation.server import quorum
from harmofl.federation.training import run_federation
from harmofl.federation.transports import Transport
from harmofl.methods.method import Method
from harmofl.runs.folder import Record, RunFolder
from harmofl.settings import Settings, Tree, flatten, read_toml, resolve

logger = logging.getLogger(__name__)

AT_THE_SITES = "at the sites"
"""Stands for the folder while settings are put together, as presets have other values for folders than for phantoms."""
FOUND_AT_SITES = ("sites", "channels", "classes", "site_sizes")
NO_RUN = "0" * 32
MOST_CHANNELS, MOST_CLASSES, LONGEST_NAME = 1024, 1024, 100


@dataclass(frozen=True)
class Members:
    """The sites of one run: a site that has left the federation since is asked for nothing."""

    transport: Transport
    names: Sequence[str]

    def sites(self, minimum: int, timeout: float) -> list[str]:
        """Wait for enough of them."""
        self.transport.sites(minimum, timeout)
        return list(self.names)

    def ask(self, requests: Mapping[str, Request], timeout: float) -> Iterator[Reply]:
        """Ask those that are in the federation."""
        registered = set(self.transport.sites(0, 0))
        yield from (Reply(site, error="no longer in the federation") for site in requests.keys() - registered)
        here = {site: request for site, request in requests.items() if site in registered}
        if here:
            yield from self.transport.ask(here, timeout)


@dataclass(frozen=True)
class Wish:
    """What is to be trained, as it was asked for."""

    task: str | None = None
    method: str | Method | None = None
    preset: str | None = None
    file: Tree = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Where images lie is each site's own to say, and a site that takes no part has none here."""
        values = flatten(self.file) | dict(self.given)
        for name in ("data.folder", "data.cache", "data.hold_out_site"):
            if values.get(name) is not None:
                raise UsageError(f"{name} = {values[name]!r}: over a network only each site says where its images lie")

    def resolved(self, synthetic: bool) -> tuple[Settings, Method]:
        """The settings as for a folder, which is not told, or as for phantoms."""
        where = {} if synthetic else {"data.folder": AT_THE_SITES}
        settings, method = resolve(self.task, self.method, self.preset, self.file, {**self.given, **where})
        if method.pooled:
            raise UsageError(f"{method.name} needs all images in one place and is not available over a network")
        return settings.with_values("data", folder=None), method


def coordinate(
    kit: ServerKit,
    wish: Wish,
    out: Path,
    resume: bool = False,
    wait: float = 60.0,
    watch: Watch = ignore,
) -> Record:
    """Train over the network and return the summary; `wait`: seconds for all sites, after which the quorum will do."""
    wish.check()
    wanted, _ = wish.resolved(synthetic=False)
    if resume:  # or an error, before anyone waits
        begun_with(out)
    else:
        RunFolder(out).check_unused()
    with kit.lock_runs(), find_engine(kit.federation.engine).connect(kit) as transport:
        names = wait_for(transport, kit.federation.sites, wanted, wait, watch)
        settings, method = as_begun(wish, out) if resume else agreed(wish, wanted, transport, names)
        watch(ImagesChosen(settings.data.images_used))
        members = Members(transport, settings.data.sites or names)
        return run_federation(settings, method, out, resume, watch, transport=nullcontext(members))


def wait_for(transport: Transport, sites: Sequence[str], settings: Settings, seconds: float, watch: Watch) -> list[str]:
    """All sites, or after a while as many as make a quorum."""
    needed = quorum(settings, len(sites))
    watch(SitesAwaited(tuple(sites)))
    try:
        return sorted(transport.sites(len(sites), seconds))
    except RunError as error:
        timeout = settings.federation.timeout
        logger.warning("%s; going on as soon as %d are there (waiting for %.0f s at most)", error, needed, timeout)
        return sorted(transport.sites(needed, timeout))


def begun_with(out: Path) -> Mapping[str, Any]:
    """The settings of a run to go on with."""
    config = RunFolder(out).config
    if not config.exists():
        raise UsageError(f"{out} holds no run to resume: leave out --resume to start one")
    return flatten(read_toml(config))


def as_begun(wish: Wish, out: Path) -> tuple[Settings, Method]:
    """The settings as they were; what the sites said of their images stands in the run's configuration."""
    before = begun_with(out)
    settings, method = wish.resolved(synthetic="data.channels" not in before)
    known = {name: before[f"data.{name}"] for name in FOUND_AT_SITES if f"data.{name}" in before}
    return settings.with_values("data", **known), method


def agreed(wish: Wish, wanted: Settings, transport: Transport, names: Sequence[str]) -> tuple[Settings, Method]:
    """Ask the sites what their images are like, and put that into the settings."""
    request = Request(NO_RUN, "describe", 0, settings=as_sent(wanted))
    replies = list(transport.ask(dict.fromkeys(names, request), wanted.federation.timeout))
    told = {reply.site: reply.description for reply in replies if not reply.error and is_description(reply.description)}
    refused = {reply.site: reply.error or "no description" for reply in replies if reply.site not in told}
    reasons = "; ".join(f"{site}: {reason}" for site, reason in sorted(refused.items()))
    if len(told) < quorum(wanted, len(names)):
        raise RunError(f"{len(told)} of {len(names)} sites can take part ({reasons})")
    if refused:
        logger.warning("going on without some sites: %s", reasons)
    synthetic = same("their images being synthetic", {site: words["synthetic"] for site, words in told.items()})
    settings, method = wish.resolved(synthetic)
    found = {"sites": list(names)} | ({} if synthetic else found_by(told, settings))
    return settings.with_values("data", **found), method


def is_description(values: Mapping[str, Any]) -> bool:
    """Whether a site's words are of the kinds that they should be."""
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


def found_by(told: Mapping[str, Mapping[str, Any]], settings: Settings) -> dict[str, Any]:
    """What the images of all sites together decide."""
    channels = same("channels", {site: description["channels"] for site, description in told.items()})
    sizes = settings.data.site_sizes
    smallest = min(description["num_train"] for description in told.values())
    return {
        "channels": channels,
        "classes": settings.data.classes or joined_classes([description["classes"] for description in told.values()]),
        "site_sizes": smallest if sizes == "smallest" else sizes,
    }


def same(what: str, values: Mapping[str, Any]) -> Any:
    """The one value that all sites have."""
    if len(set(values.values())) > 1:
        told = ", ".join(f"{site} {value}" for site, value in sorted(values.items()))
        hint = "; data.color = 'rgb' or 'grey' makes them alike" if what == "channels" else ""
        raise RunError(f"the sites differ in {what}: {told}{hint}")
    return next(iter(values.values()))


def joined_classes(named: Sequence[Sequence[str]]) -> list[str]:
    """All sites' classes; 0 and 1 at one site are 0 and 255 at another."""
    if all(len(names) == 2 and names[0] == "0" and names[1] in ("1", "255") for names in named):
        return ["0", min(names[1] for names in named)]
    return list(Classes.of_labels({name for names in named for name in names}, None).names)
