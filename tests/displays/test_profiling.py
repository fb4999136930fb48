import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import harmofl
from harmofl.cli.profile_table import show_profile
from harmofl.displays import profiling
from harmofl.displays.profiling import Event, each, is_recording, leave_events, part, read_events, recording, to_trace
from runs import differences, tiny


def test_nothing_is_measured_unless_a_profile_is_recorded(tmp_path: Path) -> None:
    with part("forward"):
        assert not is_recording()
    leave_events(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_part_costs_next_to_nothing_while_nothing_is_recorded() -> None:
    started = time.process_time()
    for _ in range(100_000):
        with part("forward"):
            pass
    assert time.process_time() - started < 1  # 10 microseconds each at most; a step takes milliseconds


def test_a_trace_has_every_stretch_and_the_sums_of_the_parts() -> None:
    events = [
        Event("forward", start=2_000_000, duration=3_000_000, process=1, thread=7),
        Event("backward", start=5_000_000, duration=1_000_000, process=1, thread=7),
        Event("forward", start=1_500_000, duration=500_000, process=2, thread=8),
    ]
    trace = to_trace(events, start=1_000_000, duration=10_000_000)
    assert trace["traceEvents"] == [
        {"name": "forward", "ph": "X", "ts": 500, "dur": 500, "pid": 2, "tid": 8},
        {"name": "forward", "ph": "X", "ts": 1000, "dur": 3000, "pid": 1, "tid": 7},
        {"name": "backward", "ph": "X", "ts": 4000, "dur": 1000, "pid": 1, "tid": 7},
    ]
    parts = {"forward": {"seconds": 0.0035, "times": 2}, "backward": {"seconds": 0.001, "times": 1}}
    assert trace["otherData"] == {"parts": parts, "seconds": 0.01, "processes": 2}


def test_a_long_run_is_counted_to_its_end_though_its_trace_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "MOST_EVENTS", 3)
    trace = to_trace([Event("input", 10**9 * number, 10**9, 1, 1) for number in range(5)], 0, 10**10)
    assert len(trace["traceEvents"]) == 3  # type: ignore[arg-type]
    assert trace["otherData"]["parts"] == {"input": {"seconds": 5, "times": 5}}  # type: ignore[index]


def test_the_wait_for_each_item_is_measured_and_not_what_is_done_with_it(tmp_path: Path) -> None:
    def slow():
        for number in range(2):
            time.sleep(0.05)
            yield number

    with recording(tmp_path / "parts", tmp_path / "trace.json"):
        for _ in each("input", slow()):
            time.sleep(0.2)
    measured = json.loads((tmp_path / "trace.json").read_text())["otherData"]["parts"]["input"]
    assert 0.1 <= measured["seconds"] < 0.3
    assert measured["times"] == 3  # the last one finds that there is no more


OTHER = """
import sys
from pathlib import Path
from harmofl.displays.profiling import join, leave_events, part
folder = Path(sys.argv[1])
join(folder)
for _ in range(2):
    with part("scoring"):
        pass
    leave_events(folder)
"""


def test_other_processes_take_part(tmp_path: Path) -> None:
    with recording(tmp_path / "parts", tmp_path / "trace.json"), part("messages"):
        subprocess.run([sys.executable, "-c", OTHER, str(tmp_path / "parts")], check=True)
    measured = json.loads((tmp_path / "trace.json").read_text())
    assert measured["otherData"]["processes"] == 2
    assert [event["name"] for event in measured["traceEvents"]] == ["messages", "scoring", "scoring"]
    assert not (tmp_path / "parts").exists()
    assert not is_recording()


def test_a_line_that_a_killed_process_left_unfinished_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "12.jsonl").write_text('["input", 1, 2, 3]\n["input", 1')
    assert read_events(tmp_path / "12.jsonl") == [Event("input", 1, 2, 12, 3)]


def test_a_profile_of_a_run_has_every_part_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, profile in (("plain", False), ("run", True)):
        harmofl.train("histology", "harmofl", preset="smoke", settings=tiny(), out=tmp_path / name, profile=profile)
    parts = json.loads((tmp_path / "run" / "profile.json").read_text())["otherData"]["parts"]
    assert {"input", "forward", "backward", "optimizer", "scoring", "aggregation", "checkpoint"} <= set(parts)
    assert parts["forward"]["times"] == parts["backward"]["times"] == 2 * parts["optimizer"]["times"]  # two passes
    assert differences(tmp_path / "plain", tmp_path / "run") == ["only one has profile.json"]
    show_profile(tmp_path / "plain")
    assert not capsys.readouterr().out
    show_profile(tmp_path / "run")
    assert "Where the time went" in capsys.readouterr().out


def test_the_pass_that_estimates_a_sites_statistics_counts_as_scoring(tmp_path: Path) -> None:
    times = {}
    for name in ("fedavg", "freshbn"):
        settings = tiny(rounds=1)
        harmofl.train("histology", name, preset="smoke", settings=settings, out=tmp_path / name, profile=True)
        parts = json.loads((tmp_path / name / "profile.json").read_text())["otherData"]["parts"]
        times[name] = parts["scoring"]["times"]
    # Each of three sites scores two models, and tests the selected one: a pass before each of the three.
    assert times["freshbn"] >= times["fedavg"] + 3 * 3


@pytest.mark.slow
def test_workers_take_part_in_a_profile(tmp_path: Path) -> None:
    settings = tiny(rounds=1, federation__workers=2)
    harmofl.train("histology", "fedavg", preset="smoke", settings=settings, out=tmp_path / "run", profile=True)
    measured = json.loads((tmp_path / "run" / "profile.json").read_text())["otherData"]
    assert measured["processes"] == 3
    assert {"forward", "messages", "aggregation"} <= set(measured["parts"])
    assert not (tmp_path / "run" / ".profile").exists()
