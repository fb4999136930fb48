"""The numbers of every round in short: for each measure and site a list over the rounds, to five digits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

SCORES = ("val", "test")
TRAINED = ("loss", "drift", "bytes_up", "bytes_down")

Record = Mapping[str, Any]
Number = float | int
Series = Number | list[Number | None]
"""A number for each round; one for all of them if they are the same."""


def to_rounds(records: Iterable[Record]) -> dict[str, Any]:
    """Return {"rounds": how many, measure: {site: series}} of validation, test and training in every round."""
    found: dict[str, dict[str, dict[int, Number]]] = {name: {} for name in (*SCORES, *TRAINED)}
    for record in records:
        if record["site"] != "server" and not record.get("selected") and "error" not in record:
            for name, value in _measures(record).items():
                found[name].setdefault(record["site"], {})[record["round"]] = value
    last = max((number for sites in found.values() for values in sites.values() for number in values), default=0)
    short = {
        name: {site: _shorten([values.get(number) for number in range(1, last + 1)]) for site, values in sites.items()}
        for name, sites in found.items()
        if sites
    }
    return {"rounds": last, **short}


def _measures(record: Record) -> dict[str, Number]:
    if record["phase"] in SCORES:
        return {record["phase"]: _round(record["metric"])}
    return {name: _round(record[name]) for name in TRAINED if name in record} if record["phase"] == "train" else {}


def _round(value: Number) -> Number:
    return value if isinstance(value, int) else float(f"{value:.5g}")


def _shorten(values: Sequence[Number | None]) -> Series:
    first = values[0]
    return first if first is not None and all(value == first for value in values) else list(values)


def from_rounds(rounds: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The records of which `to_rounds` was made, round by round and site by site."""
    sites = sorted({site for name in (*SCORES, *TRAINED) for site in rounds.get(name, {})})
    for number in range(1, rounds["rounds"] + 1):
        for site in sites:
            place = {"round": number, "site": site}
            trained = {name: value for name in TRAINED if (value := _at(rounds, name, site, number)) is not None}
            if trained:
                yield place | {"phase": "train"} | trained
            for phase in SCORES:
                if (score := _at(rounds, phase, site, number)) is not None:
                    yield place | {"phase": phase, "metric": score}


def _at(rounds: Mapping[str, Any], measure: str, site: str, number: int) -> Number | None:
    series: Series | None = rounds.get(measure, {}).get(site)
    return series[number - 1] if isinstance(series, list) else series
