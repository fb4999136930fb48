"""Writes a standard job of NVIDIA FLARE: it names two classes of harmofl, installed at every party, and has no code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w
from nvflare.apis.job_def import SERVER_SITE_NAME

from harmofl.deployment.app_options import AppOptions
from harmofl.deployment.nvflare.names import CONTROLLER, EXECUTOR, RUN_FILE, TASK
from harmofl.federation.participation import quorum
from harmofl.files import write_whole
from harmofl.settings import resolve

ASK_EVERY = 0.5
"""Seconds after which a site that had nothing to do asks again; FLARE's default is two."""

APP = "app"
EMPTY: Mapping[str, Any] = {"format_version": 2, "task_data_filters": [], "task_result_filters": [], "components": []}


def write_job(folder: Path, options: AppOptions) -> None:
    """Write the job into a folder, as `nvflare job submit` and the admin console's `submit_job` take it."""
    config = folder / APP / "config"
    for path, content in (
        (folder / "meta.json", describe_job(options)),
        (config / "config_fed_server.json", server_part(options)),
        (config / "config_fed_client.json", site_part()),
    ):
        write_whole(path, json.dumps(content, indent=2) + "\n")
    write_whole(config / RUN_FILE, tomli_w.dumps(options.settings))


def describe_job(options: AppOptions) -> dict[str, Any]:
    """Who takes part, and how many must be there: with fewer the job waits, and one that runs is aborted."""
    settings, _ = resolve(file=options.settings)
    return {
        "name": options.name,
        "resource_spec": {},
        "min_clients": quorum(settings.federation, len(options.sites)),
        "deploy_map": {APP: [SERVER_SITE_NAME, *options.sites]},
    }


def server_part(options: AppOptions) -> dict[str, Any]:
    """Let the server run our controller."""
    workflow = {"id": TASK, "path": CONTROLLER, "args": {"run": options.name}}
    return {**EMPTY, "task_request_interval": ASK_EVERY, "workflows": [workflow]}


def site_part() -> dict[str, Any]:
    """Let a site run our executor, which takes no arguments: only the site itself decides."""
    return {**EMPTY, "executors": [{"tasks": [TASK], "executor": {"path": EXECUTOR, "args": {}}}]}
