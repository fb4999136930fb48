"""Makes `parties` and `loopback` importable from every folder below, and the engine that starts nothing a fixture."""

import pytest
from parties import Quiet, quiet_engine


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Quiet:
    return quiet_engine(monkeypatch)
