"""HTML from templates, in the one style of all pages."""

from __future__ import annotations

from importlib import resources
from typing import Any


def render(template: str, **values: Any) -> str:
    """Fill in a template of this package; `style` is the style sheet of all pages."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FunctionLoader(_read), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(template).render(style=Markup(_read("page.css").rstrip()), **values)


def _read(name: str) -> str:
    return resources.files("harmofl.reporting").joinpath(name).read_text(encoding="utf-8")
