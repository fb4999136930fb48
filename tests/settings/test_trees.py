from pathlib import Path

import pytest

from harmofl.errors import UsageError
from harmofl.settings import flatten, merge, nest, parse_assignments, read_toml


def test_assignments_are_read_as_toml_or_else_as_text() -> None:
    texts = ["training.rounds=3", "method.band=dc", "method.radius = 1e-2", 'task="nuclei"', "a.b=true", "c= x=y "]
    assert parse_assignments(texts) == {
        "training.rounds": 3,
        "method.band": "dc",
        "method.radius": 0.01,
        "task": "nuclei",
        "a.b": True,
        "c": "x=y",
    }


@pytest.mark.parametrize("text", ["training.rounds", "=3", " = 3"])
def test_an_assignment_without_a_name_or_a_value_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"must be section\.name=value"):
        parse_assignments([text])


def test_reading_a_settings_file_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    with pytest.raises(UsageError, match=r"run\.toml: No such file"):
        read_toml(path)
    path.write_text("seed =")
    with pytest.raises(UsageError, match=r"run\.toml: not valid TOML"):
        read_toml(path)
    path.write_text("seed = 1\n[data]\nsize = 32")
    assert read_toml(path) == {"seed": 1, "data": {"size": 32}}


def test_nesting_and_flattening_are_inverse() -> None:
    values = {"seed": 1, "training.rounds": 2, "training.momentum": 0.5}
    tree = {"seed": 1, "training": {"rounds": 2, "momentum": 0.5}}
    assert nest(values) == tree
    assert flatten(tree) == values


def test_merging_goes_section_by_section() -> None:
    assert merge({"a": {"x": 1, "y": 1}, "b": 1}, {"a": {"y": 2}, "c": 2}) == {"a": {"x": 1, "y": 2}, "b": 1, "c": 2}


def test_a_value_cannot_also_be_a_section() -> None:
    with pytest.raises(UsageError, match=r"unknown setting 'seed\.x': seed is a value, not a section"):
        nest({"seed": 1, "seed.x": 2})
