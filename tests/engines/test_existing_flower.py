"""The app on a Flower federation that others run, started by Flower's own commands: the same bits as in one process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from existing_flower import ExistingFlower, existing_flower
from federations import THREE, num_records, wait_until

from harmofl.deployment.audit import audit_log, verify
from runs import differences, records, train

pytestmark = pytest.mark.engines

TWO = THREE[:2]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExistingFlower]:
    with existing_flower(tmp_path_factory.mktemp("existing"), TWO) as started:
        yield started


@pytest.mark.parametrize("method", ["harmofl", "scaffold"])
def test_the_app_changes_no_bit(tmp_path: Path, federation: ExistingFlower, method: str) -> None:
    train(tmp_path / "here", method, data__sites=TWO)
    out = federation.run(method, method)
    assert differences(tmp_path / "here", out, stores=False) == []
    assert verify(audit_log(federation.runs)).entries > 0
    assert all(verify(audit_log(federation.folder / site)).entries > 0 for site in TWO)


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(tmp_path: Path, federation: ExistingFlower) -> None:
    train(tmp_path / "here", "fedavg", rounds=3, data__sites=TWO)
    app, out = federation.write_app("fedavg", rounds=3), federation.runs / "stopped"
    run = federation.start_run(app, "stopped")
    wait_until(lambda: num_records(out) > 2 * len(TWO), "round 1 is over", seconds=900)
    federation.flwr("stop", run, "ours")
    wait_until(lambda: federation.status(run) == "finished:stopped", "it has stopped")
    assert not (out / "summary.json").exists()
    assert federation.finish(federation.start_run(app, "stopped", resume=True), "stopped") == "finished:completed"
    assert differences(tmp_path / "here", out, stores=False) == []


def test_each_hospital_decides_by_its_own_file(federation: ExistingFlower) -> None:
    settings = federation.folder / TWO[1] / "site.toml"
    before = settings.read_text()
    settings.write_text(before.replace('tasks = ["histology"]', 'tasks = ["nuclei"]'))
    out = federation.run("decides", federation__quorum=0.5, rounds=1)
    settings.write_text(before)
    refused = [record["site"] for record in records(out) if record["phase"] == "train" and record.get("error")]
    assert refused == [TWO[1]]
    told = (federation.folder / f"node-{TWO[1]}.log").read_text()
    assert "task 'histology' is not accepted here" in told
