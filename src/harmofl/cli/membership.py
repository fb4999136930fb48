"""`harmofl deploy …` for those who come and go: join, accept, add-site, remove-site, revoke, renew, lock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from harmofl.cli.options import PluginFiles

HERE = Path()

Kits = Annotated[Path, typer.Option("--kits", help="The folder that `harmofl deploy init` made.")]
WithKeys = Annotated[
    bool | None,
    typer.Option(
        "--with-keys/--without-keys",
        help="Make the hospitals' keys here, too, instead of letting each make its own; by default only with "
        "--synthetic, for a trial.",
    ),
]


def describe_kit(kits: Path, site: str) -> str:
    """One line on whom a site's folder is for."""
    from harmofl.deployment.provisioning import open_kits

    if site in open_kits(kits)[1].own_keys:
        return f"{kits / 'sites' / site}: for {site}, which makes its own key: harmofl deploy join"
    return f"{kits / 'sites' / site}: for {site}, and nobody else"


def join(
    folder: Annotated[
        Path, typer.Argument(help="The hospital's folder; the current one if not given.", metavar="[DIR]")
    ] = HERE,
    certificate: Annotated[
        Path | None, typer.Option(help="What the coordinator sent back: put it in its place.", metavar="FILE")
    ] = None,
    plugins: PluginFiles = [],  # noqa: B006
) -> None:
    """At a hospital: make its own private key, which never leaves it, and a request for the coordinator to sign.

    In the hospital's folder:  harmofl deploy join

    When the certificate has come back:  harmofl deploy join --certificate A.crt
    """
    from harmofl.deployment.joining import install_certificate, make_own_request
    from harmofl.deployment.kits import SiteKit

    kit = SiteKit.open(folder)
    if certificate:
        print(f"{install_certificate(kit, certificate)}: for this site's key, from this federation's authority")
        print("Next: harmofl deploy check")
        return
    request = make_own_request(kit)
    print(f"{request.path}: send it to the coordinator; it holds no secret. The private key stays here.")
    print(f"Compare by telephone:  {request.fingerprint}")


def accept(
    request: Annotated[Path, typer.Argument(help="The request that the hospital sent.", metavar="NAME.csr")],
    kits: Kits,
    fingerprint: Annotated[
        str | None,
        typer.Option(help="The number that the hospital read out; without it you are asked.", metavar="DIGITS"),
    ] = None,
    plugins: PluginFiles = [],  # noqa: B006
) -> None:
    """At the coordinator's: sign a hospital's request, once both have compared the number by telephone.

    For example:  harmofl deploy accept A.csr --kits kits
    """
    from harmofl.deployment.accepting import accept as accept_request
    from harmofl.deployment.tls.requests import same_fingerprint

    def confirm(site: str, own: str) -> bool:
        print(f"{site}:  {own}")
        if fingerprint is not None:
            return same_fingerprint(fingerprint, own)
        return typer.confirm(f"Does {site} read out the same number on the telephone?")

    accepted = accept_request(kits, request, confirm)
    print(f"{accepted.certificate}: send it to {accepted.site}; it holds no secret")
    if accepted.server_files:
        print(f"Copy to the server's folder: {', '.join(map(str, accepted.server_files))}")


def add_site(
    name: Annotated[str, typer.Argument(help="The new hospital's name.")],
    kits: Kits,
    with_keys: WithKeys = None,
    plugins: PluginFiles = [],  # noqa: B006
) -> None:
    """Make a folder for one more hospital, and make the hospital known to the server.

    For example:  harmofl deploy add-site D --kits kits
    """
    from harmofl.deployment.provisioning import add_site as add

    changed = add(kits, name, with_keys)
    print(describe_kit(kits, name))
    _say_what_to_copy(changed)


def remove_site(
    name: Annotated[str, typer.Argument(help="The hospital that leaves.")],
    kits: Kits,
) -> None:
    """Make the server forget a hospital, so that it no longer lets it in.

    For example:  harmofl deploy remove-site D --kits kits
    """
    from harmofl.deployment.provisioning import remove_site as remove

    aside = remove(kits, name)
    if aside:
        print(f"{aside}: what was here of {name}'s folder; delete it when nobody needs its models")
    changed = [kits / "server" / name for name in ("federation.toml", "revoked.toml")]
    _say_what_to_copy([path for path in changed if path.exists()])


def revoke(
    site: Annotated[str, typer.Argument(help="The hospital to shut out.", metavar="SITE")],
    kit: Annotated[Path, typer.Option(help="The server's folder, or that of all kits; by default this one.")] = HERE,
    reason: Annotated[str, typer.Option(help="One line for the record.")] = "",
    plugins: PluginFiles = [],  # noqa: B006
) -> None:
    """Shut a hospital out of a running federation within seconds, for good: its key or certificate is worth nothing.

    In the server's folder:  harmofl deploy revoke D --reason "laptop stolen"
    """
    from harmofl.deployment.revoking import revoke as shut_out

    changed = shut_out(kit, site, reason)
    if changed:
        print(f"Copy to the server's folder: {changed}")
    else:
        print(
            f"{site} is shut out: a running server cuts it off within a few seconds, and never lets this key in again"
        )


def renew(kits: Kits) -> None:
    """Make new certificates before the old ones expire, signed by the same authority.

    For example:  harmofl deploy renew --kits kits
    """
    from harmofl.deployment.accepting import renew_accepted
    from harmofl.deployment.provisioning import renew as renew_certificates

    for folder in renew_certificates(kits):
        print(f"{folder}: copy it to its party's folder, instead of what is there, and start that party again")
    for certificate in renew_accepted(kits):
        print(f"{certificate}: send it to its site, for `harmofl deploy join --certificate {certificate.name}`")


def lock(
    kits: Kits,
    constraints: Annotated[
        Path | None, typer.Option(help="Which versions, as for pip; without it, those that are installed here.")
    ] = None,
    wheel: Annotated[Path | None, typer.Option(help="harmofl's own wheel, if it is not in your registry.")] = None,
    site: Annotated[str, typer.Option(help="Only for this hospital, whose machine may be of another kind.")] = "",
    platform: Annotated[
        str, typer.Option(help="For machines of another kind than this, such as manylinux_2_28_x86_64.")
    ] = "",
    python: Annotated[str, typer.Option(help="For another Python than this, such as 3.12.")] = "",
    plugins: PluginFiles = [],  # noqa: B006
) -> None:
    """Write requirements.txt into the folders: every package that a party installs, with its version and its digest.

    For example:  harmofl deploy lock --kits kits

    For a hospital with another Python:  harmofl deploy lock --kits kits --site B --python 3.12
    """
    from harmofl.deployment.locking import INSTALL, Target, lock_kits

    for path in lock_kits(kits, constraints, wheel, Target(platform, python), site):
        print(f"{path}: {INSTALL}")


def _say_what_to_copy(changed: list[Path]) -> None:
    print(f"Copy to the server's folder, replacing what is there: {', '.join(str(path) for path in changed)}")
    print("A running server sees it within a few seconds.")


COMMANDS: dict[str, Callable[..., Any]] = {
    "join": join,
    "accept": accept,
    "add-site": add_site,
    "remove-site": remove_site,
    "revoke": revoke,
    "renew": renew,
    "lock": lock,
}
