"""What a server reads that crafts weights, against pieces of images that are known."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from harmofl.analysis.crafted_weights import (
    CraftedStudy,
    Public,
    Sizes,
    count_read,
    decay_of,
    find_trap,
    nearest,
    read_pieces,
    set_trap,
)
from harmofl.cli.entry import app
from harmofl.errors import UsageError
from harmofl.models.unet import UNet
from harmofl.reporting.crafted_table import crafted_table
from harmofl.settings import resolve
from harmofl.states import snapshot


class Tiny(nn.Module):
    """A convolution, its norm layer, and a last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.out = nn.Linear(6, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.out(torch.relu(self.norm(self.conv(images))).amax(dim=(2, 3)))
        return result


def update(network: nn.Module, images: torch.Tensor, labels: torch.Tensor, rate: float) -> None:
    """One step of SGD, as a site makes it."""
    optimizer = torch.optim.SGD(network.parameters(), lr=rate)
    nn.functional.cross_entropy(network.train()(images), labels).backward()
    optimizer.step()


def test_a_trapped_channel_shows_the_one_piece_that_passed() -> None:
    """Where the server's own images are distributed as the site's are, here the same, the piece is exact."""
    torch.manual_seed(0)
    network, images = Tiny(), torch.rand(4, 1, 12, 12)
    trap = find_trap(network)
    assert (trap.convolution, trap.norm, trap.last) == ("conv", "norm", "out")
    pieces, state = trap.pieces(images), snapshot(network)
    assert pieces.shape == (4 * 6 * 6, 9)
    public = Public.of(pieces, state["conv.weight"].flatten(1))
    sent = set_trap(state, trap, public, places=len(pieces), whisper=1.0)
    passes = (public.responses > public.thresholds(len(pieces))).sum(dim=0)
    assert passes.tolist() == [0] * 6  # the highest is at the threshold: half a place less lets one through
    sent["norm.bias"] = -0.02 * (public.responses[-1] + public.responses[-2]) / 2
    network.load_state_dict(sent)
    update(network, images, torch.tensor([0, 1, 0, 1]), rate=0.1)
    read = read_pieces(sent, snapshot(network), trap, public, steps=1, decay=0.0)
    strongest = pieces[(pieces @ state["conv.weight"].flatten(1).T).argmax(dim=0)]
    assert (nearest(read, strongest) > 50).sum() >= 5  # two places may be all but equal in a channel
    others = torch.rand(200, 9)
    assert count_read(read, pieces, others)["read"] >= 5
    assert count_read(read, others, pieces)["read"] == 0


def test_a_channel_that_nothing_passed_shows_nothing() -> None:
    pieces = torch.tensor([[0.5, 0.5], [torch.nan, torch.nan]])
    found = count_read(pieces, torch.tensor([[0.5, 0.5]]), torch.tensor([[0.0, 0.0]]))
    assert (found["channels"], found["fired"], found["read"]) == (2, 1, 1)
    assert found["psnr_others"] == pytest.approx(6.0, abs=0.1)  # 10 log10(1 / 0.25)
    assert count_read(pieces[1:], pieces[:1], pieces[:1])["psnr"] is None


def test_weight_decay_with_momentum_is_what_sgd_makes_of_it() -> None:
    weight = nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=1e-3, momentum=0.9, weight_decay=1e-3)
    for _ in range(4):
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
    settings, _ = resolve("histology", "fedavg", "smoke")
    training = replace_training(settings, optimizer="sgd", learning_rate=1e-3, momentum=0.9, weight_decay=1e-3)
    assert decay_of(training, 4) == pytest.approx(1 - weight.item(), rel=1e-4)
    assert decay_of(replace_training(settings, optimizer="adam"), 4) == 0


def replace_training(settings: Any, **values: Any) -> Any:
    return settings.with_values("training", **values).training


def test_a_real_site_gives_pieces_away_to_crafted_weights_and_none_to_honest_ones() -> None:
    overrides = {"data.size": 32, "data.images": 100, "model.features": 8, "federation.workers": 1}
    settings, method = resolve("histology", "fedavg", "small", overrides=overrides)
    study = CraftedStudy(settings, method, Sizes(images=16, batch=16, public=24))
    crafted = study._case("crafted", study._trapped(16, 0.02), {study.names[0]: 16})
    honest = study._case("honest", study.initial, {study.names[0]: 16})
    assert crafted["read"] > honest["read"] == 0
    assert crafted["psnr"] > crafted["psnr_others"] + 2


def test_a_network_without_batch_norm_has_no_room_for_this_trap() -> None:
    with pytest.raises(UsageError, match="no batch norm of its own behind its first convolution"):
        find_trap(nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2)))


def test_a_network_that_answers_for_every_pixel_is_refused_in_words() -> None:
    with pytest.raises(UsageError, match=r"ends in body.final_conv \(Conv2d\), with an answer for every pixel"):
        find_trap(nn.ModuleDict({"body": UNet(dimensions=2, channels=3, classes=2, features=2)}))


def test_the_command_writes_what_was_read(tmp_path: Path) -> None:
    options = ["privacy", "--crafted", "--quick", "--quiet", "--out", str(tmp_path / "crafted")]
    result = CliRunner().invoke(app, options, catch_exceptions=False)
    record = json.loads((tmp_path / "crafted" / "crafted.json").read_text())
    assert record["cases"][0]["case"] == "one image, one step of SGD"
    assert (tmp_path / "crafted" / "crafted.md").read_text() in result.output
    assert sum(line.startswith("| an epoch of 16 images") for line in result.output.splitlines()) == 8
    with pytest.raises(UsageError, match="give a run on these images by --run"):
        CliRunner().invoke(app, [*options, "--data", "there"], catch_exceptions=False)


def test_the_table_of_the_documentation_is_that_of_the_kept_studies() -> None:
    root = Path(__file__).parents[2]
    kept = sorted((root / "benchmarks" / "results" / "privacy").glob("crafted-*.json"))
    assert len(kept) == 3
    table = crafted_table([json.loads(path.read_text()) for path in kept])
    assert table in (root / "docs" / "privacy.md").read_text(encoding="utf-8")
