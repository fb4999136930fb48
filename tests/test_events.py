"""Lines of records.jsonl as events."""

import pytest

from harmofl.events import Event, RoundFinished, SiteAnswered, SiteLeftOut, SiteScored, Watchers, event_of

RECORDS: list[tuple[dict[str, object], Event]] = [
    (
        {"round": 1, "site": "A", "phase": "train", "loss": 0.5, "num_steps": 3},
        SiteAnswered(1, "A", "train", {"loss": 0.5, "num_steps": 3}),
    ),
    ({"round": 0, "site": "A", "phase": "measure", "bytes_up": 9}, SiteAnswered(0, "A", "measure", {"bytes_up": 9})),
    ({"round": 1, "site": "A", "phase": "train", "error": "NaN"}, SiteLeftOut(1, "A", "train", "NaN")),
    (
        {"round": 2, "site": "A", "phase": "test", "metric": 0.5, "selected": True},
        SiteScored(2, "A", "test", {"metric": 0.5}, selected=True),
    ),
    (
        {"round": 2, "site": "C", "phase": "unseen", "metric": 0.5, "note": "mean"},
        SiteScored(2, "C", "unseen", {"metric": 0.5}),
    ),
    (
        {"round": 2, "site": "server", "phase": "train", "loss": 0.5, "seconds": 1.0, "left_out": ["B"]},
        RoundFinished(2, 0.5, 1.0, None, ("B",)),
    ),
]


@pytest.mark.parametrize(("record", "event"), RECORDS)
def test_a_record_is_one_event(record: dict[str, object], event: Event) -> None:
    assert event_of(record) == event


def test_several_watchers_see_every_event() -> None:
    seen: list[Event] = []
    Watchers((seen.append, seen.append))(RECORDS[0][1])
    assert seen == [RECORDS[0][1]] * 2
