import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from harmofl.federation import lean_imports
from harmofl.federation.lean_imports import LeanMonai, import_lean, is_being_imported


@pytest.fixture
def lean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    import_lean()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package that imports an optional one, as MONAI does, and notes what came of it."""
    (tmp_path / "like_monai").mkdir()
    code = "try:\n    import a_luxury\n    found = True\nexcept ImportError:\n    found = False\n"
    (tmp_path / "like_monai" / "__init__.py").write_text("from like_monai.part import found\n")
    (tmp_path / "like_monai" / "part.py").write_text(code)
    (tmp_path / "a_luxury.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(lean_imports, "LEFT_OUT", frozenset({"a_luxury"}))
    monkeypatch.setattr(lean_imports, "is_being_imported", lambda _name: is_being_imported("like_monai"))
    for name in ("like_monai", "like_monai.part", "a_luxury"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "like_monai"


@pytest.mark.usefixtures("lean")
def test_what_is_left_out_is_missing_while_the_package_is_imported_and_there_for_all_others(package: str) -> None:
    assert __import__(package).found is False
    assert __import__("a_luxury")


def test_nothing_is_left_out_in_someone_elses_program(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [finder for finder in sys.meta_path if not isinstance(finder, LeanMonai)]  # a command may have run before
    monkeypatch.setattr(sys, "meta_path", others)
    assert __import__(package).found is True


@pytest.mark.usefixtures("lean")
def test_it_is_asked_once_however_often_it_is_wanted() -> None:
    import_lean()
    assert sum(isinstance(finder, LeanMonai) for finder in sys.meta_path) == 1


def test_monai_is_known_to_be_imported_only_while_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "under_way", SimpleNamespace(__spec__=SimpleNamespace(_initializing=True)))
    assert is_being_imported("under_way")
    assert not is_being_imported("sys")
    assert not is_being_imported("never_heard_of")
