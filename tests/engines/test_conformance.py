"""On every engine, with real processes, a run gives the same bits as in one process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from federations import THREE, Live, live

from harmofl import registry
from runs import differences, train

METHODS = ["fedavg", "fedbn", "moon", "fedadam", "scaffold", "median", "fedrdn", "harmofl"]
FIRST = "harmofl"
"""The one that `make test` runs; `make test-engines` runs the others."""


@pytest.fixture(scope="module", params=registry.engines.names())
def federation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One start for all methods: a hospital's process stays, whatever it is asked next."""
    with live(tmp_path_factory.mktemp(request.param), request.param) as started:
        yield started


@pytest.mark.parametrize(
    "method", [method if method == FIRST else pytest.param(method, marks=pytest.mark.engines) for method in METHODS]
)
def test_an_engine_changes_no_bit(tmp_path: Path, federation: Live, method: str) -> None:
    train(tmp_path / "here", method, data__sites=THREE)
    federation.run(tmp_path / "there", method)
    assert differences(tmp_path / "here", tmp_path / "there", stores=False) == []
