"""A hospital's end of a job on a federation that others provisioned: the same participant answers as in our kits."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from harmofl.deployment.kits import SiteKit
from harmofl.deployment.nvflare.names import SITE_VARIABLE, TASK, own_folder
from harmofl.deployment.participant import Participant
from harmofl.errors import UsageError
from harmofl.federation.messages import Reply, encode

logger = logging.getLogger(__name__)

NOT_READY = "its harmofl is not set up for this federation; its own log says more"


class SiteExecutor(Executor):  # type: ignore[misc]  # FLARE has no types
    """Answers the requests of one job; a job can tell it nothing else, as it takes no arguments."""

    def __init__(self) -> None:
        super().__init__()
        self._participant: Participant | None = None
        self._held = ExitStack()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Answer one request; whatever the hospital's own settings are, they decide."""
        data = shareable.get(TASK)
        if task_name != TASK or not isinstance(data, bytes):
            return make_reply(ReturnCode.TASK_UNKNOWN)
        name = str(fl_ctx.get_identity_name())
        answer = make_reply(ReturnCode.OK)
        try:
            self._participant = self._participant or self._open(name, local_folder(fl_ctx))
            answer[TASK] = self._participant.answer(data)
        except UsageError as error:
            logger.error("%s: a request was not answered: %s", name, error)
            answer[TASK] = encode(Reply(name, error=NOT_READY))
        return answer

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Let another job have the hospital's folder when this one ends."""
        if event_type == EventType.END_RUN:
            self._participant = None
            self._held.close()

    def _open(self, name: str, local: Path) -> Participant:
        kit = SiteKit.open(own_folder(local, SITE_VARIABLE))
        if kit.name != name:
            raise UsageError(f"{kit.folder}/site.toml: name = {kit.name!r}: NVIDIA FLARE knows this site as {name!r}")
        self._held.enter_context(kit.lock())
        return Participant(kit)


def local_folder(fl_ctx: FLContext) -> Path:
    """The folder of a party's workspace in which it decides for itself."""
    return Path(fl_ctx.get_engine().get_workspace().get_site_config_dir())
