"""A federation without a network: the real messages between the real parties, in one process."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from harmofl.deployment import coordinator, surveys
from harmofl.deployment.kits import FEDERATION, SITE, Federation, ServerKit, SiteKit, SiteSettings, write_part
from harmofl.deployment.participant import Participant
from harmofl.deployment.replies import reply_of
from harmofl.deployment.site_policy import Fewest, Policy
from harmofl.federation.messages import Reply, Request, encode

ONE = Fewest(train=1, val=1, test=1)
OPEN = Policy(
    approval="none",
    runs=1000,
    fewest_images=ONE,
    fewest_patients=ONE,
    score_digits=17,
    largest_move=1e30,
    largest_tensor_move=1e30,
    initial_model=True,
)
"""What no hospital should choose: for tests of other things."""


def make_kits(
    folder: Path, data: Mapping[str, str], tasks: list[str], **own: object
) -> tuple[ServerKit, dict[str, SiteKit]]:
    """Kits without keys: `data` says for each site where its images are. Without a policy of its own, all is open."""
    own = {"policy": OPEN} | own
    federation = Federation(engine="flower", server="localhost:9000", sites=sorted(data))
    write_part(folder / "server" / FEDERATION, federation)
    for name, place in data.items():
        site = folder / "sites" / name
        write_part(site / FEDERATION, federation)
        write_part(site / SITE, SiteSettings(name=name, data=place, tasks=tasks, **own))  # type: ignore[arg-type]
    sites = {name: SiteKit.open(folder / "sites" / name) for name in data}
    return ServerKit.open(folder / "server"), sites


class Loopback:
    """An engine and its transport: bytes go to participants in this process; `away`: sites that are not there."""

    def __init__(self, sites: Mapping[str, SiteKit]) -> None:
        self.participants = {name: Participant(kit) for name, kit in sites.items()}
        self.away: set[str] = set()
        self.said: list[bytes] = []

    @contextmanager
    def connect(self, kit: ServerKit) -> Iterator["Loopback"]:
        yield self

    def sites(self, minimum: int, timeout: float) -> list[str]:
        return sorted(self.participants)

    def ask(self, requests: Mapping[str, Request], timeout: float) -> Iterator[Reply]:
        for site, request in sorted(requests.items(), reverse=True):
            if site in self.away:
                yield Reply(site, error="not connected")
                continue
            self.said.append(self.participants[site].answer(encode(request)))
            yield reply_of(site, self.said[-1], 2**30)


@contextmanager
def looped(sites: Mapping[str, SiteKit]) -> Iterator[Loopback]:
    """`deploy run` finds this engine."""
    loopback = Loopback(sites)
    with pytest.MonkeyPatch.context() as patch:
        for module in (coordinator, surveys):
            patch.setattr(module, "find_engine", lambda name: loopback)
        yield loopback
