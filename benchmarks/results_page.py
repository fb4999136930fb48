"""Bring the numbers and figures of the pages of results up to date with results/; their prose is left as it is.

python benchmarks/results_page.py [--check | --redraw]

--check:  change nothing; say what is not up to date, and fail if anything is
--redraw: draw every figure again, also those whose numbers are the same
"""

from __future__ import annotations

import sys
from pathlib import Path

from harmofl.experiments.kept_page import KeptPage

ROOT = Path(__file__).parent.parent
DATA = "../shared/data/nuclei-tiles"


def pages() -> list[KeptPage]:
    """The pages that are made of kept results."""
    names = ("results.md", "results-settings.md")
    return [KeptPage(ROOT / "docs" / name, ROOT / "experiments", ROOT / "results", DATA) for name in names]


def main() -> int:
    """Bring the pages up to date, or say what is not."""
    if "--check" in sys.argv[1:]:
        stale = [what for page in pages() for what in page.stale()]
        print("\n".join(f"not up to date: {what}" for what in stale) or "up to date")
        return 1 if stale else 0
    changed = [path for page in pages() for path in page.write(redraw="--redraw" in sys.argv[1:])]
    print("\n".join(str(path.relative_to(ROOT)) for path in changed) or "nothing has changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
