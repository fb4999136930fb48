"""The reference of the Python interface, from `harmofl.__all__` and the docstrings behind it."""

from __future__ import annotations

import inspect

import harmofl

SECTIONS = {
    "harmofl.api": ("What the commands do", "The functions behind the commands, under the same names."),
    "harmofl.methods": (
        "The pieces, and what a method is",
        "For use in any PyTorch code, and for methods of your own.",
    ),
    "harmofl.errors": ("Errors", "What is raised if something is wrong."),
    "": ("Extending", "What [a file of your own](../extending.md) registers."),
}
"""By the module in which a name is at home; the first that fits counts."""

MODULES = (
    "harmofl.methods.catalogue",
    "harmofl.methods.pieces",
    "harmofl.methods.harmonizers",
    "harmofl.methods.penalties",
    "harmofl.methods.steps",
    "harmofl.methods.sharing",
    "harmofl.methods.adaptations",
    "harmofl.methods.server_rules",
    "harmofl.methods.combinations",
    "harmofl.events",
)
"""What methods and loggers of your own are made of."""


def api_reference() -> str:
    """The page's body as Markdown with Sphinx's directives."""
    parts = []
    for prefix, (title, words) in SECTIONS.items():
        names = [name for name in sorted(harmofl.__all__) if section_of(name) == prefix]
        parts += [f"## {title}", words, *map(_entry, names)]
    parts += ["## Modules", "What methods and loggers of your own are made of."]
    parts += [_module(name) for name in MODULES]
    return "\n\n".join(parts)


def section_of(name: str) -> str:
    """The section in which a public name stands."""
    home = getattr(getattr(harmofl, name), "__module__", "")
    return next(prefix for prefix in SECTIONS if home.startswith(prefix))


def _entry(name: str) -> str:
    thing = getattr(harmofl, name)
    if inspect.isclass(thing):
        kind = "autoexception" if issubclass(thing, BaseException) else "autoclass"
    else:
        kind = "autofunction"
    return _directive(kind, f"harmofl.{name}")


def _module(name: str) -> str:
    return f"### `{name}`\n\n" + _directive("automodule", name)


def _directive(kind: str, name: str) -> str:
    return f"```{{eval-rst}}\n.. {kind}:: {name}\n```"
