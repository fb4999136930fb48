"""The reverse proxy's rule, tried with nginx where it is installed: sites work through it, and nothing else passes."""

import os
import shutil
import ssl
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from federations import THREE, Live, free_port, make_kits, wait_until

from harmofl.deployment.flower.addresses import LISTEN
from harmofl.deployment.flower.guard import PUBLIC_KEY, SIGNATURE, TIMESTAMP
from harmofl.deployment.flower.identities import client_context, public_text, read_key
from harmofl.deployment.flower.provisioning import proxy_rule
from harmofl.deployment.tls.address import Address

pytestmark = pytest.mark.engines

NGINX = os.environ.get("HARMOFL_NGINX") or shutil.which("nginx")


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    """A federation whose sites know the proxy's port only."""
    if NGINX is None:
        pytest.skip("nginx is not installed")
    make_kits(tmp_path, "flower", THREE[:2])
    federation, upstream = Live(tmp_path), f"127.0.0.1:{free_port()}"
    monkeypatch.setenv(LISTEN, upstream)
    with proxy(NGINX, federation, upstream):
        try:
            for name in ("server", *THREE[:2]):
                federation.start(name)
            wait_until((tmp_path / "server/engine/address").exists, "the server listens")
            yield federation
        finally:
            federation.stop_all()


@contextmanager
def proxy(nginx: str, federation: Live, upstream: str) -> Iterator[None]:
    kit, folder = federation.kit, federation.folder / "nginx"
    folder.mkdir()
    address = Address.parse(kit.federation.server)
    rule = proxy_rule(address, Address.parse(upstream).port, str(kit.folder / "tls"))
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    whole = f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;\n"
    whole += f"events {{}}\nhttp {{\naccess_log {folder}/access.log;\n{paths}{rule}}}\n"
    (folder / "nginx.conf").write_text(whole)
    process = subprocess.Popen([nginx, "-p", str(folder), "-e", str(folder / "error.log"), "-c", "nginx.conf"])
    try:
        yield
    finally:
        process.terminate()
        process.wait(10)


def test_sites_work_through_the_proxy_and_nothing_else_passes(tmp_path: Path, federation: Live) -> None:
    federation.run(tmp_path / "run", rounds=1)
    assert "error" not in (tmp_path / "run" / "records.jsonl").read_text()
    kit = federation.kit
    context = ssl.create_default_context(cafile=str(kit.folder / "tls" / "ca.crt"))
    with httpx.Client(verify=context, base_url=f"https://{kit.federation.server}") as client:
        for path in ("/v1/control/list-runs", "/v1/runtime/acquire-task", "/docs", "/"):
            assert client.post(path).status_code == 404
        assert client.post("/v1/fleet/pull-messages").status_code == 401
        assert client.post("/v1/fleet/push-object", content=b"x" * 17 * 2**20).status_code in (401, 413)
        assert client.post("/v1/fleet/pull-messages", headers=stolen_headers(tmp_path)).status_code == 401
    own, other = (client_of(tmp_path, site) for site in THREE[:2])
    assert post(own, federation, stolen_headers(tmp_path)) not in (401, 404)  # its owner's
    assert post(other, federation, stolen_headers(tmp_path)) == 401


def stolen_headers(folder: Path) -> dict[str, str]:
    """What a site sends with each request, as somebody might have it from a log."""
    key, now = read_key(key_of(folder, THREE[0])), datetime.now(UTC).isoformat()
    signature = key.sign(now.encode(), ec.ECDSA(hashes.SHA256()))
    headers = {PUBLIC_KEY: public_text(key.public_key()), SIGNATURE: signature}
    return {name.decode(): b64encode(value).decode() for name, value in headers.items()} | {TIMESTAMP.decode(): now}


def key_of(folder: Path, site: str) -> Path:
    return folder / "sites" / site / "keys" / site


def client_of(folder: Path, site: str) -> ssl.SSLContext:
    authority = (folder / "sites" / site / "tls" / "ca.crt").read_bytes()
    return client_context(authority, read_key(key_of(folder, site)))


def post(context: ssl.SSLContext, federation: Live, headers: dict[str, str]) -> int:
    with httpx.Client(verify=context, base_url=f"https://{federation.kit.federation.server}") as client:
        return client.post("/v1/fleet/pull-messages", headers=headers).status_code
