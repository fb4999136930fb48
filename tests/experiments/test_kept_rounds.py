from harmofl.experiments.kept_rounds import from_rounds, to_rounds

TRAINED = {"phase": "train", "loss": 0.123456789, "drift": 0.5, "bytes_up": 10, "bytes_down": 9}


def test_the_numbers_of_every_round_are_shortened_and_read_back() -> None:
    records = [
        {"round": 1, "site": "A", **TRAINED},
        {"round": 1, "site": "A", "phase": "val", "metric": 0.75, "loss": 0.2},
        {"round": 1, "site": "A", "phase": "test", "metric": 0.5, "loss": 0.2},
        {"round": 2, "site": "A", **TRAINED, "drift": 2.0},
        {"round": 2, "site": "A", "phase": "val", "metric": 0.5},
        {"round": 2, "site": "A", "phase": "test", "metric": 0.5},
    ]
    rounds = to_rounds(records)
    assert rounds == {
        "rounds": 2,
        "val": {"A": [0.75, 0.5]},
        "test": {"A": 0.5},
        "loss": {"A": 0.12346},
        "drift": {"A": [0.5, 2.0]},
        "bytes_up": {"A": 10},
        "bytes_down": {"A": 9},
    }
    kept = {"round": 1, "site": "A", "phase": "train", "loss": 0.12346, "drift": 0.5, "bytes_up": 10, "bytes_down": 9}
    assert list(from_rounds(rounds)) == [
        kept,
        {"round": 1, "site": "A", "phase": "val", "metric": 0.75},
        {"round": 1, "site": "A", "phase": "test", "metric": 0.5},
        kept | {"round": 2, "drift": 2.0},
        {"round": 2, "site": "A", "phase": "val", "metric": 0.5},
        {"round": 2, "site": "A", "phase": "test", "metric": 0.5},
    ]


def test_a_round_without_a_number_stays_without_it() -> None:
    records = [{"round": number, "site": site, "phase": "val", "metric": 0.5} for number, site in [(1, "A"), (3, "B")]]
    rounds = to_rounds(records)
    assert rounds == {"rounds": 3, "val": {"A": [0.5, None, None], "B": [None, None, 0.5]}}
    assert list(from_rounds(rounds)) == records


def test_only_what_sites_reported_in_a_round_is_kept() -> None:
    records = [
        {"round": 1, "site": "A", "phase": "test", "metric": 0.5, "selected": True},
        {"round": 1, "site": "B", "phase": "train", "error": "timed out"},
        {"round": 1, "site": "server", "phase": "train", "loss": 1.0},
        {"round": 0, "site": "A", "phase": "amplitude", "bytes_up": 5},
    ]
    assert to_rounds(records) == {"rounds": 0}
    assert list(from_rounds({"rounds": 0})) == []
