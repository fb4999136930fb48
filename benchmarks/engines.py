"""What an engine costs: a round of two sites that train nothing, with a 30 MB model, against the same in one process.

Real processes on this machine, with TLS and keys. Bytes are those that went through the loopback interface, in both
directions and between an engine's own processes, beside those of the messages themselves.
"""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from harmofl import registry
from harmofl.deployment.engine import find_engine
from harmofl.deployment.kits import ServerKit
from harmofl.deployment.provisioning import make_federation, make_kits
from harmofl.errors import RunError, UsageError
from harmofl.federation.messages import Reply, Request, decode_reply, decode_request, encode
from harmofl.federation.transports import Transport
from measuring import Bound, Samples, benchmark

SITES = ("hospital-0", "hospital-1")
MODEL_BYTES = 30_000_000
ROUNDS = 5
START_SECONDS = 120.0
MEGABYTE = 1e6
LOOPBACK = Path("/sys/class/net/lo/statistics/tx_bytes")

Ask = Callable[[Mapping[str, Request]], list[Reply]]


def make_request() -> Request:
    """A message with a model of random weights."""
    tensor = torch.randn(MODEL_BYTES // 4, generator=torch.Generator().manual_seed(0))
    return Request("0" * 32, "train", 1, state={"weights": tensor})


def in_one_process(requests: Mapping[str, Request]) -> list[Reply]:
    """The same messages, encoded and decoded as workers do, with no way between."""
    replies = []
    for site, message in requests.items():
        received = decode_request(encode(message))
        replies.append(decode_reply(encode(Reply(site, received.state, num_examples=1, num_steps=1))))
    return replies


def loopback_bytes() -> int:
    """What went through the loopback interface since the machine started; 0 if it does not say."""
    return int(LOOPBACK.read_text()) if LOOPBACK.exists() else 0


def measure(name: str, ask: Ask) -> list[float]:
    """The seconds of every round; the first, which opens connections, is not counted."""
    message = make_request()
    seconds, sent = [], []
    for number in range(ROUNDS + 1):
        before, started = loopback_bytes(), time.perf_counter()
        replies = ask(dict.fromkeys(SITES, message))
        if number:
            seconds.append(time.perf_counter() - started)
            sent.append((loopback_bytes() - before) / MEGABYTE)
        for reply in replies:
            if reply.error or not torch.equal(reply.state["weights"], message.state["weights"]):
                raise SystemExit(f"{name}: {reply.site}: {reply.error or 'other weights came back'}")
    payload = 2 * len(SITES) * len(encode(message)) / MEGABYTE
    middle = statistics.median(seconds)
    print(
        f"{name:12} {middle:6.2f} s a round ({min(seconds):.2f} to {max(seconds):.2f}); messages {payload:.0f} MB, "
        f"through the loopback interface {statistics.median(sent):.0f} MB"
    )
    return seconds


@contextmanager
def federation(engine: str, folder: Path) -> Iterator[ServerKit]:
    """A server and two sites as processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made = make_federation(engine, f"localhost:{port}", SITES)
    make_kits(made, folder / "kits", ["histology"], synthetic=True)
    kits = folder / "kits"
    echo = [sys.executable, str(Path(__file__).with_name("echo_site.py"))]
    serve = [sys.executable, "-c", "from harmofl.cli import main; main()", "deploy", "start"]
    commands = [[*serve, str(kits / "server")], *([*echo, str(kits / "sites" / site)] for site in SITES)]
    with open(folder / "log", "wb") as log:
        processes = [subprocess.Popen(command, stdout=log, stderr=log) for command in commands]
    try:
        yield ServerKit.open(kits / "server")
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(60)


def measure_engine(engine: str) -> list[float]:
    """The seconds of rounds over an engine."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        federation(engine, Path(scratch)) as kit,
        connect_when_started(kit) as transport,
    ):
        transport.sites(len(SITES), START_SECONDS)
        return measure(engine, lambda requests: list(transport.ask(requests, 300.0)))


@contextmanager
def connect_when_started(kit: ServerKit) -> Iterator[Transport]:
    """The way to the sites, as soon as the server has started."""
    deadline = time.monotonic() + START_SECONDS
    with ExitStack() as stack:
        while True:
            try:
                transport = stack.enter_context(find_engine(kit.federation.engine).connect(kit))
                break
            except RunError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
        yield transport


@benchmark(*(Bound(f"a round of two idle sites over {engine}, 30 MB", unit="s") for engine in ("flower", "nvflare")))
def engines(is_quick: bool) -> Samples:
    """Every engine that is installed, after the same in one process; seconds of the clock, so there is no bound."""
    measure("one process", in_one_process)
    found = {}
    for engine in registry.engines.names():
        try:
            find_engine(engine)
        except UsageError as error:
            print(f"{engine:12} {error}")
            continue
        found[f"a round of two idle sites over {engine}, 30 MB"] = measure_engine(engine)
    return found
