import torch
from torch import nn

from harmofl.methods.adaptations import OwnLayers, as_received, estimate_statistics
from harmofl.methods.layers import Harmonizer
from harmofl.methods.model import Model
from harmofl.models.network import Network
from harmofl.states import snapshot


def small_model() -> tuple[Model, nn.BatchNorm2d]:
    norm = nn.BatchNorm2d(2)
    return Model(Harmonizer(), Network(nn.Sequential(norm, nn.Conv2d(2, 2, 1)), "1")), norm


def test_estimated_statistics_are_the_means_over_batches() -> None:
    model, norm = small_model()
    halves = torch.rand(8, 2, 4, 4).split(4)
    estimate_statistics(model, halves)
    torch.testing.assert_close(norm.running_mean, torch.stack([h.mean(dim=(0, 2, 3)) for h in halves]).mean(dim=0))
    torch.testing.assert_close(norm.running_var, torch.stack([h.var(dim=(0, 2, 3)) for h in halves]).mean(dim=0))
    assert not model.training
    assert norm.momentum == 0.1


def test_a_last_batch_of_one_image_has_no_say() -> None:
    model, norm = small_model()
    first = torch.rand(4, 2, 4, 4)
    estimate_statistics(model, [first, torch.rand(1, 2, 4, 4)])
    torch.testing.assert_close(norm.running_mean, first.mean(dim=(0, 2, 3)))


def test_a_model_used_as_received_stays_as_it_is_and_own_layers_take_new_statistics() -> None:
    model, _ = small_model()
    before = snapshot(model)
    as_received.adapt(model, [torch.rand(4, 2, 4, 4)])
    assert all(torch.equal(before[name], tensor) for name, tensor in snapshot(model).items())
    OwnLayers().adapt(model, [torch.rand(4, 2, 4, 4)])
    changed = {name for name, tensor in snapshot(model).items() if not torch.equal(before[name], tensor)}
    assert {name.rpartition(".")[2] for name in changed} == {"running_mean", "running_var", "num_batches_tracked"}
