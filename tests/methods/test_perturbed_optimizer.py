"""PerturbedOptimizer is PerturbedDescent to the last bit, in loops that are not ours."""

import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import OneCycleLR, StepLR

from harmofl import AmplitudeNormalization, PerturbedDescent, PerturbedOptimizer

RADIUS = 0.5
LABELS = torch.tensor([0, 1, 1])


def make_network() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(8, 2))
    return nn.Sequential(AmplitudeNormalization((1, 4, 4)), *layers)


def batches(count: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(3, 1, 4, 4, generator=generator) for _ in range(count)]


def closure_for(network: nn.Module, images: Tensor, scale: Callable[[Tensor], Tensor] = lambda loss: loss) -> Any:
    def closure() -> Tensor:
        loss = F.cross_entropy(network(images), LABELS)
        scale(loss).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    return closure


def state_of(network: nn.Module, losses: list[Tensor]) -> list[Tensor]:
    return [*losses, *network.state_dict().values(), torch.get_rng_state()]


def train_by_descent(make: Callable[[Any], Optimizer], radius: float = RADIUS) -> list[Tensor]:
    network = make_network()
    optimizer, step = make(network.parameters()), PerturbedDescent(radius=radius)
    schedule = StepLR(optimizer, 2, 0.5)
    torch.manual_seed(2)
    losses = []
    for images in batches():
        losses.append(step(network, optimizer, lambda images=images: F.cross_entropy(network(images), LABELS)))
        schedule.step()
    return state_of(network, losses)


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(first, second) for first, second in zip(one, other, strict=True))


@pytest.mark.parametrize("radius", [0.0, RADIUS])
@pytest.mark.parametrize("zeroes", [False, True])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [(SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}), (AdamW, {"lr": 0.1}), (Adam, {"lr": 0.1, "amsgrad": True})],
)
def test_it_is_perturbed_descent_to_the_bit_with_batch_norm_dropout_harmonizer_and_schedule(
    kind: type[Optimizer], settings: dict[str, Any], zeroes: bool, radius: float
) -> None:
    network = make_network()
    optimizer = PerturbedOptimizer(network.parameters(), kind, radius=radius, **settings)
    schedule = StepLR(optimizer, 2, 0.5)
    torch.manual_seed(2)
    losses = []
    for images in batches():
        closure = closure_for(network, images)

        def zeroing(closure: Any = closure) -> Tensor:
            optimizer.zero_grad()
            return closure()  # type: ignore[no-any-return]

        losses.append(optimizer.step(zeroing if zeroes else closure))
        schedule.step()
    by_descent = train_by_descent(lambda weights: kind(weights, **settings), radius)
    assert equal(state_of(network, losses), by_descent)


def test_a_relative_radius_is_that_of_perturbed_descent() -> None:
    network, other = make_network(), make_network()
    optimizer = PerturbedOptimizer(network.parameters(), SGD, radius_relative=0.1, lr=0.1)
    plain, step = SGD(other.parameters(), lr=0.1), PerturbedDescent(radius_relative=0.1)
    torch.manual_seed(2)
    for images in batches(2):
        optimizer.step(closure_for(network, images))
    torch.manual_seed(2)
    for images in batches(2):
        step(other, plain, lambda images=images: F.cross_entropy(other(images), LABELS))
    assert equal(list(network.state_dict().values()), list(other.state_dict().values()))
    with pytest.raises(ValueError, match="give one of the two"):
        PerturbedOptimizer(network.parameters(), SGD, radius=0.1, radius_relative=0.1, lr=0.1)


@pytest.mark.parametrize("enabled", [True, False])
def test_with_a_gradient_scaler_it_makes_the_same_step(enabled: bool) -> None:
    network = make_network()
    optimizer = PerturbedOptimizer(network.parameters(), AdamW, radius=RADIUS, lr=0.1)
    schedule = StepLR(optimizer, 2, 0.5)
    scaler = torch.amp.GradScaler("cpu", enabled=enabled)  # scales by powers of two, which is exact
    torch.manual_seed(2)
    losses = []
    for images in batches():
        losses.append(optimizer.step(closure_for(network, images, scaler.scale), scaler=scaler))
        scaler.update()
        schedule.step()
    assert equal(state_of(network, losses), train_by_descent(lambda weights: AdamW(weights, lr=0.1)))


def test_a_step_that_overflows_is_skipped_by_the_scaler_and_leaves_weights_alone() -> None:
    network = make_network()
    optimizer = PerturbedOptimizer(network.parameters(), AdamW, radius=RADIUS, lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    before = copy.deepcopy(list(network.parameters()))
    closure = closure_for(network, batches()[0], lambda loss: scaler.scale(1000 * loss))
    optimizer.step(closure, scaler=scaler)
    scaler.update()
    assert scaler.get_scale() == 2.0**126
    assert equal(before, list(network.parameters()))


def test_its_state_is_that_of_the_plain_optimizer_and_goes_on_to_the_bit() -> None:
    whole, parts = make_network(), make_network()
    optimizer = PerturbedOptimizer(whole.parameters(), AdamW, radius=RADIUS, lr=0.1)
    torch.manual_seed(2)
    for images in batches():
        optimizer.step(closure_for(whole, images))

    first = PerturbedOptimizer(parts.parameters(), AdamW, radius=RADIUS, lr=0.1)
    torch.manual_seed(2)
    for images in batches()[:2]:
        first.step(closure_for(parts, images))
    plain = AdamW(parts.parameters(), lr=0.3)
    plain.load_state_dict(first.state_dict())
    second = PerturbedOptimizer(parts.parameters(), AdamW, radius=RADIUS, lr=0.2)
    second.load_state_dict(plain.state_dict())
    assert second.param_groups is second.base.param_groups
    for images in batches()[2:]:
        second.step(closure_for(parts, images))
    assert equal(list(whole.parameters()), list(parts.parameters()))
    assert second.param_groups[0]["lr"] == 0.1


def test_groups_are_those_of_the_optimizer_inside() -> None:
    first, second = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(2.0))
    optimizer = PerturbedOptimizer([first], SGD, radius=0.5, lr=0.1)
    optimizer.add_param_group({"params": [second], "lr": 0.2})

    def closure() -> None:  # ½(3a² + 2b²): its gradient at (1, 2) is (3, 4), of norm 5
        ((3 * first.square() + 2 * second.square()) / 2).backward()  # type: ignore[no-untyped-call]

    optimizer.step(closure)
    # δ = 0.5 · (3, 4)/5 = (0.3, 0.4); the gradient at (1.3, 2.4) is (3.9, 4.8).
    assert [first.item(), second.item()] == pytest.approx([1 - 0.39, 2 - 2 * 0.48])
    assert first.grad is None
    schedule = OneCycleLR(optimizer, max_lr=1.0, total_steps=10)
    assert optimizer.base.param_groups[1]["lr"] == schedule.get_last_lr()[1] == pytest.approx(1 / 25)


def test_a_copy_steps_on_its_own() -> None:
    network = make_network()
    optimizer = PerturbedOptimizer(network.parameters(), AdamW, radius=RADIUS, lr=0.1)
    twin, twin_optimizer = copy.deepcopy((network, optimizer))
    for images in batches(2):
        for each, own in ((network, optimizer), (twin, twin_optimizer)):
            torch.manual_seed(2)
            own.step(closure_for(each, images))
    assert equal(list(network.parameters()), list(twin.parameters()))


def test_clipping_and_micro_batches_belong_where_the_recipes_put_them() -> None:
    results = []
    for micro in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        optimizer = PerturbedOptimizer(model.parameters(), SGD, radius=0.1, lr=1.0)
        before = nn.utils.parameters_to_vector(model.parameters()).detach()

        def closure(model: nn.Module = model, micro: bool = micro) -> None:
            inputs = torch.arange(8.0).reshape(4, 2)
            for part in inputs.split(2) if micro else [inputs]:
                (model(part).square().sum() / 4).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)

        optimizer.step(closure)
        after = nn.utils.parameters_to_vector(model.parameters()).detach()
        assert (after - before).norm().item() == pytest.approx(0.5, rel=1e-5)
        results.append(after)
    torch.testing.assert_close(*results)


def test_what_would_be_a_wrong_step_is_an_error_and_changes_nothing() -> None:
    network = make_network()
    optimizer = PerturbedOptimizer(network.parameters(), AdamW, radius=RADIUS, lr=0.1)
    images = batches()[0]
    closure = closure_for(network, images)
    before = copy.deepcopy(list(network.parameters()))

    def changing() -> None:
        closure()
        with torch.no_grad():
            network[1].weight.add_(1)

    with pytest.raises(TypeError, match="needs a closure"):
        optimizer.step()
    scaler = torch.amp.GradScaler("cpu")
    closure_for(network, images, scaler.scale)()
    with pytest.raises(TypeError, match=r"optimizer\.step\(closure, scaler=scaler\)"):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"gradients from before.*inside the closure"):
        optimizer.step(closure)
    optimizer.zero_grad(set_to_none=False)
    with pytest.raises(RuntimeError, match=r"must call backward\(\)"):
        optimizer.step(lambda: network(images).sum())
    with pytest.raises(RuntimeError, match=r"must not call step\(\)"):
        optimizer.step(lambda: optimizer.step(closure))
    assert equal(before, list(network.parameters()))
    with pytest.raises(RuntimeError, match="must not change weights"):
        optimizer.step(changing)


@pytest.mark.parametrize("fails", [TypeError, RuntimeError])
def test_weights_are_put_back_if_the_second_run_fails(fails: type[Exception]) -> None:
    model, calls = nn.Linear(2, 1), []
    optimizer = PerturbedOptimizer(model.parameters(), SGD, radius=0.5, lr=0.1)
    before = copy.deepcopy(list(model.parameters()))

    def closure() -> None:
        calls.append(model.weight.detach().clone())
        if len(calls) == 2:
            raise fails("out of memory")
        model(torch.ones(1, 2)).sum().backward()

    with pytest.raises(fails, match="out of memory"):
        optimizer.step(closure)
    assert not torch.equal(calls[0], calls[1])
    assert equal(before, list(model.parameters()))


def test_optimizers_and_gradients_that_cannot_be_perturbed_are_refused() -> None:
    weights = [nn.Parameter(torch.ones(2))]
    for kind in (LBFGS, PerturbedOptimizer):
        with pytest.raises(TypeError, match=f"must not be {kind.__name__}"):
            PerturbedOptimizer(weights, kind)
    with pytest.raises(TypeError, match="must be a class"):
        PerturbedOptimizer(weights, SGD(weights, lr=0.1))  # type: ignore[arg-type]
    for radius in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="radius"):
            PerturbedOptimizer(weights, SGD, radius=radius)
    table = nn.Embedding(5, 3, sparse=True)
    optimizer = PerturbedOptimizer(table.parameters(), SGD, lr=0.1)
    with pytest.raises(TypeError, match="must be dense"):
        optimizer.step(lambda: table(torch.tensor([1, 2])).square().sum().backward())


@pytest.mark.parametrize("around", [False, True])
def test_autocast_works_inside_the_closure_or_around_the_step(around: bool) -> None:
    network, other = make_network(), make_network()
    lower = torch.autocast("cpu", torch.bfloat16)
    optimizer = PerturbedOptimizer(network.parameters(), SGD, radius=RADIUS, lr=0.1)
    torch.manual_seed(2)
    for images in batches(2):
        with lower if around else nullcontext():
            optimizer.step(closure_for(network, images) if around else lower(closure_for(network, images)))
    plain, step = SGD(other.parameters(), lr=0.1), PerturbedDescent(radius=RADIUS)
    torch.manual_seed(2)
    for images in batches(2):
        step(other, plain, lower(lambda images=images: F.cross_entropy(other(images), LABELS)))
    assert equal(list(network.state_dict().values()), list(other.state_dict().values()))


class Loader:
    """Gives batches and, unlike torch's loader, draws no random number for it."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter(batches())

    def __len__(self) -> int:
        return len(batches())


@pytest.mark.filterwarnings("ignore")  # Lightning's own, about the machine
def test_lightnings_automatic_optimization_makes_the_same_steps() -> None:
    lightning = pytest.importorskip("pytorch_lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.network = make_network()

        def training_step(self, batch: Tensor) -> Tensor:
            return F.cross_entropy(self.network(batch), LABELS)

        def configure_optimizers(self) -> Any:
            optimizer = PerturbedOptimizer(self.parameters(), AdamW, radius=RADIUS, lr=0.1)
            schedule = {"scheduler": StepLR(optimizer, 2, 0.5), "interval": "step"}
            return {"optimizer": optimizer, "lr_scheduler": schedule}

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    options = {"accelerator": "cpu", "max_epochs": 1, "enable_model_summary": False} | quiet
    module = Module()
    torch.manual_seed(2)
    lightning.Trainer(**options).fit(module, Loader())
    by_descent = train_by_descent(lambda weights: AdamW(weights, lr=0.1))[4:-1]
    assert equal(list(module.network.state_dict().values()), by_descent)
    with pytest.raises(RuntimeError, match="inside the closure"):
        lightning.Trainer(accumulate_grad_batches=2, **options).fit(Module(), Loader())
