"""The difficulty of the synthetic hospitals, as it was measured."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    import phantoms

    return str(phantoms.write_page(ROOT / "results"))


def test_the_page_is_up_to_date_and_both_conditions_hold(page: str) -> None:
    assert (ROOT / "benchmarks/results/phantoms.md").read_text() == page, "run benchmarks/phantoms.py --report"
    assert page.count("| yes |") == 3 + 3 * 5  # a line per task, and one per method beside FedAvg
    assert "missing" not in page
    assert "**no**" not in page
