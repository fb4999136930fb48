"""Revoked sites stay out: by their key where the server knows it, by their name elsewhere."""

import json
from pathlib import Path

import pytest
from parties import SITES, make

from harmofl.deployment.audit import verify
from harmofl.deployment.kits import FEDERATION, ServerKit
from harmofl.deployment.provisioning import add_site, remove_site
from harmofl.deployment.revoking import revoke
from harmofl.errors import UsageError

ENGINES = ["flower", "nvflare"]
FIRST, SECOND, LAST = SITES


def admitted(kits: Path) -> list[str]:
    return ServerKit.open(kits / "server").federation.sites


@pytest.mark.parametrize("name", ENGINES)
def test_a_revoked_site_is_in_the_federation_no_more(tmp_path: Path, name: str) -> None:
    kits = make(tmp_path / "kits", engine=name)
    before = (kits / "server" / FEDERATION).read_text()
    assert revoke(kits / "server", SECOND, "laptop stolen") is None
    assert admitted(kits) == [FIRST, LAST]
    (kits / "server" / FEDERATION).write_text(before)  # an old copy brings nobody back
    assert admitted(kits) == [FIRST, LAST]
    with pytest.raises(UsageError, match="has been revoked before"):
        revoke(kits / "server", SECOND)
    with pytest.raises(UsageError, match="unknown site"):
        revoke(kits / "server", "hospital-9")


@pytest.mark.parametrize("name", ENGINES)
def test_who_revoked_whom_is_in_the_audit_log(tmp_path: Path, name: str) -> None:
    kits = make(tmp_path / "kits", engine=name)
    revoke(kits / "server", SECOND, "laptop stolen")
    log = kits / "server" / "audit.jsonl"
    assert verify(log).entries == 1
    entry = json.loads(log.read_text())
    assert (entry["asked"], entry["outcome"]) == ("deploy revoke", f"revoked: {SECOND} laptop stolen")


def test_in_the_folder_of_all_kits_it_says_what_to_copy(tmp_path: Path) -> None:
    kits = make(tmp_path / "kits")
    assert revoke(kits, SECOND) == kits / "server" / "revoked.toml"
    assert admitted(kits) == [FIRST, LAST]
    with pytest.raises(UsageError, match="a site's folder"):
        revoke(kits / "sites" / FIRST, FIRST)
    with pytest.raises(UsageError, match="one line"):
        revoke(kits, FIRST, "two\nlines")


def test_with_another_key_a_hospital_may_come_back_but_not_with_the_old_one(tmp_path: Path) -> None:
    kits = make(tmp_path / "kits")
    path = kits / "server" / "keys" / f"{SECOND}.pub"
    old = path.read_text()
    remove_site(kits, SECOND)
    add_site(kits, SECOND)
    assert admitted(kits) == [FIRST, LAST, SECOND]
    path.write_text(old.replace(SECOND, "another-comment"))
    assert admitted(kits) == [FIRST, LAST]


def test_a_damaged_list_lets_nobody_slip_in(tmp_path: Path) -> None:
    kits = make(tmp_path / "kits")
    revoke(kits / "server", SECOND)
    for spoiled in ("revoked = 1", "[[revoked]]", "[["):
        (kits / "server" / "revoked.toml").write_text(spoiled)
        with pytest.raises(UsageError, match=r"revoked\.toml"):
            admitted(kits)
