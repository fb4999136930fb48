"""Which entries of the network's state travel between the sites and the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from harmofl.methods.pieces import LocalRound, Piece
from harmofl.states import snapshot

Sharing = Callable[[nn.Module], list[str]]
"""From a network to the names of the state entries that travel; the rest stays at each site."""


def everything(network: nn.Module) -> list[str]:
    """Every weight and buffer travels."""
    return list(network.state_dict())


def all_but_batch_norm(network: nn.Module) -> list[str]:
    """Batch norm layers, found by their type, stay at the site with their weights and statistics."""
    own = {
        f"{path}.{name}" if path else name
        for path, layer in network.named_modules()
        if isinstance(layer, _BatchNorm)
        for name in layer.state_dict()
    }
    return [name for name in network.state_dict() if name not in own]


def all_but_statistics(network: nn.Module) -> list[str]:
    """Batch norm layers keep their statistics at the site; their weights travel (SiloBN)."""
    own = {
        f"{path}.{name}" if path else name
        for path, layer in network.named_modules()
        if isinstance(layer, _BatchNorm)
        for name, _ in layer.named_buffers(recurse=False)
    }
    return [name for name in network.state_dict() if name not in own]


def all_but_last_layer(network: nn.Module) -> list[str]:
    """The last layer with weights, which makes logits of features, stays at the site (FedPer)."""
    *_, last = (path for path, layer in network.named_modules() if list(layer.parameters(recurse=False)))
    return [name for name in network.state_dict() if not name.startswith(f"{last}.")]


def running_statistics(network: nn.Module) -> dict[str, str]:
    """From each running variance of a batch norm layer to its running mean."""
    prefixes = [
        f"{path}." if path else ""
        for path, layer in network.named_modules()
        if isinstance(layer, _BatchNorm) and layer.track_running_stats
    ]
    return {f"{prefix}running_var": f"{prefix}running_mean" for prefix in prefixes}


def nothing(network: nn.Module) -> list[str]:
    """Every site trains for itself."""
    return []


@dataclass(frozen=True)
class OwnEntries(Piece):
    """Keeps at the site whatever does not travel."""

    shares: Sharing

    def finish(self, local: LocalRound) -> None:
        """Keep the trained entries for the site's next round."""
        network = local.model.network
        shared = set(self.shares(network))
        local.memory.kept = snapshot(network, [name for name in network.state_dict() if name not in shared])
