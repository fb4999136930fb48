"""A hospital's side of the app: Flower starts a process for each message, in which the hospital's site.toml decides."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message

from harmofl.deployment.flower.messages import pack, unpack
from harmofl.deployment.kits import SiteKit
from harmofl.deployment.logs import log_to_stdout
from harmofl.errors import UsageError

logger = logging.getLogger(__name__)

NODE_CONFIG = "harmofl-site"
"""Names the hospital's folder:  flower-supernode … --node-config 'harmofl-site="/srv/harmofl-site"'."""
VARIABLE = "HARMOFL_SITE"
"""The same as an environment variable of the SuperNode."""
APP_FAILED = 2
"""Flower's number for an error in the app."""
LOOK_EVERY = 0.2

Answer = Callable[[SiteKit, Message], bytes]


def find_folder(node_config: Mapping[str, Any]) -> Path:
    """Where this node's hospital keeps its site.toml."""
    named = node_config.get(NODE_CONFIG) or os.environ.get(VARIABLE)
    if not named:
        raise UsageError(f"this SuperNode names no folder of a hospital: --node-config '{NODE_CONFIG}=\"/its/folder\"'")
    return Path(str(named)).expanduser()


def say_name(message: Message, context: Context) -> Message:
    """Answer with the hospital's name in the federation."""
    return _reply(message, context, lambda kit, message: kit.name.encode())


def answer_request(message: Message, context: Context) -> Message:
    """Answer a request of the server's as the hospital allows it."""
    return _reply(message, context, _answer)


def _answer(kit: SiteKit, message: Message) -> bytes:
    from harmofl.deployment.participant import Participant  # torch takes seconds, which a name does not need

    try:
        data = unpack(message.content)
    except ValueError:
        data = b""  # the sender learns what is wrong with it
    with alone(kit, message.metadata.ttl):
        return Participant(kit).answer(data)


def _reply(message: Message, context: Context, answer: Answer) -> Message:
    """Make the message that answers one; whatever goes wrong, its details, which may name files, stay in this log."""
    log_to_stdout()
    try:
        content = pack(answer(SiteKit.open(find_folder(context.node_config)), message))
    except Exception as error:
        logger.error("a message could not be answered: %s", error)
        reason = "its folder or site.toml cannot be used; its own log says why"
        return Message(Error(APP_FAILED, reason), reply_to=message)
    return Message(content, reply_to=message)


@contextmanager
def alone(kit: SiteKit, seconds: float) -> Iterator[None]:
    """Answer one message at a time, as a site does everywhere: others wait while their senders do."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            lock = kit.lock()
            lock.__enter__()
            break
        except UsageError:
            if time.monotonic() > deadline:
                raise
            time.sleep(LOOK_EVERY)
    try:
        yield
    finally:
        lock.__exit__(None, None, None)
