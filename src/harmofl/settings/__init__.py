"""What a user may choose: the schema, and how a run's settings are put together from several layers."""

from __future__ import annotations

from harmofl.settings.privacy import PrivacySettings
from harmofl.settings.resolution import resolve
from harmofl.settings.schema import (
    DataSettings,
    FederationSettings,
    ModelSettings,
    PredictionSettings,
    Settings,
    TrainingSettings,
    differences,
    setting_names,
)
from harmofl.settings.section import Section
from harmofl.settings.trees import Tree, flatten, merge, nest, parse_assignments, read_toml

__all__ = [
    "DataSettings",
    "FederationSettings",
    "ModelSettings",
    "PredictionSettings",
    "PrivacySettings",
    "Section",
    "Settings",
    "TrainingSettings",
    "Tree",
    "differences",
    "flatten",
    "merge",
    "nest",
    "parse_assignments",
    "read_toml",
    "resolve",
    "setting_names",
]
