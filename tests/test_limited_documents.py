"""JSON and TOML that would take long, or a lot of memory, are refused before they are parsed."""

import time
from pathlib import Path

import pytest

from harmofl.documents import parse_json, parse_toml, read_json
from harmofl.errors import UsageError
from harmofl.settings import read_toml


def test_what_people_write_is_read() -> None:
    assert parse_json('{"a": [1, {"b": "]]]]"}]}') == {"a": [1, {"b": "]]]]"}]}
    assert parse_json(b'["' + b"[" * 1000 + b'"]') == ["[" * 1000]
    text = 'a.b.c = "x.[[" # [[[\n[t]\nl = [[0.1, 0.2], [0.3]]\nm = """\n[[[[\n"""\nn = \'[\'\n'
    assert parse_toml(text) == {
        "a": {"b": {"c": "x.[["}},
        "t": {"l": [[0.1, 0.2], [0.3]], "m": "[[[[\n", "n": "["},
    }


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 5000, "[" * 65 + "]" * 65])
def test_deep_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="nested more than 64 deep"):
        parse_json(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = " + "[" * 5000, "nested more than 64 deep"),
        ("a = " + "{a=" * 5000, "nested more than 64 deep"),
        (".".join(["a"] * 50_000) + " = 1", "a key of more than 16 parts"),
        ("[" + " . ".join(['"a"'] * 50_000) + "]", "a key of more than 16 parts"),
        ("x" * 2**20 + " = 1", "1 MB: at most 1"),
        ('data = "a\\u0000b"', "holds a NUL character"),
        ('"\\u0000" = 1', "holds a NUL character"),
    ],
)
def test_toml_that_takes_long_is_refused_at_once(tmp_path: Path, text: str, words: str) -> None:
    started = time.monotonic()
    with pytest.raises(ValueError, match=words):
        parse_toml(text)
    assert time.monotonic() - started < 5
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(UsageError, match=words):
        read_toml(tmp_path / "site.toml")


def test_a_large_file_is_not_even_read(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(2**40)  # a terabyte that takes no space
    with pytest.raises(ValueError, match="1048576 MB: at most 256 are read"):
        read_json(path)
