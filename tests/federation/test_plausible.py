"""Numbers that a site cannot have found are a reason to leave its answer out."""

from dataclasses import replace

import pytest
import torch

from harmofl import registry
from harmofl.data.images import split_into_batches
from harmofl.federation.messages import Reply
from harmofl.federation.plausible import Plausible
from harmofl.settings import resolve

SETTINGS, _ = resolve("nuclei", "fedavg", "smoke", overrides={"training.batch_size": 4, "training.local_epochs": 2})
PLAUSIBLE = Plausible.of(registry.tasks.find("nuclei"), SETTINGS)
SCORES = {"loss": 0.3, "metric": 0.8, "precision": 1.0, "recall": 0.0, "hd95": 123.0}


def problem(**values: object) -> str:
    return PLAUSIBLE.find_problem(Reply("A", **values))  # type: ignore[arg-type]


def test_numbers_as_sites_find_them_have_no_problem() -> None:
    for number, steps in ((4, 2), (5, 2), (8, 4), (10, 6), (3, 2)):  # the fifth image joins the first four
        assert problem(num_examples=number, num_steps=steps) == ""
    assert problem(metrics={"train": {"loss": 1.0, "drift": 0.1, "seconds": 3.0}, "test": {"A": SCORES}}) == ""


def test_batches_of_one_image_make_one_step_less_than_there_are_images() -> None:
    training = SETTINGS.training.model_copy(update={"batch_size": 1})
    plausible = replace(PLAUSIBLE, training=training)
    for number in (1, 2, 10):
        steps = 2 * len(split_into_batches(torch.arange(number), 1))
        assert plausible.find_problem(Reply("A", num_examples=number, num_steps=steps)) == ""
    assert plausible.find_problem(Reply("A", num_examples=10, num_steps=2 * 8))


@pytest.mark.parametrize("steps", [1, 5, 2**52])
def test_steps_that_do_not_fit_the_images_are_a_problem(steps: int) -> None:
    assert f"num_steps = {steps}: 8 images make 4" in problem(num_examples=8, num_steps=steps)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("metric", 1.5, "its val A metric is 1.5, not from 0 to 1"),
        ("metric", 1e9, "not from 0 to 1"),
        ("precision", -0.1, "precision"),
        ("hd95", -1.0, "hd95"),
        ("hd95", 1e308, "hd95 is 1e+308"),
        ("loss", 1e308, "loss is 1e+308"),
        ("kappa", 0.5, "'kappa' is no score that is known"),
    ],
)
def test_scores_out_of_range_or_of_unknown_names_are_a_problem(name: str, value: float, words: str) -> None:
    assert words in problem(metrics={"val": {"A": SCORES | {name: value}}})


@pytest.mark.parametrize("name", ["seconds", "drift", "epsilon"])
def test_no_time_distance_or_loss_of_privacy_is_negative(name: str) -> None:
    assert f"its train {name} is -0.001" in problem(metrics={"train": {"loss": -1.0, name: -1e-3}})


def test_a_million_names_are_a_problem() -> None:
    many = {f"dice_{number}": 0.5 for number in range(1000)}
    assert "1000 val A scores: at most 64" in problem(metrics={"val": {"A": many}})
    assert "'more' is no number" in problem(metrics={"train": {"loss": 1.0, "more": 1.0}})
