"""`harmofl deploy check`: every finding in words that say what to do."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from parties import SITES, Quiet, free_port, make

from folders import segmentation_folder
from harmofl.deployment import checking
from harmofl.deployment.checking import check_kit
from harmofl.deployment.engine import Finding
from harmofl.deployment.kits import ServerKit, SiteKit

HOST = "127.0.0.1"
CLOSED = "x" * 300
"""A name that no file can have: looking at it fails as looking into a folder of another user's does."""


def problems(folder: Path) -> list[str]:
    return [finding.what for finding in check_kit(folder) if not finding.ok]


@pytest.fixture
def kits(tmp_path: Path, engine: Quiet) -> Path:
    return make(tmp_path / "kits", server=f"{HOST}:{free_port()}")


def findings(folder: Path) -> list[str]:
    return [finding.what for finding in check_kit(folder)]


@pytest.mark.parametrize("party", ["server", f"sites/{SITES[0]}"])
def test_a_fresh_kit_has_no_problem(kits: Path, party: str) -> None:
    assert problems(kits / party) == []
    assert "the engine has nothing to complain about" in findings(kits / party)


def test_a_server_that_is_not_started_yet_is_no_problem(kits: Path) -> None:
    assert "the server (Flower) is not started yet" in findings(kits / "server")


@pytest.mark.parametrize(
    ("away", "words"),
    [
        (set(), "the server (Flower) is running; connected: hospital-0, hospital-1, hospital-2"),
        ({"hospital-1"}, "2 of 3 sites are connected; missing: ['hospital-1']"),
    ],
)
def test_a_server_that_runs_says_who_is_connected(kits: Path, engine: Quiet, away: set[str], words: str) -> None:
    engine.runs, engine.away = True, away
    assert words in findings(kits / "server")
    assert problems(kits / "server") == []


def test_who_takes_part_in_a_run_is_its_own_to_say(kits: Path, engine: Quiet) -> None:
    engine.runs = True
    with ServerKit.open(kits / "server").lock_runs():
        assert "a run is going on: its display says which sites take part" in findings(kits / "server")


def test_a_federation_that_another_user_is_using_is_a_problem(kits: Path, engine: Quiet) -> None:
    engine.runs = True
    lock = kits / "server" / ".run.lock"
    lock.mkdir()  # it cannot be opened for writing, like a file of another user's
    assert problems(kits / "server") == [f"{lock}: Is a directory"]


def test_an_engine_that_fails_is_a_problem(kits: Path, engine: Quiet) -> None:
    def broken() -> Iterator[Finding]:
        yield Finding(True, "so far, so good")
        raise ValueError("what is this")

    engine.findings = broken()  # type: ignore[assignment]
    assert problems(kits / "server") == ["flower could not be asked (ValueError: what is this)"]


@pytest.mark.parametrize(
    ("name", "ok", "words"),
    [
        ("harmofl", False, "harmofl 9.9, here"),
        ("engine", False, "flower 9.9, here"),
        ("torch", True, "the kit was made with 9.9"),
    ],
)
def test_other_versions_are_named(kits: Path, name: str, ok: bool, words: str) -> None:
    path = kits / "server" / "versions.toml"
    path.write_text(re.sub(rf'^{name} = ".*"', f'{name} = "9.9"', path.read_text(), flags=re.MULTILINE))
    (found,) = (finding for finding in check_kit(kits / "server") if "9.9" in finding.what)
    assert (found.ok, words in found.what, bool(found.hint)) == (ok, True, True)


def test_a_folder_that_is_no_kit_is_one_finding(tmp_path: Path) -> None:
    (found,) = check_kit(tmp_path)
    assert not found.ok
    assert "holds no federation.toml" in found.what


def test_a_folder_that_cannot_be_entered_is_one_finding(tmp_path: Path) -> None:
    (found,) = check_kit(tmp_path / CLOSED)
    assert (found.ok, found.what) == (False, f"{tmp_path / CLOSED}: File name too long")


@pytest.mark.parametrize(("name", "words"), [("cache", ""), ("data", "histology: ")])
def test_a_place_that_cannot_be_looked_at_is_a_finding(kits: Path, name: str, words: str) -> None:
    path = kits / "sites" / SITES[0] / "site.toml"
    path.write_text(re.sub(rf'^{name} = ".*"', f'{name} = "{CLOSED}"', path.read_text(), flags=re.MULTILINE))
    assert f"{words}{path.parent / CLOSED}: File name too long" in problems(path.parent)


def test_a_wrong_setting_is_one_finding(kits: Path) -> None:
    path = kits / "sites" / SITES[0] / "site.toml"
    path.write_text(path.read_text().replace('device = "auto"', 'device = "gpu"'))
    (found,) = check_kit(path.parent)
    assert "device = 'gpu': must be 'auto', 'cpu' or 'cuda'" in found.what


def test_a_full_disk_is_told_of(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = checking.shutil.disk_usage("/")
    monkeypatch.setattr(checking.shutil, "disk_usage", lambda place: usage._replace(free=2**29))
    assert problems(kits / "server") == ["0.5 GB of disk space are free"]


def test_a_folder_that_cannot_be_written_is_named(kits: Path) -> None:
    site = kits / "sites" / SITES[0]
    (site / "state").write_text("a file")
    assert any("state = 'state' (site.toml): cannot be written" in what for what in problems(site))


# The images


def site_with(tmp_path: Path, data: str, tasks: list[str]) -> Path:
    kits = make(tmp_path / "kits", ["site-0"], server=f"{HOST}:{free_port()}", tasks=tasks, synthetic=False)
    path = kits / "sites" / "site-0" / "site.toml"
    path.write_text(path.read_text().replace("/path/to/images", data))
    return path.parent


def of_images(folder: Path, task: str) -> list[Finding]:
    return [finding for finding in check_kit(folder) if finding.what.startswith(task)]


def test_images_are_looked_at(tmp_path: Path, engine: Quiet) -> None:
    data = segmentation_folder(tmp_path / "images", sites=2)
    found = of_images(site_with(tmp_path, str(data), ["segmentation"]), "segmentation")
    assert found[0].ok
    assert re.fullmatch(r"segmentation: \d+ images can be loaded", found[0].what)


def test_broken_images_are_named_with_the_command_that_tells_more(tmp_path: Path, engine: Quiet) -> None:
    data = segmentation_folder(tmp_path / "images", sites=1)
    (data / "site-0" / "p1-0.png").write_bytes(b"broken")
    found = of_images(site_with(tmp_path, str(data), ["segmentation"]), "segmentation")
    assert not found[0].ok
    assert "1 problem: site-0/p1-0.png" in found[0].what
    assert f"harmofl data check --task segmentation --data {data}" in found[0].hint


def test_images_that_are_not_this_tasks_are_told_of_task_by_task(tmp_path: Path, engine: Quiet) -> None:
    data = segmentation_folder(tmp_path / "images", sites=1)
    folder = site_with(tmp_path, str(data), ["segmentation", "histology"])
    assert of_images(folder, "segmentation")[0].ok
    assert not of_images(folder, "histology")[0].ok


def test_a_folder_to_be_filled_in_is_named(tmp_path: Path, engine: Quiet) -> None:
    found = of_images(site_with(tmp_path, "/path/to/images", ["segmentation"]), "segmentation")
    assert "data = '/path/to/images': there is no such folder" in found[0].what
    assert "site.toml" in found[0].hint


def test_a_synthetic_site_that_there_is_not_is_named(tmp_path: Path, engine: Quiet) -> None:
    folder = site_with(tmp_path, "synthetic", ["histology"])
    assert SiteKit.open(folder).data is None
    assert "there is no synthetic hospital site-0 (hospital-0," in of_images(folder, "histology")[0].what


def test_many_problems_are_cut_short() -> None:
    assert checking.summarize(("a", "b")) == "2 problems: a; b"
    assert checking.summarize(tuple("abcde")) == "5 problems: a; b; c; and 2 more"
