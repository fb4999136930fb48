"""Without the packages of the extras training works, and everything else says what to install."""

import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import packages_distributions
from pathlib import Path

import numpy as np
import pytest

from folders import segmentation_folder
from harmofl import api, extras
from harmofl.data.formats import load_libraries, read_scan
from harmofl.data.scans import UnreadableError
from harmofl.errors import UsageError

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EVERY_PACKAGE = sorted({package for packages in extras.PACKAGES.values() for package in packages})
ENGINES = ("flwr", "nvflare", "cryptography")

BLOCKED = """
import sys
from importlib.machinery import PathFinder

blocked, find = set(sys.argv.pop(1).split(",")), PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name.partition(".")[0] in blocked else find(name, *rest)
from harmofl import api

api.train("segmentation", "harmofl", data="images", preset="smoke", workers=1, out="run")
check, sheet = api.check_data("segmentation", "images", preset="smoke", sheet="sheet.png")
outcomes = api.predict("run", "images/site-0/p0-0.png", out="predicted")
print(check.ok, sheet, outcomes[0].output.name, sorted(blocked & set(sys.modules)))
"""


@pytest.mark.long
def test_training_and_prediction_need_no_extra(tmp_path: Path) -> None:
    segmentation_folder(tmp_path / "images")
    command = [sys.executable, "-c", BLOCKED, ",".join([*EVERY_PACKAGE, *ENGINES])]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "True None p0-0_mask.png []"
    assert "the contact sheet needs an extra: pip install 'harmofl[reports]'" in result.stderr


def hide(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Let imports of packages fail, also where they are loaded already."""
    loaded = [name for name in sys.modules if name.partition(".")[0] in packages]
    for name in (*loaded, *packages):
        monkeypatch.setitem(sys.modules, name, None)


DRAWN: dict[str, Callable[[Path], object]] = {
    "--overlay": lambda out: api.predict(out / "run", "images", out=out, overlay=True),
    "drawing a landscape": lambda out: api.landscape([out], out=out),
    "drawing pictures": lambda out: api.pictures(task="nuclei", out=out),
}


@pytest.mark.parametrize("purpose", DRAWN)
def test_what_draws_says_which_extra_it_needs_before_it_begins(
    purpose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(monkeypatch, "matplotlib")
    with pytest.raises(UsageError) as error:
        DRAWN[purpose](tmp_path)
    assert str(error.value) == f"{purpose} needs an extra: pip install 'harmofl[reports]'"


@pytest.mark.parametrize("command", ["report", "experiment", "demo", "privacy"])
def test_commands_that_draw_say_so_too(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from harmofl.cli import app

    hide(monkeypatch, "anyascii")
    arguments = {"report": [str(tmp_path)], "experiment": ["table-nuclei", "--out", str(tmp_path)]}
    result = CliRunner().invoke(app, [command, *arguments.get(command, ["--out", str(tmp_path)])])
    assert isinstance(result.exception, UsageError)
    assert "pip install 'harmofl[reports]'" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def nifti(path: Path) -> None:
    import nibabel

    nibabel.Nifti1Image(np.zeros((8, 8, 2), np.float32), np.eye(4)).to_filename(path)


def tiff(path: Path) -> None:
    import tifffile

    tifffile.imwrite(path, np.zeros((8, 8), np.uint16))


def dicom(path: Path) -> None:
    path.write_bytes(b"\0" * 128 + b"DICM")


@pytest.mark.parametrize(
    ("write", "package", "words"),
    [
        (nifti, "nibabel", "reading a NIfTI file needs an extra: pip install 'harmofl[nifti]'"),
        (tiff, "tifffile", "reading a TIFF needs an extra: pip install 'harmofl[tiff]'"),
        (dicom, "pydicom", "reading a DICOM file needs an extra: pip install 'harmofl[dicom]'"),
    ],
)
def test_a_file_that_needs_an_extra_says_so(
    write: Callable[[Path], None], package: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"scan.{write.__name__[:3].replace('nif', 'nii')}"
    write(path)
    hide(monkeypatch, package)
    load_libraries()
    with pytest.raises(UnreadableError) as error:
        read_scan(path)
    assert str(error.value) == words


def brought_by(extra: str) -> set[str]:
    """The distributions of an extra in pyproject.toml, with those of the extras that it names."""
    names = set()
    for requirement in PROJECT["optional-dependencies"][extra]:
        if requirement.startswith("harmofl["):
            for inner in requirement.removeprefix("harmofl[").removesuffix("]").split(","):
                names |= brought_by(inner)
        else:
            names.add(requirement.partition(">")[0].partition("=")[0].lower())
    return names


def test_every_extra_that_is_named_brings_its_packages() -> None:
    distributions = packages_distributions()
    for extra, packages in extras.PACKAGES.items():
        assert {distributions[package][0].lower() for package in packages} <= brought_by(extra), extra
    assert set(extras.PACKAGES) <= set(PROJECT["optional-dependencies"])


def test_full_brings_everything_that_users_can_use() -> None:
    usable = set(PROJECT["optional-dependencies"]) - {"docs", "dev"}
    assert brought_by("full") == set().union(*map(brought_by, usable))


def test_every_dependency_has_a_pin() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()[1:]
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lines}
    direct = {name.partition(">")[0] for name in PROJECT["dependencies"]} | brought_by("dev")
    assert {name.lower() for name in direct} - pinned == set()
    assert lines == sorted(lines, key=str.lower)


def test_every_extra_is_in_the_table_for_newcomers() -> None:
    table = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    assert {extra for extra in PROJECT["optional-dependencies"] if f"`{extra}`" not in table} == {"docs", "dev"}
