"""A Ctrl-C ends a command wherever it arrives."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator

import pytest

from harmofl.cli.interrupts import never_lose_interrupts


class InterruptedFinalizer:
    """Ctrl-C arrives while this object goes: Python prints and forgets what a finalizer raises."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


class FailingFinalizer:
    """Something else goes wrong there."""

    def __del__(self) -> None:
        raise ValueError("a finalizer's own error")


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[type[BaseException]]]:
    """What Python reports as lost, as the command line is set up."""
    found: list[type[BaseException]] = []
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(sys, "unraisablehook", lambda report: found.append(report.exc_type))
    never_lose_interrupts()
    yield found
    signal.signal(signal.SIGINT, usual)


def test_an_interrupt_that_a_finalizer_swallows_comes_again(lost: list[type[BaseException]]) -> None:
    with pytest.raises(KeyboardInterrupt):
        wait_after(InterruptedFinalizer())
    assert lost == []


def test_other_errors_of_finalizers_are_reported_as_ever(lost: list[type[BaseException]]) -> None:
    FailingFinalizer()
    assert lost == [ValueError]


def wait_after(finalized: object) -> None:
    """Let an object go, and be busy for a while."""
    del finalized
    until = time.monotonic() + 10
    while time.monotonic() < until:
        time.sleep(0.01)
