"""Folders of images from the command line: train, resume, repeat, and everything bad that people hand in."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import harmofl
from folders import (
    camelyon17_folder,
    classification_folder,
    nuclei_folder,
    picture,
    prostate_folder,
    save_volume,
    segmentation_folder,
    volume,
    write_manifest,
)
from harmofl import registry
from harmofl.data.facts import DataFacts
from runs import call, differences

FOLDERS = {
    "histology": camelyon17_folder,
    "nuclei": nuclei_folder,
    "prostate": prostate_folder,
    "classification": classification_folder,
    "segmentation": segmentation_folder,
}
SIZES = {"nuclei": 32, "prostate": 32}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {task: make(tmp_path_factory.mktemp(task)) for task, make in FOLDERS.items()}


def train(task: str, folder: Path, out: Path, method: str = "fedavg", **settings: Any) -> dict[str, Any]:
    changes = {name.replace("__", "."): value for name, value in settings.items()}
    base = {"federation.workers": 1, "data.size": SIZES.get(task, 32)}
    return harmofl.train(task, method, data=folder, preset="smoke", settings=base | changes, out=out)


LOOKING = ("centralized", "fedbn", "fedrdn", "harmofl", "local", "moon", "sitealign")
"""Methods that look at images or at what a network makes of them, or that join or part the sites' images."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "method"),
    [("classification", name) for name in registry.methods.names()] + [("segmentation", name) for name in LOOKING],
)
def test_every_method_trains_on_own_data(folders: dict[str, Path], tmp_path: Path, task: str, method: str) -> None:
    """What a method does with masks instead of labels, `test_every_method` shows for all of them."""
    summary = train(task, folders[task], tmp_path / "run", method)
    assert summary["test"].keys() == {"site-0", "site-1", "average", "std"}
    assert all(0 <= score <= 1 for score in summary["test"].values())


@pytest.mark.slow
@pytest.mark.parametrize("task", ["histology", "nuclei", "prostate"])
@pytest.mark.parametrize("method", ["fedbn", "harmofl", "centralized"])
def test_the_papers_tasks_train_on_their_public_layouts(
    folders: dict[str, Path], tmp_path: Path, task: str, method: str
) -> None:
    summary = train(task, folders[task], tmp_path / "run", method)
    assert len(summary["test"]) == 4
    settings = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert settings["data"]["folder"] == str(folders[task])
    assert not {"sites", "channels", "classes"} & settings["data"].keys()  # nobody chose them
    facts = DataFacts.read(tmp_path / "run" / "data.json")
    assert (facts.synthetic, facts.channels, len(facts.sites)) == (False, 3, 2)


def test_workers_resuming_and_repeating_give_the_same_bits_on_a_folder(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = folders["segmentation"]
    train("segmentation", folder, tmp_path / "one", "harmofl")
    train("segmentation", folder, tmp_path / "two", "harmofl", federation__workers=2)
    assert differences(tmp_path / "one", tmp_path / "two") == []
    harmofl.train(config=tmp_path / "one" / "config.toml", out=tmp_path / "again")
    assert differences(tmp_path / "one", tmp_path / "again") == []
    again = harmofl.train(config=tmp_path / "one" / "config.toml", data=folder, out=tmp_path / "again", resume=True)
    assert again["test"] == harmofl.train(config=tmp_path / "one" / "config.toml", out=tmp_path / "three")["test"]


def test_a_configuration_serves_for_another_folder(folders: dict[str, Path], tmp_path: Path) -> None:
    train("segmentation", folders["segmentation"], tmp_path / "one")
    other = segmentation_folder(tmp_path / "other", sites=3)
    manifest = other / "manifest.csv"
    manifest.write_text("\n".join(line.replace("site-", "clinic-", 1) for line in manifest.read_text().splitlines()))
    summary = harmofl.train(config=tmp_path / "one" / "config.toml", data=other, out=tmp_path / "two")
    assert summary["test"].keys() == {"clinic-0", "clinic-1", "clinic-2", "average", "std"}


def test_a_configuration_keeps_its_choice_of_sites_when_the_folder_moves(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path / "data", sites=3)
    train("segmentation", folder, tmp_path / "one", data__sites=["site-0", "site-2"])
    moved = folder.rename(tmp_path / "moved")
    harmofl.train(config=tmp_path / "one" / "config.toml", data=moved, out=tmp_path / "two")
    assert differences(tmp_path / "one", tmp_path / "two") == []


def config_of(run: Path) -> dict[str, Any]:
    return tomllib.loads((run / "config.toml").read_text())


@pytest.mark.parametrize(
    "change", [{"method": "fedprox"}, {"preset": "small"}, {"method": "harmofl", "preset": "paper"}]
)
def test_the_images_of_a_settings_file_stay_with_another_method_or_preset(
    folders: dict[str, Path], tmp_path: Path, change: dict[str, str]
) -> None:
    train("segmentation", folders["segmentation"], tmp_path / "one")
    small = {"training.rounds": 1, "federation.workers": 1, "data.size": 32, "model.features": 4}
    harmofl.train(config=tmp_path / "one" / "config.toml", **change, settings=small, out=tmp_path / "two")
    assert config_of(tmp_path / "two")["data"]["folder"] == str(folders["segmentation"])
    assert DataFacts.read(tmp_path / "two" / "data.json").sites == ("site-0", "site-1")


def test_the_images_of_a_settings_file_stay_with_another_task(folders: dict[str, Path], tmp_path: Path) -> None:
    train("nuclei", folders["nuclei"], tmp_path / "one")
    with pytest.raises(harmofl.UsageError, match=f"{folders['nuclei']}.*manifest.csv"):  # the other task's layout
        harmofl.train("segmentation", config=tmp_path / "one" / "config.toml", out=tmp_path / "two")
    with pytest.raises(harmofl.UsageError, match=str(folders["nuclei"])):  # which has synthetic hospitals
        harmofl.train("prostate", config=tmp_path / "one" / "config.toml", out=tmp_path / "two")
    assert not (tmp_path / "two").exists()


def test_other_images_than_those_of_a_settings_file_must_be_named(folders: dict[str, Path], tmp_path: Path) -> None:
    train("nuclei", folders["nuclei"], tmp_path / "one")
    config = tmp_path / "one" / "config.toml"
    small = {"training.rounds": 1, "federation.workers": 1}
    harmofl.train(config=config, method="fedprox", settings=small | {"data.folder": ""}, out=tmp_path / "synthetic")
    data = config_of(tmp_path / "synthetic")["data"]
    assert not {"folder", "sites", "channels", "classes"} & data.keys()
    moved = nuclei_folder(tmp_path / "moved", patients=5)
    harmofl.train(config=config, method="fedprox", settings=small | {"data.folder": str(moved)}, out=tmp_path / "other")
    assert config_of(tmp_path / "other")["data"]["folder"] == str(moved)


def test_settings_of_images_that_lay_at_hospitals_are_not_those_of_synthetic_ones(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('task = "nuclei"\n[data]\nfolder = "at the sites"\n')
    with pytest.raises(harmofl.UsageError, match="say where your images are, with --data"):
        harmofl.train(method="fedavg", preset="smoke", config=tmp_path / "config.toml", out=tmp_path / "run")


def test_the_first_line_says_which_images_are_used(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folders["segmentation"]
    train("segmentation", folder, tmp_path / "one")
    more = ["--set=training.rounds=1", "--set=federation.workers=1"]
    other = call(
        [
            "train",
            f"--config={tmp_path / 'one' / 'config.toml'}",
            "--method=fedprox",
            *more,
            f"--out={tmp_path / 'two'}",
        ]
    )
    limited = f"Images: {folder}, at most 30 of each training site (data.limit)"
    assert other.stdout.splitlines()[0] == limited
    scored = call(["evaluate", str(tmp_path / "one"), f"--data={folder}"])
    assert scored.stdout.splitlines()[0] == limited


@pytest.mark.parametrize("change", [["--preset=paper", "--set=model.features=4"], ["--task=prostate"]])
def test_another_preset_or_task_on_the_command_line_keeps_the_images(
    folders: dict[str, Path], tmp_path: Path, change: list[str]
) -> None:
    folder = folders["segmentation"]
    train("segmentation", folder, tmp_path / "one")
    small = ["--set=training.rounds=1", "--set=federation.workers=1", "--set=data.size=32"]
    config = f"--config={tmp_path / 'one' / 'config.toml'}"
    done = call(["train", config, *change, *small, f"--out={tmp_path / 'two'}"])
    if "--task=prostate" in change:  # whose images lie otherwise: an error, never its synthetic hospitals
        assert (done.returncode, done.stdout) == (2, "")
        assert str(folder) in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[0] == f"Images: {folder}"


def test_three_classes_of_images_and_of_masks(tmp_path: Path) -> None:
    folder = classification_folder(tmp_path / "labels", images=15, classes=("a", "b", "c"))
    summary = train("classification", folder, tmp_path / "one", "harmofl")
    assert summary["details"]["site-0"].keys() >= {"metric", "auc", "sensitivity"}
    rows = []
    for number in range(10):
        pixels, mask = volume((32, 32, 3), number)
        labels = mask + (mask & (pixels > 600).astype(np.uint8))
        save_volume(tmp_path / "masks" / f"{number}.nii.gz", pixels, np.eye(4))
        save_volume(tmp_path / "masks" / f"{number}-mask.nii", labels, np.eye(4))
        rows.append({"site": f"s{number % 2}", "image": f"{number}.nii.gz", "mask": f"{number}-mask.nii"})
    folder = write_manifest(tmp_path / "masks", rows)
    summary = train("segmentation", folder, tmp_path / "two", "harmofl", data__neighbours=1)
    assert summary["details"]["s0"].keys() >= {"dice_1", "dice_2", "dice_per_case"}
    facts = DataFacts.read(tmp_path / "two" / "data.json")
    assert (facts.channels, facts.classes) == (3, ("0", "1", "2"))


def damage_nothing(folder: Path) -> Path:
    return folder


def truncated(folder: Path, pattern: str) -> Path:
    path = sorted(folder.rglob(pattern))[0]
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return folder


def emptied(folder: Path, pattern: str) -> Path:
    sorted(folder.rglob(pattern))[0].write_bytes(b"")
    return folder


def without_column(folder: Path, name: str) -> Path:
    path = next(folder.glob("*.csv"))
    header, rest = path.read_text().split("\n", 1)
    path.write_text(header.replace(name, "something") + "\n" + rest)
    return folder


def linked_away(folder: Path, pattern: str) -> Path:
    path = sorted(folder.rglob(pattern))[0]
    secret = folder.parent / f"outside{path.suffix}"
    path.rename(secret)
    path.symlink_to(secret)
    return folder


def bomb(folder: Path) -> Path:
    """A picture of 400 million pixels in a few kilobytes."""
    import zlib

    path = sorted((folder / "site-0").glob("*0.png"))[0]
    size = 20000

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    header = size.to_bytes(4, "big") * 2 + bytes([8, 0, 0, 0, 0])
    rows = zlib.compress(bytes(size + 1) * 100)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))
    return folder


def entities(folder: Path) -> Path:
    path = sorted(folder.rglob("*.xml"))[0]
    path.write_text('<!DOCTYPE x [<!ENTITY a "aaaa">]>' + path.read_text().replace('X="10"', 'X="&a;"'))
    return folder


def complex_volume(folder: Path) -> Path:
    path = sorted(folder.rglob("Case00.nii.gz"))[0]
    save_volume(path, np.ones((40, 36, 5), dtype=np.complex64), np.eye(4))
    return folder


def escaping(folder: Path, path: str) -> Path:
    picture(folder.parent / "outside.png", np.zeros((9, 9), dtype=np.uint8))
    manifest = folder / "manifest.csv"
    manifest.write_text(manifest.read_text().replace("site-0/0.png", path))
    return folder


BAD: dict[str, tuple[str, Any, str]] = {
    "no folder": ("classification", lambda folder: folder / "nowhere", "nowhere"),
    "empty folder": ("prostate", lambda folder: (folder / "empty").mkdir() or folder / "empty", "empty"),
    "truncated patch": ("histology", lambda f: truncated(f, "patch*.png"), "patch_patient_000_node_1_x_0_y_32.png"),
    "missing column": ("histology", lambda f: without_column(f, "tumor"), "tumor"),
    "truncated outlines": ("nuclei", lambda f: truncated(f, "*.xml"), "TCGA-XX-0000-01Z.xml"),
    "entities": ("nuclei", entities, "entities"),
    "truncated tiff": ("nuclei", lambda f: truncated(f, "*.tif"), "TCGA-XX-0000-01Z.tif"),
    "truncated volume": ("prostate", lambda f: truncated(f, "Case00.nii.gz"), "BIDMC/Case00.nii.gz"),
    "wrong type": ("prostate", complex_volume, "BIDMC/Case00.nii.gz"),
    "empty volume": ("prostate", lambda f: emptied(f, "Case01.nii.gz"), "BIDMC/Case01.nii.gz"),
    "linked volume": ("prostate", lambda f: linked_away(f, "Case00.nii.gz"), "leaves the data folder"),
    "linked patch": ("histology", lambda f: linked_away(f, "patch*.png"), "leaves the data folder"),
    "linked outlines": ("nuclei", lambda f: linked_away(f, "*.xml"), "leaves the data folder"),
    "manifest column": ("segmentation", lambda f: without_column(f, "mask"), "mask"),
    "empty picture": ("segmentation", lambda f: emptied(f, "site-0/p0-0.png"), "site-0/p0-0.png"),
    "bomb": ("segmentation", bomb, "site-0/p0-0.png"),
    "path outside": ("classification", lambda f: escaping(f, "../outside.png"), "leaves the data folder"),
    "absolute path": ("classification", lambda f: escaping(f, "/etc/hostname"), "leaves the data folder"),
    "linked picture": ("classification", lambda f: linked_away(f, "site-0/0.png"), "leaves the data folder"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_data_is_one_line_and_nothing_is_written(what: str, tmp_path: Path) -> None:
    task, damage, words = BAD[what]
    folder = damage(FOLDERS[task](tmp_path / "data"))
    with pytest.raises(harmofl.UsageError) as caught:
        train(task, folder, tmp_path / "run")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_bad_data_on_the_command_line_is_exit_code_2_without_a_traceback(tmp_path: Path) -> None:
    folder = truncated(segmentation_folder(tmp_path / "data"), "site-0/p0-0.png")
    args = ["train", "--task=segmentation", "--method=fedavg", "--preset=smoke", f"--data={folder}"]
    done = call([*args, f"--out={tmp_path / 'run'}"])
    assert done.returncode == 2
    assert done.stderr.startswith("harmofl: ")
    assert len(done.stderr.splitlines()) == 1
    assert "site-0/p0-0.png" in done.stderr
