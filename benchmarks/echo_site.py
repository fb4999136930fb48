"""A site that trains nothing: it sends back the weights that it receives. For `engines.py`, which starts it."""

from __future__ import annotations

import sys
from pathlib import Path

from harmofl.deployment.kits import SiteKit
from harmofl.deployment.participant import Participant
from harmofl.federation.messages import Reply, decode_request, encode


class Echo(Participant):
    """Answers as a site would that needs no time to train."""

    def answer(self, data: bytes) -> bytes:
        request = decode_request(data)
        metrics = {"train": {"loss": 0.0}}
        return encode(Reply(self.kit.name, request.state, num_examples=1, num_steps=1, metrics=metrics))


def join_flower(kit: SiteKit) -> None:
    from harmofl.deployment.flower.site import join

    join(kit, Echo(kit).answer)


def join_nvflare(kit: SiteKit) -> None:
    """FLARE answers in a process of its own, which is to be this program, too."""
    from harmofl.deployment.nvflare import engine, processes

    usual = processes.command

    def command(kit: Path, client: str | None) -> list[str]:
        _, _, _, *arguments = usual(kit, client)
        return [sys.executable, __file__, "node", *arguments]

    processes.command = command
    engine.engine.join(kit)


def run_node(*arguments: str) -> None:
    from harmofl.deployment.nvflare import node, site

    site.Participant = Echo  # type: ignore[misc]
    node.main(*arguments)


if __name__ == "__main__":
    if sys.argv[1] == "node":
        run_node(*sys.argv[2:])
    else:
        kit = SiteKit.open(Path(sys.argv[1]))
        {"flower": join_flower, "nvflare": join_nvflare}[kit.federation.engine](kit)
