"""Runs with secure aggregation: the same result as a plain run, and the server never sees a single update."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import harmofl
from harmofl import registry
from harmofl.errors import RunError, UsageError
from harmofl.federation.messages import Reply, Request
from harmofl.federation.secure.refusals import check_secure_aggregation
from harmofl.settings import resolve
from runs import SITES, altered, differences, records, serve, tensors, tiny, train

FOUR = SITES[:4]
SECURE = {"federation__secure_aggregation": True, "data__sites": FOUR}
PLAIN = {"data__sites": FOUR}
LOSER = FOUR[1]


def checkpoint(out: Path, number: int = 2) -> dict[str, torch.Tensor]:
    return tensors(out / "checkpoint" / f"round-{number:05d}.safetensors")[0]


def assert_alike(first: Path, second: Path, number: int = 2) -> None:
    one, other = checkpoint(first, number), checkpoint(second, number)
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(other[name], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", ["fedavg", "harmofl", "scaffold"])
def test_a_secure_run_ends_where_the_plain_one_does(tmp_path: Path, method: str) -> None:
    train(tmp_path / "plain", method, **PLAIN)
    train(tmp_path / "secure", method, **SECURE)
    assert_alike(tmp_path / "plain", tmp_path / "secure")
    plain, secure = (
        [record["metric"] for record in records(tmp_path / name) if record["phase"] == "test"]
        for name in ("plain", "secure")
    )
    assert secure == pytest.approx(plain, abs=1e-4)


def test_weights_by_examples_and_by_steps_need_sums_only(tmp_path: Path) -> None:
    more = {"federation__weights": "examples", "training__optimizer": "sgd", "training__learning_rate": 1e-3}
    train(tmp_path / "plain", "fednova", rounds=1, **PLAIN, **more)
    train(tmp_path / "secure", "fednova", rounds=1, **SECURE, **more)
    assert_alike(tmp_path / "plain", tmp_path / "secure", 1)


def test_the_noise_of_differential_privacy_is_added_before_the_masks(tmp_path: Path) -> None:
    private = {"privacy__site_level": "central", "privacy__site_clip": 0.5, "privacy__site_noise": 0.1}
    train(tmp_path / "plain", rounds=1, **PLAIN, **private)
    train(tmp_path / "secure", rounds=1, **SECURE, **private)
    assert_alike(tmp_path / "plain", tmp_path / "secure", 1)
    servers = [[each for each in records(tmp_path / name) if each["site"] == "server"] for name in ("plain", "secure")]
    assert servers[0][0]["epsilon"] == servers[1][0]["epsilon"]


def test_the_server_receives_noise_from_every_site(tmp_path: Path) -> None:
    passed = serve(tmp_path, method="harmofl", rounds=1, **SECURE).passed
    working = [(request, reply) for request, reply in passed if request.kind in ("measure", "train")]
    assert sorted((request.kind, reply.site) for request, reply in working) == [
        (kind, site) for kind in ("measure", "train") for site in FOUR
    ]
    for request, reply in working:
        assert list(reply.state) == ["masked"]
        assert reply.sent == {}
        bits = np.unpackbits(reply.state["masked"].numpy().view(np.uint8))
        assert abs(bits.mean() - 0.5) < 5 * 0.5 / len(bits) ** 0.5, request.kind
    for request, reply in passed:
        if request.kind not in ("measure", "train"):
            assert reply.state == reply.sent == {}
    kinds = [request.kind for request, _ in passed]
    assert kinds == [each for kind in PHASES for each in [kind] * len(FOUR)]


AROUND = (["keys", "shares"], ["confirm", "unmask"])
PHASES = [*AROUND[0], "measure", *AROUND[1], *AROUND[0], "train", *AROUND[1], "evaluate", "evaluate"]


def lose(kind: str, number: int, *losers: str) -> Any:
    def change(request: Request, reply: Reply) -> Reply:
        lost = request.kind == kind and request.round == number and reply.site in losers
        return Reply(reply.site, error="no answer") if lost else reply

    return change


def test_a_site_that_drops_out_in_mid_round_is_left_out_as_in_a_plain_run(tmp_path: Path) -> None:
    change = lose("train", 2, LOSER)
    serve(tmp_path / "plain", change, "scaffold", rounds=3, **PLAIN)
    serve(tmp_path / "secure", change, "scaffold", rounds=3, **SECURE)
    assert_alike(tmp_path / "plain", tmp_path / "secure", 3)
    (left_out,) = [record for record in records(tmp_path / "secure") if "error" in record]
    assert (left_out["round"], left_out["site"], left_out["phase"]) == (2, LOSER, "train")


@pytest.mark.parametrize("kind", ["keys", "shares"])
def test_a_site_that_is_gone_before_it_works_is_left_out(tmp_path: Path, kind: str) -> None:
    serve(tmp_path / "plain", lose("train", 1, LOSER), rounds=1, **PLAIN)
    serve(tmp_path / "secure", lose(kind, 1, LOSER), rounds=1, **SECURE)
    assert_alike(tmp_path / "plain", tmp_path / "secure", 1)
    (left_out,) = [record for record in records(tmp_path / "secure") if "error" in record]
    assert (left_out["site"], left_out["phase"], left_out["error"]) == (LOSER, "train", "no answer")


@pytest.mark.parametrize("kind", ["confirm", "unmask"])
def test_a_site_that_is_gone_when_the_sum_is_unmasked_still_counts(tmp_path: Path, kind: str) -> None:
    serve(tmp_path / "plain", rounds=1, **PLAIN)
    serve(tmp_path / "secure", lose(kind, 1, LOSER), rounds=1, **SECURE)
    assert_alike(tmp_path / "plain", tmp_path / "secure", 1)
    assert [record for record in records(tmp_path / "secure") if "error" in record] == []


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("train", "2 sites sent an update, 3 are needed to unmask"),
        ("confirm", r"2 sites signed who is in the sum, 3 are needed \(hospital-1: no answer"),
        ("unmask", r"2 sites helped to unmask the sum, 3 are needed \(hospital-1: no answer"),
        ("shares", "2 sites made their shares, secure aggregation needs 3"),
        ("keys", "2 sites told their keys, secure aggregation needs 3"),
    ],
)
def test_below_the_threshold_nothing_is_unmasked_and_the_run_stops(tmp_path: Path, kind: str, words: str) -> None:
    with pytest.raises(RunError, match=words):
        serve(tmp_path, lose(kind, 1, *FOUR[1:3]), rounds=1, **SECURE)


def test_a_row_of_another_length_is_refused_and_one_of_other_numbers_is_noticed(tmp_path: Path) -> None:
    def shorten(request: Request, reply: Reply) -> Reply:
        cut = request.kind == "train" and reply.site == LOSER
        return altered(reply, state={"masked": reply.state["masked"][1:]}) if cut else reply

    serve(tmp_path / "short", shorten, rounds=1, **SECURE)
    (left_out,) = [record for record in records(tmp_path / "short") if "error" in record]
    assert left_out["site"] == LOSER
    assert "entry masked has shape" in left_out["error"]

    def spoil(request: Request, reply: Reply) -> Reply:
        noise = torch.randint(-(2**62), 2**62, reply.state.get("masked", torch.zeros(0)).shape)
        return altered(reply, state={"masked": noise}) if request.kind == "train" and reply.site == LOSER else reply

    with pytest.raises(RunError, match="round 1: the masks do not cancel"):
        serve(tmp_path / "spoilt", spoil, rounds=1, **SECURE)

    def lower(request: Request, reply: Reply) -> Reply:
        lied = request.kind == "train" and reply.site == LOSER
        return altered(reply, state={"masked": reply.state["masked"] - 1000 * 2**36}) if lied else reply

    with pytest.raises(RunError, match="round 1: a site sent wrong numbers: the sum holds a negative variance"):
        serve(tmp_path / "lowered", lower, rounds=1, **SECURE)


@pytest.mark.parametrize("kind", ["train", "confirm", "unmask"])
def test_a_run_that_was_killed_in_mid_round_goes_on_to_the_same_bits(tmp_path: Path, kind: str) -> None:
    serve(tmp_path / "whole", method="scaffold", rounds=2, **SECURE)

    def stop(request: Request, reply: Reply) -> Reply:
        if request.kind == kind and request.round == 2 and reply.site == FOUR[2]:
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        serve(tmp_path / "resumed", stop, "scaffold", rounds=2, **SECURE)
    serve(tmp_path / "resumed", method="scaffold", rounds=2, resume=True, **SECURE)
    assert differences(tmp_path / "resumed", tmp_path / "whole") == []


@pytest.mark.slow
def test_workers_change_no_bit_of_a_secure_run(tmp_path: Path) -> None:
    train(tmp_path / "one", "scaffold", rounds=1, **SECURE)
    train(tmp_path / "two", "scaffold", rounds=1, **SECURE, federation__workers=2)
    assert differences(tmp_path / "one", tmp_path / "two") == []


def test_a_plain_request_within_a_secure_run_is_refused_by_the_site(tmp_path: Path) -> None:
    def forget(request: Request) -> Request:
        return Request(**vars(request) | {"exchange": {}})

    transport = serve(tmp_path, rounds=1, **SECURE)
    (request, _) = next(pair for pair in transport.passed if pair[0].kind == "train")
    (reply,) = transport.transport.ask({LOSER: forget(request)}, timeout=60)
    assert reply.state == reply.sent == {}
    assert reply.error == "this run has secure aggregation, and the request names no session of it"


@pytest.mark.parametrize(
    ("method", "more", "reason"),
    [
        ("median", {}, "Median compares single updates"),
        ("krum", {}, "Krum compares single updates"),
        ("fedrdn", {}, r"FedRDN hands every site's own values on \(NormalizeBySite\)"),
        ("local", {}, "nothing travels with local"),
        ("centralized", {}, "centralized has a single site"),
        ("fedavg", {"federation.clip_updates": 3.0}, "federation.clip_updates must be unset"),
        ("fedavg", {"federation.transport": "int8"}, "federation.transport = 'int8' must be 'float32'"),
        ("fedavg", {"data.sites": SITES[:2]}, "2 sites train in a round, and at least 3 must"),
        ("fedavg", {"federation.participation": 0.4}, "2 sites train in a round, and at least 3 must"),
    ],
)
def test_what_needs_single_updates_is_refused_before_anything_starts(
    tmp_path: Path, method: str, more: dict[str, Any], reason: str
) -> None:
    settings = tiny(federation__secure_aggregation=True) | more
    with pytest.raises(UsageError, match=f"federation.secure_aggregation = true: {reason}"):
        harmofl.train("histology", method, preset="smoke", settings=settings, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fednova", "fedadam", "fedbn", "moon", "harmofl", "scaffold"])
def test_what_needs_sums_only_is_not_refused(method: str) -> None:
    settings, chosen = resolve("histology", method, "smoke", overrides=tiny(federation__secure_aggregation=True))
    model = registry.tasks.find("histology").build_model(settings, chosen)
    check_secure_aggregation(chosen, model, settings, num_sites=3)
