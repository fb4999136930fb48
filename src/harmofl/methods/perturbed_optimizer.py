"""Weight perturbation as a torch optimizer, for training loops that are not ours."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from harmofl.methods.perturbation import Buffers, climb, take_perturbed_gradient, weights_of
from harmofl.methods.radius import Radius

Result = TypeVar("Result")


class PerturbedOptimizer(Optimizer):
    """Any torch optimizer, stepping with the gradient found at θ + α·∇ℓ/‖∇ℓ‖: `PerturbedDescent` as an optimizer.

    `step` takes a closure that computes the loss and calls `backward()`, as torch's optimizers do and as Lightning's
    automatic optimization gives it. The closure runs twice. The second run sees the same buffers and random state as
    the first and leaves no trace but its gradient; weights are put back exactly before the step. Both runs start
    without gradients, and the step leaves none, so `zero_grad()` is not needed.

    Groups, state and learning-rate schedules are those of the optimizer inside, `base`; its `state_dict` is that of
    the plain optimizer, so checkpoints are exchangeable.

    Args:
        params: Weights or groups of weights, as every torch optimizer takes them.
        optimizer: The class that makes the step, such as `torch.optim.AdamW`; not LBFGS.
        radius: The paper's α, how far to climb; 0.05 if neither length is given. At 0 the step is the plain one, with
            a single run.
        radius_relative: How far to climb as a part of ‖θ‖, the norm of the weights that get a gradient.
        settings: Of that class, such as `lr`.

    Example:
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> _ = torch.nn.init.constant_(model.weight, 1.0)
        >>> optimizer = PerturbedOptimizer(model.parameters(), torch.optim.SGD, radius=0.5, lr=0.1)
        >>> def closure():
        ...     loss = model(torch.ones(1, 1)).square().sum()  # w², at w = 1
        ...     loss.backward()
        ...     return loss.detach()
        >>> optimizer.step(closure)
        tensor(1.)
        >>> model.weight.item()  # 1 − 0.1 · (gradient 3 at w = 1.5)
        0.699999988079071
    """

    def __init__(
        self,
        params: ParamsT,
        optimizer: type[Optimizer],
        radius: float | None = None,
        radius_relative: float | None = None,
        **settings: Any,
    ) -> None:
        _check_class(optimizer)
        lengths = {"radius": radius, "radius_relative": radius_relative}
        self.radius = Radius(**{name: length for name, length in lengths.items() if length is not None})
        self.base = optimizer(params, **settings)
        self._running = False
        super().__init__(self.base.param_groups, self.base.defaults)
        self._share()

    def _share(self) -> None:
        """Have groups and state in common with the optimizer inside."""
        self.param_groups, self.state, self.defaults = self.base.param_groups, self.base.state, self.base.defaults

    def step(self, closure: Callable[[], Any] | None = None, *, scaler: torch.amp.GradScaler | None = None) -> Any:
        """Make one step.

        Args:
            closure: Computes the loss of the whole batch, calls `backward()` and returns the loss.
            scaler: The one that the closure scales its loss with, if it does: it unscales the gradient and skips a
                step that overflowed. `scaler.update()` remains to be called.

        Returns:
            What the closure returned at the weights as they were.
        """
        if closure is None:
            raise TypeError(
                "step() needs a closure that computes the loss and calls backward(), as it runs twice; with a "
                "GradScaler: optimizer.step(closure, scaler=scaler), not scaler.step(optimizer)"
            )
        if self._running:
            raise RuntimeError("the closure must not call step()")
        self._check_gradients_before()
        self._running = True
        try:
            result = self._take_gradient(closure)
        finally:
            self._running = False
        if scaler is None:
            self.base.step()
        else:
            scaler.step(self.base)
        self.zero_grad()
        return result

    def _take_gradient(self, closure: Callable[[], Result]) -> Result:
        if self.radius.is_zero:
            return self._run(closure)
        buffers = Buffers()
        with buffers.of_called_modules():
            return take_perturbed_gradient(weights_of(self), self._ascend, lambda: self._run(closure), buffers)

    def _ascend(self, weights: list[Tensor]) -> None:
        climb(weights, self.radius)

    def _run(self, closure: Callable[[], Result]) -> Result:
        """Replace the gradients by those of the closure's loss."""
        weights = weights_of(self)
        versions = [weight._version for weight in weights]
        self.zero_grad()
        with torch.enable_grad():
            result = closure()
        torch.clear_autocast_cache()  # its copies are of weights that change now
        if versions != [weight._version for weight in weights]:
            raise RuntimeError("the closure must not change weights")
        if all(weight.grad is None for weight in weights):
            raise RuntimeError("the closure left no gradient: it must call backward() on the loss of these weights")
        return result

    def _check_gradients_before(self) -> None:
        """Raise an error for gradients that the caller has accumulated: the second run could not repeat them."""
        before = [weight.grad for weight in weights_of(self) if weight.grad is not None]
        if any(gradient.is_sparse or bool(gradient.count_nonzero()) for gradient in before):
            raise RuntimeError(
                "there are gradients from before step(closure), which both of its runs would leave out: accumulate "
                "micro-batches inside the closure, or drop the gradients with zero_grad()"
            )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of weights, as to the optimizer inside."""
        if any(param_group is known for known in self.base.param_groups):  # while this one is being made
            self.param_groups.append(param_group)
        else:
            self.base.add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up a state of this optimizer, or of a plain one of the same class."""
        self.base.load_state_dict(state_dict)
        self._share()

    def __getstate__(self) -> dict[str, Any]:
        return {"radius": self.radius, "base": self.base, "_running": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._share()
        super().__setstate__({})

    def __repr__(self) -> str:
        return f"PerturbedOptimizer({self.radius}, base={self.base!r})"


def _check_class(optimizer: object) -> None:
    if not (isinstance(optimizer, type) and issubclass(optimizer, Optimizer)):
        raise TypeError(f"optimizer must be a class, such as torch.optim.AdamW, not {optimizer!r}")
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if issubclass(optimizer, PerturbedOptimizer) or (closure and closure.default is inspect.Parameter.empty):
        raise TypeError(f"optimizer must not be {optimizer.__name__}, as it computes gradients itself, by a closure")
