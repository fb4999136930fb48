"""A site's side of the exchanges: what it tells, and what it never tells, whatever the server asks.

The rules that keep a site's numbers secret are enforced here. A site masks one set of numbers in a session. It reveals
for each other site either the share of its own mask or the share of its key, never both: it signs one list of survivors
in a session, of at least the threshold, and unmasks it only if so many sites have signed the same one. In a repetition
of a round it unmasks no other list, as the difference of two sums would be the numbers of a single site. What it must
remember lies in a file that only it can read, so that a process may end and start again between two messages.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from harmofl.documents import read_json
from harmofl.federation.secure.fixed_point import Words
from harmofl.federation.secure.keys import KeyPair, agree, make_signing_keys, seal, sign, unseal
from harmofl.federation.secure.masking import add_masks
from harmofl.federation.secure.roster import FEWEST_SITES, Advert, Exchange, Roster, prove, to_bytes
from harmofl.federation.secure.shamir import SECRET_BYTES, SHARE_BYTES, share_to_hex, split
from harmofl.federation.secure.survivors import signers
from harmofl.files import PRIVATE, write_whole

FILE = "secure.json"
SHARES = b"harmofl shares "
DAMAGED = "what it remembers of secure sums is damaged"


@dataclass(frozen=True)
class Session:
    """What a site must remember of an exchange; bytes in hex."""

    exchange: Exchange
    advert: dict[str, Any]
    """What it told the others."""
    mask_key: str
    """Private; empty once the sum has been unmasked."""
    share_key: str
    """Private."""
    sign_key: str
    """Private."""
    seed: str
    """Of its own mask; empty once the sum has been unmasked."""
    roster: dict[str, dict[str, Any]] = field(default_factory=dict)
    made: dict[str, str] = field(default_factory=dict)
    """The sealed shares of its own secrets, by the site that they are for."""
    received: dict[str, str] = field(default_factory=dict)
    """The sealed shares of the others' secrets, by the site that they are from."""
    context: str = ""
    masked: str = ""
    """A digest of the numbers that it masked."""
    survivors: tuple[str, ...] = ()
    """The list that it has signed."""

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Session:
        """From JSON."""
        changed = {"exchange": Exchange(**value["exchange"]), "survivors": tuple(value["survivors"])}
        return cls(**{**value, **changed})


class SiteExchange:
    """Answers the exchanges of one run for one site.

    Args:
        site: Its name.
        num_examples: Its training images.
        folder: Where it keeps what it must remember.
        consortium: A key that all sites have and the server has not; empty if there is none.
        fewest: Sites without which a sum is not unmasked, also where the threshold is lower.
    """

    def __init__(
        self, site: str, num_examples: int, folder: Path, consortium: bytes = b"", fewest: int = FEWEST_SITES - 1
    ) -> None:
        self.site = site
        self.fewest = fewest
        self.num_examples = num_examples
        self.path = folder / FILE
        self.consortium = consortium

    def advertise(self, exchange: Exchange) -> dict[str, Any]:
        """Make new keys, and tell the public ones; the same ones if asked again."""
        session = self._session()
        if session is None or session.exchange != exchange:
            mask_keys, share_keys, sign_keys = KeyPair.make(), KeyPair.make(), make_signing_keys()
            session = Session(
                exchange=exchange,
                advert=self._advert(exchange, mask_keys, share_keys, sign_keys),
                mask_key=mask_keys.private.hex(),
                share_key=share_keys.private.hex(),
                sign_key=sign_keys.private.hex(),
                seed=os.urandom(SECRET_BYTES).hex(),
            )
            self._write(session)
        return session.advert

    def share(self, exchange: Exchange, adverts: Any) -> dict[str, str]:
        """Split its secrets into shares, each sealed for one other site; the same ones if asked again."""
        session = self._current(exchange)
        roster = Roster.read(exchange, adverts)
        if roster.adverts.get(self.site) != Advert.read(session.advert):
            raise ValueError("the server's list of sites does not have the public keys of this site")
        roster.check_proofs(self.consortium)
        if not session.made:
            session = replace(session, roster=roster.to_json(), made=self._seal_shares(session, roster))
            self._write(session)
        elif session.roster != roster.to_json():
            raise ValueError("the server's list of sites has changed within a round")
        return {other: sealed for other, sealed in session.made.items() if other != self.site}

    def counts(self, exchange: Exchange, others: Sequence[str]) -> dict[str, int]:
        """The training images of this site and of others, as they told all sites."""
        roster = self._roster(self._current(exchange))
        if not {*others} <= roster.adverts.keys():
            raise ValueError("the server's list of sites has changed within a round")
        return {site: roster.adverts[site].num_examples for site in sorted({*others, self.site})}

    def mask(self, exchange: Exchange, received: Mapping[str, str], model: str, words: Words) -> None:
        """Mask numbers in place.

        Args:
            exchange: The one whose shares were made.
            received: The sealed shares from each other site that takes part.
            model: A digest of what all sites received to work with.
            words: The numbers.
        """
        session = self._current(exchange)
        if not session.made:
            raise ValueError("the shares of this round have not been made")
        roster = self._roster(session)
        members = sorted({*received, self.site})
        if not set(members) <= roster.adverts.keys() or len(members) < roster.threshold:
            raise ValueError(f"{len(members)} sites take part: {roster.threshold} of the list must")
        context, masked = roster.context(members, model), hashlib.sha256(words.data).hexdigest()
        if session.masked and (session.context, session.masked) != (context.hex(), masked):
            raise ValueError("it has masked other numbers in this session before")
        received = {**received, self.site: session.made[self.site]}
        session = replace(session, received=received, context=context.hex(), masked=masked)
        for other in members:
            self._open_shares(session, roster, other)  # an error now rather than when the sum is to be unmasked
        self._write(session)
        publics = {other: bytes.fromhex(roster.adverts[other].mask_key) for other in members if other != self.site}
        add_masks(words, self.site, bytes.fromhex(session.mask_key), bytes.fromhex(session.seed), publics, context)

    def confirm(self, exchange: Exchange, survivors: Any) -> dict[str, str]:
        """Sign the list of the sites whose numbers are in the sum; the first one of a session, and no other."""
        session = self._current(exchange)
        roster = self._roster(session)
        names = self._check_survivors(session, roster, survivors)
        self._check_repetition(exchange, names)
        self._write(replace(session, survivors=names))
        statement = roster.statement(bytes.fromhex(session.context), names)
        return {"signature": sign(bytes.fromhex(session.sign_key), statement).hex()}

    def unmask(self, exchange: Exchange, survivors: Any, signatures: Any) -> dict[str, str]:
        """Reveal one share for each site: of its mask if its numbers are in the sum, of its key if they never came.

        Args:
            exchange: The one whose numbers were masked.
            survivors: The list that this site has signed.
            signatures: Those of the sites that have signed it, by name.
        """
        session = self._current(exchange)
        roster = self._roster(session)
        names = self._check_survivors(session, roster, survivors)
        self._check_repetition(exchange, names)
        self._check_signatures(session, roster, names, signatures)
        session = replace(session, mask_key="", seed="")
        self._write(session, unmasked=names)
        shares = {member: self._open_shares(session, roster, member) for member in sorted(session.received)}
        return {member: share_to_hex(pair[0 if member in names else 1]) for member, pair in shares.items()}

    # --- checks ------------------------------------------------------------------------------------------------

    def _check_survivors(self, session: Session, roster: Roster, survivors: Any) -> tuple[str, ...]:
        if not isinstance(survivors, list) or not all(isinstance(name, str) for name in survivors):
            raise ValueError("the survivors must be a list of names")
        names = tuple(sorted(set(survivors)))
        if not session.masked or self.site not in names or not set(names) <= session.received.keys():
            raise ValueError("the survivors must be sites that took part in the round, this one among them")
        if len(names) < (needed := max(roster.threshold, self.fewest)):
            raise ValueError(f"{len(names)} sites are in the sum: it is unmasked from {needed} on")
        if session.survivors and session.survivors != names:
            raise ValueError("it has signed another list of survivors in this session: never both shares of one site")
        return names

    def _check_signatures(self, session: Session, roster: Roster, names: Sequence[str], signatures: Any) -> None:
        if session.survivors != names:
            raise ValueError("it has not been asked to sign the list of survivors")
        found = signers(roster, bytes.fromhex(session.context), names, signatures)
        if len(found) < roster.threshold:
            raise ValueError(
                f"{len(found)} sites have signed this list of survivors, {roster.threshold} must: others may have been "
                "told another one"
            )

    def _check_repetition(self, exchange: Exchange, names: Sequence[str]) -> None:
        before = self._notes()["sums"].get(_place(exchange))
        if before not in (None, _digest(names)):
            raise ValueError(
                f"round {exchange.round} has been summed over other sites before, and the difference would reveal "
                "what a single one sent: continue when the same sites are there, or start another run"
            )

    def _current(self, exchange: Exchange) -> Session:
        session = self._session()
        if session is None or session.exchange != exchange:
            raise ValueError("its keys for this sum have not been asked for, or it has forgotten them")
        return session

    # --- secrets -----------------------------------------------------------------------------------------------

    def _advert(self, exchange: Exchange, *keys: KeyPair) -> dict[str, Any]:
        mask_key, share_key, sign_key = (pair.public.hex() for pair in keys)
        advert = Advert(mask_key, share_key, sign_key, self.num_examples)
        return dict(vars(replace(advert, proof=prove(advert, exchange, self.site, self.consortium))))

    def _roster(self, session: Session) -> Roster:
        return Roster.read(session.exchange, session.roster)

    def _seal_shares(self, session: Session, roster: Roster) -> dict[str, str]:
        places = {other: roster.place(other) for other in roster.adverts}
        secrets = (bytes.fromhex(session.seed), bytes.fromhex(session.mask_key))
        own, key = (split(secret, list(places.values()), roster.threshold) for secret in secrets)
        bundles = {
            other: bytes.fromhex(share_to_hex(own[place]) + share_to_hex(key[place])) for other, place in places.items()
        }
        return {other: self._seal(session, roster, other, bundle) for other, bundle in bundles.items()}

    def _seal(self, session: Session, roster: Roster, receiver: str, bundle: bytes) -> str:
        key, about = self._seal_key(session, roster, receiver, sender=self.site)
        return seal(key, bundle, about).hex()

    def _open_shares(self, session: Session, roster: Roster, sender: str) -> tuple[int, int]:
        """The shares of another site's own mask and of its key."""
        try:
            key, about = self._seal_key(session, roster, sender, sender=sender)
            bundle = unseal(key, bytes.fromhex(session.received[sender]), about)
        except (ValueError, TypeError) as error:
            raise ValueError(f"the shares of {sender} cannot be read: {error}") from None
        if len(bundle) != 2 * SHARE_BYTES:
            raise ValueError(f"the shares of {sender} cannot be read: {len(bundle)} bytes")
        return int.from_bytes(bundle[:SHARE_BYTES], "big"), int.from_bytes(bundle[SHARE_BYTES:], "big")

    def _seal_key(self, session: Session, roster: Roster, other: str, sender: str) -> tuple[bytes, bytes]:
        """The key that seals shares between this site and another one, and what they are about."""
        receiver = self.site if sender != self.site else other
        about = SHARES + to_bytes([vars(session.exchange), sender, receiver])
        public = bytes.fromhex(roster.adverts[other].share_key)
        return agree(bytes.fromhex(session.share_key), public, about), about

    # --- memory ------------------------------------------------------------------------------------------------

    def _session(self) -> Session | None:
        value = self._notes()["session"]
        try:
            return None if value is None else Session.read(value)
        except (KeyError, TypeError):
            raise ValueError(DAMAGED) from None

    def _notes(self) -> dict[str, Any]:
        """The newest session, and of every sum that was unmasked a digest of its sites."""
        if not self.path.exists():
            return {"session": None, "sums": {}}
        try:
            notes = read_json(self.path)
            return {"session": notes["session"], "sums": dict(notes["sums"])}
        except (OSError, ValueError, KeyError, TypeError):
            raise ValueError(DAMAGED) from None

    def _write(self, session: Session, unmasked: Sequence[str] | None = None) -> None:
        sums = self._notes()["sums"]
        if unmasked is not None:
            sums |= {_place(session.exchange): _digest(unmasked)}
        write_whole(self.path, json.dumps({"session": asdict(session), "sums": sums}) + "\n", PRIVATE)


def _place(exchange: Exchange) -> str:
    return f"{exchange.kind} {exchange.round}"


def _digest(names: Sequence[str]) -> str:
    return hashlib.sha256(to_bytes(sorted(names))).hexdigest()[:32]
