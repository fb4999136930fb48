"""A hospital with real images in this process, and what a server asks of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from loopback import make_kits

from attacks import first_model
from harmofl.deployment.kits import SiteKit
from harmofl.deployment.participant import Participant
from harmofl.deployment.site_policy import Policy
from harmofl.federation.messages import Reply, Request, decode_reply, encode, settings_to_send
from harmofl.settings import Settings
from harmofl.states import State

RUN = "0123456789abcdef" * 2
SITE = "site-0"


class Hospital:
    """A participant with real images, and what a server asks of it."""

    def __init__(self, folder: Path, images: Path, policy: Policy) -> None:
        _, sites = make_kits(folder, {SITE: str(images)}, ["segmentation"], policy=policy)
        self.kit: SiteKit = sites[SITE]
        self.participant = Participant(self.kit)

    def ask(self, kind: str, number: int, settings: Settings, state: State | None = None, **more: Any) -> Reply:
        request = Request(more.pop("run", RUN), kind, number, settings=settings_to_send(settings), **more)  # type: ignore[arg-type]
        request = replace(request, state=first_model(settings) if state is None else state)
        return decode_reply(self.participant.answer(encode(request)))
