"""The command `harmofl`: its commands, its global options, and how it ends."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Callable
from typing import Annotated

import typer

from harmofl.cli import listings, models, overview, planning, runs, studies
from harmofl.cli.data import data_app
from harmofl.cli.deploy import deploy_app
from harmofl.cli.interrupts import never_lose_interrupts
from harmofl.errors import RunError, UsageError
from harmofl.federation.lean_imports import import_lean
from harmofl.files import FULL_OR_BROKEN, what_failed
from harmofl.version import __version__

app = typer.Typer(
    name="harmofl",
    help="Train one model on medical images of several hospitals that look different, without sharing the images.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMMANDS: tuple[Callable[..., None], ...] = (
    *(runs.demo, planning.plan, runs.train, runs.experiment, runs.report, overview.runs, overview.watch),
    *(models.evaluate, models.predict, models.adapt, models.export),
    *(studies.landscape, studies.pictures, studies.privacy),
    *(listings.methods, listings.tasks),
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(data_app, name="data")
app.add_typer(deploy_app, name="deploy")

_options = {"debug": False}


def main() -> None:
    """Run a command; every expected problem is one line on stderr and an exit code."""
    replace_unknown_characters()
    never_lose_interrupts()
    import_lean()
    try:
        app()
    except UsageError as error:
        _fail(error, str(error), 2)
    except OSError as error:
        _fail(error, what_failed(error), 1 if error.errno in FULL_OR_BROKEN else 2)
    except RunError as error:
        _fail(error, str(error), 1)
    except KeyboardInterrupt:
        sys.exit(130)


def replace_unknown_characters() -> None:
    """Print a question mark for what the terminal's encoding cannot show, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _fail(error: Exception, words: str, code: int) -> None:
    if _options["debug"]:
        raise error
    print(f"harmofl: {words}", file=sys.stderr)
    sys.exit(code)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"harmofl {__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the whole traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    _options["debug"] = debug
    logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING, format="harmofl: %(message)s")
    if not debug:
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
        warnings.simplefilter("ignore")  # other packages' deprecations are not for users to read
