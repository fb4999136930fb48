"""Processes that are kept: signals, the end, pauses."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from harmofl.deployment.processes import Pauses, end_process, stoppable

LISTENS = "import signal, time; print('ready', flush=True); time.sleep(60)"
DEAF = LISTENS.replace("print", "signal.signal(signal.SIGTERM, signal.SIG_IGN); print")


def test_pauses_grow_and_begin_anew_after_a_success() -> None:
    pauses = Pauses()
    assert [pauses.next(lasted=1) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert [pauses.next(lasted=100), pauses.next(lasted=1)] == [1, 2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_a_block_in_good_order(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    reached = False
    with stoppable():
        os.kill(os.getpid(), number)
        threading.Event().wait(5)
        reached = True
    assert not reached
    assert signal.getsignal(number) is before


@pytest.mark.parametrize(("program", "code"), [(LISTENS, -signal.SIGTERM), (DEAF, -signal.SIGKILL)])
def test_a_process_ends_even_if_it_does_not_listen(program: str, code: int) -> None:
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        end_process(process, patience=0.5)
        assert process.returncode == code
