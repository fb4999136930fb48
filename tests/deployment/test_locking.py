"""Locked requirements: pip itself resolves, installs what is locked, and refuses what was changed."""

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from parties import SITES, Quiet, make

from harmofl.deployment.engine import find_engine
from harmofl.deployment.locking import Target, engine_requirements, lock, lock_kits, locked_line, without_hosts
from harmofl.errors import RunError, UsageError
from harmofl.version import __version__


def make_wheel(folder: Path, name: str, version: str, needs: str = "", tag: str = "py3-none-any") -> Path:
    """The smallest package that pip installs."""
    info, path = f"{name}-{version}.dist-info", folder / f"{name}-{version}-{tag}.whl"
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nProvides-Extra: flower\n"
    about += f"Requires-Dist: {needs}\n" if needs else ""
    files = {
        f"{name}.py": f"version = {version!r}\n",
        f"{info}/METADATA": about,
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as wheel:
        for place, text in files.items():
            wheel.writestr(place, text)
        wheel.writestr(f"{info}/RECORD", "".join(f"{place},,\n" for place in [*files, f"{info}/RECORD"]))
    return path


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip is configured with, and nothing else."""
    folder = tmp_path / "wheels"
    make_wheel(folder, "first", "1.0", needs="second>=1")
    make_wheel(folder, "second", "1.0")
    make_wheel(folder, "second", "2.0")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def install(folder: Path) -> subprocess.CompletedProcess[str]:
    """By the command that the file itself tells."""
    told = next(line for line in (folder / "requirements.txt").read_text().splitlines() if line.startswith("#   pip "))
    command = [sys.executable, "-m", *told.removeprefix("#").split(), "--quiet", "--target", "installed"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_what_is_locked_installs_and_what_was_changed_does_not(registry: Path, tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text("second==1.0\n")
    text = lock(["first"], tmp_path / "constraints.txt", Target())
    lines = [line.strip() for line in text.splitlines() if not line.startswith("#")]
    assert lines == [
        "first==1.0 \\",
        f"--hash=sha256:{digest(registry / 'first-1.0-py3-none-any.whl')}",
        "second==1.0 \\",
        f"--hash=sha256:{digest(registry / 'second-1.0-py3-none-any.whl')}",
    ]
    assert str(registry) not in text
    assert "://" not in text
    (tmp_path / "requirements.txt").write_text(text)
    assert install(tmp_path).returncode == 0
    assert (tmp_path / "installed" / "second.py").read_text() == "version = '1.0'\n"
    with zipfile.ZipFile(registry / "second-1.0-py3-none-any.whl", "a") as wheel:
        wheel.writestr("evil.py", "")
    refused = install(tmp_path)
    assert refused.returncode != 0
    assert "DO NOT MATCH THE HASHES" in refused.stderr


@pytest.mark.long
def test_a_package_that_is_wanted_with_an_extra_installs_too(registry: Path, tmp_path: Path) -> None:
    """As Flower wants `sqlalchemy[asyncio]`: pip does not see by itself that the locked file is what it looks for."""
    make_wheel(registry, "whole", "1.0", needs="part[flower]>=1")
    for version in ("1.0", "2.0"):
        make_wheel(registry, "part", version, needs='second; extra == "flower"')
    (tmp_path / "constraints.txt").write_text("part==1.0\nsecond==2.0\n")
    (tmp_path / "requirements.txt").write_text(lock(["whole"], tmp_path / "constraints.txt", Target()))
    installed = install(tmp_path)
    assert installed.returncode == 0, installed.stderr
    assert {path.stem for path in (tmp_path / "installed").glob("*.py")} == {"whole", "part", "second"}


@pytest.mark.long
def test_harmofls_own_wheel_lies_beside_the_file_and_is_hashed_too(
    registry: Path, tmp_path: Path, engine: Quiet
) -> None:
    wheel = make_wheel(tmp_path, "harmofl", __version__, needs='first; extra == "flower"')
    kits = make(tmp_path / "kits")
    (tmp_path / "none").write_text("")
    written = lock_kits(kits, tmp_path / "none", wheel)
    assert [path.parent.name for path in written] == ["server", *SITES]
    for path in written:
        assert f"./{wheel.name} \\\n    --hash=sha256:{digest(wheel)}\n" in path.read_text()
        assert "first==1.0" in path.read_text()
        assert digest(path.parent / wheel.name) == digest(wheel)
    dockerfile = (kits / "server" / "Dockerfile").read_text()
    assert f"COPY requirements.txt {wheel.name} /tmp/locked/\n" in dockerfile
    assert "--require-hashes --no-deps -r requirements.txt" in dockerfile
    ignored = (kits / "server" / ".dockerignore").read_text().splitlines()[1:]
    assert ignored == ["*", "!Dockerfile", "!requirements.txt", f"!{wheel.name}"]
    assert install(kits / "server").returncode == 0
    assert (kits / "server" / "installed" / "harmofl.py").exists()


def test_one_hospital_can_have_another_kind_of_machine(registry: Path, tmp_path: Path, engine: Quiet) -> None:
    wheel = make_wheel(tmp_path, "harmofl", __version__, needs='third; extra == "flower"')
    make_wheel(registry, "third", "1.0", tag="cp312-cp312-manylinux_2_28_aarch64")
    other = make_wheel(registry, "third", "1.0", tag="cp311-cp311-manylinux_2_28_x86_64")
    (tmp_path / "none").write_text("")
    kits = make(tmp_path / "kits")
    target = Target("manylinux_2_28_aarch64", "3.12")
    [path] = lock_kits(kits, tmp_path / "none", wheel, target, SITES[1])
    assert path == kits / "sites" / SITES[1] / "requirements.txt"
    assert digest(registry / "third-1.0-cp312-cp312-manylinux_2_28_aarch64.whl") in path.read_text()
    assert digest(other) not in path.read_text()
    assert "for manylinux_2_28_aarch64, Python 3.12." in path.read_text()
    with pytest.raises(UsageError, match="unknown site 'hospital-9'"):
        lock_kits(kits, site="hospital-9")


def test_what_cannot_be_resolved_or_hashed_is_named(registry: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"pip cannot resolve this: .*nowhere"):
        lock(["nowhere"], None, Target())
    with pytest.raises(UsageError, match="no such file"):
        lock(["first"], None, Target(), tmp_path / "missing.whl")
    about = {
        "metadata": {"name": "a", "version": "1"},
        "download_info": {"url": "https://example.org/a", "vcs_info": {}},
    }
    with pytest.raises(RunError, match="a 1: pip reports no digest"):
        locked_line(about, None)
    assert without_hosts("see https://user:password@example.org/simple for a") == "see (address) for a"


def test_a_party_needs_harmofl_with_its_engine(tmp_path: Path) -> None:
    flower = find_engine("flower")
    assert engine_requirements(flower, None) == [f"harmofl[flower]=={__version__}"]
    assert engine_requirements(flower, tmp_path / "h.whl") == [f"{tmp_path / 'h.whl'}[flower]"]
