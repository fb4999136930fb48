"""Certificates and FLARE's configuration for each party, with FLARE's own provisioner."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from nvflare.lighter.constants import CtxKey
from nvflare.lighter.entity import Project
from nvflare.lighter.impl.cert import CertBuilder
from nvflare.lighter.impl.static_file import StaticFileBuilder
from nvflare.lighter.impl.workspace import WorkspaceBuilder
from nvflare.lighter.provisioner import Provisioner
from nvflare.lighter.spec import Builder

from harmofl.deployment.kits import Federation
from harmofl.deployment.logs import LINE
from harmofl.deployment.nvflare.names import ENGINE, ORGANIZATION, SERVER, client_name
from harmofl.deployment.tls.address import Address
from harmofl.deployment.tls.requests import issue_site_certificate
from harmofl.errors import RunError, UsageError
from harmofl.files import PRIVATE, write_whole

AUTHORITY_DAYS = 3650
LARGEST_MESSAGE = 2**31 + 2**20
LARGEST_FRAME = 2**24
AUTHORITY_FILE = "cert.json"
STARTUP_FILES = {"client.crt", "client.key", "server.crt", "server.key", "rootCA.pem", "fed_client.json"}
STARTUP_FILES |= {"fed_server.json"}
"""What a FLARE process reads; its start scripts are left out, as `harmofl deploy start` replaces them."""

NOBODY: Mapping[str, Any] = {
    "format_version": "1.0",
    "permissions": dict.fromkeys(["project_admin", "org_admin", "lead", "member"], "none"),
}
"""FLARE's policy on who may submit jobs, read logs, run commands or stop a party: nobody."""

COMMUNICATION: Mapping[str, Any] = {
    "allow_adhoc_conns": False,
    "streaming_max_blob_size": LARGEST_MESSAGE,
    # FLARE opens a port on the loopback for job processes, of which there are none: it takes a certificate to get in.
    "internal": {"scheme": "tcp", "resources": {"host": "localhost", "connection_security": "mtls", "secure": True}},
    # Whoever connects has ten seconds to show a certificate; gRPC would wait two minutes. A frame lies in memory before
    # anybody can look at it: messages travel in parts of a megabyte, and FLARE would take frames of two gigabytes.
    "grpc": {
        "options": [
            ["grpc.max_send_message_length", LARGEST_FRAME],
            ["grpc.max_receive_message_length", LARGEST_FRAME],
            ["grpc.server_handshake_timeout_ms", 10_000],
        ]
    },
}


def provision(federation: Federation, folder: Path) -> None:
    """Add FLARE's part to the kits that have none yet; the others stay as they are."""
    authority = folder / "authority" / "nvflare"
    new_sites = [site for site in federation.sites if not (folder / "sites" / site / ENGINE).exists()]
    if not new_sites and (folder / "server" / ENGINE).exists():
        return
    with tempfile.TemporaryDirectory(dir=folder, prefix=".nvflare-") as scratch:
        made = run_provisioner(federation, new_sites, authority, Path(scratch))
        if not (folder / "server" / ENGINE).exists():
            listen_as_reached(made / SERVER / "startup" / "fed_server.json", federation)
            place(made / SERVER, folder / "server" / ENGINE, server_resources())
        for site in new_sites:
            limit_to_clients(made / client_name(site) / "startup" / "client.crt", client_name(site), authority)
            place(made / client_name(site), folder / "sites" / site / ENGINE, site_resources())


def limit_to_clients(path: Path, name: str, authority: Path) -> None:
    """Replace a site's certificate by one with which nobody can be a server; FLARE's says nothing of its use."""
    signer, issuer = read_authority(authority)
    made = x509.load_pem_x509_certificate(path.read_bytes())
    path.write_bytes(issue_site_certificate(signer, issuer, name, made.public_key()))


def read_authority(authority: Path) -> tuple[rsa.RSAPrivateKey, x509.Certificate]:
    """The key and the certificate that sign for the federation's parties."""
    kept = json.loads((authority / AUTHORITY_FILE).read_text(encoding="utf-8"))
    signer = load_pem_private_key(kept[CtxKey.ROOT_PRI_KEY].encode(), None)
    if not isinstance(signer, rsa.RSAPrivateKey):
        raise UsageError(f"{authority}: not the key of an authority")
    return signer, x509.load_pem_x509_certificate(kept[CtxKey.ROOT_CERT].encode())


def run_provisioner(federation: Federation, sites: list[str], authority: Path, scratch: Path) -> Path:
    """Let FLARE make its files for the server and some sites, signed by the federation's own authority."""
    state = scratch / federation.name / "state"
    state.mkdir(parents=True)
    if (authority / AUTHORITY_FILE).exists():
        shutil.copyfile(authority / AUTHORITY_FILE, state / AUTHORITY_FILE)
    builders = [
        WorkspaceBuilder(template_file="master_template.yml"),
        StaticFileBuilder(scheme="grpc"),
        CertBuilder(root_valid_days=AUTHORITY_DAYS),
    ]
    made = run(make_project(federation, sites), builders, scratch)
    keep_authority(state / AUTHORITY_FILE, authority)
    return made


def make_project(federation: Federation, sites: list[str]) -> Project:
    """Describe the server and some sites as FLARE's provisioner wants it."""
    project = Project(federation.name, "harmofl federation")
    address = Address.parse(federation.server)
    props = {"fed_learn_port": address.port, "admin_port": address.port, "default_host": address.host}
    project.set_server(SERVER, ORGANIZATION, props)
    for site in sites:
        project.add_client(client_name(site), ORGANIZATION, {})
    return project


def run(project: Project, builders: Sequence[Builder], scratch: Path) -> Path:
    """Run FLARE's provisioner; return the folder with what it made."""
    context = Provisioner(str(scratch), list(builders)).provision(project, logger=logging.getLogger(__name__))
    if context.get(CtxKey.BUILD_ERROR):
        raise RunError("NVIDIA FLARE could not make the kits; its message is above")
    return Path(context[CtxKey.CURRENT_PROD_DIR])


def listen_as_reached(path: Path, federation: Federation) -> None:
    """Make a server that sites reach on the loopback listen on nothing else."""
    configuration = json.loads(path.read_text(encoding="utf-8"))
    configuration["servers"][0]["service"]["target"] = federation.server
    path.write_text(json.dumps(configuration, indent=2) + "\n", encoding="utf-8")


def keep_authority(state: Path, authority: Path) -> None:
    """Keep what signs for sites that join later, and no party's private key."""
    everything = json.loads(state.read_text(encoding="utf-8"))
    root = {key: everything[key] for key in (CtxKey.ROOT_CERT, CtxKey.ROOT_PRI_KEY)}
    authority.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(authority / AUTHORITY_FILE, json.dumps(root), PRIVATE)


def place(made: Path, engine: Path, resources: Mapping[str, Any]) -> None:
    """Move a party's certificates into its kit, with a configuration that admits nobody but us."""
    for path in list((made / "startup").iterdir()):
        if path.name not in STARTUP_FILES:
            path.unlink()
    shutil.rmtree(made / "local")
    (made / "readme.txt").unlink(missing_ok=True)
    written = {
        "resources.json": resources,
        "authorization.json": NOBODY,
        "comm_config.json": COMMUNICATION,
        "log_config.json": log_configuration(),
    }
    (made / "local").mkdir()
    for name, content in written.items():
        (made / "local" / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    for key in made.rglob("*.key"):
        key.chmod(PRIVATE)
    shutil.move(made, engine)


def site_resources() -> dict[str, Any]:
    """Configure a site to run our component and no job: no launcher, and no class that a job could name."""
    return {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": [],
        "allow_log_streaming": False,
        "client": {"retry_timeout": 30, "compression": "Gzip"},
        "components": [{"id": "harmofl", "path": "harmofl.deployment.nvflare.site.SiteDesk", "args": {}}],
    }


def server_resources() -> dict[str, Any]:
    """Configure the server in the same way, without a job manager."""
    server = {"admin_storage": "transfer", "max_num_clients": 1000, "heart_beat_timeout": 600, "admin_timeout": 10.0}
    return {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": [],
        "servers": [server],
        "components": [{"id": "harmofl", "path": "harmofl.deployment.nvflare.server.ServerDesk", "args": {}}],
    }


def log_configuration() -> dict[str, Any]:
    """Log what we do to the terminal; of FLARE only warnings, to a file of limited size."""
    file = {
        "class": "logging.handlers.RotatingFileHandler",
        "formatter": "line",
        "filename": "log/log.txt",
        "maxBytes": 10 * 2**20,
        "backupCount": 3,
        "delay": True,
    }
    terminal = {"class": "logging.StreamHandler", "formatter": "line", "stream": "ext://sys.stdout"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": "harmofl.deployment.logs.OneLine", "fmt": LINE}},
        "handlers": {"file": file, "terminal": terminal},
        "root": {"level": "WARNING", "handlers": ["file"]},
        "loggers": {
            "harmofl": {"level": "INFO", "handlers": ["terminal"]},
            "nvflare.private.fed.server.job_runner": {"level": "CRITICAL"},  # it complains about missing jobs
        },
    }
