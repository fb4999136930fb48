import io
from pathlib import Path

from PIL import Image

from harmofl.reporting.experiment_figures import drift_by_site
from harmofl.reporting.style import line_style, write_figures
from harmofl.runs.finished import FinishedRun


def test_methods_differ_in_more_than_colour() -> None:
    styles = [line_style(index) for index in range(9)]
    for shown in ("color", "marker"):
        pairs = {(str(style["linestyle"]), style[shown]) for style in styles}
        assert len(pairs) == len(styles)


def test_figures_are_written_as_png_and_svg(two_runs: list[FinishedRun], tmp_path: Path) -> None:
    paths = write_figures({"drift-by-site": drift_by_site(two_runs)}, tmp_path / "figures")
    assert [path.name for path in paths] == ["drift-by-site.png", "drift-by-site.svg"]
    assert Image.open(io.BytesIO(paths[0].read_bytes())).format == "PNG"
    assert ">HarmoFL</text>" in paths[1].read_text(encoding="utf-8")
