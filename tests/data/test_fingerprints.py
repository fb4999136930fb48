"""The same images, split and truth are recognized again."""

from dataclasses import replace
from pathlib import Path

import pytest

from folders import (
    blob,
    classification_folder,
    opened,
    picture,
    segmentation_folder,
)
from harmofl import registry
from harmofl.events import Event, ImagesRead
from harmofl.settings import resolve

REAL = Path(__file__).parents[2] / "../shared/data"
real_data = pytest.mark.skipif(not REAL.is_dir(), reason="the real images are not beside this checkout")


def test_the_fingerprint_tells_the_images_and_their_split(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path)
    first = opened("segmentation", folder).fingerprint("site-0")
    assert opened("segmentation", folder).fingerprint("site-0") == first
    assert opened("segmentation", folder, seed=1).fingerprint("site-0") != first
    assert opened("segmentation", folder, limit=9).fingerprint("site-0") != first
    picture(folder / "site-0/p0-0.png", blob(40, 99)[0])
    assert opened("segmentation", folder).fingerprint("site-0") != first


@pytest.mark.parametrize("kind", ["classification", "segmentation"])
def test_masks_and_labels_are_told_apart_from_the_images(tmp_path: Path, kind: str) -> None:
    folder = classification_folder(tmp_path) if kind == "classification" else segmentation_folder(tmp_path)
    first = opened(kind, folder, hold_out_site="site-1").facts()
    assert opened(kind, folder, hold_out_site="site-1").facts() == first
    if kind == "classification":
        manifest = folder / "manifest.csv"
        manifest.write_text(manifest.read_text().replace("site-1/2.png,healthy", "site-1/2.png,ill"))
    else:
        picture(folder / "site-1/p0-0-mask.png", blob(40, 99)[1])
    then = opened(kind, folder, hold_out_site="site-1").facts()
    assert [one == other for one, other in zip(first.annotations, then.annotations, strict=True)] == [True, False]
    assert replace(then, annotations=first.annotations) == first


def test_masks_are_read_once_to_tell_them_apart(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path)
    settings, _ = resolve("segmentation", "fedavg", "smoke", overrides={"data.folder": str(folder)})
    read = []
    for _ in range(2):
        seen: list[Event] = []
        registry.tasks.find("segmentation").open_folder(settings.data, seen.append).facts()
        read.append(len([event for event in seen if isinstance(event, ImagesRead) and event.doing == "reading"]))
    assert read == [2 * 10 * 2, 0]  # images and masks of two sites


def test_the_fingerprint_under_another_name_is_the_one_that_the_site_had(tmp_path: Path) -> None:
    for kind, make in (("classification", classification_folder), ("segmentation", segmentation_folder)):
        folder = make(tmp_path / kind)
        trained = opened(kind, folder, limit=6).fingerprint("site-0")
        manifest = folder / "manifest.csv"
        manifest.write_text(manifest.read_text().replace("\nsite-0,", "\nclinic,"))
        settings, _ = resolve(kind, "fedavg", "smoke", overrides={"data.folder": str(folder), "data.limit": 6})
        images = registry.tasks.find(kind).open_folder(settings.data, limited=["site-0", "site-1"])
        assert images.fingerprint("clinic") != trained
        assert images.fingerprint("clinic", trained_as="site-0") == trained


@real_data
def test_the_real_tiles_keep_the_names_that_kept_results_know_them_by() -> None:
    images = opened("segmentation", REAL / "nuclei-tiles", size=128, limit=0)
    facts = images.facts()
    assert list(facts.fingerprints) == [
        "933b8370c70c258ac54cee767fa72a53",
        "b352fa0e04273be6e2dd4ad8ea27dab1",
        "5f1eca6aaf6548d5b5d8e582a43f0cc4",
        "a65bc79f31e5dffec777f074ef624fe7",
        "fa0a2adaf32b47175bbce080259ee162",
        "2677ac287851c19accce1698a5a83640",
    ]
    assert list(facts.annotations) == [
        "d80aca12f4ea0becc16c394df534b080",
        "904b422b467b2f2cbe2f3d5b7aa794bb",
        "94ef3a1803eba03f6198f9e4883fefff",
        "318b2976842551589b153b5d241a2d25",
        "7fb827bb34a314b9760c99c2a83e590f",
        "1bd9a03588bb8627d166b11874f8b9bc",
    ]
    breast = images.decoded("MoNuSAC-breast")
    assert images.recipe.key(breast.samples, breast.prints) == "7236ba7f93ae85a46168497a07647637"
