"""What a kit was made with, to be compared with what is installed."""

from __future__ import annotations

from harmofl.deployment.engine import Engine, installed_version
from harmofl.deployment.kits import Part
from harmofl.version import __version__

VERSIONS = "versions.toml"


class Versions(Part):
    """The versions that decide whether two parties understand each other; empty where nothing is installed."""

    harmofl: str = __version__
    engine: str = ""
    torch: str = ""

    @classmethod
    def installed(cls, engine: Engine) -> Versions:
        """Those that are installed here."""
        return cls(harmofl=__version__, engine=engine.installed_version(), torch=installed_version("torch"))
