"""What is learned: the paper's three tasks, and two for a hospital's own images."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from harmofl.errors import unknown_name

if TYPE_CHECKING:
    from harmofl.tasks.task import Task

PAPER_TASKS = ("histology", "nuclei", "prostate")
OWN_DATA = ("classification", "segmentation")
TASKS = PAPER_TASKS + OWN_DATA


def find(name: str) -> Task:
    """Return the task of that name."""
    if name not in TASKS:
        raise unknown_name("task", name, TASKS)
    if name in OWN_DATA:
        own: Task = getattr(import_module("harmofl.tasks.custom"), name)
        return own
    task: Task = import_module(f"harmofl.tasks.{name}").task
    return task
