"""Problems of one kind are recognized by what their messages have in common."""

import pytest

from harmofl.data.problem_kinds import group_by_kind, kind_of, summarize
from harmofl.data.samples import Problem


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("image a b/1.png: no such file", "image c.png: no such file"),
        ("the mask is 20 x 30, the image 40 x 30", "the mask is 8 x 9 x 7, the image 8 x 9 x 6"),
        ("label 'z' is none of the classes (a, b)", "label 'long name' is none of the classes (a, b)"),
        ("label 3, 4 is none of the classes (0, 1)", "label 7 is none of the classes (0, 1)"),
        ("the same image as A/1.png", "the same image as B/x y.png, which is labelled a (here b)"),
        ("its affine is off (its image: A/1.nii)", "its affine is off (its image: B 2)"),
        ("patient p1 of A is in test (hint)", "patient X Y of A is in test (hint)"),
        ("split must be train, val or test, found 'x'", "split must be train, val or test, found 'y z'"),
    ],
)
def test_names_and_numbers_do_not_make_another_kind(one: str, other: str) -> None:
    assert kind_of(one) == kind_of(other)


def test_other_reasons_are_other_kinds() -> None:
    messages = ["image a.png: no such file", "mask a.png: no such file", "image a.png: a folder, not a file", "cut off"]
    assert len({kind_of(message) for message in messages}) == 4


def test_groups_keep_the_order_and_errors_apart_from_remarks() -> None:
    problems = [Problem(f"{n}", "cut off", fatal=n != 2) for n in range(6)] + [Problem("x", "too large")]
    groups = group_by_kind(problems)
    assert [(group.kind, group.fatal, len(group.problems)) for group in groups] == [
        ("cut off", True, 5),
        ("cut off", False, 1),
        ("too large", True, 1),
    ]
    assert [problem.file for problem in groups[0].shown] == ["0", "1", "3"]
    assert groups[0].num_more == 2
    assert group_by_kind(problems[3:6] + problems[:1])[0].num_more == 0  # a line for one more is as long as that one


def test_a_summary_names_one_of_each_kind() -> None:
    problems = [Problem(f"{n}.png", "cut off") for n in range(3)] + [Problem("x", "too large"), Problem("y", "odd")]
    assert summarize(problems, 2) == "0.png: cut off (and 2 more like it); x: too large; and 1 more"
    assert summarize(problems[:1], 2) == "0.png: cut off"
