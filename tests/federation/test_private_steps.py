"""DP-SGD: one step by hand, and a whole run."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from harmofl import registry
from harmofl.errors import UsageError
from harmofl.federation.accounting import epsilon
from harmofl.federation.private_steps import PrivateDescent, single_gradients
from harmofl.methods.steps import descend
from harmofl.settings import resolve
from runs import SITES, differences, records, stop_after_round, train


class Fixed:
    """Noise of ones, to see where it goes."""

    def normal(self, like: Tensor, deviation: float) -> Tensor:
        return torch.full(like.shape, deviation, dtype=torch.float64)

    def seed(self) -> int:
        return 0


def line() -> nn.Linear:
    layer = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(layer.weight)
    return layer


def test_a_step_by_hand() -> None:
    """The gradients of w·x at x = (3, 4) and (0, 0.5) are the x: clipped to 1 they are (0.6, 0.8) and (0, 0.5)."""
    layer, images = line(), torch.tensor([[3.0, 4.0], [0.0, 0.5]])
    optimizer = SGD(layer.parameters(), lr=1.0)
    step = PrivateDescent(clip=1.0, deviation=0.1, batch_size=4.0, noise=Fixed())
    with single_gradients(layer):
        loss = step(layer, optimizer, lambda: layer(images).mean())
    assert loss == 0
    expected = -torch.tensor([[0.6 + 0.1, 1.3 + 0.1]]) / 4  # divided by the batch that was to be expected
    torch.testing.assert_close(layer.weight.detach(), expected)


def test_a_step_in_which_nobody_was_drawn_is_noise_alone() -> None:
    layer = line()
    step = PrivateDescent(clip=1.0, deviation=0.1, batch_size=4.0, noise=Fixed())
    with single_gradients(layer):
        step(layer, SGD(layer.parameters(), lr=1.0), lambda: torch.zeros((), requires_grad=True))
    torch.testing.assert_close(layer.weight.detach(), torch.full((1, 2), -0.025))


@pytest.mark.parametrize(("task", "norm"), [("histology", "group"), ("histology", "instance"), ("nuclei", "group")])
def test_in_the_limit_it_is_plain_descent_on_our_networks(task: str, norm: str) -> None:
    settings, method = resolve(task, "fedavg", "smoke", overrides={"model.norm": norm})
    size = settings.data.size
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(4, 3, size, size, generator=generator)
    shape = (4,) if task == "histology" else (4, size, size)
    targets = torch.randint(0, 2, shape, generator=generator)
    moved = []
    for private in (False, True):
        network = registry.tasks.find(task).build_model(settings, method).network.train()
        network.to(memory_format=torch.channels_last)  # as sites have it
        start = [weight.detach().clone() for weight in network.parameters()]
        optimizer = SGD(network.parameters(), lr=1.0)

        def compute_loss(network: nn.Module = network) -> Tensor:
            return F.cross_entropy(network(images.to(memory_format=torch.channels_last)), targets)

        if private:
            with single_gradients(network):
                PrivateDescent(1e9, 0.0, 4.0, Fixed())(network, optimizer, compute_loss)
        else:
            descend(network, optimizer, compute_loss)
        moved.append(torch.cat([(w - s).flatten() for w, s in zip(network.parameters(), start, strict=True)]).detach())
    assert float((moved[0] - moved[1]).norm()) < 1e-4 * float(moved[0].norm())
    assert not any(hasattr(layer, "activations") for layer in network.modules())


def test_gradients_that_do_not_sum_to_the_batchs_are_an_error() -> None:
    layer, images = line(), torch.tensor([[3.0, 4.0], [0.0, 0.5]])

    def compute_loss() -> Tensor:
        return layer(images).mean() + layer.weight.sum()  # the second term is no image's

    step = PrivateDescent(clip=1.0, deviation=0.1, batch_size=4.0, noise=Fixed())
    with single_gradients(layer), pytest.raises(RuntimeError, match="do not sum to that of their batch"):
        step(layer, SGD(layer.parameters(), lr=1.0), compute_loss)


@pytest.mark.parametrize(
    ("task", "method", "more", "words"),
    [
        ("histology", "fedavg", {"model__norm": "batch"}, "model.norm = 'batch' must be 'group' or 'instance'"),
        ("histology", "momentum-sam", {}, "Momentum-SAM has steps of its own"),
        ("histology", "fedprox", {}, "FedProx adds terms to the loss"),
        ("histology", "harmofl", {}, "HarmoFL has steps of its own.*method.radius = 0 makes them plain"),
        ("histology", "harmofl", {"method__schedule": "every-round"}, "choose method.schedule = 'before-training'"),
        ("histology", "sitealign", {}, "SiteAlign changes each image by a mean over all images"),
        ("histology", "scaffold", {}, "SCAFFOLD also sends step"),
        (
            "histology",
            "centralized",
            {"training__pooled_batch": "all-sites"},
            "pooled_batch = 'all-sites' must be 'site'",
        ),
        ("nuclei", "fedavg", {}, "training.loss = 'dice' looks at a batch as a whole"),
        ("histology", "fedavg", {"training__precision": "bfloat16"}, "need training.precision = 'float32'"),
    ],
)
def test_what_does_not_compose_is_refused_before_training(
    tmp_path: Path, task: str, method: str, more: dict[str, object], words: str
) -> None:
    chosen = {"model__norm": "group", "privacy__image_level": True} | more
    with pytest.raises(UsageError, match=words):
        train(tmp_path / "run", method, task, **chosen)
    assert not (tmp_path / "run").exists()


def test_a_private_run_tells_every_sites_epsilon_and_is_the_same_in_workers_and_resumed(tmp_path: Path) -> None:
    more = {"privacy__image_level": True, "privacy__image_noise": 2.0, "model__norm": "group", "rounds": 2}
    summary = train(tmp_path / "whole", **more)
    trained = [each for each in records(tmp_path / "whole") if each["phase"] == "train" and each["site"] == SITES[0]]
    images, steps = trained[0]["num_examples"], trained[0]["num_steps"]
    assert steps == math.ceil(images / 8)
    expected = [epsilon(2.0, number * steps, 1e-5, sampled=8 / images) for number in (1, 2)]
    assert [each["epsilon"] for each in trained] == expected
    assert summary["privacy"]["image"]["epsilon"][SITES[0]] == expected[-1]
    assert json.loads((tmp_path / "whole" / "summary.json").read_text())["privacy"] == summary["privacy"]

    train(tmp_path / "workers", federation__workers=2, **more)
    assert differences(tmp_path / "whole", tmp_path / "workers") == []
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "resumed", watch=stop_after_round(1), **more)
    train(tmp_path / "resumed", resume=True, **more)
    assert differences(tmp_path / "whole", tmp_path / "resumed") == []
