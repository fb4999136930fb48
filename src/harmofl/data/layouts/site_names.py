"""What a site may be called: its name becomes a folder's, and a key beside others in a run's records."""

from __future__ import annotations

from harmofl.data.samples import POOLED

LONGEST = 100
TAKEN = ("server", "average", "std", POOLED)


def name_refusal(name: str) -> str:
    """Say why a site cannot have this name; empty if it can."""
    if not name.isprintable():
        return "a site's name cannot hold characters that cannot be printed"
    if "/" in name or "\\" in name:
        return f"a site's name cannot hold / or \\, found {name[:LONGEST]!r}"
    if name.startswith("."):
        return f"a site's name cannot begin with a dot, found {name[:LONGEST]!r}"
    if len(name.encode()) > LONGEST:
        return f"a site's name cannot be longer than {LONGEST} bytes, found {name[:20]!r}…"
    if name.lower() in TAKEN:
        return f"a site cannot be called {name!r}: a run's records use that word"
    return ""
