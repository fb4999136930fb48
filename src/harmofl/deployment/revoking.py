"""`harmofl deploy revoke`: shuts a site out of a running federation, within seconds."""

from __future__ import annotations

from pathlib import Path

from harmofl.deployment.audit import audit_log, user_name, write_entry
from harmofl.deployment.engine import find_engine
from harmofl.deployment.kits import is_site, read_federation
from harmofl.deployment.provisioning import KITS, SERVER
from harmofl.deployment.revocations import REVOKED, add_revocation, without_revoked
from harmofl.errors import UsageError, unknown_name


def revoke(folder: Path, site: str, reason: str = "") -> Path | None:
    """Shut a site out, in the server's folder or in that of all kits; return what to copy to the server, if needed."""
    in_kits = (folder / KITS).exists()
    server = folder / SERVER if in_kits else folder
    if is_site(server):
        raise UsageError(f"{server}: a site's folder; sites are shut out in the server's")
    federation = read_federation(server)
    if site not in federation.sites:
        raise unknown_name("site", site, federation.sites)
    if site not in without_revoked(server, federation.sites):
        raise UsageError(f"site {site!r}: it has been revoked before ({server / REVOKED})")
    if not reason.isprintable():
        raise UsageError(f"--reason {reason!r}: must be one line of text")
    who = user_name()
    key_files = find_engine(federation.engine).server_files([site])
    write_entry(audit_log(server), who=who, asked="deploy revoke", outcome=f"revoked: {site} {reason}".strip())
    add_revocation(server, site, key_files, who, reason)
    return server / REVOKED if in_kits else None
