"""The federation's own authority, the server's certificate, and the sites' keys."""

import os
import ssl
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from harmofl.deployment.tls.certificates import (
    issue_server_certificate,
    make_authority,
    make_site_key,
    read_authority,
    read_certificate,
    read_validity,
)
from harmofl.errors import UsageError
from harmofl.files import write_whole


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    return make_authority(tmp_path / "authority")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_authority_signs_and_its_key_is_its_owners_alone(authority: Path) -> None:
    certificate = read_certificate(authority / "ca.crt")
    assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert (mode(authority), mode(authority / "ca.key")) == (0o700, 0o600)
    key, _ = read_authority(authority)
    assert isinstance(key.curve, ec.SECP384R1)


def test_an_authority_that_is_there_stays(authority: Path) -> None:
    before = (authority / "ca.crt").read_bytes(), (authority / "ca.key").read_bytes()
    make_authority(authority)
    assert ((authority / "ca.crt").read_bytes(), (authority / "ca.key").read_bytes()) == before


def test_the_servers_certificate_is_for_its_names_and_for_its_own_machine(authority: Path, tmp_path: Path) -> None:
    path = issue_server_certificate(authority, ["fl.example.org", "10.1.2.3", "::1"], tmp_path / "tls")
    names = read_certificate(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.1.2.3", "::1", "127.0.0.1"]
    assert mode(tmp_path / "tls" / "server.key") == 0o600
    assert (tmp_path / "tls" / "ca.crt").read_bytes() == (authority / "ca.crt").read_bytes()


def test_openssl_finds_the_chain_in_order(authority: Path, tmp_path: Path) -> None:
    path = issue_server_certificate(authority, ["fl.example.org"], tmp_path)
    check = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", str(authority / "ca.crt")]
    try:
        result = subprocess.run([*check, str(path)], capture_output=True, text=True, check=False)
    except FileNotFoundError:  # the same by Python's own OpenSSL, without strictness
        ssl.create_default_context(cafile=str(authority / "ca.crt"))
        return
    assert result.returncode == 0, result.stderr


def test_it_lasts_as_long_as_was_said(authority: Path, tmp_path: Path) -> None:
    validity = read_validity(issue_server_certificate(authority, ["a"], tmp_path, days=40))
    assert validity.days_left() == 39  # and a part of a day
    assert validity.days_left(datetime.now(UTC) + timedelta(days=41)) < 0
    assert validity.begins < datetime.now(UTC)


def test_flower_could_read_a_sites_key(tmp_path: Path) -> None:
    public = make_site_key(tmp_path, "hospital-0")
    private = load_ssh_private_key((tmp_path / "hospital-0").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.curve.name == "secp384r1"
    assert mode(tmp_path / "hospital-0") == 0o600
    known = load_ssh_public_key(public.read_bytes())
    assert isinstance(known, ec.EllipticCurvePublicKey)
    assert known.public_numbers() == private.public_key().public_numbers()
    assert public.read_text().startswith("ecdsa-sha2-nistp384 ")


def test_a_sites_key_is_never_replaced(tmp_path: Path) -> None:
    make_site_key(tmp_path, "A")
    with pytest.raises(UsageError, match="has a key already"):
        make_site_key(tmp_path, "A")


@pytest.mark.skipif(os.name == "nt", reason="modes of files are a matter of POSIX")
def test_nobody_else_can_read_a_private_file_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    fsync, replace = os.fsync, os.replace

    def look(*args: object) -> None:
        seen.extend(mode(path) for path in tmp_path.iterdir())

    monkeypatch.setattr(os, "fsync", lambda handle: (look(), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda a, b: (look(), replace(a, b)))
    before = os.umask(0)
    try:
        write_whole(tmp_path / "key", "secret", 0o600)
    finally:
        os.umask(before)
    look()
    assert seen == [0o600] * 4  # the content is synced, takes its name, the folder is synced; afterwards


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "ca.key").unlink(), "ca.key: No such file"),
        (lambda folder: (folder / "ca.key").write_text("x"), "ca.key: not the key of an authority"),
        (lambda folder: (folder / "ca.crt").write_text("x"), "ca.crt: not a certificate"),
    ],
)
def test_a_broken_authority_is_named(authority: Path, tmp_path: Path, damage: object, words: str) -> None:
    damage(authority)  # type: ignore[operator]
    with pytest.raises(UsageError, match=words):
        issue_server_certificate(authority, ["a"], tmp_path / "tls")
    assert not (tmp_path / "tls").exists()
