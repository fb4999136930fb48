"""Build the site: python docs/build.py OUT. Warnings are errors, notebooks are run, and every link is checked."""

from __future__ import annotations

import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

DOCS = Path(__file__).parent
MADE = DOCS / "_made"
BROWSER = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --hide-scrollbars"

QUICK = {
    "data.sites": ["MoNuSAC-lung", "MoNuSeg", "TNBC"],
    "model.statistics": "site",
    "training.rounds": 4,
    "training.local_epochs": 4,
    "training.batch_size": 2,
    "training.learning_rate": 1e-2,
    "federation.workers": 1,
}
"""Enough that methods differ, in seconds."""


def main() -> None:
    """Make pictures, pages, and a list of broken links if there are any."""
    out = Path(sys.argv[1])
    draw_report()
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-j",
        "2",
        "-E",
        "-d",
        str(out.with_name("doctrees")),
    ]
    if subprocess.run([*command, "-b", "html", str(DOCS), str(out)], check=False).returncode:
        raise SystemExit("the documentation has errors")
    broken = broken_links(out)
    if broken:
        raise SystemExit("\n".join(["broken links:", *broken]))
    print(f"{out}/index.html")


def draw_report() -> None:
    """The report of two quick runs, as a browser shows it; nothing where there is no browser."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not chromium:
        print("no Chromium: the site has no picture of a report", file=sys.stderr)
        return
    import harmofl
    from harmofl.experiments.report import write_report

    runs = MADE / "runs"
    shutil.rmtree(MADE, ignore_errors=True)
    for method in ("fedavg", "harmofl"):
        harmofl.train("nuclei", method, preset="smoke", settings=QUICK, out=runs / method, progress=False)
    options = [*BROWSER.split(), "--window-size=1100,1400", f"--screenshot={MADE / 'report.png'}"]
    page = write_report(runs).absolute().as_uri()
    subprocess.run([chromium, *options, page], check=True, capture_output=True, timeout=600)


class Links(HTMLParser):
    """What a page refers to, and the anchors that it has."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take a link, a picture or an anchor."""
        for name, value in attrs:
            if value and name == "id":
                self.anchors.add(value)
            elif value and (tag, name) in (("a", "href"), ("img", "src")):
                self.found.append(value)


def broken_links(site: Path) -> list[str]:
    """Links to pages, files or anchors that are not there, and addresses that can be none."""
    pages = {page.resolve(): Links(page) for page in sorted(site.rglob("*.html"))}
    broken = []
    for page, links in pages.items():
        for link in dict.fromkeys(links.found):
            if not leads_somewhere(link, page, pages):
                broken.append(f"{page.relative_to(site.resolve())}: {link}")
    return broken


def leads_somewhere(link: str, page: Path, pages: dict[Path, Links]) -> bool:
    """Whether a link of a page leads to what is there; an address outside must look like one."""
    parts = urlsplit(link)
    if parts.scheme in ("http", "https"):
        return "." in parts.netloc and " " not in link
    if parts.scheme:
        return parts.scheme in ("mailto", "data")
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if parts.fragment and target in pages:
        return unquote(parts.fragment) in pages[target].anchors
    return target.exists()


if __name__ == "__main__":
    main()
