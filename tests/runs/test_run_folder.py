from pathlib import Path

import pytest

from harmofl.errors import UsageError
from harmofl.runs.folder import RunFolder
from harmofl.runs.store import CorruptVersionError


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
    with pytest.raises(CorruptVersionError, match=r"records\.jsonl: 1 records, but the checkpoint knows of 2"):
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


def test_a_record_that_changed_since_its_checkpoint_is_noticed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.append([record(1), record(2)])
    checksum = folder.records_checksum
    folder.append([record(3)])
    folder.keep_records(2, checksum)
    assert folder.records_checksum == checksum
    folder.records.write_text(folder.records.read_text().replace("2", "7"))
    with pytest.raises(CorruptVersionError, match="damaged, or changed"):
        folder.keep_records(2, checksum)


def test_the_runs_name_is_known_as_long_as_one_of_its_files_is_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = RunFolder(tmp_path)._identifier()
    first, second = (tmp_path / "checkpoint" / file for file in ("run.json", "run-copy.json"))
    for damaged in (first, second):
        damaged.write_text(damaged.read_text().replace(name[:4], "0000" if name[:4] != "0000" else "1111"))
        assert RunFolder(tmp_path)._identifier() == name
        assert f"{damaged} was damaged, and is written again" in caplog.text
    for path in (first, second):
        path.write_text("{}")
    with pytest.raises(UsageError, match="and its copy are damaged"):
        RunFolder(tmp_path)._identifier()


def test_a_run_of_before_checksums_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "run.json").write_text('{"run": "' + "5" * 32 + '"}')
    assert RunFolder(tmp_path)._identifier() == "5" * 32
