import zlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harmofl.data.images import LabelledImages, join_sets, seed_of, split
from harmofl.errors import UsageError


def numbered(groups: list[int]) -> LabelledImages:
    """Images whose value and label are their place."""
    places = torch.arange(len(groups))
    return LabelledImages(places.float().reshape(-1, 1, 1, 1), places, torch.tensor(groups))


@given(
    st.lists(st.integers(0, 9), min_size=3, max_size=60).filter(lambda groups: len(set(groups)) >= 3),
    st.integers(0, 99),
)
def test_a_split_never_tears_a_patient_apart_and_loses_no_image(groups: list[int], seed: int) -> None:
    parts = split(numbered(groups), "site", "patient", seed)
    patients = [set(part.groups.tolist()) for part in parts]
    assert all(patients)
    assert sum(map(len, patients)) == len(set(groups))
    assert sorted(torch.cat([part.targets for part in parts]).tolist()) == list(range(len(groups)))


def test_a_split_puts_a_fifth_to_test_and_a_fifth_of_the_rest_to_val() -> None:
    sizes = [len(part) for part in split(numbered(list(range(100))), "site", "patient", 0)]
    assert sizes == [64, 16, 20]


def test_a_split_by_image_may_tear_patients_apart() -> None:
    parts = split(numbered([0] * 50 + [1] * 50), "site", "image", 0)
    assert [len(part) for part in parts] == [64, 16, 20]
    assert all(set(part.groups.tolist()) == {0, 1} for part in parts)


def test_images_keep_their_targets_and_groups_in_a_split() -> None:
    for part in split(numbered([place // 4 for place in range(40)]), "site", "patient", 0):
        assert torch.equal(part.images.flatten().long(), part.targets)
        assert torch.equal(part.groups, part.targets // 4)


def test_a_split_depends_on_seed_and_site_only() -> None:
    images = numbered(list(range(40)))
    (first, *_), (again, *_) = (split(images, "site", "patient", 0) for _ in range(2))
    assert torch.equal(first.targets, again.targets)
    assert not torch.equal(first.targets, split(images, "site", "patient", 1)[0].targets)
    assert not torch.equal(first.targets, split(images, "other", "patient", 0)[0].targets)


@pytest.mark.parametrize(("by", "groups"), [("patient", [0, 0, 0, 1]), ("image", [0, 1])])
def test_fewer_than_three_parts_cannot_be_split(by: str, groups: list[int]) -> None:
    with pytest.raises(UsageError, match=f"somewhere: 2 {by}s cannot be split"):
        split(numbered(groups), "somewhere", by, 0)  # type: ignore[arg-type]


def test_batches_hold_all_images_in_order() -> None:
    batches = list(numbered(list(range(7))).batches(3))
    assert [batch.targets.tolist() for batch in batches] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [batch.images.flatten().tolist() for batch in batches] == [[0, 1, 2], [3, 4, 5], [6]]


def test_images_at_places_come_in_that_order() -> None:
    chosen = numbered([5, 6, 7]).at(torch.tensor([2, 0]))
    assert chosen.targets.tolist() == [2, 0]
    assert chosen.groups.tolist() == [7, 5]


def test_joined_images_keep_patients_of_different_sites_apart() -> None:
    union = join_sets([numbered([0, 0, 3]), numbered([0, 1]), numbered([0])])
    assert union.targets.tolist() == [0, 1, 2, 0, 1, 0]
    groups = union.groups.tolist()
    assert groups[0] == groups[1]
    assert len(set(groups)) == 5


def test_seeds_depend_on_every_part_and_on_nothing_else() -> None:
    assert seed_of(0, "site", 3) == zlib.crc32(b"0/site/3")  # no hash() that changes from process to process
    assert len({seed_of(0, "a", 1), seed_of(0, "a", 2), seed_of(0, "b", 1), seed_of(1, "a", 1)}) == 4


def test_tiles_of_one_image_stay_together_in_a_split_by_image() -> None:
    pictures = torch.arange(60) // 4
    parts = split(numbered([0] * 60), "site", "image", 0, together=pictures)
    owners = [set(pictures[part.targets].tolist()) for part in parts]
    assert [len(numbers) for numbers in owners] == [10, 2, 3]
    assert len(set.union(*owners)) == 15
