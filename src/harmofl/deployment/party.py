"""Starts a party of a federation, whichever it is."""

from __future__ import annotations

import logging
from pathlib import Path

from harmofl.deployment.engine import Engine, find_engine
from harmofl.deployment.health import Health
from harmofl.deployment.health_server import serve_health
from harmofl.deployment.kits import ELSEWHERE, ServerKit, SiteKit, open_kit
from harmofl.deployment.logs import log_to_stdout
from harmofl.errors import UsageError

logger = logging.getLogger(__name__)


def start_party(folder: Path, debug: bool = False) -> None:
    """Run the server or the site whose kit this is, until it is stopped."""
    log_to_stdout(debug)
    kit = open_kit(folder)
    if kit.federation.engine == ELSEWHERE:
        raise UsageError(f"{kit.folder}: holds no federation.toml: the federation's own engine brings messages to it")
    engine = find_engine(kit.federation.engine)
    if isinstance(kit, SiteKit):
        require_key(kit, engine)
    logger.info("%s starts (%s); Ctrl-C stops it", kit.folder, engine.title)
    warn_of_trouble(kit)
    with kit.lock(), serve_health(kit):
        if isinstance(kit, SiteKit):
            engine.join(kit)
        else:
            engine.serve(kit)


def warn_of_trouble(kit: ServerKit | SiteKit) -> None:
    """Say in the log what will soon stop this party: a full disk, a certificate that ends, a wrong clock."""
    for problem in Health(kit).troubles():
        logger.warning("%s", problem)


def require_key(kit: SiteKit, engine: Engine) -> None:
    """Raise an error for a site that has not made its key yet, or not got its certificate."""
    enrollment = engine.enrollment
    if enrollment is None:
        return
    if not (kit.folder / enrollment.key(kit.name)).exists():
        raise UsageError(f"{kit.folder}: this site has no key yet: `harmofl deploy join` makes it")
    if engine.credentials == "certificates" and not (kit.folder / enrollment.certificate).exists():
        wanted = f"send {kit.name}.csr to the coordinator, then: harmofl deploy join --certificate {kit.name}.crt"
        raise UsageError(f"{kit.folder}: this site has no certificate yet: {wanted}")
