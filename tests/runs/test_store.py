from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from harmofl.runs.store import CorruptVersionError, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "store")
    for version in (0, 2, 3, 5, 6):
        store.save(version, {"x": torch.tensor(float(version))}, {"version": version})
    return store


def test_a_version_is_read_as_it_was_written(store: Store) -> None:
    state, notes = store.load(3)
    assert torch.equal(state["x"], torch.tensor(3.0))
    assert notes == {"version": 3}
    assert store.versions() == [0, 2, 3, 5, 6]


def test_a_site_that_missed_a_round_starts_from_the_version_before(store: Store) -> None:
    assert [store.latest(at_most=number) for number in (0, 1, 4, 6, 9)] == [0, 0, 3, 6, 6]
    assert Store(store.folder / "new").latest(at_most=9) is None


def test_pruning_keeps_what_the_given_rounds_start_from(store: Store) -> None:
    store.prune([1, 4, 6])  # 1 starts from 0, 4 from 3
    assert store.versions() == [0, 3, 6]


def test_files_that_are_no_versions_are_left_alone(store: Store) -> None:
    (store.folder / ".round-00009.safetensors.abc.part").touch()
    store.prune([6])
    assert store.versions() == [6]
    assert (store.folder / ".round-00009.safetensors.abc.part").exists()


@pytest.mark.parametrize("size", [0, 7, 40, -1])
def test_a_file_that_was_cut_short_is_said_to_be_corrupt(store: Store, size: int) -> None:
    path = store.path(6)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CorruptVersionError, match=r"round-00006\.safetensors"):
        store.load(6)


def test_damaged_and_missing_files_are_corrupt_too(store: Store) -> None:
    store.path(6).write_bytes(b"\xff" * 1000)
    for version in (6, 7):
        with pytest.raises(CorruptVersionError):
            store.load(version)


def test_a_damaged_state_is_passed_over_for_an_older_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(tmp_path / "site")
    for version in (1, 2, 3):
        store.save(version, {"x": torch.tensor([float(version)])})
    store.path(2).write_bytes(b"cut")
    assert store.newest(at_most=2)["x"].item() == 1
    assert "cannot be read" in caplog.text
    assert store.newest(at_most=3)["x"].item() == 3
    assert store.newest(at_most=0) == {}


def test_one_bit_of_a_tensor_or_of_the_notes_is_noticed_and_the_version_before_is_used(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(1, {"w": torch.ones(4)}, {"round": 1})
    store.save(2, {"w": torch.full((4,), 2.0), "n": torch.tensor(3)}, {"round": 2})
    whole = store.path(2).read_bytes()
    for place in (len(whole) - 1, len(whole) - 9, whole.index(b"round") + 1):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        store.path(2).write_bytes(damaged)
        with pytest.raises(CorruptVersionError, match="round-00002"):
            store.load(2)
        assert store.newest(at_most=2)["w"].tolist() == [1.0] * 4


def test_a_version_of_before_checksums_is_still_read(tmp_path: Path) -> None:
    content = save({"w": torch.ones(2)}, metadata={"notes": '{"round": 1}'})
    Store(tmp_path).path(1).write_bytes(content)
    assert Store(tmp_path).load(1)[1] == {"round": 1}
