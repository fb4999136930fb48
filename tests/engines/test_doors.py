"""Real federations whose sites made their own keys; one that is revoked is cut off within a minute, for good."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from federations import Live, free_port, need_engine, wait_until

from harmofl.deployment.accepting import accept
from harmofl.deployment.engine import find_engine
from harmofl.deployment.joining import install_certificate, make_own_request
from harmofl.deployment.kits import SiteKit
from harmofl.deployment.provisioning import make_federation, make_kits
from harmofl.deployment.revoking import revoke
from runs import HARMOFL, SITES

pytestmark = pytest.mark.engines

STAYS, LEAVES = SITES[:2]
MINUTE = 60.0


def connected(federation: Live) -> list[str]:
    """The sites that the server could ask now, of all that it ever knew."""
    with find_engine(federation.kit.federation.engine).connect(federation.kit) as transport:
        return sorted(transport._find_connected())  # type: ignore[attr-defined]


def make_own_keys(folder: Path, engine: str) -> None:
    make_kits(
        make_federation(engine, f"localhost:{free_port()}", [STAYS, LEAVES]),
        folder,
        ["histology"],
        synthetic=True,
        with_keys=False,
    )
    for site in (STAYS, LEAVES):
        kit = SiteKit.open(folder / "sites" / site)
        request = make_own_request(kit)
        accepted = accept(folder, request.path, lambda site, number, own=request: number == own.fingerprint)  # type: ignore[misc]
        install_certificate(kit, accepted.certificate)


def serve_health_at(path: Path) -> int:
    port = free_port()
    path.write_text(f"health_port = {port}\n{path.read_text()}")
    return port


def health(port: int) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
            return dict(json.load(answer))
    except urllib.error.HTTPError as error:  # not well
        return dict(json.load(error))
    except urllib.error.URLError:  # just being started
        return {}


def figures(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


@contextmanager
def started(folder: Path) -> Iterator[Live]:
    """All parties, by the command of their start scripts."""
    federation = Live(folder)
    try:
        for name in ("server", STAYS, LEAVES):
            federation.start(name, [*HARMOFL, "deploy", "start"])
        wait_until(federation.is_up, "the server runs", federation.processes["server"])
        federation.wait_until_connected(2)
        yield federation
    finally:
        federation.stop_all()


@pytest.mark.parametrize("engine", ["flower", "nvflare"])
def test_a_revoked_site_is_cut_off_within_a_minute_and_cannot_come_back(tmp_path: Path, engine: str) -> None:
    need_engine(engine)
    kits = tmp_path / "kits"
    make_own_keys(kits, engine)
    server_port = serve_health_at(kits / "server" / "server.toml")
    site_port = serve_health_at(kits / "sites" / LEAVES / "site.toml")
    with started(kits) as federation:
        federation.run(tmp_path / "run", rounds=2)
        wait_until(
            lambda: health(server_port).get("connected") == [STAYS, LEAVES], "health says who is there", seconds=10
        )
        assert (health(site_port)["connected"], health(site_port)["last_round"]) == (["server"], 2)
        assert figures(site_port)['harmofl_answers_total{asked="train",outcome="done"}'] == 2
        assert figures(server_port)['harmofl_answers_total{asked="train",outcome="done"}'] == 4
        with find_engine(engine).connect(federation.kit) as transport:  # a run that knows the site already
            assert sorted(transport._find_connected()) == [STAYS, LEAVES]  # type: ignore[attr-defined]
            began = time.monotonic()
            revoke(federation.kit.folder, LEAVES, "a test")
            wait_until(
                lambda: sorted(transport._find_connected()) == [STAYS],  # type: ignore[attr-defined]
                "it is cut off",
                seconds=MINUTE,
            )
            assert time.monotonic() - began < MINUTE
            print(f"{engine}: cut off after {time.monotonic() - began:.1f} s")
        federation.stop(LEAVES)
        federation.start(LEAVES, [*HARMOFL, "deploy", "start"])
        deadline = time.monotonic() + 15  # an honest site is connected after a few seconds
        while time.monotonic() < deadline:
            assert connected(federation) == [STAYS]
            time.sleep(1)
        wait_until(lambda: health(server_port).get("connected") == [STAYS], "health says that it is gone", seconds=10)
        wait_until(lambda: health(site_port).get("ok") is False, "the site knows that it is not connected", seconds=60)
