"""`harmofl runs` and `watch`: finding runs again, and seeing one while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harmofl.cli.completion import complete_run


def runs(
    folder: Annotated[Path, typer.Argument(help="A folder of runs, such as runs, or of an experiment.", metavar="DIR")],
    compared: Annotated[
        list[str] | None,
        typer.Argument(help="Two runs in it, to compare.", metavar="[A B]", autocompletion=complete_run),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """List the runs in a folder, or compare two: the settings that differ, and the scores of every site.

    What there is:  harmofl runs runs

    Two of them:  harmofl runs runs fedavg harmofl
    """
    from harmofl.cli.run_tables import show_comparison, show_runs
    from harmofl.runs.compared import compare, list_runs

    found = list_runs(folder)
    if compared:
        show_comparison(compare(found, compared), as_json)
    elif found or as_json:
        show_runs(found, as_json)
    else:
        print(f"No run lies in {folder}.")


def watch(
    folder: Annotated[
        Path, typer.Argument(help="A run's folder, a folder of runs, or an experiment's.", metavar="RUN_DIR")
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to serve the page; 0: any that is free.")] = 8700,
    host: Annotated[
        str, typer.Option(help="Which address to serve it at; by default only this machine can see it.")
    ] = "127.0.0.1",
    browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Serve a page that follows a run live: rounds, sites, curves, time left. It reads the folder, and writes nothing.

    While it trains, in another terminal:  harmofl watch runs/first

    On a server, seen from your desk:  ssh -t -L 8700:localhost:8700 SERVER harmofl watch runs/first
    """
    import sys
    import webbrowser

    from harmofl.reporting.live_server import LOOPBACK, LiveServer

    server = LiveServer(folder, host, port)
    if host not in LOOPBACK:
        print("harmofl: whoever reaches this machine can read the page, as it asks for no password", file=sys.stderr)
    print(f"Watching {folder}: {server.url} (Ctrl-C ends it)", flush=True)
    if browser:
        webbrowser.open(server.url)
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
