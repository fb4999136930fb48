"""Sites in worker processes: the same results, and what happens when a worker dies."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harmofl.federation import workers as module
from harmofl.federation.messages import Request
from harmofl.federation.workers import Worker, Workers
from harmofl.settings import resolve
from runs import SITES, differences, environment, records, tiny, train

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("method", ["harmofl", "fedbn"])
def test_one_worker_or_two_give_the_same_bits(tmp_path: Path, method: str) -> None:
    train(tmp_path / "one", method)
    train(tmp_path / "two", method, federation__workers=2)
    assert differences(tmp_path / "one", tmp_path / "two") == []


def signal_on_send(monkeypatch: pytest.MonkeyPatch, site: str, number: int, which: signal.Signals) -> list[int]:
    """Send a signal to a worker just after it was asked to train a site in a round."""
    honest, hit = Worker.send, []

    def send(self: Worker, asked: str, request: Request, timeout: float) -> None:
        honest(self, asked, request, timeout)
        if (asked, request.kind, request.round) == (site, "train", number):
            assert self.process.pid is not None
            os.kill(self.process.pid, which)
            hit.append(self.process.pid)

    monkeypatch.setattr(Worker, "send", send)
    return hit


def test_a_killed_worker_costs_its_site_one_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hit = signal_on_send(monkeypatch, "hospital-2", 2, signal.SIGKILL)
    train(tmp_path / "run", "fedbn", rounds=3, federation__workers=2)
    assert len(hit) == 1
    found = records(tmp_path / "run")
    errors = [(r["round"], r["site"], r["error"]) for r in found if "error" in r]
    assert errors == [(2, "hospital-2", "its worker process died (exit code -9)")]
    assert {r["site"] for r in found if r["round"] == 3 and r["phase"] == "train"} == {*SITES, "server"}


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    settings, method = resolve("histology", "harmofl", "smoke", overrides=tiny())
    transport = Workers(settings, method, tmp_path, count=2)
    list(transport.ask(amplitude_requests(), timeout=60))  # both have loaded everything
    yield transport
    transport.close()


def amplitude_requests() -> dict[str, Request]:
    return {site: Request("run", "measure", 0) for site in SITES}


def pids(workers: Workers) -> list[int | None]:
    return [worker.process.pid for worker in workers._workers]


def test_a_slow_site_is_left_out_and_its_worker_replaced(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    before = pids(workers)
    honest = Worker.send

    def send(self: Worker, asked: str, request: Request, timeout: float) -> None:
        if asked == "hospital-1":  # before it can answer
            os.kill(self.process.pid, signal.SIGSTOP)  # type: ignore[arg-type]
        honest(self, asked, request, timeout)

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "send", send)
        errors = {reply.site: reply.error for reply in workers.ask(amplitude_requests(), timeout=4)}
    assert errors == dict.fromkeys(SITES, "") | {"hospital-1": "no answer within federation.timeout"}
    assert len(set(pids(workers)) & set(before)) == 1
    again = {reply.site: reply.error for reply in workers.ask(amplitude_requests(), timeout=60)}
    assert again == dict.fromkeys(SITES, "")


def test_a_timeout_may_be_longer_than_any_single_wait(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = {reply.site: reply.error for reply in workers.ask(amplitude_requests(), timeout=1e9)}
    monkeypatch.setattr(module, "LONGEST_WAIT", 0.0001)
    again = {reply.site: reply.error for reply in workers.ask(amplitude_requests(), timeout=60)}
    assert errors == again == dict.fromkeys(SITES, "")


def test_a_worker_that_dies_between_rounds_costs_nothing(workers: Workers) -> None:
    victim = workers._workers[0].process
    victim.kill()
    victim.join()
    errors = {reply.site: reply.error for reply in workers.ask(amplitude_requests(), timeout=60)}
    assert errors == dict.fromkeys(SITES, "")


def test_closing_ends_every_worker(workers: Workers) -> None:
    workers.close()
    assert not any(worker.process.is_alive() for worker in workers._workers)


@pytest.mark.long
def test_a_script_without_a_main_guard_can_use_workers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "print('begin', flush=True)\n"
        "import harmofl\n"
        f"settings = {tiny(federation__workers=2)!r}\n"
        f"out = {str(tmp_path / 'run')!r}\n"
        "summary = harmofl.train('histology', 'fedavg', preset='smoke', settings=settings, out=out)\n"
        "print(len(summary['test']))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment(), timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, ["begin", "7"]), done.stderr


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize("beside", [False, True])
def test_ctrl_c_while_a_process_starts_is_heard_afterwards_also_with_a_display_beside(beside: bool) -> None:
    ended = threading.Event()
    display = threading.Thread(target=ended.wait)  # it may take the signal, as it does not hold it back
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    reached = []

    def interrupt_within() -> None:
        with module.hold_interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)
            reached.append("the end")

    try:
        if beside:
            display.start()
        with pytest.raises(KeyboardInterrupt):
            interrupt_within()
        assert reached == ["the end"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, set())
        with module.hold_interrupts():
            pass
    finally:
        ended.set()
        signal.signal(signal.SIGINT, usual)
        if beside:
            display.join()
