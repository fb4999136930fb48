"""The picture of scores against shifts."""

from pathlib import Path

from harmofl.reporting.shift_figures import scores_by_shift, without_crowds
from harmofl.runs.finished import read_run
from written_runs import write_run


def test_marks_beside_each_other_have_no_room_for_names() -> None:
    alone, one, two = (1.0, 60.0, "A"), (0.1, 90.0, "B"), (0.12, 90.5, "C")
    assert without_crowds([alone, one, two]) == [alone]
    assert without_crowds([(0.1, 90.0, "B"), (0.12, 60.0, "C")]) == [(0.1, 90.0, "B"), (0.12, 60.0, "C")]
    assert without_crowds([]) == []


def test_every_method_has_a_mark_for_each_site_whose_shift_is_known(tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / name, name, {"A": 0.9, "B": 0.6})) for name in ("fedavg", "harmofl")]
    figure = scores_by_shift(runs, {"FedAvg": {"A": 0.1, "B": 1.25}, "HarmoFL": {"B": 0.5}})
    fedavg, harmofl = figure.axes[0].lines
    assert list(fedavg.get_xdata()) == [0.1, 1.25]
    assert list(harmofl.get_ydata()) == [60.0]
    assert figure.axes[0].get_xlim()[0] == 0
