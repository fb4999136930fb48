"""What sites say of their images, which the server never sees: checked, compared, and put together."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from harmofl.data.classes import Classes
from harmofl.data.facts import DataFacts
from harmofl.errors import RunError
from harmofl.settings import Settings

MOST_CHANNELS, MOST_CLASSES, LONGEST_NAME = 1024, 1024, 100
FEWEST_SITES = 3
"""Of fewer, nobody can say which number of images is the odd one."""
SMALLEST_PART = 0.1
"""Of the median number of training images, where all sites train on as many as the smallest one has."""
MOST_TIMES = 4
"""The median number of classes."""

Descriptions = Mapping[str, Mapping[str, Any]]


def outvote(descriptions: Descriptions, as_the_smallest: bool) -> tuple[dict[str, Mapping[str, Any]], dict[str, str]]:
    """The descriptions that most sites agree with, and why the others do not fit; an error where no most exist.

    `as_the_smallest`: whether every site trains on as many images as the smallest one has.
    """
    kinds = {site: (bool(words["synthetic"]), words.get("channels")) for site, words in descriptions.items()}
    (most, count), *_ = Counter(kinds.values()).most_common()
    if 2 * count <= len(kinds):
        listed = ", ".join(f"{site} {describe_kind(kind)}" for site, kind in sorted(kinds.items()))
        raise RunError(f"the sites differ in their images: {listed}; data.color = 'rgb' or 'grey' makes channels alike")
    odd = {
        site: f"{describe_kind(kind)}, most have {describe_kind(most)}" for site, kind in kinds.items() if kind != most
    }
    agreeing = {site: words for site, words in descriptions.items() if site not in odd}
    if len(agreeing) >= FEWEST_SITES and not most[0]:
        odd |= find_many_classes({site: len(words["classes"]) for site, words in agreeing.items()})
        if as_the_smallest:
            odd |= find_small_sites({site: words["num_train"] for site, words in agreeing.items()})
    return {site: words for site, words in agreeing.items() if site not in odd}, odd


def find_many_classes(numbers: Mapping[str, int]) -> dict[str, str]:
    """The sites that name far more classes than others, which every site's network would get."""
    median = statistics.median(numbers.values())
    return {
        site: f"{number} classes (median {median:g})"
        for site, number in numbers.items()
        if number > MOST_TIMES * median
    }


def find_small_sites(numbers: Mapping[str, int]) -> dict[str, str]:
    """The sites to which all others would be cut down."""
    median = statistics.median(numbers.values())
    return {
        site: f"{number} training images (median {median:g}), to which data.site_sizes = 'smallest' would cut all"
        for site, number in numbers.items()
        if number < SMALLEST_PART * median
    }


def describe_kind(kind: tuple[bool, int | None]) -> str:
    """What images are, in words."""
    synthetic, channels = kind
    return "synthetic images" if synthetic else f"images of {channels} channels"


def in_words(reasons: Mapping[str, str]) -> str:
    """Sites with their reasons, in one line."""
    return "; ".join(f"{site}: {reason}" for site, reason in sorted(reasons.items()))


def is_description(values: Mapping[str, Any]) -> bool:
    """Whether a site's description has the fields and types that it should have."""
    if values.get("synthetic") is True:
        return True
    channels, classes, num_train = (values.get(name) for name in ("channels", "classes", "num_train"))
    return (
        values.get("synthetic") is False
        and (type(channels) is int and 0 < channels <= MOST_CHANNELS)
        and (type(num_train) is int and 0 < num_train < 2**31)
        and (isinstance(classes, list) and len(classes) <= MOST_CLASSES)
        and all(isinstance(name, str) and len(name) < LONGEST_NAME and name.isprintable() for name in classes)
    )


def combine_descriptions(
    descriptions: Mapping[str, Mapping[str, Any]], settings: Settings, names: Sequence[str]
) -> DataFacts:
    """Decide what depends on the images of all sites together."""
    classes = settings.data.classes or join_classes([description["classes"] for description in descriptions.values()])
    return DataFacts(
        synthetic=False,
        sites=tuple(names),
        channels=next(iter(descriptions.values()))["channels"],
        classes=tuple(classes),
        smallest_site=min(description["num_train"] for description in descriptions.values()),
    )


def join_classes(named: Sequence[Sequence[str]]) -> list[str]:
    """Return all sites' classes; 0 and 1 at one site are 0 and 255 at another."""
    if all(len(names) == 2 and names[0] == "0" and names[1] in ("1", "255") for names in named):
        return ["0", min(names[1] for names in named)]
    return list(Classes.of_labels({name for names in named for name in names}, None).names)
