"""`harmofl methods` and `tasks`: what there is."""

from __future__ import annotations

from harmofl.cli.options import PluginFiles


def methods(plugins: PluginFiles = []) -> None:  # noqa: B006
    """List the methods, with paper, settings and defaults."""
    from harmofl.cli.listing_tables import show_methods

    show_methods()


def tasks(plugins: PluginFiles = []) -> None:  # noqa: B006
    """List the tasks, with their sites, presets and every setting of a run."""
    from harmofl.cli.listing_tables import show_tasks

    show_tasks()
