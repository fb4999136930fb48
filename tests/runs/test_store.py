from pathlib import Path

import pytest
import torch

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
