"""A disk that is really full while sites of one machine train: every site's problem, so no round counts."""

import errno
from pathlib import Path
from typing import Any

import pytest

from disks import fill_up
from harmofl.errors import RunError
from harmofl.events import Event, SiteAnswered, Watch
from harmofl.federation.messages import Reply, Request
from harmofl.files import find_disk_failure
from harmofl.runs.store import Store
from runs import SITES, differences, records, train


def fill_after(disk: Path, site: str) -> Watch:
    """Fill the disk as soon as a site has trained in round 2."""

    def watch(event: Event) -> None:
        if isinstance(event, SiteAnswered) and (event.round, event.site) == (2, site):
            fill_up(disk / "filler")

    return watch


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_stops_the_run_at_once_and_room_lets_it_go_on_to_the_same_bits(
    tmp_path: Path, small_disk: Path, workers: int
) -> None:
    out = small_disk / "run"
    with pytest.raises(RunError) as caught:
        train(out, "harmofl", rounds=3, federation__workers=workers, watch=fill_after(small_disk, SITES[0]))
    kept = "what was written before is kept: fix the cause and continue with --resume"
    assert str(caught.value) == f"{out}: No space left on device; {kept}"
    assert {record["round"] for record in records(out)} == {0, 1}  # nothing of round 2, and no site left out
    assert not [record for record in records(out) if "error" in record]

    (small_disk / "filler").unlink()
    train(out, "harmofl", rounds=3, federation__workers=workers, resume=True)
    train(tmp_path / "undisturbed", "harmofl", rounds=3)
    assert differences(out, tmp_path / "undisturbed") == []


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.EIO])
def test_an_exceeded_quota_or_a_broken_disk_stops_the_run_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, "as the disk says")

    monkeypatch.setattr("harmofl.federation.client.Client._keep", fail)
    with pytest.raises(RunError, match="run: as the disk says; what was written before is kept"):
        train(tmp_path / "run")


def test_a_store_that_cannot_be_written_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Store.save

    def save(self: Store, *args: Any) -> None:
        if self.folder.name == SITES[1]:
            raise PermissionError(errno.EACCES, "Permission denied", str(self.folder / "round-00001.safetensors"))
        honest(self, *args)

    monkeypatch.setattr(Store, "save", save)
    with pytest.raises(RunError, match=f"{SITES[1]}/round-00001.safetensors: Permission denied"):
        train(tmp_path / "run")


def test_another_error_is_one_sites_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from harmofl.federation.client import Client

    honest = Client._train

    def fail(self: Client, request: Request) -> Reply:
        if self.site.name == SITES[1]:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", "/elsewhere/image.png")
        return honest(self, request)

    monkeypatch.setattr(Client, "_train", fail)
    train(tmp_path / "run")
    assert {record["site"] for record in records(tmp_path / "run") if "error" in record} == {SITES[1]}


def test_a_disks_failure_is_found_behind_other_errors(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(RuntimeError) as caught:
        raise RuntimeError("cannot go on") from full
    assert find_disk_failure(caught.value, tmp_path) is full
    assert find_disk_failure(FileNotFoundError(errno.ENOENT, "", "/elsewhere"), tmp_path) is None
