"""The commands: parse, call, show; no logic."""

from harmofl.cli.entry import app, main

__all__ = ["app", "main"]
