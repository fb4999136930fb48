from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from spectra import Band, Images, bands, inside_band, spatial, spectrum_of, two_batches
from torch import Tensor

from harmofl import AmplitudeNormalization
from harmofl.methods.harmonizers import Harmonizer, NormalizeAmplitude, identity
from harmofl.methods.layers import largest_radius
from harmofl.states import State


def normalized_with_angles(images: Images, target: Images, inside: Images) -> Images:
    """The definition: full complex spectrum, amplitudes replaced, angles kept."""
    spectrum = spectrum_of(images)
    amplitudes, angles = np.abs(spectrum), np.angle(spectrum)
    zero = (slice(None), slice(None), *(0 for _ in spatial(images)))
    angles[zero] = np.where(spectrum[zero].real < 0, np.pi, 0)
    has_phase = amplitudes > 1e-6 * amplitudes.max(axis=(1, *spatial(images)), keepdims=True)
    has_phase[zero] = True
    replaced = np.where(inside & has_phase, target, amplitudes)
    return np.fft.ifftn(replaced * np.exp(1j * angles), axes=spatial(images)).real


def layer_that_learned(images: Images, band: Band) -> AmplitudeNormalization:
    if isinstance(band, float):
        band = min(band, largest_radius([1] * (images.ndim - 2)))
    layer = AmplitudeNormalization(images.shape[1:], band).double()
    layer.train()(torch.from_numpy(images))
    return layer.eval()


def tensor(*pixels: list[list[float]]) -> Tensor:
    """Images of one channel."""
    return torch.tensor([[image] for image in pixels])


def flat(*values: float, size: tuple[int, int] = (2, 2)) -> Tensor:
    return torch.tensor(values).reshape(-1, 1, 1, 1).expand(-1, 1, *size).clone()


@settings(deadline=None, max_examples=50)
@given(two_batches(), bands)
def test_half_spectrum_gives_what_the_full_spectrum_with_angles_gives(
    batches: tuple[Images, Images], band: Band
) -> None:
    learned, images = batches
    target = np.abs(spectrum_of(learned)).mean(axis=0)
    expected = normalized_with_angles(images, target, inside_band(band, *images.shape[2:]))
    output = layer_that_learned(learned, band)(torch.from_numpy(images))
    np.testing.assert_allclose(output.numpy(), expected, atol=1e-9)


@settings(deadline=None, max_examples=50)
@given(two_batches(), bands)
def test_phase_is_kept_and_amplitude_is_the_target_inside_the_band_and_untouched_outside(
    batches: tuple[Images, Images], band: Band
) -> None:
    learned, images = batches
    target = np.broadcast_to(np.abs(spectrum_of(learned)).mean(axis=0), images.shape)
    before = spectrum_of(images)
    after = spectrum_of(layer_that_learned(learned, band)(torch.from_numpy(images)).numpy())
    inside = np.broadcast_to(inside_band(band, *images.shape[2:]), images.shape)
    scale = np.abs(before).mean(axis=(1, *spatial(images)), keepdims=True)

    counts = (np.abs(before) > 1e-3 * scale) & (target > 1e-3 * scale)
    turned = after * before.conj() / (np.abs(after) * np.abs(before)).clip(1e-300)
    np.testing.assert_allclose(turned[counts & inside], 1, atol=1e-6)
    np.testing.assert_allclose(np.abs(after)[counts & inside], target[counts & inside], rtol=1e-6)
    np.testing.assert_allclose(after[~inside], before[~inside], atol=1e-9)


@settings(deadline=None, max_examples=40)
@given(two_batches(), bands)
def test_normalizing_twice_is_normalizing_once(batches: tuple[Images, Images], band: Band) -> None:
    learned, images = batches
    layer = layer_that_learned(learned, band)
    once = layer(torch.from_numpy(images))
    twice = layer(once)
    target = np.abs(spectrum_of(learned)).mean(axis=0)
    before = np.abs(spectrum_of(images))
    scale = before.mean(axis=(1, *spatial(images)), keepdims=True)
    counts = (before > 1e-3 * scale) & (target > 1e-3 * scale)
    change = np.abs(spectrum_of((twice - once).numpy()))
    np.testing.assert_allclose(change[counts], 0, atol=1e-8)


@settings(deadline=None, max_examples=20)
@given(two_batches())
def test_band_none_returns_the_images_bit_for_bit(batches: tuple[Images, Images]) -> None:
    images = torch.from_numpy(batches[1])
    layer = AmplitudeNormalization(images.shape[1:], "none")
    assert torch.equal(layer.train()(images), images)
    assert torch.equal(layer.eval()(images), images)


@settings(deadline=None, max_examples=20)
@given(two_batches())
def test_dc_moves_channel_means_and_nothing_else(batches: tuple[Images, Images]) -> None:
    learned, images = batches
    output = layer_that_learned(learned, "dc")(torch.from_numpy(images)).numpy()
    moved = output - images
    np.testing.assert_allclose(
        moved,
        np.broadcast_to(
            moved.reshape(*moved.shape[:2], -1)[:, :, :1].reshape(*moved.shape[:2], *(1 for _ in spatial(moved))),
            moved.shape,
        ),
        atol=1e-12,
    )
    target = np.abs(learned.mean(axis=spatial(learned))).mean(axis=0)
    np.testing.assert_allclose(
        np.abs(output.mean(axis=spatial(output))), np.broadcast_to(target, output.shape[:2]), atol=1e-12
    )


@settings(deadline=None, max_examples=20)
@given(two_batches())
def test_radius_beyond_the_corner_equals_full_and_the_smallest_radius_equals_dc(
    batches: tuple[Images, Images],
) -> None:
    learned, images = batches
    for radius, name in ((0.87, "full"), (0.001, "dc")):
        of_radius = layer_that_learned(learned, radius)(torch.from_numpy(images))
        of_name = layer_that_learned(learned, name)(torch.from_numpy(images))
        torch.testing.assert_close(of_radius, of_name, rtol=0, atol=1e-9)


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 71))
def test_radius_band_holds_only_the_bins_inside_it(height: int, width: int, hundredths: int) -> None:
    layer = AmplitudeNormalization((2, height, width), hundredths / 100)
    half = inside_band(hundredths / 100, height, width)[:, : width // 2 + 1]
    assert layer.inside is not None
    np.testing.assert_array_equal(layer.inside.numpy(), half)
    assert layer.measurement()["amplitude"].shape == (2, half.sum())


def test_amplitude_has_the_documented_shapes() -> None:
    assert AmplitudeNormalization((3, 4, 6), "full").amplitude.shape == (3, 4, 4)
    assert AmplitudeNormalization((3, 5, 7), "full").amplitude.shape == (3, 5, 4)
    assert AmplitudeNormalization((3, 5, 7), "dc").amplitude.shape == (3, 1, 1)
    assert AmplitudeNormalization((3, 5, 7), "none").amplitude.numel() == 0


@pytest.mark.parametrize("band", ["dc", "full", 0.3])
def test_amplitude_of_the_zero_frequency_is_the_number_of_pixels_times_the_absolute_mean(band: Band) -> None:
    layer = AmplitudeNormalization((1, 2, 3), band)
    layer.train()(tensor([[0.0, -1.0, -2.0], [-3.0, -4.0, -5.0]]))  # their sum is -15
    assert layer.amplitude.flatten()[0].item() == pytest.approx(15)


@pytest.mark.parametrize("band", ["dc", "full", 0.3])
def test_zero_frequency_keeps_the_sign_of_the_mean_and_is_positive_at_zero(band: Band) -> None:
    layer = AmplitudeNormalization((1, 2, 2), band)
    layer.receive({"amplitude": torch.full_like(layer.amplitude, 8.0)})
    means = layer.eval()(flat(-1.0, 1.0, 0.0, -0.0)).mean(dim=(1, 2, 3))
    assert means.tolist() == pytest.approx([-2, 2, 2, 2])


def test_bins_below_a_millionth_of_the_largest_amplitude_stay_as_they_are() -> None:
    wave = torch.cos(2 * torch.pi * torch.arange(4, dtype=torch.float64) / 4).expand(1, 1, 4, 4)
    layer = AmplitudeNormalization((1, 4, 4), "full").double()
    layer.receive({"amplitude": torch.full((1, 4, 3), 16.0, dtype=torch.float64)})
    # The wave's amplitude is half its height times 16 pixels: 0.4 and 4 millionths of the largest, 16.
    below, above = (torch.fft.rfft2(layer.eval()(1 + height * wave)).abs()[0, 0, 0, 1] for height in (8e-7, 8e-6))
    assert below.item() == pytest.approx(8e-7 / 2 * 16)
    assert above.item() == pytest.approx(16)


@pytest.mark.parametrize("band", ["dc", "full", 0.3])
@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_flat_and_black_images_stay_flat_with_finite_gradients(band: Band, value: float) -> None:
    layer = AmplitudeNormalization((1, 5, 6), band)
    layer.train()(torch.rand(4, 1, 5, 6, generator=torch.Generator().manual_seed(0)))
    mean = layer.amplitude.flatten()[0].item() / 30
    images = flat(value, size=(5, 6)).requires_grad_()
    output = layer.eval()(images)
    torch.testing.assert_close(output, flat(mean, size=(5, 6)), rtol=1e-5, atol=1e-6)
    (output * torch.arange(30.0).reshape(5, 6)).sum().backward()
    assert images.grad is not None
    assert images.grad.isfinite().all()


@pytest.mark.parametrize("band", ["dc", "full", 0.3])
def test_images_come_out_the_same_bits_with_and_without_gradients_and_stay_as_they_were(band: Band) -> None:
    """Without gradients the layer computes in place."""
    layer = AmplitudeNormalization((2, 5, 6), band)
    images = torch.rand(4, 2, 5, 6, generator=torch.Generator().manual_seed(0))
    images[1], images[2] = 0.0, 0.3  # bins without a phase
    given = images.clone()
    with torch.no_grad():
        learned = layer(images), layer.amplitude.clone()
        used = layer.eval()(images)
    again = AmplitudeNormalization((2, 5, 6), band)
    watched = images.clone().requires_grad_()
    assert torch.equal(learned[0], again(watched))
    assert torch.equal(learned[1], again.amplitude)
    assert torch.equal(used, again.eval()(watched))
    assert torch.equal(images, given)


@pytest.mark.parametrize("band", ["dc", "full", 0.3])
def test_gradients_by_torch_func_are_those_of_autograd(band: Band) -> None:
    """As an attack differentiates a whole update, in which images do not seem to require a gradient."""
    layer = AmplitudeNormalization((2, 5, 6), band)
    images = torch.rand(4, 2, 5, 6, generator=torch.Generator().manual_seed(0))
    images[1], images[2] = 0.0, 0.3  # bins without a phase
    layer.measure([images])
    layer.freeze()
    weight = torch.tensor(1.0)
    watched = images.clone().requires_grad_()
    (expected,) = torch.autograd.grad(layer(watched).square().sum(), watched)
    slope = torch.func.grad(lambda weight: (weight * layer(watched).square()).sum())(weight)
    (found,) = torch.autograd.grad(slope, watched)
    assert torch.equal(found, expected)
    assert torch.isfinite(found).all()


@pytest.mark.parametrize("band", ["dc", "full", 0.3])
@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 4, 3)])
def test_gradient_agrees_with_finite_differences(band: Band, shape: tuple[int, int, int]) -> None:
    generator = torch.Generator().manual_seed(1)
    learned, images = torch.rand(2, 2, *shape, generator=generator, dtype=torch.float64)
    layer = layer_that_learned(learned.numpy(), band)
    assert torch.autograd.gradcheck(layer, images.requires_grad_())


@pytest.mark.parametrize("band", ["dc", "full", 0.3])
def test_a_batch_may_be_learned_before_the_gradient_of_the_one_before_is_taken(band: Band) -> None:
    layer = AmplitudeNormalization((1, 3, 4), band)
    images = torch.rand(2, 2, 1, 3, 4, generator=torch.Generator().manual_seed(2)).requires_grad_()
    first = layer(images[0])
    second = layer(images[1])
    (first.square().sum() + second.square().sum()).backward()
    assert images.grad is not None
    assert images.grad.isfinite().all()


def test_moving_average_starts_from_zero_and_is_corrected_for_it() -> None:
    layer = AmplitudeNormalization((1, 2, 2), "dc", decay=0.1)
    amplitudes = []
    for mean in (1.0, 2.0, 4.0):  # amplitudes 4, 8, 16
        layer(flat(mean))
        amplitudes.append(layer.amplitude.item())
    # From zero: 0.4; 0.9·0.4 + 0.8 = 1.16; 0.9·1.16 + 1.6 = 2.644. Their weights sum to 0.1, 0.19, 0.271.
    assert amplitudes == pytest.approx([4, 1.16 / 0.19, 2.644 / 0.271])


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.floats(0.01, 1))
def test_moving_average_is_the_weighted_mean_of_all_batches(means: list[float], decay: float) -> None:
    layer = AmplitudeNormalization((1, 1, 1), "full", decay).double()
    for mean in means:
        layer(flat(mean, size=(1, 1)).double())
    weights = [decay * (1 - decay) ** age for age in reversed(range(len(means)))]
    expected = sum(w * m for w, m in zip(weights, np.float32(means).tolist(), strict=True)) / (
        1 - (1 - decay) ** len(means)
    )
    assert layer.amplitude.item() == pytest.approx(expected, abs=1e-12)


def test_a_batch_counts_with_the_mean_of_its_images_amplitudes() -> None:
    layer = AmplitudeNormalization((1, 2, 2), "dc")
    layer(flat(1.0, -2.0, 6.0))
    assert layer.amplitude.item() == pytest.approx(4 * 3)


def test_with_decay_zero_the_first_batch_stays_for_ever() -> None:
    layer = AmplitudeNormalization((1, 2, 2), "dc", decay=0)
    for mean in (1.0, 2.0, 4.0):
        layer(flat(mean))
    assert layer.amplitude.item() == 4


def test_with_decay_one_only_the_last_batch_counts() -> None:
    layer = AmplitudeNormalization((1, 2, 2), "dc", decay=1)
    for mean in (1.0, 2.0, 4.0):
        layer(flat(mean))
    assert layer.amplitude.item() == 16


def test_a_received_amplitude_continues_without_correction() -> None:
    layer = AmplitudeNormalization((1, 2, 2), "dc", decay=0.1)
    layer(flat(7.0))
    layer.receive({"amplitude": torch.full((1, 1, 1), 10.0)})
    layer(flat(5.0))
    assert layer.amplitude.item() == pytest.approx(0.9 * 10 + 0.1 * 20)


def test_images_are_normalized_with_the_average_that_includes_them() -> None:
    layer = AmplitudeNormalization((1, 2, 2), "dc", decay=0.1)
    layer(flat(1.0))
    assert layer(flat(2.0)).mean().item() == pytest.approx(1.16 / 0.19 / 4)


def test_nothing_is_learned_in_eval_mode() -> None:
    layer = AmplitudeNormalization((1, 2, 2), "dc")
    layer(flat(1.0))
    layer.eval()(flat(9.0))
    assert layer.amplitude.item() == 4


@pytest.mark.parametrize("band", ["dc", "full", 0.3])
def test_measuring_gives_the_exact_mean_over_images_whatever_the_batches(band: Band) -> None:
    images = torch.rand(5, 2, 3, 4, generator=torch.Generator().manual_seed(3))
    layer = AmplitudeNormalization((2, 3, 4), band, decay=0.1)
    layer.measure([images[:3], images[3:4], images[4:]])
    half = np.abs(np.fft.fft2(images.numpy())).mean(axis=0)[..., :3]
    expected = half[..., inside_band(band, 3, 4)[:, :3]]
    np.testing.assert_allclose(layer.measurement()["amplitude"].flatten(1), expected, rtol=1e-5)


def test_measuring_leaves_an_average_that_continues_without_correction() -> None:
    layer = AmplitudeNormalization((1, 2, 2), "dc", decay=0.1)
    layer.measure([flat(1.0, 2.0), flat(6.0)])
    assert layer.amplitude.item() == pytest.approx(12)
    layer(flat(5.0))
    assert layer.amplitude.item() == pytest.approx(0.9 * 12 + 0.1 * 20)


def test_measuring_no_images_is_refused() -> None:
    with pytest.raises(ValueError, match="no images"):
        AmplitudeNormalization((1, 2, 2), "dc").measure([])


def test_a_measurement_is_a_copy() -> None:
    layer = AmplitudeNormalization((1, 2, 2), "dc")
    layer(flat(1.0))
    sent = layer.measurement()
    layer(flat(9.0))
    assert sent["amplitude"].item() == 4


@pytest.mark.parametrize("band", ["dc", "full", 0.3])
def test_train_mode_never_unfreezes_a_frozen_amplitude(band: Band) -> None:
    layer = AmplitudeNormalization((1, 2, 2), band)
    layer(flat(1.0))
    before = layer.amplitude.clone()
    layer.freeze()
    layer.eval().train()(flat(9.0))
    torch.nn.Sequential(layer).train()(flat(9.0))
    assert torch.equal(layer.amplitude, before)


def test_frozen_is_saved_in_the_state_and_restored() -> None:
    layer = AmplitudeNormalization((1, 2, 2), "dc")
    layer(flat(1.0))
    layer.freeze()
    again = AmplitudeNormalization((1, 2, 2), "dc")
    again.load_state_dict(layer.state_dict())
    assert again.train()(flat(9.0)).mean().item() == pytest.approx(1)
    assert again.amplitude.item() == 4


def test_a_restored_average_continues_where_it_stood() -> None:
    layer, again = (AmplitudeNormalization((1, 2, 2), "dc", decay=0.1) for _ in range(2))
    layer(flat(1.0))
    again.load_state_dict(layer.state_dict())
    again(flat(2.0))
    assert again.amplitude.item() == pytest.approx(1.16 / 0.19)


@pytest.mark.parametrize("shape", [(2, 1, 2, 2, 2), (2, 3, 2, 2), (1, 2, 2)])
def test_images_of_a_wrong_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"must be \(N, 1, 2, 2\), not"):
        AmplitudeNormalization((1, 2, 2), "dc")(torch.zeros(shape))


def test_images_to_measure_of_a_wrong_shape_and_an_amplitude_of_a_wrong_shape_are_refused() -> None:
    layer = AmplitudeNormalization((3, 2, 2), "dc")
    with pytest.raises(ValueError, match=r"must be \(N, 3, 2, 2\), not \(4, 1, 5, 5\)"):
        layer.measure([torch.zeros(4, 1, 5, 5)])
    with pytest.raises(ValueError, match=r"amplitude must be of shape \(3, 1, 1\), not \(1, 1, 1\)"):
        layer.receive({"amplitude": torch.ones(1, 1, 1)})
    assert layer.amplitude.flatten().tolist() == [0, 0, 0]


@pytest.mark.parametrize("band", ["none", "dc", "full"])
def test_images_of_whole_numbers_are_refused(band: Band) -> None:
    layer, images = AmplitudeNormalization((1, 2, 2), band), torch.zeros(1, 1, 2, 2, dtype=torch.uint8)
    for use in (layer, lambda images: layer.measure([images])):
        with pytest.raises(TypeError, match=r"floating-point numbers scaled to \[0, 1\], not torch\.uint8"):
            use(images)


def test_a_loader_of_pairs_is_refused_with_the_way_to_measure_its_images() -> None:
    loader: Any = [(torch.zeros(1, 1, 2, 2), torch.zeros(1))]
    with pytest.raises(TypeError, match=r"not tuple: .* measure\(images for images, _ in loader\)"):
        AmplitudeNormalization((1, 2, 2)).measure(loader)


def test_a_layer_that_was_frozen_before_it_learned_says_what_is_missing() -> None:
    layer = AmplitudeNormalization((1, 2, 2))
    layer.freeze()
    with pytest.raises(RuntimeError, match=r"no amplitude yet: call in train mode before eval\(\) and freeze\(\)"):
        layer(torch.zeros(1, 1, 2, 2))


def test_a_single_number_is_no_shape() -> None:
    shape: Any = 224
    with pytest.raises(ValueError, match=r"image_shape must be \(channels, height, width\), or .*, not 224"):
        AmplitudeNormalization(shape)


@pytest.mark.parametrize("shape", [(3, 0, 8), (3, -1, 8), (3, 8.0, 8.0), "rgb"])
def test_sizes_that_are_no_whole_numbers_above_zero_are_refused(shape: Any) -> None:
    with pytest.raises(ValueError, match=r"image_shape must be \(channels, height, width\)"):
        AmplitudeNormalization(shape)


def test_sizes_may_be_those_of_an_image_or_of_numpy() -> None:
    for shape in (torch.zeros(3, 4, 5).shape, [3, 4, 5], tuple(np.array([3, 4, 5]))):
        assert AmplitudeNormalization(shape, "full").amplitude.shape == (3, 4, 3)


WRONG_MEASUREMENTS: dict[str, tuple[Any, type[Exception], str]] = {
    "a tensor": (torch.ones(1, 1, 1), TypeError, r"must be like measurement\(\): \{'amplitude': a tensor\}"),
    "another name": ({"mean": torch.ones(1, 1, 1)}, TypeError, r"must be like measurement\(\)"),
    "a number": ({"amplitude": 1.0}, TypeError, r"must be like measurement\(\)"),
    "not a number": ({"amplitude": torch.full((1, 1, 1), torch.nan)}, ValueError, "amplitude holds NaN or infinity"),
}


@pytest.mark.parametrize(("combined", "error", "words"), WRONG_MEASUREMENTS.values(), ids=WRONG_MEASUREMENTS)
def test_what_is_no_measurement_is_not_received(combined: Any, error: type[Exception], words: str) -> None:
    layer = AmplitudeNormalization((1, 2, 2))
    with pytest.raises(error, match=words):
        layer.receive(combined)
    assert layer.amplitude.item() == 0


@pytest.mark.parametrize("shape", [(1, 8, 8, 8, 8), (8,)])
def test_a_shape_without_one_to_three_spatial_dimensions_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"image_shape must be \(channels, height, width\), or .*, not \("):
        AmplitudeNormalization(shape)


@pytest.mark.parametrize("band", ["dc", "full", 0.3])
def test_a_batch_of_no_images_teaches_nothing(band: Band) -> None:
    layer, images = AmplitudeNormalization((1, 2, 2), band), flat(1.0, 3.0)
    assert layer(images[:0]).shape == (0, 1, 2, 2)
    layer(images)
    before = layer.amplitude.clone()
    assert layer(images[:0]).shape == (0, 1, 2, 2)
    assert torch.equal(layer.amplitude, before)
    assert before.flatten()[0].item() == pytest.approx(8)
    layer.measure([images[:0], images])
    assert torch.equal(layer.amplitude, before)


@pytest.mark.parametrize("precision", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("band", ["dc", "full", 0.3])
def test_images_of_every_precision_are_normalized_and_come_out_in_theirs(band: Band, precision: torch.dtype) -> None:
    images = torch.rand(3, 2, 4, 6, generator=torch.Generator().manual_seed(4)).to(precision)
    layer, other, cast = (AmplitudeNormalization((2, 4, 6), band) for _ in range(3))
    for mode in (True, False):
        expected = layer.train(mode)(images.float())
        output = other.train(mode)(images)
        assert output.dtype == precision
        torch.testing.assert_close(output, expected.to(precision), rtol=0, atol=0)
        output = cast.to(precision).train(mode)(images)  # as all of a model
        assert output.dtype == precision
        torch.testing.assert_close(output.float(), expected, rtol=0.03, atol=0.03)
    other.measure([images])
    layer.measure([images.float()])
    assert torch.equal(other.amplitude, layer.amplitude)


def test_nothing_is_kept_in_double_precision_which_some_devices_lack() -> None:
    assert not any(tensor.dtype == torch.float64 for tensor in AmplitudeNormalization((1, 2, 2)).state_dict().values())


def test_a_state_saved_with_its_bias_in_double_precision_is_restored() -> None:
    layer, again = (AmplitudeNormalization((1, 2, 2), "dc", decay=0.1) for _ in range(2))
    layer(flat(1.0))
    again.load_state_dict(layer.state_dict() | {"bias": torch.tensor(0.9, dtype=torch.float64)})
    again(flat(2.0))
    assert again.amplitude.item() == pytest.approx(1.16 / 0.19)


def test_a_decay_too_small_to_count_is_like_none() -> None:
    layer = AmplitudeNormalization((1, 2, 2), "dc", decay=1e-12)
    for mean in (1.0, 9.0):
        layer(flat(mean))
    assert layer.eval()(flat(9.0)).mean().item() == pytest.approx(1)


class Telling(Harmonizer):
    def measurement(self) -> State:
        return {"mean": torch.zeros(())}


class Harmless(Telling):
    reveals_images = False


def test_what_is_told_may_reveal_images_unless_the_harmonizer_says_that_it_does_not() -> None:
    assert Telling().could_reveal_images()
    assert not Harmless().could_reveal_images()
    assert not Harmonizer().could_reveal_images()
    bands: list[Band] = ["none", "dc", "full", 0.3]
    layers = [AmplitudeNormalization((1, 2, 2), band) for band in bands]
    assert [layer.could_reveal_images() for layer in layers] == [False, False, True, True]


@pytest.mark.parametrize("band", ["dc", "full"])
def test_half_precision_does_not_reach_sums_over_pixels(band: Band) -> None:
    layer = AmplitudeNormalization((1, 384, 384), band)
    layer(torch.full((1, 1, 384, 384), 0.75))
    layer.half()
    assert layer.amplitude.max() == pytest.approx(0.75 * 384 * 384)  # more than half precision holds
    assert layer(torch.full((1, 1, 384, 384), 0.75, dtype=torch.float16)).mean().item() == pytest.approx(0.75, abs=1e-3)
    assert layer.double().amplitude.dtype == torch.float64


@pytest.mark.parametrize("band", ["dc", "full", 0.3])
def test_a_call_before_anything_was_learned_is_refused(band: Band) -> None:
    layer = AmplitudeNormalization((1, 2, 2), band)
    with pytest.raises(RuntimeError, match="no amplitude yet"):
        layer.eval()(flat(1.0))
    layer.freeze()
    with pytest.raises(RuntimeError, match="no amplitude yet"):
        layer.train()(flat(1.0))


@pytest.mark.parametrize("band", ["all", "", 0, -0.1, 0.72, float("nan"), True, None])
def test_an_invalid_band_is_refused_by_name_and_value(band: object) -> None:
    with pytest.raises(ValueError, match=rf"band must be 'none', 'dc', 'full' or a radius .*0\.71.*, not {band!r}"):
        AmplitudeNormalization((1, 2, 2), band)  # type: ignore[arg-type]


@pytest.mark.parametrize("decay", [-0.1, 1.1, float("nan")])
def test_an_invalid_decay_is_refused_by_name_and_value(decay: float) -> None:
    with pytest.raises(ValueError, match=f"decay must be from 0 to 1, not {decay}"):
        AmplitudeNormalization((1, 2, 2), "dc", decay)


def test_the_factory_makes_the_layer_with_its_band_and_decay() -> None:
    layer = NormalizeAmplitude(band="full", decay=0.25)((3, 4, 5))
    assert isinstance(layer, AmplitudeNormalization)
    assert (layer.image_shape, layer.band, layer.decay) == ((3, 4, 5), "full", 0.25)


def test_identity_leaves_images_as_they_are_and_has_nothing_to_tell() -> None:
    layer = identity((1, 2, 2))
    images = flat(1.0, 2.0)
    layer.measure([images])
    layer.receive({})
    layer.freeze()
    assert isinstance(layer, Harmonizer)
    assert layer(images) is images
    assert layer.measurement() == {}
    assert identity.schedule is None


def test_the_shape_may_be_any_sequence() -> None:
    images = torch.rand(2, 1, 3, 4)
    assert AmplitudeNormalization(image_shape=[1, 3, 4])(images).shape == images.shape  # type: ignore[arg-type]
    assert AmplitudeNormalization(image_shape=images.shape[1:])(images).shape == images.shape  # type: ignore[arg-type]


def test_channel_means_do_not_depend_on_the_size_of_images() -> None:
    """What was learned from patches serves whole images and volumes of any size."""
    layer = AmplitudeNormalization((1, 4, 4), "dc")
    layer(flat(0.25, size=(4, 4)))
    assert layer.eval()(torch.rand(2, 1, 9, 7)).mean(dim=(1, 2, 3)).tolist() == pytest.approx([0.25, 0.25])
    with pytest.raises(ValueError, match=r"images must be \(N, 1, 4, 4\), not \(1, 1, 4, 5\)"):
        AmplitudeNormalization((1, 4, 4), "full")(torch.rand(1, 1, 4, 5))


@pytest.mark.parametrize("band", ["dc", "full", 0.3])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_an_image_with_nan_is_refused_and_nothing_is_learned(band: Band, bad: float) -> None:
    layer = AmplitudeNormalization((1, 2, 2), band)
    layer(flat(0.5))
    before = layer.amplitude.clone()
    broken = flat(0.5, 0.5)
    broken[1, 0, 0, 0] = bad
    with pytest.raises(ValueError, match="images hold NaN or infinity: nothing was learned"):
        layer(broken)
    with pytest.raises(ValueError, match="images hold NaN or infinity"):
        layer.measure([broken])
    assert torch.equal(layer.amplitude, before)


def test_with_a_spacing_the_radius_is_in_its_unit() -> None:
    """Voxels of 4 x 1 mm: along the first axis the largest frequency is 1/8 per mm, along the second 1/2."""
    layer = AmplitudeNormalization((1, 4, 8), 0.125, spacing=(4.0, 1.0))
    assert layer.inside is not None
    # Frequencies of the first axis: 0, 1/16, -1/8, -1/16; of the second: 0, 1/8, 1/4, 3/8, 1/2.
    assert layer.inside.nonzero().tolist() == [[0, 0], [0, 1], [1, 0], [2, 0], [3, 0]]
    with pytest.raises(ValueError, match=r"up to 0\.52 \(cycles per unit of spacing\), not 0\.6"):
        AmplitudeNormalization((1, 4, 8), 0.6, spacing=(4.0, 1.0))
    with pytest.raises(ValueError, match=r"spacing must be 2 numbers above 0, not \(1\.0,\)"):
        AmplitudeNormalization((1, 4, 8), 0.1, spacing=(1.0,))
