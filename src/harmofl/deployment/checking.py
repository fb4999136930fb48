"""`harmofl deploy check`: what is in order at a party and what is not, in plain words, with what to do."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from harmofl import registry
from harmofl.data.check import Check
from harmofl.data.check import check_images as look_at
from harmofl.deployment.approvals import Approvals
from harmofl.deployment.audit import audit_log, verify
from harmofl.deployment.engine import Engine, Finding, find_engine
from harmofl.deployment.kits import ELSEWHERE, ServerKit, SiteKit, open_kit, read_part
from harmofl.deployment.own_images import name_in_folder
from harmofl.deployment.provisioning import phantom_sites
from harmofl.deployment.revocations import read_revocations
from harmofl.deployment.versions import VERSIONS, Versions
from harmofl.errors import RunError, UsageError
from harmofl.files import what_failed
from harmofl.settings import resolve
from harmofl.version import __version__

GIGABYTE = 2**30
LEAST_SPACE, LITTLE_SPACE = 1.0, 5.0
SHOWN = 3
NAME_ANOTHER = "name a folder that this user can write to"


def check_kit(folder: Path) -> Iterator[Finding]:
    """Check everything worth knowing of a party, before it starts and while it runs."""
    try:
        kit = open_kit(folder)
        if isinstance(kit, SiteKit) and kit.federation.engine == ELSEWHERE:
            yield from check_guest(kit)
            return
        engine = registry.engines.find(kit.federation.engine)
    except UsageError as error:
        yield Finding(False, str(error), "go to a folder that `harmofl deploy init` made, or correct the file")
        return
    party = f"site {kit.name}" if isinstance(kit, SiteKit) else "server"
    yield Finding(True, f"{party} of {kit.federation.name!r}, engine {engine.name}")
    yield from check_versions(kit, engine)
    yield from check_server(kit) if isinstance(kit, ServerKit) else check_site(kit)


def check_guest(kit: SiteKit) -> Iterator[Finding]:
    """A site in a federation that others run: everything but the way to the server, which is theirs."""
    yield Finding(True, f"site {kit.name} of a federation that others run, with harmofl {__version__}")
    for name in registry.engines.names():
        yield from registry.engines.find(name).check_guest(kit)
    yield from check_own(kit)


def check_versions(kit: ServerKit | SiteKit, engine: Engine) -> Iterator[Finding]:
    """Whether what is installed is what the kit was made with."""
    try:
        made, here = read_part(Versions, kit.folder / VERSIONS), Versions.installed(engine)
    except UsageError as error:
        yield Finding(False, str(error), "copy the kit again")
        return
    pairs = {"harmofl": (made.harmofl, here.harmofl)}
    if engine.package:
        pairs[engine.name] = (made.engine, here.engine)
    wrong = [f"{name} {theirs}, here {ours or 'none'}" for name, (theirs, ours) in pairs.items() if theirs != ours]
    if wrong:
        install = f"pip install {engine.requirements(made.harmofl, made.engine)}"
        yield Finding(False, f"versions differ: the kit was made with {'; '.join(wrong)}", install)
    else:
        yield Finding(True, f"versions match: {', '.join(f'{name} {ours}' for name, (_, ours) in pairs.items())}")
    if made.torch != here.torch:
        hint = "it works, but results may differ in the last digits from those of the same version"
        yield Finding(True, f"torch {here.torch}, while the kit was made with {made.torch}", hint)


def check_server(kit: ServerKit) -> Iterator[Finding]:
    """The engine's part, with who is connected, and the disk."""
    yield from ask_engine(kit)
    for revoked in read_revocations(kit.folder):
        if revoked.holds(kit.folder):
            yield Finding(
                True, f"{revoked.site} is shut out since {revoked.time}: {revoked.reason or 'no reason given'}"
            )
    yield check_space(kit.folder)
    yield check_writable(kit.folder, "this folder")
    yield from check_audit(kit.folder)


def check_site(kit: SiteKit) -> Iterator[Finding]:
    """The engine's part, with the way to the server; the disk and the images."""
    yield from ask_engine(kit)
    yield from check_own(kit)


def check_own(kit: SiteKit) -> Iterator[Finding]:
    """What is a site's own, whatever brings the messages: the disk, the images, the audit log and approvals."""
    yield check_space(kit.cache)
    for name, place in {"cache": kit.cache, "state": kit.state(""), "models": kit.model("")}.items():
        yield check_writable(place, f"{name} = {getattr(kit.settings, name)!r} (site.toml)")
    yield from check_consortium(kit)
    for task in kit.settings.tasks:
        yield from check_images(kit, task)
    yield from check_audit(kit.folder)
    yield from check_approvals(kit)


def check_consortium(kit: SiteKit) -> Iterator[Finding]:
    """Whether the secret that all hospitals share can be read, if there is one."""
    try:
        if kit.consortium:
            yield Finding(True, f"consortium_key = {kit.settings.consortium_key!r}: the hospitals' common secret")
    except UsageError as error:
        yield Finding(False, str(error), "put the secret there that the other hospitals have, or take the line out")


def check_audit(folder: Path) -> Iterator[Finding]:
    """Whether the chain of the audit log holds, if there is a log yet."""
    path = audit_log(folder)
    if not path.exists():
        return
    try:
        found = verify(path)
    except UsageError as error:
        yield Finding(False, str(error), "find out who changed it; move the file away to begin another")
        return
    yield Finding(True, f"audit log: {found.entries} entries, {found.refused} refused, and its chain holds")


def check_approvals(kit: SiteKit) -> Iterator[Finding]:
    """Whether runs wait for somebody's approval here."""
    waiting = Approvals(kit).waiting()
    if waiting:
        yield Finding(True, f"waiting for approval: {', '.join(waiting)}", "harmofl deploy approve")


def ask_engine(kit: ServerKit | SiteKit) -> Iterator[Finding]:
    """The engine's own findings; if it cannot even look, that is a finding, too."""
    name = kit.federation.engine
    try:
        engine = find_engine(name)
        if isinstance(kit, SiteKit):
            yield from engine.check_site(kit)
        else:
            yield from engine.check_server(kit)
            yield check_connected(kit, engine)
    except (UsageError, RunError) as error:
        yield Finding(False, str(error))
    except Exception as error:
        yield Finding(False, f"{name} could not be asked ({type(error).__name__}: {error})")


def check_connected(kit: ServerKit, engine: Engine) -> Finding:
    """Whether the server runs, and with which sites; one that has not been started yet is no problem."""
    sites = kit.federation.sites
    try:
        if not engine.is_running(kit):
            return Finding(True, f"the server ({engine.title}) is not started yet")
        with kit.lock_runs(), engine.connect(kit) as transport:
            transport.sites(len(sites), 0)
    except UsageError:
        return Finding(True, "a run is going on: its display says which sites take part")
    except RunError as error:
        return Finding(True, str(error), "start them; `harmofl deploy check` at a site says what keeps it away")
    except OSError as error:
        return Finding(False, what_failed(error), "run this as the user that starts the party")
    return Finding(True, f"the server ({engine.title}) is running; connected: {', '.join(sites)}")


def check_space(folder: Path) -> Finding:
    """Whether the disk has room for decoded images, checkpoints and models."""
    try:
        there = next(place for place in (folder, *folder.parents) if place.exists())
        left = shutil.disk_usage(there).free / GIGABYTE
    except OSError as error:
        return Finding(False, what_failed(error), NAME_ANOTHER)
    hint = "decoded images and checkpoints need a few gigabytes, large data sets more"
    return Finding(left >= LEAST_SPACE, f"{left:.1f} GB of disk space are free", hint if left < LITTLE_SPACE else "")


def check_writable(folder: Path, name: str) -> Finding:
    """Whether something can be written to a folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Finding(False, f"{name}: cannot be written ({error.strerror or error})", NAME_ANOTHER)
    return Finding(True, f"{name}: can be written")


def check_images(kit: SiteKit, task: str) -> Iterator[Finding]:
    """Whether a task that this site accepts could be trained here."""
    if kit.data is None:
        yield check_synthetic(kit, task)
        return
    try:
        check = inspect_images(kit, task)
    except UsageError as error:
        yield Finding(False, f"{task}: {error}", "correct `data`, `site_in_data` or `tasks` in site.toml")
        return
    except OSError as error:
        yield Finding(False, f"{task}: {what_failed(error)}", "let this user read the images, or correct `data`")
        return
    more = f"harmofl data check --task {task} --data {kit.data}"
    fatal = [str(problem) for problem in check.problems if problem.fatal]
    remarks = [str(problem) for problem in check.problems if not problem.fatal]
    if fatal:
        yield Finding(False, f"{task}: {summarize(fatal)}", more)
    else:
        yield Finding(True, f"{task}: {check.images} images can be loaded")
    if remarks:
        yield Finding(True, f"{task}: {summarize(remarks)}", more)


def check_synthetic(kit: SiteKit, task: str) -> Finding:
    """Whether a task has a synthetic hospital of the site's name."""
    known = phantom_sites(task)
    if kit.name in known:
        return Finding(True, f"{task}: synthetic images of {kit.name}, to try the federation")
    what = f"{task}: there is no synthetic hospital {kit.name} ({', '.join(known) or 'none at all'})"
    return Finding(False, what, "say where this hospital's own images are: `data` in site.toml")


def inspect_images(kit: SiteKit, task: str) -> Check:
    """Look at all of a site's images, as `harmofl data check` does."""
    data = kit.data or Path()
    if not data.is_dir():
        raise UsageError(f"data = {kit.settings.data!r}: there is no such folder")
    overrides = {"data.cache": str(kit.cache), "data.folder": str(data), "data.limit": 0}
    settings, _ = resolve(task, "fedavg", overrides=overrides)
    chosen = registry.tasks.find(task)
    everyone = chosen.open_folder(settings.data)
    return look_at(chosen, everyone.only(name_in_folder(kit, everyone.sites)))


def summarize(problems: Sequence[str]) -> str:
    """Name the first problems, and how many there are."""
    rest = len(problems) - SHOWN
    more = f"; and {rest} more" if rest > 0 else ""
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    return f"{count}: {'; '.join(problems[:SHOWN])}{more}"
