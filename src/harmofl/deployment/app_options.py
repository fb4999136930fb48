"""What an app of harmofl's says of its runs, for an engine that others operate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harmofl.settings import Tree


@dataclass(frozen=True)
class AppOptions:
    """What is written into an app or a job: what to train, with whom, and where the run folders are."""

    settings: Tree
    """What to train, as a settings file says it."""
    sites: Sequence[str]
    runs: str
    """The folder of run folders, on the server's machine."""
    name: str
