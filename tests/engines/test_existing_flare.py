"""On a project of NVIDIA FLARE that others provisioned and started, a submitted job is a run like any other."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from federations import THREE, num_records, wait_until
from flare_projects import SERVER, Project, flare_project, harmofl

from harmofl.deployment.audit import audit_log, verify
from runs import differences, tiny, train

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    with flare_project(tmp_path_factory.mktemp("flare"), THREE) as started:
        yield started


def write_job(out: Path, method: str, **more: Any) -> None:
    """`harmofl deploy job`; the run has the name of its folder."""
    settings = [f"--set={name}={value}" for name, value in tiny(**more).items()]
    sites = ["--sites", ",".join(THREE)]
    chosen = ["--task=histology", f"--method={method}", "--preset=smoke"]
    harmofl("deploy", "job", "--engine", "nvflare", "--name", out.name, *chosen, *settings, *sites, "--out", str(out))


@pytest.mark.parametrize("method", ["harmofl", "scaffold"])
def test_a_job_changes_no_bit(tmp_path: Path, project: Project, method: str) -> None:
    train(tmp_path / "here", method, data__sites=THREE)
    write_job(tmp_path / method, method)
    job = project.submit(tmp_path / method)
    assert project.end_of(job) == "FINISHED:COMPLETED", project.log(SERVER)[-3000:]
    assert differences(tmp_path / "here", project.runs / method, stores=False) == []
    for name in (SERVER, *THREE):
        assert verify(audit_log(project.kits / name / "local" / "harmofl")).entries > 0


def test_a_job_brings_the_run_to_whoever_submitted_it(tmp_path: Path, project: Project) -> None:
    write_job(tmp_path / "brought", "fedavg", rounds=1)
    job = project.submit(tmp_path / "brought")
    assert project.end_of(job) == "FINISHED:COMPLETED", project.log(SERVER)[-3000:]
    project.download(job, tmp_path / "downloaded")
    summary = next((tmp_path / "downloaded").rglob("summary.json"))
    assert json.loads(summary.read_text()) == json.loads((project.runs / "brought" / "summary.json").read_text())
    assert (summary.parent / "model" / "model.safetensors").exists()


def test_a_job_that_was_aborted_goes_on_when_it_is_submitted_again(tmp_path: Path, project: Project) -> None:
    rounds = 12
    train(tmp_path / "here", "harmofl", rounds=rounds, data__sites=THREE)
    write_job(tmp_path / "again", "harmofl", rounds=rounds)
    job = project.submit(tmp_path / "again")
    wait_until(lambda: num_records(project.runs / "again") >= 10, "some rounds are done", seconds=180)
    project.abort(job)
    assert project.end_of(job) == "FINISHED:ABORTED", project.log(SERVER)[-3000:]
    assert not (project.runs / "again" / "summary.json").exists()
    assert project.end_of(project.submit(tmp_path / "again")) == "FINISHED:COMPLETED", project.log(SERVER)[-3000:]
    assert differences(tmp_path / "here", project.runs / "again", stores=False) == []


def test_a_site_refuses_in_a_job_what_its_site_toml_refuses(tmp_path: Path, project: Project) -> None:
    place = project.kits / THREE[0] / "local" / "harmofl" / "site.toml"
    text = place.read_text()
    write_job(tmp_path / "refused", "fedavg", rounds=1)
    try:
        place.write_text(text.replace('tasks = ["histology"]', 'tasks = ["nuclei"]'))
        job = project.submit(tmp_path / "refused")
        assert project.end_of(job) == "FINISHED:COMPLETED", project.log(SERVER)[-3000:]
    finally:
        place.write_text(text)
    lines = (project.runs / "refused" / "records.jsonl").read_text().splitlines()
    errors = {record["site"]: record.get("error") for record in map(json.loads, lines) if record["phase"] == "train"}
    assert errors["hospital-0"] == "task 'histology' is not accepted here (nuclei would be)"
    assert errors["hospital-1"] is None
    assert errors["hospital-2"] is None
