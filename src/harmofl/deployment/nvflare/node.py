"""The main program of FLARE's processes: FLARE's own, with an end when its parent ends."""

from __future__ import annotations

import resource
import runpy
import sys
from pathlib import Path

from harmofl.deployment.nvflare.names import ORGANIZATION
from harmofl.deployment.processes import end_with_parent

SERVER_PROGRAM = "nvflare.private.fed.app.server.server_train"
CLIENT_PROGRAM = "nvflare.private.fed.app.client.client_train"

MOST_FILES = 65536
"""Files and connections that a process may have open, if the system allows it."""

HEARTBEAT = 4
"""Seconds after which a restarted server knows its sites."""


def main(workspace: str, client: str | None = None) -> None:
    """Run FLARE's server, or its client under a name, in a workspace."""
    end_with_parent()
    allow_many_connections()
    (Path(workspace) / "log").mkdir(exist_ok=True)
    settings = ["secure_train=true", f"org={ORGANIZATION}", "config_folder="]
    if client is None:
        program, configuration = SERVER_PROGRAM, "fed_server.json"
    else:
        program, configuration = CLIENT_PROGRAM, "fed_client.json"
        settings += [f"uid={client}", f"heart_beat_interval={HEARTBEAT}"]
    sys.argv = [program, "-m", workspace, "-s", configuration, "--set", *settings]
    runpy.run_module(program, run_name="__main__", alter_sys=True)


def allow_many_connections() -> None:
    """Let strangers who connect and say nothing not use up what sites need, as a usual limit of 1024 files would."""
    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if most == resource.RLIM_INFINITY else min(most, MOST_FILES)
    if usual != resource.RLIM_INFINITY and usual < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


if __name__ == "__main__":
    main(*sys.argv[1:])
