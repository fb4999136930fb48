"""The reference of the command line, from the Typer app itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click
import typer

from harmofl.cli import app


def command_reference() -> str:
    """A section for every command: what it does, its arguments and its options."""
    return "\n\n".join(section for section in _sections(typer.main.get_command(app), "harmofl"))


def _sections(command: click.Command, path: str) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    if isinstance(command, click.Group):
        if path != "harmofl":
            yield f"## `{path}`\n\n{_words(command)}"
        else:
            yield _table(command, context)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _sections(inner, f"{path} {name}")
        return
    level = "##" if path.count(" ") == 1 else "###"
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    yield f"{level} `{path}`\n\n{_words(command)}\n\n```text\n{usage}\n```\n\n{_table(command, context)}"


def _words(command: click.Command) -> str:
    """The help, with its examples as code."""
    return "\n\n".join(map(_paragraph, re.split(r"\n\s*\n", inspect.cleandoc(command.help or ""))))


def _paragraph(text: str) -> str:
    """A paragraph of help; two spaces after a colon begin an example."""
    introduction, colon, example = text.partition(":  ")
    if not colon:
        return _plain(text)
    return f"{_plain(introduction)}:\n\n```text\n{' '.join(example.split())}\n```"


def _table(command: click.Command, context: click.Context) -> str:
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    rows = [_row(parameter, context) for parameter in shown]
    return "\n".join(["| option | meaning | default |", "|---|---|---|", *rows]) if rows else ""


def _row(parameter: click.Parameter, context: click.Context) -> str:
    if isinstance(parameter, click.Option):
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        value = "" if parameter.is_flag else f" `{parameter.make_metavar(context)}`"
    else:
        names, value = f"`{parameter.make_metavar(context)}`", ""
    return f"| {names}{value} | {_plain(getattr(parameter, 'help', None) or '')} | {_default(parameter)} |"


def _default(parameter: click.Parameter) -> str:
    if parameter.required:
        return "needed"
    default = parameter.default
    if default is None or default is False or default == [] or callable(default):
        return ""
    return f"`{default}`" if re.fullmatch(r"[\w./-]+", str(default)) else ""


def _plain(text: str) -> str:
    r"""Help as Markdown: without the marks that rich needs (`\[`), and with none that a table would break."""
    return " ".join(text.replace("\\[", "[").replace("|", "\\|").split())
