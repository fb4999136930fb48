"""Labels fit into their places and can be drawn on every machine."""

import warnings

import pytest

from harmofl import labels
from harmofl.labels import readable, shorten, shorten_all, width_of, wrap

TOKYO = "東京大学医学部附属病院"


@pytest.fixture
def no_other_fonts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels, "installed_fonts", lambda: (labels.OWN_FONT,))


def test_a_name_that_fits_stays_as_it_is() -> None:
    assert shorten("Hôpital", 7) == wrap("Hôpital", 7) == "Hôpital"


@pytest.mark.parametrize("most", range(5, 30))
def test_a_long_name_keeps_its_beginning_and_end_and_fits(most: int) -> None:
    short = shorten("Universitätsklinikum Hamburg-Eppendorf", most)
    assert width_of(short) <= most
    assert short.startswith("Un")
    assert short.endswith("rf")


def test_letters_of_east_asia_are_twice_as_wide() -> None:
    assert width_of("東京 A") == 6


def test_letters_without_a_font_are_transliterated(no_other_fonts: None) -> None:
    assert readable("Kōbe 神戸") == "Kōbe ShenHu"
    assert readable("病院") != readable("大学")
    assert width_of(shorten(TOKYO, 12)) <= 12


def test_letters_that_an_installed_font_has_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels, "installed_fonts", lambda: (labels.OWN_FONT, "Japanese"))
    own = labels.letters_of(labels.OWN_FONT)
    monkeypatch.setattr(labels, "letters_of", lambda family: set(map(ord, TOKYO)) if family == "Japanese" else own)
    assert readable(TOKYO) == TOKYO
    assert shorten(TOKYO, 9) == "東京…病院"


def test_what_cannot_be_transliterated_is_a_question_mark(no_other_fonts: None) -> None:
    assert readable("\udcfc") == "?"


def test_names_that_become_equal_are_numbered() -> None:
    names = ["Hospital North, ward 1, east", "Hospital South, ward 2, east", "C"]
    assert shorten_all(names, 12) == ["Hosp…east 1", "Hosp…east 2", "C"]
    assert shorten_all(["A", "A"], 12) == ["A", "A"]


def test_a_long_name_is_broken_between_words() -> None:
    assert wrap("St. Mary's Hospital", 12) == "St. Mary's\nHospital"
    assert wrap("trained:\nafter 2 epochs", 14) == "trained:\nafter 2 epochs"
    lines = wrap("Universitätsklinikum Hamburg-Eppendorf", 10).split("\n")
    assert len(lines) == 2
    assert max(map(width_of, lines)) <= 10


def test_every_label_of_a_figure_is_drawn_without_a_warning(no_other_fonts: None) -> None:
    from matplotlib.figure import Figure

    from harmofl.reporting.style import to_png, to_svg

    figure = Figure()
    figure.add_subplot().set_title(TOKYO)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert to_png(figure)
        assert "DongJing" in to_svg(figure)


def test_a_font_that_was_installed_since_matplotlib_made_its_list_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib import font_manager

    new = "STIXNonUnicode"
    letter = chr(min(labels.letters_of(new) - labels.letters_of(labels.OWN_FONT)))
    path = font_manager.findfont(new)
    listed = [font for font in font_manager.fontManager.ttflist if font.name != new]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", listed)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [path, __file__])
    monkeypatch.setattr(labels, "OTHER_FONTS", (new,))
    labels.installed_fonts.cache_clear()
    try:
        assert readable(letter) == letter
        assert labels.installed_fonts() == (labels.OWN_FONT, new)
    finally:
        labels.installed_fonts.cache_clear()
