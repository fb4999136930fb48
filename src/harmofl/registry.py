"""Everything that has a name and can be added from outside: methods, tasks, networks, losses, scores and engines.

Each kind has a `Registry`. Entries of this package are imported when they are first asked for, so that commands start
fast. Others come from a script or plugin file (`harmofl.register`) or from an installed package (entry points
`harmofl.methods`, `harmofl.tasks` and so on).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from harmofl.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from harmofl.deployment.engine import Engine
    from harmofl.methods.method import Method
    from harmofl.models.network import NetworkEntry
    from harmofl.tasks.losses import LossEntry
    from harmofl.tasks.scores import ScoreEntry
    from harmofl.tasks.task import Task

logger = logging.getLogger(__name__)

Kind = Literal["classification", "segmentation"]
"""What a task, a network, a loss or a score is for."""


class Named(Protocol):
    """All that a registry asks of an entry."""

    @property
    def name(self) -> str:
        """What users call it."""


Entry = TypeVar("Entry", bound=Named)


def key_of(name: str) -> str:
    """The form of a name that is looked up."""
    return name.lower().replace(" ", "-")


class Registry(Generic[Entry]):
    """The entries of one kind, by name.

    `kind`: what messages call an entry; `entry_class`: what it must be an instance of, as "module:class";
    `built_in`: where the entries of this package are, as "module:attribute".
    """

    def __init__(self, kind: str, entry_class: str, built_in: Mapping[str, str]) -> None:
        self.kind = kind
        self.entry_class = entry_class
        self.group = f"harmofl.{key_of(kind)}{'es' if kind.endswith('s') else 's'}"
        self._paths = dict(built_in)
        self._entries: dict[str, Entry] = {}
        self._carried: dict[str, Entry] = {}
        self._asked_packages = False
        self.num_registered = 0
        """How often something was registered."""

    def register(self, entry: Entry) -> Entry:
        """Make an entry known by its name; one that has the name already is replaced."""
        key = key_of(entry.name)
        self._entries[key] = self._carried[key] = entry
        self.num_registered += 1
        return entry

    def find(self, name: str) -> Entry:
        """Return the entry of that name: ours, registered, or of an installed package."""
        key = key_of(name)
        if key not in self:
            raise unknown_name(self.kind, name, self.names())
        if key not in self._entries:
            self._entries[key] = _import(self._paths[key])
        return self._entries[key]

    def names(self) -> list[str]:
        """The names of all entries, those of installed packages included."""
        self._ask_packages()
        return list(dict.fromkeys([*self._paths, *self._entries]))

    def __contains__(self, name: str) -> bool:
        """Whether there is an entry of that name; installed packages are asked only if it is not known otherwise."""
        key = key_of(name)
        if key not in self._paths and key not in self._entries:
            self._ask_packages()
        return key in self._paths or key in self._entries

    def __iter__(self) -> Iterator[Entry]:
        """All entries."""
        return (self.find(name) for name in self.names())

    def accepts(self, entry: object) -> bool:
        """Whether something is an entry of this kind; nothing is imported to find out."""
        return any(f"{base.__module__}:{base.__qualname__}" == self.entry_class for base in type(entry).__mro__)

    def _ask_packages(self) -> None:
        if not self._asked_packages:
            self._asked_packages = True
            for point in entry_points(group=self.group):
                self._take(point)

    def _take(self, point: EntryPoint) -> None:
        """Add a package's entry; one that fails is left out, as it may have nothing to do with what is wanted."""
        try:
            entry = point.load()
            if not self.accepts(entry):
                raise TypeError(f"{point.value} is not a {self.entry_class.rpartition(':')[2]}")
            key = key_of(entry.name)
            if (key in self._paths or key in self._entries) and self._entries.get(key) is not entry:
                raise UsageError(f"the name {key!r} is taken")
        except Exception as error:  # whatever other people's code raises
            reason = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
            package = point.dist.name if point.dist else point.value
            logger.warning("%s %r of package %s is left out: %s", self.kind, point.name, package, reason)
        else:
            self._entries[key] = entry


def _import(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


methods: Registry[Method] = Registry(
    "method",
    "harmofl.methods.method:Method",
    {
        name.replace("_", "-"): f"harmofl.methods.catalogue:{name}"
        for name in (
            *("fedavg", "fedprox", "fednova", "fedadam", "fedbn", "moon", "harmofl"),
            "freshbn",
            *("fedavgm", "scaffold", "feddyn", "silobn", "fedper", "ditto"),
            *("momentum_sam", "fedlesam", "fedasam"),
            *("fedrdn", "sitealign", "fixbn", "fedwon"),
            *("median", "trimmed_mean", "krum", "multi_krum", "geometric_median"),
            *("local", "centralized"),
        )
    },
)
tasks: Registry[Task] = Registry(
    "task",
    "harmofl.tasks.task:Task",
    {
        "histology": "harmofl.tasks.histology:task",
        "nuclei": "harmofl.tasks.nuclei:task",
        "prostate": "harmofl.tasks.prostate:task",
        "classification": "harmofl.tasks.custom:classification",
        "segmentation": "harmofl.tasks.custom:segmentation",
    },
)
networks: Registry[NetworkEntry] = Registry(
    "network",
    "harmofl.models.network:NetworkEntry",
    {
        "densenet121": "harmofl.models.catalogue:densenet121",
        "densenet-small": "harmofl.models.catalogue:densenet_small",
        "unet": "harmofl.models.catalogue:unet",
        "basic-unet": "harmofl.models.catalogue:basic_unet",
        "dynunet": "harmofl.models.catalogue:dynunet",
    },
)
losses: Registry[LossEntry] = Registry(
    "loss",
    "harmofl.tasks.losses:LossEntry",
    {
        "cross-entropy": "harmofl.tasks.losses:cross_entropy",
        "dice": "harmofl.tasks.losses:dice",
        "dice-cross-entropy": "harmofl.tasks.losses:dice_cross_entropy",
        "joint": "harmofl.tasks.losses:joint",
    },
)
scores: Registry[ScoreEntry] = Registry(
    "score",
    "harmofl.tasks.scores:ScoreEntry",
    {
        name: f"harmofl.tasks.scores:{name}"
        for name in (
            *("accuracy", "auc", "sensitivity", "specificity"),
            *("dice", "precision", "recall", "dice_per_case", "dice_with_background", "hd95"),
            *("hd95_mm", "assd_mm", "surface_dice"),
        )
    },
)
engines: Registry[Engine] = Registry(
    "engine",
    "harmofl.deployment.engine:Engine",
    {
        "flower": "harmofl.deployment.flower.engine:engine",
        "nvflare": "harmofl.deployment.nvflare.engine:engine",
    },
)

ALL: tuple[Registry[Any], ...] = (methods, tasks, networks, losses, scores, engines)


def register(entry: Entry) -> Entry:
    """Make a method, task, network, loss, score or engine known by its name, in this process and its workers.

    Args:
        entry: a `Method`, `Task`, `NetworkEntry`, `LossEntry`, `ScoreEntry` or `Engine`.

    Returns:
        The entry itself.

    >>> import harmofl
    >>> mine = harmofl.register(harmofl.Method("My method"))
    >>> harmofl.registry.methods.find("my-method") is mine
    True
    """
    for registry in ALL:
        if registry.accepts(entry):
            registered: Entry = registry.register(entry)
            return registered
    kinds = ", ".join(registry.entry_class.rpartition(":")[2] for registry in ALL)
    raise UsageError(f"register: {entry!r} is none of {kinds}")


def entries_to_carry() -> list[Named]:
    """What a script has registered, which worker processes must be told of."""
    return [entry for registry in ALL for entry in registry._carried.values()]


@contextmanager
def registering_from_file() -> Iterator[None]:
    """Carry nothing to worker processes that is registered in this block: they load the file themselves."""
    before = [registry._carried.copy() for registry in ALL]
    try:
        yield
    finally:
        for registry, carried in zip(ALL, before, strict=True):
            registry._carried = carried
