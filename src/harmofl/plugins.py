"""Files of the user's own that register methods, tasks, networks, losses, scores or engines.

A plugin file is code, so it is loaded only where the user names it: with `--plugin`, in a settings file, or in Python.
A model folder or a message from a server never loads one.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from harmofl import registry
from harmofl.errors import UsageError

logger = logging.getLogger(__name__)

_loaded: dict[str, ModuleType] = {}


def load_plugin(file: str | Path, *, warn: bool = True) -> ModuleType:
    """Run a Python file that registers things of the user's own; a file that is loaded already is not run again.

    Runs that start afterwards record the file in their settings, and their worker processes load it too.

    Args:
        file: its path.
        warn: whether to warn of a file that registers nothing; workers leave that to the process that started them.

    Returns:
        The file as a module.

    >>> from pathlib import Path
    >>> _ = Path("mine.py").write_text("import harmofl; harmofl.register(harmofl.Method('Mine', limit='always'))")
    >>> _ = load_plugin("mine.py")
    >>> from harmofl import registry
    >>> registry.methods.find("mine").name
    'Mine'
    """
    path = os.path.abspath(file)
    if path not in _loaded:
        before = _num_registered()
        _loaded[path] = _run(path)
        if warn and _num_registered() == before:
            logger.warning("plugin %s registers nothing: it should call harmofl.register", file)
    return _loaded[path]


def load_plugins(files: Iterable[str | Path], *, warn: bool = True) -> None:
    """Load several plugin files."""
    for file in files:
        load_plugin(file, warn=warn)


def loaded_plugins() -> list[str]:
    """The absolute paths of the files that this process has loaded."""
    return list(_loaded)


def plugins_in(tree: Mapping[str, Any]) -> list[str]:
    """The plugin files that settings name, as `[plugins]` with `files = ["my.py"]`."""
    section = tree.get("plugins", {})
    files = section.get("files", []) if isinstance(section, Mapping) else None
    if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
        raise UsageError("plugins.files must be a list of files")
    return files


def _run(path: str) -> ModuleType:
    if not os.path.isfile(path):
        raise UsageError(f"plugin {path}: no such file")
    name = f"harmofl_plugin_{Path(path).stem}_{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"plugin {path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # what is pickled for a worker process is found there under this name
    try:
        with registry.registering_from_file():
            spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's code raises
        del sys.modules[name]
        raise UsageError(f"plugin {path}: {type(error).__name__}: {error}") from error
    return module


def _num_registered() -> int:
    return sum(each.num_registered for each in registry.ALL)
