from pathlib import Path

import pytest

from harmofl.errors import RunError, UsageError
from harmofl.runs.folder import RunFolder


def record(number: int) -> dict[str, object]:
    return {"round": number, "site": "A", "phase": "train"}


def test_records_after_a_checkpoint_are_dropped(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.append([record(1), record(2)])
    folder.append([record(3)])
    folder.keep_records(2)
    folder.append([record(4)])
    assert [line[10] for line in folder.records.read_text().splitlines()] == ["1", "2", "4"]


def test_a_run_without_records_yet_has_none_to_drop(tmp_path: Path) -> None:
    RunFolder(tmp_path).keep_records(0)
    assert (tmp_path / "records.jsonl").read_text() == ""


def test_lost_records_are_an_error(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.append([record(1)])
    with pytest.raises(RunError, match=r"records\.jsonl: 1 records, but the checkpoint knows of 2"):
        folder.keep_records(2)


def test_a_new_run_needs_an_empty_folder_in_which_hidden_files_do_not_count(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    (tmp_path / ".lock").touch()
    folder.check_start(resume=False)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UsageError, match="is not empty: choose another --out"):
        folder.check_start(resume=False)
    (tmp_path / "config.toml").touch()
    with pytest.raises(UsageError, match="already holds a run: add --resume"):
        folder.check_start(resume=False)


def test_only_a_run_can_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run to resume: leave out --resume"):
        RunFolder(tmp_path).check_start(resume=True)


def test_each_site_has_a_store_of_its_own(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.site_store("A").folder != folder.site_store("B").folder
