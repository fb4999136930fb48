import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harmofl.analysis.amplitude_inversion import picture_of_amplitude
from harmofl.analysis.frames import nearest_of, put_in_frame, window
from harmofl.analysis.gradient_inversion import LocalTraining
from harmofl.analysis.privacy import (
    WAYS,
    Case,
    Study,
    best_order,
    largest,
    minima,
)
from harmofl.analysis.privacy_target import CONTROL, QUICK, TRAINED, open_target
from harmofl.errors import UsageError
from harmofl.events import Event, StepDone
from harmofl.experiments.privacy_study import privacy_study
from harmofl.methods.amplitude_normalization import AmplitudeNormalization
from harmofl.runs.model_folder import open_model
from runs import train


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[StepDone]]:
    out, seen = tmp_path_factory.mktemp("privacy"), list[Event]()
    privacy_study(out, quick=True, watch=seen.append)
    return out, [event for event in seen if isinstance(event, StepDone)]


def record(images: int, ssim: float, chance: float, frame: str = "whole") -> dict[str, Any]:
    return {"frame": frame, "band": "full", "images": images, "ssim": ssim, "chance_ssim_upper": chance}


def test_a_study_writes_numbers_pictures_and_a_page(study: tuple[Path, list[StepDone]]) -> None:
    out, _ = study
    names = {f"privacy-{name}.{kind}" for name in ("inversion", "retrieval", "similarity") for kind in ("png", "svg")}
    assert names | {"privacy.json", "privacy.md", "images.npz"} <= {path.name for path in out.iterdir()}
    found = json.loads((out / "privacy.json").read_text())
    ways = {each["way"] for each in found["gradient_inversion"]}
    assert ways == {"without", "start", "penalty", "held", "own", "HarmoFL"}
    assert {each["network"] for each in found["gradient_inversion"]} == {"control", "untrained", "trained"}
    assert {each["images"] for each in found["phase_retrieval"]} == {1, 2, 4}
    assert [each["network"] for each in found["amplitude_inversion"]] == ["control", "untrained", "trained"]
    assert "The paper's own attack, on amplitudes" in (out / "privacy.md").read_text()
    assert all(-1 <= each["ssim"] <= 1 for each in found["gradient_inversion"] + found["phase_retrieval"])


def test_a_run_and_other_images_are_refused_together(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--data elsewhere: the run says which images are attacked"):
        privacy_study(tmp_path / "out", run=tmp_path, data="elsewhere", quick=True)


def test_too_many_images_and_a_wrong_folder_are_refused_before_anything_is_attacked(
    study: tuple[Path, list[StepDone]], tmp_path: Path
) -> None:
    seen: list[Event] = []
    with pytest.raises(UsageError, match=r"--images 500: must be at most \d+, with \d+ images of hospital-0 at hand"):
        privacy_study(tmp_path / "out", run=study[0] / "run", images=500, quick=True, watch=seen.append)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"--out .*file: .*file is a file"):
        privacy_study(tmp_path / "file", run=study[0] / "run", quick=True, watch=seen.append)
    assert not seen


@pytest.mark.parametrize("band", ["full", 0.2])
def test_the_trained_network_is_attacked_behind_its_runs_own_harmonizer(tmp_path: Path, band: str | float) -> None:
    train(tmp_path / "run", "harmofl", rounds=1, data__images=40, data__size=16, method__band=band)
    target = open_target(tmp_path / "run", QUICK, 0)
    study = Study(target, QUICK, 0, lambda _: None)
    for name in (CONTROL, TRAINED):
        study._attack(name, Case("one", 1, LocalTraining()), WAYS[0])
    harmonizer = open_model(tmp_path / "run" / "model")[0].harmonizer
    image = target.images.images[:1]
    for name, expected in ((CONTROL, image), (TRAINED, harmonizer(image))):
        shown = torch.from_numpy(study.pictures[f"inversion/{name}/one/truth"]) / 255
        torch.testing.assert_close(shown, expected.clamp(0, 1), atol=1 / 255, rtol=0)
    assert not torch.allclose(image, harmonizer(image), atol=0.02)


def test_progress_counts_to_the_end(study: tuple[Path, list[StepDone]]) -> None:
    _, steps = study
    assert [step.done for step in steps] == list(range(steps[0].total))
    assert steps[-1].what == "phase retrieval: margin frame, band dc, 4 images"


def test_dc_gives_a_flat_image(study: tuple[Path, list[StepDone]]) -> None:
    with np.load(study[0] / "images.npz") as pictures:
        _, found = pictures["retrieval/whole/dc/1"]
    assert np.ptp(found, axis=(1, 2)).tolist() == [0, 0, 0]


def test_the_minimum_is_the_number_from_which_on_chance_is_never_exceeded() -> None:
    phase = [record(1, 0.9, 0.3), record(2, 0.2, 0.3), record(4, 0.4, 0.3), record(8, 0.3, 0.3), record(16, 0.1, 0.3)]
    phase += [record(1, 0.1, 0.3, "margin"), record(2, 0.5, 0.3, "margin")]
    assert minima(phase) == {"whole, full": 8, "margin, full": None}


def test_nothing_is_recommended_if_chance_was_exceeded_even_at_the_largest_number() -> None:
    assert largest([1, 8, 2]) == 8
    assert largest([1, None, 2]) is None


def test_reconstructions_of_a_batch_are_matched_with_its_images() -> None:
    truth = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    found = truth[[2, 0, 1]] + 0.01
    torch.testing.assert_close(found[best_order(found, truth)], truth + 0.01)


def test_a_margin_is_black_and_as_wide_as_half_the_image() -> None:
    whole = put_in_frame(torch.ones(1, 1, 4, 6), "margin")
    assert whole.shape == (1, 1, 8, 12)
    assert float(whole.sum()) == 24
    rows, columns = window("margin", 4, 6)
    assert bool((whole[..., rows, columns] == 1).all())


def test_the_nearest_image_is_found_wherever_it_was_shifted() -> None:
    truths = torch.rand(3, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    place = (slice(None), slice(None), *window("whole", 12, 12))
    (psnr, ssim), nearest, fitted = nearest_of(truths[1].roll(3, dims=-1), truths, place)
    assert psnr == pytest.approx(100)
    assert ssim == pytest.approx(1)
    assert torch.equal(nearest, truths[1])
    assert torch.equal(fitted, truths[1])


def sent_every_round(images: torch.Tensor, rounds: int, received: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What a site sends under the schedule every-round, less what it received, and the weight of each image in it."""
    decay, sent, weights = 0.1, [], []
    for number in range(rounds):
        layer = AmplitudeNormalization((1, 8, 8), "full", decay)
        layer.receive({"amplitude": received})
        weight, left = torch.zeros(len(images), dtype=torch.float64), 1.0
        for batch in torch.randperm(len(images), generator=torch.Generator().manual_seed(number)).split(2):
            layer(images[batch])
            weight *= 1 - decay
            weight[batch] += decay / 2
            left *= 1 - decay
        sent.append(layer.measurement()["amplitude"].double().flatten() - left * received.flatten())
        weights.append(weight)
    return torch.stack(sent), torch.stack(weights)


def test_amplitudes_sent_every_round_give_away_those_of_single_images() -> None:
    """The minimum number of images cannot prevent it: as many rounds as images make a system of linear equations."""
    images = torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    amplitudes = torch.fft.rfft2(images).abs().double()
    sent, weights = sent_every_round(images, 12, amplitudes.mean(dim=0).float())
    found = torch.linalg.lstsq(weights, sent).solution.reshape(amplitudes.shape)
    assert float((found - amplitudes).norm() / amplitudes.norm()) < 1e-3


def test_the_picture_of_an_amplitude_has_its_zero_frequency_in_the_middle_and_no_phase() -> None:
    wave = 0.5 + 0.25 * torch.cos(2 * torch.pi * torch.arange(8) / 8).expand(1, 1, 8, 8)
    picture = picture_of_amplitude(wave)[0, 0]
    # 64 pixels of mean ½, and two neighbours in the row with 64 · 0.25 / 2 each: log(1 + 8) / log(1 + 32).
    assert picture[4, 4] == 1
    assert picture[4, [3, 5]].tolist() == pytest.approx([np.log(9) / np.log(33)] * 2, abs=1e-5)
    assert float(picture.sum()) == pytest.approx(1 + 2 * np.log(9) / np.log(33), abs=1e-4)
    assert torch.allclose(picture, picture_of_amplitude(wave.roll((3, 2), (-2, -1)))[0, 0], atol=1e-5)
