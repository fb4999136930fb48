"""Test images of finished runs, chosen by a rule, and every run's opinion of them."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import harmofl
from folders import segmentation_folder
from harmofl.analysis.cases import (
    Gallery,
    choose_cases,
    dice_per_image,
    dice_table,
    extremes,
    guesses,
    telling_images,
)
from harmofl.errors import UsageError
from harmofl.experiments.finding import find_runs
from runs import train

TINY = {"data.size": 32, "training.rounds": 1, "federation.workers": 1}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return segmentation_folder(tmp_path_factory.mktemp("images"), size=32)


@pytest.fixture(scope="module")
def runs(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs on a folder: one model for all, and a model per site."""
    out = tmp_path_factory.mktemp("runs")
    for method in ("fedavg", "fedbn"):
        harmofl.train("segmentation", method, data=images, preset="smoke", settings=TINY, out=out / method)
    return {method: out / method for method in ("fedavg", "fedbn")}


# --- the rule ------------------------------------------------------------------------------------------------------


def test_best_median_and_worst_are_those_of_the_mean_over_methods() -> None:
    scores = np.array([[0.9, 0.2, 0.6, 0.5, 0.7], [0.7, 0.4, 0.9, 0.5, 0.2]])  # means 0.8, 0.3, 0.75, 0.5, 0.45
    assert extremes(scores, range(5)) == {"best": 0, "median": 3, "worst": 1}
    assert extremes(scores, [1, 2, 3, 4]) == {"best": 2, "median": 3, "worst": 1}


def test_of_equal_images_the_first_is_taken() -> None:
    assert extremes(np.full((2, 3), 0.5), range(3)) == {"best": 0, "median": 1, "worst": 0}
    assert extremes(np.full((2, 1), 0.5), [0]) == {"best": 0, "median": 0, "worst": 0}
    assert extremes(np.full((2, 3), 0.5), []) == {}


def test_the_dice_score_of_each_image_is_a_mean_over_foreground_classes() -> None:
    truth = torch.tensor([[[1, 1], [0, 2]], [[0, 0], [0, 0]], [[0, 1], [0, 0]]])
    found = torch.tensor([[[1, 0], [0, 2]], [[0, 0], [0, 0]], [[0, 0], [0, 1]]])
    logits = torch.nn.functional.one_hot(found, 3).movedim(-1, 1).float()
    # Class 1 of the first image: one hit, one miss: 2/3; class 2 is right. Both empty counts 1.
    assert dice_per_image(logits, truth).tolist() == pytest.approx([(2 / 3 + 1) / 2, 1, (0 + 1) / 2])


def test_a_classifier_shows_what_it_is_sure_of_and_what_not() -> None:
    gaps = torch.tensor([5.0, -4.0, 0.1, 80.0, -90.0, 2.0])  # of logits: positive for class 0
    logits = torch.stack([gaps, torch.zeros(6)], dim=1)
    truth = torch.tensor([0, 0, 1, 0, 1, 1])
    found = telling_images(logits, truth)
    assert found == {"surest and right": [4, 3], "least sure": [2, 5], "surest and wrong": [1, 5]}
    assert telling_images(logits[:1], truth[:1])["surest and wrong"] == []


# --- runs ----------------------------------------------------------------------------------------------------------


def test_scores_per_image_average_to_those_of_the_run_also_with_a_model_per_site(runs: dict[str, Path]) -> None:
    gallery = Gallery(find_runs(list(runs.values())))
    assert [run.title for run in gallery.runs] == ["FedAvg", "FedBN"]
    scores, filled = dice_table(gallery)
    assert filled.all()
    for run, row in zip(gallery.runs, scores, strict=True):
        test = json.loads((run.folder / "summary.json").read_text())["test"]
        for site in gallery.sites:
            own = [score for score, place in zip(row, gallery.places, strict=True) if place.site == site]
            assert np.mean(own) == pytest.approx(test[site], abs=1e-4)


def test_a_case_holds_every_methods_mask_and_the_score_it_was_chosen_by(runs: dict[str, Path]) -> None:
    gallery = Gallery(find_runs(list(runs.values())))
    scores, _ = dice_table(gallery)
    best, median, worst = choose_cases(gallery, scores, range(scores.shape[1]))
    assert best.mean >= median.mean >= worst.mean
    for case in (best, median, worst):
        column = gallery.places.index(case.place)
        assert list(case.scores.values()) == scores[:, column].tolist()
        for row, mask in enumerate(case.masks.values()):
            logits = torch.nn.functional.one_hot(mask, 2).movedim(-1, 0)[None].float()
            assert float(dice_per_image(logits, case.truth[None])) == pytest.approx(scores[row, column])


def test_other_images_are_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    others = segmentation_folder(tmp_path, size=32, patients=6)
    with pytest.raises(UsageError, match="site-0 took part in training, but with other images"):
        Gallery(find_runs([runs["fedavg"]], others))


def test_a_classifiers_opinions_come_with_their_probabilities(tmp_path: Path) -> None:
    train(tmp_path / "run", rounds=1)
    gallery = Gallery(find_runs([tmp_path / "run"]))
    found = guesses(gallery, gallery.runs[0])
    for guess in found["surest and right"]:
        assert guess.label == guess.truth
    for guess in found["surest and wrong"]:
        assert guess.label != guess.truth
    for guess in [guess for kind in found.values() for guess in kind]:
        assert math.isclose(sum(guess.probabilities), 1)
        assert torch.equal(gallery.image(guess.place).images[0], guess.image)
        assert int(gallery.image(guess.place).targets[0]) == guess.truth
