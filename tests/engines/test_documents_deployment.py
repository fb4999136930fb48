"""docs/deployment.md, followed on this machine as it is written, with each engine.

Every machine of the page is a folder here, and `scp` copies from one to another; so a party has what the page gave it
and nothing else. Replaced are only the names that the page says are to be replaced: the engine, the server's address,
and the folders with images.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from federations import free_port, need_engine

from folders import segmentation_folder
from runs import environment, hear_interrupts

PAGE = Path(__file__).parents[2] / "docs" / "deployment.md"
BLOCK = re.compile(r"(?:<!-- ([^\n]*?) -->\n)?```(bash|toml)\n(.*?)```|<!-- (stops: [^\n]*?) -->", re.DOTALL)
SCP = """#!/bin/sh
# Copies between machines that are folders: MACHINE:PATH, or a path on this one.
place() { case "$1" in *:*) echo "$MACHINES/${1%%:*}/${1#*:}" ;; *) echo "$1" ;; esac; }
for last; do :; done
case "$last" in *:*) mkdir -p "$MACHINES/${last%%:*}" ;; esac
count=$#
while [ "$count" -gt 1 ]; do
  case "$1" in -*) ;; *) cp -r "$(place "$1")" "$(place "$last")" || exit 1 ;; esac
  shift
  count=$((count - 1))
done
"""
HERE = "here"


@dataclass(frozen=True)
class Block:
    """Something that the page says to type, or to write into a file, at some machines."""

    text: str
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def machines(self) -> list[str]:
        return self.notes.get("at", HERE).split()


def blocks() -> Iterator[Block]:
    for notes, _, text, stops in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        pairs = (part.split(": ", 1) for part in (notes or stops).split("; ") if part)
        yield Block(text, {name.strip(): value for name, value in pairs})


class Reader:
    """Does what the page says, on folders that stand for machines."""

    def __init__(self, folder: Path, engine: str) -> None:
        self.folder, self.engine, self.port = folder, engine, free_port()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "scp").write_text(SCP)
        (folder / "bin" / "scp").chmod(0o755)
        (folder / "bin" / "harmofl").write_text(
            f'#!/bin/sh\nexec {sys.executable} -c "from harmofl.cli import main; main()" "$@"\n'
        )
        (folder / "bin" / "harmofl").chmod(0o755)

    def machine(self, name: str) -> Path:
        place = self.folder / "machines" / name
        if not (place / "srv").exists():
            segmentation_folder(place / "srv" / "images", sites=1, patients=12)
            (place / "srv" / "new-patients").mkdir()
            shutil.copy(place / "srv" / "images" / "site-0" / "p0-0.png", place / "srv" / "new-patients")
        return place

    def environment(self) -> dict[str, str]:
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return environment() | {"PATH": path, "MACHINES": str(self.folder / "machines")}

    def here(self, text: str, machine: str) -> str:
        """The page's text with this test's own engine, address and folders."""
        text = text.replace("--engine flower", f"--engine {self.engine}")
        text = re.sub(r"--server \S+", f"--server localhost:{self.port}", text)
        return text.replace("/srv/", f"{self.machine(machine)}/srv/")

    def follow(self, block: Block) -> None:
        if block.notes.get("engine", self.engine) != self.engine:
            return
        for name in block.notes.get("stops", "").split():
            self.stop(f"{HERE} {name}")
        for machine in block.machines if block.text else []:
            text = self.here(block.text, machine)
            if "in" in block.notes:
                self.write(self.machine(machine) / block.notes["in"], text)
            elif "stays" in block.notes:
                self.start(f"{machine} {block.notes['stays']}", text, machine)
            else:
                self.type(text, machine)

    def write(self, path: Path, line: str) -> None:
        """Change a setting to what the page says."""
        name = line.split(" = ")[0]
        changed, count = re.subn(rf"^{name} = .*$", line.strip(), path.read_text(), flags=re.MULTILINE)
        assert count == 1
        path.write_text(changed)

    def type(self, text: str, machine: str) -> None:
        with subprocess.Popen(
            ["yes", "yes"], stdout=subprocess.PIPE
        ) as person:  # the number on the telephone is the same
            result = subprocess.run(
                ["bash", "-e", "-c", text],
                cwd=self.machine(machine),
                env=self.environment(),
                stdin=person.stdout,
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
            person.terminate()
        logs = "".join(f"\n== {path.name}\n{path.read_text()[-2000:]}" for path in self.folder.glob("*.log"))
        assert result.returncode == 0, f"at {machine}: {text}{result.stdout}{result.stderr}{logs}"

    def start(self, name: str, text: str, machine: str) -> None:
        """A terminal of its own; one of the same name is stopped first, as by Ctrl-C."""
        self.stop(name)
        with open(self.folder / f"{name}.log", "ab") as log:
            self.running[name] = subprocess.Popen(
                ["bash", "-c", text],
                cwd=self.machine(machine),
                env=self.environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=hear_interrupts,
            )
        if name.endswith("server"):
            self.wait_for_port()

    def wait_for_port(self) -> None:
        deadline = time.monotonic() + 90
        while True:
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert time.monotonic() < deadline, "the server does not listen"
            time.sleep(0.2)

    def stop(self, name: str) -> None:
        process = self.running.pop(name, None)
        if process is None:
            return
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
            raise AssertionError(f"{name} did not stop at Ctrl-C") from None

    def stop_all(self) -> None:
        for name in sorted(self.running, key=lambda name: name.endswith("server")):  # the server last
            self.stop(name)


def test_the_page_is_read_whole() -> None:
    text = PAGE.read_text(encoding="utf-8")
    found = list(blocks())
    assert sum(bool(block.text) for block in found) == text.count("```bash") + text.count("```toml")
    assert {name for block in found for name in block.notes} == {"at", "stays", "stops", "in", "engine"}
    measured = ["<!-- hostile site -->", "<!-- end -->"]  # around a table that benchmarks/hostile_site.py writes
    assert [text.count(mark) for mark in measured] == [1, 1]
    assert text.count("<!--") - len(measured) == sum(bool(block.notes) for block in found)


@pytest.mark.parametrize("page", [PAGE, PAGE.parents[1] / "SECURITY.md"])
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


@pytest.mark.engines
@pytest.mark.parametrize("engine", ["flower", "nvflare"])
def test_the_page_can_be_followed_as_it_is_written(tmp_path: Path, engine: str) -> None:
    need_engine(engine)
    reader = Reader(tmp_path, engine)
    try:
        for block in blocks():
            if "--sites Aachen" in block.text:  # another federation begins, on the same machine
                (reader.machine(HERE) / "kits").rename(reader.machine(HERE) / "tried")
            reader.follow(block)
    finally:
        reader.stop_all()
    machines = tmp_path / "machines"
    assert (machines / HERE / "runs" / "first" / "report.html").exists()
    assert len(list((machines / HERE / "tried" / "sites").glob("hospital-*/models/*/model.safetensors"))) == 3
    assert (machines / "fl.example.org" / "harmofl-server" / "runs" / "trial" / "report.html").exists()
    assert "run " not in (tmp_path / "delhi.example.org site.log").read_text()  # it came after the run
    for hospital in ("aachen", "boston", "chengdu"):
        assert list((machines / f"{hospital}.example.org").glob("harmofl-site/models/*/model.safetensors")), hospital
    assert list((machines / "aachen.example.org" / "harmofl-site" / "predictions").iterdir())
