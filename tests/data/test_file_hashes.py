"""Content hashes of files."""

import json
import time
from pathlib import Path

from harmofl.data.cache import Cache
from harmofl.data.file_hashes import hash_files


def test_hashes_follow_the_content_and_files_are_read_once(tmp_path: Path) -> None:
    data, cache = tmp_path / "data", Cache(tmp_path / "cache")
    (data / "series").mkdir(parents=True)
    for name in ("a.png", "b.png", "series/1.dcm", "series/2.dcm"):
        (data / name).write_text("same" if name != "b.png" else "other")
    paths = ["a.png", "b.png", "series"]
    read: list[int] = []
    first = hash_files(cache, data, "site", paths, read.append)
    assert sum(read) == 3
    assert len(set(first.values())) == 3
    assert hash_files(cache, data, "site", paths, read.append) == first
    assert sum(read) == 3  # nothing was read again
    time.sleep(0.01)
    (data / "series/2.dcm").write_text("changed")
    second = hash_files(cache, data, "site", paths, read.append)
    assert sum(read) == 4
    assert second["series"] != first["series"]
    (data / "c.png").write_text("same")
    assert hash_files(cache, data, "site", ["c.png"], read.append)["c.png"] == first["a.png"]


def test_a_damaged_note_of_hashes_is_ignored(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    (tmp_path / "a.png").write_text("a")
    first = hash_files(cache, tmp_path, "site", ["a.png"])
    (note,) = (tmp_path / "cache" / "fingerprints").iterdir()
    for content in ("{", "[]", json.dumps({"a.png": 3}), "null"):
        note.write_text(content)
        assert hash_files(cache, tmp_path, "site", ["a.png"]) == first
