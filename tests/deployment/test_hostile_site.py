"""A registered site that lies: its reply is refused with the reason, and the run goes on with the others."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from loopback import Loopback, looped, make_kits

from harmofl.deployment.coordinator import RunOptions, coordinate, is_description
from harmofl.deployment.replies import reply_of
from harmofl.federation.messages import Reply, Request, encode
from runs import SITES, records, tiny

THREE = SITES[:3]
LIAR = THREE[1]
ENDLESS = 10**400

Change = Callable[[dict[str, Any]], Any]


def rewritten(data: bytes, change: Change) -> bytes:
    """A message with other plain fields."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    plain = json.loads(header["__metadata__"]["message"])
    change(plain)
    header["__metadata__"]["message"] = json.dumps(plain)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def with_metrics(**phases: Any) -> Change:
    return lambda plain: plain["metrics"].update(phases)


def field(name: str, value: Any) -> Change:
    return lambda plain: plain.update({name: value})


class Lying(Loopback):
    """One site's answers to a kind of request are changed on their way."""

    kind = "train"
    change: Change

    def ask(self, requests: Mapping[str, Request], timeout: float) -> Iterator[Reply]:
        for site, request in sorted(requests.items()):
            data = self.participants[site].answer(encode(request))
            if site == LIAR and request.kind == self.kind:
                data = rewritten(data, self.change)
            yield reply_of(site, data, 2**30)


def run_with_a_liar(tmp_path: Path, kind: str, change: Change) -> list[dict[str, Any]]:
    server, sites = make_kits(tmp_path, dict.fromkeys(THREE, "synthetic"), ["histology"])
    with looped(sites) as loopback:
        loopback.__class__ = Lying
        loopback.kind, loopback.change = kind, change  # type: ignore[attr-defined]
        given = tiny() | {"federation.weights": "examples"}
        coordinate(server, RunOptions("histology", "fedavg", "smoke", given=given), tmp_path / "run", wait=1)
    return records(tmp_path / "run")


LIES: dict[str, tuple[str, Change]] = {
    "no loss": ("train", with_metrics(train={})),
    "a number for numbers": ("train", with_metrics(train=5)),
    "a loss without end": ("train", with_metrics(train={"loss": ENDLESS})),
    "examples without end": ("train", field("num_examples", ENDLESS)),
    "another's score": ("train", with_metrics(val={THREE[0]: {"loss": 0.0, "metric": 1e9}})),
    "a score without its number": ("train", with_metrics(val={LIAR: {"loss": 1.0}})),
    "a record's own fields": ("train", with_metrics(train={"loss": 1.0, "site": 5, "round": 99})),
    "a name with orders to the terminal": ("train", with_metrics(train={"loss": 1.0, "\x1b[2J": 1.0})),
    "no test score": ("evaluate", with_metrics(test={LIAR: {"loss": 1.0}})),
    "a number for test scores": ("evaluate", with_metrics(test=3)),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_refused_and_the_run_goes_on(tmp_path: Path, lie: str) -> None:
    found = run_with_a_liar(tmp_path, *LIES[lie])
    refused = [record for record in found if "another type or name" in str(record.get("error"))]
    assert refused
    assert {record["site"] for record in refused} == {LIAR}
    assert all(record.get("metric", 0) <= 1 for record in found)


@pytest.mark.parametrize("words", ["\x1b[2Jowned\n", "\ud800", "x" * 5_000_000, "[/bold]"])
def test_a_reason_is_one_short_line_whatever_the_site_wrote(tmp_path: Path, words: str) -> None:
    found = run_with_a_liar(tmp_path, "train", field("error", words))
    reasons = [record["error"] for record in found if "error" in record]
    assert reasons
    assert all(reason.isprintable() and len(reason) <= 500 for reason in reasons)


def test_endless_brackets_are_no_message() -> None:
    deep = "[" * 200_000 + "]" * 200_000
    text = json.dumps({"__metadata__": {"message": f'{{"site": "A", "metrics": {deep}}}'}}).encode()
    assert "not a message" in reply_of("A", len(text).to_bytes(8, "little") + text, 2**30).error


@pytest.mark.parametrize(
    "changes",
    [
        {"channels": 2**30},
        {"channels": True},
        {"num_train": 0},
        {"classes": ["a"] * 10_000},
        {"classes": ["\ud800", "b"]},
        {"classes": "ab"},
        {"synthetic": "no"},
    ],
)
def test_a_description_of_no_images_is_none(changes: dict[str, Any]) -> None:
    honest = {"synthetic": False, "channels": 3, "classes": ["0", "1"], "num_train": 10}
    assert is_description(honest)
    assert not is_description(honest | changes)
