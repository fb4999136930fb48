"""Precision and compilation of training passes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

import harmofl
from harmofl import NetworkEntry, PerturbedDescent, UsageError
from harmofl.federation import numerics, training
from harmofl.federation.local_loss import LocalLoss
from harmofl.federation.numerics import Numerics, check_compiler
from harmofl.models.network import Network
from harmofl.settings import TrainingSettings, resolve
from harmofl.states import snapshot
from runs import differences, records, stop_after_round, train, weights

CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, in its compiler


def tiny_body(channels: int = 3, classes: int = 2, features: int = 4) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, features, 3, stride=2),
        nn.BatchNorm2d(features),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(features, classes),
    )


def tiny_network() -> Network:
    torch.manual_seed(0)
    return Network(tiny_body(), "4").train()


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(6, 3, 16, 16, generator=generator), torch.tensor([0, 1, 0, 1, 1, 0])


def loss_of(network: Network, **values: Any) -> LocalLoss:
    return LocalLoss(network, Numerics(network, TrainingSettings(**values), CPU), nn.CrossEntropyLoss())


def test_bfloat16_computes_convolutions_in_it_and_everything_else_in_float32() -> None:
    network, seen = tiny_network(), {}
    for layer in (network.body[0], network.body[6]):
        layer.register_forward_hook(lambda layer, _inputs, output: seen.update({type(layer).__name__: output.dtype}))
    logits: list[torch.dtype] = []

    def task_loss(outputs: Tensor, targets: Tensor) -> Tensor:
        logits.append(outputs.dtype)
        assert not torch.is_autocast_enabled("cpu")
        return nn.functional.cross_entropy(outputs, targets)

    loss = LocalLoss(network, Numerics(network, TrainingSettings(precision="bfloat16"), CPU), task_loss).of(*batch())()
    loss.backward()
    assert seen == {"Conv2d": torch.bfloat16, "Linear": torch.bfloat16}
    assert logits == [torch.float32]
    assert loss.dtype == torch.float32
    assert {weight.dtype for weight in network.parameters()} == {torch.float32}
    assert {weight.grad.dtype for weight in network.parameters() if weight.grad is not None} == {torch.float32}


def test_both_passes_of_a_perturbed_step_have_the_same_precision() -> None:
    network, seen = tiny_network(), []
    network.body[0].register_forward_hook(lambda _layer, _inputs, output: seen.append(output.dtype))
    step, optimizer = PerturbedDescent(radius=0.1), SGD(network.parameters(), lr=0.1)
    loss = loss_of(network, precision="bfloat16")
    for _ in range(2):
        step(network, optimizer, loss.of(*batch()))
    assert seen == 4 * [torch.bfloat16]


def test_the_second_pass_sees_the_perturbed_weights_in_bfloat16_too() -> None:
    network = tiny_network()
    loss = loss_of(network, precision="bfloat16").of(*batch())
    torch.manual_seed(2)
    before = loss().item()
    with torch.no_grad():
        network.body[6].weight.add_(0.5)
    torch.manual_seed(2)
    assert loss().item() != before  # no copy of the old weights is left in a cache


def test_float32_is_what_it_was_to_the_bit() -> None:
    network, plain = tiny_network(), tiny_network()
    torch.manual_seed(3)
    ours = loss_of(network).of(*batch())()
    torch.manual_seed(3)
    images, labels = batch()
    by_hand = nn.functional.cross_entropy(plain(images), labels)
    assert torch.equal(ours, by_hand)


def test_a_run_in_bfloat16_is_near_one_in_float32_and_can_be_repeated(tmp_path: Path) -> None:
    precise = train(tmp_path / "float32", "harmofl")
    mixed = train(tmp_path / "bfloat16", "harmofl", training__precision="bfloat16")
    train(tmp_path / "again", "harmofl", training__precision="bfloat16")
    assert differences(tmp_path / "bfloat16", tmp_path / "again") == []
    assert mixed["test"]["average"] == pytest.approx(precise["test"]["average"], abs=0.3)
    first, second = weights(tmp_path / "float32"), weights(tmp_path / "bfloat16")
    assert {tensor.dtype for tensor in second.values()} == {tensor.dtype for tensor in first.values()}
    assert any(not torch.equal(first[name], second[name]) for name in first)
    losses = [
        [line["loss"] for line in records(tmp_path / name) if line["phase"] == "train"]
        for name in ("float32", "bfloat16")
    ]
    assert losses[1] == pytest.approx(losses[0], rel=0.1)


@pytest.fixture
def tiny_entry() -> Iterator[str]:
    harmofl.register(NetworkEntry("tiny-compiled", ("classification",), tiny_body, representation_layer="4"))
    yield "tiny-compiled"
    torch._dynamo.reset()


@pytest.mark.long
def test_a_compiled_run_is_resumed_to_the_same_bits(tiny_entry: str, tmp_path: Path) -> None:
    more = {"model__network": tiny_entry, "training__compile": True}
    train(tmp_path / "whole", "harmofl", rounds=3, **more)
    torch._dynamo.reset()  # as a new process would start
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "resumed", "harmofl", rounds=3, watch=stop_after_round(2), **more)
    torch._dynamo.reset()
    train(tmp_path / "resumed", "harmofl", rounds=3, resume=True, **more)
    assert differences(tmp_path / "whole", tmp_path / "resumed") == []
    assert not any("_orig_mod" in name for name in weights(tmp_path / "whole"))


@pytest.mark.slow
def test_a_compiled_step_is_the_same_but_for_rounding() -> None:
    found = []
    for compiled in (False, True):
        network = tiny_network()
        names = list(network.state_dict())
        loss, step = loss_of(network, compile=compiled), PerturbedDescent(radius=0.1)
        optimizer = SGD(network.parameters(), lr=0.1)
        network.body[5].eval()  # dropout draws other numbers in compiled code
        losses = [step(network, optimizer, loss.of(*batch())).item() for _ in range(3)]
        assert list(snapshot(network)) == names
        assert network.body[1].num_batches_tracked.item() == 3  # the second pass leaves no trace
        found.append((losses, snapshot(network)))
    (plain, weights_of_plain), (compiled_losses, weights_of_compiled) = found
    assert compiled_losses == pytest.approx(plain, rel=1e-4)
    for name, tensor in weights_of_plain.items():
        assert torch.allclose(weights_of_compiled[name], tensor, atol=1e-4), name


def test_without_a_compiler_the_setting_is_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numerics, "missing_compiler", lambda device: "there is no C++ compiler here")
    check_compiler(TrainingSettings(), CPU)
    with pytest.raises(UsageError, match=r"training.compile = true: there is no C\+\+ compiler here; install one"):
        train(tmp_path / "run", training__compile=True)
    assert not (tmp_path / "run").exists()


def test_whoever_looks_for_a_compiler_finds_that_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpp_builder
    from torch._inductor.exc import InvalidCxxCompiler

    def missing() -> str:
        raise InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", missing)
    assert "no C++ compiler" in numerics.missing_compiler(CPU)


def test_a_compiler_that_fails_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.exc import BackendCompilerFailed

    def broken(*_: Any, **__: Any) -> Any:
        def run(inputs: Tensor) -> Tensor:
            raise BackendCompilerFailed(broken, RuntimeError("Python.h: no such file"), None)

        return run

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(UsageError, match=r"training.compile = true: the network cannot be compiled here: .*"):
        loss_of(tiny_network(), compile=True).of(*batch())()


def test_the_defaults_are_exact_and_uncompiled() -> None:
    settings = resolve("histology", "harmofl", "paper")[0].training
    assert (settings.precision, settings.compile) == ("float32", False)
    assert training.check_compiler is check_compiler
