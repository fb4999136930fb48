"""Everything that `harmofl data check` looks at and writes."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harmofl import registry
from harmofl.data.check import Check, check_images
from harmofl.data.clean_manifest import write_clean_manifest
from harmofl.data.folder import ImageFolder
from harmofl.events import Watch, ignore
from harmofl.extras import how_to_install, missing_packages
from harmofl.files import write_whole
from harmofl.plugins import load_plugins, plugins_in
from harmofl.settings import Settings, read_toml, resolve
from harmofl.tasks.task import Task

logger = logging.getLogger(__name__)


def check_data(
    task: str,
    data: Path,
    preset: str | None = None,
    config: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    sheet: Path | None = None,
    clean_manifest: Path | None = None,
    watch: Watch = ignore,
) -> tuple[Check, Path | None]:
    """Look at all images of a folder; return what was found, and the contact sheet if one was written."""
    chosen = registry.tasks.find(task)
    folder = chosen.open_folder(_settings_for(task, data, preset, config, settings).data, watch)
    check = check_images(chosen, folder)
    if clean_manifest is not None:
        write_clean_manifest(clean_manifest, folder, check)
    if sheet is None or not folder.all_sites:
        return check, None
    return check, _write_sheet(sheet, chosen, folder)


def _settings_for(
    task: str, data: Path, preset: str | None, config: Path | None, settings: Mapping[str, Any] | None
) -> Settings:
    overrides = {"data.limit": 0} | dict(settings or {}) | {"data.folder": os.path.abspath(data)}
    file = read_toml(config) if config else {}
    load_plugins(plugins_in(file))
    resolved, _ = resolve(task, "fedavg", preset, file, overrides)
    return resolved


def _write_sheet(path: Path, task: Task, folder: ImageFolder) -> Path | None:
    if missing_packages("reports"):  # what was found counts more than its picture
        logger.warning(how_to_install("reports", "the contact sheet"))
        return None
    from harmofl.reporting.contact_sheet import contact_sheet
    from harmofl.reporting.style import to_png

    try:
        write_whole(path, to_png(contact_sheet(task, folder)))
    except OSError as error:
        logger.warning("--sheet %s: %s", path, error.strerror or error)
        return None
    return path
