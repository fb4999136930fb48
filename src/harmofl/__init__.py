"""Federated learning on medical images whose hospitals look different."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from harmofl.version import __version__ as __version__

if TYPE_CHECKING:
    from harmofl.api import adapt as adapt
    from harmofl.api import check_data as check_data
    from harmofl.api import compare_data as compare_data
    from harmofl.api import evaluate as evaluate
    from harmofl.api import export as export
    from harmofl.api import load_model as load_model
    from harmofl.api import plan as plan
    from harmofl.api import predict as predict
    from harmofl.api import train as train
    from harmofl.deployment.engine import Engine as Engine
    from harmofl.errors import RunError as RunError
    from harmofl.errors import UsageError as UsageError
    from harmofl.methods.amplitude_normalization import AmplitudeNormalization as AmplitudeNormalization
    from harmofl.methods.method import Method as Method
    from harmofl.methods.perturbed_optimizer import PerturbedOptimizer as PerturbedOptimizer
    from harmofl.methods.steps import PerturbedDescent as PerturbedDescent
    from harmofl.models.network import NetworkEntry as NetworkEntry
    from harmofl.plugins import load_plugin as load_plugin
    from harmofl.registry import register as register
    from harmofl.tasks.losses import LossEntry as LossEntry
    from harmofl.tasks.scores import ScoreEntry as ScoreEntry
    from harmofl.tasks.task import Task as Task

_HOMES = {
    "AmplitudeNormalization": "harmofl.methods.amplitude_normalization",
    "Engine": "harmofl.deployment.engine",
    "LossEntry": "harmofl.tasks.losses",
    "Method": "harmofl.methods.method",
    "NetworkEntry": "harmofl.models.network",
    "PerturbedDescent": "harmofl.methods.steps",
    "PerturbedOptimizer": "harmofl.methods.perturbed_optimizer",
    "RunError": "harmofl.errors",
    "ScoreEntry": "harmofl.tasks.scores",
    "Task": "harmofl.tasks.task",
    "UsageError": "harmofl.errors",
    "adapt": "harmofl.api",
    "check_data": "harmofl.api",
    "compare_data": "harmofl.api",
    "evaluate": "harmofl.api",
    "export": "harmofl.api",
    "load_model": "harmofl.api",
    "load_plugin": "harmofl.plugins",
    "plan": "harmofl.api",
    "predict": "harmofl.api",
    "register": "harmofl.registry",
    "train": "harmofl.api",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `harmofl --help` needs no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'harmofl' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
