"""What is learned: the paper's three tasks."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from harmofl.errors import unknown_name

if TYPE_CHECKING:
    from harmofl.tasks.task import Task

TASKS = ("histology", "nuclei", "prostate")


def find(name: str) -> Task:
    """Return the task of that name."""
    if name not in TASKS:
        raise unknown_name("task", name, TASKS)
    task: Task = import_module(f"harmofl.tasks.{name}").task
    return task
