"""The site: links of its pages, its references, and the check of what was built."""

import doctest
import re
import sys
from pathlib import Path

import click
import pytest
import typer

import harmofl
from chromium import open_page
from harmofl.cli import app
from harmofl.settings import setting_names

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "docs" / "_site")]

from build import broken_links  # noqa: E402

from pages import lead_links, other_pages  # noqa: E402
from reference_api import api_reference  # noqa: E402
from reference_commands import command_reference  # noqa: E402
from reference_settings import settings_reference  # noqa: E402

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def anchors_of(page: Path) -> set[str]:
    """The anchors that a forge gives to headings."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    words = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", each).replace(" ", "-") for each in words}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere_on_a_forge(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
        path, _, anchor = link.partition("#")
        if "://" in link:
            assert re.match(r"https://[\w.-]+\.\w+", link), link
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    assert broken == []


def test_examples_on_pages_are_true() -> None:
    files = [str(page) for page in PAGES if ">>> " in page.read_text(encoding="utf-8")]
    failed = [file for file in files if doctest.testfile(file, module_relative=False, optionflags=doctest.ELLIPSIS)[0]]
    assert failed == []


def test_the_code_of_the_guide_for_pytorch_runs() -> None:
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "guides" / "pytorch.md").read_text(), re.DOTALL)
    assert code
    names: dict[str, object] = {}
    exec(compile(code[1], "pytorch.md", "exec"), names)
    assert bool(names["harmonizer"].frozen)  # type: ignore[attr-defined]


def test_the_reference_of_python_has_every_public_name() -> None:
    described = re.findall(r"^\.\. auto(?:class|function|exception):: (harmofl\.\w+)$", api_reference(), re.MULTILINE)
    assert sorted(described) == [f"harmofl.{name}" for name in sorted(harmofl.__all__)]


def commands(command: click.Command, path: str) -> list[str]:
    if not isinstance(command, click.Group):
        return [path]
    return [name for key, inner in command.commands.items() for name in commands(inner, f"{path} {key}")]


def test_the_reference_of_commands_has_every_command_and_option() -> None:
    page = command_reference()
    shown = re.findall(r"^#+ `(.+)`$", page, re.MULTILINE)
    assert set(commands(typer.main.get_command(app), "harmofl")) <= set(shown)
    train = page.split("\n## `harmofl train`\n")[1].split("\n## ")[0]
    assert {"`--task`", "`--resume`", "`--set`"} <= set(re.findall(r"`--[a-z]+`", train))
    assert "```text\nharmofl train --out runs/ours --resume\n```" in train


def test_the_reference_of_settings_has_every_setting_method_and_task() -> None:
    rows = re.findall(r"^\| `([\w.-]+)` \|", settings_reference(), re.MULTILINE)
    assert set(setting_names()) <= set(rows)
    assert {"harmofl", "scaffold", "training.rounds"} <= set(rows)
    assert "| `federation.quorum` | `0.5` | a number, more than 0, at most 1 |" in settings_reference()


def test_links_out_of_the_folder_lead_to_the_sites_own_pages() -> None:
    assert lead_links("[s](../SECURITY.md#x)", "docs/a.md", "docs/a.md") == "[s](security.md#x)"
    assert lead_links("[d](docs/data.md)", "README.md", "docs/guides/a.md") == "[d](../data.md)"
    assert lead_links("[results](../results)", "docs/a.md", "docs/a.md") == "results"
    assert lead_links("```\n[s](../SECURITY.md)\n```", "docs/a.md", "docs/a.md") == "```\n[s](../SECURITY.md)\n```"


def test_a_page_that_nobody_put_into_the_index_has_a_place_there() -> None:
    named = (ROOT / "docs" / "index.md").read_text().split()
    rest = other_pages().split()
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"} == {*rest} | (
        {page.stem for page in (ROOT / "docs").glob("*.md")} & {*named}
    )


def test_broken_links_of_a_built_site_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<h1 id="top"><a href="b.html#there">b</a> <a href="#top">top</a></h1>')
    (tmp_path / "b.html").write_text(
        '<p id="there"><a href="a.html#nowhere">1</a><img src="no.png"><a href="https://x">'
    )
    assert broken_links(tmp_path) == ["b.html: a.html#nowhere", "b.html: no.png", "b.html: https://x"]


WIDE_TABLE = """<article role="main"><div class="table-wrapper" style="width: 300px">
<table class="docutils"><thead><tr>{heading}</tr></thead><tbody>{rows}</tbody></table></div></article>
<script>
  const box = document.querySelector('.table-wrapper');
  box.scrollLeft = box.scrollTop = 200;
  const place = (cell) => cell.getBoundingClientRect(), at = place(box);
  document.body.dataset.moved = [
    box.scrollLeft, box.scrollTop,
    Math.abs(place(box.querySelector('tbody tr:last-child td')).left - at.left) < 5,
    Math.abs(place(box.querySelector('th:last-child')).top - at.top) < 5,
  ];
</script>"""


def test_methods_and_headings_of_a_long_and_wide_table_stay_in_sight(tmp_path: Path) -> None:
    style = (ROOT / "docs" / "_site" / "static" / "harmofl.css").read_text()
    heading = "".join(f"<th>hospital-{number}</th>" for number in range(9))
    rows = "".join(f"<tr>{'<td>12.34 (0.56)</td>' * 9}</tr>" for _ in range(99))
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><style>{style}</style>{WIDE_TABLE.format(heading=heading, rows=rows)}")
    assert 'data-moved="200,200,true,true"' in open_page(page, tmp_path / "profile")
