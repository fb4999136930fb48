"""The server's end of a job on a federation that others provisioned: the same run as `harmofl deploy run` starts."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.signal import Signal

from harmofl.deployment.coordinator import audited, check_run, read_options, run_over
from harmofl.deployment.nvflare.names import RUN_FILE, SERVER_VARIABLE, own_folder
from harmofl.deployment.nvflare.tasks import TaskTransport
from harmofl.deployment.provisioning import check_name
from harmofl.displays.plain import PlainDisplay
from harmofl.errors import RunError, UsageError
from harmofl.runs.folder import RunFolder

logger = logging.getLogger(__name__)

RESULT = "run"
"""The copy of the run's folder that `nvflare job download` brings."""


class RunController(Controller):  # type: ignore[misc]  # FLARE has no types
    """Trains what the job's run.toml says, in a folder of its own on the server: a second job of that name goes on."""

    def __init__(self, run: str) -> None:
        super().__init__()
        self._run = run

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing is to be prepared."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing is left running."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run to the end; whatever stops it is the job's error, and the run's folder stays for the next job."""
        try:
            self._train(abort_signal, fl_ctx)
        except (UsageError, RunError) as error:
            logger.error("%s", error)
            self.system_panic(str(error), fl_ctx)

    def _train(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        workspace, job = fl_ctx.get_engine().get_workspace(), fl_ctx.get_job_id()
        home = own_folder(Path(workspace.get_site_config_dir()), SERVER_VARIABLE)
        check_name(self._run)  # whoever submits a job may have written anything
        out = home / "runs" / self._run
        out.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        resume = RunFolder(out).config.exists()
        options = read_options(None, None, None, Path(workspace.get_app_config_dir(job)) / RUN_FILE, {})
        check_run(options, out, resume)
        tasks = TaskTransport(self, fl_ctx, abort_signal)
        transport = audited(home, tasks, f"job {job}", f"{'resumed' if resume else 'started'}: {out}")
        try:
            run_over(transport, tasks.names, options, out, resume, watch=PlainDisplay())
        finally:
            copy_result(out, Path(workspace.get_run_dir(job)) / RESULT)


def copy_result(run: Path, result: Path) -> None:
    """Copy what people want of a run, without checkpoints, to where FLARE lets them download it."""
    if run.is_dir():
        shutil.copytree(run, result, ignore=shutil.ignore_patterns("checkpoint", ".*"), dirs_exist_ok=True)
