"""On every engine, with real processes, a run gives the same bits as in one process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from federations import THREE, Live, live, run_options

from harmofl import registry
from harmofl.analysis.hospital_surveys import surveys_of
from harmofl.deployment.surveys import ask_for_surveys
from runs import differences, train

METHODS = ["fedavg", "fedbn", "moon", "fedadam", "scaffold", "median", "fedrdn", "fedlesam", "ditto", "harmofl"]
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


@pytest.mark.engines
def test_an_engine_changes_no_bit_of_updates_in_eight_bits(tmp_path: Path, federation: Live) -> None:
    train(tmp_path / "here", data__sites=THREE, federation__transport="int8")
    federation.run(tmp_path / "there", federation__transport="int8")
    assert differences(tmp_path / "here", tmp_path / "there", stores=False) == []


@pytest.mark.engines
def test_an_engine_changes_no_number_of_a_survey(federation: Live) -> None:
    options = run_options(data__images=40)
    settings, surveys = ask_for_surveys(federation.kit, options, wait=90)
    assert list(surveys) == THREE
    assert all(survey.is_open for survey in surveys.values())
    assert surveys == surveys_of(settings)
