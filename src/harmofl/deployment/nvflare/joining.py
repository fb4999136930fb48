"""FLARE's part of `harmofl deploy join` and `accept`: start-up kits without keys, and signed certificates for them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from nvflare.lighter.impl.static_file import StaticFileBuilder
from nvflare.lighter.impl.workspace import WorkspaceBuilder

from harmofl.deployment.kits import Federation
from harmofl.deployment.nvflare.names import ENGINE, client_name
from harmofl.deployment.nvflare.provisioning import make_project, place, provision, read_authority, run, site_resources
from harmofl.deployment.tls.requests import issue_site_certificate
from harmofl.errors import UsageError

AUTHORITY = Path(ENGINE) / "startup" / "rootCA.pem"


def invite(federation: Federation, folder: Path) -> None:
    """Make the server's part, and FLARE's configuration for each site, without keys and certificates of sites."""
    provision(federation.model_copy(update={"sites": []}), folder)
    new_sites = [site for site in federation.sites if not (folder / "sites" / site / ENGINE).exists()]
    if not new_sites:
        return
    with tempfile.TemporaryDirectory(dir=folder, prefix=".nvflare-") as scratch:
        builders = [WorkspaceBuilder(template_file="master_template.yml"), StaticFileBuilder(scheme="grpc")]
        made = run(make_project(federation, new_sites), builders, Path(scratch))
        for site in new_sites:
            own = made / client_name(site)
            (own / "startup" / AUTHORITY.name).write_bytes((folder / "server" / AUTHORITY).read_bytes())
            place(own, folder / "sites" / site / ENGINE, site_resources())


def admit(folder: Path, site: str, request: x509.CertificateSigningRequest) -> bytes:
    """Sign a certificate for a site's key, under FLARE's name for the site; the server needs nothing more."""
    key = request.public_key()
    if not isinstance(key, rsa.RSAPublicKey) or key.key_size < 2048:
        raise UsageError(f"the request of {site!r}: NVIDIA FLARE needs an RSA key of at least 2048 bits")
    signer, issuer = read_authority(folder / "authority" / "nvflare")
    return issue_site_certificate(signer, issuer, client_name(site), key)
