"""Five hundred sites: the page stays readable, the live file is not written for each of them, and a line names ten."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from harmofl.events import RoundFinished, RoundStarted, RunStarted, SiteAnswered
from harmofl.reporting.live_view import MOST_ROWS, score_chart, sentence, site_rows, view
from harmofl.runs import live_file
from harmofl.runs.live_file import LiveFile
from harmofl.runs.status import RunStatus

SITES = [f"hospital-{number:03d}" for number in range(500)]
ROUNDS = 20


def many_records() -> list[dict[str, Any]]:
    """Rounds of all sites; the last one is left out of every round."""
    found: list[dict[str, Any]] = []
    for number in range(1, ROUNDS + 1):
        for place, site in enumerate(SITES[:-1]):
            found.append({"round": number, "site": site, "phase": "train", "loss": 0.5, "seconds": 1.0})
            found.append({"round": number, "site": site, "phase": "val", "metric": place / 1000})
        found.append({"round": number, "site": SITES[-1], "phase": "train", "error": "no answer"})
        found.append({"round": number, "site": "server", "phase": "train", "loss": 0.5, "seconds": 9.0})
    return found


@pytest.fixture
def status() -> RunStatus:
    config = {"task": "histology", "method": {"name": "fedavg"}, "training": {"rounds": 30}}
    live = {"round": 21, "sites": SITES, "asked": SITES[:50], "answered": SITES[:7], "left_out": {}}
    return RunStatus(Path("run"), "running", config, {"sites": SITES}, many_records(), live=live)


def test_the_table_begins_with_the_sites_that_were_left_out_and_says_how_many_follow(status: RunStatus) -> None:
    shown = view(status)
    assert [row.name for row in shown["sites"]][:2] == [SITES[-1], SITES[0]]
    assert (len(shown["sites"]), shown["more_sites"]) == (MOST_ROWS, 500 - MOST_ROWS)


def test_of_many_sites_the_lowest_the_highest_and_the_mean_are_drawn(status: RunStatus) -> None:
    lines = {line.name: line.values[1] for line in score_chart(status).lines}
    assert lines == pytest.approx({"lowest site": 0.0, "highest site": 49.8, "mean over sites": 24.9})


def test_the_sentence_counts_those_who_are_asked(status: RunStatus) -> None:
    assert sentence(status) == "Round 21 of 30: 7 of 50 sites have answered."
    now = {row.name: row.now for row in site_rows(status)}
    assert (now[SITES[0]], now[SITES[20]]) == ("has answered", "is at work")
    assert now[SITES[99]] == "is not asked in this round"


def test_the_page_takes_no_longer_than_its_records_do(status: RunStatus) -> None:
    started = time.process_time()
    view(status)
    assert time.process_time() - started < 2  # it took minutes when every site looked through all records


def test_the_live_file_is_written_twice_a_second_and_at_every_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[dict[str, Any]] = []
    monkeypatch.setattr(live_file, "write_whole", lambda path, content, lasting: written.append(json.loads(content)))
    watch = LiveFile(tmp_path / "live.json")
    watch(RunStarted("histology", "fedavg", "FedAvg", tuple(SITES), 2, 0, "accuracy", "%"))
    watch(RoundStarted(1, tuple(SITES)))
    for site in SITES:
        watch(SiteAnswered(1, site, "train", {}))
    assert 2 <= len(written) < 20
    watch(RoundFinished(1, 0.5, 1.0))
    assert (written[-1]["round"], written[-1]["answered"]) == (2, [])
