import itertools

import pytest
import torch

from harmofl.analysis.phase_retrieval import (
    Knowledge,
    at_best,
    error_reduction,
    half_spectrum,
    hybrid_input_output,
    retrieve,
    spectral_error,
    with_amplitude,
)
from harmofl.analysis.similarity import align, psnr
from harmofl.methods.amplitude_normalization import AmplitudeNormalization


def image_in_a_margin() -> torch.Tensor:
    """A 6×6 image in the middle of a black 12×12 frame."""
    image = torch.zeros(1, 12, 12)
    image[:, 3:9, 3:9] = torch.rand(6, 6, generator=torch.Generator().manual_seed(1))
    return image


def known_of(image: torch.Tensor, support: torch.Tensor) -> Knowledge:
    amplitude = torch.fft.rfft2(image).abs()
    return Knowledge(amplitude, torch.ones(amplitude.shape[-2:], dtype=torch.bool), support)


def margin() -> torch.Tensor:
    support = torch.zeros(12, 12, dtype=torch.bool)
    support[3:9, 3:9] = True
    return support


def test_the_known_amplitude_is_given_and_the_phase_is_left() -> None:
    image = image_in_a_margin()
    start = torch.rand(1, 12, 12, generator=torch.Generator().manual_seed(0))
    changed = torch.fft.rfft2(with_amplitude(start, known_of(image, margin())))
    torch.testing.assert_close(changed.abs(), torch.fft.rfft2(image).abs(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(changed.angle().cos(), torch.fft.rfft2(start).angle().cos(), atol=1e-3, rtol=0)


def test_channels_can_share_the_phase_of_their_sum() -> None:
    start = torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(0))
    known = known_of(start, torch.ones(4, 4, dtype=torch.bool))
    spectrum = torch.fft.rfft2(with_amplitude(start, known, one_phase=True))
    wanted = torch.fft.rfft2(start).abs() * torch.exp(1j * torch.fft.rfft2(start.sum(dim=0)).angle())
    torch.testing.assert_close(spectrum, wanted, atol=1e-4, rtol=1e-4)


def test_error_reduction_never_makes_the_error_larger() -> None:
    known = known_of(image_in_a_margin(), margin())
    image = torch.rand(1, 12, 12, generator=torch.Generator().manual_seed(0)) * margin()
    errors = []
    for _ in range(60):
        image = error_reduction(image, known)
        errors.append(float(spectral_error(image, known)))
    assert all(after <= before + 1e-6 for before, after in itertools.pairwise(errors))
    assert errors[-1] < 0.7 * errors[0]


def test_hybrid_input_output_pushes_back_what_breaks_a_constraint() -> None:
    everything = torch.ones(1, 2, dtype=torch.bool)
    # Two pixels, 0.9 and 0.3; their amplitudes sum 1.2 and difference 2 ask for 1.6 and -0.4.
    known = Knowledge(torch.tensor([[[1.2, 2.0]]]), everything, torch.tensor([[True, True]]))
    after = hybrid_input_output(torch.tensor([[[0.9, 0.3]]]), known)
    assert after.flatten().tolist() == pytest.approx([0.9 - 0.9 * 0.6, 0.3 + 0.9 * 0.4])


def test_an_image_in_a_known_margin_is_found_from_its_own_amplitude() -> None:
    image = image_in_a_margin()
    found = retrieve(known_of(image, margin()), 16, 600, torch.Generator().manual_seed(0))
    assert float(psnr(align(found[None], image[None]), image[None])) > 30


def test_the_amplitude_alone_fits_images_that_fill_the_frame_without_finding_them() -> None:
    image = torch.rand(1, 16, 16, generator=torch.Generator().manual_seed(0))
    known = known_of(image, torch.ones(16, 16, dtype=torch.bool))
    found = retrieve(known, 4, 300, torch.Generator().manual_seed(0))
    assert float(spectral_error(found, known)) < 0.05
    assert float(psnr(align(found[None], image[None]), image[None])) < 20


def test_several_amplitudes_are_retrieved_at_once() -> None:
    known = known_of(torch.rand(2, 3, 8, 8), torch.ones(8, 8, dtype=torch.bool))
    assert retrieve(known, 2, 4, torch.Generator().manual_seed(0)).shape == (2, 3, 8, 8)


def test_dc_gives_nothing_but_the_channels_means() -> None:
    images = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    layer = AmplitudeNormalization((3, 8, 8), "dc")
    layer.measure([images])
    amplitude, inside = half_spectrum(layer)
    assert int(inside.sum()) == 1
    everywhere = torch.ones(8, 8, dtype=torch.bool)
    found = retrieve(Knowledge(amplitude, inside, everywhere), 2, 20, torch.Generator().manual_seed(0))
    wanted = images.mean(dim=(0, -2, -1))[:, None, None].expand(3, 8, 8)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("band", ["full", 0.3])
def test_what_a_harmonizer_sends_is_laid_out_as_a_half_spectrum(band: str | float) -> None:
    images = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    layer = AmplitudeNormalization((3, 8, 8), band)  # type: ignore[arg-type]
    layer.measure([images])
    amplitude, inside = half_spectrum(layer)
    wanted = torch.where(inside, torch.fft.rfft2(images).abs().mean(dim=0), 0.0)
    torch.testing.assert_close(amplitude, wanted)
    assert bool(inside.all()) == (band == "full")


def test_at_best_only_the_band_is_seen() -> None:
    row = torch.tensor([[[0.75, 0.25, 0.75, 0.25]]])  # a mean of 0.5, and the highest frequency
    inside = torch.tensor([[True, True, False]])
    known = Knowledge(torch.zeros(1, 1, 3), inside, torch.ones(1, 4, dtype=torch.bool))
    assert at_best(row, known).flatten().tolist() == pytest.approx([0.5] * 4)
