"""All sites on this machine: in this process, or spread over several."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harmofl import registry
from harmofl.devices import num_cores
from harmofl.federation.transports import InProcess
from harmofl.federation.workers import Workers, code_to_carry
from harmofl.methods.method import Method
from harmofl.settings import Settings
from harmofl.tasks.task import Source


def num_workers(settings: Settings, method: Method) -> int:
    """As many as asked for, or one per core if the method can reach them; never more than there are sites."""
    num_sites = len(registry.tasks.find(settings.task).participants(method, settings.data))
    possible = 1 if obstacle_to_workers(method) else max(1, num_cores() // settings.federation.threads)
    return min(settings.federation.workers or possible, num_sites)


def obstacle_to_workers(method: Method) -> str:
    """Say why a method, or what a script has registered, cannot reach worker processes; empty if it can."""
    try:
        pickled = code_to_carry(method)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        return str(error)
    main = sys.modules["__main__"]
    in_file = getattr(main, "__spec__", None) or Path(getattr(main, "__file__", "") or "").is_file()
    return "" if in_file or b"__main__" not in pickled else "it is defined in a notebook or at a prompt"


@contextmanager
def simulate(
    settings: Settings, method: Method, folder: Path, source: Source | None = None, trained: Path | None = None
) -> Iterator[InProcess | Workers]:
    """The transport for all sites on this machine.

    `source`: the images, if this process has them open already. `trained`: a folder for what rounds of training gave.
    """
    count = num_workers(settings, method)
    transport: InProcess | Workers
    if count > 1:
        transport = Workers(settings, method, folder, count, trained)
    else:
        transport = InProcess(settings, method, folder, source, trained)
    try:
        yield transport
    finally:
        transport.close()
