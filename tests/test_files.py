import os
from pathlib import Path

import pytest

from harmofl.errors import UsageError
from harmofl.files import check_writable, folder_name, remove_parts, write_whole


def test_a_file_is_written_with_its_folders(tmp_path: Path) -> None:
    write_whole(tmp_path / "a" / "b" / "file.txt", "grüße")
    assert (tmp_path / "a" / "b" / "file.txt").read_bytes() == "grüße".encode()


@pytest.mark.parametrize("function", ["replace", "fsync", "chmod"])
def test_a_failure_leaves_the_old_content_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    path = tmp_path / "file.txt"
    write_whole(path, "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, function, full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.txt"]


@pytest.mark.parametrize(("lasting", "times"), [(True, 2), (False, 0)])
def test_the_disk_is_waited_for_only_where_a_file_is_to_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lasting: bool, times: int
) -> None:
    waits: list[int] = []
    monkeypatch.setattr(os, "fsync", waits.append)
    write_whole(tmp_path / "file.txt", "new", lasting=lasting)
    assert len(waits) == times  # for the file, and for its name in the folder
    assert (tmp_path / "file.txt").read_text() == "new"


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "file.txt", "new")
    assert os.listdir(tmp_path) == []


def test_what_a_kill_left_behind_is_removed_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (".lock", "notes.part", "kept.txt"):
        (tmp_path / name).touch()
    with monkeypatch.context() as patch:  # as after kill -9: the file is never renamed, and nobody cleans up
        patch.setattr(os, "replace", lambda *_: None)
        write_whole(tmp_path / "deep" / "file.txt", "half")
    assert len(os.listdir(tmp_path / "deep")) == 1
    remove_parts(tmp_path)
    assert os.listdir(tmp_path / "deep") == []
    assert sorted(os.listdir(tmp_path)) == [".lock", "deep", "kept.txt", "notes.part"]


def test_a_folder_that_cannot_be_written_to_is_named_and_nothing_is_made(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "folder")
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"--out .*below: .*/file is a file"):
        check_writable(tmp_path / "file" / "below")


@pytest.mark.parametrize(("name", "folder"), [("+ both (HarmoFL)", "both-harmofl"), ("radius 0.05", "radius-0.05")])
def test_names_become_folders(name: str, folder: str) -> None:
    assert folder_name(name) == folder
