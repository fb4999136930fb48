"""`federation.participation`: some of the sites train in each round, and every site's state stays right."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from harmofl.errors import RunError, UsageError
from harmofl.events import Event, RoundStarted
from harmofl.federation.messages import Reply, Request
from harmofl.federation.participation import Participation
from harmofl.runs.checkpoints import read_checkpoint
from harmofl.runs.folder import RunFolder
from runs import SITES, differences, records, serve, stop_after_round, tensors, train

SOME = {"federation__participation": 0.4}
"""Two of five sites."""


def draw(number: int, part: float = 0.4, seed: int = 0) -> list[str]:
    return Participation(part, 1, seed).asked(SITES, number)


def server_records(out: Path) -> dict[int, dict[str, Any]]:
    return {record["round"]: record for record in records(out) if record["site"] == "server"}


# ---- who is drawn ----


@pytest.mark.parametrize(("part", "num_sites", "expected"), [(0.1, 500, 50), (0.1, 30, 3), (0.05, 5, 1), (1.0, 7, 7)])
def test_that_part_of_the_sites_is_drawn_and_at_least_one(part: float, num_sites: int, expected: int) -> None:
    sites = [f"site-{number}" for number in range(num_sites)]
    assert len(Participation(part, 1, seed=3).asked(sites, 1)) == expected


def test_the_draw_does_not_depend_on_the_order_in_which_sites_came() -> None:
    assert Participation(0.4, 1, 0).asked(reversed(SITES), 3) == draw(3)
    assert draw(3) == sorted(draw(3))


def test_rounds_and_seeds_draw_other_sites_and_none_is_preferred() -> None:
    assert len({tuple(draw(number)) for number in range(1, 11)}) > 1
    assert any(draw(number) != draw(number, seed=1) for number in range(1, 6))
    times = Counter(site for number in range(1, 1001) for site in draw(number))
    deviation = math.sqrt(1000 * 0.4 * 0.6)  # of a binomial count
    assert all(abs(times[site] - 400) < 4 * deviation for site in SITES)


# ---- a run ----


def test_only_the_drawn_sites_train_and_the_records_name_them(tmp_path: Path) -> None:
    seen: list[Event] = []
    train(tmp_path / "run", rounds=3, watch=seen.append, **SOME)
    for number, record in server_records(tmp_path / "run").items():
        trained = [
            each["site"] for each in records(tmp_path / "run") if each["round"] == number and each["phase"] == "train"
        ]
        assert record["asked"] == draw(number) == [site for site in trained if site != "server"]
    assert [event.asked for event in seen if isinstance(event, RoundStarted)] == [tuple(draw(n)) for n in (1, 2, 3)]


def test_every_scored_model_is_scored_by_all_sites(tmp_path: Path) -> None:
    train(tmp_path / "run", rounds=5, **SOME)  # 1 / 0.4, rounded: every second model, and the last
    scored: dict[int, list[str]] = {}
    for record in records(tmp_path / "run"):
        if record["phase"] == "val":
            scored.setdefault(record["round"], []).append(record["site"])
    assert {number: sorted(sites) for number, sites in scored.items()} == {2: SITES, 4: SITES, 5: SITES}


def test_with_all_sites_models_can_be_scored_less_often(tmp_path: Path) -> None:
    train(tmp_path / "often", rounds=4)
    train(tmp_path / "seldom", rounds=4, federation__evaluate_every=3)
    scored = {record["round"] for record in records(tmp_path / "seldom") if record["phase"] == "val"}
    assert scored == {3, 4}
    last = [tensors(tmp_path / name / "checkpoint" / "round-00004.safetensors")[0] for name in ("often", "seldom")]
    assert all(torch.equal(last[0][name], last[1][name]) for name in last[0])
    assert "asked" not in server_records(tmp_path / "seldom")[1]


def test_a_run_stops_early_by_the_models_that_were_scored(tmp_path: Path) -> None:
    still = {"model__norm": "group", "training__learning_rate": 1e-30}
    summary = train(tmp_path, rounds=9, training__stop_after=2, federation__evaluate_every=2, **still)
    # Rounds 2 and 4 are scored alike; that of 4 is known in round 5.
    assert summary["stopped_early"] == {"round": 5, "without_improvement": 2}
    assert summary["best_round"] == 2


@pytest.mark.parametrize("method", ["scaffold", "fedbn", "moon"])
def test_a_resumed_run_draws_the_same_sites_and_gives_the_same_bits(tmp_path: Path, method: str) -> None:
    train(tmp_path / "whole", method, rounds=4, **SOME)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "resumed", method, rounds=4, watch=stop_after_round(2), **SOME)
    train(tmp_path / "resumed", method, rounds=4, resume=True, **SOME)
    assert differences(tmp_path / "resumed", tmp_path / "whole") == []


def test_workers_give_the_same_bits(tmp_path: Path) -> None:
    train(tmp_path / "one", "scaffold", rounds=3, **SOME)
    train(tmp_path / "two", "scaffold", rounds=3, **SOME | {"federation__workers": 2})
    assert differences(tmp_path / "one", tmp_path / "two") == []


# ---- pieces with state ----


def test_scaffolds_server_variate_is_the_mean_over_all_sites_asked_or_not(tmp_path: Path) -> None:
    serve(tmp_path, method="scaffold", rounds=3, **SOME)
    folder = RunFolder(tmp_path)
    progress = read_checkpoint(folder, 3)
    stores = {site: folder.site_store(site).newest(3) for site in SITES}
    assert {site for site in SITES if stores[site]} == {site for number in (1, 2, 3) for site in draw(number)}
    for name, variate in progress.combined.items():
        own = [stores[site].get(name, torch.zeros_like(variate)).double() for site in SITES]
        torch.testing.assert_close(variate.double(), torch.stack(own).mean(dim=0), rtol=1e-4, atol=1e-7)


def test_feddyns_server_remembers_the_moves_of_the_drawn_sites_divided_by_all(tmp_path: Path) -> None:
    passed = serve(tmp_path, method="feddyn", rounds=1, **SOME)
    requests, replies = passed.requests("train", 1), passed.replies("train", 1)
    memory = read_checkpoint(RunFolder(tmp_path), 1).memory
    assert sorted(replies) == draw(1)
    for name, total in memory.items():
        moves = [replies[site].state[name].double() - requests[site].state[name].double() for site in replies]
        torch.testing.assert_close(total, torch.stack(moves).sum(dim=0) / len(SITES), rtol=1e-6, atol=1e-12)


def test_a_site_goes_on_from_the_last_round_in_which_it_trained(tmp_path: Path) -> None:
    passed = serve(tmp_path, method="moon", rounds=6, **SOME)
    last = dict.fromkeys(SITES, 0)
    for number in range(1, 7):
        for site, request in passed.requests("train", number).items():
            assert request.counted == last[site]
            last[site] = number


# ---- what can go wrong ----


def test_the_quorum_counts_those_who_were_asked(tmp_path: Path) -> None:
    def fail(sites: list[str]) -> Any:
        def change(request: Request, reply: Reply) -> Reply:
            lost = request.kind == "train" and reply.site in sites
            return Reply(reply.site, error="no answer") if lost else reply

        return change

    serve(tmp_path / "one", fail(draw(1)[:1]), rounds=1, **SOME)  # one of two is half
    assert server_records(tmp_path / "one")[1]["left_out"] == draw(1)[:1]
    with pytest.raises(RunError, match="0 of 2 sites gave a usable answer, 1 are needed"):
        serve(tmp_path / "both", fail(draw(1)), rounds=1, **SOME)


def test_a_site_that_only_scores_and_fails_is_not_left_out_of_the_training(tmp_path: Path) -> None:
    scorer = next(site for site in SITES if site not in draw(3))

    def fail(request: Request, reply: Reply) -> Reply:
        lost = request.kind == "evaluate" and request.round == 2 and not request.thorough and reply.site == scorer
        return Reply(reply.site, error="no answer") if lost else reply

    serve(tmp_path, fail, rounds=3, **SOME)
    assert "left_out" not in server_records(tmp_path)[3]
    (problem,) = [record for record in records(tmp_path) if "error" in record]
    assert (problem["site"], problem["round"], problem["phase"]) == (scorer, 2, "test")


def test_an_amplitude_of_the_first_rounds_sites_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'first-round' would keep the amplitude of the sites that happen to train"):
        train(tmp_path, "harmofl", method__schedule="first-round", **SOME)
