"""How far features lie from the statistics that a model normalizes them with."""

from pathlib import Path

import pytest
import torch
from torch import nn

from harmofl.analysis.feature_shift import feature_shift, shifts_at_sites
from harmofl.api import train


def test_a_shift_is_the_root_mean_square_over_channels_in_running_deviations() -> None:
    layer = nn.BatchNorm2d(2)
    layer.running_mean = torch.tensor([1.0, 0.0])
    layer.running_var = torch.tensor([4.0, 1.0])
    images = torch.stack([torch.full((4, 4), 7.0), torch.full((4, 4), 4.0)]).expand(3, 2, 4, 4)
    assert feature_shift(layer, [images]) == pytest.approx(((3**2 + 4**2) / 2) ** 0.5, rel=1e-4)


def test_shifts_are_averaged_over_layers_and_later_ones_see_what_the_earlier_ones_make_of_images() -> None:
    network = nn.Sequential(nn.BatchNorm2d(1, eps=0.0), nn.BatchNorm2d(1, eps=0.0)).train()
    network[0].running_var = torch.tensor([4.0])
    images = torch.full((2, 1, 4, 4), 6.0)  # 3 deviations away for the first layer, whose output of 3 the second sees
    assert feature_shift(network, [images]) == pytest.approx(3.0)
    assert network.training
    assert network[0].running_mean == 0  # measured, not learned


def test_a_model_without_statistics_has_no_shift() -> None:
    assert feature_shift(nn.Sequential(nn.Conv2d(1, 1, 3), nn.InstanceNorm2d(1)), [torch.zeros(1, 1, 8, 8)]) is None


def test_a_site_with_a_model_of_its_own_is_measured_with_it(tmp_path: Path) -> None:
    train("histology", "fedavg", preset="smoke", settings={"model.statistics": "site"}, out=tmp_path / "run")
    images = {"hospital-0": torch.rand(4, 3, 32, 32), "hospital-1": torch.rand(4, 3, 32, 32)}
    shifts = shifts_at_sites(tmp_path / "run" / "model", images)
    assert shifts.keys() == images.keys()
    assert len(set(shifts.values())) == 2
