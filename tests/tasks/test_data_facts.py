"""What is said and found of a run's images before it starts."""

import pytest

from harmofl.events import Event, ImagesChosen
from harmofl.settings import DataSettings
from harmofl.tasks.data_facts import announce_images


@pytest.mark.parametrize(
    ("data", "is_limited", "expected"),
    [
        (DataSettings(folder="/images", limit=30), True, ImagesChosen("/images", limit=30)),
        (DataSettings(folder="/images", limit=30), False, ImagesChosen("/images")),  # scored at another hospital
        (DataSettings(limit=30), True, ImagesChosen("synthetic hospitals")),
    ],
)
def test_a_limit_is_announced_where_it_applies(data: DataSettings, is_limited: bool, expected: ImagesChosen) -> None:
    seen: list[Event] = []
    announce_images(data, seen.append, is_limited)
    assert seen == [expected]
