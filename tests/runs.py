"""Tiny runs for tests, as calls and as processes, and what two equal runs have in common."""

import io
import json
import logging
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import harmofl
from harmofl import cli, registry
from harmofl.analysis.drift_terms import SiteGradient, gradient_at
from harmofl.analysis.loaded_runs import load_runs
from harmofl.devices import threads
from harmofl.events import Event, RoundFinished, Watch
from harmofl.federation.messages import Reply, Request
from harmofl.federation.server import Server
from harmofl.federation.transports import InProcess
from harmofl.methods.method import Method
from harmofl.runs.folder import RunFolder
from harmofl.settings import resolve
from harmofl.tasks.data_facts import find_data_facts

SITES = [f"hospital-{number}" for number in range(5)]
"""The sites of histology, on which most runs here train: it is the fastest task."""

IMAGES = {"histology": 24, "nuclei": 10, "prostate": 10}
HARMOFL = [sys.executable, "-c", "from harmofl.cli import main; main()"]
"""The command, without an installed package."""


def tiny(task: str = "histology", rounds: int = 2, **more: Any) -> dict[str, Any]:
    """Settings of a run that takes about a second; `section__name=value` adds some."""
    changes = {name.replace("__", "."): value for name, value in more.items()}
    return {"data.images": IMAGES[task], "training.rounds": rounds, "federation.workers": 1} | changes


def train(out: Path, method: Any = "fedavg", task: str = "histology", rounds: int = 2, **more: Any) -> dict[str, Any]:
    """Train in this process."""
    options = {name: more.pop(name) for name in ("resume", "watch", "seed") if name in more}
    return harmofl.train(task, method, preset="smoke", settings=tiny(task, rounds, **more), out=out, **options)


def arguments(out: Path, method: str = "fedavg", rounds: int = 2, **more: Any) -> list[str]:
    """The command-line arguments of the same run."""
    assignments = [f"--set={name}={value}" for name, value in tiny("histology", rounds, **more).items()]
    return ["train", "--task=histology", f"--method={method}", "--preset=smoke", *assignments, f"--out={out}"]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(harmofl.__file__).parents[1]), "COLUMNS": "200"}


def start(args: list[str]) -> subprocess.Popen[str]:
    """Start a command as a terminal would: as the leader of its own process group."""
    return subprocess.Popen(
        [*HARMOFL, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
        preexec_fn=hear_interrupts,
    )


def hear_interrupts() -> None:
    """Undo what a shell does to commands in the background, whose children then never hear Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def call(
    args: list[str], cwd: Path | None = None, columns: int = 200, encoding: str = "utf-8"
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in this process, as a new one takes seconds to import torch.

    `columns`, `encoding`: of the terminal.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(), own_logging():
        patch.setattr(sys, "argv", ["harmofl", *args])
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        patch.setenv("COLUMNS", str(columns))
        patch.chdir(cwd or Path.cwd())
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
    return subprocess.CompletedProcess(args, code, *(read_back(stream) for stream in (out, err)))


def read_back(stream: io.TextIOWrapper) -> str:
    """What was written to a stream."""
    stream.seek(0)
    return stream.read()


@contextmanager
def own_logging() -> Iterator[None]:
    """No handlers yet, as when a process starts; afterwards those of before."""
    root = logging.getLogger()
    before = root.handlers, root.level
    root.handlers = []
    try:
        yield
    finally:
        root.handlers = before[0]
        root.setLevel(before[1])


def wait_for(happened: Callable[[], bool], process: subprocess.Popen[str] | None = None, seconds: float = 60) -> None:
    """Return as soon as something has happened; fail if the process ends or time runs out before."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert process is None or process.poll() is None, f"ended too early: {process.communicate()}"
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.001)


def after_round(number: int, act: Callable[[], object]) -> Watch:
    """A watch that does something once, as soon as the server has finished a round."""
    due = [act]

    def watch(event: Event) -> None:
        if isinstance(event, RoundFinished) and event.round == number and due:
            due.pop()()

    return watch


def stop_after_round(number: int) -> Watch:
    """A watch that interrupts a run as soon as the server has finished a round."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    return after_round(number, interrupt)


def alive_in_group(leader: int) -> list[int]:
    """The processes of a group that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except OSError:
                continue
            if int(group) == leader and state not in "ZX":
                found.append(int(entry.name))
    return found


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]


TIMES = ("seconds", "records")
"""What differs between two equal runs: times, and the checksum of records that hold them."""


def timeless(values: Any) -> Any:
    """The same values without times."""
    if isinstance(values, dict):
        return {name: timeless(value) for name, value in values.items() if name not in TIMES}
    return [timeless(value) for value in values] if isinstance(values, list) else values


def tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors and notes of a safetensors file."""
    with safe_open(path, framework="pt") as file:
        notes = json.loads((file.metadata() or {}).get("notes", "{}"))
        return {name: file.get_tensor(name) for name in file.keys()}, notes  # noqa: SIM118


def weights(out: Path, site: str = "") -> dict[str, torch.Tensor]:
    """The tensors of a run's final model."""
    folder = out / "model" / "sites" / site if site else out / "model"
    return tensors(folder / "model.safetensors")[0]


def equal(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    """Whether two states are the same, bit for bit."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def differences(first: Path, second: Path, stores: bool = True) -> list[str]:
    """Everything in which two runs' folders differ: final weights, checkpoints, site stores, records, summary.

    `stores`: what sites keep is compared too; over a network it lies elsewhere.
    """
    found = []
    files = [
        {
            path.relative_to(out)
            for path in out.rglob("*")
            if path.is_file() and path.name != ".lock" and (stores or "sites" not in path.relative_to(out).parts)
        }
        for out in (first, second)
    ]
    found += [f"only one has {path}" for path in files[0] ^ files[1]]
    assert any(path.suffix == ".safetensors" for path in files[0])
    for path in sorted(files[0] & files[1]):
        if path.suffix == ".safetensors":
            (one, notes), (other, other_notes) = tensors(first / path), tensors(second / path)
            if not equal(one, other) or timeless(notes) != timeless(other_notes):
                found.append(str(path))
    if timeless(records(first)) != timeless(records(second)):
        found.append("records")
    summaries = [json.loads((out / "summary.json").read_text()) for out in (first, second)]
    if timeless(summaries[0]) != timeless(summaries[1]):
        found.append("summary")
    return found


Change = Callable[[Request, Reply], Reply]


class Altered:
    """Real sites, some of whose replies are changed on their way; keeps what passed."""

    def __init__(self, transport: InProcess, change: Change) -> None:
        self.transport = transport
        self.change = change
        self.passed: list[tuple[Request, Reply]] = []

    def sites(self, minimum: int, timeout: float) -> list[str]:
        return list(reversed(self.transport.sites(minimum, timeout)))

    def ask(self, requests: Mapping[str, Request], timeout: float) -> Iterator[Reply]:
        for reply in reversed(list(self.transport.ask(requests, timeout))):  # the slowest order that there is
            changed = self.change(requests[reply.site], reply)
            self.passed.append((requests[reply.site], changed))
            yield changed

    def replies(self, kind: str, number: int) -> dict[str, Reply]:
        """What sites answered in a round, by site."""
        return {reply.site: reply for request, reply in self.passed if (request.kind, request.round) == (kind, number)}

    def requests(self, kind: str, number: int) -> dict[str, Request]:
        """What sites were asked in a round, by site."""
        return {
            reply.site: request for request, reply in self.passed if (request.kind, request.round) == (kind, number)
        }


def unchanged(request: Request, reply: Reply) -> Reply:
    return reply


def serve(
    out: Path,
    change: Change = unchanged,
    method: str | Method = "fedavg",
    rounds: int = 2,
    resume: bool = False,
    **more: Any,
) -> Altered:
    """Run a server over real sites whose replies are changed."""
    settings, chosen = resolve("histology", method, "smoke", overrides=tiny("histology", rounds, **more))
    folder = RunFolder(out)
    facts = find_data_facts(settings)
    run = folder.begin(settings, facts, resume)
    transport = Altered(InProcess(settings, chosen, out), change)
    try:
        with threads(1):
            Server(registry.tasks.find("histology"), chosen, settings, transport, folder, run).run()
    finally:
        folder.release()
    return transport


def altered(reply: Reply, **values: Any) -> Reply:
    return replace(reply, **values)


def gradients_of(run: Path) -> dict[str, SiteGradient]:
    """Every site's gradient at the selected model of a finished run."""
    (loaded,) = load_runs([run], "cpu")
    source = loaded.task.open(loaded.settings.data)
    with threads(1):
        return {site.name: gradient_at(loaded, site, seed=0) for site in loaded.load_sites(source)}
