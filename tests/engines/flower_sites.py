"""A hospital on Flower that misbehaves when told to, as a process of its own: python flower_sites.py FOLDER.

It comes with a registered key and speaks the protocol; what it answers to a request for training is wrong in the way
that the file `how` in its folder names, if there is one.
"""

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from harmofl.deployment.flower.site import join
from harmofl.deployment.kits import SiteKit
from harmofl.deployment.participant import Participant
from harmofl.federation.messages import Reply, Request, decode_reply, decode_request, encode

Misdeed = Callable[[Reply], bytes]


def changed(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Misdeed:
    return lambda reply: encode(replace(reply, state=change(dict(reply.state))))


def first(state: dict[str, torch.Tensor]) -> str:
    return min(name for name, tensor in state.items() if tensor.is_floating_point() and tensor.dim())


MISDEEDS: dict[str, Misdeed] = {
    "garbage": lambda reply: b"\x80\x04garbage" * 100,
    "empty": lambda reply: b"",
    "name": lambda reply: encode(replace(reply, site="hospital-0")),
    "nan": changed(lambda state: state | {first(state): torch.full_like(state[first(state)], float("nan"))}),
    "shape": changed(lambda state: state | {first(state): torch.zeros(3, 5, 7)}),
    "extra": changed(lambda state: state | {"os.system": torch.zeros(1)}),
    "missing": changed(lambda state: {name: state[name] for name in state if name != first(state)}),
    "huge": changed(lambda state: state | {first(state): torch.zeros(60_000_000)}),
}


def sleepy(kit: SiteKit, request: Request) -> None:
    """In round 2, say that the request has come, and sleep until woken; once only."""
    asleep, woken = kit.folder / "asleep", kit.folder / "woken"
    if request.round == 2 and not asleep.exists():
        asleep.write_text("")
        deadline = time.monotonic() + 300
        while not woken.exists() and time.monotonic() < deadline:
            time.sleep(0.1)


def main(kit: SiteKit) -> None:
    participant = Participant(kit)

    def answer(data: bytes) -> bytes:
        request, sign = decode_request(data), kit.folder / "how"
        how = sign.read_text() if request.kind == "train" and sign.exists() else ""
        if how == "sleepy":
            sleepy(kit, request)
        honest = participant.answer(data)
        return MISDEEDS[how](decode_reply(honest)) if how in MISDEEDS else honest

    join(kit, answer)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    main(SiteKit.open(Path(sys.argv[1])))
