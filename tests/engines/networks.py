"""A network of its own for one party, whose only way out can be cut."""

import random
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from federations import missing


@dataclass(frozen=True)
class Network:
    """A network namespace; `address`: of this machine, as seen from there."""

    name: str
    address: str

    @property
    def inside(self) -> Sequence[str]:
        """What a command begins with to run there."""
        return ("ip", "netns", "exec", self.name)

    def cut(self) -> None:
        """Nothing gets through, and nobody is told."""
        do("ip", "link", "set", f"{self.name}a", "down")

    def restore(self) -> None:
        do("ip", "link", "set", f"{self.name}a", "up")


def do(*command: str) -> None:
    """Run a command, or say that there are no network namespaces here."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=20)
    except FileNotFoundError:
        missing("no command `ip`")
    if done.returncode:
        missing(f"no network namespaces here: {done.stderr.decode().strip()}")


@contextmanager
def own_network() -> Iterator[Network]:
    """Made for a test and removed after it."""
    name, block = f"hfl{random.randrange(10**6)}", f"10.{random.randrange(64, 192)}.{random.randrange(256)}"
    try:
        do("ip", "netns", "add", name)
        do("ip", "link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b", "netns", name)
        do("ip", "addr", "add", f"{block}.1/30", "dev", f"{name}a")
        do("ip", "link", "set", f"{name}a", "up")
        do("ip", "-n", name, "addr", "add", f"{block}.2/30", "dev", f"{name}b")
        do("ip", "-n", name, "link", "set", f"{name}b", "up")
        do("ip", "-n", name, "link", "set", "lo", "up")
        yield Network(name, f"{block}.1")
    finally:
        for command in (["ip", "netns", "del", name], ["ip", "link", "del", f"{name}a"]):
            subprocess.run(["sh", "-c", " ".join(command)], capture_output=True, timeout=20)
