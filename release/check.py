"""Build wheel and sdist twice, compare them, check them, and try the wheel in empty environments.

`make release-check` runs it, with every version of Python that pyproject.toml declares and that is found. It writes to
dist/ what would be published, and a bill of materials of the first environment.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
TRAIN = ("train", "--task", "nuclei", "--method", "harmofl", "--preset", "smoke", "--workers", "1", "--out", "run")
SAMPLES = ("experiment", "figure-samples", "--preset", "smoke", "--out", "samples")


def main() -> None:
    """Do all of it, or stop at the first thing that is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument(
        "--python",
        action="append",
        metavar="COMMAND",
        help="an interpreter to try the wheel with; may be given more than once (default: this one, and pythonX.Y "
        "on the PATH for every other version in pyproject.toml)",
    )
    parser.add_argument("--extras", default="full", help="of the empty environments, with commas between; '': none")
    parser.add_argument("--build-only", action="store_true", help="only build, compare and check")
    chosen = parser.parse_args()
    pythons = {} if chosen.build_only else find_pythons(chosen.python)
    chosen.out.mkdir(parents=True, exist_ok=True)
    tell("building wheel and sdist, twice")
    files = build_twice(chosen.out)
    run([sys.executable, "-m", "twine", "check", "--strict", *map(str, files)])
    wheel = next(path for path in files if path.suffix == ".whl")
    for number, (version, python) in enumerate(pythons.items()):
        tell(f"Python {version}: installing into an empty environment and training; minutes")
        with tempfile.TemporaryDirectory() as folder:
            inside = try_installed(wheel, Path(folder), python, chosen.extras)
            if number == 0:
                write_bill(inside / "python", chosen.out / f"{wheel.name.split('-py3')[0]}.cdx.json")
        tell(f"Python {version}: installed, trained")
    for path in files:
        print(f"{hash_of(path)}  {path.name}")


def find_pythons(given: Sequence[str] | None) -> dict[str, str]:
    """The interpreters to try, by version: those that are given, which must work, or those that are found."""
    declared = declared_versions()
    if given:
        pythons = {version_of(python): python for python in given}
        unknown = [python for version, python in pythons.items() if version not in declared]
        if unknown:
            raise SystemExit(f"--python {', '.join(unknown)}: not Python {', '.join(declared)}")
        return pythons
    own = version_of(sys.executable)
    commands = {version: shutil.which(f"python{version}") or "" for version in declared} | {own: sys.executable}
    found = {version: command for version, command in commands.items() if version_of(command) == version}
    for version in declared:
        if version not in found:
            print(f"Python {version}: not tried, as there is no python{version} on the PATH")
    return found


def declared_versions() -> list[str]:
    """The versions of Python that pyproject.toml names."""
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    return [name.rpartition(" ")[2] for name in classifiers if re.search(r":: 3\.\d+$", name)]


def version_of(python: str) -> str:
    """An interpreter's version, such as 3.12; empty if it cannot be started, as some that are on the PATH."""
    asked = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def build_twice(out: Path) -> list[Path]:
    """The files of the first build; an error if those of the second differ."""
    first = build(out)
    with tempfile.TemporaryDirectory() as folder:
        second = {path.name: hash_of(path) for path in build(Path(folder))}
    different = [path.name for path in first if second.get(path.name) != hash_of(path)]
    if different:
        raise SystemExit(f"not reproducible: {', '.join(different)} differ from one build to the next")
    return first


def build(out: Path) -> list[Path]:
    """Build wheel and sdist of the checkout, dated by the last commit."""
    version = re.search(r'__version__ = "(.+)"', (ROOT / "src/harmofl/version.py").read_text())
    assert version
    run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)],
        {"SOURCE_DATE_EPOCH": date()},
    )
    return sorted(out.glob(f"harmofl-{version[1]}[-.]*"))


def date() -> str:
    """Seconds since 1970 of the last commit, or what SOURCE_DATE_EPOCH says."""
    asked = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    return os.environ.get("SOURCE_DATE_EPOCH") or subprocess.run(asked, capture_output=True, text=True).stdout.strip()


def try_installed(wheel: Path, folder: Path, python: str, extras: str) -> Path:
    """Install the wheel where nothing else is, train with it, run a plan by its name; where its programs are."""
    environment = folder / "venv"
    run([python, "-m", "venv", str(environment)])
    inside = environment / ("Scripts" if os.name == "nt" else "bin")
    wanted = f"{wheel}[{extras}]" if extras else str(wheel)
    pinned = ["--constraint", str(ROOT / "constraints.txt")]
    run([str(inside / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pinned, wanted])
    run([str(inside / "python"), "-m", "pip", "check"])
    commands = [("--version",), TRAIN, *([SAMPLES] if "full" in extras or "reports" in extras else [])]
    for command in commands:
        run([str(inside / "harmofl"), *command], {"PYTHONPATH": ""}, cwd=folder)
    return inside


def write_bill(python: Path, path: Path) -> None:
    """A CycloneDX bill of materials of an environment, the same for the same packages."""
    options = ["--output-reproducible", "--pyproject", str(ROOT / "pyproject.toml"), "--output-file", str(path)]
    run([sys.executable, "-m", "cyclonedx_py", "environment", *options, str(python)])
    print(f"bill of materials: {path}")


def tell(words: str) -> None:
    """Print at once, also where the output goes to a file."""
    print(words, flush=True)


def hash_of(path: Path) -> str:
    """The file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run(command: Sequence[str], variables: dict[str, str] | None = None, cwd: Path = ROOT) -> None:
    """Run a command, or stop with what it printed."""
    environment = {**os.environ, **(variables or {})}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
