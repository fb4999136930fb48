"""Sites and servers on NVIDIA FLARE that do not behave: their own code, run with their own kit."""

import sys
from pathlib import Path

from federations import START

START_OTHER = (
    """
import sys
from harmofl.deployment.nvflare import processes
usual = processes.command
def command(kit, client):
    _, _, _, *arguments = usual(kit, client)
    return [sys.executable, "-c", PROGRAM, *arguments]
PROGRAM = {program!r}
processes.command = command
"""
    + START
)
MOODY = """
import sys, time
from dataclasses import replace
import torch
from harmofl.deployment.nvflare import node, site
from harmofl.federation.messages import decode_reply, decode_request, encode

class Moody(site.Participant):
    def answer(self, data):
        mood = self.kit.folder / "mood"
        request, name = decode_request(data), mood.read_text()
        if request.kind != "train" or not name or (name[-1:].isdigit() and int(name[-1]) != request.round):
            return super().answer(data)
        return MOODS[name.rstrip("0123456789")](self, data)

def waits(self, data):
    (self.kit.folder / "waits").touch()
    while (self.kit.folder / "mood").read_text():
        time.sleep(0.02)
    return super(Moody, self).answer(data)

def changed(change):
    def mood(self, data):
        reply = decode_reply(super(Moody, self).answer(data))
        name = sorted(reply.state)[0]
        return encode(change(reply, name, reply.state[name]))
    return mood

def with_state(reply, **values):
    return replace(reply, state={**reply.state, **values})

MOODS = {
    "waits": waits,
    "garbage": lambda self, data: b"garbage" * 1000,
    "nothing": lambda self, data: b"",
    "raises": lambda self, data: 1 / 0,
    "nan": changed(lambda reply, name, value: with_state(reply, **{name: torch.full_like(value, float("nan"))})),
    "shape": changed(lambda reply, name, value: with_state(reply, **{name: torch.zeros(7, 7)})),
    "extra": changed(lambda reply, name, value: with_state(reply, extra=torch.zeros(3))),
    "huge": changed(lambda reply, name, value: with_state(reply, **{name: torch.zeros(40_000_000)})),
    "missing": changed(lambda reply, name, value: replace(
        reply, state={key: value for key, value in reply.state.items() if key != name})),
    "name": changed(lambda reply, name, value: replace(reply, site="hospital-0")),
}
site.Participant = Moody
node.main(*sys.argv[1:])
"""


def program(code: str) -> tuple[str, ...]:
    """The command that starts a party whose FLARE process runs other code than ours."""
    return (sys.executable, "-c", START_OTHER.format(program=code))


def set_mood(kit: Path, mood: str) -> None:
    """What a moody hospital does from now on; a digit at the end: in that round only."""
    (kit / "waits").unlink(missing_ok=True)
    (kit / "mood").write_text(mood)
