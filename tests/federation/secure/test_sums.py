"""What sites add up is what the server's own sums would have been."""

import pytest
import torch

from harmofl.federation.messages import Request
from harmofl.federation.secure.sums import Layout, model_digest, site_weights, summands
from harmofl.methods.aggregation import StreamedSums
from harmofl.methods.server_rules import Average, NormalizedAverage, ServerRule
from harmofl.settings.schema import FederationSettings
from harmofl.states import State

START = {"w": torch.tensor([1.0, 2.0]), "mean": torch.tensor([0.5]), "var": torch.tensor([1.0]), "n": torch.tensor(3)}
SITES = {
    "A": ({"w": [2.0, 2.0], "mean": [1.0], "var": [0.5]}, 1.0, 2),
    "B": ({"w": [0.0, 4.0], "mean": [3.0], "var": [1.5]}, 2.0, 8),
    "C": ({"w": [5.0, 1.0], "mean": [2.0], "var": [2.5]}, 0.5, 4),
}
"""State, weight and steps."""


def state_of(site: str) -> State:
    values, _, steps = SITES[site]
    return {name: torch.tensor(value) for name, value in values.items()} | {"n": torch.tensor(3 + steps)}


@pytest.mark.parametrize("rule", [Average(), NormalizedAverage()], ids=["average", "FedNova"])
@pytest.mark.parametrize("pooled", [{}, {"var": "mean"}], ids=["mean variances", "pooled variances"])
def test_sums_of_sites_give_the_rule_what_the_updates_would_have(rule: ServerRule, pooled: dict[str, str]) -> None:
    def start() -> StreamedSums:
        return StreamedSums(rule, START, {"w"}, pooled)

    plain, secure, total = start(), start(), torch.zeros(())
    layout = Layout(START, {})
    for site, (_, weight, steps) in SITES.items():
        plain.add(state_of(site), weight, steps, 0.9)
        total = total + layout.pack(summands(start(), state_of(site), weight, steps, 0.9), {})
        secure.count_site(weight, steps, 0.9)
    sums, sent, counts = layout.unpack(total)
    assert (sent, counts) == ({}, {})
    secure.add_sums(sums, len(SITES))
    expected, found = plain.finish({}, 1.0)[0], secure.finish({}, 1.0)[0]
    for name in ("w", "mean", "var"):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-6, atol=0)
    assert found["n"] == round(3 + (2 + 8 + 4) / 3)  # the rounded mean; the largest is nobody's to know
    assert found["n"].dtype == torch.int64


def test_pieces_that_sent_nothing_count_for_nothing() -> None:
    announced = {"step.c": torch.zeros(2), "harmonizer.a": torch.zeros(1, 1)}
    layout = Layout({}, announced)
    first = layout.pack({}, {"step.c": torch.tensor([1.0, 2.0]), "harmonizer.a": torch.tensor([[5.0]])})
    second = layout.pack({}, {"step.c": torch.tensor([3.0, 5.0])})
    assert layout.size == len(first) == 2 + 1 + 2  # and one count for each piece
    state, sent, counts = layout.unpack(first + second)
    assert state == {}
    assert counts == {"step": 2, "harmonizer": 1}
    assert sent["step.c"].tolist() == [4.0, 7.0]
    assert sent["harmonizer.a"].tolist() == [[5.0]]


def test_weights_are_relative_to_their_mean_and_capped_as_in_a_plain_run() -> None:
    counts = {"A": 10, "B": 20, "C": 1000}
    assert site_weights(counts, FederationSettings()) == {"A": 1.0, "B": 1.0, "C": 1.0}
    capped = site_weights(counts, FederationSettings(weights="examples"))
    assert capped == {"A": 0.5, "B": 1.0, "C": 1.5}  # C counts for no more than A and B together
    free = site_weights(counts, FederationSettings(weights="examples", largest_share=1.0))
    assert free["C"] / free["A"] == pytest.approx(100)


def test_a_model_has_the_same_digest_wherever_it_is_received_and_another_one_if_anything_differs() -> None:
    state = {"w": torch.tensor([1.0])}
    request = Request("run", "train", 1, state, {"step.c": torch.tensor([2.0])}, {"seed": 0}, keep=(0,), counted=0)
    own_part = Request("run", "train", 1, {**state, "own": torch.ones(1)}, request.combined, {"seed": 0}, counted=1)
    assert model_digest(request, ["w"]) == model_digest(own_part, ["w"])
    others = [
        Request("run", "train", 1, {"w": torch.tensor([1.5])}, request.combined, {"seed": 0}),
        Request("run", "train", 1, state, {"step.c": torch.tensor([2.5])}, {"seed": 0}),
        Request("run", "train", 1, state, request.combined, {"seed": 1}),
    ]
    assert len({model_digest(each, ["w"]) for each in [request, *others]}) == 4
