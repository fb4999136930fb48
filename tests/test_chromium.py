"""A machine without a browser may skip its tests, but not where every test must run."""

from pathlib import Path

import pytest

from chromium import open_page


@pytest.mark.parametrize(("value", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_missing_browser_fails_under_ci_and_is_skipped_elsewhere(
    value: str, outcome: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", value)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(outcome, match="no Chromium"):
        open_page(tmp_path / "page.html", tmp_path)
