"""Flower's own programs, changed where they must be, as the children of `harmofl deploy start`.

python -m … superlink SECRET_FILE [Flower's own options], or
python -m … supernode KEY_FILE MOST_MEMORY [Flower's own options].
"""

from __future__ import annotations

import resource
import ssl
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
from uvicorn import Config

from harmofl.deployment.allowances import Allowances, read_limit
from harmofl.deployment.audit import Refusals, audit_log
from harmofl.deployment.flower.addresses import is_behind_proxy
from harmofl.deployment.flower.door import KEYS, Door, Keys, server_context
from harmofl.deployment.flower.guard import LIMIT, Guard, Note
from harmofl.deployment.flower.identities import derive_operator, read_key, with_own_key
from harmofl.deployment.flower.runtime.parts import OFTEN, follow_nobody, look_often
from harmofl.deployment.flower.serving import protocol_of, serve
from harmofl.deployment.processes import end_with_parent

HEARTBEAT = 10
"""Seconds within which a site promises to be heard of; Flower calls it offline after two of them. Its default is 30."""
SOONER, SOONEST, BUSY = 6, 30, 60.0
"""A SuperNode sleeps a sixth of Flower's three seconds, and a thirtieth within a minute after a message."""
FORBIDDEN, TOO_LARGE = 403, 413
MOST_ANNOUNCED = 10_000
TWICE = 2
"""A part that was lost on its way is sent again, and counts again."""


def flower_module(name: str) -> Any:
    """Import a module of Flower's; by name, as some of its packages hide one behind a function of the same name."""
    return import_module(f"flwr.{name}")


def run_superlink(
    secret: bytes, limit: Path, note: Note = lambda who, reason: None, behind_proxy: bool = False
) -> None:
    """Run a SuperLink behind our door and guard, where a site speaks only for itself and only to the server.

    `limit`: the file that says how large a reply may be; beside it are the sites' keys. `note`: writes down who was
    refused. `behind_proxy`: it is the proxy that has the connections of sites, so none of ours shows a key.
    """
    command = flower_module("superlink.cli.flower_superlink")
    fleet_handlers = flower_module("superlink.servicer.fleet.fleet_handlers")
    push, replies = fleet_handlers.push_messages, Replies(limit)
    keys = Keys(limit.with_name(KEYS), derive_operator(secret).public_key())

    def guarded(app: Any, **options: Any) -> None:
        serve_guarded(Guard(app, secret, lambda: keys.known, note), keys, options, note, behind_proxy)

    def push_own(request: Any, state: Any) -> Any:
        if len(request.messages_list) != 1:
            raise HTTPException(FORBIDDEN, "not one reply")
        message = request.messages_list[0].metadata
        if not message.reply_to_message_id or message.src_node_id != request.node.node_id:
            raise HTTPException(FORBIDDEN, "not a reply of this site's own")
        response = push(request=request, state=state)
        if response.objects_to_push:  # none of a reply to what nobody asked, which Flower drops without a word
            replies.announce(request.node.node_id, message.reply_to_message_id)
        return response

    fleet_handlers.push_object = replies.limit(fleet_handlers.push_object)
    command.uvicorn = SimpleNamespace(run=guarded)
    fleet_handlers.push_messages = push_own
    command.flower_superlink()


def serve_guarded(guard: Guard, keys: Keys, options: dict[str, Any], note: Note, behind_proxy: bool) -> None:
    """Serve what is behind the guard as Flower would, at our door."""
    door = Door(options["host"], options["port"], note)
    own = {
        "access_log": False,
        "timeout_graceful_shutdown": 2,
        "loop": "asyncio",
        "http": protocol_of(door),
        "ws": "none",
    }
    if not behind_proxy:
        files = Path(options["ssl_certfile"]), Path(options["ssl_keyfile"])
        own["ssl_context_factory"] = lambda config, default: server_context(keys, *files)
    serve(Config(app=guard, **options | own), door)


class Replies:
    """Counts what sites send in reply to each message, and refuses what is more than the run expects."""

    def __init__(self, limit: Path) -> None:
        self._limit = limit
        self._allowances = Allowances()
        self._announced: deque[str] = deque(maxlen=MOST_ANNOUNCED)

    def announce(self, node: int, reply_to: str) -> None:
        """A site has something to reply to a message: it may send so much, once for each."""
        asked = f"{node} {reply_to}"
        if asked not in self._announced:
            self._announced.append(asked)
            self._allowances.grant(str(node), TWICE * read_limit(self._limit))

    def limit(self, push_object: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, for parts of replies that are not too large together."""

        def push(request: Any, state: Any) -> Any:
            if not self._allowances.spend(str(request.node.node_id), len(request.object_content)):
                raise HTTPException(TOO_LARGE, "more than the run expects")
            return push_object(request=request, state=state)

        return push


def run_supernode(private_key: Path, most_memory: int) -> None:
    """Run a SuperNode that shows its key, looks for messages more often, and is missed sooner, than by default.

    `most_memory`: bytes with which it ends, whatever a server sends; another one is started then.
    """
    limit_memory(most_memory)
    show_key(private_key)
    follow_nobody(flower_module("supercore.protobuf.client").ProtobufClient)
    loop = flower_module("supernode.start_client_internal")
    pace = Pace()
    loop.time = SimpleNamespace(sleep=pace.sleep)
    loop._pull_and_store_message = pace.watch(clean_up_after(pass_on_at_once(loop._pull_and_store_message)))
    loop.pull_objects = without_result(look_often(loop.pull_objects, OFTEN))
    for user in ("supercore.heartbeat", "supernode.fleet_http_connection"):
        flower_module(user).HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT
    flower_module("supernode.cli.flower_supernode").flower_supernode()


class Pace:
    """How often a SuperNode looks for messages: more often than Flower would, and most often during a run."""

    def __init__(self) -> None:
        self._busy_until = 0.0

    def sleep(self, seconds: float) -> None:
        """Sleep for a part of what Flower would."""
        time.sleep(seconds / (SOONEST if time.monotonic() < self._busy_until else SOONER))

    def watch(self, pull: Callable[..., int | None]) -> Callable[..., int | None]:
        """The same function, after which a message is followed by a busy time."""

        def watched(**arguments: Any) -> int | None:
            found = pull(**arguments)
            if found is not None:
                self._busy_until = time.monotonic() + BUSY
            return found

        return watched


def limit_memory(most: int) -> None:
    """Let this process have so many bytes for its data at most, where the system has such a limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def show_key(private_key: Path) -> None:
    """Let Flower's clients show the site's key to a server whose authority they know, by a certificate."""
    key = read_key(private_key)
    clients = flower_module("supercore.protobuf.client")

    def make(protocol: int) -> ssl.SSLContext:
        return with_own_key(ssl.SSLContext(protocol), key)

    clients.ssl = SimpleNamespace(SSLContext=make, PROTOCOL_TLS_CLIENT=ssl.PROTOCOL_TLS_CLIENT)


def pass_on_at_once(pull_and_store: Callable[..., int | None]) -> Callable[..., int | None]:
    """Store each part of a message as soon as it has arrived, so that the site's process takes it from there.

    Flower would keep all parts back until the last one has come.
    """

    def pull(**arguments: Any) -> int | None:
        pull_object, store = arguments["pull_object"], arguments["object_store"]

        def pull_and_put(run: int, identifier: str) -> bytes:
            content: bytes = pull_object(run, identifier)
            store.put(identifier, content)
            return content

        return pull_and_store(**arguments | {"pull_object": pull_and_put})

    return pull


def without_result(pull: Callable[..., Any]) -> Callable[..., dict[str, bytes]]:
    """The same function for parts that are stored as they come: none is left for Flower to store afterwards.

    By then the site's process may have taken the whole message, and Flower refuses to store parts of one that is gone.
    """

    def pulled(*arguments: Any, **more: Any) -> dict[str, bytes]:
        pull(*arguments, **more)
        return {}

    return pulled


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
        run_superlink(secret_file.read_bytes(), secret_file.with_name(LIMIT), refusals.note, is_behind_proxy())
    else:
        run_supernode(Path(sys.argv.pop(1)), int(sys.argv.pop(1)))
