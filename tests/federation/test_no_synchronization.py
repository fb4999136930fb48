"""No step asks for a number while an epoch runs: on a GPU, each would wait until everything before it is done."""

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from harmofl import registry
from harmofl.federation.client import Client
from harmofl.federation.messages import Request
from harmofl.methods.method import Method
from harmofl.methods.steps import descend
from harmofl.runs.store import Store
from harmofl.settings import resolve
from harmofl.states import snapshot

NUMBERS = ("aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero")


class CountNumbers(TorchDispatchMode):
    """Counts how often a number leaves a tensor; Adam's counters of steps may be read, as they are never on a GPU."""

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__()
        self.optimizer = optimizer
        self.asked: list[str] = []

    def _counts_steps(self, tensor: Tensor) -> bool:
        return any(state.get("step") is tensor for state in self.optimizer.state.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name().partition(".")[0] in NUMBERS and not self._counts_steps(args[0]):
            self.asked.append(func.name())
        return func(*args, **(kwargs or {}))


def asked_in_each_step(
    monkeypatch: pytest.MonkeyPatch, folder: Path, method: str | Method, **more: Any
) -> list[list[str]]:
    """What each step of two rounds at a site asked for."""
    overrides = {"data.images": 40, "training.batch_size": 4} | more
    settings, chosen = resolve("histology", method, "smoke", overrides=overrides)
    task = registry.tasks.find("histology")
    model = task.build_model(settings, chosen)
    site = task.load_site("hospital-0", settings.data)
    client = Client(site, task, chosen, settings, model, Store(folder / "store"), folder / "model")
    found: list[list[str]] = []
    start_pieces = Client._start_pieces

    def watched(self: Client, views: Any) -> Any:
        step, loss = start_pieces(self, views)

        def counted(network: Any, optimizer: Any, compute_loss: Any) -> Any:
            with CountNumbers(optimizer) as count:
                result = step(network, optimizer, compute_loss)
            found.append(count.asked)
            return result

        return counted, loss

    monkeypatch.setattr(Client, "_start_pieces", watched)
    measured = client.answer(Request("run", "measure", 0))
    combined = {name: tensor for name, tensor in measured.sent.items() if name.startswith("harmonizer.")}
    state = snapshot(model.network)
    for number in (1, 2):
        reply = client.answer(Request("run", "train", number, state=state, combined=combined))
        assert not reply.error
        state = {**state, **reply.state}
    return found


METHODS = {
    "descend": ("fedavg", {}),
    "perturbed": ("harmofl", {}),
    "perturbed, relative": ("harmofl", {"method.radius_relative": 0.01}),
    "a direction for two steps": ("harmofl", {"method.reuse": 2, "method.ascent_fraction": 0.5}),
    "momentum": ("momentum-sam", {}),
    "FedLESAM": ("fedlesam", {"method.radius_relative": 0.01}),
    "ASAM": ("fedasam", {}),
    "SCAFFOLD": ("scaffold", {}),
    "FedProx": ("fedprox", {}),
    "FedDyn": ("feddyn", {}),
    "MOON": ("moon", {}),
    "FixBN": ("fixbn", {}),
    "Ditto": ("ditto", {}),
    "gradient clipping": ("fedavg", {"training.gradient_clip": 0.1}),
    "Adam": ("harmofl", {"training.optimizer": "adam", "training.gradient_clip": 0.1}),
    "bfloat16": ("harmofl", {"training.precision": "bfloat16"}),
}


@pytest.mark.parametrize(("method", "more"), METHODS.values(), ids=METHODS)
def test_no_step_asks_for_a_number(
    method: str, more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = asked_in_each_step(monkeypatch, tmp_path, method, **more)
    assert len(found) > 8
    assert not any(found)


def test_a_step_that_asks_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asking(network: Any, optimizer: Any, compute_loss: Any) -> Tensor:
        loss = descend(network, optimizer, compute_loss)
        assert float(loss) > 0
        return loss

    assert all(asked_in_each_step(monkeypatch, tmp_path, Method("Asking", step=asking)))
