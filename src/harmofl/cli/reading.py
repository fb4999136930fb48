"""`harmofl deploy watch` at the server, and `harmofl deploy follow` at a site: who may see a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from socketserver import BaseServer

HERE = Path()


def watch(
    folder: Annotated[
        Path, typer.Argument(help="A run's folder, a folder of runs, or an experiment's.", metavar="RUN_DIR")
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to serve the page; 0: any that is free.")] = 8700,
    host: Annotated[
        str, typer.Option(help="Which address to serve it at; by default only this machine can see it.")
    ] = "127.0.0.1",
    kit: Annotated[Path, typer.Option(help="The server's folder; the current one if not given.")] = HERE,
    browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Serve a page that follows a run live, to this machine; with --host, to the readers that server.toml names.

    While it trains, in another terminal:  harmofl deploy watch runs/first

    For people at sites that are readers:  harmofl deploy watch runs --host 0.0.0.0
    """
    import webbrowser

    from harmofl.reporting.live_server import LOOPBACK, LiveServer

    if host in LOOPBACK:
        server = LiveServer(folder, host, port)
    else:
        from harmofl.deployment.kits import ServerKit
        from harmofl.deployment.reading import ReadersServer

        server = ReadersServer(ServerKit.open(kit), folder, host, port)
    print(f"Watching {folder}: {server.url} (Ctrl-C ends it)", flush=True)
    if browser:
        webbrowser.open(server.url)
    _serve(server)


def follow(
    folder: Annotated[
        Path, typer.Argument(help="The hospital's folder; the current one if not given.", metavar="[DIR]")
    ] = HERE,
    server_port: Annotated[
        int, typer.Option(min=1, max=65535, help="The port of `harmofl deploy watch --host` at the server.")
    ] = 8700,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to show it here; 0: any that is free.")] = 8701,
) -> None:
    """At a hospital that is a reader: show the server's page of a run in a browser on this machine.

    In the hospital's folder:  harmofl deploy follow
    """
    from harmofl.deployment.following import Follower
    from harmofl.deployment.kits import SiteKit

    follower = Follower(SiteKit.open(folder), server_port, port)
    print(f"Following {follower.server}: {follower.url} (Ctrl-C ends it)", flush=True)
    _serve(follower)


def _serve(server: BaseServer) -> None:
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
