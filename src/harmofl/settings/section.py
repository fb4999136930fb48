"""What every part of the settings is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from harmofl.errors import STRICT


class Section(BaseModel):
    """A part of the settings: frozen, and strict about names."""

    model_config = ConfigDict(frozen=True, **STRICT)
