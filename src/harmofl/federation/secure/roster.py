"""Who takes part in a round: every site's public keys, as the server relays them, and what all sites must agree on."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FEWEST_SITES = 3
"""Of two, each could take its own numbers from the sum."""
KEY_HEX = 64
KEYS = ("mask_key", "share_key", "sign_key")


@dataclass(frozen=True)
class Exchange:
    """Which sum is being made: every attempt at a round has a name of its own, and keys of its own."""

    run: str
    kind: str
    """What the sum is of: `measure` or `train`."""
    round: int
    session: str


@dataclass(frozen=True)
class Advert:
    """What a site tells all others before a round."""

    mask_key: str
    """Public, in hex: with its private half a site agrees with another one on their mask."""
    share_key: str
    """Public, in hex: for the shares that it receives."""
    sign_key: str
    """Public, in hex: for its signature below the list of survivors."""
    num_examples: int
    """All sites know it, as an average by examples needs everybody's."""
    proof: str = ""
    """Made with the consortium's key, which sites have and the server has not."""

    @classmethod
    def read(cls, value: Any) -> Advert:
        """One that travelled; ValueError if it is not one."""
        if not isinstance(value, dict) or value.keys() != {"num_examples", "proof", *KEYS}:
            raise ValueError("its public keys are missing")
        advert = cls(**value)
        if not all(_is_hex(value[key]) for key in KEYS) or not isinstance(advert.proof, str):
            raise ValueError("its public keys are not keys")
        if type(advert.num_examples) is not int or not 0 < advert.num_examples < 2**53:
            raise ValueError("its number of images is not one")
        return advert


def prove(advert: Advert, exchange: Exchange, site: str, consortium: bytes) -> str:
    """The proof that an advert is this site's, for this exchange; empty where the consortium has no key."""
    if not consortium:
        return ""
    content = [vars(exchange), site, *(getattr(advert, key) for key in KEYS), advert.num_examples]
    return hmac.new(consortium, to_bytes(content), hashlib.sha256).hexdigest()


@dataclass(frozen=True)
class Roster:
    """The sites of an exchange, with their adverts."""

    exchange: Exchange
    adverts: Mapping[str, Advert]
    threshold: int
    """How many sites can unmask the sum, and must have signed who is in it."""

    @classmethod
    def of(cls, exchange: Exchange, adverts: Mapping[str, Advert]) -> Roster:
        """The roster of all sites that told their keys."""
        return cls(exchange, adverts, threshold_of(len(adverts)))

    @classmethod
    def read(cls, exchange: Exchange, value: Any) -> Roster:
        """One that travelled; ValueError says what is wrong with it."""
        if not isinstance(value, dict) or len(value) < FEWEST_SITES:
            raise ValueError(f"a sum of fewer than {FEWEST_SITES} sites could reveal what one of them sent")
        adverts = {site: Advert.read(advert) for site, advert in value.items()}
        keys = [getattr(advert, key) for advert in adverts.values() for key in KEYS]
        if len(set(keys)) < len(keys):
            raise ValueError("two public keys are the same")
        return cls.of(exchange, adverts)

    def check_proofs(self, consortium: bytes) -> None:
        """Raise ValueError for an advert that does not come from a site of the consortium."""
        for site, advert in self.adverts.items() if consortium else ():
            if not hmac.compare_digest(advert.proof.encode(), prove(advert, self.exchange, site, consortium).encode()):
                raise ValueError(f"the public keys of {site!r:.80} are not from a site with the consortium's key")

    def place(self, site: str) -> int:
        """Where a site's shares stand on the polynomials: from 1, in the order of names."""
        return sorted(self.adverts).index(site) + 1

    def to_json(self) -> dict[str, dict[str, Any]]:
        """As it travels."""
        return {site: dict(vars(advert)) for site, advert in sorted(self.adverts.items())}

    def context(self, members: Sequence[str], model: str) -> bytes:
        """What every mask is bound to: sites that were told something else have masks that do not cancel.

        So a server that gives each site another list of sites, or another model to train, learns nothing from the sum
        (Pasquini et al., CCS 2022, show what it would learn otherwise).
        """
        content = [vars(self.exchange), self.to_json(), self.threshold, sorted(members), model]
        return hashlib.sha256(to_bytes(content)).digest()

    def statement(self, context: bytes, survivors: Sequence[str]) -> bytes:
        """What a site signs: that of this sum's sites these, and no others, have sent their numbers."""
        return to_bytes(["harmofl survivors", context.hex(), sorted(survivors)])


def threshold_of(num_sites: int) -> int:
    """So many that two groups of this size have two sites in common, of which one may help a lying server.

    >>> [threshold_of(number) for number in (3, 4, 5, 6, 100)]
    [3, 3, 4, 4, 51]
    """
    return (num_sites + 1) // 2 + 1


def to_bytes(content: Any) -> bytes:
    """The same bytes for the same content, at every party."""
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def _is_hex(text: object) -> bool:
    return isinstance(text, str) and len(text) == KEY_HEX and set(text) <= set("0123456789abcdef")
