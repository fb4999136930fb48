"""Changes in fewer bytes: by hand on tiny tensors, and in whole runs."""

from pathlib import Path

import pytest
import torch

from harmofl.federation.filters.chain import Filters
from harmofl.federation.filters.changes import OnlyChanges
from harmofl.federation.filters.compression import Compression, EightBits, HalfPrecision
from harmofl.federation.filters.filter import BadUpdateError, Expected
from harmofl.federation.messages import Reply, Request
from harmofl.states import State, num_bytes
from runs import SITES, altered, differences, records, serve, stop_after_round, tensors, train

NAMES = frozenset({"w", "v", "scalar"})
START = {
    "w": torch.zeros(2, 2),
    "v": torch.tensor([10.0, 10.0]),
    "scalar": torch.tensor(1.0),
    "running_var": torch.tensor([0.5]),
    "count": torch.tensor(4),
}
REQUEST = Request("run", "train", 1, START)


def there_and_back(each: Compression, state: State, kept: State | None = None) -> tuple[Reply, Reply, State]:
    filters = Filters((OnlyChanges(), each))
    left, keeps = filters.leave(Reply("A", START | state), REQUEST, kept or {}, seed=0, folder=Path())
    return left, filters.arrive(left, REQUEST, Expected(START, {})), keeps


def test_eight_bits_by_hand() -> None:
    """A scale for each row: 1.27/127 and 2.54/127; a single one for a vector."""
    trained = {
        "w": torch.tensor([[1.27, -0.104], [2.54, 0.0]]),
        "v": torch.tensor([10.0, 11.27]),
        "count": torch.tensor(5),
    }
    left, arrived, kept = there_and_back(EightBits(NAMES), trained)
    assert left.state["w"].dtype == torch.int8
    assert left.state["w"].tolist() == [[127, -10], [127, 0]]
    assert left.state["v"].tolist() == [0, 127]
    torch.testing.assert_close(left.state["int8:scales"], torch.tensor([0.01, 0.01, 0.02]))  # v, then w's two rows
    torch.testing.assert_close(arrived.state["w"], torch.tensor([[1.27, -0.1], [2.54, 0.0]]))
    assert arrived.state["count"] == 5
    torch.testing.assert_close(kept["filter-int8.w"], torch.tensor([[0.0, -0.004], [0.0, 0.0]]), rtol=1e-4, atol=1e-6)


def test_what_eight_bits_lose_in_a_round_comes_with_the_next() -> None:
    generator = torch.Generator().manual_seed(0)
    changes = torch.randn(20, 2, 2, generator=generator) * torch.tensor([1.0, 0.003])
    arrived_sum, kept = torch.zeros(2, 2).double(), {}
    for change in changes:
        _, arrived, kept = there_and_back(EightBits(NAMES), {"w": change}, kept)
        arrived_sum += arrived.state["w"].double()
    wanted = changes.double().sum(dim=0)
    torch.testing.assert_close(arrived_sum + kept["filter-int8.w"].double(), wanted, rtol=0, atol=1e-6)
    alone = sum(
        (there_and_back(EightBits(NAMES), {"w": change})[1].state["w"] for change in changes), torch.zeros(2, 2)
    )
    assert (arrived_sum - wanted).abs().max() < (alone - wanted).abs().max()


def test_half_precision_by_hand() -> None:
    """1 is brought to 2^14 and 1 + 2^-11 lies between two half-precision numbers: to the even one, 1."""
    left, arrived, kept = there_and_back(HalfPrecision(NAMES), {"w": torch.tensor([[1.0, 1 + 2**-11], [-0.5, 2**-20]])})
    assert left.state["float16:scales"].tolist() == [2.0**-14]
    assert left.state["w"].tolist() == [[2.0**14, 2.0**14], [-(2.0**13), 2.0**-6]]
    assert arrived.state["w"].tolist() == [[1.0, 1.0], [-0.5, 2.0**-20]]
    assert kept == {}


@pytest.mark.parametrize("size", [3e38, 1e6, 1e-6, 1e-30])
def test_half_precision_neither_overflows_nor_vanishes(size: float) -> None:
    trained = torch.tensor([[1.0, -0.7], [0.2, 0.001]]) * size
    _, arrived, _ = there_and_back(HalfPrecision(NAMES), {"w": trained})
    torch.testing.assert_close(arrived.state["w"], trained, rtol=2**-11, atol=0)


@pytest.mark.parametrize("kind", [HalfPrecision, EightBits])
def test_statistics_and_integers_stay_exact_and_scalars_pass(kind: type[Compression]) -> None:
    trained = {"running_var": torch.tensor([0.123456789]), "scalar": torch.tensor(1.5), "count": torch.tensor(9)}
    left, arrived, _ = there_and_back(kind(NAMES), trained)
    assert torch.equal(left.state["running_var"], trained["running_var"])
    assert torch.equal(arrived.state["running_var"], trained["running_var"])
    assert arrived.state["count"] == 9
    torch.testing.assert_close(arrived.state["scalar"], trained["scalar"])
    assert left.notes == {"unchanged": ["w", "v"]}


@pytest.mark.parametrize("kind", [HalfPrecision, EightBits])
def test_a_reply_of_another_form_is_refused(kind: type[Compression]) -> None:
    each = kind(NAMES)
    filters = Filters((each,))
    left, _ = filters.leave(Reply("A", START | {"w": torch.ones(2, 2)}), REQUEST, {}, seed=0, folder=Path())
    scales = f"{each.name}:scales"
    for state, words in (
        (left.state | {"w": torch.ones(2, 2)}, "w has type"),
        ({name: t for name, t in left.state.items() if name != scales}, "scales is missing"),
        (left.state | {scales: torch.zeros(99)}, "scales has shape"),
        (left.state | {scales: left.state[scales] * torch.inf}, "scales holds NaN"),
    ):
        with pytest.raises(BadUpdateError, match=words):
            filters.arrive(altered(left, state=state), REQUEST, Expected(START, {}))


# --- in a run ----------------------------------------------------------------------------------------------------


def sizes(out: Path) -> set[int]:
    return {record["bytes_up"] for record in records(out) if record["phase"] == "train" and "bytes_up" in record}


@pytest.mark.parametrize("transport", ["float16", "int8"])
def test_records_show_what_travelled_and_the_run_stays_near(tmp_path: Path, transport: str) -> None:
    train(tmp_path / "float32", rounds=2)
    passed = serve(tmp_path / transport, rounds=2, federation__transport=transport).replies("train", 2)
    assert sizes(tmp_path / transport) == {num_bytes(reply.state) for reply in passed.values()}
    exact, found = (
        tensors(tmp_path / each / "checkpoint" / "round-00001.safetensors")[0] for each in ("float32", transport)
    )
    weights = [name for name in exact if name.endswith("weight") and exact[name].ndim > 1]
    part = {"float16": 0.5, "int8": 0.25}[transport]
    compressed = sum(exact[name].nbytes for name in weights)
    (before,), (after,) = sizes(tmp_path / "float32"), sizes(tmp_path / transport)
    assert before - after > 0.95 * (1 - part) * compressed
    error = max((exact[name] - found[name]).abs().max() for name in weights)
    assert 0 < error < 1e-3


def test_a_run_in_eight_bits_is_the_same_in_workers_and_after_a_resume(tmp_path: Path) -> None:
    more = {"federation__transport": "int8", "rounds": 3}
    train(tmp_path / "whole", **more)
    train(tmp_path / "workers", federation__workers=2, **{name: more[name] for name in more})
    assert differences(tmp_path / "whole", tmp_path / "workers") == []
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "resumed", watch=stop_after_round(2), **more)
    train(tmp_path / "resumed", resume=True, **more)
    assert differences(tmp_path / "whole", tmp_path / "resumed") == []
    kept = tensors(tmp_path / "whole" / "checkpoint" / "sites" / SITES[0] / "round-00003.safetensors")[0]
    assert any(name.startswith("filter-int8.") for name in kept)


def test_what_pieces_send_stays_exact(tmp_path: Path) -> None:
    exact = serve(tmp_path / "float32", method="scaffold", rounds=1).replies("train", 1)
    short = serve(tmp_path / "int8", method="scaffold", rounds=1, federation__transport="int8").replies("train", 1)
    for site in SITES:
        assert all(torch.equal(exact[site].sent[name], short[site].sent[name]) for name in exact[site].sent)
