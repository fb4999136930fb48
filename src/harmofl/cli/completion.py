"""What a shell completes; nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterable

PRESETS = ("smoke", "small", "paper", "paper-code")
DEVICES = ("auto", "cpu", "cuda")


def complete_task(incomplete: str) -> list[str]:
    """Tasks that begin so."""
    from harmofl import registry

    return _beginning(incomplete, registry.tasks.names())


def complete_method(incomplete: str) -> list[str]:
    """Methods that begin so."""
    from harmofl import registry

    return _beginning(incomplete, registry.methods.names())


def complete_engine(incomplete: str) -> list[str]:
    """Engines that begin so."""
    from harmofl import registry

    return _beginning(incomplete, registry.engines.names())


def complete_plan(incomplete: str) -> list[str]:
    """Plans that come with harmofl and begin so."""
    from harmofl.experiments.shipped import shipped_plans

    return _beginning(incomplete, shipped_plans())


def complete_preset(incomplete: str) -> list[str]:
    """Presets that begin so."""
    return _beginning(incomplete, PRESETS)


def complete_device(incomplete: str) -> list[str]:
    """Devices that begin so."""
    return _beginning(incomplete, DEVICES)


def complete_setting(incomplete: str) -> list[str]:
    """Settings that begin so, up to the equals sign; those of methods are not known without importing them."""
    from harmofl.settings import setting_names

    return _beginning(incomplete, (f"{name}=" for name in setting_names()))


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
