"""The sites of a federation that `harmofl deploy start` serves, as a run reaches them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from harmofl.deployment.flower.addresses import running_address
from harmofl.deployment.flower.children import prepare_process
from harmofl.deployment.flower.exchange import FlowerTransport
from harmofl.deployment.flower.guard import LIMIT
from harmofl.deployment.flower.runtime.run import open_run
from harmofl.deployment.flower.server import is_up, open_superlink, read_site_keys
from harmofl.deployment.kits import ServerKit
from harmofl.errors import RunError

logger = logging.getLogger(__name__)

JUST_STARTED = 10.0
LOST = "the server (Flower's SuperLink) is gone or was restarted: start it if necessary, then continue with --resume"


@contextmanager
def connect(kit: ServerKit) -> Iterator[FlowerTransport]:
    """Reach the sites for as long as a run lasts."""
    prepare_process()
    server = open_superlink(kit, running_address(kit, JUST_STARTED))
    if not is_up(server):  # what a killed server left does not answer
        raise RunError(f"{kit.folder}: the server is not running: start it with `harmofl deploy start`")
    try:
        with open_run(server) as mailbox:
            yield FlowerTransport(mailbox, read_site_keys(kit), limit=kit.folder / "engine" / LIMIT)
    except httpx.HTTPError as error:
        logger.debug("lost the SuperLink", exc_info=error)
        raise RunError(LOST) from None
