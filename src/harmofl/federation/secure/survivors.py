"""All sites unmask the same sum, or none does: the consistency check of Bonawitz et al., CCS 2017, section 6.2.

A server that tells sites different lists of survivors could otherwise put shares together that no single list gives:
of ten sites, the sum of any four instead of six, and with the help of a hostile site the numbers of one. So every site
signs the one list that it was told, and reveals shares only below the signatures of a threshold of sites. Two lists
with a threshold of signatures each would need two sites that signed both, and honest sites sign one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harmofl.federation.secure.keys import is_signed
from harmofl.federation.secure.roster import Roster


def signers(roster: Roster, context: bytes, survivors: Sequence[str], signatures: Any) -> list[str]:
    """The survivors whose signature below this list, from a name to hex, is valid."""
    if not isinstance(signatures, dict):
        return []
    statement = roster.statement(context, survivors)
    return [site for site in survivors if _has_signed(roster, site, statement, signatures.get(site))]


def _has_signed(roster: Roster, site: str, statement: bytes, signature: Any) -> bool:
    try:
        return is_signed(bytes.fromhex(roster.adverts[site].sign_key), statement, bytes.fromhex(signature))
    except (TypeError, ValueError):
        return False
