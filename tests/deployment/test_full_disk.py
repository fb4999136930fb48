"""A disk that is really full, at the server, in the middle of a run."""

from pathlib import Path

import pytest
from loopback import looped, make_kits

from disks import fill_up
from harmofl.deployment.coordinator import RunOptions, coordinate
from harmofl.errors import RunError
from harmofl.runs.checkpoints import newest_checkpoint
from harmofl.runs.folder import RunFolder
from runs import SITES, after_round, differences, tiny

ROUNDS = 6


def test_a_full_disk_stops_the_run_and_room_lets_it_go_on_to_the_same_bits(tmp_path: Path, small_disk: Path) -> None:
    wanted = RunOptions("histology", "harmofl", "smoke", given=tiny(rounds=ROUNDS))
    names = dict.fromkeys(SITES[:2], "synthetic")

    server, sites = make_kits(tmp_path / "one", names, ["histology"])
    with looped(sites):
        coordinate(server, wanted, tmp_path / "whole", wait=1)

    fill = after_round(3, lambda: fill_up(small_disk / "filler"))
    server, sites = make_kits(tmp_path / "other", names, ["histology"])
    with looped(sites), pytest.raises(RunError, match="No space left on device; what was written before is kept"):
        coordinate(server, wanted, small_disk / "run", wait=1, watch=fill)
    (small_disk / "filler").unlink()

    kept = newest_checkpoint(RunFolder(small_disk / "run"))
    assert kept is not None
    assert kept.round >= 3
    with looped(sites):
        coordinate(server, wanted, small_disk / "run", resume=True, wait=1)
    assert differences(tmp_path / "whole", small_disk / "run", stores=False) == []
