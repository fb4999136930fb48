"""A site's own key: who asks proves to have it, and two people compare one number."""

import re
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from harmofl.deployment.tls.certificates import make_authority, read_authority, read_certificate
from harmofl.deployment.tls.requests import (
    Algorithm,
    check_issued,
    compute_fingerprint,
    issue_site_certificate,
    make_private_key,
    make_request,
    public_bytes,
    read_private_key,
    read_request,
    requested_name,
    same_fingerprint,
)
from harmofl.errors import UsageError


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    return make_authority(tmp_path / "authority")


@pytest.mark.parametrize(("algorithm", "bits"), [("ec", 384), ("rsa", 3072)])
def test_a_key_is_its_owners_and_is_read_back(tmp_path: Path, algorithm: Algorithm, bits: int) -> None:
    key = make_private_key(tmp_path / "key", algorithm)
    assert key.key_size == bits
    assert (tmp_path / "key").stat().st_mode & 0o077 == 0
    assert public_bytes(read_private_key(tmp_path / "key").public_key()) == public_bytes(key.public_key())


def test_a_request_tells_the_name_and_the_public_key_and_not_the_private_one(tmp_path: Path) -> None:
    key = make_private_key(tmp_path / "key", "ec")
    path = tmp_path / "A.csr"
    path.write_bytes(make_request(key, "A"))
    request = read_request(path)
    assert requested_name(path, request) == "A"
    assert public_bytes(request.public_key()) == public_bytes(key.public_key())
    assert b"PRIVATE" not in path.read_bytes()


def test_a_request_that_was_changed_is_refused(tmp_path: Path) -> None:
    request = x509.load_pem_x509_csr(make_request(make_private_key(tmp_path / "key", "ec"), "Aachen"))
    from cryptography.hazmat.primitives.serialization import Encoding

    changed = request.public_bytes(Encoding.DER).replace(b"Aachen", b"Boston")
    (tmp_path / "A.csr").write_bytes(x509.load_der_x509_csr(changed).public_bytes(Encoding.PEM))
    with pytest.raises(UsageError, match="signature is wrong"):
        read_request(tmp_path / "A.csr")


@pytest.mark.parametrize("content", [b"", b"nothing", b"x" * 100_000])
def test_what_is_no_request_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "A.csr").write_bytes(content)
    with pytest.raises(UsageError, match=r"A\.csr: (not a request|too large)"):
        read_request(tmp_path / "A.csr")
    with pytest.raises(UsageError, match="No such file"):
        read_request(tmp_path / "B.csr")


def test_a_sites_certificate_is_for_sites_only(tmp_path: Path, authority: Path) -> None:
    signer, issuer = read_authority(authority)
    key = make_private_key(tmp_path / "key", "ec")
    (tmp_path / "A.crt").write_bytes(issue_site_certificate(signer, issuer, "A", key.public_key()))
    certificate = check_issued(tmp_path / "A.crt", key, authority / "ca.crt")
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    other = make_private_key(tmp_path / "other", "ec")
    with pytest.raises(UsageError, match="another key"):
        check_issued(tmp_path / "A.crt", other, authority / "ca.crt")
    with pytest.raises(UsageError, match="not signed by this federation's authority"):
        check_issued(tmp_path / "A.crt", key, make_authority(tmp_path / "stranger") / "ca.crt")


def test_the_number_changes_with_everything_that_must_be_the_same(tmp_path: Path, authority: Path) -> None:
    own = read_certificate(authority / "ca.crt")
    stranger = read_certificate(make_authority(tmp_path / "stranger") / "ca.crt")
    key, other = (make_private_key(tmp_path / name, "ec").public_key() for name in ("key", "other"))
    numbers = [
        compute_fingerprint(own, "fl.example.org:8443", "A", key),
        compute_fingerprint(stranger, "fl.example.org:8443", "A", key),
        compute_fingerprint(own, "fl.example.com:8443", "A", key),
        compute_fingerprint(own, "fl.example.org:8443", "B", key),
        compute_fingerprint(own, "fl.example.org:8443", "A", other),
    ]
    assert len(set(numbers)) == 5
    assert all(re.fullmatch(r"\d{5}( \d{5}){5}", number) for number in numbers)
    assert compute_fingerprint(own, "fl.example.org:8443", "A", key) == numbers[0]


def test_digits_are_compared_however_they_are_written() -> None:
    number = "01234 56789 01234 56789 01234 56789"
    assert same_fingerprint(number, number.replace(" ", "-"))
    assert not same_fingerprint(number, number[:-1])
    assert not same_fingerprint("", "")
