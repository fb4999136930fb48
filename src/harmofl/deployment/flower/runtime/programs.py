"""Flower's own programs, changed where they must be, as the children of `harmofl deploy start`.

python -m … superlink SECRET_FILE [Flower's own options], or python -m … supernode [Flower's own options].
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fastapi import HTTPException
from flwr.supercore.run import RunNotRunningException

from harmofl.deployment.allowances import Allowances, read_limit
from harmofl.deployment.audit import Refusals, audit_log
from harmofl.deployment.flower.guard import LIMIT, Guard, Note
from harmofl.deployment.processes import end_with_parent

HEARTBEAT = 10
"""Seconds within which a site promises to be heard of; Flower calls it offline after two of them. Its default is 30."""
FORBIDDEN, TOO_LARGE = 403, 413
MOST_ANNOUNCED = 10_000
TWICE = 2
"""A part that was lost on its way is sent again, and counts again."""


def flower_module(name: str) -> Any:
    """Import a module of Flower's; by name, as some of its packages hide one behind a function of the same name."""
    return import_module(f"flwr.{name}")


def run_superlink(secret: bytes, limit: Path, note: Note = lambda who, reason: None) -> None:
    """Run a SuperLink behind our guard, where a site speaks only for itself and only to the server.

    `limit`: the file that says how large a reply may be. `note`: writes down who was refused.
    """
    command = flower_module("superlink.cli.flower_superlink")
    fleet_handlers = flower_module("superlink.servicer.fleet.fleet_handlers")
    serve, push, replies = command.uvicorn.run, fleet_handlers.push_messages, Replies(limit)

    def guarded(app: Any, **options: Any) -> None:
        serve(app=Guard(app, secret, note), **options | {"access_log": False, "timeout_graceful_shutdown": 2})

    def push_own(request: Any, state: Any) -> Any:
        for message in request.messages_list:
            if not message.metadata.reply_to_message_id or message.metadata.src_node_id != request.node.node_id:
                raise HTTPException(FORBIDDEN, "not a reply of this site's own")
        response = push(request=request, state=state)
        replies.announce(request)
        return response

    fleet_handlers.push_object = replies.limit(fleet_handlers.push_object)
    command.uvicorn = SimpleNamespace(run=guarded)
    fleet_handlers.push_messages = push_own
    command.flower_superlink()


class Replies:
    """Counts what sites send in reply to each message, and refuses what is more than the run expects."""

    def __init__(self, limit: Path) -> None:
        self._limit = limit
        self._allowances = Allowances()
        self._announced: deque[str] = deque(maxlen=MOST_ANNOUNCED)

    def announce(self, request: Any) -> None:
        """A site has something to reply: it may send so much, once for each message."""
        for message in request.messages_list:
            asked = f"{request.node.node_id} {message.metadata.reply_to_message_id}"
            if asked not in self._announced:
                self._announced.append(asked)
                self._allowances.grant(str(request.node.node_id), TWICE * read_limit(self._limit))

    def limit(self, push_object: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, for parts of replies that are not too large together."""

        def push(request: Any, state: Any) -> Any:
            if not self._allowances.spend(str(request.node.node_id), len(request.object_content)):
                raise HTTPException(TOO_LARGE, "more than the run expects")
            return push_object(request=request, state=state)

        return push


def run_supernode() -> None:
    """Run a SuperNode that looks for messages more often, and whose absence is noticed sooner, than by default."""
    loop = flower_module("supernode.start_client_internal")
    loop.time = SimpleNamespace(sleep=lambda seconds: time.sleep(seconds / 6))
    loop._pull_and_store_message = clean_up_after(loop._pull_and_store_message)
    for user in ("supercore.heartbeat", "supernode.fleet_http_connection"):
        flower_module(user).HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT
    flower_module("supernode.cli.flower_supernode").flower_supernode()


def clean_up_after(pull_and_store: Callable[..., int | None]) -> Callable[..., int | None]:
    """Clean up after a message whose run ends while its parts are being fetched.

    Flower reports that end by an exception that its own cleaning up does not catch: a task would remain whose message
    never becomes whole, and whoever acquired it would wait for hours. An ordinary exception is caught.
    """

    def pull(**arguments: Any) -> int | None:
        for name in ("pull_object", "confirm_message_received"):
            arguments[name] = with_ordinary_errors(arguments[name])
        return pull_and_store(**arguments)

    return pull


def with_ordinary_errors(call: Callable[..., Any]) -> Callable[..., Any]:
    """Make a call report the end of a run by an exception like others."""

    def called(*arguments: Any) -> Any:
        try:
            return call(*arguments)
        except RunNotRunningException:
            raise RuntimeError("its run has ended") from None

    return called


if __name__ == "__main__":
    end_with_parent()
    if sys.argv.pop(1) == "superlink":
        secret_file = Path(sys.argv.pop(1))
        refusals = Refusals(audit_log(secret_file.parents[1]))
        run_superlink(secret_file.read_bytes(), secret_file.with_name(LIMIT), refusals.note)
    else:
        run_supernode()
