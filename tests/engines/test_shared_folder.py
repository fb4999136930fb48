"""The engine of docs/extending.md, as it is written there: one file, installed as a package of its own."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runs import HARMOFL, differences, environment, hear_interrupts, tiny, train

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
SITES = ["hospital-0", "hospital-1"]
ABOUT = "Metadata-Version: 2.1\nName: shared-folder\nVersion: 1.0\n"

pytestmark = pytest.mark.engines


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of a party where the page's file is installed, with the page's entry point."""
    text = PAGE.read_text(encoding="utf-8")
    code = re.search(r"<!-- tested: shared_folder.py -->\n```python\n(.*?)```", text, re.DOTALL)
    point = re.search(r'^\[project\.entry-points\."(harmofl\.engines)"\]\n(.*)\n', text, re.MULTILINE)
    assert code
    assert point
    about = tmp_path / "package" / "shared_folder-1.0.dist-info"
    about.mkdir(parents=True)
    (about.parent / "shared_folder.py").write_text(code[1])
    (about / "METADATA").write_text(ABOUT)
    (about / "entry_points.txt").write_text(f"[{point[1]}]\n{point[2].replace(chr(34), '')}\n")
    path = os.pathsep.join([environment()["PYTHONPATH"], str(about.parent)])
    return environment() | {"PYTHONPATH": path}


@contextmanager
def started(parties: list[Path], environment: dict[str, str]) -> Iterator[None]:
    """Each party as a process of its own."""
    command = [*HARMOFL, "deploy", "start"]
    processes = [
        subprocess.Popen([*command, str(party)], env=environment, preexec_fn=hear_interrupts) for party in parties
    ]
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        assert [process.wait(30) for process in processes] == [0] * len(processes)


def deploy(environment: dict[str, str], *arguments: object) -> str:
    command = [*HARMOFL, "deploy", *map(str, arguments)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow
def test_a_folder_carries_a_federation_to_the_same_bits_as_one_process(
    tmp_path: Path, installed: dict[str, str]
) -> None:
    kits = tmp_path / "kits"
    parties = [kits / "server", *(kits / "sites" / site for site in SITES)]
    given = ["--engine", "shared-folder", "--server", tmp_path / "shared", "--sites", ",".join(SITES)]
    deploy(installed, "init", *given, "--task", "histology", "--synthetic", "--out", kits)
    assert not (kits / "authority").exists()
    assert "private key" not in (kits / "README.md").read_text()
    assert "✗" not in deploy(installed, "check", kits / "server")
    settings = [f"--set={name}={value}" for name, value in tiny().items()]
    run = ["run", "--kit", kits / "server", "--task", "histology", "--method", "fedbn", "--preset", "smoke", *settings]
    with started(parties, installed):
        deploy(installed, *run, "--out", tmp_path / "there")
        assert "connected: hospital-0, hospital-1" in deploy(installed, "check", kits / "server")
    site = deploy(installed, "check", kits / "sites" / SITES[0])
    assert f"✓ the shared folder {tmp_path / 'shared'} is there" in site
    train(tmp_path / "here", "fedbn", data__sites=SITES)
    assert differences(tmp_path / "here", tmp_path / "there", stores=False) == []


def test_without_its_package_the_engine_is_known_by_its_file_alone(tmp_path: Path, installed: dict[str, str]) -> None:
    given = ["init", "--engine", "shared-folder", "--server", tmp_path / "shared", "--sites", "A", "--out"]
    command = [*HARMOFL, "deploy", *map(str, [*given, tmp_path / "unknown"])]
    result = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2
    assert "unknown engine 'shared-folder'" in result.stderr
    assert "flower, nvflare" in result.stderr
    plugin = tmp_path / "package" / "shared_folder.py"
    deploy(environment(), *given, tmp_path / "kits", "--plugin", plugin)
    deploy(environment(), "check", tmp_path / "kits" / "server", "--plugin", plugin)
