"""How a site's numbers are masked, and how the server takes the masks away from the sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from harmofl.federation.secure.fixed_point import Words
from harmofl.federation.secure.keys import KeyPair, agree, derive
from harmofl.federation.secure.masks import apply_mask
from harmofl.federation.secure.roster import Roster, to_bytes

SELF, PAIR = b"harmofl self mask ", b"harmofl pair mask "


def add_masks(
    words: Words, site: str, mask_key: bytes, seed: bytes, others: Mapping[str, bytes], context: bytes
) -> None:
    """Mask one site's numbers in place: with its own mask, and with one for each other site.

    Args:
        words: The numbers.
        site: Its name.
        mask_key: Its private key.
        seed: Of its own mask.
        others: The other sites' public keys.
        context: What all sites agree on.
    """
    apply_mask(words, derive(seed, SELF + context), 1)
    for other, public in others.items():
        apply_mask(words, agree(mask_key, public, _pair(site, other, context)), _sign(site, other))


def take_self_masks(total: Words, seeds: Mapping[str, bytes], context: bytes) -> None:
    """Take the own masks of the sites whose numbers are in a sum away from it, in place."""
    for seed in seeds.values():
        apply_mask(total, derive(seed, SELF + context), -1)


def take_pair_masks(
    total: Words, dropped: Mapping[str, bytes], survivors: list[str], roster: Roster, context: bytes
) -> None:
    """Take away the masks that survivors share with sites whose numbers never came, from these sites' private keys."""
    for gone, private in dropped.items():
        for site in survivors:
            public = bytes.fromhex(roster.adverts[site].mask_key)
            sign: Literal[1, -1] = -1 if _sign(site, gone) == 1 else 1
            apply_mask(total, agree(private, public, _pair(site, gone, context)), sign)


def check_private_key(private: bytes, site: str, roster: Roster) -> None:
    """Raise ValueError unless a private key that was put together from shares is the one of this site."""
    if KeyPair.of(private).public.hex() != roster.adverts[site].mask_key:
        raise ValueError(f"the shares of the key of {site} do not belong together")


def _pair(site: str, other: str, context: bytes) -> bytes:
    """What the mask of two sites is for: their names, too.

    A hostile site could repeat another's public key, in one of the ways to write it. Two masks of one key would then
    cancel within a single site's numbers.
    """
    return PAIR + context + to_bytes(sorted((site, other)))


def _sign(site: str, other: str) -> Literal[1, -1]:
    return 1 if site < other else -1
