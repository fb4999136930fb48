"""Each party gets its own key and nobody else's; a site can be added later."""

import json
import ssl
import stat
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="harmofl[nvflare] is not installed")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from flare_kits import SITES, federation, write_kits

from harmofl.deployment.nvflare.engine import engine
from harmofl.deployment.nvflare.names import SERVER, client_name
from harmofl.deployment.nvflare.provisioning import provision
from harmofl.errors import UsageError


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kits")
    write_kits(folder, federation(SITES))
    provision(federation(SITES), folder)
    return folder


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def common_name(path: Path) -> str:
    names = certificate(path).subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(names[0].value)


def private_keys(folder: Path) -> dict[str, Path]:
    """From a private key's text to the file that holds it."""
    return {
        path.read_text().replace("\\n", "\n").split("PRIVATE KEY-----\n")[1][:200]: path
        for path in folder.rglob("*")
        if path.is_file() and b"PRIVATE KEY" in path.read_bytes()
    }


def test_every_key_is_in_one_file_that_only_its_owner_can_read(kits: Path) -> None:
    found = private_keys(kits)
    assert {str(path.relative_to(kits)) for path in found.values()} == {
        "authority/nvflare/cert.json",
        "server/engine/startup/server.key",
        "sites/A/engine/startup/client.key",
        "sites/B.1/engine/startup/client.key",
    }
    assert {stat.S_IMODE(path.stat().st_mode) for path in found.values()} == {0o600}
    assert sum(path.read_text().count("PRIVATE KEY-----") for path in found.values()) == 2 * len(found)


def test_certificates_name_the_parties_and_are_signed_by_the_authority(kits: Path) -> None:
    root = certificate(kits / "server/engine/startup/rootCA.pem").public_key()
    assert isinstance(root, rsa.RSAPublicKey)
    named = {"server/engine/startup/server.crt": SERVER}
    named |= {f"sites/{site}/engine/startup/client.crt": client_name(site) for site in SITES}
    for path, name in named.items():
        signed = certificate(kits / path)
        root.verify(signed.signature, signed.tbs_certificate_bytes, padding.PKCS1v15(), signed.signature_hash_algorithm)
        assert common_name(kits / path) == name


def test_nobody_can_be_a_server_with_a_sites_certificate(kits: Path) -> None:
    startup = kits / "sites/A/engine/startup"
    usage = certificate(startup / "client.crt").extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [x509.ExtendedKeyUsageOID.CLIENT_AUTH]
    site = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    site.load_cert_chain(startup / "client.crt", startup / "client.key")
    other = ssl.create_default_context(cafile=startup / "rootCA.pem")
    other.check_hostname = False  # whatever the site calls itself
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        shake_hands(site, other)


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Exchange both sides' messages in memory, until the client is sure of the server."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    for end in ends * 3:
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()


def test_a_site_is_added_without_touching_the_others(kits: Path) -> None:
    before = {path: path.read_bytes() for path in kits.rglob("*") if path.is_file()}
    more = [*SITES, "C"]
    write_kits(kits, federation(more))
    kept = {path: content for path, content in before.items() if "engine" in path.parts or "authority" in path.parts}
    provision(federation(more), kits)
    assert {path: path.read_bytes() for path in kept} == kept
    assert (
        certificate(kits / "sites/C/engine/startup/client.crt").issuer
        == certificate(kits / "server/engine/startup/rootCA.pem").subject
    )


def test_nobody_may_submit_a_job_or_give_an_order(kits: Path) -> None:
    for local in [kits / "server/engine/local", kits / "sites/A/engine/local"]:
        resources = json.loads((local / "resources.json").read_text())
        permissions = json.loads((local / "authorization.json").read_text())["permissions"]
        assert [component["id"] for component in resources["components"]] == ["harmofl"]
        assert resources["class_allow_list"] == []
        assert set(permissions.values()) == {"none"}
    assert not list(kits.rglob("*.sh"))


def test_a_server_on_the_loopback_listens_on_nothing_else(kits: Path) -> None:
    server = json.loads((kits / "server/engine/startup/fed_server.json").read_text())["servers"][0]
    assert server["service"]["target"] == "127.0.0.1:9002"
    assert server["admin_port"] == 9002  # one port to open in a firewall
    assert server["connection_security"] == "mtls"


def test_an_address_that_flare_cannot_read_is_refused() -> None:
    with pytest.raises(UsageError, match="IPv4"):
        engine.read_address("::1")


def test_no_two_sites_share_a_name_at_flare() -> None:
    sites = ["A", "a", "ISBI_1.5", "ISBI_1-5", "server", "SERVER", "x" * 63, "x" * 62, "site-1", "site.1", "1", "true"]
    names = set(map(client_name, sites))
    assert len(names) == len(sites)
    assert all("." not in name and len(name) <= 40 for name in names)
    assert client_name("BIDMC") == "BIDMC"
    assert {"server", "1", "1e3", "nan", "yes", "True"}.isdisjoint(
        map(client_name, ["server", "1", "1e3", "nan", "yes"])
    )
    assert client_name(client_name("server")) != client_name("server")  # no site can choose another's name
