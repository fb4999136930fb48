"""The tables of a page as a reader sees them: rows of words."""

from html.parser import HTMLParser


class _Tables(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, _: object) -> None:
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")
            self._inside = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("th", "td"):
            self._inside = False
            self.rows[-1][-1] = " ".join(self.rows[-1][-1].split())

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.rows[-1][-1] += data


def table_rows(page: str) -> dict[str, list[list[str]]]:
    """The rows of all tables of a page, each without its first cell, by the words in that cell."""
    rows: dict[str, list[list[str]]] = {}
    for name, *cells in filter(None, _Tables(page).rows):
        rows.setdefault(name, []).append(cells)
    return rows
