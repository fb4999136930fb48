"""What each party of a federation has: a folder made by `harmofl deploy init`, with its settings and keys.

What a hospital decides is in its `site.toml`: none of it travels, and nothing that the server sends changes it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import tomli_w
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from harmofl import registry
from harmofl.deployment.revocations import without_revoked
from harmofl.deployment.site_policy import Policy
from harmofl.errors import STRICT, UsageError, describe
from harmofl.files import claimed, write_whole
from harmofl.plugins import load_plugins, plugins_in
from harmofl.settings import Tree, read_toml

FEDERATION = "federation.toml"
SITE = "site.toml"
SERVER = "server.toml"
SYNTHETIC = "synthetic"
"""Instead of a data folder: the task's synthetic hospital of the site's name, to try a federation without images."""

ELSEWHERE = "existing"
"""The engine of a site in a federation that others run: its folder holds no federation.toml, and only site.toml."""

SHORTEST_SECRET = 32
"""Bytes of the hospitals' common secret, as `openssl rand -hex 32` makes them twice over."""
SITE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
Name = Annotated[str, Field(pattern=SITE_NAME, description="letters, digits, dots, dashes")]
Port = Annotated[int, Field(ge=1, le=65535)]
HEALTH_PORT = "a port of this machine's loopback interface for /health and /metrics; none: they are not served"
Megabytes = Annotated[int, Field(ge=1, le=16384)]


def check_tasks(names: list[str]) -> list[str]:
    """Raise an error for an unknown task."""
    unknown = [name for name in names if name not in registry.tasks]
    if unknown:
        raise ValueError(f"some of {', '.join(registry.tasks.names())}")
    return names


def check_window(ends: list[float]) -> list[float]:
    """Raise an error for what is not a window of intensities."""
    if len(ends) != 2 or ends[0] >= ends[1]:
        raise ValueError("[low, high] with low below high")
    return ends


def check_printable(text: str) -> str:
    """Raise an error for text that would break a line of a file or a terminal."""
    if not text or not text.isprintable():
        raise ValueError("some printable text")
    return text


class Part(BaseModel):
    """Settings of a party: frozen, and strict about names."""

    model_config = ConfigDict(frozen=True, **STRICT)

    def to_toml(self) -> str:
        """The text of the file, as it is read back."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


class Federation(Part):
    """What all parties know: who they are and where the server is."""

    name: Name = "federation"
    engine: str
    server: Annotated[str, AfterValidator(check_printable)] = Field(description="how sites reach the server")
    sites: list[Name] = Field(min_length=1)
    version: str = Field("", description="the harmofl that made the kits")


class SiteSettings(Part):
    """What a hospital decides for itself."""

    name: Name
    data: str = Field(description="the folder with its images, or 'synthetic' to try the federation")
    site_in_data: str | None = Field(None, description="which site of the folder, if it holds several")
    tasks: Annotated[list[str], AfterValidator(check_tasks)] = Field(
        min_length=1, description="what the server may have trained here"
    )
    plugins: list[str] = Field([], description="Python files that register methods, networks, tasks and so on")
    device: Literal["auto", "cpu", "cuda"] = "auto"
    cache: str = Field("cache", description="decoded images")
    state: str = Field("state", description="what is kept between rounds")
    models: str = Field("models", description="finished models, one folder per run")
    min_images_for_amplitude: Annotated[int, Field(ge=1)] = Field(
        8,
        description="with fewer training images (tiles, slices) no spectrum is shared; the server may ask for more, "
        "never for fewer",
    )
    surveys: bool = Field(
        True,
        description="whether the server may ask for averages of its images before training, such as histograms "
        "(`harmofl deploy compare` and `plan`); never of fewer images than min_images_for_amplitude",
    )
    intensity: Annotated[list[float], AfterValidator(check_window)] | None = Field(
        None, description="the one window (data.intensity = [low, high]) of which a spectrum may be shared"
    )
    largest_message_mb: Megabytes = Field(2048, description="larger messages, and larger networks, are refused")
    largest_memory_mb: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="what needs more for one batch of its images is refused before anything is built; unset: all that "
        "the device, or this machine, has",
    )
    health_port: Port | None = Field(None, description=HEALTH_PORT)
    consortium_key: str | None = Field(
        None,
        description="a file with the same secret at all hospitals, which the server does not have: with it, secure "
        "aggregation accepts no public keys that the server made up",
    )
    policy: Policy = Field(Policy(), description="what a server may vary, and from how few images nothing leaves")


class ServerSettings(Part):
    """What is decided at the server, and told nobody."""

    readers: list[Name] = Field([], description="sites whose people may watch runs over the network: reading, no more")
    health_port: Port | None = Field(None, description=HEALTH_PORT)


class Kits(Part):
    """How a federation's sites are set up, for those that join later."""

    tasks: Annotated[list[str], AfterValidator(check_tasks)] = Field(min_length=1)
    synthetic: bool = False
    own_keys: list[Name] = Field([], description="sites whose kits were made without keys: they make their own")


@dataclass(frozen=True)
class ServerKit:
    """The server's folder."""

    folder: Path
    federation: Federation
    settings: ServerSettings = ServerSettings()

    @classmethod
    def open(cls, folder: Path) -> ServerKit:
        """Read it, without the sites that were revoked, or say what is wrong with it."""
        if is_site(folder):
            raise UsageError(f"{folder}: a site's folder; runs are started in the server's")
        federation = read_federation(folder)
        admitted = without_revoked(folder, federation.sites)
        own = read_part(ServerSettings, folder / SERVER) if (folder / SERVER).exists() else ServerSettings()
        return cls(folder.resolve(), federation.model_copy(update={"sites": admitted}), own)

    def lock(self) -> AbstractContextManager[None]:
        """Allow one server at a time: a second one would take the first one's port or socket away."""
        return claimed(self.folder / ".server.lock", f"{self.folder}: this server has been started already")

    def lock_runs(self) -> AbstractContextManager[None]:
        """Allow one run at a time: a second one would take the first one's sites away."""
        busy = f"{self.folder}: another `harmofl deploy run` is using this federation"
        return claimed(self.folder / ".run.lock", busy)

    def is_started(self) -> bool:
        """Whether `harmofl deploy start` runs in this folder."""
        try:
            with self.lock():
                return False
        except UsageError:
            return True


@dataclass(frozen=True)
class SiteKit:
    """A hospital's folder."""

    folder: Path
    federation: Federation
    settings: SiteSettings

    @classmethod
    def open(cls, folder: Path) -> SiteKit:
        """Read the folder, or say what is wrong with it."""
        named = read_toml(folder / SITE).get("plugins", [])
        load_plugins(folder / file for file in plugins_in({"plugins": {"files": named}}))  # tasks may come from them
        settings = read_part(SiteSettings, folder / SITE)
        federation = read_federation(folder) if (folder / FEDERATION).exists() else federation_of_others(settings.name)
        if settings.name not in federation.sites:
            raise UsageError(f"{folder / SITE}: name = {settings.name!r}: the federation has {federation.sites}")
        return cls(folder.resolve(), federation, settings)

    @property
    def name(self) -> str:
        """The hospital's name in the federation."""
        return self.settings.name

    @property
    def data(self) -> Path | None:
        """The folder of its images; None for a synthetic hospital."""
        return None if self.settings.data == SYNTHETIC else self._place(self.settings.data)

    @property
    def cache(self) -> Path:
        """The folder of decoded images."""
        return self._place(self.settings.cache)

    @property
    def consortium(self) -> bytes:
        """The secret that all hospitals have and the server has not; empty if there is none."""
        if self.settings.consortium_key is None:
            return b""
        path = self._place(self.settings.consortium_key)
        try:
            secret = path.read_bytes().strip()
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror or error} (consortium_key in {SITE})") from None
        if len(secret) < SHORTEST_SECRET:
            raise UsageError(f"{path}: {len(secret)} bytes, at least {SHORTEST_SECRET} are needed (consortium_key)")
        return secret

    def state(self, run: str) -> Path:
        """Where the site keeps what it needs between the rounds of a run."""
        return self._place(self.settings.state) / run

    def model(self, run: str) -> Path:
        """Where the finished model of a run is kept."""
        return self._place(self.settings.models) / run

    def _place(self, path: str) -> Path:
        return self.folder / Path(path).expanduser()

    def lock(self) -> AbstractContextManager[None]:
        """Allow one process at a time to answer for a site."""
        return claimed(self.folder / ".site.lock", f"{self.folder}: this site has been started already")


def is_site(folder: Path) -> bool:
    """Whether a kit's folder is a hospital's."""
    try:
        return (folder / SITE).exists()
    except OSError as error:  # a folder that this user may not enter
        raise UsageError(f"{folder}: {error.strerror or error}") from None


def open_kit(folder: Path) -> ServerKit | SiteKit:
    """Open the kit in a folder, whichever party's it is."""
    return SiteKit.open(folder) if is_site(folder) else ServerKit.open(folder)


def read_federation(folder: Path) -> Federation:
    """Read what all parties know."""
    if not (folder / FEDERATION).exists():
        raise UsageError(f"{folder} holds no {FEDERATION}: it is not a folder that `harmofl deploy init` made")
    return read_part(Federation, folder / FEDERATION)


def federation_of_others(site: str) -> Federation:
    """What a hospital knows of a federation that was not made by `harmofl deploy init`."""
    return Federation(engine=ELSEWHERE, server="the federation's server", sites=[site])


def write_part(path: Path, part: Part, comment: str = "") -> None:
    """Write settings so that they are read back as they are."""
    write_whole(path, "".join(f"# {line}\n" for line in comment.splitlines()) + part.to_toml())


AnyPart = TypeVar("AnyPart", bound=Part)


def read_part(kind: type[AnyPart], path: Path) -> AnyPart:
    """Read one of the files above."""
    tree: Tree = read_toml(path)
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise UsageError(f"{path}: {describe(error)}") from None
