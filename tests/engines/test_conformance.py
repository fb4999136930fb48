"""On every engine, with real processes, a run gives the same bits as in one process."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from federations import THREE, Live, live, run_options
from typer.testing import CliRunner

from harmofl import registry
from harmofl.analysis.hospital_surveys import surveys_of
from harmofl.cli import app
from harmofl.deployment.audit import audit_log
from harmofl.deployment.surveys import ask_for_surveys
from runs import differences, train

METHODS = ["fedavg", "fedbn", "moon", "fedadam", "scaffold", "median", "fedrdn", "fedlesam", "ditto", "harmofl"]

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module", params=registry.engines.names())
def federation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One start for all methods: a hospital's process stays, whatever it is asked next."""
    with live(tmp_path_factory.mktemp(request.param), request.param) as started:
        yield started


@pytest.mark.parametrize("method", METHODS)
def test_an_engine_changes_no_bit(tmp_path: Path, federation: Live, method: str) -> None:
    train(tmp_path / "here", method, data__sites=THREE)
    federation.run(tmp_path / "there", method)
    assert differences(tmp_path / "here", tmp_path / "there", stores=False) == []


def test_an_engine_changes_no_bit_of_updates_in_eight_bits(tmp_path: Path, federation: Live) -> None:
    train(tmp_path / "here", data__sites=THREE, federation__transport="int8")
    federation.run(tmp_path / "there", federation__transport="int8")
    assert differences(tmp_path / "here", tmp_path / "there", stores=False) == []


def test_an_engine_changes_no_bit_of_a_secure_sum(tmp_path: Path, federation: Live) -> None:
    secure = {"federation__secure_aggregation": True}
    train(tmp_path / "here", "harmofl", data__sites=THREE, **secure)
    federation.run(tmp_path / "there", "harmofl", **secure)
    assert differences(tmp_path / "here", tmp_path / "there", stores=False) == []
    for site in THREE:
        assert '"asked": "unmask"' in audit_log(federation.place(site)).read_text()


def test_an_engine_changes_no_number_of_a_survey(federation: Live) -> None:
    options = run_options(data__images=40)
    settings, surveys = ask_for_surveys(federation.kit, options, wait=90)
    assert list(surveys) == THREE
    assert all(survey.is_open for survey in surveys.values())
    assert surveys == surveys_of(settings)


def test_an_engine_changes_no_number_of_a_comparison_or_a_plan(tmp_path: Path, federation: Live) -> None:
    chosen = ["--task", "histology", "--preset", "smoke", "--set", "data.images=40", "--quiet"]
    here, there = ["--set", f"data.sites={json.dumps(THREE)}"], ["--kit", str(federation.kit.folder), "--wait", "90"]
    compared = [run_command("data", "compare", *chosen, *here, "--json")]
    compared += [run_command("deploy", "compare", *chosen, *there, "--json")]
    assert json.loads(compared[0]) == json.loads(compared[1])
    run_command("plan", *chosen, *here, "--out", str(tmp_path / "here"))
    printed = run_command("deploy", "plan", *chosen, *there, "--out", str(tmp_path / "there"))
    assert "harmofl deploy run --config plan.toml" in printed
    own, over = (tomllib.loads((tmp_path / each / "plan.toml").read_text()) for each in ("here", "there"))
    assert own["data"].pop("sites") == THREE  # the only thing that one process has to be told
    assert own == over
    planned = federation.run_planned(tmp_path / "there" / "plan.toml", tmp_path / "run")
    assert sorted(set(planned["test"]) - {"average", "std"}) == THREE


def run_command(*arguments: str) -> str:
    """One of harmofl's commands; return what it prints."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout
