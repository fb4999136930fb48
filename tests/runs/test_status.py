"""What a run's folder says of it at any moment."""

from dataclasses import replace
from pathlib import Path

import pytest

from harmofl.errors import UsageError
from harmofl.events import Event, RoundFinished, SiteAnswered
from harmofl.federation.client import Client
from harmofl.federation.messages import Reply, Request
from harmofl.files import claimed, is_claimed
from harmofl.runs.folder import RunFolder
from harmofl.runs.status import RunStatus, find_run_folders, read_status
from runs import SITES, train
from written_runs import write_run


class Onlooker:
    """Looks at a run's folder from outside, at every event."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.seen: list[tuple[Event, RunStatus]] = []

    def __call__(self, event: Event) -> None:
        if (self.out / "checkpoint").exists():
            self.seen.append((event, read_status(self.out)))


def test_a_run_is_seen_while_it_runs_and_when_it_was_stopped_failed_or_finished(tmp_path: Path) -> None:
    out = tmp_path / "run"
    onlooker = Onlooker(out)

    def stop(event: Event) -> None:
        onlooker(event)
        if isinstance(event, SiteAnswered) and (event.round, event.site) == (2, SITES[1]):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(out, rounds=2, watch=stop)
    _, status = onlooker.seen[-1]
    assert (status.state, status.done_rounds, status.planned_rounds) == ("running", 1, 2)
    assert status.live["round"] == 2
    assert status.live["answered"] == SITES[:1]  # the other answer comes with the event that is told just now
    assert status.seconds_left == pytest.approx(status.records[-1]["seconds"])
    assert status.sites == SITES

    status = read_status(out)
    assert (status.state, status.done_rounds, status.live, status.seconds_left) == ("stopped", 1, {}, None)
    assert status.best is None  # a model is scored by those who receive it

    def fail(event: Event) -> None:
        if isinstance(event, RoundFinished):
            raise RuntimeError("my logger broke")

    with pytest.raises(RuntimeError, match="my logger broke"):
        train(out, rounds=2, resume=True, watch=fail)
    status = read_status(out)
    assert (status.state, status.problem) == ("failed", "RuntimeError: my logger broke")

    summary = train(out, rounds=2, resume=True)
    status = read_status(out)
    assert (status.state, status.problem, status.average) == ("finished", "", summary["test"]["average"])
    assert status.best is not None
    assert status.best[0] == summary["best_round"]
    assert not RunFolder(out).failure.exists()
    assert not RunFolder(out).live.exists()


def test_what_is_half_written_or_missing_is_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "fedavg", {"A": 0.5, "B": 0.7}, failed=("B", 2))
    (folder / "summary.json").unlink()
    (folder / "checkpoint").mkdir()
    with (folder / "records.jsonl").open("a") as file:
        file.write('{"round": 7, "site": "A", "pha')
    status = read_status(folder)
    assert (status.state, status.done_rounds) == ("stopped", 6)
    assert [record["site"] for record in status.left_out] == ["B"]
    assert status.validation[2].keys() == {"A"}
    (folder / "config.toml").write_text("not toml [")
    (folder / "summary.json").write_text('{"task": "histology", "test": {}}')
    status = read_status(folder)
    assert (status.task, status.state) == ("", "stopped")


def test_a_lock_is_seen_and_looking_at_it_does_not_keep_others_out(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    assert not is_claimed(path)
    assert not path.exists()
    with claimed(path, "taken"):
        assert is_claimed(path)
        with pytest.raises(UsageError, match="taken"), claimed(path, "taken"):
            pass
    assert not is_claimed(path)


def test_runs_are_found_in_folders_of_folders_but_not_in_runs(tmp_path: Path) -> None:
    for place in ("a", "table/fedavg/seed-0", "table/.hidden"):
        write_run(tmp_path / "runs" / place, "fedavg", {"A": 0.5, "B": 0.7})
    write_run(tmp_path / "runs" / "a" / "inner", "fedavg", {"A": 0.5, "B": 0.7})
    found = [path.relative_to(tmp_path / "runs").as_posix() for path in find_run_folders(tmp_path / "runs")]
    assert found == ["a", "table/fedavg/seed-0"]
    with pytest.raises(UsageError, match="no such folder"):
        find_run_folders(tmp_path / "nowhere")


def test_the_score_of_an_unknown_task_is_a_plain_number(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "fedavg", {"A": 0.5, "B": 0.7})
    (folder / "summary.json").unlink()
    (folder / "checkpoint").mkdir()
    config = RunFolder(folder).config
    config.write_text(config.read_text().replace('"histology"', '"of a plugin"'))
    assert read_status(folder).score.format(0.5) == "0.50"


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_the_best_round_is_the_one_that_the_server_selects_where_a_site_was_missing(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After round 1 only the best site is scored, so that its mean over sites would be the highest."""
    scores = iter([0.9, 0.5, 0.6, 0.7, 0.6])

    def lose_scores(client: Client, request: Request) -> Reply:
        reply = answer(client, request)
        if "val" not in reply.metrics:
            return reply
        if request.round == 2 and client.site.name != SITES[0]:
            return replace(reply, metrics={name: each for name, each in reply.metrics.items() if name == "train"})
        own = {client.site.name: {"loss": 1.0, "metric": next(scores)}}
        return replace(reply, metrics=dict(reply.metrics) | {"val": own})

    answer = Client.answer
    monkeypatch.setattr(Client, "answer", lose_scores)
    summary = train(tmp_path / "run", method, rounds=3, data__sites=SITES[:2])
    best = read_status(tmp_path / "run").best
    assert best is not None
    assert best[0] == summary["best_round"] == (3 if method == "fedavg" else None)
    assert best[1] == pytest.approx((0.7 + 0.6) / 2 if method == "fedavg" else (0.9 + 0.6) / 2)
