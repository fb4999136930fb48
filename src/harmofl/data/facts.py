"""What was found in the images of a run. It stands in `data.json`, apart from what the user chose (`config.toml`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harmofl.documents import read_json
from harmofl.errors import UsageError
from harmofl.files import write_whole
from harmofl.settings import Settings


@dataclass(frozen=True)
class DataFacts:
    """The sites that take part, what their images are like, and what these are recognized by.

    Attributes:
        synthetic: whether the images are a phantom's.
        sites: the names of the sites that take part.
        channels: of the network's input.
        classes: the classes' names; the first is background in segmentation.
        fingerprints: of each site's images and their split, in the order of sites; empty where only the site knows.
        annotations: of each site's masks or labels, a site that is held out included.
        smallest_site: how many training images it has, where no site knows those of the others.
        depths: of the training images, 8-bit or not; empty where that is not known.
        views: of the training images' slices, such as axial; empty where no file says.
    """

    synthetic: bool
    sites: tuple[str, ...]
    channels: int
    classes: tuple[str, ...]
    fingerprints: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()
    smallest_site: int | None = None
    depths: tuple[str, ...] = field(default=(), compare=False)  # the same images have the same
    views: tuple[str, ...] = field(default=(), compare=False)

    def complete(self, settings: Settings) -> Settings:
        """The user's settings with what the images decide of them."""
        values: dict[str, Any] = {"sites": list(self.sites)}
        if not self.synthetic:
            values |= {"channels": self.channels, "classes": list(self.classes)}
        if self.smallest_site and settings.data.site_sizes == "smallest":
            values["site_sizes"] = self.smallest_site
        return settings.with_values("data", **values)

    def difference(self, other: DataFacts) -> str:
        """What is not the same, in words; empty if nothing is."""
        if self == other:
            return ""
        for name in ("sites", "channels", "classes"):
            if getattr(self, name) != getattr(other, name):
                return name
        return (
            "images or their split" if self.fingerprints != other.fingerprints else "masks, labels or images held out"
        )

    @property
    def images(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What tells these images, masks and labels from others."""
        return self.fingerprints, self.annotations

    @property
    def looks(self) -> dict[str, list[str]] | None:
        """How the training images were stored, which a model keeps to recognize others; None where it is not known."""
        return {"depths": list(self.depths), "views": list(self.views)} if self.depths else None

    def to_json(self) -> dict[str, Any]:
        """Plain values, without what is not known."""
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {name: value for name, value in values.items() if value not in ([], None)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> DataFacts:
        """The facts that `to_json` wrote."""
        kinds: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        facts = cls(**kinds)
        facts.check()
        return facts

    def check(self) -> None:
        """Raise an error for values of other types than there should be."""
        lists = (self.sites, self.classes, self.fingerprints, self.annotations, self.depths, self.views)
        named = all(isinstance(each, tuple) and all(isinstance(name, str) for name in each) for each in lists)
        numbers = type(self.channels) is int and type(self.smallest_site) in (int, type(None))
        if not (named and numbers and type(self.synthetic) is bool):
            raise TypeError("a value of another type than it should have")

    def write(self, path: Path) -> None:
        """Write a run's `data.json`."""
        write_whole(path, json.dumps(self.to_json(), indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> DataFacts:
        """Read a run's `data.json`, or say what is wrong with it."""
        try:
            return cls.from_json(read_json(path))
        except FileNotFoundError:
            raise UsageError(f"{path} is missing: a run writes there what it found in the images") from None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise UsageError(f"{path} cannot be read: {error}") from None
