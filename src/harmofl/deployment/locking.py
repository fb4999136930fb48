"""`harmofl deploy lock`: exactly which files of which packages a party installs, by their digests.

pip resolves, without installing anything, and reports what it would take from the registry that it is configured with.
Only names, versions and digests are written down: where packages come from is each party's own business.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from harmofl.deployment.engine import Engine, find_engine
from harmofl.deployment.papers import write_image
from harmofl.deployment.provisioning import SERVER, SITES, open_kits
from harmofl.deployment.versions import Versions
from harmofl.documents import parse_json
from harmofl.errors import RunError, UsageError, unknown_name
from harmofl.files import write_whole
from harmofl.version import __version__

REQUIREMENTS = "requirements.txt"
INSTALL = f"pip install --require-hashes --no-deps -r {REQUIREMENTS}"
"""All packages are named, so that pip need not look for others. It would stumble where one wants another with an extra,
as it does not see that the other is the one whose digest it has."""
HEADER = """\
# Made by `harmofl deploy lock` for {platform}. Install exactly this, in this folder:
#   {install}
# A file with another digest is refused, wherever it comes from.
"""


@dataclass(frozen=True)
class Target:
    """What kind of machine is to install it; this one by default."""

    platform: str = ""
    """As wheels name it, such as manylinux_2_28_x86_64."""
    python: str = ""
    """Such as 3.12."""

    def options(self, scratch: Path) -> list[str]:
        """What tells pip: it resolves for other machines only from wheels, and into a folder."""
        if not (self.platform or self.python):
            return []
        options = ["--only-binary=:all:", "--target", str(scratch / "target")]
        options += ["--platform", self.platform] if self.platform else []
        return options + (["--python-version", self.python] if self.python else [])

    def __str__(self) -> str:
        here = f"{sys.version_info.major}.{sys.version_info.minor}"
        return f"{self.platform or os.uname().sysname + ' ' + os.uname().machine}, Python {self.python or here}"


def engine_requirements(engine: Engine, wheel: Path | None) -> list[str]:
    """What a party of this engine needs: harmofl from the registry, or from a wheel of yours."""
    extra = f"[{engine.extra}]" if engine.extra else ""
    own = f"{wheel.resolve()}{extra}" if wheel else f"harmofl{extra}=={__version__}"
    return [own] if engine.extra or not engine.package else [own, f"{engine.package}=={engine.installed_version()}"]


def lock(requirements: Sequence[str], constraints: Path | None, target: Target, wheel: Path | None = None) -> str:
    """The text of a requirements file with the digest of every package.

    `constraints`: which versions; without it, those that are installed here. `wheel`: harmofl's own, which lies beside
    the file.
    """
    if wheel is not None and not wheel.is_file():
        raise UsageError(f"--wheel {wheel}: no such file")
    with tempfile.TemporaryDirectory() as scratch:
        versions = constraints or write_installed(Path(scratch) / "constraints.txt")
        report = ask_pip(requirements, versions, target, Path(scratch))
    lines = sorted((locked_line(item, wheel) for item in report["install"]), key=str.lower)
    return HEADER.format(platform=target, install=INSTALL) + "".join(lines)


def write_installed(path: Path) -> Path:
    """Write what is installed here as constraints, so that all parties have what was tried."""
    found = {item.metadata["Name"]: item.version.partition("+")[0] for item in distributions() if item.metadata["Name"]}
    found.pop("harmofl", None)
    path.write_text("".join(f"{name}=={version}\n" for name, version in sorted(found.items())), encoding="utf-8")
    return path


def ask_pip(requirements: Sequence[str], constraints: Path, target: Target, scratch: Path) -> Mapping[str, Any]:
    """Let pip resolve, and read its report."""
    report = scratch / "report.json"
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--no-input"]
    command += ["--disable-pip-version-check", "--report", str(report), "--constraint", str(constraints)]
    result = subprocess.run(
        [*command, *target.options(scratch), *requirements], capture_output=True, text=True, check=False, cwd=scratch
    )
    if result.returncode or not report.exists():
        words = [line for line in result.stderr.splitlines() if line.startswith("ERROR")] or result.stderr.splitlines()
        raise RunError(f"pip cannot resolve this: {without_hosts(' '.join(words[-2:]) or 'no reason given')}")
    return dict(parse_json(report.read_text(encoding="utf-8")))


def without_hosts(words: str) -> str:
    """pip's words, without where packages come from: an address may hold a password."""
    return re.sub(r"\S+://\S+", "(address)", words)


def locked_line(item: Mapping[str, Any], wheel: Path | None) -> str:
    """One package of pip's report."""
    name, version = str(item["metadata"]["name"]), str(item["metadata"]["version"])
    digest = digest_of_download(item["download_info"])
    if not digest:
        raise RunError(f"{name} {version}: pip reports no digest of it; it must come from a registry or a wheel")
    own = wheel is not None and name.lower() == "harmofl"
    what = f"./{wheel.name}" if own and wheel is not None else f"{name}=={version}"
    return f"{what} \\\n    --hash=sha256:{digest}\n"


def digest_of_download(info: Mapping[str, Any]) -> str:
    """The SHA-256 of what pip would download."""
    about = info.get("archive_info", {})
    digest = str(about.get("hashes", {}).get("sha256", "") or about.get("hash", "").removeprefix("sha256="))
    place = urlsplit(str(info.get("url", "")))
    if not digest and place.scheme == "file" and Path(url2pathname(place.path)).is_file():
        digest = hashlib.sha256(Path(url2pathname(place.path)).read_bytes()).hexdigest()
    return digest if re.fullmatch("[0-9a-f]{64}", digest) else ""


def place_lock(text: str, folder: Path, engine: Engine, wheel: Path | None = None) -> Path:
    """Write the file into a party's folder, with the wheel beside it, for its container's image, too."""
    if wheel is not None and wheel.resolve() != (folder / wheel.name).resolve():
        shutil.copyfile(wheel, folder / wheel.name)
    write_whole(folder / REQUIREMENTS, text)
    write_image(folder, engine, Versions.installed(engine), [REQUIREMENTS, *([wheel.name] if wheel else [])])
    return folder / REQUIREMENTS


def lock_kits(
    folder: Path,
    constraints: Path | None = None,
    wheel: Path | None = None,
    target: Target | None = None,
    site: str = "",
) -> list[Path]:
    """Write the lock into every party's folder that is still here, or into one site's; return where."""
    federation, _ = open_kits(folder)
    if site and site not in federation.sites:
        raise unknown_name("site", site, federation.sites)
    places = [folder / SITES / name for name in ([site] if site else federation.sites)]
    places = [place for place in ([] if site else [folder / SERVER]) + places if place.exists()]
    if not places:
        raise UsageError(f"--site {site}: its folder is not here any more")
    engine = find_engine(federation.engine)
    text = lock(engine_requirements(engine, wheel), constraints, target or Target(), wheel)
    return [place_lock(text, place, engine, wheel) for place in places]
