"""Projects of NVIDIA FLARE as a consortium runs them: provisioned, started and stopped with FLARE's own commands."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from federations import free_port, need_engine, wait_until

from runs import HARMOFL, environment, hear_interrupts

ADMIN = "admin@example.org"
SERVER = "localhost"
NVFLARE = [sys.executable, "-m", "nvflare.cli"]
PROJECT = """
api_version: 3
name: consortium
description: a federation that others provisioned
participants:
  - {{name: {server}, type: server, org: example, fed_learn_port: {port}}}
  - {{name: {admin}, type: admin, org: example, role: project_admin}}
{clients}
builders:
  - path: nvflare.lighter.impl.workspace.WorkspaceBuilder
    args: {{template_file: [master_template.yml]}}
  - path: nvflare.lighter.impl.static_file.StaticFileBuilder
    args: {{config_folder: config}}
  - path: nvflare.lighter.impl.cert.CertBuilder
  - path: nvflare.lighter.impl.signature.SignatureBuilder
"""
CLASSES = {
    True: "harmofl.deployment.nvflare.controller.RunController",
    False: "harmofl.deployment.nvflare.executor.SiteExecutor",
}
"""What the server, and what a site, has to allow."""


@dataclass
class Project:
    """A project on this machine, on the loopback; its parties do what docs/existing-federations.md says."""

    folder: Path
    sites: Sequence[str]
    parties: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def kits(self) -> Path:
        return self.folder / "workspace" / "consortium" / "prod_00"

    @property
    def runs(self) -> Path:
        """Where the server keeps the runs' folders."""
        return self.kits / SERVER / "local" / "harmofl" / "runs"

    def provision(self) -> None:
        """`nvflare provision`, and what each party adds."""
        clients = "\n".join(f"  - {{name: {site}, type: client, org: example}}" for site in self.sites)
        text = PROJECT.format(server=SERVER, admin=ADMIN, port=free_port(), clients=clients)
        (self.folder / "project.yml").write_text(text)
        self.call("provision", "-p", str(self.folder / "project.yml"), "-w", str(self.folder / "workspace"), "--force")
        for name in (SERVER, *self.sites):
            self.allow(name)
        for name in self.sites:
            folder = self.kits / name / "local" / "harmofl"
            harmofl("deploy", "site", name, "--task", "histology", "--synthetic", "--out", str(folder))

    def allow(self, name: str) -> None:
        """Add harmofl's class to those that a party lets a job name, and keep FLARE's store out of /tmp."""
        local = self.kits / name / "local"
        text = (local / "resources.json.default").read_text().replace("/tmp/nvflare", str(self.folder / "store"))
        resources = json.loads(text)
        resources["class_allow_list"].append(CLASSES[name == SERVER])
        (local / "resources.json").write_text(json.dumps(resources))

    def start(self) -> None:
        """Each party's start.sh, as its readme.txt says."""
        for name in (SERVER, *self.sites):
            with open(self.folder / f"{name}.log", "ab") as log:
                self.parties[name] = subprocess.Popen(
                    [self.kits / name / "startup" / "start.sh"],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self.environment(),
                    start_new_session=True,
                    preexec_fn=hear_interrupts,
                )
        wait_until(
            lambda: all(f"client {site} registered" in self.log(SERVER) for site in self.sites), "all registered"
        )

    def stop(self) -> None:
        """Stop every party in good order, and whatever is left of it."""
        with suppress(AssertionError, subprocess.TimeoutExpired):
            self.call("system", "shutdown", "all", "--force", *self.as_admin())
        for name, process in self.parties.items():
            (self.kits / name / "shutdown.fl").touch()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(10)

    def submit(self, job: Path) -> str:
        """`nvflare job submit`; return the job's number."""
        told = self.call("--format", "json", "job", "submit", "-j", str(job), *self.as_admin())
        return str(json.loads(told)["data"]["job_id"])

    def end_of(self, job: str, seconds: int = 300) -> str:
        """Wait for a job's end; return its status."""
        wait = ("job", "wait", job, "--timeout", str(seconds), *self.as_admin())
        return str(json.loads(self.call("--format", "json", *wait, fine=(0, 1)))["data"]["status"])

    def abort(self, job: str) -> None:
        self.call("job", "abort", job, "--force", *self.as_admin())

    def download(self, job: str, out: Path) -> None:
        self.call("job", "download", job, "-o", str(out), *self.as_admin())

    def call(self, *arguments: str, fine: Sequence[int] = (0,)) -> str:
        """One of FLARE's own commands."""
        done = subprocess.run(
            [*NVFLARE, *arguments], capture_output=True, text=True, env=self.environment(), timeout=400, check=False
        )
        assert done.returncode in fine, f"nvflare {' '.join(arguments)}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def as_admin(self) -> tuple[str, str]:
        return "--startup-kit", str(self.kits / ADMIN / "startup")

    def environment(self) -> dict[str, str]:
        """FLARE's command keeps a file in the home folder."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {name: value for name, value in environment().items() if name != "HARMOFL_KIT"} | {
            "HOME": str(home),
            "PATH": path,
        }

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")


def harmofl(*arguments: str) -> str:
    """Our own command."""
    done = subprocess.run(
        [*HARMOFL, *arguments], capture_output=True, text=True, env=environment(), timeout=120, check=False
    )
    assert done.returncode == 0, f"harmofl {' '.join(arguments)}: {done.stdout}\n{done.stderr}"
    return done.stdout


@contextmanager
def flare_project(folder: Path, sites: Sequence[str]) -> Iterator[Project]:
    """A project that is up."""
    need_engine("nvflare")
    project = Project(folder, sites)
    project.provision()
    try:
        project.start()
        yield project
    finally:
        project.stop()
