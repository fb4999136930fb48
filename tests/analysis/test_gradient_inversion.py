import pytest
import torch
from torch import nn
from torch.nn import functional

from harmofl.analysis.gradient_inversion import (
    LocalTraining,
    Search,
    amplitude_distance,
    cosine_distance,
    invert,
    total_variation,
    update_of,
)
from harmofl.analysis.phase_retrieval import Knowledge
from harmofl.analysis.similarity import psnr

IMAGE = torch.tensor([[[[0.9, 0.2, 0.1, 0.8], [0.3, 0.7, 0.6, 0.1], [0.2, 0.4, 0.5, 0.9], [0.6, 0.1, 0.3, 0.7]]]])
LABEL = torch.tensor([1])


def linear_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def own_amplitude() -> Knowledge:
    everywhere = torch.ones(4, 3, dtype=torch.bool)
    return Knowledge(torch.fft.rfft2(IMAGE[0]).abs(), everywhere, torch.ones(4, 4, dtype=torch.bool))


def test_cosine_distance_is_over_all_weights_at_once() -> None:
    sent = {"weight": torch.tensor([[3.0]]), "bias": torch.tensor([4.0])}
    found = {"weight": torch.tensor([[4.0]]), "bias": torch.tensor([3.0])}
    assert float(cosine_distance(found, sent)) == pytest.approx(1 - 24 / 25)


def test_cosine_distance_of_a_batch_of_updates_ignores_their_scale() -> None:
    sent = {"bias": torch.tensor([1.0, 0.0])}
    found = {"bias": torch.tensor([[5.0, 0.0], [0.0, 2.0], [-0.1, 0.0]])}
    assert cosine_distance(found, sent).tolist() == pytest.approx([0, 1, 2])


def test_total_variation_is_the_mean_step_down_plus_the_mean_step_across() -> None:
    image = torch.tensor([[[0.0, 1.0], [0.5, 0.6]]])
    assert float(total_variation(image)) == pytest.approx((0.5 + 0.4) / 2 + (1.0 + 0.1) / 2)


def test_an_image_is_at_no_distance_from_its_own_amplitude_wherever_it_is_shifted() -> None:
    shifted = IMAGE.roll((1, 2), dims=(-2, -1))
    assert float(amplitude_distance(shifted, own_amplitude())) == pytest.approx(0, abs=1e-10)
    assert float(amplitude_distance(IMAGE**2, own_amplitude())) > 1e-3


def test_an_update_is_what_pytorch_s_sgd_does() -> None:
    network = linear_network()
    before = {name: weight.detach().clone() for name, weight in network.named_parameters()}
    training = LocalTraining(steps=3, learning_rate=0.1, momentum=0.9, weight_decay=0.01)
    sent = update_of(network, functional.cross_entropy, training)(IMAGE, LABEL)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        functional.cross_entropy(network(IMAGE), LABEL).backward()
        optimizer.step()
    for name, weight in network.named_parameters():
        torch.testing.assert_close(sent[name], weight.detach() - before[name])


@pytest.mark.parametrize("training", [LocalTraining(), LocalTraining(steps=3, learning_rate=0.05, momentum=0.9)])
def test_the_image_behind_an_update_of_a_linear_network_is_found(training: LocalTraining) -> None:
    update = update_of(linear_network(), functional.cross_entropy, training)
    search = Search(iterations=200, restarts=2, smoothness=0.0)
    generator = torch.Generator().manual_seed(0)
    found = invert(update, update(IMAGE, LABEL), LABEL, (1, 4, 4), search, generator)
    assert float(psnr(found.images, IMAGE)) > 35
    assert found.distance < 1e-4


@pytest.mark.parametrize("use", ["start", "penalty", "projection"])
def test_the_image_s_own_amplitude_does_not_stand_in_the_way(use: str) -> None:
    update = update_of(linear_network(), functional.cross_entropy, LocalTraining())
    search = Search(iterations=200, restarts=2, smoothness=0.0)
    generator = torch.Generator().manual_seed(0)
    sent = update(IMAGE, LABEL)
    found = invert(update, sent, LABEL, (1, 4, 4), search, generator, own_amplitude(), use)  # type: ignore[arg-type]
    assert float(psnr(found.images, IMAGE)) > 30


def test_smoothness_makes_the_reconstruction_smoother() -> None:
    update = update_of(linear_network(), functional.cross_entropy, LocalTraining())
    sent = update(IMAGE, LABEL)
    rough, smooth = (
        invert(
            update,
            sent,
            LABEL,
            (1, 4, 4),
            Search(iterations=100, restarts=1, smoothness=weight),
            torch.Generator().manual_seed(0),
        )
        for weight in (0.0, 1.0)
    )
    assert float(total_variation(smooth.images)) < 0.5 * float(total_variation(rough.images))
