"""Who asked what, what was refused and what was sent stands in a log that shows every change."""

import asyncio
import json
import os
import pwd
import resource
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from loopback import looped, make_kits
from typer.testing import CliRunner

from harmofl.cli.entry import app
from harmofl.deployment import audit
from harmofl.deployment.audit import Refusals, audit_log, user_name, verify, write_entry
from harmofl.deployment.checking import check_audit
from harmofl.deployment.coordinator import RunOptions, coordinate
from harmofl.deployment.flower.guard import Guard
from harmofl.deployment.logs import hint_at_clock, name_cause
from harmofl.deployment.participant import Participant
from harmofl.errors import UsageError
from harmofl.federation.messages import decode_reply
from runs import SITES, tiny


def entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_both_ends_of_a_run_write_down_what_was_asked_and_sent(tmp_path: Path) -> None:
    server, sites = make_kits(tmp_path, dict.fromkeys(SITES[:2], "synthetic"), ["histology"])
    with looped(sites):
        coordinate(server, RunOptions("histology", "fedavg", "smoke", given=tiny(rounds=1)), tmp_path / "run", wait=1)
    site, at_server = (entries(audit_log(kit.folder)) for kit in (sites[SITES[0]], server))
    assert [entry["asked"] for entry in site] == ["describe", "train", "evaluate", "evaluate"]
    assert all(entry["outcome"] == "done" and entry["sent"] > 0 and entry["who"] == "localhost:9000" for entry in site)
    assert len({entry["settings"] for entry in site[1:]}) == 1
    assert [entry["asked"] for entry in at_server[:3]] == ["deploy run", "describe", "describe"]
    assert {entry["who"] for entry in at_server[1:]} == set(SITES[:2])
    output = CliRunner().invoke(app, ["deploy", "audit", str(sites[SITES[0]].folder)]).output
    assert "4 entries" in output
    assert "the chain holds" in output
    assert site[-1]["digest"] in output


def test_refusals_are_written_down_too(tmp_path: Path) -> None:
    _, sites = make_kits(tmp_path, {SITES[0]: "synthetic"}, ["histology"])
    participant = Participant(sites[SITES[0]])
    participant.answer(b"garbage")
    found = verify(audit_log(sites[SITES[0]].folder))
    assert (found.entries, found.refused) == (1, 1)


def test_nothing_leaves_that_cannot_be_written_down(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, sites = make_kits(tmp_path, {SITES[0]: "synthetic"}, ["histology"])
    audit_log(sites[SITES[0]].folder).mkdir()
    reply = decode_reply(Participant(sites[SITES[0]]).answer(b"garbage"))
    assert reply.error.startswith("its audit log cannot be written")
    assert "a request was not answered: IsADirectoryError" in caplog.text


def test_an_entry_that_a_disk_takes_in_part_only_is_not_written_down(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    write_entry(path, outcome="done")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 50, limits[1]))
    try:
        with pytest.raises(OSError, match="No space left"):
            write_entry(path, outcome="done")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_container_whose_user_has_no_name_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    assert user_name()
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # as where `docker run --user 1234` meets no such user
    assert user_name() == f"user {os.getuid()}"


def damage(lines: list[str], how: str) -> list[str]:
    if how == "changed":
        return [lines[0], lines[1].replace("done", "gone"), lines[2]]
    if how == "taken out":
        return [lines[0], lines[2]]
    if how == "said twice":
        return [lines[0], lines[1].replace("{", '{"outcome": "refused", ', 1), lines[2]]
    if how == "swapped":
        return [lines[1], lines[0], lines[2]]
    return [lines[0], "{}", *lines[1:]]


@pytest.mark.parametrize("how", ["changed", "taken out", "said twice", "swapped", "put in"])
def test_a_changed_log_is_noticed(tmp_path: Path, how: str) -> None:
    path = tmp_path / "audit.jsonl"
    for number in range(3):
        write_entry(path, who="server", asked="train", round=number, outcome="done")
    whole = verify(path)
    assert whole.entries == 3
    path.write_text("\n".join(damage(path.read_text().splitlines(), how)) + "\n")
    with pytest.raises(UsageError, match=r"line [12]: the chain is broken here"):
        verify(path)
    (finding,) = check_audit(tmp_path)
    assert not finding.ok


def test_a_line_that_was_cut_short_breaks_the_chain_and_later_ones_are_still_written(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    write_entry(path, outcome="done")
    with path.open("a") as file:
        file.write('{"outcome": "do')
    write_entry(path, outcome="after")
    assert len(path.read_text().splitlines()) == 3
    with pytest.raises(UsageError, match="line 2"):
        verify(path)


def test_somebody_who_knocks_often_fills_no_log(tmp_path: Path) -> None:
    refusals = Refusals(tmp_path / "audit.jsonl")
    for _ in range(100):
        refusals.note("192.0.2.7", "401 at the door")
    (entry,) = entries(tmp_path / "audit.jsonl")
    assert entry["outcome"] == "refused: 401 at the door"


def test_no_refusal_is_forgotten_however_many_reasons_somebody_makes_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MOST_REASONS", 3)
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    refusals = Refusals(tmp_path / "audit.jsonl")
    for _ in range(5):
        refusals.note("A", "401")
    for number in range(10):
        refusals.note(f"made up {number}", "404")
    assert len(entries(tmp_path / "audit.jsonl")) == 4  # A, two others, and the rest together
    clock[0] = 61.0
    refusals.note("A", "401")
    counted = Counter[str]()
    for entry in entries(tmp_path / "audit.jsonl"):
        counted[entry["who"]] += entry["times"]
    refusals.note("A", "401")
    assert counted == {"A": 6 - 1, "made up 0": 1, "made up 1": 1, "several": 8}
    clock[0] = 122.0
    refusals.note("B", "401")
    assert sum(entry["times"] for entry in entries(tmp_path / "audit.jsonl") if entry["who"] == "A") == 7
    assert len(refusals._noted) <= 4


def test_flowers_door_notes_strangers_and_failed_logins() -> None:
    noted: list[tuple[str, str]] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": []})

    async def send(message: Any) -> None:
        pass

    guard = Guard(application, b"secret", dict, lambda who, reason: noted.append((who, reason)))
    headers = [(b"content-length", b"0")]
    for path in ("/v1/control/list", "/v1/fleet/activate-node"):
        scope = {"type": "http", "path": path, "headers": headers, "client": ("192.0.2.7", 1)}
        asyncio.run(guard(scope, None, send))  # type: ignore[arg-type]
    assert noted == [("192.0.2.7", "404 at the door"), ("192.0.2.7", "401 at the door")]


def test_the_log_names_the_cause() -> None:
    failed = RuntimeError("training")
    failed.__cause__ = OSError(28, "No space left on device")
    assert name_cause(failed) == "the disk is full"
    assert name_cause(MemoryError()) == "out of memory"
    assert "clock may be wrong" in hint_at_clock("certificate verify failed: certificate is not yet valid")
    assert hint_at_clock("connection refused") == "connection refused"
