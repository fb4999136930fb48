"""What a run leaves for those who watch it: an image of each site, and only while it runs."""

from pathlib import Path

import pytest
import torch

import harmofl
from harmofl.events import Event, RoundFinished
from harmofl.runs.live_samples import LiveSample, LiveSamples


def test_a_sample_is_read_back_and_a_newer_one_replaces_it(tmp_path: Path) -> None:
    samples = LiveSamples(tmp_path / "samples")
    mask = torch.tensor([[0, 1], [1, 0]], dtype=torch.uint8)
    samples.write(LiveSample("B", 1, torch.zeros(3, 2, 2), mask, mask))
    samples.write(LiveSample("A", 1, torch.zeros(1, 2, 2), "tumor", "normal"))
    samples.write(LiveSample("B", 2, torch.ones(3, 2, 2), mask, 1 - mask))
    first, second = samples.read()
    assert (first.site, first.round, first.truth, first.found) == ("A", 1, "tumor", "normal")
    assert (second.site, second.round) == ("B", 2)
    assert torch.equal(second.image, torch.ones(3, 2, 2))
    assert isinstance(second.found, torch.Tensor)
    assert torch.equal(second.found, 1 - mask)
    samples.remove()
    assert list(samples.read()) == []


@pytest.mark.parametrize(("task", "shape"), [("histology", None), ("nuclei", (32, 32))])
def test_a_run_shows_an_image_of_each_site_and_takes_it_away_at_the_end(
    tmp_path: Path, task: str, shape: tuple[int, int] | None
) -> None:
    out = tmp_path / "run"
    seen: list[dict[str, LiveSample]] = []

    def watch(event: Event) -> None:
        if isinstance(event, RoundFinished):
            seen.append({sample.site: sample for sample in LiveSamples(out / ".samples").read()})

    harmofl.train(task, "fedavg", preset="smoke", out=out, workers=1, watch=watch, progress=False)
    assert len(seen[-1]) == (6 if shape else 5)
    assert {sample.round for sample in seen[-1].values()} == {1}
    for sample in seen[-1].values():
        if shape:
            assert sample.found.shape == sample.truth.shape == shape
            assert sample.truth.any()  # one with something in its mask
        else:
            assert {sample.truth, sample.found} <= {"normal", "tumor"}
    assert not (out / ".samples").exists()
