"""The files of a kit that help a person: start script, README, service, container, and examples of settings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from harmofl import registry
from harmofl.deployment.engine import Engine
from harmofl.deployment.kits import SERVER, SITE, Federation, Kits, write_part
from harmofl.deployment.versions import VERSIONS, Versions
from harmofl.files import write_whole
from harmofl.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

HOME = "/var/lib/harmofl"
EXECUTABLE = 0o755
ABOUT_VERSIONS = "What `harmofl deploy check` compares with what is installed."
LOWEST_FREE_PORT = 1024


def write_server_papers(folder: Path, federation: Federation, engine: Engine, kits: Kits) -> None:
    """Write the server's, with an example of a run."""
    write_common_papers(folder, federation, engine, kits)
    write_whole(folder / SERVER, render("templates/server.toml"))
    write_whole(folder / "run.toml", render("templates/run.toml", task=kits.tasks[0], synthetic=kits.synthetic))


def write_site_papers(folder: Path, federation: Federation, engine: Engine, kits: Kits, site: str) -> None:
    """Write a site's, with the settings that it decides on."""
    write_common_papers(folder, federation, engine, kits, site)
    write_site_settings(folder, site, kits)


def write_site_settings(folder: Path, site: str, kits: Kits, guest: bool = False) -> None:
    """Write what a site decides on; a guest takes part in a federation that others run."""
    words = {"site": site, "tasks": kits.tasks, "synthetic": kits.synthetic, "all_tasks": registry.tasks.names()}
    write_whole(folder / SITE, render("templates/site.toml", **words, guest=guest))


def write_common_papers(folder: Path, federation: Federation, engine: Engine, kits: Kits, site: str = "") -> None:
    """Write the files that server and sites both have, each party's in its own words."""
    service = "harmofl-site.service" if site else "harmofl-server.service"
    versions, port = Versions.installed(engine), engine.port(federation)
    words = {
        "federation": federation.name,
        "server": federation.server,
        "port": port,
        "requirements": engine.requirements(__version__, versions.engine),
        "has_key": engine.credentials != "none",
        "makes_key": site in kits.own_keys,
        "site": site,
        "synthetic": kits.synthetic,
        "service": service,
        "home": f"{HOME}/{'site' if site else 'server'}",
        "needs_low_port": not site and port is not None and port < LOWEST_FREE_PORT,
        "notes": engine.server_notes,
    }
    write_part(folder / VERSIONS, versions, ABOUT_VERSIONS)
    write_whole(folder / "start.sh", render("templates/start.sh"), EXECUTABLE)
    write_whole(folder / "README.md", render("templates/site.md" if site else "templates/server.md", **words))
    write_whole(folder / service, render("templates/service", **words))
    write_image(folder, engine, versions)
    write_whole(folder / "compose.yaml", render("templates/compose.yaml", **words))


def write_image(folder: Path, engine: Engine, versions: Versions, locked: Sequence[str] = ()) -> None:
    """Write how a container's image is made; `locked`: the files of the folder that say exactly what is in it."""
    requirements = engine.requirements(versions.harmofl, versions.engine)
    text = render("templates/Dockerfile", requirements=requirements, locked=locked)
    write_whole(folder / "Dockerfile", text)
    write_whole(folder / ".dockerignore", render("templates/dockerignore", locked=locked))


def write_overview(folder: Path, federation: Federation, engine: Engine, kits: Kits) -> None:
    """Say which folder is for whom."""
    words: dict[str, object] = {"federation": federation.name, "server": federation.server, "sites": federation.sites}
    words["own_keys"] = kits.own_keys
    text = render("templates/kits.md", **words, has_key=engine.credentials != "none", expires=bool(engine.expiring([])))
    write_whole(folder / "README.md", text)


@cache
def templates() -> Environment:
    """Open the templates, in which a name that is not given is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("harmofl.deployment", "")
    return Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)


def render(template: str, /, **words: object) -> str:
    """Fill in a template, given by its path below this package."""
    return templates().get_template(f"{template}.j2").render(words)
