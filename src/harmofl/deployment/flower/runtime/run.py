"""A run at the server, whose server application is this process."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import httpx
from flwr.common.constant import Status, SubStatus
from flwr.common.serde import run_from_proto
from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest, StopRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import http_grid
from flwr.superlink.grid.http_grid import HttpGrid

from harmofl.deployment.flower.mailbox import Mailbox
from harmofl.deployment.flower.runtime.operator import Superlink
from harmofl.deployment.flower.runtime.parts import look_often
from harmofl.deployment.flower.runtime.tasks import TROUBLE, heartbeat

REFUSAL = b"raise SystemExit('harmofl runs nothing that is submitted to Flower: see `harmofl deploy --help`')\n"
PROJECT = b"""[project]
name = "harmofl-relay"
version = "1.0.0"
[tool.flwr.app]
publisher = "harmofl"
[tool.flwr.app.components]
serverapp = "refusal:app"
clientapp = "refusal:app"
"""


def application() -> bytes:
    """Make the code that Flower wants with a run; if somebody runs it, it only refuses."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("pyproject.toml", PROJECT)
        file.writestr("refusal.py", REFUSAL)
    return archive.getvalue()


def stop_runs(control: ControlHttpClient) -> None:
    """End runs that a killed process has left, so that their messages no longer reach anybody."""
    for identifier, run in control.ListRuns(ListRunsRequest()).run_dict.items():
        if run.status.status != Status.FINISHED:
            with suppress(httpx.HTTPStatusError):  # it has just finished by itself
                control.StopRun(StopRunRequest(run_id=identifier))


@contextmanager
def open_run(superlink: Superlink) -> Iterator[Mailbox]:
    """Start a run of Flower's whose server application is this process; it is ended whatever happens."""
    http_grid.pull_objects = look_often(http_grid.pull_objects)
    with superlink.control() as control:
        stop_runs(control)
        run = control.StartRun(StartRunRequest(fab=Fab(content=application()))).run_id
        if not run:
            raise RuntimeError("Flower did not accept the run")
        try:
            token = acquire_task(superlink, run)
            with superlink.runtime(token) as client, heartbeat(client):
                yield Mailbox(open_grid(superlink, client, token))
                client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.COMPLETED))
        except BaseException:
            with suppress(*TROUBLE), replace(superlink, patience=0).control() as brief:
                brief.StopRun(StopRunRequest(run_id=run))
            raise


def acquire_task(superlink: Superlink, run: int) -> str:
    """Acquire the run's one task, and return its token; tasks of other runs are dropped."""
    with superlink.runtime() as client:
        while True:
            found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
            if not found.token:
                raise RuntimeError("Flower gave no task for the run")
            if found.task.run_id == run:
                return str(found.token)


def open_grid(superlink: Superlink, client: RuntimeHttpClient, token: str) -> HttpGrid:
    """Open what a server application sends and receives messages with."""
    task = client.PullTaskInput(PullTaskInputRequest())
    TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
    TaskIdentity.node_id = task.context.node_id
    grid = HttpGrid(superlink.address, root_certificates=superlink.authority, token=token)
    grid._client = client  # its own would not say that it is the operator, and would interrupt us on a refusal
    grid.set_run(run_from_proto(task.run))
    return grid
