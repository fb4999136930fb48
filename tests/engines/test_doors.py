"""Real federations whose sites made their own keys; one that is revoked is cut off within a minute, for good."""

import time
from pathlib import Path

import pytest
from federations import Live, free_port, live, need_engine, wait_until

from harmofl.deployment.accepting import accept
from harmofl.deployment.engine import find_engine
from harmofl.deployment.joining import install_certificate, make_own_request
from harmofl.deployment.kits import SiteKit
from harmofl.deployment.provisioning import make_federation, make_kits
from harmofl.deployment.revoking import revoke
from runs import SITES

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


@pytest.mark.parametrize("engine", ["flower", "nvflare"])
def test_a_revoked_site_is_cut_off_within_a_minute_and_cannot_come_back(tmp_path: Path, engine: str) -> None:
    need_engine(engine)
    make_own_keys(tmp_path / "kits", engine)
    with live(tmp_path / "kits", engine, [STAYS, LEAVES]) as federation:
        federation.wait_until_connected(2)
        federation.run(tmp_path / "before", rounds=1)
        watched = find_engine(engine).connect(federation.kit)
        with watched as transport:  # a run that has begun before, and knows the site
            assert sorted(transport._find_connected()) == [STAYS, LEAVES]  # type: ignore[attr-defined]
            began = time.monotonic()
            revoke(federation.kit.folder, LEAVES, "a test")
            wait_until(
                lambda: sorted(transport._find_connected()) == [STAYS],  # type: ignore[attr-defined]
                "it is cut off",
                seconds=MINUTE,
            )
            print(f"{engine}: cut off after {time.monotonic() - began:.1f} s")
        federation.stop(LEAVES)
        federation.start(LEAVES)
        deadline = time.monotonic() + 15  # an honest site is connected after a few seconds
        while time.monotonic() < deadline:
            assert connected(federation) == [STAYS]
            time.sleep(1)
