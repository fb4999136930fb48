from pathlib import Path

import numpy as np
import pytest
import torch

from harmofl.data.images import LabelledImages
from harmofl.data.volumes import PatchSet, VolumeSet, choose_places, count_whole, redraw, to_patches
from harmofl.data.windows import WindowGrid
from harmofl.settings import DataSettings
from harmofl.tasks.task import Task
from volumes import write_hospitals

DATA = DataSettings(dimensions=3, patch=[8, 8, 8], patches=3, foreground=1.0)


def volumes(count: int = 2, shape: tuple[int, ...] = (12, 10, 9)) -> VolumeSet:
    """Volumes that number their voxels; two voxels of each mask are foreground, in opposite corners."""
    numbers = torch.arange(float(np.prod(shape))).reshape(1, 1, *shape) / np.prod(shape)
    masks = torch.zeros(count, *shape, dtype=torch.long)
    masks[:, 0, 0, 0], masks[:, -1, -1, -1] = 1, 2
    return VolumeSet.of(LabelledImages(numbers.repeat(count, 1, 1, 1, 1), masks, torch.arange(count)))


def test_patches_hold_foreground_and_lie_inside_their_volume() -> None:
    patches = PatchSet.of(volumes(), DATA)
    batch = patches.load(torch.arange(len(patches)))
    assert len(patches) == 6
    assert batch.images.shape == (6, 1, 8, 8, 8)
    assert batch.groups.tolist() == [0, 0, 0, 1, 1, 1]
    assert (batch.targets.flatten(1) > 0).any(dim=1).all()
    # Neighbouring columns are neighbours in the volume: it was cut, not mixed.
    steps = (batch.images.diff(dim=-1) * 12 * 10 * 9).round()
    assert (steps == 1).all()


def test_patches_are_the_same_for_the_same_seed_only() -> None:
    patches = PatchSet.of(volumes(4, (30, 30, 30)), DATA.model_copy(update={"foreground": 0.0}))
    places = torch.arange(len(patches))
    first, second, other = (redraw(patches, seed).load(places).images for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(redraw(patches, 1).load(torch.tensor([5])).images[0], first[5])


def test_a_volume_smaller_than_the_patch_is_mirrored_at_its_ends() -> None:
    patches = PatchSet.of(volumes(1, (3, 8, 8)), DATA)
    image = patches.load(torch.tensor([0])).images[0, 0]
    assert torch.equal(image[:3], image[3:6].flip(0))


def test_patches_of_one_volume_count_as_one_image() -> None:
    patches = PatchSet.of(volumes(2), DATA)
    assert (len(patches), count_whole(patches), count_whole(patches.at(torch.tensor([0, 1, 2])))) == (6, 2, 1)
    assert count_whole(volumes(2)) == 2


def test_only_what_is_drawn_changes() -> None:
    images = LabelledImages(torch.rand(2, 1, 8, 8), torch.zeros(2, 8, 8, dtype=torch.long), torch.arange(2))
    assert to_patches(images, DATA) is images
    assert redraw(images, 1) is images


def test_every_label_has_its_share_of_the_places() -> None:
    mask = np.zeros((40, 40, 40), dtype=np.uint8)
    mask[:20], mask[30, :3] = 1, 2  # 32 000 and 120 voxels
    places = choose_places(mask, seed=0)
    assert np.unique(mask.reshape(-1)[places], return_counts=True)[1].tolist() == [2000, 120]


@pytest.mark.parametrize("shape", [(20, 17, 9), (8, 8, 8), (5, 12, 8)])
def test_windows_are_joined_as_by_monai(shape: tuple[int, ...]) -> None:
    from monai.inferers import sliding_window_inference

    generator = torch.Generator().manual_seed(0)
    image, weights = torch.rand(1, *shape, generator=generator), torch.rand(2, 1, 3, 3, 3, generator=generator)

    def network(windows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv3d(windows, weights, padding=1)

    grid = WindowGrid(shape, (8, 8, 8), overlap=0.5)
    found = grid.join(iter([network(torch.from_numpy(window)[None])[0] for window in grid.cut(image.numpy())]))
    padded = np.pad(image.numpy(), [(0, 0)] + [(0, max(0, 8 - size)) for size in shape], mode="symmetric")
    expected = sliding_window_inference(torch.from_numpy(padded)[None], (8, 8, 8), 4, network, 0.5, mode="gaussian")
    assert found.shape == (2, *shape)
    assert torch.allclose(found, expected[0][:, : shape[0], : shape[1], : shape[2]], atol=1e-5)


def open_site(task: Task, folder: Path, cache: Path, **data: object) -> tuple[VolumeSet, ...]:
    settings = DataSettings(folder=str(folder), cache=str(cache), dimensions=3, intensity="percentile", **data)
    train, val, test = task.open(settings).parts("B")
    assert isinstance(train, VolumeSet)
    assert isinstance(val, VolumeSet)
    assert isinstance(test, VolumeSet)
    return train, val, test


def test_a_folder_of_volumes_is_decoded_once_and_read_from_the_cache(tmp_path: Path, monkeypatch) -> None:
    from harmofl.data import decoding
    from harmofl.tasks.prostate import task

    folder = write_hospitals(tmp_path / "data")
    parts = open_site(task, folder, tmp_path / "cache", spacing=[2.0, 2.0, 2.0])
    assert [len(part) for part in parts] == [2, 1, 1]
    train = parts[0]
    assert isinstance(train.volumes[0].base, np.memmap)
    assert train.spacings.tolist() == [[2.0, 2.0, 2.0]] * 2
    # B's slices lead to the right, 22 of 1.5 mm; its 28 columns of 1.2 mm to the front, its 26 rows to the head.
    assert train.volumes[0].shape == (1, 16, 17, 17)
    loaded = train.load(torch.tensor([0]))
    inside = loaded.images[0, 0][loaded.targets[0] == 1]
    assert inside.mean() > 2 * loaded.images[0, 0][loaded.targets[0] == 0].mean()
    monkeypatch.setattr(decoding.Recipe, "decode", lambda *_: pytest.fail("decoded twice"))
    again = open_site(task, folder, tmp_path / "cache", spacing=[2.0, 2.0, 2.0])
    assert torch.equal(again[0].load(torch.tensor([0])).images, loaded.images)


def test_patches_do_not_depend_on_which_seed_filled_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from harmofl.data import volumes as module
    from harmofl.tasks.prostate import task

    monkeypatch.setattr(module, "MOST_PLACES", 5)  # so few that they are drawn
    folder, spacing = write_hospitals(tmp_path / "data"), [2.0, 2.0, 2.0]
    open_site(task, folder, tmp_path / "cache", spacing=spacing, seed=0)
    shared, own = (open_site(task, folder, tmp_path / name, spacing=spacing, seed=1) for name in ("cache", "own"))
    for first, second in zip(shared[0].places, own[0].places, strict=True):
        assert first.tolist() == second.tolist()


def test_without_a_spacing_volumes_keep_their_own(tmp_path: Path) -> None:
    from harmofl.tasks.prostate import task

    train, *_ = open_site(task, write_hospitals(tmp_path / "data"), tmp_path / "cache")
    assert train.volumes[0].shape == (1, 26, 28, 22)
    assert torch.allclose(train.spacings, torch.tensor([1.2, 1.2, 1.5], dtype=torch.float64))
