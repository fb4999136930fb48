"""Real cells, killed with SIGKILL in the middle of a round, then resumed: as if nothing had happened."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harmofl.experiments.runner import run_experiment
from runs import alive_in_group, differences, environment, train, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")]

PLAN = """
title = "A tiny experiment"
task = "histology"
preset = "smoke"

[settings]
data.images = 24
training.rounds = 3

[[rows]]
name = "FedAvg"
method = "fedavg"

[[rows]]
name = "HarmoFL"
method = "harmofl"
"""

CALL = "import sys; from harmofl.experiments.runner import run_experiment; run_experiment(*sys.argv[1:])"


@pytest.mark.long
def test_an_experiment_killed_amid_its_cells_leaves_no_process_and_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    plan, out = tmp_path / "tiny.toml", tmp_path / "out"
    plan.write_text(PLAN)
    cells = [out / "fedavg" / "seed-0", out / "harmofl" / "seed-0"]
    process = subprocess.Popen(
        [sys.executable, "-c", CALL, str(plan), str(out)], env=environment(), start_new_session=True
    )
    wait_for(lambda: any((cell / "checkpoint" / "round-00001.safetensors").exists() for cell in cells), seconds=180)
    assert len(alive_in_group(process.pid)) >= 2
    process.kill()
    assert process.wait() == -signal.SIGKILL
    wait_for(lambda: not alive_in_group(process.pid), seconds=60)
    assert not all((cell / "summary.json").exists() for cell in cells)

    results = run_experiment(plan, out, resume=True)
    assert not results.missing
    for cell in cells:
        log = cell.with_name("seed-0.log").read_text().splitlines()
        assert log[0] == "Images: synthetic hospitals"
        assert any(line.startswith("  round 3: loss ") for line in log)
        train(tmp_path / "undisturbed" / cell.parent.name, cell.parent.name, rounds=3)
        assert differences(cell, tmp_path / "undisturbed" / cell.parent.name) == []


def test_an_interrupt_from_the_terminal_ends_the_experiment_and_its_cells(tmp_path: Path) -> None:
    plan, out = tmp_path / "tiny.toml", tmp_path / "out"
    plan.write_text(PLAN)
    call = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler); {CALL}"
    command = [sys.executable, "-c", call, str(plan), str(out)]
    process = subprocess.Popen(command, env=environment(), start_new_session=True, stderr=subprocess.PIPE, text=True)
    wait_for((out / "fedavg" / "seed-0" / "config.toml").exists, seconds=180)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does: all of them hear it
    _, said = process.communicate(timeout=120)
    assert "KeyboardInterrupt" in said
    assert not alive_in_group(process.pid)
    assert '"state": "failed"' not in (out / "results.json").read_text()
