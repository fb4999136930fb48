"""The wheel holds everything and works outside the checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return next(out.glob("*.whl"))


def test_the_wheel_holds_the_package_its_page_and_its_types_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {"harmofl/cli/entry.py", "harmofl/py.typed", "harmofl/reporting/page.html.j2"} <= set(names)
    assert all(name.startswith(("harmofl/", "harmofl-")) for name in names)


@pytest.mark.slow
def test_the_installed_wheel_trains_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    train = ["train", "--task", "nuclei", "--method", "harmofl", "--preset", "smoke", "--workers", "1", "--out", "run"]
    command = [sys.executable, "-c", "import harmofl; print(harmofl.__file__); from harmofl.cli import main; main()"]
    result = subprocess.run(
        command + train, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr
    assert str(site) in result.stdout
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
