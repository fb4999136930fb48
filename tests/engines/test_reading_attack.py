"""The attack that read every grey value of a hospital's image, by a server of a real federation: it gets nothing."""

import json
from collections.abc import Iterator

import pytest
from federations import Live, live, make_kits

from attacks import TINY, crafted, first_model, wanted
from folders import segmentation_folder
from harmofl import registry
from harmofl.deployment.audit import audit_log
from harmofl.deployment.engine import find_engine
from harmofl.deployment.kits import SITE, SiteKit, write_part
from harmofl.deployment.site_policy import Fewest, Policy
from harmofl.federation.messages import Reply, Request, settings_to_send
from harmofl.federation.transports import Transport, limit_replies
from harmofl.settings import Settings
from harmofl.states import State

pytestmark = pytest.mark.engines

CLOSED, OPEN = "closed", "open"
ONE = Fewest(train=1, val=1, test=1)
TIMES = 6
"""Of 256 requests; every one is answered in the same way."""


@pytest.fixture(scope="module", params=registry.engines.names())
def federation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A hospital with the settings of a new kit, and one that lets every run start, on however few images."""
    folder = tmp_path_factory.mktemp(request.param)
    images = segmentation_folder(folder / "images", sites=1, patients=12)
    own = {"data": str(images), "tasks": ["segmentation"]}
    make_kits(folder, request.param, [CLOSED, OPEN], **own)
    kit = SiteKit.open(folder / "sites" / OPEN)
    policy = Policy(approval="none", runs=1000, fewest_images=ONE, fewest_patients=ONE)
    write_part(kit.folder / SITE, kit.settings.model_copy(update={"policy": policy}))
    with live(folder, request.param, [CLOSED, OPEN]) as started:
        started.wait_until_connected(2)
        yield started


class Malicious:
    """A server that asks what it likes."""

    def __init__(self, transport: Transport, settings: Settings) -> None:
        self.transport, self.settings = transport, settings
        limit_replies(transport, 2**30)

    def ask(self, kind: str, number: int, state: State, run: int, **more: bool) -> dict[str, Reply]:
        settings = settings_to_send(self.settings)
        request = Request(f"{run:032x}", kind, number, state=state, settings=settings, **more)  # type: ignore[arg-type]
        return {reply.site: reply for reply in self.transport.ask(dict.fromkeys([CLOSED, OPEN], request), 120)}


def test_no_score_of_crafted_weights_leaves_a_hospital(federation: Live) -> None:
    with find_engine(federation.kit.federation.engine).connect(federation.kit) as transport:
        transport.sites(2, 60)
        server = Malicious(transport, wanted(**TINY))
        state = first_model(server.settings)
        for number in range(TIMES):
            replies = server.ask("evaluate", 1, crafted(state, number), run=number % 2)
            assert "waits for the hospital's approval" in replies[CLOSED].error
            assert "not the one that the run's seed gives" in replies[OPEN].error
            assert not any(reply.metrics or reply.state for reply in replies.values())
    for site in (CLOSED, OPEN):  # what its audit log says
        lines = [json.loads(line) for line in audit_log(federation.place(site)).read_text().splitlines()]
        assert [line["outcome"].partition(":")[0] for line in lines] == ["refused"] * TIMES


def test_a_server_that_plays_along_gets_no_crafted_weights_scored_or_trained_on(federation: Live) -> None:
    with find_engine(federation.kit.federation.engine).connect(federation.kit) as transport:
        transport.sites(2, 60)
        server = Malicious(transport, wanted(data__size=32))
        first = server.ask("train", 1, first_model(server.settings), run=7)[OPEN]
        assert not first.error
        layer = "body.final_conv.weight"
        layers = first.state | {layer: first.state[layer].flip(0, 1)}  # the whole model hardly moves
        for state, words in ((crafted(first.state, 0), "the global model has moved"), (layers, f"{layer} of the")):
            for kind in ("evaluate", "train"):
                reply = server.ask(kind, 2, dict(state), run=7, score=kind == "train")[OPEN]
                assert words in reply.error
                assert not reply.metrics
                assert not reply.state
        near = [first.state | {layer: first.state[layer] * (1 + number / 1000)} for number in range(7)]
        scored = [server.ask("evaluate", 2, state, run=7)[OPEN] for state in near]
    assert [bool(reply.error) for reply in scored] == [False] * 5 + [True] * 2  # three rounds and two
    numbers = [value for reply in scored[:5] for phase in reply.metrics.values() for value in phase[OPEN].values()]
    assert all(len(f"{value:.10g}".replace(".", "").lstrip("0")) <= 3 for value in numbers)
