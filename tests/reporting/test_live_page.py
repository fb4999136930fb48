"""The page that follows a run: over HTTP, and in a real browser while the run goes on."""

import io
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import numpy as np
import pytest
import torch
from PIL import Image

from chromium import open_page
from harmofl.files import claimed
from harmofl.reporting.live_pages import LivePages
from harmofl.reporting.live_server import Handler, LiveServer
from harmofl.runs.folder import RunFolder
from harmofl.runs.live_samples import LiveSample
from written_runs import write_run

SCORES = {"A": 0.9, "B <b>": 0.8, "C": 0.7}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Path]:
    """A run in its seventh round of twelve, whose site C has been left out once; its process holds the lock."""
    folder = write_run(tmp_path / "runs" / "first", "harmofl", SCORES, failed=("C", 3))
    files = RunFolder(folder)
    files.summary.unlink()
    (folder / "checkpoint").mkdir()
    files.config.write_text(files.config.read_text().replace("rounds = 6", "rounds = 12"))
    live = {"round": 7, "since": 0, "answered": ["A"], "left_out": {"C": "no answer within federation.timeout"}}
    files.live.write_text(json.dumps(live | {"sites": list(SCORES)}))
    facts = json.loads(files.data.read_text())
    files.data.write_text(json.dumps(facts | {"sites": list(SCORES)}))
    with claimed(files.lock, "in use"):
        yield folder


@contextmanager
def serving(server: LiveServer) -> Iterator[str]:
    thread = threading.Thread(target=server.serve_forever, args=[0.05])
    with server:
        thread.start()
        try:
            yield server.url
        finally:
            server.shutdown()
            thread.join()


def get(url: str, **headers: str) -> str:
    with urlopen(Request(url, headers=headers), timeout=20) as answer:
        return str(answer.read().decode())


def text_of(page: str) -> str:
    return " ".join(re.sub(r"<(style|script).*?</\1>|<[^>]+>", " ", page, flags=re.DOTALL).split())


def test_the_page_tells_of_rounds_sites_time_left_and_who_was_left_out_why(running: Path) -> None:
    with serving(LiveServer(running)) as url:
        page = get(url)
        assert "<b>" not in page  # a site's name is text
        words = text_of(page)
    assert "HarmoFL on histology" in words
    assert "Round 7 of 12: 1 of 3 sites have answered, 1 left out." in words
    assert "1 s left, about" in words or "left, about" in words
    assert "A has answered" in words
    assert "C left out: no answer within federation.timeout" in words
    assert "Round 3, C : out of memory" in words
    assert page.count("<polyline") == 2 * (len(SCORES) + 1)


def test_a_long_name_of_a_site_takes_several_lines_and_leaves_room_for_its_numbers(tmp_path: Path) -> None:
    long = "University Hospital, Department of Pathology and Cytology (Building 14)"
    folder = write_run(tmp_path / "run", "harmofl", {"A": SCORES["A"], long: SCORES["A"]})
    page = LivePages(folder).page("")
    assert f'<th scope="row" class="wrap">{long}</th>' in page
    assert '<th scope="row">A</th>' in page


def test_the_page_shows_what_the_newest_model_finds(running: Path) -> None:
    truth = torch.zeros(40, 40, dtype=torch.uint8)
    truth[10:20, 10:20] = 1
    samples = RunFolder(running).samples
    samples.write(LiveSample("A", 6, torch.full((3, 40, 40), 0.5), truth, truth.roll(4, dims=1)))
    samples.write(LiveSample("B <b>", 6, torch.zeros(1, 40, 40), "tumor", "normal"))
    with serving(LiveServer(running)) as url:
        page = get(url)
        assert "A, after round 6: an image for validation" in text_of(page)
        assert "after round 6: normal found, tumor in truth" in page
        with urlopen(f"{url}sample?site=A", timeout=20) as answer:
            pixels = np.asarray(Image.open(io.BytesIO(answer.read())))
        with pytest.raises(HTTPError, match="404"):
            get(f"{url}sample?site=C")
    assert pixels.shape == (160, 3 * 160 + 2 * 6, 3)  # each pixel four wide, three tiles, two gaps
    true, found = pixels[:, 166:326], pixels[:, 332:]
    assert (true[60, 60] == found[60, 60]).all()  # in both masks
    assert (true[60, 44] != found[60, 44]).any()  # missed
    assert (found[60, 90] != found[0, 0]).any()  # made up


def test_only_reading_is_possible_and_only_what_belongs_to_the_folder(running: Path) -> None:
    with serving(LiveServer(running.parent)) as url:
        words = text_of(get(url))
        assert "1 run: 1 running." in words
        assert "Round 7 of 12" in get(url + "content?" + urlencode({"run": "first"}))
        for path in ("?run=../other", "nothing", "picture?run=first&number=0", "picture?run=first&number=x"):
            with pytest.raises(HTTPError, match="404"):
                get(url + path)
        with pytest.raises(HTTPError, match="403"):
            get(url, Host="attacker.example")
        with pytest.raises(HTTPError, match="501"):
            urlopen(Request(url, data=b"x", method="POST"), timeout=20)
        with urlopen(url, timeout=20) as answer:
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert {path.name for path in running.iterdir()} == {
        *("checkpoint", "config.toml", "data.json", "records.jsonl", ".live.json", ".lock"),
    }


def test_a_run_that_is_over_says_how_it_ended_and_shows_its_pictures(tmp_path: Path) -> None:
    early = {"round": 6, "without_improvement": 3}
    done = write_run(tmp_path / "done", "fedavg", SCORES, stopped_early=early)
    with serving(LiveServer(done)) as url:
        assert f"harmofl pictures {done} --out {done}/pictures" in text_of(get(url))
    (done / "pictures").mkdir()
    (done / "pictures" / "masks.png").write_bytes(b"a picture")
    figures = {"figures": [{"name": "masks", "caption": "What was found."}]}
    (done / "pictures" / "pictures.json").write_text(json.dumps(figures))
    with serving(LiveServer(done)) as url:
        page = get(url)
        assert "Finished: 80.00 % mean test accuracy over 3 sites, with the model of round 5." in text_of(page)
        assert "had not improved for 3 rounds." in text_of(page)
        assert "What was found." in text_of(page)
        assert "harmofl pictures" not in page
        assert get(url + "picture?run=&number=0") == "a picture"

    stopped = write_run(tmp_path / "my runs" / "stopped", "fedavg", SCORES)
    (stopped / "summary.json").unlink()
    (stopped / "checkpoint").mkdir()
    with serving(LiveServer(stopped)) as url:
        page = get(url)
    assert "Stopped after round 6 of 6." in text_of(page)
    assert "harmofl train --out &#39;" in page  # a path with a space is quoted


# A window cannot be as narrow as a phone, a frame in it can.
HARNESS = """<!doctype html><body><iframe src="/" style="width:WIDTHpx;height:800px;border:0"></iframe>
<script>
const frame = document.querySelector("iframe");
const found = {};
frame.addEventListener("load", () => {
  const page = frame.contentDocument;
  const lead = () => page.querySelector(".lead").textContent;
  const box = (element) => element.getBoundingClientRect();
  Object.assign(found, { first: lead(), width: page.documentElement.scrollWidth });
  found.charts = [...page.querySelectorAll(".chart > svg")].map((svg) => Math.round(box(svg).width));
  found.smallest = Math.min(...[...page.querySelectorAll(".chart text")].map((text) => box(text).height));
  found.bar = box(page.querySelector(".bar span")).width / box(page.querySelector(".bar")).width;
  page.querySelector("details").open = true;
  let looks = 0;
  const wait = setInterval(() => {
    looks += 1;
    if (lead() === found.first && looks < 100) return;
    clearInterval(wait);
    Object.assign(found, { then: lead(), title: page.title, open: page.querySelector("details").open });
    found.lost = !page.querySelector("#lost").hidden;
    const resources = frame.contentWindow.performance.getEntriesByType("resource").map((entry) => entry.name);
    found.elsewhere = resources.filter((name) => !name.startsWith(location.origin) && !name.startsWith("data:"));
    document.body.replaceChildren(JSON.stringify(found));
  }, 500);
});
</script></body>"""


class WithHarness(Handler):
    """Also serves the page around the page, and acts when the page asks for its content for the first time."""

    harness = ""
    acts: list[Any] = []  # noqa: RUF012 - each test has its own

    def do_GET(self) -> None:  # noqa: N802
        if self.path == "/harness":
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(self.harness.encode())
            return
        if self.path == "/content" and self.acts:
            self.acts.pop()()
        super().do_GET()


FLAGS = ("--window-size=1100,900", "--virtual-time-budget=60000")


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 960])
def test_a_browser_sees_the_next_round_without_being_told_to(running: Path, tmp_path: Path, width: int) -> None:
    def finish_round() -> None:
        records = [{"round": 7, "site": site, "phase": "train", "loss": 0.1, "seconds": 0.5} for site in SCORES]
        server = {"round": 7, "site": "server", "phase": "train", "loss": 0.1, "seconds": 0.5}
        RunFolder(running).append([*records, server])
        live = {"round": 8, "since": 0, "answered": [], "left_out": {}, "sites": list(SCORES)}
        RunFolder(running).live.write_text(json.dumps(live))

    server = LiveServer(running)
    parts = {"harness": HARNESS.replace("WIDTH", str(width)), "acts": [finish_round]}
    server.RequestHandlerClass = partial(type("Around", (WithHarness,), parts), LivePages(running))  # type: ignore
    with serving(server) as url:
        document = open_page(f"{url}harness", tmp_path / "profile", *FLAGS)
    body = re.search(r"<body>(\{.*\})</body>", document, flags=re.DOTALL)
    assert body is not None, document[-500:]
    found = json.loads(body[1])
    assert found["first"] == "Round 7 of 12: 1 of 3 sites have answered, 1 left out."
    assert found["then"] == "Round 8 of 12: 0 of 3 sites have answered."
    assert found["title"] == "HarmoFL on histology: running, round 7 of 12"
    assert found["width"] <= width
    assert found["bar"] == pytest.approx(0.5, abs=0.01)
    assert len(found["charts"]) == 2
    assert min(found["charts"]) > 280
    assert found["smallest"] >= 9
    assert found["open"]
    assert not found["lost"]
    assert found["elsewhere"] == []
