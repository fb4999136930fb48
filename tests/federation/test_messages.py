import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from harmofl.federation.messages import TENSOR_FIELDS, Reply, Request, decode_reply, decode_request, encode

names = st.text(min_size=1, max_size=12)
shapes = st.lists(st.integers(0, 3), max_size=3)
dtypes = st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16])
tensors = st.builds(lambda shape, dtype: torch.arange(math.prod(shape)).reshape(shape).to(dtype), shapes, dtypes)
states = st.dictionaries(names, tensors, max_size=3)
numbers = st.floats(allow_nan=False)
requests = st.builds(
    Request,
    run=st.text(max_size=8),
    kind=st.sampled_from(["measure", "train", "evaluate"]),
    round=st.integers(0, 10**6),
    state=states,
    combined=states,
    settings=st.dictionaries(names, st.one_of(numbers, st.text(), st.none(), st.booleans()), max_size=3),
    keep=st.lists(st.integers(0, 100), max_size=4).map(tuple),
    score=st.booleans(),
    thorough=st.booleans(),
)
replies = st.builds(
    Reply,
    site=names,
    state=states,
    sent=states,
    num_examples=st.integers(0, 10**9),
    num_steps=st.integers(0, 10**9),
    metrics=st.dictionaries(names, st.dictionaries(names, numbers, max_size=2), max_size=2),
    error=st.text(max_size=20),
)


def assert_same(sent: Request | Reply, arrived: Request | Reply) -> None:
    tensors = [name for name in TENSOR_FIELDS if hasattr(sent, name)]
    empty = {name: {} for name in tensors}
    assert replace(sent, **empty) == replace(arrived, **empty)  # type: ignore[arg-type]
    for before, after in ((getattr(sent, name), getattr(arrived, name)) for name in tensors):
        assert before.keys() == after.keys()
        for name, tensor in before.items():
            assert tensor.dtype == after[name].dtype
            assert torch.equal(tensor, after[name])


@given(requests)
def test_a_request_arrives_as_it_was_sent(request: Request) -> None:
    assert_same(request, decode_request(encode(request)))


@given(replies)
def test_a_reply_arrives_as_it_was_sent(reply: Reply) -> None:
    assert_same(reply, decode_reply(encode(reply)))


@given(st.binary(max_size=200))
def test_garbage_is_no_message(data: bytes) -> None:
    for decode in (decode_request, decode_reply):
        with pytest.raises(ValueError, match="not a message"):
            decode(data)


@pytest.mark.parametrize("size", [0, 4, 8, 50, -1])
def test_half_a_message_is_none(size: int) -> None:
    data = encode(Reply("A", state={"x": torch.ones(3)}))
    with pytest.raises(ValueError, match="not a message"):
        decode_reply(data[:size])


@pytest.mark.parametrize("message", ["[]", "3", "{}", '{"site": "A", "secret": 1}', '{"run": "r"}'])
def test_tensors_with_the_wrong_words_are_no_message(message: str) -> None:
    data = save({"state.x": torch.ones(1)}, metadata={"message": message})
    for decode in (decode_request, decode_reply):
        with pytest.raises(ValueError, match="not a message"):
            decode(data)
