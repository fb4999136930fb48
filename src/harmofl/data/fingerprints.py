"""Short names by which the same images, split and truth are recognized again; they tell nothing about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harmofl.data.cache import digest
from harmofl.data.decoding import Recipe
from harmofl.data.division import number_groups
from harmofl.data.samples import Sample
from harmofl.settings import DataSettings


def fingerprint_images(samples: Sequence[Sample], prints: Mapping[str, str], recipe: Recipe, limit: int) -> str:
    """A name for a site's images and how they are split."""
    data = recipe.data
    groups = number_groups(samples, data)
    files = [
        [prints[each.image], group, each.split, *(prints[path] for path in each.images[1:])]
        for each, group in zip(samples, groups, strict=True)
    ]
    of_volumes = [3] if data.dimensions == 3 else []
    return digest(files, data.seed, limit, data.split_by, data.slices, data.size, recipe.resizes, *of_volumes)


def fingerprint_choice(samples: Sequence[Sample], prints: Mapping[str, str], data: DataSettings, limit: int) -> str:
    """A name for which of a site's images are for training, whatever is made of them."""
    files = [[prints[each.image], each.split] for each in samples]
    return digest(files, number_groups(samples, data), data.seed, limit, data.split_by, data.slices, data.site_sizes)


def fingerprint_annotations(samples: Sequence[Sample], prints: Mapping[str, str]) -> str:
    """A name for what a site's images are said to show: their masks or labels."""
    # With the images, which only their owner has: else the labels of a few could be found by trying all.
    return digest([[prints[each.image], each.label, prints.get(each.mask, "")] for each in samples])
