"""How far one site can move a round."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from harmofl.federation import bounds
from harmofl.federation.bounds import BoundedRound
from harmofl.federation.messages import Reply, Request
from harmofl.methods.aggregation import start_aggregation
from harmofl.methods.bound import Bound
from harmofl.methods.channel import Combining
from harmofl.methods.server_rules import Average, NormalizedAverage, ServerRule
from harmofl.runs.finished import read_run
from harmofl.settings.schema import FederationSettings
from harmofl.states import State
from runs import SITES, records, serve

START = {"w": torch.tensor([1.0, 1.0]), "mean": torch.tensor([0.0]), "count": torch.tensor(0)}


def answer(site: str, *moves: float, mean: float = 1.0, num_examples: int = 8, **sent: float) -> Reply:
    state = {"w": START["w"] + torch.tensor(moves), "mean": torch.tensor([mean]), "count": torch.tensor(1)}
    tensors = {f"step.{name}": torch.tensor(value) for name, value in sent.items()}
    return Reply(site, state=state, sent=tensors, num_examples=num_examples, num_steps=1)


def combine(*replies: Reply, rule: ServerRule | None = None, **settings: Any) -> tuple[State, bounds.Verdict]:
    aggregation = start_aggregation(rule or Average(), START, trainable=["w"])
    limited = BoundedRound(aggregation, Combining({}, {}, len(replies)), FederationSettings(**settings), 0.0)
    for reply in replies:
        limited.add(reply)
    verdict = limited.finish()
    return aggregation.finish({}, 1.0)[0], verdict


def test_a_long_update_is_shortened_to_a_multiple_of_the_median() -> None:
    # Lengths 1, 1 and 5, median 1: the third one becomes (3, 4) · 2/5.
    state, verdict = combine(answer("A", 1, 0), answer("B", 0, 1), answer("C", 3, 4), clip_updates=2)
    assert state["w"].tolist() == pytest.approx([1 + (1 + 0 + 1.2) / 3, 1 + (0 + 1 + 1.6) / 3])
    assert verdict.shortened == {"C": pytest.approx(0.4)}
    assert not verdict.left_out


def test_statistics_and_what_pieces_send_are_shortened_too() -> None:
    replies = [answer(site, 1, 0, mean=mean, a=a) for site, mean, a in (("A", 1, 2), ("B", 1, 2), ("C", 10, 400))]
    state, verdict = combine(*replies, clip_updates=2)
    assert state["mean"].item() == pytest.approx((1 + 1 + 2) / 3)
    assert verdict.shortened == {"C": pytest.approx(0.01)}  # 4 of 400


def test_an_outlier_is_left_out_and_named() -> None:
    state, verdict = combine(answer("A", 1, 0), answer("B", 3, 0), answer("C", 1000, 0))
    assert state["w"].tolist() == [3.0, 1.0]
    assert list(verdict.left_out) == ["C"]
    assert "an outlier: its update moves the weights 333 times as far as the median" in verdict.left_out["C"]


def test_updates_are_compared_as_the_rule_counts_them() -> None:
    """FedNova divides by the steps: of who says that it made one of 100, the same update counts 100 times."""
    honest = [dataclasses.replace(answer(site, 1, 0), num_steps=100) for site in "AB"]
    liar = dataclasses.replace(answer("C", 2, 0), num_steps=1)
    assert list(combine(*honest, liar, rule=NormalizedAverage())[1].left_out) == ["C"]
    state, verdict = combine(*honest, liar, rule=NormalizedAverage(), clip_updates=200)
    assert "200 times as far" in verdict.left_out["C"]
    assert state["w"][0].item() == pytest.approx(2.0)
    assert not combine(*honest, liar)[1].left_out


def test_of_two_sites_nobody_is_the_outlier() -> None:
    state, verdict = combine(answer("A", 1, 0), answer("B", 1e6, 0))
    assert not verdict.left_out
    assert state["w"][0].item() == pytest.approx(1 + (1 + 1e6) / 2)


def test_no_site_counts_for_more_than_all_others_together_unless_it_may() -> None:
    replies = [answer("A", 1, 0), answer("B", 1, 0), answer("C", 0, 0, num_examples=10**9)]
    state, _ = combine(*replies, weights="examples")
    assert state["w"][0].item() == 1.5  # 8 + 8 against 16
    state, _ = combine(*replies, weights="examples", largest_share=1.0)
    assert state["w"][0].item() == pytest.approx(1.0, abs=1e-6)


def test_of_more_answers_than_memory_holds_the_first_are_added_up_early(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = [answer(site, 1, 0) for site in "ABC"]
    held, _ = combine(*replies)
    monkeypatch.setattr(bounds, "LARGEST_HELD", 1)
    streamed, verdict = combine(*replies)
    assert all(torch.equal(held[name], streamed[name]) for name in START)
    assert not verdict.left_out


def test_a_site_that_moves_what_most_sites_left_alone_is_left_out_and_named() -> None:
    state, verdict = combine(answer("A", 1, 0, mean=0), answer("B", 1, 0, mean=0), answer("C", 1, 0, mean=1e30))
    assert state["mean"].item() == 0
    assert verdict.left_out == {"C": "an outlier: its update moves the buffers, which most sites left as they were"}


Attack = Callable[[State, State], State]


def scaled(by: float) -> Attack:
    return lambda start, end: {
        name: start[name] + by * (end[name] - start[name]) if end[name].is_floating_point() else end[name]
        for name in end
    }


def noise(start: State, end: State) -> State:
    generator = torch.Generator().manual_seed(0)
    return {
        name: start[name] + torch.randn(tensor.shape, generator=generator) if tensor.is_floating_point() else tensor
        for name, tensor in end.items()
    }


def hostile(attack: Attack) -> Callable[[Request, Reply], Reply]:
    """The last hospital sends something else than it trained, in every round; variances stay valid."""

    def change(request: Request, reply: Reply) -> Reply:
        if request.kind != "train" or reply.site != SITES[-1]:
            return reply
        state = attack(dict(request.state), dict(reply.state))
        state |= {name: tensor.abs() for name, tensor in state.items() if name.endswith("running_var")}
        return dataclasses.replace(reply, state=state)

    return change


@pytest.mark.parametrize(("attack", "limited"), [(scaled(1000), {}), (scaled(50), {"federation__clip_updates": 1.0})])
def test_a_run_outlives_a_site_whose_updates_are_too_long(
    tmp_path: Path, attack: Attack, limited: dict[str, float]
) -> None:
    serve(tmp_path / "run", hostile(attack), rounds=2, **limited)
    run = read_run(tmp_path / "run")
    found = [record for record in records(tmp_path / "run") if record["site"] == "server"]
    if limited:
        assert all(SITES[-1] in record["shortened"] for record in found)
    else:
        assert [record["left_out"] for record in found] == [[SITES[-1]]] * 2
    assert all(0 <= score <= 100 for score in run.scores.values())


def measured_by(site: str, number: float) -> Callable[[Request, Reply], Reply]:
    """A site says that its images have this mean and deviation, or amplitude, in every channel."""

    def change(request: Request, reply: Reply) -> Reply:
        if request.kind != "measure" or reply.site != site:
            return reply
        return dataclasses.replace(
            reply, sent={name: torch.full_like(each, number) for name, each in reply.sent.items()}
        )

    return change


@pytest.mark.parametrize("method", ["harmofl", "fedrdn", "sitealign"])
@pytest.mark.parametrize("number", [-1e5, 1e5])
def test_what_no_image_gives_is_no_measurement(tmp_path: Path, method: str, number: float) -> None:
    """Every site would train with it: on images a hundred times too bright, or on none at all."""
    serve(tmp_path / "run", measured_by(SITES[1], number), method=method, rounds=1)
    found = [record for record in records(tmp_path / "run") if "error" in record]
    assert {record["site"] for record in found} == {SITES[1]}
    assert "an outlier: no image in [0, 1] gives what its harmonizer measured" in found[0]["error"]


def test_where_most_images_are_in_another_range_nobody_is_left_out() -> None:
    limited = BoundedRound(
        start_aggregation(Average(), {}, []),
        Combining({}, {}, 3),
        FederationSettings(),
        0.0,
        possible={"harmonizer": Bound({"mean": torch.tensor([0.5])}, 0.5)},
    )
    for site, mean in (("A", 3.0), ("B", 4.0), ("C", 0.5)):
        limited.add(Reply(site, sent={"harmonizer.mean": torch.tensor([mean])}, num_examples=8))
    assert not limited.finish().left_out


def test_a_site_cannot_move_statistics_that_are_fixed(tmp_path: Path) -> None:
    """FixBN's in the second half of the rounds: the median of the sites' changes is zero there."""

    def change(request: Request, reply: Reply) -> Reply:
        if request.kind != "train" or request.round == 1 or reply.site != SITES[-1]:
            return reply
        moved = {name: each + 1e6 for name, each in request.state.items() if name.endswith("running_mean")}
        unchanged = [name for name in reply.notes.get("unchanged", ()) if name not in moved]
        return dataclasses.replace(reply, state={**reply.state, **moved}, notes={"unchanged": unchanged})

    serve(tmp_path / "run", change, method="fixbn", rounds=2)
    found = [record for record in records(tmp_path / "run") if "error" in record]
    assert [record["site"] for record in found] == [SITES[-1]]
    assert "which most sites left as they were" in found[0]["error"]


def test_a_run_outlives_a_site_that_says_it_made_endless_steps(tmp_path: Path) -> None:
    """FedNova multiplies all updates with the mean number of steps."""

    def change(request: Request, reply: Reply) -> Reply:
        if request.kind != "train" or reply.site != SITES[-1]:
            return reply
        steps = 2**40
        return dataclasses.replace(
            reply, num_examples=steps * request.settings["training"]["batch_size"], num_steps=steps
        )

    serve(tmp_path / "run", change, method="fednova", rounds=3)
    losses = [record["loss"] for record in records(tmp_path / "run") if record["phase"] == "val"]
    assert max(losses) < 1
