"""Plans that come with harmofl are found by name."""

from pathlib import Path

import pytest

from harmofl.errors import UsageError
from harmofl.experiments.shipped import find_plan, shipped_plans

ROOT = Path(__file__).parents[2]


def test_a_name_means_the_plan_that_comes_with_harmofl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table-nuclei").mkdir()  # an experiment's folder, not a plan
    assert find_plan("table-nuclei") == ROOT / "experiments" / "table-nuclei.toml"
    assert shipped_plans().keys() == {path.stem for path in (ROOT / "experiments").glob("*.toml")}


def test_a_file_of_ones_own_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table-nuclei").touch()
    assert find_plan("table-nuclei") == Path("table-nuclei")
    assert find_plan("missing.toml") == Path("missing.toml")
    assert find_plan("./table-nuclei") == Path("table-nuclei")


def test_a_misspelt_name_is_suggested() -> None:
    with pytest.raises(UsageError, match="unknown file or plan 'table-nuclie'; did you mean 'table-nuclei'"):
        find_plan("table-nuclie")
