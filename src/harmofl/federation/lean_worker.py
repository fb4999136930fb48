"""Imported first by the process from which workers start: it is ours alone, so it imports MONAI without luxuries."""

from __future__ import annotations

from harmofl.federation.lean_imports import import_lean

import_lean()
