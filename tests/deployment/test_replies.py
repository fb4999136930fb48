"""What the server makes of a site's bytes."""

import json
from typing import Any

import pytest
import torch

from harmofl.deployment.replies import reply_of
from harmofl.federation.messages import Reply, encode


def test_a_reply_arrives_as_it_was_sent() -> None:
    sent = Reply("A", {"w": torch.ones(2)}, num_examples=3, num_steps=1, metrics={"train": {"loss": 0.5}})
    received = reply_of("A", encode(sent), 10_000)
    assert received.metrics == sent.metrics
    assert torch.equal(received.state["w"], sent.state["w"])


def test_an_engines_words_are_the_reason_as_one_line_of_plain_text() -> None:
    assert reply_of("A", "not connected", 10).error == "not connected"
    reason = reply_of("A", "Flower's error 0: \x1b[2Jowned\n" + "x" * 1000, 10_000).error
    assert reason.isprintable()
    assert len(reason) == 500


@pytest.mark.parametrize("garbage", [b"", b"\x80\x04\x95", b"\xff" * 50, b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "])
def test_garbage_is_an_error_of_that_site(garbage: bytes) -> None:
    assert "not a message" in reply_of("A", garbage, 10_000).error


def test_a_tensor_of_no_numbers_whose_shape_has_no_end_is_an_error_of_that_site() -> None:
    endless = {"dtype": "F32", "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}
    text = json.dumps({"__metadata__": {"message": json.dumps({"site": "A"})}, "state.w": endless}).encode()
    text += b" " * (-len(text) % 8)
    assert "not a message" in reply_of("A", len(text).to_bytes(8, "little") + text, 10_000).error


def test_a_reply_that_is_too_large_is_not_read() -> None:
    assert "at most 10 are accepted" in reply_of("A", encode(Reply("A")), 10).error


def test_nobody_answers_in_anothers_name() -> None:
    assert "in the name of 'B'" in reply_of("A", encode(Reply("B")), 10_000).error


@pytest.mark.parametrize(
    "changes",
    [
        {"num_examples": "many"},
        {"num_examples": -1},
        {"num_steps": 1.5},
        {"num_steps": True},
        {"metrics": []},
        {"metrics": {"train": {"loss": "low"}}},
        {"metrics": {"a": {"b": {"c": {"d": 1}}}}},
        {"description": 3},
        {"notes": ["unchanged"]},
        {"error": ["x"]},
    ],
)
def test_a_field_of_another_type_is_an_error(changes: dict[str, Any]) -> None:
    assert "another type" in reply_of("A", encode(Reply("A", **changes)), 10_000).error


def test_json_of_the_message_is_not_executed_or_extended() -> None:
    plain = encode(Reply("A"))
    text = json.dumps({"site": "A", "unknown": 1}).replace('"', '\\"')
    start, end = plain.index(b'{\\"site'), plain.rindex(b'}"}') + 1
    forged = plain[8:start] + text.encode() + plain[end:]
    assert "not a message" in reply_of("A", len(forged).to_bytes(8, "little") + forged, 10_000).error
