import multiprocessing
from pathlib import Path

import pytest

from harmofl.errors import UsageError
from harmofl.experiments.json_lines import lock_json_lines, read_json_lines


def append(path: Path, *lines: dict[str, object]) -> None:
    with lock_json_lines(path) as locked:
        for line in lines:
            locked.append(line)


def test_lines_are_appended_to_a_file_that_need_not_exist(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "cells.jsonl"
    append(path, {"cell": "a", "Γ": 0.5}, {"cell": "b"})
    append(path, {"cell": "c"})
    assert path.read_text() == '{"cell": "a", "Γ": 0.5}\n{"cell": "b"}\n{"cell": "c"}\n'
    assert read_json_lines(path) == [{"cell": "a", "Γ": 0.5}, {"cell": "b"}, {"cell": "c"}]


@pytest.mark.parametrize("torn", ['{"cell": "b", "Γ"', "{", '{"cell": "b"'])
def test_a_line_torn_by_a_kill_is_ignored_and_then_replaced(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "cells.jsonl"
    path.write_text('{"cell": "a"}\n' + torn)
    assert read_json_lines(path) == [{"cell": "a"}]
    append(path, {"cell": "b"})
    assert path.read_text() == '{"cell": "a"}\n{"cell": "b"}\n'


def test_a_character_torn_in_its_middle_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    path.write_bytes(b'{"cell": "a"}\n' + '{"Γ'.encode()[:-1])
    assert read_json_lines(path) == [{"cell": "a"}]


def test_a_whole_last_line_counts_also_without_its_newline(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    path.write_text('{"cell": "a"}')
    append(path, {"cell": "b"})
    assert path.read_text() == '{"cell": "a"}\n{"cell": "b"}\n'


@pytest.mark.parametrize(("text", "message"), [("{}\n{broken\n{}\n", "line 2 is not valid"), ("[1]\n", "not list")])
def test_a_broken_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "cells.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=f"cells.jsonl, .*{message}"):
        read_json_lines(path)


def count_up(path: Path, times: int) -> None:
    for _ in range(times):
        with lock_json_lines(path) as locked:
            locked.append({"number": len(locked.lines)})


def test_processes_that_append_at_the_same_time_wait_for_one_another(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    processes = [multiprocessing.get_context("spawn").Process(target=count_up, args=(path, 40)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [line["number"] for line in read_json_lines(path)] == list(range(80))
