"""Makes the helpers of many tests (`runs`, `folders`, …) importable from every folder below."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
import torch

from disks import mounted
from harmofl import plugins, registry
from harmofl.data.images import LabelledImages
from harmofl.settings import DataSettings
from harmofl.tasks.task import PhantomSource
from written_runs import experiment, make_experiment, make_run, two_runs  # noqa: F401 - fixtures

torch.set_num_threads(1)  # the tests' tensors are tiny: more threads only wait for one another


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep decoded images out of the user's cache, and out of other tests."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("HARMOFL_CACHE", str(folder))
    return folder


@lru_cache(maxsize=64)
def made(make_images: Callable[[str, DataSettings], LabelledImages], site: str, data: str) -> LabelledImages:
    """The images of a synthetic site; `data`: the settings as JSON."""
    return make_images(site, DataSettings.model_validate_json(data))


@pytest.fixture(autouse=True, scope="session")
def make_synthetic_sites_once() -> Iterator[None]:
    """Hundreds of tests train on the same synthetic sites; each has a copy, so that none changes another's."""

    def copy(source: PhantomSource, site: str) -> LabelledImages:
        found = made(source.phantom.make_images, site, source.data.model_dump_json())
        return replace(found, images=found.images.clone(), targets=found.targets.clone())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PhantomSource, "whole", copy)
        yield


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, too small for what is written to it on purpose."""
    with mounted(tmp_path / "disk") as disk:
        yield disk


@pytest.fixture(autouse=True)
def forget_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget afterwards which plugins a test has loaded, as they would become settings of later tests' runs."""
    monkeypatch.setattr(plugins, "_loaded", plugins._loaded.copy())
    for each in registry.ALL:
        monkeypatch.setattr(each, "_entries", each._entries.copy())


@pytest.fixture
def own_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget afterwards what a test registers or installs."""
    for each in registry.ALL:
        monkeypatch.setattr(each, "_entries", each._entries.copy())
        monkeypatch.setattr(each, "_carried", {})
        monkeypatch.setattr(each, "_asked_packages", False)
    monkeypatch.setattr(plugins, "_loaded", {})
