"""A hospital's folder in a federation that others run: its own settings, and no key or certificate of ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harmofl.deployment.kits import Kits
from harmofl.deployment.papers import write_site_settings
from harmofl.deployment.provisioning import check_name, choose_tasks, whole_folder


def make_guest(out: Path, name: str, tasks: Sequence[str] = (), synthetic: bool = False) -> None:
    """Make the folder with its site.toml, which is to be filled in, or nothing."""
    check_name(name)
    kits = Kits(tasks=choose_tasks(tasks, [name], synthetic), synthetic=synthetic)
    with whole_folder(out) as folder:
        write_site_settings(folder, name, kits, guest=True)
        folder.chmod(0o700)  # it will hold decoded images, states and models
