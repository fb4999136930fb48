"""What secure aggregation costs in a round: processor time at a site and at the server, and bytes that travel.

Every exchange is made by real sites. The rows of numbers that travel in it are short, and their sum is checked; what
grows with the model (masking a row at one site, unmasking the sum at the server) is timed on a model of 30 MB.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from harmofl.federation.secure.fixed_point import decode, encode
from harmofl.federation.secure.keys import KeyPair
from harmofl.federation.secure.masking import add_masks
from harmofl.federation.secure.roster import Exchange
from harmofl.federation.secure.session import SiteExchange
from harmofl.federation.secure.unmasking import Unmasking
from measuring import Bound, Samples, benchmark

MODEL_BYTES = 30_000_000
NUMBERS = MODEL_BYTES // 4
"""Weights of 32 bits; masked, each takes 64."""
SIZES = (10, 100)
DROPPED = 0.1
"""Part of the sites that drop out in mid-round, in the second case of each size."""
MODEL = "a digest"


@dataclass(frozen=True)
class Costs:
    """Of one round; seconds of one processor."""

    sites: int
    dropped: int
    exchanges: float
    masking: float
    unmasking: float
    bytes_up: int
    bytes_down: int

    def __str__(self) -> str:
        return (
            f"{self.sites:5}  {self.dropped:7}  {self.exchanges:9.3f}  {self.masking:7.2f}  {self.unmasking:9.2f}  "
            f"{self.bytes_up / 1e6:7.2f}  {self.bytes_down / 1e6:9.2f}"
        )


HEADER = "sites  dropped  exchanges  masking  unmasking  MB sent  MB received"


def seconds(action: Callable[[], object]) -> float:
    """The processor time of an action."""
    started = time.process_time()
    action()
    return time.process_time() - started


def measure(num_sites: int, num_dropped: int, folder: Path) -> Costs:
    """One round."""
    names, exchange = [f"site-{number:03d}" for number in range(num_sites)], Exchange("run", "train", 1, "session")
    parties = {name: SiteExchange(name, 100, folder / name) for name in names}
    started = time.process_time()
    adverts = {name: party.advertise(exchange) for name, party in parties.items()}
    unmasking = Unmasking.of(exchange, adverts)
    roster = unmasking.roster.to_json()
    made = {name: party.share(exchange, roster) for name, party in parties.items()}
    received = {name: {sender: made[sender][name] for sender in names if sender != name} for name in names}
    rows = {name: encode(torch.tensor([1.5, -0.25]), num_sites) for name in names}
    for name, party in parties.items():
        party.mask(exchange, received[name], MODEL, rows[name])
    survivors = names[num_dropped:]
    signed = {name: parties[name].confirm(exchange, survivors)["signature"] for name in survivors}
    revealed = {name: parties[name].unmask(exchange, survivors, signed) for name in survivors}
    exchanges = (time.process_time() - started) / num_sites
    check_sum(unmasking, rows, survivors, revealed)
    total = np.zeros(NUMBERS, dtype=np.uint64)
    some = survivors[0]
    up = adverts[some], made[some], signed[some], revealed[some]
    down = roster, received[some], survivors, survivors, signed
    return Costs(
        sites=num_sites,
        dropped=num_dropped,
        exchanges=exchanges,
        masking=seconds(lambda: mask_model(unmasking, some)),
        unmasking=seconds(lambda: unmasking.take_masks(total, names, survivors, revealed, MODEL)),
        bytes_up=sum(len(json.dumps(each)) for each in up) + 8 * NUMBERS,
        bytes_down=sum(len(json.dumps(each)) for each in down) + MODEL_BYTES,
    )


def check_sum(
    unmasking: Unmasking,
    rows: Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.uint64]]],
    survivors: Sequence[str],
    revealed: Mapping[str, Mapping[str, str]],
) -> None:
    """Raise an error unless the unmasked sum is what the sites had."""
    total = np.zeros(2, dtype=np.uint64)
    for name in survivors:
        total += rows[name]
    unmasking.take_masks(total, list(rows), survivors, revealed, MODEL)
    if decode(total).tolist() != [1.5 * len(survivors), -0.25 * len(survivors)]:
        raise ValueError(f"a wrong sum: {decode(total)}")


def mask_model(unmasking: Unmasking, site: str) -> None:
    """What one site does to the numbers of its model, with keys of the same kind."""
    roster = unmasking.roster
    row = encode(torch.full((NUMBERS,), 0.1, dtype=torch.float64), len(roster.adverts))
    others = {name: bytes.fromhex(advert.mask_key) for name, advert in roster.adverts.items() if name != site}
    context = roster.context(sorted(roster.adverts), MODEL)
    add_masks(row, site, KeyPair.make().private, bytes(32), others, context)


def cases() -> Iterator[Costs]:
    """Every size, with all sites and with some that drop out."""
    for num_sites in SIZES:
        for num_dropped in (0, round(DROPPED * num_sites)):
            with tempfile.TemporaryDirectory() as folder:
                yield measure(num_sites, num_dropped, Path(folder))


def names_of(num_sites: int, num_dropped: int) -> tuple[str, str]:
    """What the masking and the unmasking of a case are called."""
    where = f"30 MB, {num_sites} sites" + (f", {num_dropped} drop out" if num_dropped else "")
    return f"secure aggregation, masking at a site: {where}", f"secure aggregation, unmasking: {where}"


@benchmark(
    *(
        Bound(name, unit="CPU s")
        for num_sites in SIZES
        for num_dropped in (0, round(DROPPED * num_sites))
        for name in names_of(num_sites, num_dropped)
    )
)
def secure_costs(is_quick: bool) -> Samples:
    """What masking costs a site and unmasking the server, of a model of 30 MB; reported, without a bound."""
    found: dict[str, list[float]] = {}
    for costs in cases():
        masking, unmasking = names_of(costs.sites, costs.dropped)
        found |= {masking: [costs.masking], unmasking: [costs.unmasking]}
    return found


def main() -> int:
    """Print the costs of all cases."""
    torch.set_num_threads(1)
    print(
        f"a model of {MODEL_BYTES / 1e6:.0f} MB; seconds of one processor, for a site (exchanges, masking) and for the"
    )
    print("server (unmasking); megabytes that one site sends and receives in a round")
    print(HEADER)
    for costs in cases():
        print(costs, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
