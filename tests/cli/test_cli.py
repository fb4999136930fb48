"""The command line: what it says, what it refuses and how it ends."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import harmofl
from harmofl import cli
from harmofl.cli.completion import complete_run, complete_setting
from runs import (
    alive_in_group,
    arguments,
    call,
    differences,
    environment,
    equal,
    start,
    train,
    wait_for,
    weights,
)

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process; return its exit code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "200")

    def command(*args: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["harmofl", *map(str, args)])
        capsys.readouterr()
        try:
            cli.main()
            code: object = 0
        except SystemExit as end:
            code = end.code or 0
        out, err = capsys.readouterr()
        assert isinstance(code, int)
        return code, out, err

    return command


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    out = tmp_path_factory.mktemp("finished") / "run"
    train(out, "harmofl")
    return out


# --- what it says -------------------------------------------------------------------------------------------------


def test_help_is_quick_and_needs_no_torch() -> None:
    code = "import sys; from harmofl import cli; sys.argv = ['harmofl', '--help']\ntry: cli.main()\nfinally: "
    heavy = "print([name for name in ('torch', 'monai', 'numpy', 'matplotlib') if name in sys.modules])"
    seconds = []  # of the processor: others may use the machine too
    while not seconds or (min(seconds) >= 0.5 and len(seconds) < 10):
        before = os.times()
        done = subprocess.run([sys.executable, "-c", code + heavy], capture_output=True, text=True, env=environment())
        after = os.times()
        seconds.append(after.children_user + after.children_system - before.children_user - before.children_system)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "[]"
    for command in ("demo", "train", "evaluate", "methods", "tasks"):
        assert command in done.stdout
    assert min(seconds) < 0.5


COMPLETIONS = {
    "train --task n": {"nuclei"},
    "train --method fed": {"fedavg", "fedprox", "fednova", "fedadam", "fedbn"},
    "train --preset p": {"paper", "paper-code"},
    "train --set training.learning": {"training.learning_rate=", "training.learning_rate_schedule="},
    "train --set me": {"method."},
    "train --device c": {"cpu", "cuda"},
    "evaluate model --split t": {"train", "test"},
    "data check --task s": {"segmentation"},
    "land": {"landscape"},
    "deploy init --engine fl": {"flower"},
}


@pytest.mark.parametrize("typed", COMPLETIONS)
def test_the_shell_completes_names_without_torch(typed: str) -> None:
    code = "import sys; from harmofl import cli; sys.argv = ['harmofl']\ntry: cli.main()\nfinally: "
    heavy = "print([name for name in ('torch', 'monai', 'numpy', 'matplotlib') if name in sys.modules])"
    words = {
        "COMP_WORDS": f"harmofl {typed}",
        "COMP_CWORD": str(len(typed.split())),
        "_HARMOFL_COMPLETE": "complete_bash",
    }
    variables = environment() | words
    done = subprocess.run([sys.executable, "-c", code + heavy], capture_output=True, text=True, env=variables)
    *found, imported = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert COMPLETIONS[typed] <= set(found)
    assert all(name.startswith(typed.split()[-1]) for name in found)
    assert imported == "[]"


def test_the_shell_completes_settings_of_the_chosen_method_or_of_all_and_runs_of_a_folder(tmp_path: Path) -> None:
    chosen, none = (SimpleNamespace(params={"method": name}) for name in ("fedprox", None))
    assert complete_setting(chosen, "method.") == ["method.mu="]  # type: ignore[arg-type]
    assert {"method.mu=", "method.band="} <= set(complete_setting(none, "method."))  # type: ignore[arg-type]
    for name in ("first", "table/fedavg", "other"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.toml").touch()
    here = SimpleNamespace(params={"folder": tmp_path})
    assert complete_run(here, "") == ["first", "other", "table/fedavg"]  # type: ignore[arg-type]


def test_the_version_is_shown(run: Run) -> None:
    assert run("--version") == (0, f"harmofl {harmofl.__version__}\n", "")


def test_methods_are_listed_with_paper_settings_and_limit(run: Run) -> None:
    code, out, _ = run("methods")
    assert code == 0
    for words in (
        "fedavg",
        "harmofl",
        "centralized",
        "method.radius = 0.05",
        "method.mu = 0.01",
        "AAAI 2022",
        "mu = 0",
    ):
        assert words in out


def test_tasks_are_listed_with_sites_presets_and_every_setting(run: Run) -> None:
    code, out, _ = run("tasks")
    assert code == 0
    for words in ("histology", "nuclei", "prostate", "hospital-4", "dice", "federation.quorum", "model.initial"):
        assert words in out


def test_training_prints_plain_lines_and_where_the_model_is(run: Run, tmp_path: Path) -> None:
    code, out, err = run(*arguments(tmp_path / "run", rounds=2))
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[:2] == ["Images: synthetic hospitals", "FedAvg on histology: 2 rounds"]
    assert lines[2].startswith("  round 1: loss ")
    assert lines[3].startswith("  round 2: loss ")
    assert "validation" in lines[3]
    assert str(tmp_path / "run" / "model") in lines[-1]
    assert "\x1b" not in out


def test_quiet_training_prints_the_result_only(run: Run, tmp_path: Path) -> None:
    code, out, err = run(*arguments(tmp_path / "run", rounds=1), "--quiet")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "FedAvg on histology: accuracy on test images"
    assert "round 1: loss" not in out


def test_the_package_is_the_command_too(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harmofl", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=tmp_path)
    assert (done.stdout, done.stderr) == (f"harmofl {harmofl.__version__}\n", "")


def test_evaluate_scores_a_model_at_every_site(run: Run, finished: Path) -> None:
    code, out, err = run("evaluate", finished / "model", "--set", "data.shift=0")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "Images: synthetic hospitals"
    for words in ("hospital-0", "hospital-4", "accuracy", "auc", "average"):
        assert words in out


def test_evaluate_repeats_the_summary(finished: Path) -> None:
    summary = train(finished, "harmofl", resume=True)
    scores = harmofl.evaluate(finished / "model")
    assert {site: values["metric"] for site, values in scores.items()} == {
        site: summary["test"][site] for site in scores
    }


def test_tensorboard_files_are_written(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    code, _, err = run(*arguments(tmp_path / "run"), "--log", "tensorboard")
    assert (code, err) == (0, "")
    (events,) = (tmp_path / "run" / "tensorboard").glob("events.out.tfevents.*")
    content = events.read_bytes()
    for tag in (b"train-loss/hospital-0", b"train-drift/hospital-4", b"val-metric/hospital-2"):
        assert tag in content


# --- what it refuses ----------------------------------------------------------------------------------------------

BAD = {
    "task": (["--task=nucleii"], "unknown task 'nucleii'; did you mean 'nuclei'?"),
    "method": (["--method=fedavgg"], "unknown method 'fedavgg'; did you mean 'fedavg'?"),
    "preset": (["--preset=smal"], "unknown preset 'smal'; did you mean 'small'?"),
    "setting": (["--set=training.round=3"], "'training.round'; did you mean 'training.rounds'?"),
    "section": (["--set=trainning.rounds=3"], "unknown setting"),
    "setting of the method": (["--set=method.mu=3"], "unknown setting of HarmoFL 'method.mu'"),
    "range": (["--set=method.radius=-1"], "method.radius = -1: must be greater than or equal to 0"),
    "type": (["--set=training.rounds=many"], "training.rounds = 'many': must be a valid integer"),
    "band": (["--set=method.band=wide"], "method.band = 'wide': must be 'none', 'dc', 'full' or a radius"),
    "assignment": (["--set=training.rounds"], "'training.rounds': must be section.name=value"),
    "no config": (["--config=nowhere.toml"], "nowhere.toml: No such file"),
    "data": (["--data=nowhere"], "nowhere: no such folder"),
    "no phantom": (["--task=segmentation"], "segmentation has no synthetic hospitals: say where the images are"),
    "network": (["--set=model.network=unet"], "model.network = 'unet': histology takes densenet121 or densenet-small"),
    "loss": (["--set=training.loss=dice"], "training.loss = 'dice': histology takes cross-entropy"),
    "hold out": (["--set=data.hold_out_site=hospital-7"], "unknown site 'hospital-7'; did you mean 'hospital-"),
    "intensity": (["--set=data.intensity=[9, 1]"], "data.intensity = [9, 1]: must be 'auto', 'percentile', 'range' or"),
    "initial": (["--set=model.initial=nowhere"], "nowhere: not a model folder (no model.json)"),
    "nothing to resume": (["--resume"], "holds no run to resume"),
    "device": (["--device=gpu"], "device = 'gpu': must be 'auto', 'cpu' or 'cuda'"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_line_and_exit_code_2(run: Run, tmp_path: Path, what: str) -> None:
    extra, words = BAD[what]
    base = {"--task": "histology", "--method": "harmofl", "--preset": "smoke"}
    given = {option: value for option, value in base.items() if not any(arg.startswith(option) for arg in extra)}
    args = [f"{option}={value}" for option, value in given.items()]
    code, out, err = run("train", *args, *extra, f"--out={tmp_path / 'run'}")
    assert (code, out) == (2, "")
    assert err.startswith("harmofl: ")
    assert words in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_cuda_without_cuda_is_refused(run: Run, tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is CUDA here")
    code, _, err = run(*arguments(tmp_path / "run"), "--device=cuda")
    assert (code, err) == (2, "harmofl: device = 'cuda': no CUDA device here; use 'cpu' or 'auto'\n")


@pytest.mark.parametrize("content", ["rounds = = 3", "[training", "training = 3", 'method = "fedavg"', b"\xff\xfe"])
def test_a_bad_config_file_is_named(run: Run, tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    code, _, err = run("train", "--task=histology", "--method=fedavg", f"--config={path}", f"--out={tmp_path / 'run'}")
    assert code == 2
    assert len(err.splitlines()) == 1


def test_a_folder_that_holds_a_run_is_refused(run: Run, finished: Path) -> None:
    before = (finished / "config.toml").read_bytes()
    code, _, err = run(*arguments(finished, "fedavg"))
    assert code == 2
    assert err == f"harmofl: {finished} already holds a run: add --resume to continue it, or choose another --out\n"
    assert (finished / "config.toml").read_bytes() == before


def test_a_folder_that_holds_something_else_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "thesis.doc").touch()
    code, _, err = run(*arguments(tmp_path))
    assert (code, err) == (2, f"harmofl: {tmp_path} is not empty: choose another --out\n")
    assert os.listdir(tmp_path) == ["thesis.doc"]


def test_an_out_that_cannot_be_a_folder_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, _, err = run(*arguments(tmp_path / "file"))
    assert code == 2
    assert err.startswith(f"harmofl: --out {tmp_path / 'file'}: ")
    assert len(err.splitlines()) == 1


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="the superuser may enter everything")
def test_an_out_in_a_folder_of_another_user_is_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0)
    out = tmp_path / "theirs" / "run"
    assert run(*arguments(out)) == (2, "", f"harmofl: --out {out}: Permission denied\n")


@pytest.mark.parametrize("more", [[], ["--resume"]])
def test_an_out_that_cannot_be_looked_at_is_one_line(run: Run, tmp_path: Path, more: list[str]) -> None:
    out = tmp_path / ("x" * 300)
    assert run(*arguments(out), *more) == (2, "", f"harmofl: --out {out}: File name too long\n")


def test_a_file_that_the_system_refuses_is_one_line_and_with_debug_all(run: Run, tmp_path: Path) -> None:
    model = tmp_path / ("x" * 300)
    assert run("evaluate", model) == (2, "", f"harmofl: {model / 'model.json'}: File name too long\n")
    with pytest.raises(OSError, match="too long"):
        run("--debug", "evaluate", model)


def test_resuming_with_other_settings_names_them(run: Run, finished: Path) -> None:
    code, _, err = run(*arguments(finished, "harmofl", 5, method__radius=0.1), "--seed=3", "--resume")
    assert code == 2
    assert "other settings (method.radius, method.radius_relative, seed, training.rounds)" in err
    code, _, err = run(*arguments(finished, "fedavg"), "--resume")
    assert (code, "method.name" in err) == (2, True)


def test_a_run_is_resumed_with_nothing_but_its_folder(run: Run, finished: Path) -> None:
    code, out, err = run("train", "--out", finished, "--resume")
    assert (code, err) == (0, "")
    assert str(finished / "model") in out


def test_resuming_may_change_what_does_not_change_results(run: Run, finished: Path) -> None:
    changed = {"federation__workers": 2, "federation__timeout": 5, "federation__quorum": 1}
    assert run(*arguments(finished, "harmofl", **changed), "--resume")[0] == 0


@pytest.mark.parametrize("content", [None, "{", "[]", "{}"])
def test_evaluate_refuses_a_folder_that_is_no_model(run: Run, tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "model.json").write_text(content)
    code, out, err = run("evaluate", tmp_path)
    assert (code, out) == (2, "")
    assert str(tmp_path) in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("assignment", ["training.rounds=3", "data.size=48", "data.shift=99", "data.color=1"])
def test_evaluate_refuses_settings_that_do_not_apply(run: Run, finished: Path, assignment: str) -> None:
    code, _, err = run("evaluate", finished / "model", "--set", assignment)
    assert code == 2
    assert assignment.partition("=")[0] in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "args", [["trian"], ["train"], ["train", "--out"], ["train", "--out=x", "--log=wandb"], ["evaluate"]]
)
def test_wrong_usage_is_exit_code_2(run: Run, args: list[str]) -> None:
    code, _, err = run(*args)
    assert code == 2
    assert "Traceback" not in err


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    args = ["train", "--task=nucleii", "--method=fedavg", f"--out={tmp_path / 'run'}"]
    plain, debug = call(args), start(["--debug", *args])
    assert plain.returncode == 2
    assert "Traceback" not in plain.stderr
    _, err = debug.communicate(timeout=120)
    assert debug.returncode != 0
    assert "Traceback" in err
    assert "did you mean 'nuclei'?" in err


def test_a_run_that_fails_is_one_line_and_exit_code_1(run: Run, tmp_path: Path) -> None:
    code, _, err = run(*arguments(tmp_path / "run", training__learning_rate=1e30))
    assert code == 1
    assert err.startswith("harmofl: round 1: 0 of 5 sites gave a usable answer")
    assert "NaN" in err
    assert len(err.splitlines()) == 1
    assert (tmp_path / "run" / "checkpoint" / "round-00000.safetensors").exists()


# --- how it ends --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "a run"
    process = start(arguments(out, "harmofl", rounds=4, federation__workers=2))
    wait_for((out / "checkpoint" / "round-00001.safetensors").exists, process)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to every process of the group
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    wait_for(lambda: not alive_in_group(process.pid), seconds=10)
    assert "Traceback" not in err
    (line,) = err.strip().splitlines()
    command = shlex.split(line.partition("continue with: ")[2])
    assert command == ["harmofl", "train", "--out", str(out), "--resume"]
    assert not (out / "summary.json").exists()

    assert run(*command[1:])[0] == 0
    train(tmp_path / "undisturbed", "harmofl", rounds=4)
    assert differences(out, tmp_path / "undisturbed") == []


@pytest.mark.slow
def test_ctrl_c_while_workers_start_shows_no_traceback(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(arguments(out, "harmofl", federation__workers=2))
    wait_for(lambda: len(alive_in_group(process.pid)) > 2, process)  # its helpers are there, and still import
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1
    wait_for(lambda: not alive_in_group(process.pid), seconds=10)


@pytest.mark.slow
def test_two_processes_on_one_folder(run: Run, tmp_path: Path) -> None:
    args = arguments(tmp_path / "run", "harmofl", rounds=50)
    process = start(args)
    wait_for((tmp_path / "run" / "checkpoint" / "round-00000.safetensors").exists, process)
    try:
        assert run(*args, "--resume") == (2, "", f"harmofl: {tmp_path / 'run'} is in use by another process\n")
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


def test_a_folder_in_which_a_run_died_before_it_began_can_be_used(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").touch()
    (tmp_path / "run" / ".config.toml.abc.part").touch()
    assert run(*arguments(tmp_path / "run"))[0] == 0
    assert not list((tmp_path / "run").glob(".*.part"))


def test_the_config_of_a_run_repeats_it(run: Run, finished: Path, tmp_path: Path) -> None:
    code, _, err = run("train", "--config", finished / "config.toml", "--out", tmp_path / "again")
    assert (code, err) == (0, "")
    assert equal(weights(finished), weights(tmp_path / "again"))
    assert differences(finished, tmp_path / "again") == []
    assert (finished / "config.toml").read_bytes() == (tmp_path / "again" / "config.toml").read_bytes()
