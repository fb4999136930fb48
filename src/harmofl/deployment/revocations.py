"""Whom the server no longer lets in, whatever keys and certificates they have: `revoked.toml` in its folder.

A running server looks at the file every few seconds. It stands above `federation.toml`: an old copy of that brings
nobody back.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harmofl.errors import STRICT, UsageError, describe
from harmofl.files import write_whole
from harmofl.settings import read_toml

REVOKED = "revoked.toml"
COMMENT = "# Whom the server no longer lets in (`harmofl deploy revoke`). It stands above federation.toml.\n"


class Revocation(BaseModel):
    """One site that was shut out."""

    model_config = ConfigDict(frozen=True, **STRICT)

    site: str
    key_file: str = Field("", description="where the server keeps the site's key; empty: the name is shut out for ever")
    key: str = Field("", description="the key's digest: with another one, the name may come back")
    time: str = ""
    by: str = ""
    reason: str = ""

    def holds(self, folder: Path) -> bool:
        """Whether the site is still shut out: it has no other key now."""
        return not self.key_file or key_digest(folder / self.key_file) in ("", self.key)


class Revocations(BaseModel):
    """The file's content."""

    model_config = ConfigDict(frozen=True, **STRICT)

    revoked: list[Revocation] = []


def read_revocations(folder: Path) -> list[Revocation]:
    """Those of a server's folder; an unreadable file is an error, as it could hide one."""
    if not (folder / REVOKED).exists():
        return []
    try:
        return Revocations.model_validate(read_toml(folder / REVOKED)).revoked
    except ValidationError as error:
        raise UsageError(f"{folder / REVOKED}: {describe(error)}") from None


def without_revoked(folder: Path, sites: Sequence[str]) -> list[str]:
    """The sites that the server lets in."""
    revoked = {each.site for each in read_revocations(folder) if each.holds(folder)}
    return [site for site in sites if site not in revoked]


def add_revocation(folder: Path, site: str, key_files: Sequence[str], by: str, reason: str = "") -> Revocation:
    """Shut a site out; `key_files`: where its server keeps its key, if it does."""
    key_file = next(iter(key_files), "")
    digest = key_digest(folder / key_file) if key_file else ""
    now = time.strftime("%FT%TZ", time.gmtime())
    added = Revocation(site=site, key_file=key_file if digest else "", key=digest, time=now, by=by, reason=reason)
    everything = Revocations(revoked=[*read_revocations(folder), added])
    write_whole(folder / REVOKED, COMMENT + tomli_w.dumps(everything.model_dump()))
    return added


def key_digest(path: Path) -> str:
    """The digest of a public key, whatever the comment beside it says; empty if there is none."""
    try:
        return digest_of_key(path.read_bytes())
    except OSError:
        return ""


def digest_of_key(text: bytes) -> str:
    """The digest of a public key as OpenSSH writes it."""
    return hashlib.sha256(b" ".join(text.split()[:2])).hexdigest()
