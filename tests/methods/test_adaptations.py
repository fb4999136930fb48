import torch
from torch import nn

from harmofl.methods.adaptations import OwnLayers, SiteStatistics, as_received, pool_statistics
from harmofl.methods.layers import Harmonizer
from harmofl.methods.model import Model
from harmofl.models.network import Network
from harmofl.states import snapshot


def small_model() -> tuple[Model, nn.BatchNorm2d]:
    norm = nn.BatchNorm2d(2)
    return Model(Harmonizer(), Network(nn.Sequential(norm, nn.Conv2d(2, 2, 1)), "1")), norm


def test_a_last_batch_of_one_image_has_no_say() -> None:
    model, norm = small_model()
    first = torch.rand(4, 2, 4, 4)
    pool_statistics(model, [first, torch.rand(1, 2, 4, 4)])
    torch.testing.assert_close(norm.running_mean, first.mean(dim=(0, 2, 3)))


def test_a_model_used_as_received_stays_as_it_is_and_own_layers_take_new_statistics() -> None:
    model, _ = small_model()
    before = snapshot(model)
    as_received.adapt(model, [torch.rand(4, 2, 4, 4)])
    assert all(torch.equal(before[name], tensor) for name, tensor in snapshot(model).items())
    OwnLayers().adapt(model, [torch.rand(4, 2, 4, 4)])
    changed = {name for name, tensor in snapshot(model).items() if not torch.equal(before[name], tensor)}
    assert {name.rpartition(".")[2] for name in changed} == {"running_mean", "running_var", "num_batches_tracked"}


def test_pooled_statistics_are_those_of_all_images_together() -> None:
    """Two batches that differ: the mean of their variances would miss what lies between them."""
    model, norm = small_model()
    dark, bright = torch.rand(4, 2, 4, 4), torch.rand(3, 2, 4, 4) + 5
    pool_statistics(model, [dark, bright])
    everything = torch.cat([dark, bright])
    torch.testing.assert_close(norm.running_mean, everything.mean(dim=(0, 2, 3)))
    torch.testing.assert_close(norm.running_var, everything.var(dim=(0, 2, 3)))
    assert norm.momentum == 0.1
    assert not model.training


def test_the_first_layer_s_statistics_do_not_depend_on_batches_or_order_but_a_deeper_one_s_do_a_little() -> None:
    """Layers before a deeper one normalize each batch with its own statistics, as in training."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.BatchNorm2d(2), nn.ReLU(), nn.BatchNorm2d(2))
    model, images = Model(Harmonizer(), Network(body, "2")), torch.rand(16, 2, 4, 4)
    states = []
    for size, order in ((16, torch.arange(16)), (4, torch.arange(16)), (4, torch.randperm(16))):
        pool_statistics(model, images[order].split(size))
        states.append(snapshot(model))
    for other in states[1:]:
        torch.testing.assert_close(other["network.body.0.running_mean"], states[0]["network.body.0.running_mean"])
        torch.testing.assert_close(other["network.body.0.running_var"], states[0]["network.body.0.running_var"])
        moved = other["network.body.2.running_mean"] - states[0]["network.body.2.running_mean"]
        assert 0 < moved.abs().max() < 0.05


def test_pooled_statistics_of_one_batch_are_those_of_training() -> None:
    """Of a deeper layer too: it sees what the layers before it make of the batch with the batch's own statistics."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.BatchNorm2d(2), nn.Conv2d(2, 3, 3), nn.ReLU(), nn.BatchNorm2d(3, momentum=1.0))
    model = Model(Harmonizer(), Network(body, "3"))
    images = 3 * torch.rand(6, 2, 8, 8)
    pool_statistics(model, [images])
    pooled = snapshot(model)
    body[0].momentum = 1.0
    model.train()(images)
    for name, tensor in snapshot(model).items():
        if "running" in name:
            torch.testing.assert_close(pooled[name], tensor)


def test_only_statistics_change() -> None:
    model, _ = small_model()
    before = snapshot(model)
    SiteStatistics().adapt(model, [torch.rand(4, 2, 4, 4)])
    changed = {name for name, tensor in snapshot(model).items() if not torch.equal(before[name], tensor)}
    assert {name.rpartition(".")[2] for name in changed} <= {"running_mean", "running_var", "num_batches_tracked"}


def test_a_layer_that_no_image_reaches_stays_as_it_is() -> None:
    model, norm = small_model()
    model.auxiliary = nn.BatchNorm2d(2)
    pool_statistics(model, [torch.rand(4, 2, 4, 4)])
    assert model.auxiliary.running_mean.tolist() == [0.0, 0.0]
    assert norm.running_mean is not None
    assert norm.running_mean.min() > 0
