"""Flower's processes as children: environment, secrets, last words."""

from pathlib import Path

import pytest

from harmofl.deployment.flower import addresses, children
from harmofl.deployment.flower.children import Child, environment
from harmofl.deployment.kits import Federation, ServerKit
from harmofl.deployment.tls.address import Address
from harmofl.errors import RunError, UsageError


def federation() -> Federation:
    return Federation(engine="flower", server="server.example:8443", sites=["A"])


def test_flower_tells_nobody_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "intranet")
    values = environment(tmp_path)
    assert values["FLWR_TELEMETRY_ENABLED"] == "0"
    assert values["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert values["FLWR_HOME"].startswith(str(tmp_path))
    assert values["NO_PROXY"] == "intranet,127.0.0.1,localhost,::1"


def test_a_child_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "PROGRAMS", "harmofl.deployment.no_such_package")
    heard: list[str] = []
    child = Child("superlink", [], tmp_path, heard.append)
    child.process.wait(30)
    assert "no_such_package" in child.last_words()
    assert child.ended
    child.stop()
    assert heard
    assert "no_such_package" in (tmp_path / "superlink.log").read_text()


def test_addresses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert addresses.listening_address(federation()) == Address("0.0.0.0", 8443)
    assert addresses.local_address(Address("0.0.0.0", 8443)) == "127.0.0.1:8443"
    monkeypatch.setenv(addresses.LISTEN, "127.0.0.1:9000")
    assert addresses.listening_address(federation()) == Address("127.0.0.1", 9000)
    monkeypatch.setenv(addresses.LISTEN, "9000")
    with pytest.raises(UsageError, match="HOST:PORT"):
        addresses.listening_address(federation())
    with pytest.raises(RunError, match="deploy start"):
        addresses.running_address(ServerKit(tmp_path, federation()))
