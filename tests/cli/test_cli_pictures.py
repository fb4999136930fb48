"""The command `harmofl pictures`: what it prints, writes and refuses."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from folders import segmentation_folder
from harmofl import cli

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in this process; return its exit code, stdout and stderr."""

    def command(*args: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["harmofl", "pictures", *map(str, args)])
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return command


def test_images_of_a_folder_are_drawn_and_the_captions_printed(run: Run, tmp_path: Path) -> None:
    folder, out = segmentation_folder(tmp_path / "images", size=32), tmp_path / "out"
    code, text, _ = run("--task=segmentation", "--data", folder, "--preset=smoke", "--band=dc", "--out", out)
    assert code == 0
    assert "looking at the images of site-1" in text
    assert "| band dc |" in text
    assert str(out) in text
    assert (out / "embedding.png").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--task=nucle"], "unknown task 'nucle'; did you mean 'nuclei'?"),
        (["--task=nuclei", "--preset=tiny"], "unknown preset 'tiny'"),
        (["--task=nuclei", "--band=some"], "band = 'some': must be"),
        (["--task=nuclei", "--set=data.shift=9"], "data.shift = 9: must be"),
        (["--task=nuclei", "--device=tpu"], "device = 'tpu'"),
        (["nowhere"], "nowhere/summary.json is missing"),
        (["nowhere", "--task=nuclei"], "task = 'nuclei': runs have their own"),
        ([], "nothing to draw"),
    ],
)
def test_wrong_usage_is_one_line_that_names_field_and_value(
    run: Run, tmp_path: Path, args: list[str], message: str
) -> None:
    code, _, error = run(*args, "--out", tmp_path / "out")
    assert code == 2
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()
