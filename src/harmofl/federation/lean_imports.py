"""Start-up time: what MONAI would like to have, and harmofl's own programs do not use, is not imported with it.

MONAI imports, if they are installed, packages for features that nothing here uses, which takes longer than all the rest
of it. Where harmofl is the program, the command and its worker processes, they are left out while MONAI is imported;
whoever else asks for them gets them. Where harmofl is a library in someone else's program, nothing is changed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

LEFT_OUT = frozenset({"jsonschema", "matplotlib", "mlflow"})
"""MONAI takes them as optional: bundles' metadata, its own figures and its own log."""


class LeanMonai(MetaPathFinder):
    """Tells MONAI, while it is being imported, that some packages are not there."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise the error of a missing module, or leave the search to others."""
        if name in LEFT_OUT and is_being_imported("monai"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def is_being_imported(name: str) -> bool:
    """Whether the body of a module is running for the first time."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def import_lean() -> None:
    """From now on this process imports MONAI without what it does not need."""
    if not any(isinstance(finder, LeanMonai) for finder in sys.meta_path):
        sys.meta_path.insert(0, LeanMonai())
