"""All sites and a server of one secure sum, without a network: what tests and benchmarks drive."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from harmofl.federation.secure.fixed_point import Words, encode
from harmofl.federation.secure.roster import Exchange
from harmofl.federation.secure.session import SiteExchange
from harmofl.federation.secure.unmasking import Unmasking

RUN = "0123456789abcdef" * 2
MODEL = "the digest of a model"


def exchange(round_number: int = 1, session: str = "first", kind: str = "train") -> Exchange:
    return Exchange(RUN, kind, round_number, session)


def sites(folder: Path, names: Sequence[str], consortium: bytes = b"") -> dict[str, SiteExchange]:
    return {name: SiteExchange(name, 10, folder / name, consortium) for name in names}


def up_to_shares(parties: Mapping[str, SiteExchange], which: Exchange) -> tuple[Unmasking, dict[str, dict[str, str]]]:
    """Every site has told its keys and made its shares; the shares by receiver."""
    unmasking = Unmasking.of(which, {name: party.advertise(which) for name, party in parties.items()})
    made = {name: party.share(which, unmasking.roster.to_json()) for name, party in parties.items()}
    return unmasking, {
        name: {sender: shares[name] for sender, shares in made.items() if sender != name} for name in parties
    }


def masked(
    parties: Mapping[str, SiteExchange], values: Mapping[str, torch.Tensor], which: Exchange, model: str = MODEL
) -> tuple[Unmasking, dict[str, Words]]:
    """Up to the masked numbers of every site."""
    unmasking, received = up_to_shares(parties, which)
    rows = {name: encode(values[name], len(parties)) for name in parties}
    for name, party in parties.items():
        party.mask(which, received[name], model, rows[name])
    return unmasking, rows


def total_of(rows: Mapping[str, Words], survivors: Sequence[str]) -> Words:
    total = np.zeros_like(next(iter(rows.values())))
    for name in survivors:
        total += rows[name]
    return total


def signed(parties: Mapping[str, SiteExchange], survivors: Sequence[str], which: Exchange) -> dict[str, str]:
    """Every survivor's signature below their list."""
    return {name: parties[name].confirm(which, list(survivors))["signature"] for name in survivors}


def revealed(
    parties: Mapping[str, SiteExchange], survivors: Sequence[str], which: Exchange
) -> dict[str, dict[str, str]]:
    """Every survivor's shares, once all have signed."""
    signatures = signed(parties, survivors, which)
    return {name: parties[name].unmask(which, list(survivors), signatures) for name in survivors}
