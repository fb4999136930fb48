import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from harmofl.data.cache import ABANDONED_AFTER, MOST_AHEAD, Cache, Decoded, Stack, default_cache, map_in_threads
from harmofl.errors import RunError
from runs import environment


def decoded(value: int, slices: int = 2, dtype: type = np.uint8) -> Decoded:
    planes = np.full((slices, 1, 3, 3), value, dtype=dtype)
    masks = np.zeros((slices, 3, 3), dtype=np.uint8)
    masks[0, 0, :2] = 1
    return Decoded(planes, masks, tiles=1, facts={"slices": slices, "mean": value}, values=[0, 1])


def some() -> Iterator[Decoded]:
    yield decoded(3)
    yield decoded(5, slices=1)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert cache.open("k" * 32) is None
    made = cache.make(lambda: "k" * 32, some())
    for entry in (made, cache.open("k" * 32)):
        assert entry is not None
        assert entry.planes[:, 0, 0, 0].tolist() == [3, 3, 5]
        assert entry.masks is not None
        assert entry.masks.sum(axis=(1, 2)).tolist() == [2, 0, 2]
        assert entry.sample.tolist() == [0, 0, 1]
        assert entry.slice.tolist() == [0, 1, 0]
        assert entry.foreground.tolist() == [2, 0, 2]
        assert entry.facts["mean"].tolist() == [3, 5]
        assert entry.values == [[0, 1], [0, 1]]
        assert isinstance(entry.planes, np.memmap)


def test_images_of_more_bits_widen_those_before(tmp_path: Path) -> None:
    mixed = [decoded(255), decoded(1000, dtype=np.uint16), decoded(1)]
    entry = Cache(tmp_path).make(lambda: "wide", iter(mixed))
    assert entry.planes.dtype == np.uint16
    assert entry.planes[:, 0, 0, 0].tolist() == [65535, 65535, 1000, 1000, 257, 257]
    assert not list(tmp_path.rglob("*.old"))


def test_labels_keep_their_values_when_masks_widen(tmp_path: Path) -> None:
    with Stack(tmp_path / "masks") as stack:
        stack.append(np.full((1, 2, 2), 7, dtype=np.uint8))
        stack.append(np.full((1, 2, 2), 700, dtype=np.uint16))
        assert stack.description() == {"shape": [2, 2, 2], "dtype": "uint16"}
    assert np.fromfile(tmp_path / "masks", dtype=np.uint16).tolist() == [7] * 4 + [700] * 4


def test_an_interrupted_entry_is_no_entry_and_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> Iterator[Decoded]:
        yield decoded(3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Cache(tmp_path).make(lambda: "key", interrupted())
    assert Cache(tmp_path).open("key") is None
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


KILLED = """
import sys, time
from pathlib import Path
sys.path[:0] = [{tests!r}, {data!r}]
from test_cache import Cache, decoded
def slow():
    yield decoded(3)
    print("half", flush=True)
    time.sleep(60)
Cache(Path({folder!r})).make(lambda: "key", slow())
"""


def test_a_killed_process_leaves_no_entry_and_its_rest_is_swept_up_later(tmp_path: Path) -> None:
    here = Path(__file__).parent
    script = KILLED.format(tests=str(here.parent), data=str(here), folder=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment())
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    process.kill()
    process.communicate()
    cache = Cache(tmp_path)
    assert cache.open("key") is None
    (rest,) = (tmp_path / "decoded").glob("*.part")
    cache.make(lambda: "other", some())
    assert rest.exists()  # for all we know it is still at work
    old = time.time() - ABANDONED_AFTER - 1
    os.utime(rest, (old, old))
    cache.make(lambda: "third", some())
    assert not rest.exists()


def test_of_two_that_make_the_same_entry_both_get_a_whole_one(tmp_path: Path) -> None:
    cache = Cache(tmp_path)

    def overtaken() -> Iterator[Decoded]:
        yield decoded(3)
        Cache(tmp_path).make(lambda: "key", some())  # another process is faster
        yield decoded(5, slices=1)

    entry = cache.make(lambda: "key", overtaken())
    assert entry.planes[:, 0, 0, 0].tolist() == [3, 3, 5]
    assert not list((tmp_path / "decoded").glob("*.part"))


@pytest.mark.parametrize("gone", [True, False])
@pytest.mark.parametrize("damage", ["planes.bin", "index.npz", "index.json"])
def test_a_damaged_entry_is_made_again(tmp_path: Path, damage: str, gone: bool) -> None:
    cache = Cache(tmp_path)
    cache.make(lambda: "key", some())
    (path,) = tmp_path.rglob(damage)
    path.write_bytes(path.read_bytes()[:-4])
    if gone:
        path.unlink()
    assert cache.open("key") is None
    assert len(cache.make(lambda: "key", some()).planes) == 3


def test_a_cache_that_cannot_be_written_says_which_setting_mends_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"file: .*choose another folder with data\.cache"):
        Cache(tmp_path / "file").make(lambda: "key", some())


def test_an_entry_that_cannot_be_opened_for_now_is_not_thrown_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path)
    cache.make(lambda: "key", some())
    with monkeypatch.context() as patched:

        def too_many_files(*args: object) -> None:
            raise OSError(24, "Too many open files")

        patched.setattr("harmofl.data.cache._mapped", too_many_files)
        with pytest.raises(RunError, match="Too many open files"):
            cache.open("key")
    assert cache.open("key") is not None


def test_the_cache_is_for_its_owners_eyes_only(tmp_path: Path) -> None:
    Cache(tmp_path / "cache").make(lambda: "key", some())
    assert (tmp_path / "cache").stat().st_mode & 0o077 == 0


def test_what_lies_in_a_folder_that_was_there_before_is_for_its_owners_eyes_only_too(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "decoded").mkdir(mode=0o755)
    Cache(tmp_path).claim()
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"decoded": 0o700, "fingerprints": 0o700, "listings": 0o700, "phantoms": 0o700}
    assert tmp_path.stat().st_mode & 0o777 == 0o755  # other things may lie there


def test_the_cache_lies_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert default_cache() == Path(os.environ["HARMOFL_CACHE"])
    monkeypatch.delenv("HARMOFL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "harmofl"


def test_work_in_threads_comes_in_order_and_never_far_ahead() -> None:
    begun: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        return number

    results = map_in_threads(work, range(200), cost=lambda number: 1)
    assert next(results) == 0
    time.sleep(0.05)
    assert len(begun) < 50
    assert list(results) == list(range(1, 200))


def test_large_files_are_decoded_one_at_a_time() -> None:
    working, most = 0, 0

    def work(number: int) -> int:
        nonlocal working, most
        working += 1
        most = max(most, working)
        time.sleep(0.01)
        working -= 1
        return number

    assert list(map_in_threads(work, range(6), cost=lambda number: MOST_AHEAD)) == list(range(6))
    assert most == 1
