import pytest
import torch
from monai.metrics import get_confusion_matrix
from torch import Tensor

from harmofl.data.images import LabelledImages
from harmofl.tasks.scorers import ClassificationScorer, Scorer, Scores, SegmentationScorer, count_pixels, dice


def labelled(targets: Tensor, groups: list[int] | None = None) -> LabelledImages:
    images = torch.zeros(len(targets), 1, *targets.shape[1:])
    return LabelledImages(images, targets, torch.tensor(groups or list(range(len(targets)))))


def scored(scorer: Scorer, logits: list[Tensor], truth: LabelledImages) -> Scores:
    """The scores of logits that come in several batches."""
    start = 0
    for batch in logits:
        scorer.add(batch, truth.at(torch.arange(start, start + len(batch))))
        start += len(batch)
    return scorer.scores()


def classification_scores(
    logits: list[Tensor], truth: LabelledImages, thorough: bool = False, num_classes: int = 2
) -> Scores:
    return scored(ClassificationScorer(list(map(str, range(num_classes))), thorough), logits, truth)


def segmentation_scores(
    logits: list[Tensor], truth: LabelledImages, thorough: bool = False, num_classes: int = 2
) -> Scores:
    return scored(SegmentationScorer(list(map(str, range(num_classes))), thorough), logits, truth)


def margins(*values: float) -> Tensor:
    """Logits whose second class leads by these margins."""
    return torch.tensor([[0.0, value] for value in values])


def masks(*images: list[list[int]]) -> Tensor:
    return torch.tensor(images)


def predicting(classes: Tensor) -> Tensor:
    """Logits (N, 2, H, W) whose largest are these classes."""
    return torch.stack([1.0 - classes, classes.float()], dim=1)


EMPTY = [[0, 0], [0, 0]]


def test_accuracy_sensitivity_specificity_and_auc_by_hand() -> None:
    truth = labelled(torch.tensor([1, 1, 1, 0, 0]))
    scores = classification_scores([margins(2, 1, -1), margins(-2, 0.5)], truth, thorough=True)
    # Right: the first two positives and the first negative. Of six pairs one is in the wrong order: -1 < 0.5.
    assert scores["accuracy"] == pytest.approx(3 / 5)
    assert scores["sensitivity"] == pytest.approx(2 / 3)
    assert scores["specificity"] == pytest.approx(1 / 2)
    assert scores["auc"] == pytest.approx(5 / 6)


def test_pairs_that_tie_count_half_in_the_auc() -> None:
    scores = classification_scores([margins(1, 1, 2)], labelled(torch.tensor([1, 0, 1])), thorough=False)
    assert scores["auc"] == pytest.approx(1.5 / 2)


def test_confident_predictions_keep_their_order_in_the_auc() -> None:
    scores = classification_scores([margins(60, 40, 50, 30)], labelled(torch.tensor([1, 0, 1, 0])), thorough=False)
    assert scores["auc"] == 1


def test_images_of_one_class_have_an_accuracy_only() -> None:
    scores = classification_scores([margins(1, -1)], labelled(torch.tensor([1, 1])), thorough=True)
    assert scores == {"accuracy": 0.5}


def test_dice_is_one_if_both_are_empty_and_zero_if_one_is() -> None:
    hits, false_alarms, misses = (torch.tensor(counts) for counts in ([0.0, 0, 0, 3], [0.0, 4, 0, 1], [0.0, 0, 4, 2]))
    assert dice(hits, false_alarms, misses).tolist() == pytest.approx([1, 0, 0, 6 / 9])


@pytest.mark.parametrize(
    ("predicted", "truth", "expected"),
    [
        (EMPTY, EMPTY, 1),
        ([[1, 0], [0, 0]], EMPTY, 0),
        (EMPTY, [[1, 0], [0, 0]], 0),
        ([[1, 1], [0, 0]], [[1, 1], [0, 0]], 1),
        ([[1, 1], [0, 0]], [[1, 0], [1, 0]], 2 / 4),
        ([[1, 1], [1, 1]], [[1, 0], [0, 0]], 2 / 5),
    ],
)
def test_dice_of_one_image_by_hand(predicted: list[list[int]], truth: list[list[int]], expected: float) -> None:
    scores = segmentation_scores([predicting(masks(predicted))], labelled(masks(truth)), thorough=False)
    assert scores["dice"] == pytest.approx(expected)


def test_dice_is_the_mean_over_images_and_per_case_over_the_cases_volumes() -> None:
    truth = masks([[1, 1], [0, 0]], EMPTY, [[1, 0], [0, 0]])
    predicted = masks([[1, 0], [0, 0]], [[1, 0], [0, 0]], [[1, 0], [0, 0]])
    scores = segmentation_scores(
        [predicting(predicted[:2]), predicting(predicted[2:])], labelled(truth, groups=[4, 4, 9]), thorough=False
    )
    assert scores["dice"] == pytest.approx((2 / 3 + 0 + 1) / 3)
    # Case 4: one hit, one false alarm, one miss: 2/4. Case 9: perfect.
    assert scores["dice_per_case"] == pytest.approx((1 / 2 + 1) / 2)
    assert scores["precision"] == pytest.approx(2 / 3)
    assert scores["recall"] == pytest.approx(2 / 3)
    assert "hd95" not in scores


def test_dice_with_background_is_the_mean_of_both_classes_per_image() -> None:
    truth, predicted = masks([[1, 1], [0, 0]], EMPTY), masks([[1, 0], [0, 0]], [[1, 0], [0, 0]])
    scores = segmentation_scores([predicting(predicted)], labelled(truth))
    # First image: foreground 2·1/(1 + 2), background 2·2/(3 + 2). Second: foreground 0, background 2·3/(3 + 4).
    assert scores["dice_with_background"] == pytest.approx((2 / 3 + 4 / 5 + 0 + 6 / 7) / 4)


def test_nothing_found_where_there_is_nothing_has_perfect_scores() -> None:
    scores = segmentation_scores([predicting(masks(EMPTY, EMPTY))], labelled(masks(EMPTY, EMPTY)), thorough=True)
    assert scores == {"dice": 1, "precision": 1, "recall": 1, "dice_per_case": 1, "dice_with_background": 1}


def test_thorough_scores_add_the_distance_of_the_outlines_over_images_that_have_both() -> None:
    truth, predicted = torch.zeros(3, 9, 9, dtype=torch.int64), torch.zeros(3, 9, 9, dtype=torch.int64)
    truth[0, 2, 2] = predicted[0, 2, 5] = 1  # three pixels apart
    truth[1, 1, 1] = predicted[1, 4, 5] = 1  # five pixels apart, 3 down and 4 to the right
    truth[2, 1, 1] = 1  # nothing found: does not count
    scores = segmentation_scores([predicting(predicted)], labelled(truth), thorough=True)
    assert scores["hd95"] == pytest.approx(4)
    assert scores["distances_missing"] == 1


def test_a_distance_is_missing_where_truth_or_prediction_is_empty_and_not_where_both_are() -> None:
    truth, predicted = masks([[1, 0], [0, 0]], EMPTY, EMPTY), masks(EMPTY, [[1, 0], [0, 0]], EMPTY)
    scores = segmentation_scores([predicting(predicted)], labelled(truth), thorough=True)
    assert scores["distances_missing"] == 2
    assert "hd95" not in scores


def test_pixels_are_counted_as_monai_counts_them() -> None:
    generator = torch.Generator().manual_seed(0)
    found, truth = (torch.randint(0, 4, (3, 5, 6, 7), generator=generator) for _ in range(2))
    each = [torch.nn.functional.one_hot(classes, 4).movedim(-1, 1) for classes in (found, truth)]
    assert torch.equal(count_pixels(found, truth, 4), get_confusion_matrix(*each).double())


def test_scoring_a_volume_makes_nothing_as_large_as_its_logits() -> None:
    logits = torch.zeros(1, 8, 40, 64, 64)
    logits[:, 1, 10:20, 10:20, 10:20] = 1
    batch = labelled(logits.argmax(dim=1))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        SegmentationScorer([str(number) for number in range(8)], thorough=False).add(logits, batch)
    largest = max(event.self_cpu_memory_usage for event in profile.events())
    assert 0 < largest <= logits[0, 0].numel() * 8  # one number for each voxel, not for each voxel and class
