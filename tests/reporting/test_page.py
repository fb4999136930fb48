import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from chromium import open_page
from harmofl.reporting.image_grid import image_grid
from harmofl.reporting.page import next_steps_for, page_for_runs, write_page
from harmofl.reporting.style import INK
from harmofl.reporting.words import summarize
from harmofl.runs.finished import FinishedRun, read_run
from html_tables import table_rows

MakeRun = Callable[..., FinishedRun]


@pytest.fixture
def page(two_runs: list[FinishedRun], tmp_path: Path) -> Path:
    images = np.random.default_rng(0).random((2, 3, 16, 16))
    samples = image_grid({run: {"before": images, "after": images} for run in ("A", "B", "C")})
    out = tmp_path / "report.html"
    page_for_runs(two_runs, out, samples_figure=samples)
    return out


class _Elements(HTMLParser):
    """Collects every element's attributes, and checks that what is opened is closed."""

    void = frozenset({"meta", "link", "br", "img", "input", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_loads_nothing_from_a_network(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"https?:", text)
    assert "@import" not in text
    for _, attributes in _Elements(text).found:
        for name in ("src", "href", "xlink:href", "action"):
            assert (attributes.get(name) or "#").startswith(("#", "data:"))


def test_what_travels_is_told_of_methods_only(make_run: MakeRun, tmp_path: Path) -> None:
    scores = {"A": 0.9, "B": 0.8}
    page_for_runs([make_run(method, scores) for method in ("fedavg", "centralized")], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    (fedavg, centralized) = (table_rows(text)[label][-1] for label in ("FedAvg", "Centralized"))
    assert "What it cost" in text
    assert "3.00" in fedavg  # megabytes: 1 up and 2 down
    assert "–" in centralized
    assert "3.00" not in centralized


def test_page_holds_scores_figures_settings_versions_and_how_to_repeat_it(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for content in (
        "FedAvg and HarmoFL on histology",
        "82.00 <span",
        "Test accuracy by round",
        "Drift of the sites by round",
        "What these pictures show",
        "band = dc",
        "Phase is kept",
        "method.radius",
        "training.batch_size",
        "2.13.0",
        "harmofl train --config runs/harmofl-0/config.toml --out runs/harmofl-0-again",
        "prefers-color-scheme: dark",
        'name="viewport"',
        "aria-sort",
    ):
        assert content in text
    assert page.stat().st_size < 10_000_000


def test_page_is_well_formed_with_unique_ids_and_described_figures(page: Path) -> None:
    elements = _Elements(page.read_text(encoding="utf-8"))
    assert elements.open == []
    ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    pictures = [attributes for tag, attributes in elements.found if tag == "svg"]
    assert len(pictures) == 4
    assert all(picture["role"] == "img" and picture["aria-label"] for picture in pictures)
    assert sum(tag == "figcaption" for tag, _ in elements.found) == 4


def test_figures_in_the_page_take_its_colours(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert f"var(--ink, {INK})" in text


def test_page_beside_its_only_run_says_how_to_repeat_it(two_runs: list[FinishedRun]) -> None:
    folder = two_runs[0].folder
    page_for_runs(two_runs[:1], folder / "report.html")
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "harmofl train --config config.toml --out ../fedavg-0-again" in text


def test_page_escapes_what_the_records_say(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run("fedavg", {"<script>alert(1)</script>": 0.9, 'B" onload="x': 0.8}, title="Fed<b>Avg")
    write_page(tmp_path / "page.html", title="A & <i>B", summary_sentences=["<u>"], runs=[run])
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script>alert" not in text
    for tag, attributes in _Elements(text).found:
        assert tag not in ("b", "i", "u")
        assert "onload" not in attributes


def test_page_is_written_whole_or_not_at_all(
    two_runs: list[FinishedRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "page.html"
    out.write_text("old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_page(out, title="t", summary_sentences=[], runs=two_runs)
    assert out.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["page.html"]


def test_page_without_config_files_can_still_be_made(two_runs: list[FinishedRun], tmp_path: Path) -> None:
    for run in two_runs:
        (run.folder / "config.toml").unlink()
    page_for_runs([read_run(run.folder) for run in two_runs], tmp_path / "page.html")
    assert "hold no <code>config.toml</code>" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_next_steps_keep_the_hospitals_and_their_settings(two_runs: list[FinishedRun], tmp_path: Path) -> None:
    assert {run.method for run in two_runs} == {"fedavg", "harmofl"}
    steps = dict(next_steps_for(two_runs, tmp_path))
    config = "--config runs/harmofl-0/config.toml"
    assert (
        steps["Train another method on the same hospitals"] == f"harmofl train {config} --method fedbn --out runs/fedbn"
    )
    assert f"harmofl train {config} --set data.shift=2 --out runs/shifted" in steps.values()
    assert "harmofl evaluate runs/shifted/model --set data.shift=0" in steps.values()
    (two_runs[0].folder.parent / "shifted").mkdir()
    assert (
        "harmofl evaluate runs/shifted-2/model --set data.shift=0" in dict(next_steps_for(two_runs, tmp_path)).values()
    )


def test_equal_scores_have_no_best_hospital(make_run: MakeRun) -> None:
    assert not any("does best at" in sentence for sentence in summarize([make_run("fedavg", {"A": 0.0, "B": 0.0})]))


def test_summary_says_who_is_ahead_and_where(two_runs: list[FinishedRun]) -> None:
    lead, sites, seeds, phantoms = summarize(two_runs)
    assert lead == (
        "HarmoFL is ahead with 82.0 % average test accuracy over 3 hospitals, 2.0 points more than FedAvg (80.0 %)."
    )
    assert sites == (
        "HarmoFL does best at hospital A (92.0 %) and worst at hospital C (76.0 %); "
        "it is ahead of FedAvg at 2 of 3 hospitals, most at hospital C (+6.0 points), "
        "and furthest behind at hospital B (−2.0 points)."
    )
    assert "one run per method" in seeds
    assert "phantoms" in phantoms


def test_summary_says_so_when_harmofl_loses(make_run: MakeRun) -> None:
    runs = [
        make_run("harmofl", {"A": 0.80, "B": 0.70}),
        make_run("fedavg", {"A": 0.85, "B": 0.75}),
        make_run("fedbn", {"A": 0.84, "B": 0.74}),
    ]
    sentences = summarize(runs)
    assert sentences[0].startswith("FedAvg is ahead with 80.0 %")
    assert "1.0 point more than FedBN" in sentences[0]
    assert sentences[1] == "HarmoFL does not win here: it is 5.0 points behind FedAvg."


def test_summary_calls_equal_averages_level(make_run: MakeRun) -> None:
    runs = [make_run("fedavg", {"A": 0.8, "B": 0.6}), make_run("harmofl", {"A": 0.6, "B": 0.8})]
    sentences = summarize(runs)
    assert sentences[0] == "FedAvg and HarmoFL are level at 70.0 % average test accuracy over 2 hospitals."
    assert not any("does not win" in sentence for sentence in sentences)


def test_summary_counts_seeds_in_pairs(make_run: MakeRun) -> None:
    scores = {"harmofl": [0.80, 0.80, 0.90], "fedavg": [0.79, 0.81, 0.80]}
    runs = [
        make_run(method, {"A": average + 0.01, "B": average - 0.01}, seed=seed)
        for method, averages in scores.items()
        for seed, average in enumerate(averages)
    ]
    assert "Seed by seed, HarmoFL is ahead of FedAvg in 2 of 3." in summarize(runs)


def test_summary_tells_failures_and_references(make_run: MakeRun) -> None:
    runs = [
        make_run("fedavg", {"A": 0.8, "B": 0.6}, rounds=5, failed=("B", 2)),
        make_run("centralized", {"A": 0.9, "B": 0.8}, rounds=5),
    ]
    sentences = summarize(runs)
    assert sentences[0] == "FedAvg reaches 70.0 % average test accuracy over 2 hospitals."
    assert "For reference: Centralized 85.0 %." in sentences
    assert "1 of 20 site updates failed and was left out (hospital B)." in sentences


@pytest.mark.slow
def test_page_works_in_a_browser(page: Path, tmp_path: Path) -> None:
    """Load the page, sort, enlarge a figure and close it; the browser has nothing to complain about."""
    probe = """<script>
      const heading = document.querySelector("table.sortable").tHead.rows[0].cells[1];
      heading.querySelector("button").click();
      const first = () => document.querySelector("table.sortable").tBodies[0].rows[0].cells[0].textContent;
      const found = [heading.getAttribute("aria-sort"), first()];
      heading.querySelector("button").click();
      found.push(heading.getAttribute("aria-sort"), first());
      document.querySelector(".enlarge").click();
      found.push(document.querySelector("dialog").open, document.querySelectorAll("dialog svg").length);
      document.querySelector("dialog").close();
      found.push(document.documentElement.scrollWidth <= innerWidth);
      document.title = found.join(" ");
    </script></body>"""
    probed = page.with_name("probed.html")
    probed.write_text(page.read_text(encoding="utf-8").replace("</body>", probe), encoding="utf-8")
    title = re.search(r"<title>(.*?)</title>", open_page(probed, tmp_path / "profile", "--window-size=500,900"))
    assert title is not None
    assert title[1] == "descending HarmoFL ascending FedAvg true 1 true"
