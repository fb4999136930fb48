"""Runs in MLflow, read back with its own client."""

import logging
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harmofl.cli import app
from harmofl.errors import UsageError
from harmofl.events import RoundFinished, RunStarted, SiteScored
from harmofl.runs.mlflow_log import MlflowLog, hide_secrets, log_to_mlflow
from runs import arguments, records

pytestmark = pytest.mark.filterwarnings("ignore")  # of MLflow, about itself

STARTED = RunStarted("histology", "fedavg", "FedAvg", ("A",), 2, 0, "accuracy", "%")


def client(folder: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all these runs are logged, as MLflow takes seconds to make its tables."""
    return tmp_path_factory.mktemp("mlflow")


def run_in(folder: Path, name: str) -> Any:
    """The only run of a name."""
    experiment = client(folder).get_experiment_by_name("harmofl histology")
    (run,) = [run for run in client(folder).search_runs([experiment.experiment_id]) if run.info.run_name == name]
    return run


@pytest.mark.slow
def test_a_run_is_in_mlflow_with_settings_numbers_model_and_report(tmp_path: Path, folder: Path) -> None:
    out = tmp_path / "first"
    options = [*arguments(out, "fedavg", 2), "--log", "mlflow", "--log-to", str(folder), "--quiet"]
    result = CliRunner().invoke(app, options, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    run = run_in(folder, "first")
    assert (run.info.status, run.info.run_name) == ("FINISHED", "first")
    assert run.data.params["training.rounds"] == "2"
    assert run.data.params["method.name"] == "fedavg"
    measured = [each for each in records(out) if each["phase"] == "val" and each["site"] == "hospital-3"]
    history = client(folder).get_metric_history(run.info.run_id, "val-metric/hospital-3")
    logged = sorted((each.step, each.value) for each in history)
    assert logged == [(each["round"], each["metric"]) for each in measured]
    files = {file.path for file in client(folder).list_artifacts(run.info.run_id)}
    assert files == {*("config.toml", "data.json", "records.jsonl", "summary.json", "model", "report.html")}
    inside = {file.path for file in client(folder).list_artifacts(run.info.run_id, "model")}
    assert inside == {"model/model.json", "model/model.safetensors"}


def started(tmp_path: Path, name: str = "my run") -> Path:
    out = tmp_path / name
    out.mkdir()
    (out / "config.toml").write_text('task = "histology"\n[training]\nrounds = 2\n')
    return out


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt, "KILLED"), (RuntimeError, "FAILED"), (None, "FINISHED")]
)
def test_how_a_run_ended_is_known_and_numbers_of_the_last_scoring_are_there(
    tmp_path: Path, folder: Path, error: type[BaseException] | None, status: str
) -> None:
    out = started(tmp_path, status)
    try:
        with log_to_mlflow(out, str(folder)) as log:
            log(STARTED)
            log(RoundFinished(1, 0.5, 3.0, None))
            log(SiteScored(1, "Klinik Süd: A&B", "test", {"metric": 0.75}))
            if error:
                raise error
    except (KeyboardInterrupt, RuntimeError):
        pass
    run = run_in(folder, status)
    assert run.info.status == status
    assert run.data.metrics["test-metric/Klinik Süd_ A_B"] == 0.75
    with log_to_mlflow(out, str(folder)) as log:  # it is resumed
        log(STARTED)
        log(RoundFinished(2, 0.25, 3.0, None))
    run = run_in(folder, status)  # it has gone on, and is no other
    assert (run.info.status, run.data.metrics["train-loss/server"]) == ("FINISHED", 0.25)


def test_a_server_that_does_not_answer_is_an_error_before_training_and_a_warning_during_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        said = f"--log-to {address}: no MLflow server answers there (Connection refused)"
        with pytest.raises(UsageError, match=f"^{re.escape(said)}$"), log_to_mlflow(tmp_path / "run", address):
            pass
        log = MlflowLog(started(tmp_path), address)
        with caplog.at_level(logging.WARNING, "harmofl"):
            log(STARTED)
            log(RoundFinished(1, 0.5, 3.0, None))
            log.end("FINISHED")
    assert len([line for line in caplog.messages if "the run goes on without it" in line]) == 1


def test_where_to_log_needs_something_that_logs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only for --log mlflow"):
        CliRunner().invoke(
            app, ["train", "--out", str(tmp_path), "--log", "tensorboard", "--log-to", "x"], catch_exceptions=False
        )


def test_a_password_in_an_address_stands_in_no_file_message_or_log(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    out, address = started(tmp_path), "http://me:sesame@127.0.0.1:1"
    with pytest.raises(UsageError, match=r"--log-to http://me:\*\*\*@127") as raised, log_to_mlflow(out, address):
        pass
    with caplog.at_level(logging.DEBUG, "harmofl"):
        MlflowLog(out, address)(STARTED)
    real = client(folder)
    monkeypatch.setattr(MlflowLog, "_client", lambda log: real)
    for _ in range(2):  # the second goes on in the first one's run
        MlflowLog(out, address)(STARTED)
    written = [path.read_text() for path in out.rglob("*") if path.is_file()]
    assert not any("sesame" in text for text in [str(raised.value), caplog.text, *written])
    assert "http://me:***@127.0.0.1:1" in (out / "mlflow.json").read_text()
    assert run_in(folder, "my run").info.status == "RUNNING"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://mlflow.example.org", "https://mlflow.example.org"),
        ("https://s3cr3t@mlflow.example.org/x", "https://***@mlflow.example.org/x"),
        ("postgresql://me:s3cr3t@db/mlflow?sslmode=require", "postgresql://me:***@db/mlflow?sslmode=require"),
        ("postgresql://db/mlflow?user=me&password=s3cr3t", "postgresql://db/mlflow?user=me&password=***"),
        ("sqlite:////srv/mlflow/mlflow.db", "sqlite:////srv/mlflow/mlflow.db"),
        ("http://[::1", "http://[::1"),
    ],
)
def test_an_address_is_shown_without_its_secrets(address: str, shown: str) -> None:
    assert hide_secrets(address, address) == shown
