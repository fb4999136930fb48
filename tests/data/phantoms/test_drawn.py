"""Synthetic hospitals that are drawn once."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from disks import fill_up
from harmofl import registry
from harmofl.data.cache import Cache
from harmofl.data.images import LabelledImages
from harmofl.data.phantoms import drawn
from harmofl.data.phantoms.drawn import draw_once
from harmofl.settings import DataSettings, resolve

TASKS = {"histology": {}, "nuclei": {}, "prostate": {}, "prostate in 3-D": {"data.dimensions": 3}}


def draw(task: str, data: DataSettings) -> LabelledImages:
    """One site's images, from nowhere."""
    phantom = registry.tasks.find(task).phantom
    assert phantom is not None
    return phantom.make_images(phantom.sites[0], data)


def settings_of(task: str, **changes: object) -> DataSettings:
    """The smoke preset's images."""
    name, _, _ = task.partition(" ")
    more = {f"data.{key}": value for key, value in changes.items()}
    return resolve(name, "fedavg", "smoke", overrides={**TASKS[task], **more})[0].data


def same(images: LabelledImages, others: LabelledImages) -> bool:
    """Whether they agree to the bit, in values, types and layout."""
    found = [
        torch.equal(mine, theirs) and mine.dtype == theirs.dtype and mine.stride() == theirs.stride()
        for mine, theirs in zip(vars(images).values(), vars(others).values(), strict=True)
        if mine is not None
    ]
    return all(found) and len(found) >= 3 and (images.spacings is None) == (others.spacings is None)


def refuse() -> LabelledImages:
    """Nothing may be drawn."""
    raise AssertionError("drawn once more")


@pytest.mark.parametrize("task", TASKS)
def test_what_is_read_is_what_was_drawn(task: str, tmp_path: Path) -> None:
    data = settings_of(task)
    make = partial(draw, task.split()[0], data)
    first = draw_once(make, draw, ["A"], Cache(tmp_path))
    again = draw_once(refuse, draw, ["A"], Cache(tmp_path))
    assert same(first, make())
    assert same(again, first)


def test_another_site_is_another_file(tmp_path: Path) -> None:
    make = partial(draw, "histology", settings_of("histology"))
    draw_once(make, draw, ["A", 1], Cache(tmp_path))
    with pytest.raises(AssertionError, match="once more"):
        draw_once(refuse, draw, ["A", 2], Cache(tmp_path))


@pytest.mark.parametrize("damage", [lambda content: content[:-40], lambda content: b"", lambda content: b"[" * 4000])
def test_a_damaged_file_is_drawn_again(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    make = partial(draw, "histology", settings_of("histology"))
    draw_once(make, draw, ["A"], Cache(tmp_path))
    (file,) = (tmp_path / "phantoms").iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert same(draw_once(make, draw, ["A"], Cache(tmp_path)), make())
    draw_once(refuse, draw, ["A"], Cache(tmp_path))


def test_nothing_is_lost_where_nothing_can_be_written(small_disk: Path) -> None:
    fill_up(small_disk / "filler")
    make = partial(draw, "histology", settings_of("histology"))
    assert same(draw_once(make, draw, ["A"], Cache(small_disk / "cache")), make())
    assert not list(small_disk.rglob("*.safetensors"))


def test_the_oldest_sites_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = partial(draw, "histology", settings_of("histology"))
    draw_once(make, draw, [0], Cache(tmp_path))
    (file,) = (tmp_path / "phantoms").iterdir()
    os.utime(file, (0, 0))
    monkeypatch.setattr(drawn, "MOST", 2 * file.stat().st_size)
    draw_once(make, draw, [1], Cache(tmp_path))
    assert file.exists()
    draw_once(make, draw, [2], Cache(tmp_path))
    assert not file.exists()
    assert len(list((tmp_path / "phantoms").iterdir())) == 2


def test_large_sites_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn, "LARGEST", 1000)
    draw_once(partial(draw, "histology", settings_of("histology")), draw, ["A"], Cache(tmp_path))
    assert not (tmp_path / "phantoms").exists()


PROGRAM = """
import sys
from harmofl import registry
from harmofl.settings import resolve
from harmofl.tasks import task as tasks
if sys.argv[1] == "again":
    tasks.draw_once.__globals__["write_whole"] = None
for name, more in [("histology", {}), ("nuclei", {}), ("prostate", {}), ("prostate", {"data.dimensions": 3})]:
    task = registry.tasks.find(name)
    data = resolve(name, "fedavg", "smoke", overrides={**more, "data.images": int(sys.argv[2])})[0].data
    print([float(task.open(data).whole(site).images.double().sum()) for site in task.sites_of(data)])
"""


@pytest.mark.long
def test_every_task_draws_its_sites_once(tmp_path: Path) -> None:
    """In processes of their own, where nothing is in memory; the second may not write anything."""

    def run(which: str, images: int) -> str:
        environment = {**os.environ, "HARMOFL_CACHE": str(tmp_path)}
        command = [sys.executable, "-c", PROGRAM, which, str(images)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    first = run("first", 24)
    files = sorted((tmp_path / "phantoms").iterdir())
    assert len(files) == sum(line.count(",") + 1 for line in first.splitlines())  # none shares a file with another
    assert run("again", 24) == first
    assert run("first", 30) != first
    assert len(list((tmp_path / "phantoms").iterdir())) == 2 * len(files)
