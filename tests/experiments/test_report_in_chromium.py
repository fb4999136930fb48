"""Reports in a real browser, at the width of a desktop and of a phone."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from chromium import open_page
from harmofl.experiments.report import write_report

FLAGS = ("--allow-file-access-from-files", "--window-size=1000,900", "--virtual-time-budget=5000")

# A window cannot be as narrow as a phone, a frame in it can.
HARNESS = """<!doctype html><body><iframe src="report.html" style="width:WIDTHpx;height:700px;border:0"></iframe>
<script>
document.querySelector("iframe").addEventListener("load", (event) => {
  const page = event.target.contentDocument;
  const table = page.querySelector("table.sortable");
  const titles = () => [...table.tBodies[0].rows].map((row) => row.cells[0].textContent);
  const heading = table.tHead.rows[0].cells[1];
  const found = { width: page.documentElement.scrollWidth, orders: [], requests: [] };
  for (let click = 0; click < 2; click += 1) {
    heading.querySelector("button").click();
    found.orders.push([heading.getAttribute("aria-sort"), ...titles()]);
  }
  found.hidden = [...page.querySelectorAll("figure.plot")].filter((figure) => {
    const box = figure.querySelector("svg").getBoundingClientRect();
    return box.width < 100 || box.height < 100;
  }).length;
  found.broken = [...page.images].filter((image) => image.naturalWidth === 0).length;
  found.figures = page.querySelectorAll("figure.plot svg[role=img][aria-label]").length;
  page.querySelector(".enlarge").click();
  found.enlarged = page.querySelector("dialog[open] svg").getBoundingClientRect().width > 300;
  const resources = event.target.contentWindow.performance.getEntriesByType("resource");
  found.requests = resources.map((entry) => entry.name).filter((name) => !name.startsWith("data:"));
  document.body.replaceChildren(JSON.stringify(found));
});
</script></body>"""


def look(folder: Path, width: int, profile: Path) -> dict[str, Any]:
    """Open the report, click through it and tell what there was."""
    harness = folder / "harness.html"
    harness.write_text(HARNESS.replace("WIDTH", str(width)), encoding="utf-8")
    document = open_page(harness, profile, *FLAGS)
    body = re.search(r"<body>(\{.*\})</body>", document, flags=re.DOTALL)
    assert body is not None, document[-500:]
    found: dict[str, Any] = json.loads(body[1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 960])
def test_an_experiments_report_works_in_a_browser(experiment: Path, tmp_path: Path, width: int) -> None:
    text = write_report(experiment).read_text(encoding="utf-8")
    assert not re.search(r"(src|href)=\"https?:", text)
    found = look(experiment, width, tmp_path / "profile")
    assert found["width"] <= width
    assert found["orders"] == [["descending", "HarmoFL", "FedAvg"], ["ascending", "FedAvg", "HarmoFL"]]
    assert found["figures"] == 5
    assert found["hidden"] == found["broken"] == 0
    assert found["enlarged"]
    assert found["requests"] == []
