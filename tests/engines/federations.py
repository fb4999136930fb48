"""Federations of real processes on this machine: made from kits, started, stopped, killed. It knows no engine."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harmofl import registry
from harmofl.deployment.coordinator import RunOptions, coordinate, read_options
from harmofl.deployment.engine import find_engine
from harmofl.deployment.kits import FEDERATION, SITE, Federation, ServerKit, SiteKit, SiteSettings, write_part
from runs import SITES, environment, hear_interrupts, tiny

TASK = "histology"
THREE = SITES[:3]
START = """
import logging, sys
from pathlib import Path
from harmofl.deployment.engine import find_engine
from harmofl.deployment.kits import SiteKit, open_kit
logging.basicConfig(level=logging.INFO)
kit = open_kit(Path(sys.argv[1]))
engine = find_engine(kit.federation.engine)
with kit.lock():
    (engine.join if isinstance(kit, SiteKit) else engine.serve)(kit)
"""
RUN = """
import json, sys
from pathlib import Path
from harmofl.deployment.coordinator import RunOptions, coordinate
from harmofl.deployment.kits import ServerKit
given = json.loads(sys.argv[3])
kit, out = ServerKit.open(Path(sys.argv[1])), Path(sys.argv[2])
coordinate(kit, RunOptions(**given["options"]), out, wait=60, resume=given["resume"])
"""
IN_CI = os.environ.get("CI", "").lower() == "true"

PATIENCE = float(os.environ.get("HARMOFL_PATIENCE", "1"))
"""How many times longer than usual to wait for processes: more on a machine that has much else to do."""


def missing(reason: str) -> None:
    """What a test needs is not there: it is skipped, but never in CI."""
    if IN_CI:
        pytest.fail(f"{reason} (a skip is a failure in CI)")
    pytest.skip(reason)


def need_engine(engine: str) -> None:
    if not registry.engines.find(engine).installed_version():
        missing(f"harmofl[{engine}] is not installed")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def make_kits(folder: Path, engine: str, sites: Sequence[str] = THREE, host: str = "localhost", **own: Any) -> None:
    """Kits for a federation on this machine, with synthetic images."""
    federation = Federation(engine=engine, server=f"{host}:{free_port()}", sites=list(sites))
    write_part(folder / "server" / FEDERATION, federation)
    for name in sites:
        write_part(folder / "sites" / name / FEDERATION, federation)
        settings = {"data": "synthetic", "tasks": [TASK], "device": "cpu"} | own
        write_part(folder / "sites" / name / SITE, SiteSettings(name=name, **settings))
    find_engine(engine).provision(federation, folder)


@dataclass
class Live:
    """A federation's processes; `server` is the name of the server's."""

    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def kit(self) -> ServerKit:
        return ServerKit.open(self.folder / "server")

    def site_kit(self, name: str) -> SiteKit:
        return SiteKit.open(self.folder / "sites" / name)

    def place(self, name: str) -> Path:
        return self.folder / "server" if name == "server" else self.folder / "sites" / name

    def log(self, name: str) -> str:
        return (self.place(name) / "test.log").read_text(errors="replace")

    def start(
        self, name: str, command: Sequence[str] = (sys.executable, "-c", START), prefix: Sequence[str] = ()
    ) -> None:
        """Start a party, by another command if it is to misbehave, below another one if it is to live elsewhere."""
        place = self.place(name)
        with open(place / "test.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [*prefix, *command, str(place)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(),
                start_new_session=True,
                preexec_fn=hear_interrupts,
            )

    def kill(self, name: str) -> None:
        """As a power cut would."""
        self.processes[name].kill()
        self.processes.pop(name).wait(10)

    def stop(self, name: str, seconds: float = 30) -> int:
        """In good order; return the exit code."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
            raise AssertionError(f"{name} did not stop: {self.log(name)[-2000:]}") from None

    def stop_all(self) -> None:
        for name in sorted(self.processes, key="server".__eq__):  # the server last
            self.processes[name].send_signal(signal.SIGTERM)
        for name in list(self.processes):
            self.stop(name)

    def run(self, out: Path, method: str = "fedavg", **more: Any) -> Mapping[str, Any]:
        """`harmofl deploy run`, in this process."""
        options = {name: more.pop(name) for name in ("resume", "watch", "wait") if name in more}
        return coordinate(self.kit, run_options(method, **more), out, **{"wait": 90, **options})

    def run_planned(self, plan: Path, out: Path) -> Mapping[str, Any]:
        """One round of what `harmofl deploy plan` planned."""
        options = read_options(None, "fedavg", None, plan, {"training.rounds": 1})
        return coordinate(self.kit, options, out, wait=90)

    def start_run(self, out: Path, method: str = "fedavg", resume: bool = False, **more: Any) -> subprocess.Popen[str]:
        """The same as a process of its own."""
        import json

        values = {"options": vars(run_options(method, **more)), "resume": resume}
        return subprocess.Popen(
            [sys.executable, "-c", RUN, str(self.folder / "server"), str(out), json.dumps(values)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(),
            start_new_session=True,
            preexec_fn=hear_interrupts,
        )

    def is_up(self) -> bool:
        """Whether the server takes runs."""
        return find_engine(self.kit.federation.engine).is_running(self.kit)

    def wait_until_connected(self, count: int, seconds: float = 60) -> None:
        """Until so many sites are there."""
        with find_engine(self.kit.federation.engine).connect(self.kit) as transport:
            transport.sites(count, PATIENCE * seconds)


def finished_in_spite_of_kills(federation: Live, out: Path, method: str, rounds: int, seed: int) -> int:
    """Kill a run again and again, each time somewhat further on, then let it end; return how often it was killed."""
    moments, kills = random.Random(seed), 0
    for _ in range(3):
        goal = num_records(out) + moments.randint(1, 12)
        run = federation.start_run(out, method, rounds=rounds, resume=(out / "config.toml").exists())
        deadline = time.monotonic() + PATIENCE * 90
        while run.poll() is None and num_records(out) < goal:
            assert time.monotonic() < deadline, "the run goes no further"
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.2))
        kills += run.poll() is None
        run.kill()
        run.communicate(timeout=30)
    if not (out / "summary.json").exists():
        federation.run(out, method, rounds=rounds, resume=True)
    return kills


def num_records(out: Path) -> int:
    path = out / "records.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def run_options(method: str = "fedavg", **more: Any) -> RunOptions:
    return RunOptions(TASK, method, "smoke", given=tiny(TASK, **more))


@contextmanager
def live(folder: Path, engine: str, sites: Sequence[str] = THREE, start: Sequence[str] | None = None) -> Iterator[Live]:
    """A federation that is up; `start` names the sites to be started, all by default."""
    need_engine(engine)
    if not (folder / "server").exists():
        make_kits(folder, engine, sites)
    federation = Live(folder)
    try:
        for name in ("server", *(sites if start is None else start)):
            federation.start(name)
        wait_until(federation.is_up, "the server runs", federation.processes["server"])
        yield federation
    finally:
        federation.stop_all()


def wait_until(
    happened: Callable[[], bool], what: str, process: subprocess.Popen[Any] | None = None, seconds: float = 90
) -> None:
    """Return once something has happened; fail if it does not, or if the process that should do it ends before."""
    deadline = time.monotonic() + PATIENCE * seconds
    while not happened():
        assert process is None or process.poll() is None, f"ended before {what}"
        assert time.monotonic() < deadline, f"not within {PATIENCE * seconds:g} s: {what}"
        time.sleep(0.1)
