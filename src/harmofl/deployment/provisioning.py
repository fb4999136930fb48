"""Makes a federation's kits: a folder for each party, with its keys, settings, start script and instructions.

All is made in a folder beside the wanted one, which takes its name at the end: there is a whole federation or none.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field, ValidationError

from harmofl import registry
from harmofl.data.layouts.site_names import name_refusal
from harmofl.deployment.engines import ENGINES, find_engine
from harmofl.deployment.kits import (
    FEDERATION,
    SITE,
    SITE_NAME,
    Federation,
    Part,
    check_tasks,
    read_federation,
    read_part,
    write_part,
)
from harmofl.errors import UsageError, describe, unknown_name
from harmofl.files import write_whole
from harmofl.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

AUTHORITY, SERVER, SITES, REMOVED = "authority", "server", "sites", "removed"
KITS = "kits.toml"
VERSIONS = "versions.toml"
PORT = 8443
FLEET = "/v1/fleet/[a-z-]+"
"""All of Flower's paths that sites need, as a regular expression."""
HOME = "/var/lib/harmofl"
EXECUTABLE = 0o755
HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
WARNING = "What `harmofl deploy check` compares with what is installed."


class Kits(Part):
    """How a federation's sites are set up, for those that join later."""

    tasks: Annotated[list[str], AfterValidator(check_tasks)] = Field(min_length=1)
    synthetic: bool = False


class Versions(Part):
    """What the kits were made with."""

    harmofl: str = __version__
    engine: str = ""
    torch: str = ""

    @classmethod
    def installed(cls, engine: str) -> Versions:
        """What is installed here; empty where it is not."""
        return cls(harmofl=__version__, engine=installed(ENGINES[engine]), torch=installed("torch"))


def installed(package: str) -> str:
    """A package's version, without what only says how it was built (such as +cpu)."""
    try:
        return version_of(package).partition("+")[0]
    except PackageNotFoundError:
        return ""


@dataclass(frozen=True)
class Address:
    """Where sites reach the server."""

    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> Address:
        """HOST, HOST:PORT, an IPv6 address, or [one]:PORT."""
        bracketed = re.fullmatch(r"\[(.*)\](?::(.*))?", text)
        if bracketed:
            host, port = bracketed.group(1), bracketed.group(2)
        elif text.count(":") == 1:
            host, port = text.split(":")
        else:
            host, port = text, None
        if "/" in text or not (HOST.fullmatch(host) or is_address(host)):
            raise UsageError(f"--server {text!r}: must be a name or an address, with :PORT if it is not {PORT}")
        if port is not None and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise UsageError(f"--server {text!r}: the port must be a number from 1 to 65535")
        return cls(host, int(port) if port else PORT)


def is_address(text: str) -> bool:
    """Whether this is an IPv4 or IPv6 address."""
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def parse_sites(text: str) -> list[str]:
    """Names between commas, each once."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        check_name(name)
    lowered = [name.lower() for name in names]
    for name in names:
        if lowered.count(name.lower()) > 1:  # some file systems see no difference
            raise UsageError(f"--sites {text!r}: {name!r} is there twice, at least but for upper and lower case")
    return names


def check_name(name: str) -> None:
    """Refuse what cannot be a site's name: it becomes that of files and of a key."""
    if not re.match(SITE_NAME, name) or name.endswith("\n"):
        allowed = "letters, digits, dots, dashes and underscores, at most 63, the first a letter or digit"
        raise UsageError(f"site {name!r}: must be {allowed}")
    reason = name_refusal(name)
    if reason:
        raise UsageError(f"site {name!r}: {reason}")


def checked_tasks(tasks: Sequence[str], sites: Sequence[str], synthetic: bool) -> list[str]:
    """What the sites will accept: as asked for, or such as fits."""
    for name in tasks:
        if name not in registry.tasks:
            raise unknown_name("task", name, registry.tasks.names())
    if not synthetic:
        return list(dict.fromkeys(tasks)) or ["segmentation"]
    known = {name: phantom_sites(name) for name in registry.tasks.names() if phantom_sites(name)}
    fitting = [name for name in tasks or known if set(sites) <= set(known.get(name, ()))]
    if not fitting or (tasks and len(fitting) < len(set(tasks))):
        there = "; ".join(f"{name}: {', '.join(names)}" for name, names in known.items() if not tasks or name in tasks)
        wanted = ", ".join(sites)
        hint = f"synthetic hospitals are {there}" if there else f"only {', '.join(known)} have synthetic hospitals"
        raise UsageError(f"--synthetic with --sites {wanted}: {hint}")
    return fitting


def phantom_sites(task: str) -> tuple[str, ...]:
    """The synthetic hospitals of a task."""
    phantom = registry.tasks.find(task).phantom
    return phantom.sites if phantom else ()


def make_federation(engine: str, address: Address, sites: Sequence[str], name: str = "federation") -> Federation:
    """What all parties will know, checked."""
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    values = {"name": name, "engine": engine, "host": address.host, "port": address.port, "sites": list(sites)}
    try:
        return Federation.model_validate(values | {"version": __version__})
    except ValidationError as error:
        raise UsageError(describe(error)) from None


def make_kits(federation: Federation, out: Path, tasks: Sequence[str] = (), synthetic: bool = False) -> None:
    """Make all parties' folders below `out`, or nothing."""
    kits = Kits(tasks=checked_tasks(tasks, federation.sites, synthetic), synthetic=synthetic)
    engine = find_engine(federation.engine)
    with appearing(out) as folder:
        write_part(folder / KITS, kits)
        add_server(folder, federation, kits)
        for site in federation.sites:
            add_site_folder(folder, federation, kits, site)
        write_overview(folder, federation)
        engine.provision(federation, folder)
        make_private(folder)


def add_site(folder: Path, name: str) -> None:
    """Make one more site's kit, and let the server know it; nothing has changed if that fails."""
    check_name(name)
    federation, kits = opened(folder)
    if name.lower() in {other.lower() for other in federation.sites}:
        raise UsageError(f"site {name!r}: the federation has one already ({', '.join(federation.sites)})")
    if federation.engine == "nvflare" and (folder / REMOVED / name).exists():
        reason = "its old certificate would be accepted again; choose another name"
        raise UsageError(f"site {name!r}: it has been removed from this federation, and {reason}")
    checked_tasks(kits.tasks, [name], kits.synthetic)
    if federation.engine == "nvflare":  # with Flower, sites have keys that nobody signs
        need_authority(folder, federation)
    grown = changed(federation, [*federation.sites, name])
    try:
        add_site_folder(folder, grown, kits, name)
        # Of the new site only: the others have theirs, even where their folders are no longer here.
        find_engine(grown.engine).provision(changed(grown, [name]), folder)
        make_private(folder)
    except BaseException:
        shutil.rmtree(folder / SITES / name, ignore_errors=True)
        (folder / SERVER / "keys" / f"{name}.pub").unlink(missing_ok=True)
        raise
    write_part(folder / SERVER / FEDERATION, grown)
    write_overview(folder, grown)


def remove_site(folder: Path, name: str) -> Path | None:
    """Let the server forget a site and its key; return where its kit went, if it was still here."""
    federation, _ = opened(folder)
    if name not in federation.sites:
        raise unknown_name("site", name, federation.sites)
    if len(federation.sites) == 1:
        raise UsageError(f"site {name!r}: it is the federation's only one")
    shrunk = changed(federation, [site for site in federation.sites if site != name])
    write_part(folder / SERVER / FEDERATION, shrunk)
    (folder / SERVER / "keys" / f"{name}.pub").unlink(missing_ok=True)
    write_overview(folder, shrunk)
    return put_aside(folder, name)


def put_aside(folder: Path, name: str) -> Path | None:
    """Move a removed site's kit away: it may hold models, which are not ours to delete."""
    kit, there = folder / SITES / name, folder / REMOVED / name
    there.mkdir(parents=True, exist_ok=True)  # remembered even where the kit has long been the hospital's
    if not kit.exists():
        return None
    aside = there / f"{len(list(there.iterdir())) + 1}"
    os.replace(kit, aside)
    return aside


def renew(folder: Path) -> list[Path]:
    """Make new certificates, signed by the same authority; return the folders that are to be copied again."""
    federation, _ = opened(folder)
    old = [folder / SERVER / "tls"]
    if federation.engine == "nvflare":  # whose sites have certificates, too
        old = [folder / SERVER / "engine", *(folder / SITES / site / "engine" for site in federation.sites)]
    need_authority(folder, federation)
    with moved_away(old, folder):
        find_engine(federation.engine).provision(federation, folder)
    return old


@contextmanager
def moved_away(places: Sequence[Path], folder: Path) -> Iterator[None]:
    """Make room for new folders; if making them fails, the old ones are put back."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".renewed-") as scratch:
        kept = {place: Path(scratch) / str(number) for number, place in enumerate(places) if place.exists()}
        for place, aside in kept.items():
            os.replace(place, aside)
        try:
            yield
        except BaseException:
            for place in places:
                shutil.rmtree(place, ignore_errors=True)
            for place, aside in kept.items():
                os.replace(aside, place)
            raise


def need_authority(folder: Path, federation: Federation) -> None:
    """Where the authority's key has been taken away, as it should be, an engine would make another authority."""
    if not any(path.is_file() for path in (folder / AUTHORITY).rglob("*")):
        raise UsageError(f"{folder / AUTHORITY}: bring it back from where it is kept: it signs for {federation.name}")


def opened(folder: Path) -> tuple[Federation, Kits]:
    """A federation whose kits lie in a folder."""
    if not (folder / KITS).exists():
        raise UsageError(f"--kits {folder}: holds no {KITS}: it is not a folder that `harmofl deploy init` made")
    return read_federation(folder / SERVER), read_part(Kits, folder / KITS)


def changed(federation: Federation, sites: list[str]) -> Federation:
    """The same federation with other sites."""
    return federation.model_copy(update={"sites": sites})


@contextmanager
def appearing(out: Path) -> Iterator[Path]:
    """A folder that only its owner can open, and that is there under its name when all in it is."""
    folder = out
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UsageError(f"--out {out}: it exists already; choose another folder")
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
        yield folder
        os.replace(folder, out)
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror or error}; nothing was made") from error
    finally:
        if folder != out:
            shutil.rmtree(folder, ignore_errors=True)


def make_private(folder: Path) -> None:
    """A party's folder will hold decoded images, states and models besides its key: none of them is for other users."""
    for place in (folder / AUTHORITY, folder / SERVER, *(folder / SITES).iterdir()):
        if place.exists():  # the authority is kept offline, as it should be, where a site joins later
            place.chmod(0o700)


def add_server(folder: Path, federation: Federation, kits: Kits) -> None:
    """The server's folder, without the engine's part."""
    server = folder / SERVER
    write_part(server / FEDERATION, federation)
    if federation.engine == "flower":
        words = {"host": federation.host, "port": federation.port, "inner_port": inner_port(federation.port)}
        write_whole(server / "nginx.conf", rendered("nginx.conf", **words, fleet=FLEET, tls="/etc/nginx/harmofl"))
    add_papers(server, federation, kits)
    write_whole(server / "run.toml", rendered("run.toml", task=kits.tasks[0], synthetic=kits.synthetic))


def inner_port(port: int) -> int:
    """Where the server listens behind a proxy that has its port."""
    return port + 1 if port < 65535 else port - 1


def add_site_folder(folder: Path, federation: Federation, kits: Kits, site: str) -> None:
    """One site's folder, without the engine's part; it knows of no other site."""
    own = folder / SITES / site
    write_part(own / FEDERATION, changed(federation, [site]))
    add_papers(own, federation, kits, site)
    words = {"site": site, "tasks": kits.tasks, "synthetic": kits.synthetic, "all_tasks": registry.tasks.names()}
    write_whole(own / SITE, rendered("site.toml", **words))


def add_papers(party: Path, federation: Federation, kits: Kits, site: str = "") -> None:
    """What tells and helps a party to start: the same files for server and sites, in their own words."""
    service = "harmofl-site.service" if site else "harmofl-server.service"
    words = {
        "federation": federation.name,
        "engine": federation.engine,
        "host": federation.host,
        "port": federation.port,
        "version": __version__,
        "site": site,
        "synthetic": kits.synthetic,
        "service": service,
        "home": f"{HOME}/{'site' if site else 'server'}",
        "needs_low_port": not site and federation.port < 1024,
        "has_proxy_rule": federation.engine == "flower",
    }
    write_part(party / VERSIONS, Versions.installed(federation.engine), WARNING)
    write_whole(party / "start.sh", rendered("start.sh"), EXECUTABLE)
    write_whole(party / "README.md", rendered("site.md" if site else "server.md", **words))
    write_whole(party / service, rendered("service", **words))
    write_whole(party / "Dockerfile", rendered("Dockerfile", **words))
    write_whole(party / ".dockerignore", rendered("dockerignore"))
    write_whole(party / "compose.yaml", rendered("compose.yaml", **words))


def write_overview(folder: Path, federation: Federation) -> None:
    """Which folder is whose."""
    words = {"federation": federation.name, "host": federation.host, "port": federation.port}
    write_whole(folder / "README.md", rendered("kits.md", **words, sites=federation.sites))


@cache
def templates() -> Environment:
    """The templates, in which a name that is not given is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("harmofl.deployment", "templates")
    return Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)


def rendered(template: str, **words: object) -> str:
    """A template with its words."""
    return templates().get_template(f"{template}.j2").render(words)
