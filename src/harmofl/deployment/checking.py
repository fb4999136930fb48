"""`harmofl deploy check`: what is well at a party and what is not, in plain words, each with what to do."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harmofl.deployment.certificates import validity_of
from harmofl.deployment.engines import Finding, find_engine
from harmofl.deployment.kits import ServerKit, SiteKit, open_kit, read_part
from harmofl.deployment.provisioning import VERSIONS, Versions, phantom_sites
from harmofl.deployment.reaching import reach
from harmofl.errors import RunError, UsageError
from harmofl.files import what_failed

SOON = 30
"""Days before its end at which a certificate should be renewed."""
GIGABYTE = 2**30
LEAST_SPACE, LITTLE_SPACE = 1.0, 5.0
LARGEST_KEY = 2**16
KEY_MARK = b"PRIVATE KEY"
AUTHORITIES = ("tls/ca.crt", "engine/startup/rootCA.pem")
OWN_KEYS = {"server": ("tls/server.key", "engine/startup/server.key"), "site": ("engine/startup/client.key",)}
"""Private keys that a party's folder may hold; a site's own is `keys/NAME` besides."""
NOT_OURS = ("runs", "cache", "state", "models", "log", "transfer", "home")
SHOWN = 3


def check_kit(folder: Path) -> Iterator[Finding]:
    """Everything that is worth knowing of a party before it starts, and while it runs."""
    try:
        kit = open_kit(folder)
    except UsageError as error:
        yield Finding(False, str(error), "go into a folder of `harmofl deploy init`, or correct the file")
        return
    party = f"site {kit.name}" if isinstance(kit, SiteKit) else "server"
    engine = kit.federation.engine
    yield Finding(True, f"{party} of {kit.federation.name!r}, engine {engine}")
    yield from check_versions(kit)
    yield from check_keys(kit)
    yield from check_certificates(kit)
    yield from check_server(kit) if isinstance(kit, ServerKit) else check_site(kit)


def check_versions(kit: ServerKit | SiteKit) -> Iterator[Finding]:
    """Whether what is installed is what the kit was made with."""
    engine = kit.federation.engine
    try:
        made, here = read_part(Versions, kit.folder / VERSIONS), Versions.installed(engine)
    except UsageError as error:
        yield Finding(False, str(error), "copy the kit again")
        return
    install = f"pip install 'harmofl[{engine}]=={made.harmofl}'"
    pairs = {"harmofl": (made.harmofl, here.harmofl), engine: (made.engine, here.engine)}
    wrong = [f"{name} {theirs}, here {ours or 'none'}" for name, (theirs, ours) in pairs.items() if theirs != ours]
    if wrong:
        yield Finding(False, f"versions differ: the kit was made with {'; '.join(wrong)}", install)
    else:
        yield Finding(True, f"versions match: harmofl {here.harmofl}, {engine} {here.engine}")
    if made.torch != here.torch:
        hint = "it works, but results may differ in the last digits from those of the same version"
        yield Finding(True, f"torch {here.torch}, while the kit was made with {made.torch}", hint)


def check_keys(kit: ServerKit | SiteKit) -> Iterator[Finding]:
    """Whether private keys are this party's, and its owner's alone."""
    own = own_keys(kit)
    found = private_keys(kit.folder)
    for path in found:
        name = path.relative_to(kit.folder).as_posix()
        if name not in own:
            hint = "delete it, and have that party's kit made anew: its key is no secret any more"
            yield Finding(False, f"{name} is a private key that is not this party's", hint)
        elif path.stat().st_mode & 0o077:
            yield Finding(False, f"{name}: other users can read this private key", f"chmod 600 {path}")
        elif hasattr(os, "getuid") and path.stat().st_uid != os.getuid():
            yield Finding(False, f"{name} belongs to another user", "run this as the user that starts the party")
        else:
            yield Finding(True, f"{name}: a private key that only its owner can read")
    if not any(path.relative_to(kit.folder).as_posix() in own for path in found):
        wanted = " or ".join(sorted(own))
        yield Finding(False, f"no private key here that can be read ({wanted})", "copy the kit again, keys included")


def own_keys(kit: ServerKit | SiteKit) -> set[str]:
    """Where this party's private key may lie."""
    if isinstance(kit, SiteKit):
        return {*OWN_KEYS["site"], f"keys/{kit.name}"}
    return set(OWN_KEYS["server"])


def private_keys(folder: Path) -> list[Path]:
    """All files of a kit that hold a private key, in whatever format."""
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in NOT_OURS]
        found += [Path(place) / name for name in files if holds_key(Path(place) / name)]
    return sorted(found)


def holds_key(path: Path) -> bool:
    """Whether a small file holds a private key."""
    try:
        return path.is_file() and path.stat().st_size < LARGEST_KEY and KEY_MARK in path.read_bytes()
    except OSError:
        return False


def check_certificates(kit: ServerKit | SiteKit) -> Iterator[Finding]:
    """Until when the kit's certificates count."""
    folders = (kit.folder / "tls", kit.folder / "engine" / "startup")
    paths = [path for folder in folders for end in ("*.crt", "*.pem") for path in sorted(folder.glob(end))]
    if not paths:
        yield Finding(False, "no certificate here", "copy the kit again")
    for path in paths:
        yield check_certificate(path, path.relative_to(kit.folder).as_posix())


def check_certificate(path: Path, name: str) -> Finding:
    """Whether a certificate counts now, and for how long."""
    renew = "whoever made the kits can make a new one: harmofl deploy renew --kits DIR"
    try:
        validity = validity_of(path)
    except UsageError as error:
        return Finding(False, str(error), "copy the kit again")
    now = datetime.now(UTC)
    if now < validity.begins:
        return Finding(False, f"{name} is valid from {validity.begins:%Y-%m-%d} on", "check this machine's clock")
    if now > validity.ends:
        return Finding(False, f"{name} expired on {validity.ends:%Y-%m-%d}", renew)
    left = validity.days_left(now)
    return Finding(True, f"{name} is valid for {left} days", renew if left < SOON else "")


def check_server(kit: ServerKit) -> Iterator[Finding]:
    """The port, and what the engine says."""
    port = check_port(kit)
    yield port
    yield check_space(kit.folder)
    yield check_writable(kit.folder, "this folder")
    yield from of_engine(kit)
    if port.ok and not is_free(kit.federation.port):
        yield check_connected(kit)


def check_port(kit: ServerKit) -> Finding:
    """Whether the server has its port, or could have it."""
    host, port = kit.federation.host, kit.federation.port
    if is_free(port):
        return Finding(True, f"port {port} is free for the server")
    found = reach(host, port, authority_of(kit), at="localhost", seconds=5)
    if found.ok:
        return Finding(True, f"the server listens on port {port}")
    hint = "end that program, or make the kits again with another port (--server HOST:PORT)"
    return Finding(False, f"port {port} is taken, and not by this federation's server", hint)


def check_connected(kit: ServerKit) -> Finding:
    """Who is there; a site that is not yet is no mistake of the server's."""
    sites = kit.federation.sites
    try:
        with kit.in_use(), find_engine(kit.federation.engine).connect(kit) as transport:
            transport.sites(len(sites), 0)
    except UsageError:
        return Finding(True, "a run is going on: its display says which sites take part")
    except RunError as error:
        return Finding(True, str(error), "start them; `harmofl deploy check` at a site says what keeps it away")
    except OSError as error:
        return Finding(False, what_failed(error), "run this as the user that starts the party")
    return Finding(True, f"connected: {', '.join(sites)}")


def is_free(port: int) -> bool:
    """Whether a server could listen on a port."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("", port))
        except PermissionError:  # a low port that only the service may have
            return trial.connect_ex(("127.0.0.1", port)) != 0
        except OSError:
            return False
        return True


def check_site(kit: SiteKit) -> Iterator[Finding]:
    """The way to the server, the disk and the images."""
    way = reach(kit.federation.host, kit.federation.port, authority_of(kit))
    yield way
    if way.ok:  # otherwise the engine could only say the same in other words
        yield from of_engine(kit)
    yield check_space(kit.cache)
    for name, place in {"cache": kit.cache, "state": kit.state(""), "models": kit.model("")}.items():
        yield check_writable(place, f"{name} = {getattr(kit.settings, name)!r} (site.toml)")
    for task in kit.settings.tasks:
        yield from check_images(kit, task)


def authority_of(kit: ServerKit | SiteKit) -> Path:
    """The certificate that vouches for the server's."""
    return next((kit.folder / name for name in AUTHORITIES if (kit.folder / name).exists()), kit.folder / "tls/ca.crt")


def of_engine(kit: ServerKit | SiteKit) -> Iterator[Finding]:
    """The engine's findings; one that cannot even look is a finding, too."""
    name = kit.federation.engine
    try:
        engine = find_engine(name)
        yield from engine.check_server(kit) if isinstance(kit, ServerKit) else engine.check_site(kit)
    except (UsageError, RunError) as error:
        yield Finding(False, str(error))
    except Exception as error:
        yield Finding(False, f"{name} could not be asked ({type(error).__name__}: {error})")


def check_space(folder: Path) -> Finding:
    """Whether the disk has room for decoded images, checkpoints and models."""
    try:
        there = next(place for place in (folder, *folder.parents) if place.exists())
        left = shutil.disk_usage(there).free / GIGABYTE
    except OSError as error:
        return Finding(False, what_failed(error), "name a folder of this user's")
    hint = "decoded images and checkpoints need room: a few gigabytes, with large data sets more"
    return Finding(left >= LEAST_SPACE, f"{left:.1f} GB of disk are free", hint if left < LITTLE_SPACE else "")


def check_writable(folder: Path, name: str) -> Finding:
    """Whether something can be written to a folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Finding(False, f"{name}: cannot be written ({error.strerror or error})", "name a folder of this user's")
    return Finding(True, f"{name}: can be written")


@dataclass(frozen=True)
class Images:
    """What `harmofl data check` found of a site's images."""

    count: int
    fatal: tuple[str, ...]
    remarks: tuple[str, ...]


def check_images(kit: SiteKit, task: str) -> Iterator[Finding]:
    """Whether a task that is accepted here could be trained here."""
    if kit.data is None:
        yield check_synthetic(kit, task)
        return
    try:
        images = looked_at(kit, task)
    except UsageError as error:
        yield Finding(False, f"{task}: {error}", "correct `data`, `site_in_data` or `tasks` in site.toml")
        return
    except OSError as error:
        yield Finding(False, f"{task}: {what_failed(error)}", "let this user read the images, or correct `data`")
        return
    more = f"harmofl data check --task {task} --data {kit.data}"
    if images.fatal:
        yield Finding(False, f"{task}: {in_short(images.fatal)}", more)
    else:
        yield Finding(True, f"{task}: {images.count} images can be loaded")
    if images.remarks:
        yield Finding(True, f"{task}: {in_short(images.remarks)}", more)


def check_synthetic(kit: SiteKit, task: str) -> Finding:
    """Whether a task has a synthetic hospital of the site's name."""
    known = phantom_sites(task)
    if kit.name in known:
        return Finding(True, f"{task}: synthetic images of {kit.name}, to try the federation")
    what = f"{task}: there is no synthetic hospital {kit.name} ({', '.join(known) or 'none at all'})"
    return Finding(False, what, "say where this hospital's own images lie: `data` in site.toml")


def looked_at(kit: SiteKit, task: str) -> Images:
    """Look at all of a site's images, as `harmofl data check` does."""
    from harmofl import registry
    from harmofl.api import check_data
    from harmofl.deployment.participant import called_there
    from harmofl.settings import resolve

    data = kit.data or Path()
    if not data.is_dir():
        raise UsageError(f"data = {kit.settings.data!r}: there is no such folder")
    own = {"data.cache": str(kit.cache)}
    settings, _ = resolve(task, "fedavg", overrides=own | {"data.folder": str(data)})
    called = called_there(kit, registry.tasks.find(task).open_folder(settings.data).sites)
    check, _ = check_data(task, data, settings=own | {"data.sites": [called]})
    fatal = tuple(str(problem) for problem in check.problems if problem.fatal)
    remarks = tuple(str(problem) for problem in check.problems if not problem.fatal)
    return Images(check.images, fatal, remarks)


def in_short(problems: tuple[str, ...]) -> str:
    """The first problems, and how many there are."""
    rest = len(problems) - SHOWN
    more = f"; and {rest} more" if rest > 0 else ""
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    return f"{count}: {'; '.join(problems[:SHOWN])}{more}"
