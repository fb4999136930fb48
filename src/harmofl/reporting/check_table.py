"""What a check of the data found, for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from harmofl.data.check import Check
from harmofl.data.checked_site import Range, Row
from harmofl.data.problem_kinds import ProblemGroup, group_by_kind
from harmofl.data.samples import Problem

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_CLASSES = 6
MISSING = "–"
CLASSES = "images per class"
WIDEST_SIZE = 10
NARROWEST_SITE = 20

Cell = Callable[[Row], str]


def to_rich(check: Check, width: int, *, wrote_manifest: bool = False) -> list[RenderableType]:
    """Tables of sites and splits, every problem up to a number that can be read, and the verdict in words.

    There is one table, unless its columns have no room in lines of so many characters. The verdict offers to write a
    manifest of what can be used, unless that was done.
    """
    return [*_tables(check, width), *_problems(check.problems), Text(_verdict(check, wrote_manifest), style="bold")]


def _tables(check: Check, width: int) -> Iterator[Table]:
    columns = {heading: [cell(row) for row in check.rows] for heading, cell in _columns(check).items()}
    widths = {heading: _width(heading, cells) for heading, cells in columns.items()}
    site = max((cell_len(row.site) for row in check.rows), default=0)
    room = width - len("| |train|") - min(NARROWEST_SITE, site)
    groups = _groups(widths, room)
    for number, group in enumerate(groups):
        table = _table(check, {heading: columns[heading] for heading in group})
        for column, heading in zip(table.columns[2:], group, strict=True):
            column.no_wrap = heading != CLASSES and widths[heading] <= room
        if number == 0:
            table.title = Text(f"{check.folder} for {check.task}")
        if check.limit and number == len(groups) - 1:
            table.caption = Text(f"At most {check.limit:,} images of a site, as data.limit says.")
        yield table


def _width(heading: str, cells: Sequence[str]) -> int:
    """What a column needs, with the line beside it; words may be broken."""
    lines = [heading] if heading == CLASSES else [heading, *(line for cell in cells for line in cell.splitlines())]
    return 1 + max(map(cell_len, lines))


def _groups(widths: Mapping[str, int], room: int) -> list[list[str]]:
    """Columns in their order, as many beside one another as there is room for."""
    groups: list[list[str]] = []
    left = 0
    for heading, width in widths.items():
        if not groups or width > left:
            groups.append([])
            left = room
        groups[-1].append(heading)
        left -= width
    return groups


def _table(check: Check, columns: Mapping[str, Sequence[str]]) -> Table:
    """Sites, splits and some columns."""
    # Text, not str: rich would read [brackets] in a site's name as markup.
    shown = Table(title_justify="left", caption_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=0)
    shown.add_column("site", overflow="fold")
    shown.add_column("split", no_wrap=True)
    for heading in columns:
        shown.add_column(heading, justify="left" if heading == CLASSES else "right", overflow="fold")
    before = ""
    for row, *cells in zip(check.rows, *columns.values(), strict=True):
        if before not in ("", row.site):
            shown.add_section()
        shown.add_row(*map(Text, ("" if row.site == before else row.site, row.split, *cells)))
        before = row.site
    return shown


def _columns(check: Check) -> dict[str, Cell]:
    """The columns that say something about these data."""
    rows = check.rows
    columns: dict[str, Cell] = {"images": lambda row: f"{row.images:,}"}
    if any(row.files != row.images for row in rows):
        columns["files"] = lambda row: f"{row.files:,}"
    if any(row.patients for row in rows):
        columns["patients"] = lambda row: f"{row.patients:,}" if row.patients else MISSING
    columns["size"] = _size
    if any(row.slices and row.slices[1] > 1 for row in rows):
        columns["slices"] = lambda row: _range(row.slices)
    if any(row.spacing for row in rows):
        columns["mm"] = _spacing
    columns["ch."] = lambda row: _range(row.channels)
    columns["values"] = lambda row: (
        f"{_value(row.intensity[0])}…{_value(row.intensity[2])}" if row.intensity else MISSING
    )
    columns["mean"] = lambda row: _value(row.intensity[1]) if row.intensity else MISSING
    if check.kind == "classification":
        columns[CLASSES] = lambda row: _labels(row.labels)
    else:
        columns["foreground"] = lambda row: _shares(row.foreground)
        columns["empty"] = lambda row: MISSING if row.without_foreground is None else _percent(row.without_foreground)
    return columns


def _range(limits: Range | tuple[str, str] | None) -> str:
    if limits is None:
        return MISSING
    low, high = limits
    return f"{low}" if low == high else f"{low}–{high}"


def _value(number: float) -> str:
    """An intensity, with four digits or all that are left of the point."""
    return f"{number:.0f}" if 1000 <= abs(number) < 1e7 else f"{number:.4g}"


def _size(row: Row) -> str:
    """Height and width, one below the other where both vary."""
    height, width = _range(row.height), _range(row.width)
    return f"{height}{chr(10) if len(height + width) > WIDEST_SIZE else ''}×{width}"


def _spacing(row: Row) -> str:
    """Millimetres between slices, rows and columns; rows and columns once where they are alike."""
    if row.spacing is None:
        return MISSING
    slices, rows, columns = (_range((f"{low:.3g}", f"{high:.3g}")) for low, high in row.spacing)
    in_plane = rows if rows == columns else f"{rows}×{columns}"
    return f"{slices}{chr(10) if len(slices + in_plane) > WIDEST_SIZE else ''}×{in_plane}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _labels(labels: Mapping[str, int] | None) -> str:
    if not labels:
        return MISSING
    if len(labels) <= MOST_CLASSES:
        return ", ".join(f"{name}: {count:,}" for name, count in labels.items())
    fewest, most = (choose(labels, key=labels.__getitem__) for choose in (min, max))
    return f"{len(labels)} classes, from {fewest}: {labels[fewest]:,} to {most}: {labels[most]:,}"


def _shares(shares: Mapping[str, float] | None) -> str:
    if not shares:
        return MISSING
    if len(shares) == 1:
        return _percent(*shares.values())
    return "\n".join(f"{name}: {_percent(share)}" for name, share in shares.items())


def _problems(problems: Sequence[Problem]) -> list[RenderableType]:
    shown = [line for group in group_by_kind(problems) for line in _group(group)]
    return [*shown, *([Text()] if problems else [])]


def _group(group: ProblemGroup) -> list[Text]:
    """The first problems of one kind, and how many more there are."""
    shown = [_problem(problem) for problem in group.shown]
    if group.num_more:
        shown.append(
            Text(f"  … and {group.num_more:,} more like it, {len(group.problems):,} in all (--json lists them)")
        )
    return shown


def _problem(problem: Problem) -> Text:
    mark, color = ("✗", "red") if problem.fatal else ("!", "yellow")
    file = (f"{problem.file}: ", "bold") if problem.file else ""
    return Text.assemble((f"{mark} ", color), file, problem.message)


def _verdict(check: Check, wrote_manifest: bool) -> str:
    fatal = sum(problem.fatal for problem in check.problems)
    if fatal:
        offer = "" if wrote_manifest else "; --write-clean-manifest FILE lists the images that can be used"
        return f"Training would fail: {_counted(fatal, 'problem')} must be fixed first (marked ✗){offer}."
    remarks = len(check.problems)
    worth = f" {_counted(remarks, 'remark')} worth reading (marked !)." if remarks else ""
    return f"Training would work: {_counted(len(check.sites), 'site')}, {_counted(check.images, 'image')}.{worth}"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
