"""Tables of text with a header, read so that a bad file gives one clear message."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

from harmofl.data.layouts.tree import printable
from harmofl.data.samples import inside
from harmofl.errors import UsageError

Row = tuple[int, list[str]]


class Table:
    """A CSV file in memory."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / name
        refused = inside(folder, name)
        if refused:
            raise UsageError(f"{self.path}: {refused}")
        try:
            self._bytes = self.path.read_bytes()
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be read ({error.strerror})") from None
        if b"\0" in self._bytes:
            raise UsageError(f"{self.path}: not a text file (it holds NUL bytes); save it as CSV in UTF-8")

    def rows(self, delimiter: str = ",") -> Iterator[Row]:
        """Go through the rows that are not blank, each with the number of its first line; the first is the header."""
        text = io.TextIOWrapper(io.BytesIO(self._bytes), encoding="utf-8-sig", newline="")
        # strict: an unclosed quote would otherwise swallow the rest of the file as one value
        reader = csv.reader(text, delimiter=delimiter, strict=True)
        line = 1
        try:
            for row in reader:
                if any(map(str.strip, row)):
                    yield line, row
                line = reader.line_num + 1
        except csv.Error as error:
            raise UsageError(f"{self.path} line {line}: not a table of comma-separated values ({error})") from None
        except UnicodeDecodeError:
            raise UsageError(f"{self.path}: not UTF-8 text (near line {line}); save it as CSV in UTF-8") from None

    def delimiter(self, is_known: Callable[[str], bool]) -> str:
        """The one of comma, semicolon and tab that gives most of the columns that are known."""
        return max(",;\t", key=lambda candidate: sum(map(is_known, self._columns(candidate))))

    def _columns(self, delimiter: str) -> set[str]:
        """The columns that a delimiter would give; with a wrong one, the header may not even be a table's."""
        try:
            return set(self.header(delimiter))
        except UsageError:
            return set()

    def header(self, delimiter: str = ",") -> list[str]:
        """Return the columns' names in lower case."""
        return [name.strip().lower() for name in next(self.rows(delimiter), (1, []))[1]]

    def require(self, wanted: Sequence[str], header: Sequence[str], note: str = "") -> None:
        """Refuse a table that lacks a column, or has one of them twice."""
        missing = [name for name in wanted if name not in header]
        if missing:
            raise UsageError(f"{self.path}: {_lack(missing, header)}{note}")
        twice = [name for name in wanted if header.count(name) > 1]
        if twice:
            raise UsageError(f"{self.path}: more than one column is called {', '.join(twice)}")


def _lack(missing: Sequence[str], header: Sequence[str]) -> str:
    shown = [printable(name[:40]) for name in header if name]
    listed = ", ".join(shown[:20]) + (", …" if len(shown) > 20 else "")
    near = {name: match for name in missing for match in get_close_matches(name, shown, n=1, cutoff=0.7)}
    hint = "".join(f"; did you mean {name} by {match}?" for name, match in near.items())
    plural = "columns" if len(missing) > 1 else "column"
    return f"no {plural} {', '.join(missing)} in its header (found: {listed or 'nothing'}){hint}"
