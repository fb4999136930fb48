"""What an engine is: the one thing that the rest of this package knows of Flower, NVIDIA FLARE or anything else."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from harmofl import registry
from harmofl.deployment.app_options import AppOptions
from harmofl.deployment.enrollment import Enrollment
from harmofl.deployment.kits import Federation, ServerKit, SiteKit
from harmofl.errors import RunError, UsageError
from harmofl.federation.transports import Transport

NOT_CONNECTED = "not connected"
TOO_LATE = "no answer within federation.timeout"
LOOK_EVERY = 0.25


@dataclass(frozen=True)
class Finding:
    """One thing that `harmofl deploy check` looked at.

    `ok`: whether it is in order; `what`: one line about it; `hint`: what to do, if anything.
    """

    ok: bool
    what: str
    hint: str = ""


def nothing_to_check(kit: ServerKit | SiteKit) -> Iterable[Finding]:
    """Find nothing."""
    return ()


def no_port(federation: Federation) -> int | None:
    """Open no port."""
    return None


def no_paths(names: Sequence[str]) -> Sequence[str]:
    """Keep no files of a site."""
    return ()


def deferred(path: str) -> Callable[..., Any]:
    """A function of another module, "module:function", which is imported when it is first called.

    With it, an engine can be looked up where the package that it needs is not installed.
    """

    def call(*arguments: Any) -> Any:
        module, _, name = path.partition(":")
        return getattr(import_module(module), name)(*arguments)

    return call


@dataclass(frozen=True)
class Engine:
    """Carries bytes between the server and the sites; what they mean, it does not know.

    Four functions are the engine's own; everything else has a default, and docs/extending.md has a whole engine.

    Args:
        name: what users call it, on the command line and in federation.toml.
        title: what messages call it.
        provision: `(federation, folder)`: adds the engine's files and credentials to `folder/server` and to
            `folder/sites/NAME` of those of `federation.sites` that have none yet; what is there stays.
        serve: `(kit)`: runs the server's side until it is stopped (`harmofl.deployment.processes.stoppable`).
        join: `(kit)`: runs a site's side until it is stopped, and answers requests with `Participant(kit).answer`.
        connect: `(kit)`: a context manager that gives `harmofl deploy run`, on the server's machine, a `Transport` to
            the sites; it raises a `RunError` if the server is not running.

    >>> from harmofl import registry
    >>> flower = registry.engines.find("flower")
    >>> flower.title, flower.credentials, flower.read_address("fl.example.org")
    ('Flower', 'keys', 'fl.example.org:8443')
    """

    name: str
    title: str
    provision: Callable[[Federation, Path], None]
    serve: Callable[[ServerKit], None]
    join: Callable[[SiteKit], None]
    connect: Callable[[ServerKit], AbstractContextManager[Transport]]

    package: str = ""
    """The package that it needs, in the same version at every party."""
    extra: str = ""
    """The extra of harmofl that installs this package, if there is one."""
    credentials: Literal["none", "keys", "certificates"] = "none"
    """How a site proves who it is: not at all, by a key that the server knows, or by a certificate that the
    federation's authority signs. With certificates, adding a site needs the authority's key, and a name that has left
    the federation cannot be used again, as its old certificate would still be valid."""

    enrollment: Enrollment | None = None
    """How sites make their own keys (`deploy join`); without it, `provision` makes them."""

    read_address: Callable[[str], str] = str
    """Check what `--server` says and complete it; sites find it as `federation.server`."""
    port: Callable[[Federation], int | None] = no_port
    """The TCP port that the server's machine must open."""
    is_running: Callable[[ServerKit], bool] = ServerKit.is_started
    """Whether the server of this kit could take a run now."""
    check_server: Callable[[ServerKit], Iterable[Finding]] = nothing_to_check
    check_site: Callable[[SiteKit], Iterable[Finding]] = nothing_to_check
    """What `harmofl deploy check` looks at beyond versions, disk and images, with the way to the server."""
    check_guest: Callable[[SiteKit], Iterable[Finding]] = nothing_to_check
    """The same at a site in a federation of this engine's that others run; of another engine's there is nothing."""

    server_files: Callable[[Sequence[str]], Sequence[str]] = no_paths
    """What the server keeps of some sites, as paths below its folder: gone when a site leaves."""
    expiring: Callable[[Sequence[str]], Sequence[str]] = no_paths
    """The folders that `provision` makes again when credentials are renewed, given the sites: paths below the kits."""
    server_notes: str = ""
    """More for the server's README, in Markdown."""
    write_app: Callable[[Path, AppOptions], None] | None = None
    """`(folder, options)`: writes what an existing federation's own tools start (`deploy app`, `deploy job`)."""

    def requirements(self, harmofl: str, package: str) -> str:
        """What to give to pip, for these versions of harmofl and of the engine's package."""
        if self.extra or not self.package:
            return f"'harmofl{f'[{self.extra}]' if self.extra else ''}=={harmofl}'"
        return f"'harmofl=={harmofl}' '{self.package}=={package}'"

    def installed_version(self) -> str:
        """The version of the engine's package; empty if it is not installed, or if there is none."""
        return installed_version(self.package) if self.package else ""


def installed_version(package: str) -> str:
    """A package's version, without what only says how it was built (such as +cpu); empty if it is not installed."""
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return ""


def find_engine(name: str) -> Engine:
    """Return the engine of that name, if what it needs is installed."""
    engine = registry.engines.find(name)
    if engine.package and not engine.installed_version():
        hint = f"pip install 'harmofl[{engine.extra}]'" if engine.extra else f"pip install {engine.package}"
        raise UsageError(f"engine {name!r} is not installed: {hint}")
    return engine


def wait_for_sites(
    names: Collection[str], connected: Callable[[], Collection[str]], minimum: int, timeout: float
) -> list[str]:
    """Return all sites of a federation once enough are connected; an error after `timeout` names the missing ones."""
    deadline = time.monotonic() + timeout
    while minimum > 0 and len(here := connected()) < minimum:
        if time.monotonic() >= deadline:
            missing = ", ".join(sorted(set(names) - set(here)))
            raise RunError(f"{len(here)} of {len(names)} sites are connected; missing: {missing}")
        time.sleep(LOOK_EVERY)
    return sorted(names)
