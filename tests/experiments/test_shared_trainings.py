from collections.abc import Callable
from pathlib import Path

from harmofl.experiments.cells import read_experiment
from harmofl.experiments.shared_trainings import FOLDER, SharedTrainings

PLAN = """
title = "T"
task = "histology"
preset = "smoke"
rows = ["fedavg", "fedprox"]
variations = [{ name = "own" }, { name = "site", settings.model.statistics = "site" }]
"""


def test_cells_that_train_the_same_run_one_after_the_other(write_plan: Callable[..., Path], tmp_path: Path) -> None:
    cells = list(read_experiment(write_plan(PLAN)).cells)
    own, other, site, other_site = cells
    assert [cell.label for cell in cells] == ["FedAvg, own", "FedProx, own", "FedAvg, site", "FedProx, site"]
    shared = SharedTrainings(tmp_path, cells)
    assert shared.folder_for(own) == shared.folder_for(site) != shared.folder_for(other)
    assert shared.choose([other, site, other_site], under_way=[own]) is other
    assert shared.choose([site], under_way=[own]) is None
    folder = shared.folder_for(own)
    assert folder is not None
    folder.mkdir(parents=True)
    assert shared.choose([other, site, other_site], under_way=[]) is site  # so that it can be removed soon
    shared.release(own, [site])
    assert folder.exists()
    shared.release(site, [other_site])
    assert not (tmp_path / FOLDER).exists()


def test_a_cell_that_trains_alone_leaves_nothing(write_plan: Callable[..., Path], tmp_path: Path) -> None:
    cells = read_experiment(write_plan(PLAN)).cells
    shared = SharedTrainings(tmp_path, cells[:2])
    assert [shared.folder_for(cell) for cell in cells[:2]] == [None, None]
