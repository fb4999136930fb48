"""Somebody's own Flower federation, started by Flower's own commands, with TLS and node keys."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w
from federations import TASK, THREE, free_port, need_engine, wait_until

from harmofl.deployment.coordinator import RunOptions
from harmofl.deployment.existing import write_app
from harmofl.deployment.guests import make_guest
from harmofl.deployment.tls.certificates import issue_server_certificate, make_authority, make_site_key
from runs import environment, hear_interrupts, tiny

COMMANDS = Path(sys.executable).parent
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "NO_PROXY": "127.0.0.1,localhost"}


@dataclass
class ExistingFlower:
    """The folder of all parties, and their processes."""

    folder: Path
    sites: Sequence[str]
    port: int = field(default_factory=free_port)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def environment(self, home: str) -> dict[str, str]:
        path = f"{COMMANDS}{os.pathsep}{os.environ['PATH']}"
        return environment() | QUIET | {"FLWR_HOME": str(self.folder / home), "PATH": path}

    def start(self, name: str, *command: str, **variables: str) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(COMMANDS / command[0]), *command[1:]],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment(name) | variables,
                start_new_session=True,
                preexec_fn=hear_interrupts,
            )

    def flwr(self, *command: str) -> Any:
        """One of Flower's own commands, as the operator gives it; what it prints as JSON."""
        done = subprocess.run(
            [str(COMMANDS / "flwr"), *command, "--format", "json"],
            capture_output=True,
            text=True,
            env=self.environment("operator"),
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout[done.stdout.index("{") :])

    def provision(self) -> None:
        """As the consortium did it long ago: certificates, node keys, an operator's configuration."""
        make_authority(self.folder / "authority")
        issue_server_certificate(self.folder / "authority", ["localhost"], self.folder / "tls")
        authority = str(self.folder / "tls" / "ca.crt")
        mine = {"address": f"127.0.0.1:{self.port}", "root-certificates": authority}
        (self.folder / "operator").mkdir()
        (self.folder / "operator" / "config.toml").write_text(tomli_w.dumps({"superlink": {"ours": mine}}))
        for site in self.sites:
            make_site_key(self.folder / "keys", site)
            make_guest(self.folder / site, site, [TASK], synthetic=True)

    def start_superlink(self) -> None:
        tls = self.folder / "tls"
        certificates = [f"--ssl-ca-certfile={tls}/ca.crt", f"--ssl-certfile={tls}/server.crt"]
        options = ["--enable-supernode-auth", "--disable-runtime-dependency-installation", f"--port={self.port}"]
        self.start("superlink", "flower-superlink", *certificates, f"--ssl-keyfile={tls}/server.key", *options)
        wait_until(self._answers, "the SuperLink answers", self.processes["superlink"])

    def _answers(self) -> bool:
        with suppress(AssertionError):
            return bool(self.flwr("supernode", "list", "ours")["success"])
        return False

    def start_supernode(self, site: str, by_variable: bool = False) -> None:
        """The folder of the hospital is named by the node's configuration, or by a variable."""
        key = self.folder / "keys" / site
        self.flwr("supernode", "register", f"{key}.pub", "ours", "--name", site)
        named = [] if by_variable else ["--node-config", f'harmofl-site="{self.folder / site}"']
        options = [f"--superlink=127.0.0.1:{self.port}", f"--root-certificates={self.folder}/tls/ca.crt"]
        options += [f"--auth-supernode-private-key={key}", f"--port={free_port()}", *named]
        variables = {"HARMOFL_SITE": str(self.folder / site)} if by_variable else {}
        self.start(f"node-{site}", "flower-supernode", *options, **variables)

    def write_app(self, method: str, **more: Any) -> Path:
        out = self.folder / f"app-{len(list(self.folder.glob('app-*')))}"
        options = RunOptions(TASK, method, "smoke", given=tiny(TASK, **more))
        write_app("flower", options, self.sites, str(self.runs), "harmofl-app", out)
        return out

    def start_run(self, app: Path, name: str, resume: bool = False) -> str:
        config = f'run="{name}" resume={str(resume).lower()}'
        return str(self.flwr("run", str(app), "ours", "--run-config", config)["run-id"])

    def status(self, run: str) -> str:
        return str(self.flwr("list", "ours", "--run-id", run)["runs"][0]["status"])

    def finish(self, run: str, name: str, seconds: float = 900) -> str:
        """Wait for a run's end, in its folder first, as each of Flower's commands takes seconds; how it ended."""
        ends = [self.runs / name / end for end in ("summary.json", "failure.txt")]
        wait_until(lambda: any(end.exists() for end in ends), "the run's folder tells of its end", seconds=seconds)
        wait_until(lambda: self.status(run).startswith("finished"), "Flower tells of its end")
        return self.status(run)

    def run(self, name: str, method: str = "fedavg", **more: Any) -> Path:
        """`flwr run`, to the end; the run's folder."""
        ended = self.finish(self.start_run(self.write_app(method, **more), name), name)
        assert ended == "finished:completed", f"{ended}: {(self.folder / 'superlink.log').read_text()[-4000:]}"
        return self.runs / name

    def stop_all(self) -> None:
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


@contextmanager
def existing_flower(folder: Path, sites: Sequence[str] = THREE[:2]) -> Iterator[ExistingFlower]:
    need_engine("flower")
    federation = ExistingFlower(folder, sites)
    federation.provision()
    try:
        federation.start_superlink()
        for number, site in enumerate(sites):
            federation.start_supernode(site, by_variable=number == 0)
        yield federation
    finally:
        federation.stop_all()
