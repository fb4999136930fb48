"""What is published holds everything, is built the same every time, and works outside the checkout."""

import datetime
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from harmofl.version import __version__

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "release"))

from check import declared_versions, find_pythons, version_of  # noqa: E402
from set_version import set_version  # noqa: E402

OWN = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with wheel and sdist, built twice with the same hashes, and checked."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "release/check.py", "--build-only", "--out", str(out)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return next(built.glob("*.whl"))


def test_the_wheel_holds_the_package_its_page_its_plans_and_its_types_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {"harmofl/cli/entry.py", "harmofl/py.typed", "harmofl/reporting/page.html.j2"} <= set(names)
    plans = {f"harmofl/experiments/plans/{path.name}" for path in (ROOT / "experiments").glob("*.toml")}
    assert plans <= set(names)
    assert all(name.startswith(("harmofl/", "harmofl-")) for name in names)


def test_the_sdist_holds_what_the_wheel_is_built_from(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "src/harmofl/version.py", "experiments/table-nuclei.toml", "CITATION.cff"} <= names


INSTALLED = """
import harmofl
from harmofl.cli import main
from harmofl.experiments.cells import read_experiment
from harmofl.experiments.shipped import find_plan

print(harmofl.__file__, len(read_experiment(find_plan("table-nuclei")).cells), "cells")
main()
"""


@pytest.mark.long
def test_the_installed_wheel_trains_and_knows_its_plans_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    train = ["train", "--task", "nuclei", "--method", "harmofl", "--preset", "smoke", "--workers", "1", "--out", "run"]
    result = subprocess.run(
        [sys.executable, "-c", INSTALLED, *train],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"{site / 'harmofl' / '__init__.py'} 27 cells")
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()


def check_versions(root: Path, version: str) -> None:
    """CITATION.cff and the newest heading of CHANGELOG.md name a version, and the same date if it is released."""
    base, _, development = version.partition(".dev")
    citation = yaml.safe_load((root / "CITATION.cff").read_text())
    assert str(citation["version"]) == version
    assert ("date-released" in citation) == (not development)
    heading = re.search(r"^## (.+)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heading
    assert heading[1] == f"{base} ({citation.get('date-released', 'unreleased')})"


def test_version_citation_changelog_and_tag_agree() -> None:
    check_versions(ROOT, __version__)
    tagged = subprocess.run(["git", "tag", "--points-at", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    for tag in filter(re.compile(r"v\d").match, tagged.stdout.split()):
        assert tag == f"v{__version__}"


@pytest.mark.parametrize("versions", [["9.0.0"], ["9.0.0", "9.1.0.dev0"], ["9.0.0.dev0", "9.0.0"]])
def test_one_command_sets_the_version_everywhere(tmp_path: Path, versions: list[str]) -> None:
    (tmp_path / "src" / "harmofl").mkdir(parents=True)
    for name in ("src/harmofl/version.py", "CITATION.cff", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    for version in versions:
        set_version(tmp_path, version, datetime.date(2030, 1, 2))
        check_versions(tmp_path, version)
        assert f'__version__ = "{version}"' in (tmp_path / "src" / "harmofl" / "version.py").read_text()
    old, new = ((root / "CHANGELOG.md").read_text().splitlines() for root in (ROOT, tmp_path))
    bases = {version.partition(".dev")[0] for version in versions}
    assert len(new) == len(old) + 2 * len(bases)  # a heading each; what was written stays


def test_every_declared_python_that_is_found_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other, broken = (version for version in declared_versions() if version != OWN)
    for version, code in ((other, f"echo {other}"), (broken, "exit 127")):  # a shim of pyenv ends like that
        (tmp_path / f"python{version}").write_text(f"#!/bin/sh\n{code}\n")
        (tmp_path / f"python{version}").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert find_pythons(None) == {OWN: sys.executable, other: str(tmp_path / f"python{other}")}
    assert f"Python {broken}: not tried" in capsys.readouterr().out
    assert find_pythons([sys.executable]) == {OWN: sys.executable}
    with pytest.raises(SystemExit, match=rf"python{re.escape(broken)}: not Python 3"):
        find_pythons([str(tmp_path / f"python{broken}")])
    assert version_of("no-such-python") == ""


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_the_commands_of_the_makefile_with_few_rights(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    called = {name for step in steps for name in re.findall(r"^make ([a-z-]+)", step.get("run", ""), re.MULTILINE)}
    assert called <= targets
    assert workflow["permissions"] == {"contents": "read"}
    assert all(re.search(r"@[0-9a-f]{40}$|@v\d|@release/", step["uses"]) for step in steps if "uses" in step)


def test_the_versions_of_python_that_are_declared_are_tried() -> None:
    workflows = {path.stem: yaml.safe_load(path.read_text()) for path in WORKFLOWS}
    assert workflows["tests"]["jobs"]["test"]["strategy"]["matrix"]["python"] == declared_versions()
    steps = workflows["release"]["jobs"]["build"]["steps"]
    (installed,) = (step["with"]["python-version"] for step in steps if "python-version" in step.get("with", {}))
    assert sorted(installed.split()) == declared_versions()
    names = " ".join(f"python{version}" for version in declared_versions())
    assert any(f'make release-check PYTHONS="{names}"' in step.get("run", "") for step in steps)


@pytest.mark.parametrize("target", ["help", "docs", "release-check", "models", "version"])
def test_the_makefile_knows(target: str) -> None:
    result = subprocess.run(["make", "-n", target, "VENV=/nowhere"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("path", sorted((ROOT / "containers").glob("*.Dockerfile")), ids=lambda path: path.stem)
def test_containers_copy_only_what_is_there_and_run_without_root(path: Path) -> None:
    text = path.read_text()
    copied = [name for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE) for name in line.split()]
    allowed = (ROOT / ".dockerignore").read_text().split()
    assert copied
    assert all((ROOT / name).exists() and f"!{name}" in allowed for name in copied)
    assert text.index("useradd --uid 1000") < text.index("USER 1000:1000") < text.index("ENTRYPOINT")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {name for _, name in re.findall(r"^ARG (EXTRAS|ENGINE)=(\S+)$", text, re.MULTILINE)} <= set(extras)
