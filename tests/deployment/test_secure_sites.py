"""Secure aggregation between hospitals: the real messages, each hospital's own rules, and a server that lies."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from loopback import ONE, OPEN, Loopback, looped, make_kits

from folders import segmentation_folder
from harmofl import registry
from harmofl.deployment.audit import audit_log, verify
from harmofl.deployment.checking import check_consortium
from harmofl.deployment.coordinator import RunOptions, coordinate
from harmofl.deployment.kits import SITE, SiteKit, SiteSettings, write_part
from harmofl.deployment.participant import Participant
from harmofl.deployment.run_settings import describe_run, describe_unusual
from harmofl.deployment.site_policy import Policy
from harmofl.errors import RunError, UsageError
from harmofl.federation.messages import Reply, Request, decode_reply, encode, settings_to_send
from harmofl.federation.secure.keys import KeyPair
from harmofl.settings import resolve
from harmofl.states import snapshot
from runs import SITES, differences, records, tiny, train

THREE = SITES[:3]
RUN = "0123456789abcdef" * 2
SECRET = "5e" * 32
LAST = "\U0010ffff"
"""A site whose name comes after all others."""


def options(method: str = "fedavg", rounds: int = 1, **more: Any) -> RunOptions:
    given = tiny("histology", rounds, federation__secure_aggregation=True, **more)
    return RunOptions("histology", method, "smoke", given=given)


def kits_with_secret(folder: Path, **own: object) -> tuple[Any, dict[str, SiteKit]]:
    server, sites = make_kits(
        folder, dict.fromkeys(THREE, "synthetic"), ["histology"], consortium_key="consortium.key", **own
    )
    for kit in sites.values():
        (kit.folder / "consortium.key").write_text(SECRET + "\n")
    return server, sites


def test_messages_between_hospitals_change_no_bit(tmp_path: Path) -> None:
    train(tmp_path / "here", "harmofl", rounds=1, data__sites=THREE, federation__secure_aggregation=True)
    server, sites = kits_with_secret(tmp_path / "kits")
    with looped(sites) as loopback:
        coordinate(server, options("harmofl"), tmp_path / "there", wait=1)
    assert differences(tmp_path / "here", tmp_path / "there", stores=False) == []
    trained = [decode_reply(said) for said in loopback.said if decode_reply(said).num_steps]
    assert [list(reply.state) for reply in trained] == [["masked"]] * 3


def test_a_hospital_with_images_takes_part_within_its_own_rules(tmp_path: Path) -> None:
    images = segmentation_folder(tmp_path / "images", sites=3, patients=12)
    names = [f"site-{number}" for number in range(3)]
    policy = Policy(approval="none", fewest_images=ONE, fewest_patients=ONE, require_secure_aggregation=True)
    server, sites = make_kits(tmp_path / "kits", dict.fromkeys(names, str(images)), ["segmentation"], policy=policy)
    given = {"training.rounds": 1, "data.size": 32, "federation.workers": 1, "method.band": "full"}
    wanted = given | {"federation.secure_aggregation": True}
    with looped(sites):
        with pytest.raises(RunError, match="takes part only if it is true"):
            coordinate(server, RunOptions("segmentation", "harmofl", "smoke", given=given), tmp_path / "no", wait=1)
        coordinate(server, RunOptions("segmentation", "harmofl", "smoke", given=wanted), tmp_path / "run", wait=1)
    assert [record for record in records(tmp_path / "run") if "error" in record] == []
    assert sites["site-0"].state("spectra.json").exists()  # of which images the masked measurement was


class Lying(Loopback):
    """A server that puts a key of its own in the place of one hospital's."""

    def ask(self, requests: Mapping[str, Request], timeout: float) -> Iterator[Reply]:
        return super().ask({site: self.forged(request) for site, request in requests.items()}, timeout)

    def forged(self, request: Request) -> Request:
        if request.kind != "shares":
            return request
        roster = dict(request.exchange["roster"])
        victim = next(name for name in roster if name != THREE[0])
        roster[victim] = roster[victim] | {"mask_key": KeyPair.make().public.hex()}
        return replace(request, exchange={**request.exchange, "roster": roster})


def test_a_server_that_makes_keys_up_is_found_out_by_the_hospitals_secret(tmp_path: Path) -> None:
    server, sites = kits_with_secret(tmp_path / "kits")
    with looped(sites) as loopback:
        loopback.ask = Lying(sites).ask  # type: ignore[method-assign]
        with pytest.raises(RunError, match="are not from a site with the consortium's key"):
            coordinate(server, options(), tmp_path / "run", wait=1)


def ask(participant: Participant, kind: str, number: int, **more: Any) -> Reply:
    settings, _ = resolve("histology", "fedavg", "smoke", overrides=tiny("histology", **more))
    request = Request(RUN, kind, number, settings=settings_to_send(settings))  # type: ignore[arg-type]
    return decode_reply(participant.answer(encode(request)))


def test_a_hospital_may_demand_it(tmp_path: Path) -> None:
    _, sites = make_kits(
        tmp_path,
        {THREE[0]: "synthetic"},
        ["histology"],
        policy=OPEN.model_copy(update={"require_secure_aggregation": True}),
    )
    participant = Participant(sites[THREE[0]])
    for kind, number in (("describe", 0), ("measure", 0), ("train", 1), ("evaluate", 1), ("keys", 1)):
        reply = ask(participant, kind, number)
        assert "federation.secure_aggregation = false: this hospital takes part only if it is true" in reply.error
        assert reply.state == reply.sent == {}
    assert not ask(participant, "describe", 0, federation__secure_aggregation=True).error


def test_exchanges_are_refused_in_a_plain_run_and_without_a_session(tmp_path: Path) -> None:
    _, sites = make_kits(tmp_path, {THREE[0]: "synthetic"}, ["histology"])
    participant = Participant(sites[THREE[0]])
    assert ask(participant, "keys", 1).error == "keys: this run has no secure aggregation"
    for kind in ("keys", "shares", "confirm", "unmask"):
        reply = ask(participant, kind, 1, federation__secure_aggregation=True)
        assert reply.error == "this run has secure aggregation, and the request names no session of it"


def test_it_is_nothing_unusual_and_the_hospital_is_told_what_the_server_sees() -> None:
    overrides = {"federation.secure_aggregation": True, "data.folder": "there"}
    settings, method = resolve("segmentation", "fedavg", "small", overrides=overrides)
    assert [line for line in describe_unusual(settings, method) if "secure" in line] == []
    assert "the server sees the sum of all sites' updates" in describe_run(settings, method)
    plain, _ = resolve("segmentation", "fedavg", "small", overrides={"data.folder": "there"})
    assert any("the server sees this hospital's own updates" in line for line in describe_run(plain, method))


def test_the_hospitals_secret_must_be_there_and_long_enough(tmp_path: Path) -> None:
    _, sites = make_kits(tmp_path, {THREE[0]: "synthetic"}, ["histology"])
    folder = sites[THREE[0]].folder
    settings = SiteSettings(name=THREE[0], data="synthetic", tasks=["histology"], consortium_key="common.key")
    write_part(folder / SITE, settings)
    kit = SiteKit.open(folder)
    (finding,) = check_consortium(kit)
    assert not finding.ok
    assert "common.key: No such file" in finding.what
    (folder / "common.key").write_text("short")
    with pytest.raises(UsageError, match="5 bytes, at least 32 are needed"):
        Participant(kit)
    (folder / "common.key").write_text(SECRET)
    (finding,) = check_consortium(kit)
    assert finding.ok


@pytest.fixture
def without_log() -> Iterator[None]:
    """Pytest's processes send each other what is logged, and cannot send half a surrogate."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    "name",
    ["x" * 100_000, "\ud800", "A\nB: run, round 1, train: done"],
    ids=["endless", "half a surrogate", "a line break"],
)
def test_no_name_that_a_server_makes_up_breaks_the_audit_log_or_an_answer(
    tmp_path: Path, name: str, without_log: None
) -> None:
    _, sites = make_kits(tmp_path, {THREE[0]: "synthetic"}, ["histology"])
    participant = Participant(sites[THREE[0]])
    settings, method = resolve("histology", "fedavg", "smoke", overrides=tiny(federation__secure_aggregation=True))
    model = snapshot(registry.tasks.find("histology").build_model(settings, method).network)
    session = {"session": "s", "kind": "train"}

    def asked(kind: str, **exchange: Any) -> Reply:
        state = model if kind == "train" else {}
        sent = Request(RUN, kind, 1, state, settings=settings_to_send(settings), exchange=session | exchange)  # type: ignore[arg-type]
        return decode_reply(participant.answer(encode(sent)))

    own = asked("keys").notes["secure"]
    made_up = {key: KeyPair.make().public.hex() for key in ("mask_key", "share_key", "sign_key")}
    others = [own | made_up, own | {key: KeyPair.make().public.hex() for key in made_up}]
    asked("shares", roster={THREE[0]: own, name: others[0], LAST: others[1]})
    reply = asked("train", shares={name: "00", LAST: "00"})
    assert reply.error.startswith("the shares of ")
    assert reply.error.isprintable()
    assert len(reply.error) <= 500
    assert not asked("keys").error
    assert verify(audit_log(sites[THREE[0]].folder)).entries == 4
