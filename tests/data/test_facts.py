import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harmofl.data.facts import DataFacts
from harmofl.errors import UsageError
from harmofl.settings import resolve
from harmofl.tasks.data_facts import find_data_facts

FACTS = DataFacts(False, ("A", "B"), 3, ("no", "yes"), ("one", "two"), ("masks", "more"))


def test_what_the_images_decide_completes_the_settings_and_choices_stay() -> None:
    settings, _ = resolve("segmentation", "fedavg", "smoke", overrides={"data.folder": "/images"})
    data = FACTS.complete(settings).data
    assert (data.sites, data.channels, data.classes) == (["A", "B"], 3, ["no", "yes"])
    assert data.site_sizes == settings.data.site_sizes
    assert data.model_copy(update={"sites": None, "channels": None, "classes": None}) == settings.data


def test_the_smallest_site_is_known_by_its_number_where_sites_do_not_see_one_another() -> None:
    facts = replace(FACTS, smallest_site=7)
    for chosen, completed in (("smallest", 7), ("all", "all"), (5, 5)):
        overrides = {"data.folder": "/images", "data.site_sizes": chosen}
        settings, _ = resolve("segmentation", "fedavg", "smoke", overrides=overrides)
        assert facts.complete(settings).data.site_sizes == completed


def test_a_phantom_decides_who_takes_part_and_nothing_else() -> None:
    settings, _ = resolve("histology", "fedavg", "smoke", overrides={"data.hold_out_site": "hospital-1"})
    facts = find_data_facts(settings)
    sites = [f"hospital-{number}" for number in (0, 2, 3, 4)]
    assert facts == DataFacts(True, tuple(sites), 3, ("normal", "tumor"))
    assert facts.complete(settings) == settings.with_values("data", sites=sites)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"sites": ("A",)}, "sites"),
        ({"channels": 1}, "channels"),
        ({"classes": ("yes", "no")}, "classes"),
        ({"fingerprints": ("one", "three")}, "images or their split"),
        ({"annotations": ("masks",)}, "masks, labels or images held out"),
    ],
)
def test_a_difference_is_said_in_words(change: dict[str, Any], words: str) -> None:
    assert FACTS.difference(replace(FACTS, **change)) == words


def test_facts_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    for facts in (FACTS, DataFacts(True, ("A",), 1, ("no", "yes")), replace(FACTS, smallest_site=7)):
        facts.write(path)
        assert DataFacts.read(path) == facts
    assert "fingerprints" not in DataFacts(True, ("A",), 1, ()).to_json()


@pytest.mark.parametrize("text", ["", "[]", json.dumps({"sites": []}), json.dumps(FACTS.to_json() | {"more": 1})])
def test_a_file_that_holds_no_facts_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "data.json"
    with pytest.raises(UsageError, match=r"data\.json is missing"):
        DataFacts.read(path)
    path.write_text(text)
    with pytest.raises(UsageError, match=r"data\.json cannot be read"):
        DataFacts.read(path)
