"""A FLARE process runs as long as its parent, and is started again when it dies."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="harmofl[nvflare] is not installed")

PARENT = """
import sys
from pathlib import Path
import harmofl.deployment.processes
from harmofl.deployment.nvflare import processes
harmofl.deployment.processes.SHORTEST_PAUSE = 0.05
kit = Path(sys.argv[1])
processes.command = lambda kit, client: [sys.executable, "-c", (kit / "child.py").read_text()]
processes.run_flare(kit)
"""
CHILD = """
import os, time
from pathlib import Path
from harmofl.deployment.processes import end_with_parent
end_with_parent()
with open(Path(os.environ["HARMOFL_KIT"]) / "pids", "a") as file:
    print(os.getpid(), file=file)
time.sleep(60)
"""


def started(kit: Path) -> list[int]:
    path = kit / "pids"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    (tmp_path / "child.py").write_text(CHILD)
    process = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)])
    yield process
    process.kill()
    process.wait(10)
    for pid in started(tmp_path):
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_behind(parent: subprocess.Popen[bytes], tmp_path: Path, number: signal.Signals) -> None:
    wait_until(lambda: bool(started(tmp_path)))
    parent.send_signal(number)
    code = parent.wait(20)
    assert code == (-number if number == signal.SIGKILL else 0)
    wait_until(lambda: not alive(started(tmp_path)[0]))


def test_a_process_that_died_is_started_again(parent: subprocess.Popen[bytes], tmp_path: Path) -> None:
    wait_until(lambda: bool(started(tmp_path)))
    os.kill(started(tmp_path)[0], signal.SIGKILL)
    wait_until(lambda: len(started(tmp_path)) == 2)
    assert parent.poll() is None
