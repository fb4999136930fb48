"""The server's side of the exchanges: from masked sums and the sites' shares to the sum itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harmofl.federation.secure.fixed_point import Words
from harmofl.federation.secure.masking import check_private_key, take_pair_masks, take_self_masks
from harmofl.federation.secure.roster import Advert, Exchange, Roster
from harmofl.federation.secure.shamir import join, share_from_hex
from harmofl.federation.secure.survivors import signers

Revealed = Mapping[str, Mapping[str, str]]
"""From the site that tells to the sites whose shares it tells, in hex."""


@dataclass(frozen=True)
class Unmasking:
    """One exchange, as the server follows it."""

    roster: Roster

    @classmethod
    def of(cls, exchange: Exchange, adverts: Mapping[str, Any]) -> Unmasking:
        """With the adverts of all sites that told their keys."""
        return cls(Roster.of(exchange, {site: Advert.read(advert) for site, advert in adverts.items()}))

    def take_masks(
        self, total: Words, members: Sequence[str], survivors: Sequence[str], revealed: Revealed, model: str
    ) -> None:
        """Take all masks away from a sum, in place; ValueError if there are too few shares, or wrong ones.

        Args:
            total: The sum of the survivors' masked numbers.
            members: The sites whose masks are in the numbers.
            survivors: Those whose numbers came.
            revealed: The shares that sites told.
            model: The digest of what the sites received.
        """
        context = self.roster.context(members, model)
        secrets = {member: self._join(member, revealed) for member in members}
        dropped = {member: secrets[member] for member in members if member not in survivors}
        for member, private in dropped.items():
            check_private_key(private, member, self.roster)
        take_self_masks(total, {site: secrets[site] for site in survivors}, context)
        take_pair_masks(total, dropped, list(survivors), self.roster, context)

    def _join(self, member: str, revealed: Revealed) -> bytes:
        shares = {self.roster.place(site): share_from_hex(told[member]) for site, told in revealed.items()}
        try:
            return join(shares, self.roster.threshold)
        except ValueError as error:
            raise ValueError(f"{error}, for the secret of {member}") from None

    def read_signature(self, site: str, told: Any, members: Sequence[str], survivors: Sequence[str], model: str) -> str:
        """What a site told to confirm the survivors; ValueError if it is not its signature below their list."""
        signature = told.get("signature") if isinstance(told, dict) else None
        if site not in signers(self.roster, self.roster.context(members, model), survivors, {site: signature}):
            raise ValueError("it did not sign the list of survivors")
        return str(signature)

    def read_revealed(self, told: Any, members: Sequence[str]) -> dict[str, str]:
        """What a site told; ValueError if it is not one share of each member."""
        if not isinstance(told, dict) or told.keys() != set(members):
            raise ValueError("it did not tell one share for each site")
        for share in told.values():
            if not isinstance(share, str):
                raise ValueError("a share is not a number in hex")
            share_from_hex(share)
        return dict(told)
