"""Only changed entries travel, and the server knows which ones stay."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harmofl.federation.filters.chain import Filters
from harmofl.federation.filters.changes import OnlyChanges, same_bits
from harmofl.federation.filters.filter import BadUpdateError, Expected
from harmofl.federation.messages import Reply, Request, decode_reply, encode
from runs import Altered, records, serve, train

START = {"a": torch.tensor([0.0, 1.0]), "b": torch.tensor([2.0]), "c": torch.tensor(7)}
REQUEST = Request("run", "train", 3, START)
FILTERS = Filters((OnlyChanges(),))


def leave(**state: torch.Tensor) -> Reply:
    return FILTERS.leave(Reply("A", START | state), REQUEST, {}, seed=0, folder=Path())[0]


def arrive(reply: Reply) -> Reply:
    return FILTERS.arrive(reply, REQUEST, Expected(START, {}))


def test_entries_that_are_as_received_stay_and_are_filled_in() -> None:
    left = decode_reply(encode(leave(b=torch.tensor([2.5]))))
    assert left.state.keys() == {"b"}
    assert left.notes == {"unchanged": ["a", "c"]}
    arrived = arrive(left)
    assert {name: tensor.tolist() for name, tensor in arrived.state.items()} == {"a": [0.0, 1.0], "b": [2.5], "c": 7}


def test_where_all_has_changed_the_reply_is_the_same() -> None:
    reply = Reply("A", {"a": torch.ones(2), "b": torch.ones(1), "c": torch.tensor(8)})
    assert FILTERS.leave(reply, REQUEST, {}, 0, Path()) == (reply, {})
    assert arrive(reply).state == reply.state


def test_minus_zero_is_a_change() -> None:
    assert "a" in leave(a=torch.tensor([-0.0, 1.0]), b=torch.ones(1)).state
    assert not same_bits(torch.zeros(1), torch.zeros(1, dtype=torch.int32))


def test_an_entry_that_is_merely_missing_is_still_an_error() -> None:
    left = leave(b=torch.tensor([2.5]))
    with pytest.raises(BadUpdateError, match=r"entry (a|c) is missing"):
        arrive(replace(left, notes={}))
    with pytest.raises(BadUpdateError, match="entry a is missing"):
        arrive(replace(left, notes={"unchanged": ["c"]}))
    with pytest.raises(BadUpdateError, match="entry b is not expected"):
        arrive(replace(left, notes={"unchanged": ["a", "b", "c"]}))


@pytest.mark.parametrize("note", [["a", "d"], ["a", "a"], [], "a", {"a": 1}, [1], 0, [["a"]]])
def test_a_note_that_names_anything_else_is_refused(note: object) -> None:
    with pytest.raises(BadUpdateError, match="not entries that it received"):
        arrive(replace(leave(), state={}, notes={"unchanged": note}))


def test_fixed_statistics_do_not_travel_and_the_records_show_it(tmp_path: Path) -> None:
    """FixBN's statistics stop changing after half of its rounds."""
    train(tmp_path, "fixbn", method__exploration=0.5, rounds=2)
    sizes = {number: _bytes(tmp_path, number) for number in (1, 2)}
    assert sizes[1]["bytes_up"] == sizes[1]["bytes_down"] == sizes[2]["bytes_down"]
    request, reply = _last(serve(tmp_path / "again", method="fixbn", method__exploration=0.5, rounds=2))
    names = reply.notes["unchanged"]
    assert any(name.endswith("running_var") for name in names)
    assert sizes[2]["bytes_up"] == sizes[1]["bytes_up"] - sum(request.state[name].nbytes for name in names)


def _last(transport: Altered) -> tuple[Request, Reply]:
    site = "hospital-0"
    return transport.requests("train", 2)[site], transport.replies("train", 2)[site]


def _bytes(out: Path, number: int) -> dict[str, int]:
    found = [r for r in records(out) if r["round"] == number and r["site"] == "hospital-0" and r["phase"] == "train"]
    return {name: found[0][name] for name in ("bytes_up", "bytes_down")}
