"""Set the version everywhere that it stands: the package, CITATION.cff and the first heading of CHANGELOG.md.

`make version VERSION=1.2.0` does it for a release of today, `VERSION=1.3.0.dev0` for what comes after one.
"""

from __future__ import annotations

import argparse
import datetime
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def main() -> None:
    """Set the version that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", help="such as 1.2.0, or 1.3.0.dev0 while it is being developed")
    parser.add_argument("--date", default=datetime.date.today().isoformat(), help="of the release; default: today")
    chosen = parser.parse_args()
    if not re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", chosen.version):
        raise SystemExit(f"{chosen.version}: a version is three numbers, with .dev0 while it is being developed")
    set_version(ROOT, chosen.version, datetime.date.fromisoformat(chosen.date))


def set_version(root: Path, version: str, date: datetime.date) -> None:
    """Set the version of a checkout; only a release has a date."""
    base, _, development = version.partition(".dev")
    replace(root / "src/harmofl/version.py", r'__version__ = ".+"', f'__version__ = "{version}"')
    released = "" if development else f"\ndate-released: {date}"
    replace(root / "CITATION.cff", r"version: \d.*(\ndate-released: .+)?", f"version: {version}{released}")
    heading = f"## {base} ({'unreleased' if development else date})"
    changelog = root / "CHANGELOG.md"
    if re.search(rf"^## {re.escape(base)} ", changelog.read_text(encoding="utf-8"), re.MULTILINE):
        replace(changelog, rf"## {re.escape(base)} .*", heading)
    else:
        replace(changelog, r"(?=## \d)", f"{heading}\n\n")


def replace(path: Path, pattern: str, text: str) -> None:
    """Replace the first place at the beginning of a line where a pattern stands; it must stand somewhere."""
    before = path.read_text(encoding="utf-8")
    after, count = re.subn(f"^{pattern}", lambda _: text, before, count=1, flags=re.MULTILINE)
    if not count:
        raise SystemExit(f"{path}: nothing looks like {pattern}")
    path.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
