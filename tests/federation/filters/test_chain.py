"""Filters one after the other: there and back, with what they keep at the site."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harmofl.federation.filters import chain
from harmofl.federation.filters.chain import Filters
from harmofl.federation.filters.filter import BadUpdateError, Departure, Expected, Filter
from harmofl.federation.messages import Reply, Request
from runs import SITES, altered, equal, records, serve, tensors, train

START = {"w": torch.tensor([1.0, 2.0]), "count": torch.tensor(3)}
REQUEST = Request("run", "train", 1, START)
EXPECTED = Expected(START, {"step.a": torch.zeros(1)})


class Double(Filter):
    """Doubles the weights on their way; counts the rounds at the site, as a double of its own."""

    name = "double"

    def leave(self, reply: Reply, departure: Departure) -> Reply:
        departure.kept = {"rounds": departure.kept.get("rounds", torch.zeros(())) + 1}
        return replace(reply, state=reply.state | {"w": 2 * reply.state["w"].double()})

    def expect(self, expected: Expected, note: Any) -> Expected:
        return replace(expected, state={**expected.state, "w": expected.state["w"].double()})

    def arrive(self, reply: Reply, request: Request) -> Reply:
        return replace(reply, state=reply.state | {"w": (reply.state["w"] / 2).float()})


class PlusOne(Filter):
    name = "plus-one"

    def leave(self, reply: Reply, departure: Departure) -> Reply:
        return self.noted(replace(reply, state=reply.state | {"w": reply.state["w"] + 1}), "done")

    def expect(self, expected: Expected, note: Any) -> Expected:
        if note not in (None, "done"):
            raise BadUpdateError("its note is not ours")
        return expected

    def arrive(self, reply: Reply, request: Request) -> Reply:
        return replace(reply, state=reply.state | {"w": reply.state["w"] - 1})


BOTH = Filters((Double(), PlusOne()))


def leave(filters: Filters, kept: dict[str, torch.Tensor] | None = None) -> tuple[Reply, dict[str, torch.Tensor]]:
    reply = Reply("A", {"w": torch.tensor([3.0, 4.0]), "count": torch.tensor(5)}, {"step.a": torch.ones(1)})
    return filters.leave(reply, REQUEST, kept or {}, seed=0, folder=Path())


def test_filters_apply_in_order_and_are_taken_back_in_the_opposite_one() -> None:
    left, _ = leave(BOTH)
    assert left.state["w"].tolist() == [7.0, 9.0]  # doubled, then one more
    assert left.notes == {"plus-one": "done"}
    arrived = BOTH.arrive(left, REQUEST, EXPECTED)
    assert arrived.state["w"].tolist() == [3.0, 4.0]
    assert arrived.state["w"].dtype == torch.float32
    assert arrived.notes == {}
    assert arrived.sent == left.sent


def test_each_filter_finds_again_what_it_kept() -> None:
    _, first = leave(BOTH)
    assert {name: float(tensor) for name, tensor in first.items()} == {"filter-double.rounds": 1.0}
    _, second = leave(BOTH, first | {"step.a": torch.ones(1)})
    assert {name: float(tensor) for name, tensor in second.items()} == {"filter-double.rounds": 2.0}


def test_no_filter_is_the_reply_itself() -> None:
    reply, kept = leave(Filters())
    assert kept == {}
    assert Filters().arrive(reply, REQUEST, EXPECTED) == reply


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state": {"w": torch.zeros(2)}}, "count is missing"),
        ({"state": START}, "w has type torch.float32, not torch.float64"),  # as before the filters
        ({"state": {**START, "w": torch.zeros(3).double()}}, "w has shape"),
        ({"notes": {"plus-one": "other"}}, "its note is not ours"),
        ({"notes": {"other": 1}}, "'other', which is no filter of this run"),
        ({"sent": {"other.b": torch.ones(1)}}, "other.b is not expected"),
    ],
)
def test_what_no_filter_of_the_run_can_have_made_is_refused(changes: dict[str, Any], words: str) -> None:
    left, _ = leave(BOTH)
    with pytest.raises(BadUpdateError, match=words):
        BOTH.arrive(replace(left, **changes), REQUEST, EXPECTED)


def test_the_largest_reply_is_the_filters_own() -> None:
    largest = BOTH.expect(EXPECTED)
    assert largest.state["w"].dtype == torch.float64
    assert largest.sent is EXPECTED.sent


# --- in a run ----------------------------------------------------------------------------------------------------


class Shifted(Filter):
    """Sends every weight of the network plus one, and remembers in how many rounds."""

    name = "shifted"

    def leave(self, reply: Reply, departure: Departure) -> Reply:
        departure.kept = {"rounds": departure.kept.get("rounds", torch.zeros(())) + 1}
        return replace(reply, state={name: tensor + 1 for name, tensor in reply.state.items()})

    def arrive(self, reply: Reply, request: Request) -> Reply:
        return replace(reply, state={name: tensor - 1 for name, tensor in reply.state.items()})


@pytest.fixture
def shifted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "CHOICES", (lambda settings, method, model: Shifted(),))


def test_a_run_passes_its_updates_through_the_filters(tmp_path: Path, shifted: None) -> None:
    passed = serve(tmp_path, rounds=1).replies("train", 1)
    name = _integer(passed[SITES[0]])
    largest = max(int(reply.state[name]) for reply in passed.values())
    found = tensors(tmp_path / "checkpoint" / "round-00001.safetensors")[0]
    assert int(found[f"state.{name}"]) == largest - 1  # integers take the largest


def _integer(reply: Reply) -> str:
    return next(name for name, tensor in reply.state.items() if not tensor.is_floating_point())


def test_a_reply_that_never_counted_leaves_no_trace_in_a_filters_memory(tmp_path: Path, shifted: None) -> None:
    def lose_round_two(request: Request, reply: Reply) -> Reply:
        lost = request.kind == "train" and request.round == 2 and reply.site == SITES[1]
        return altered(reply, notes={"unknown": 1}) if lost else reply

    serve(tmp_path, lose_round_two, rounds=3)
    errors = [record for record in records(tmp_path) if "error" in record]
    assert [(record["round"], record["site"]) for record in errors] == [(2, SITES[1])]
    assert "no filter of this run" in errors[0]["error"]
    rounds = [
        float(tensors(tmp_path / "checkpoint" / "sites" / site / "round-00003.safetensors")[0]["filter-shifted.rounds"])
        for site in SITES[:2]
    ]
    assert rounds == [3.0, 2.0]


def test_without_filters_a_run_is_the_same_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path / "usual", "fixbn", method__exploration=0.5)
    monkeypatch.setattr(chain, "CHOICES", ())
    train(tmp_path / "none", "fixbn", method__exploration=0.5)
    files = sorted(path.relative_to(tmp_path / "usual") for path in (tmp_path / "usual").rglob("*.safetensors"))
    assert files
    assert all(equal(tensors(tmp_path / "usual" / f)[0], tensors(tmp_path / "none" / f)[0]) for f in files)
