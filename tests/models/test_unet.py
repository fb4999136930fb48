"""The U-Net's own blocks give what MONAI's give."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from monai.networks.nets.basic_unet import UpCat
from torch import nn

from harmofl.models.unet import UNet, Up


@pytest.mark.parametrize("size", [(8, 8), (7, 8), (7, 5), (6, 7, 4)], ids=str)
def test_the_up_blocks_give_what_monais_give_to_the_bit_and_pad_only_odd_sizes(
    size: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks: dict[str, Any] = {"act": "relu", "norm": "batch", "bias": False, "dropout": None}
    ours, theirs = (block(len(size), 8, 4, 4, **blocks) for block in (Up, UpCat))
    theirs.load_state_dict(ours.state_dict())
    generator = torch.Generator().manual_seed(0)
    passed = torch.rand(2, 4, *size, generator=generator)
    features = torch.rand(2, 8, *(each // 2 for each in size), generator=generator)
    expected = theirs(features, passed)
    is_odd = any(each % 2 for each in size)
    padded: list[object] = []
    pad = F.pad
    monkeypatch.setattr(F, "pad", lambda *arguments: (padded.append(arguments), pad(*arguments))[1])
    assert torch.equal(ours(features, passed), expected)
    assert bool(padded) is is_odd


def test_no_activation_takes_new_memory() -> None:
    layers = [layer for layer in UNet(2, 3, 2, 4).modules() if isinstance(layer, nn.ReLU)]
    assert len(layers) == 18
    assert all(layer.inplace for layer in layers)
