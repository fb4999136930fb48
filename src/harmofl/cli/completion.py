"""What a shell completes; nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterable

from typer import Context

PRESETS = ("smoke", "small", "paper", "paper-code")
DEVICES = ("auto", "cpu", "cuda")


def complete_task(incomplete: str) -> list[str]:
    """Tasks that begin with the typed text."""
    from harmofl import registry

    return _beginning(incomplete, registry.tasks.names())


def complete_method(incomplete: str) -> list[str]:
    """Methods that begin with the typed text."""
    from harmofl import registry

    return _beginning(incomplete, registry.methods.names())


def complete_engine(incomplete: str) -> list[str]:
    """Engines that begin with the typed text."""
    from harmofl import registry

    return _beginning(incomplete, registry.engines.names())


def complete_plan(incomplete: str) -> list[str]:
    """Plans that come with harmofl and begin with the typed text."""
    from harmofl.experiments.shipped import shipped_plans

    return _beginning(incomplete, shipped_plans())


def complete_preset(incomplete: str) -> list[str]:
    """Presets that begin with the typed text."""
    return _beginning(incomplete, PRESETS)


def complete_device(incomplete: str) -> list[str]:
    """Devices that begin with the typed text."""
    return _beginning(incomplete, DEVICES)


def complete_setting(context: Context, incomplete: str) -> list[str]:
    """Settings that begin with the typed text, up to the equals sign; of the method named before, or of all methods.

    Only those of methods take a second, as they are in code that imports torch.
    """
    from harmofl.settings import setting_names

    if incomplete.startswith("method."):
        return _beginning(incomplete, (f"{name}=" for name in _method_settings(context.params.get("method"))))
    return _beginning(incomplete, [*(f"{name}=" for name in setting_names()), "method."])


def _method_settings(name: str | None) -> list[str]:
    from harmofl import registry

    chosen = [registry.methods.find(name)] if name and name in registry.methods else list(registry.methods)
    return list(dict.fromkeys(f"method.{setting}" for method in chosen for setting in method.settings))


def complete_run(context: Context, incomplete: str) -> list[str]:
    """Runs, in the folder named before, that begin with the typed text."""
    from pathlib import Path

    folder = Path(context.params.get("folder") or ".")
    places = (place.parent for place in folder.rglob("config.toml"))
    return sorted(_beginning(incomplete, (place.relative_to(folder).as_posix() for place in places)))


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
