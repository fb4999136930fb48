"""Kits of a FLARE federation without starting it."""

from pathlib import Path

from harmofl.deployment.kits import FEDERATION, SITE, Federation, SiteSettings, write_part

SITES = ["A", "B.1"]


def federation(sites: list[str], port: int = 9002, host: str = "127.0.0.1") -> Federation:
    return Federation(engine="nvflare", server=f"{host}:{port}", sites=sites)


def write_kits(folder: Path, known: Federation) -> None:
    """The common part of the kits, as `harmofl deploy init` makes it before an engine adds its own."""
    write_part(folder / "server" / FEDERATION, known)
    for name in known.sites:
        settings = SiteSettings(name=name, data="synthetic", tasks=["histology"], device="cpu")
        write_part(folder / "sites" / name / FEDERATION, known)
        write_part(folder / "sites" / name / SITE, settings)
