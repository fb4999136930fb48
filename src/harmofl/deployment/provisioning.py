"""Makes a federation's kits: a folder for each party, with its settings, credentials, start script and instructions.

All is made in a folder beside the wanted one, which takes its name at the end: there is a whole federation or none.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from harmofl import registry
from harmofl.data.layouts.site_names import name_refusal
from harmofl.deployment.audit import user_name
from harmofl.deployment.engine import Engine, find_engine
from harmofl.deployment.kits import FEDERATION, SITE_NAME, Federation, Kits, read_federation, read_part, write_part
from harmofl.deployment.papers import write_overview, write_server_papers, write_site_papers
from harmofl.deployment.revocations import add_revocation, without_revoked
from harmofl.errors import UsageError, describe, unknown_name
from harmofl.version import __version__

AUTHORITY, SERVER, SITES, REMOVED, ACCEPTED = "authority", "server", "sites", "removed", "accepted"
KITS = "kits.toml"


def parse_sites(text: str) -> list[str]:
    """Read names between commas, each once."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        check_name(name)
    lowered = [name.lower() for name in names]
    for name in names:
        if lowered.count(name.lower()) > 1:  # some file systems see no difference
            raise UsageError(f"--sites {text!r}: {name!r} is there twice (upper and lower case count as the same)")
    return names


def check_name(name: str) -> None:
    """Raise an error for what cannot be a site's name: it becomes the name of files and of a key."""
    if not re.match(SITE_NAME, name) or name.endswith("\n"):
        allowed = "letters, digits, dots, dashes and underscores, at most 63, the first a letter or digit"
        raise UsageError(f"site {name!r}: must be {allowed}")
    reason = name_refusal(name)
    if reason:
        raise UsageError(f"site {name!r}: {reason}")


def check_not_server(name: str, server: str) -> None:
    """Raise an error for a site that is called like the server: its certificate could pass for the server's."""
    if name.lower() in (server.lower(), server.rpartition(":")[0].strip("[]").lower()):
        raise UsageError(f"site {name!r}: the server is reached under this name ({server}); choose another")


def choose_tasks(tasks: Sequence[str], sites: Sequence[str], synthetic: bool) -> list[str]:
    """Return the tasks that the sites will accept: those asked for, or those that fit."""
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


def make_federation(engine: str, server: str, sites: Sequence[str], name: str = "federation") -> Federation:
    """Check what all parties will know."""
    address = find_engine(engine).read_address(server)
    for site in sites:
        check_not_server(site, address)
    values = {"name": name, "engine": engine, "server": address, "sites": list(sites), "version": __version__}
    try:
        return Federation.model_validate(values)
    except ValidationError as error:
        raise UsageError(describe(error)) from None


def make_kits(
    federation: Federation,
    out: Path,
    tasks: Sequence[str] = (),
    synthetic: bool = False,
    with_keys: bool | None = None,
) -> None:
    """Make all parties' folders below `out`, or nothing.

    `with_keys`: whether to make the sites' keys here, as for a trial; by default only with synthetic images.
    """
    engine = find_engine(federation.engine)
    makes_keys = synthetic if with_keys is None else with_keys
    own_keys = [] if makes_keys or engine.enrollment is None else federation.sites
    kits = Kits(tasks=choose_tasks(tasks, federation.sites, synthetic), synthetic=synthetic, own_keys=own_keys)
    with whole_folder(out) as folder:
        write_part(folder / KITS, kits)
        write_part(folder / SERVER / FEDERATION, federation)
        write_server_papers(folder / SERVER, federation, engine, kits)
        for site in federation.sites:
            add_site_folder(folder, federation, engine, kits, site)
        write_overview(folder, federation, engine, kits)
        add_credentials(folder, federation, engine, kits)
        make_private(folder)


def add_credentials(folder: Path, federation: Federation, engine: Engine, kits: Kits) -> None:
    """Add the engine's part to the kits that have none yet, without keys for sites that make their own."""
    own = [site for site in federation.sites if site in kits.own_keys]
    if own and engine.enrollment is not None:
        engine.enrollment.invite(with_sites(federation, own), folder)
    others = [site for site in federation.sites if site not in own]
    if others or not own:
        engine.provision(with_sites(federation, others), folder)


def accepted_files(folder: Path, site: str) -> tuple[Path, Path]:
    """A site's request, once it was accepted, and its certificate."""
    return folder / ACCEPTED / f"{site}.csr", folder / ACCEPTED / f"{site}.crt"


def add_site_folder(folder: Path, federation: Federation, engine: Engine, kits: Kits, site: str) -> None:
    """Make one site's folder, without the engine's part; it knows of no other site."""
    write_part(folder / SITES / site / FEDERATION, with_sites(federation, [site]))
    write_site_papers(folder / SITES / site, federation, engine, kits, site)


def add_site(folder: Path, name: str, with_keys: bool | None = None) -> list[Path]:
    """Make one more site's kit, or change nothing; return what is to be copied to the server."""
    check_name(name)
    federation, before = open_kits(folder)
    engine = find_engine(federation.engine)
    check_newcomer(folder, federation, engine, name)
    choose_tasks(before.tasks, [name], before.synthetic)
    grown = with_sites(federation, [*federation.sites, name])
    makes_keys = before.synthetic if with_keys is None else with_keys
    invited = not makes_keys and engine.enrollment is not None
    kits = before.model_copy(update={"own_keys": [*before.own_keys, name]}) if invited else before
    kept = [] if invited else [folder / SERVER / path for path in engine.server_files([name])]
    try:
        add_site_folder(folder, grown, engine, kits, name)
        # For the new site only: the others have their credentials, even where their folders are no longer here.
        add_credentials(folder, with_sites(grown, [name]), engine, kits)
        make_private(folder)
    except BaseException:
        shutil.rmtree(folder / SITES / name, ignore_errors=True)
        delete(kept)
        raise
    write_part(folder / KITS, kits)
    write_part(folder / SERVER / FEDERATION, grown)
    write_overview(folder, grown, engine, kits)
    return [folder / SERVER / FEDERATION, *kept]


def check_newcomer(folder: Path, federation: Federation, engine: Engine, name: str) -> None:
    """Raise an error for a site that cannot join."""
    if name.lower() in {other.lower() for other in federation.sites}:
        raise UsageError(f"site {name!r}: the federation has one already ({', '.join(federation.sites)})")
    check_not_server(name, federation.server)
    if engine.credentials != "certificates":
        return
    if (folder / REMOVED / name).exists():
        reason = "its old certificate would be accepted again; choose another name"
        raise UsageError(f"site {name!r}: it has been removed from this federation, and {reason}")
    require_authority(folder, federation)


def remove_site(folder: Path, name: str) -> Path | None:
    """Make the server forget a site; return where its kit was moved to, if it was still here."""
    federation, kits = open_kits(folder)
    engine = find_engine(federation.engine)
    if name not in federation.sites:
        raise unknown_name("site", name, federation.sites)
    if len(federation.sites) == 1:
        raise UsageError(f"site {name!r}: it is the federation's only one")
    rest = with_sites(federation, [site for site in federation.sites if site != name])
    write_part(folder / SERVER / FEDERATION, rest)
    kits = kits.model_copy(update={"own_keys": [site for site in kits.own_keys if site != name]})
    write_part(folder / KITS, kits)
    key_files = engine.server_files([name])
    joined = not key_files or any((folder / SERVER / path).exists() for path in key_files)
    if joined and name in without_revoked(folder / SERVER, federation.sites):
        add_revocation(folder / SERVER, name, key_files, user_name(), "it left")
    delete(folder / SERVER / path for path in key_files)
    delete(accepted_files(folder, name))
    write_overview(folder, rest, engine, kits)
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
    """Make new credentials, signed by the same authority; return the folders that are to be copied again."""
    federation, kits = open_kits(folder)
    engine = find_engine(federation.engine)
    made_here = [site for site in federation.sites if site not in kits.own_keys]
    old = [folder / path for path in engine.expiring(made_here)]
    if not old:
        raise UsageError(f"--kits {folder}: nothing in the kits of engine {engine.name!r} expires")
    require_authority(folder, federation)
    with moved_aside(old, folder):
        engine.provision(with_sites(federation, made_here), folder)
    return old


@contextmanager
def moved_aside(places: Sequence[Path], folder: Path) -> Iterator[None]:
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


def require_authority(folder: Path, federation: Federation) -> None:
    """Raise an error where the authority has been taken offline: the engine would make another one."""
    if not any(path.is_file() for path in (folder / AUTHORITY).rglob("*")):
        raise UsageError(f"{folder / AUTHORITY}: bring it back from where it is kept: it signs for {federation.name}")


def open_kits(folder: Path) -> tuple[Federation, Kits]:
    """Read what a folder of kits says of its federation."""
    if not (folder / KITS).exists():
        raise UsageError(f"--kits {folder}: holds no {KITS}: it is not a folder that `harmofl deploy init` made")
    return read_federation(folder / SERVER), read_part(Kits, folder / KITS)


def with_sites(federation: Federation, sites: list[str]) -> Federation:
    """The same federation with other sites."""
    return federation.model_copy(update={"sites": sites})


def delete(paths: Iterable[Path]) -> None:
    """Delete files, whether they are there or not."""
    for path in paths:
        path.unlink(missing_ok=True)


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """A folder that only its owner can open, and that gets its name when everything in it is there."""
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
        if place.exists():  # the authority may be offline when a site joins later
            place.chmod(0o700)
