"""A Transport over the tasks of a FLARE job: the public way, which every provisioned project has."""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from harmofl.deployment.engine import NOT_CONNECTED, TOO_LATE, wait_for_sites
from harmofl.deployment.nvflare.names import TASK
from harmofl.deployment.nvflare.transport import group_equal
from harmofl.deployment.replies import LARGEST_REPLY, reply_of
from harmofl.errors import RunError
from harmofl.federation.messages import Reply, Request

PATIENCE = 10.0
"""Seconds to wait for a job's sites: they were there when it started, and no other site can join it."""
LOOK_EVERY = 0.5
"""Seconds between two looks at whether the job is to stop."""
GRACE = 60
"""Seconds that a task outlives the run's own timeout, as only the run decides when time is up."""
ABORTED = "the job was aborted. The last checkpoint is kept: submit the job again to continue"

Answer = tuple[str, bytes | str]
"""A site's name, with the bytes of its answer or the reason why there are none."""


class TaskTransport:
    """Reaches the sites of a job through its controller, until the job is aborted."""

    def __init__(self, controller: Controller, fl_ctx: FLContext, abort_signal: Signal) -> None:
        self._controller = controller
        self._context = fl_ctx
        self._abort = abort_signal
        self._largest = LARGEST_REPLY
        self.names = sorted(client.name for client in fl_ctx.get_engine().get_clients())

    def sites(self, minimum: int, timeout: float) -> list[str]:
        """All sites of the job, once enough of them are connected."""
        return wait_for_sites(self.names, self._connected, minimum, min(timeout, PATIENCE))

    def limit_replies(self, largest: int) -> None:
        """Refuse larger replies; FLARE has received them by then."""
        self._largest = min(largest, LARGEST_REPLY)

    def ask(self, requests: Mapping[str, Request], timeout: float) -> Iterator[Reply]:
        """Give each site its task; equal requests are one task."""
        answers: queue.Queue[Answer] = queue.Queue()
        deadline = time.monotonic() + timeout
        tasks = [self._start(data, sites, timeout, answers) for data, sites in group_equal(requests)]
        try:
            for site, answer in self._collect(answers, set(requests), deadline):
                yield reply_of(site, answer, self._largest)
        finally:
            for task in tasks:
                if task.completion_status is None:
                    self._controller.cancel_task(task)

    def _start(self, data: bytes, sites: list[str], timeout: float, answers: queue.Queue[Answer]) -> Task:
        shareable = Shareable()
        shareable[TASK] = data
        received, done = callbacks(sites, answers.put)
        task = Task(
            name=TASK,
            data=shareable,
            timeout=math.ceil(timeout) + GRACE,
            result_received_cb=received,
            task_done_cb=done,
        )
        self._controller.broadcast(task, self._context, targets=sites, min_responses=len(sites))
        return task

    def _collect(self, answers: queue.Queue[Answer], waiting: set[str], deadline: float) -> Iterator[Answer]:
        """Yield one answer per site, until time is up."""
        while waiting:
            if self._abort.triggered:
                raise RunError(ABORTED)
            left = deadline - time.monotonic()
            try:
                site, answer = answers.get(timeout=min(max(0.0, left), LOOK_EVERY))
            except queue.Empty:
                if left > 0:
                    continue
                yield from ((site, TOO_LATE) for site in sorted(waiting))
                return
            if site in waiting:
                waiting.remove(site)
                yield site, answer

    def _connected(self) -> list[str]:
        return [site for site in self.names if self._controller.get_client_disconnect_time(site) is None]


def callbacks(sites: Sequence[str], put: Callable[[Answer], None]) -> tuple[Callable[..., None], Callable[..., None]]:
    """What FLARE calls when an answer has come, and when no other will come; of each site the first word counts."""

    def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
        result, client_task.result = client_task.result, None  # a task keeps its answers for as long as it stands
        put((client_task.client.name, read_result(result)))

    def done(task: Task, fl_ctx: FLContext) -> None:
        for site in sites:
            put((site, NOT_CONNECTED))

    return received, done


def read_result(result: Any) -> bytes | str:
    """The bytes of an answer, or why there are none."""
    code = result.get_return_code() if isinstance(result, Shareable) else "no answer"
    data = result.get(TASK) if code == ReturnCode.OK else None
    return data if isinstance(data, bytes) else f"NVIDIA FLARE has no answer of it ({code})"
