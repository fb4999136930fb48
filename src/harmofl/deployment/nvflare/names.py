"""What FLARE calls the parties, and where its files are in their kits."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

SERVER = "harmofl-server"
"""The server's name in its certificate."""

ORGANIZATION = "harmofl"
ENGINE = "engine"
KIT_VARIABLE = "HARMOFL_KIT"
"""How a FLARE process learns which kit it works for: from its own machine, never from the other side."""

SITE_VARIABLE = "HARMOFL_SITE"
SERVER_VARIABLE = "HARMOFL_SERVER"
"""Name a party's folder in a federation that others provisioned, if it is not in its workspace."""

CONTROLLER = "harmofl.deployment.nvflare.controller.RunController"
EXECUTOR = "harmofl.deployment.nvflare.executor.SiteExecutor"
"""The classes that a job names: the server must allow the first, each site the second."""

TASK = "harmofl"
"""What a job asks of a site, and what the bytes of a request and of its answer are called."""

RUN_FILE = "run.toml"
"""What a job is to train, beside FLARE's own files in the job's config folder."""

PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
RESERVED = {"server", SERVER, "nan", "inf", "infinity", "true", "false", "yes", "no", "t", "f", "y", "n", "on", "off"}
"""Names that FLARE reserves, or reads as a number or an answer on its command line."""


def client_name(site: str) -> str:
    """A site's name at FLARE, which gives dots a meaning of its own and reserves some names."""
    if PLAIN.fullmatch(site) and site.lower() not in RESERVED and not site.startswith("site-"):
        return site
    return "site-" + hashlib.sha256(site.encode()).hexdigest()[:24]


def workspace(kit: Path) -> Path:
    """FLARE's folder in a party's kit."""
    return kit / ENGINE


def relay_socket(kit: Path) -> Path:
    """Where a run on the server's machine reaches the FLARE server."""
    return workspace(kit) / "relay.sock"


def own_folder(local: Path, variable: str) -> Path:
    """Where a party keeps what is harmofl's, in a workspace that others provisioned.

    `local`: the workspace's folder of that name, in which a party decides for itself. `variable`: what names another.
    """
    return Path(os.environ.get(variable) or local / "harmofl").expanduser()
