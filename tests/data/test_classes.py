import pytest

from harmofl.data.classes import Classes
from harmofl.errors import UsageError


def test_labels_are_sorted_numbers_as_numbers() -> None:
    assert Classes.of_labels({"10", "9", "1"}, None).names == ("1", "9", "10")
    assert Classes.of_labels({"tumor", "normal"}, None).names == ("normal", "tumor")
    assert Classes.of_labels({"tumor", "normal"}, ["tumor", "normal"]).index("normal") == 1
    assert Classes.of_labels({"a", "b"}, None).index("c") == -1


def test_one_class_alone_is_refused() -> None:
    with pytest.raises(UsageError, match="two classes or more; the data has only normal"):
        Classes.of_labels({"normal"}, None)


@pytest.mark.parametrize("masks", [[{0, 1}], [{0, 255}, {0}], [{255}], [{0, 1}, {0, 255}]])
def test_black_and_white_masks_have_two_classes_however_white_is_written(masks: list[set[int]]) -> None:
    classes = Classes.of_masks(masks, None, binary=False)
    assert len(classes.names) == 2
    for value in set().union(*masks):
        assert classes.table()[value] == (value > 0)


def test_other_values_are_classes_of_their_own() -> None:
    classes = Classes.of_masks([{0, 2}, {0, 5}], None, binary=False)
    assert classes.names == ("0", "2", "5")
    assert [classes.table()[value] for value in (0, 2, 5)] == [0, 1, 2]
    assert Classes.of_masks([{0, 1, 255}], None, binary=False).names == ("0", "1", "255")


def test_whatever_is_not_zero_is_the_foreground_of_a_task_with_one() -> None:
    classes = Classes.of_masks([{0, 1, 2}], ["background", "prostate"], binary=True)
    assert classes.table() == [0, 1, 1]


def test_named_values_are_the_classes_and_others_are_unknown() -> None:
    classes = Classes.of_masks([{0, 3, 7}], ["0", "3"], binary=False)
    assert classes.unknown([0, 3, 7]) == [7]
    words = Classes.of_masks([{0, 1, 2, 3}], ["background", "gland", "lesion"], binary=False)
    assert words.unknown([0, 1, 2, 3]) == [3]
    assert Classes.of_masks([{0, 255}], ["background", "lesion"], binary=False).table()[255] == 1


def test_a_model_of_white_masks_accepts_ones() -> None:
    assert Classes.of_masks([{0, 1}], ["0", "255"], binary=False).unknown([0, 1]) == []


def test_too_many_values_are_refused() -> None:
    with pytest.raises(UsageError, match="the masks hold 100 different values, at most 64"):
        Classes.of_masks([set(range(100))], None, binary=False)
