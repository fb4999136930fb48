import pytest
import torch
from torch import nn

from harmofl.data.images import LabelledImages
from harmofl.settings import resolve
from harmofl.tasks.scorers import SegmentationScorer
from harmofl.tasks.sliding import Mirrored, predict_images


def test_mirror_images_are_turned_back_before_they_are_averaged() -> None:
    torch.manual_seed(0)
    network = nn.Conv3d(1, 2, 3, padding=1)
    images = torch.rand(1, 1, 4, 5, 6)
    with torch.no_grad():
        found = Mirrored(network)(images)
        # The mean over all mirror images is what the kernel's own mean over its mirror images gives.
        turns = [(), (2,), (3,), (4,), (2, 3), (2, 4), (3, 4), (2, 3, 4)]
        network.weight.copy_(sum(network.weight.flip(turn) for turn in turns) / 8)
        assert torch.allclose(found, network(images), atol=1e-6)


def test_a_volume_of_the_networks_size_needs_no_windows() -> None:
    settings, _ = resolve("prostate", "fedavg", "smoke", overrides={"data.dimensions": 3})
    network = nn.Conv3d(1, 2, 1)
    images = torch.rand(1, 1, 8, 16, 16)
    with torch.no_grad():
        assert torch.equal(predict_images(network, images, settings, torch.device("cpu")), network(images))
        larger = torch.rand(1, 1, 11, 20, 9)
        found = predict_images(network, larger, settings, torch.device("cpu"))
        assert torch.allclose(found, network(larger), atol=1e-6)  # a voxel for itself: windows make no difference


def test_distances_of_volumes_are_in_millimetres() -> None:
    truth = torch.zeros(1, 8, 8, 8, dtype=torch.long)
    truth[:, 2, 4, 4] = 1
    found = torch.zeros_like(truth)
    found[:, 4, 4, 4] = 1  # two slices further, of 3 mm each
    logits = nn.functional.one_hot(found, 2).movedim(-1, 1).float()
    spacings = torch.tensor([[3.0, 1.0, 1.0]], dtype=torch.float64)
    scorer = SegmentationScorer(("background", "prostate"), thorough=True)
    scorer.add(logits, LabelledImages(torch.zeros(1, 1, 8, 8, 8), truth, torch.tensor([0]), spacings))
    scores = scorer.scores()
    assert scores["hd95_mm"] == scores["assd_mm"] == pytest.approx(6)
    assert scores["surface_dice"] == 0
