from collections.abc import Callable
from pathlib import Path

import pytest

from harmofl.errors import UsageError
from harmofl.experiments.results import Results
from harmofl.experiments.state import is_experiment, read_state
from harmofl.experiments.writing import write_results

EPOCHS = """
title = "Epochs"
task = "histology"
preset = "smoke"
shows = "curve"
axis = "training.local_epochs"
rows = ["fedavg"]
seeds = [0, 1]
variations = [
  { name = "one", settings.training.local_epochs = 1 },
  { name = "two", settings.training.local_epochs = 2 },
]
"""


def test_what_an_experiment_writes_is_read_back(results_of: Callable[..., Results], tmp_path: Path) -> None:
    paths = ["fedavg/one/seed-0", "fedavg/two/seed-0"]
    results = results_of({path: {"A": 0.5, "B": 0.75} for path in paths}, EPOCHS)
    results.errors["fedavg/one/seed-1"] = "no memory left"
    assert not is_experiment(tmp_path / "out")
    write_results(results, tmp_path / "out")
    state = read_state(tmp_path / "out")
    assert is_experiment(tmp_path / "out")
    assert (state.experiment, state.title, state.axis) == ("tiny", "Epochs", "training.local_epochs")
    assert [(cell.path, cell.x, cell.folder) for cell in state.done] == [
        (path, x, path) for x, path in enumerate(paths, 1)
    ]
    assert [(cell.line, cell.seed, cell.error) for cell in state.without_scores] == [
        ("FedAvg, one", 1, "no memory left"),
        ("FedAvg, two", 1, ""),
    ]
    assert (state.reference, state.baseline) == ("FedAvg", "one")
    assert not state.holds_out


def test_a_field_that_no_experiment_writes_is_named(results_of: Callable[..., Results], tmp_path: Path) -> None:
    write_results(results_of({}), tmp_path)
    path = tmp_path / "results.json"
    path.write_text(path.read_text().replace('"missing"', '"mising"'))
    with pytest.raises(UsageError, match=r"results.json is not what an experiment writes: cells.0.state: Input should"):
        read_state(tmp_path)
