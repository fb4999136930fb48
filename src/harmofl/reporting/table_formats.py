"""Tables as Markdown, CSV, LaTeX and on the terminal: each format is a function of a `Table`."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from harmofl.reporting.tables import Table

if TYPE_CHECKING:
    import rich.table

SHORT = 16
"""Characters of a method's name that a terminal need not break."""


def to_markdown(table: Table) -> str:
    """Render as a Markdown table, the best of each column in bold."""
    headings = [markdown_escape(text) for text in ("Method", *(column.heading for column in table.columns))]
    lines = [markdown_line(headings), markdown_line(["---", *("---:" for _ in table.columns)])]
    for row in table.rows:
        cells = [f"**{cell.text}**" if cell.best else cell.text for cell in row.cells]
        lines.append(markdown_line([markdown_escape(row.title), *cells]))
    return "\n".join([f"**{table.heading}**", "", *lines, "", *table.notes]) + "\n"


def markdown_line(cells: Iterable[str]) -> str:
    """One line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def markdown_escape(text: str) -> str:
    """Text as Markdown shows it, character by character."""
    return "".join("\\" + character if character in "\\|*_<`" else character for character in text)


def to_csv(table: Table) -> str:
    """Render as CSV for programs: bare numbers, each spread in a column of its own, nothing marked."""
    header = ["method", "seeds"]
    for column in table.columns:
        header += [column.name, f"{column.name}: {column.spread}"] if column.spread else [column.name]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    for row in table.rows:
        numbers: list[float | None] = []
        for column, cell in zip(table.columns, row.cells, strict=True):
            numbers += [cell.mean, cell.spread] if column.spread else [cell.mean]
        writer.writerow([row.title, row.num_seeds, *(_csv_number(number) for number in numbers)])
    return buffer.getvalue()


def _csv_number(number: float | None) -> str:
    return "" if number is None or math.isnan(number) else f"{number:.4f}"


def to_latex(table: Table) -> str:
    """Render for LaTeX (package booktabs), the best of each column in bold, the notes in the caption."""
    headings = ["Method", *(column.heading for column in table.columns)]
    caption = " ".join([f"{table.heading.removesuffix('.')}.", *table.notes])
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{latex_escape(caption)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\toprule",
        _latex_line(map(latex_escape, headings)),
        r"\midrule",
    ]
    for row in table.rows:
        texts = [(latex_escape(cell.text), cell.best) for cell in row.cells]
        cells = [rf"\textbf{{{text}}}" if best else text for text, best in texts]
        lines.append(_latex_line([latex_escape(row.title), *cells]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def _latex_line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


_LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "–": "--",
    "−": "$-$",
    "×": r"$\times$",
    "“": "``",
    "”": "''",
    "[": "{[}",  # at the start of a line it would be an argument of the line break before
}


def latex_escape(text: str) -> str:
    """Text as LaTeX prints it, character by character."""
    return "".join(_LATEX.get(character, character) for character in text)


def to_rich(table: Table, width: int = 0) -> rich.table.Table:
    """Render for the terminal, the best of each column in bold; without spreads where `width` has no room for them."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    narrow = 0 < width < _width(table)
    notes = [*table.notes, "Spreads are left out, as there is no room for them."] if narrow else table.notes
    # Text, not str: rich would read [brackets] in a site's name as markup.
    caption = Text("\n".join(notes), style="dim")
    shown = RichTable(
        title=Text(table.heading), caption=caption, caption_justify="left", box=SIMPLE_HEAD, collapse_padding=narrow
    )
    places = [place for place, column in enumerate(table.columns) if column.competes or not narrow]
    longest = max(len(row.title) for row in table.rows)
    shown.add_column("Method", overflow="fold", min_width=longest if longest <= SHORT else None)
    for place in places:
        column = table.columns[place]
        shown.add_column(Text(column.name if narrow else column.heading), justify="right", overflow="fold")
    for row in table.rows:
        cells = [row.cells[place] for place in places]
        texts = [Text(cell.mean_text if narrow else cell.text, "bold green" if cell.best else "") for cell in cells]
        shown.add_row(Text(row.title), *texts)
    return shown


def _width(table: Table) -> int:
    """Characters of a line in which nothing breaks."""
    columns = [["Method", *(row.title for row in table.rows)]]
    for number, column in enumerate(table.columns):
        columns.append([column.heading, *(row.cells[number].text for row in table.rows)])
    return sum(max(map(len, texts)) + 3 for texts in columns)
