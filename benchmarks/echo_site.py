"""A site that trains nothing: it sends back the weights that it receives. For `engines.py`, which starts it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from harmofl.deployment.engine import find_engine
from harmofl.deployment.kits import SiteKit
from harmofl.deployment.participant import Participant
from harmofl.federation.messages import Reply, decode_request, encode

NODE = "node"
"""The argument with which FLARE's own process is this program."""


def echo(participant: Participant, data: bytes) -> bytes:
    """Answer as a site would that needs no time to train."""
    request = decode_request(data)
    metrics = {"train": {"loss": 0.0}}
    return encode(Reply(participant.kit.name, request.state, num_examples=1, num_steps=1, metrics=metrics))


def start_nodes_here() -> None:
    """FLARE answers in a process of its own: let that be this program, too."""
    from harmofl.deployment.nvflare import processes

    usual = processes.command

    def command(kit: Path, client: str | None) -> Sequence[str]:
        python, _, _, *arguments = usual(kit, client)
        return [python, __file__, NODE, *arguments]

    processes.command = command


def main(*arguments: str) -> None:
    """Join the federation of a kit, or run FLARE's process for it."""
    Participant.answer = echo  # type: ignore[method-assign, assignment]
    if arguments[0] == NODE:
        from harmofl.deployment.nvflare import node

        node.main(*arguments[1:])
        return
    kit = SiteKit.open(Path(arguments[0]))
    if kit.federation.engine == "nvflare":
        start_nodes_here()
    find_engine(kit.federation.engine).join(kit)


if __name__ == "__main__":
    main(*sys.argv[1:])
