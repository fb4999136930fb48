"""Names as labels in pictures: short enough for their place, and in letters for which this machine has a font.

Matplotlib's own font has no Chinese, Japanese or Korean letters. Other fonts are used where they are installed; a
letter that none of them has is transliterated, and never drawn as an empty box.
"""

from __future__ import annotations

import contextlib
import functools
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Sequence

from harmofl.extras import require

OWN_FONT = "DejaVu Sans"
"""Matplotlib brings it along."""
OTHER_FONTS = (
    *("Noto Sans CJK JP", "Noto Sans JP", "Hiragino Sans", "Yu Gothic", "Meiryo", "MS Gothic"),
    *("IPAexGothic", "IPAGothic", "TakaoGothic", "VL Gothic"),
    *("Noto Sans CJK SC", "Microsoft YaHei", "PingFang SC", "WenQuanYi Zen Hei", "WenQuanYi Micro Hei"),
    *("Noto Sans CJK KR", "Malgun Gothic", "Apple SD Gothic Neo", "Droid Sans Fallback", "Arial Unicode MS"),
    *("Noto Sans Arabic", "Noto Sans Devanagari", "Noto Sans Thai"),
)


def width_of(text: str) -> int:
    """How many letters wide a text is; Chinese, Japanese and Korean letters count twice."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def shorten(text: str, most: int) -> str:
    """Make a text readable, and leave out the middle of one that is too wide.

    Names that begin alike often differ at their ends.

    >>> shorten("Universitätsklinikum Eppendorf", 16)
    'Universi…pendorf'
    """
    text = readable(text)
    if width_of(text) <= most:
        return text
    head, tail = "", ""
    while width_of(head + text[len(head)]) <= most // 2:
        head += text[len(head)]
    while width_of(text[-len(tail) - 1] + tail) <= most - most // 2 - 1:
        tail = text[-len(tail) - 1] + tail
    return f"{head.rstrip()}…{tail.lstrip()}"


def shorten_all(names: Sequence[str], most: int) -> list[str]:
    """Shorten names that stand together; those that have become equal get a number."""
    short = [shorten(name, most) for name in names]
    times = Counter(short)
    return [
        f"{shorten(name, most - 3)} {number}" if times[label] > 1 and label != readable(name) else label
        for number, (name, label) in enumerate(zip(names, short, strict=True), start=1)
    ]


def wrap(text: str, most: int, lines: int = 2) -> str:
    """Break a text into a few lines, between its words where it has any, and shorten it to what has room there."""
    if "\n" in text:
        return "\n".join(wrap(line, most, lines) for line in text.split("\n"))
    text = readable(text)
    if width_of(text) <= most:
        return text
    parts = textwrap.wrap(text, most, break_on_hyphens=True, break_long_words=False)
    if len(parts) <= lines and all(width_of(part) <= most for part in parts):
        return "\n".join(parts)
    short = shorten(text, most * lines - lines)
    pieces = [""]
    for letter in short:
        if width_of(pieces[-1] + letter) > most:
            pieces.append("")
        pieces[-1] += letter
    return "\n".join(piece.strip() for piece in pieces)


@functools.cache
def installed_fonts() -> tuple[str, ...]:
    """The families to draw with, in the order in which they are asked for a letter."""
    require("reports", "drawing figures")
    from matplotlib.font_manager import fontManager

    _list_new_fonts()
    names = {font.name for font in fontManager.ttflist}
    return (OWN_FONT, *(name for name in OTHER_FONTS if name in names))


def _list_new_fonts() -> None:
    """Add the fonts that were installed after matplotlib had made its list, which it keeps from program to program."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    for path in sorted(set(findSystemFonts()) - {font.fname for font in fontManager.ttflist}):
        with contextlib.suppress(OSError, RuntimeError):  # not every file is a font that can be drawn with
            fontManager.addfont(path)


@functools.cache
def letters_of(family: str) -> frozenset[int]:
    """The letters that a font can draw."""
    from matplotlib.font_manager import findfont, get_font

    return frozenset(get_font(findfont(family)).get_charmap())


def readable(text: str) -> str:
    """The text with letters that no installed font has transliterated."""
    require("reports", "drawing figures")
    from anyascii import anyascii

    letters = [letter if letter == "\n" or _has_glyph(letter) else anyascii(letter) for letter in text]
    return "".join(letters) or "?" * len(text)


def _has_glyph(letter: str) -> bool:
    return any(ord(letter) in letters_of(family) for family in installed_fonts())


def font_file(text: str) -> str:
    """The file of the installed font that has most of a text's letters."""
    from matplotlib.font_manager import findfont

    missing = {name: sum(ord(letter) not in letters_of(name) for letter in text) for name in installed_fonts()}
    return str(findfont(min(missing, key=missing.__getitem__)))
