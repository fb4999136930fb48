import pytest
import torch

from harmofl.federation.checks import find_problem
from harmofl.federation.messages import Reply
from harmofl.federation.transports import sort_replies

STATE = {"weight": torch.ones(2, 3), "count": torch.tensor(4)}
ANNOUNCED = {"harmonizer.amplitude": torch.ones(3, 1, 1), "step.a": torch.ones(2), "step.b": torch.ones(2)}
TRAIN = {"train": {"loss": 0.5}}


def reply(**changes: object) -> Reply:
    values = {"state": dict(STATE), "num_examples": 5, "num_steps": 2, "metrics": TRAIN}
    return Reply("A", **(values | changes))  # type: ignore[arg-type]


def problem(answer: Reply, kind: str = "train") -> str:
    return find_problem(answer, kind, STATE, ANNOUNCED)  # type: ignore[arg-type]


def test_a_good_reply_has_no_problem() -> None:
    assert problem(reply()) == ""
    assert problem(reply(sent={"harmonizer.amplitude": torch.zeros(3, 1, 1)})) == ""


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"weight": torch.ones(2, 3)}, "count is missing"),
        (STATE | {"more": torch.ones(1)}, "more is not expected"),
        (STATE | {"weight": torch.ones(3, 2)}, "weight has shape (3, 2), not (2, 3)"),
        (STATE | {"weight": torch.ones(2, 3).double()}, "weight has type torch.float64, not torch.float32"),
        (STATE | {"weight": torch.full((2, 3), torch.nan)}, "weight holds NaN"),
        (STATE | {"weight": torch.tensor([[1, 1, 1], [1, 1, -torch.inf]])}, "weight holds NaN or infinity"),
    ],
)
def test_a_state_that_is_not_as_expected_is_a_problem(state: dict[str, torch.Tensor], words: str) -> None:
    assert words in problem(reply(state=state))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sent": {"harmonizer.amplitude": torch.ones(3, 2, 2)}}, "amplitude has shape"),
        ({"sent": {"harmonizer.amplitude": torch.full((3, 1, 1), torch.inf)}}, "amplitude holds"),
        ({"sent": {"step.a": torch.ones(2)}}, "step.b is missing"),  # a piece sends all that it announced, or nothing
        ({"sent": {"other.a": torch.ones(2)}}, "other.a is not expected"),
        ({"error": "out of memory"}, "out of memory"),
        ({"metrics": {}}, "did not train"),
        ({"num_steps": 0}, "did not train"),
        ({"num_examples": 0}, "did not train"),
        ({"metrics": {"train": {"loss": float("nan")}}}, "train loss is nan"),
        ({"metrics": TRAIN | {"val": {"A": {"metric": float("inf")}}}}, "val A metric is inf"),
    ],
)
def test_anything_else_that_cannot_be_used_is_a_problem_too(changes: dict[str, object], words: str) -> None:
    assert words in problem(reply(**changes))


def test_no_counter_of_batches_runs_away() -> None:
    start = {"norm.num_batches_tracked": torch.tensor(40)}

    def with_counter(counted: int) -> str:
        return find_problem(reply(state={"norm.num_batches_tracked": torch.tensor(counted)}), "train", start, {})

    assert not with_counter(42)
    assert "has counted 9223372036854775808 batches in 2 steps" in with_counter(2**63 - 1)
    assert "batches in 2 steps" in with_counter(-(2**63))


def test_only_training_needs_training() -> None:
    evaluated = Reply("A", metrics={"test": {"A": {"metric": 0.5}}})
    assert find_problem(evaluated, "evaluate", {}, {}) == ""


def test_replies_come_in_the_order_of_names_and_each_as_soon_as_possible() -> None:
    seen: list[str] = []

    def arriving() -> object:
        for site in ("C", "A", "stranger", "B", "A"):
            seen.append(f"+{site}")
            yield Reply(site)

    ordered = sort_replies(arriving(), ["A", "B", "C", "D"])  # type: ignore[arg-type]
    for answer in ordered:
        seen.append(answer.site)
    assert seen == ["+C", "+A", "A", "+stranger", "+B", "B", "C", "+A", "D"]


def test_a_site_that_never_answers_has_an_error() -> None:
    replies = list(sort_replies([Reply("B", num_steps=3)], ["A", "B"]))
    assert [(answer.site, answer.error, answer.num_steps) for answer in replies] == [
        ("A", "no answer", 0),
        ("B", "", 3),
    ]
