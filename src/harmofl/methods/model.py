"""A harmonizer and a network: the model that a federation trains."""

from __future__ import annotations

from torch import Tensor, nn

from harmofl.methods.layers import Harmonizer
from harmofl.models.network import Network


class Model(nn.Module):
    """A harmonizer and a network: raw images in, logits out."""

    def __init__(self, harmonizer: Harmonizer, network: Network) -> None:
        super().__init__()
        self.harmonizer = harmonizer
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Harmonize images (N, C, H, W) in [0, 1] and return logits."""
        logits: Tensor = self.network(self.harmonizer(images))
        return logits
