"""A manifest of the images that can be used, to train on those while the others are fixed."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable
from pathlib import Path

from harmofl.data.check import Check
from harmofl.data.folder import ImageFolder
from harmofl.data.layouts.manifest import NAME, TRUTH
from harmofl.data.samples import Sample
from harmofl.errors import UsageError
from harmofl.files import write_whole


def usable_samples(folder: ImageFolder, check: Check) -> list[Sample]:
    """The samples that were read and of which no problem is known that training would fail on."""
    broken = {problem.file for problem in check.problems if problem.fatal}
    return [
        sample
        for site in folder.all_sites
        for sample in folder.decoded(site).samples
        if not broken & {*sample.files, sample.site}
    ]


def write_clean_manifest(path: Path, folder: ImageFolder, check: Check) -> int:
    """Write the rows that can be used, with paths relative to the data folder, and return how many they are."""
    if os.path.realpath(path) == os.path.realpath(folder.listing.folder / NAME):
        raise UsageError(f"{path}: this is the manifest that was checked; choose another name")
    samples = usable_samples(folder, check)
    if not samples:
        raise UsageError(f"{path}: not written, as not one image can be used")
    if any(sample.reversed_channels for sample in samples):
        raise UsageError(f"{path}: not written: red and blue are swapped in some files, which a manifest cannot say")
    try:
        write_whole(path, _table(samples, TRUTH[folder.kind]))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    return len(samples)


def _table(samples: Iterable[Sample], truth: str) -> str:
    samples = list(samples)
    channels = max(len(sample.images) for sample in samples)
    images = ["image"] if channels == 1 else [f"image_{number}" for number in range(1, channels + 1)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["site", "split", "patient", *images, truth])
    writer.writerows([each.site, each.split, each.patient, *each.images, getattr(each, truth)] for each in samples)
    return text.getvalue()
