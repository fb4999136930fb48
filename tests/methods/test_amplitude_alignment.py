"""One filter for all images of a site: what differs between sites goes, what differs within a site stays."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from spectra import Band, Images, bands, inside_band, spatial, spectrum_of, two_batches

from harmofl.inference.plain import plain_harmonizer
from harmofl.methods.amplitude_alignment import AlignAmplitude, AmplitudeAlignment
from harmofl.methods.channel import Combining
from harmofl.methods.layers import largest_radius


def aligned_layers(sites: list[Images], band: Band, max_gain: float = 10.0) -> list[AmplitudeAlignment]:
    """A layer for each site, after all have measured and the server has taken the mean."""
    if isinstance(band, float):
        band = min(band, largest_radius([1] * (sites[0].ndim - 2)))
    layers = [AmplitudeAlignment(images.shape[1:], band, max_gain).double() for images in sites]
    combining = Combining({"harmonizer": AlignAmplitude()}, {}, len(sites))
    for name, layer, images in zip("ABCDEF", layers, sites, strict=False):
        layer.measure(torch.from_numpy(images).split(1))
        combining.add(name, {f"harmonizer.{key}": value for key, value in layer.measurement().items()})
    for layer in layers:
        layer.receive({"amplitude": combining.value()["harmonizer.amplitude"]})
    return layers


def filtered(images: Images, own: Images, shared: Images, inside: Images, max_gain: float) -> Images:
    """The definition: every bin of the full spectrum inside the band times the ratio, within its limits."""
    known = inside & (own > 1e-6 * own[:, inside].max()) & (shared > 0)
    ratio = np.divide(shared, own, out=np.ones_like(own), where=known)
    gain = np.where(known, np.clip(ratio, 1 / max_gain, max_gain), 1)
    return np.fft.ifftn(spectrum_of(images) * gain, axes=spatial(images)).real


@settings(deadline=None, max_examples=50)
@given(two_batches(), bands, st.sampled_from([1.0, 1.5, 10.0]))
def test_the_filter_is_that_of_the_full_spectrum_in_any_number_of_dimensions(
    sites: tuple[Images, Images], band: Band, max_gain: float
) -> None:
    means = [np.abs(spectrum_of(images)).mean(axis=0) for images in sites]
    layers = aligned_layers(list(sites), band, max_gain)
    inside = inside_band(band, *sites[0].shape[2:])
    for images, own, layer in zip(sites, means, layers, strict=True):
        near_the_limit = np.abs(own / own[:, inside].max().clip(1e-300) - 1e-6) < 1e-9  # where rounding decides
        if not near_the_limit.any():
            expected = filtered(images, own, (means[0] + means[1]) / 2, inside, max_gain)
            np.testing.assert_allclose(layer(torch.from_numpy(images)).numpy(), expected, atol=1e-8)


@settings(deadline=None, max_examples=40)
@given(two_batches(), bands)
def test_afterwards_every_site_has_the_same_mean_amplitude_inside_the_band(
    sites: tuple[Images, Images], band: Band
) -> None:
    """Where no gain meets its limit; and phases, and ratios between a site's images, are as they were."""
    layers = aligned_layers(list(sites), band, max_gain=1e9)
    inside = np.broadcast_to(inside_band(band, *sites[0].shape[2:]), sites[0].shape[1:])
    before = [np.abs(spectrum_of(images)) for images in sites]
    after = [spectrum_of(layer(torch.from_numpy(images)).numpy()) for layer, images in zip(layers, sites, strict=True)]
    shared = (before[0].mean(axis=0) + before[1].mean(axis=0)) / 2
    known = inside & np.all([b.mean(axis=0) > 1e-3 * b.max() for b in before], axis=0)
    for old, new, images in zip(before, after, sites, strict=True):
        np.testing.assert_allclose(np.abs(new).mean(axis=0)[known], shared[known], rtol=1e-6)
        gain = shared[known] / old.mean(axis=0)[known]
        np.testing.assert_allclose(new[:, known], spectrum_of(images)[:, known] * gain, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(new[:, ~inside], spectrum_of(images)[:, ~inside], atol=1e-9)


def test_brightness_by_hand() -> None:
    """Sites of mean 0.2 and 0.6, 0.4 together: the dark means double, the bright ones fall by a third."""
    dark = np.array([0.1, 0.3]).reshape(2, 1, 1, 1) + np.array([-0.05, 0.05]).reshape(1, 1, 1, 2)
    bright = np.full((1, 1, 1, 2), 0.6)
    layers = aligned_layers([dark, bright], "dc")
    found = layers[0](torch.from_numpy(dark)).flatten()
    assert found.tolist() == pytest.approx([0.15, 0.25, 0.55, 0.65])  # contrast within an image as before
    assert layers[1](torch.from_numpy(bright)).flatten().tolist() == pytest.approx([0.4, 0.4])


def test_a_single_site_and_a_layer_without_measurement_change_nothing_at_all() -> None:
    images = np.random.default_rng(0).random((3, 2, 6, 5))
    given_images = torch.from_numpy(images)
    for band in ("none", "dc", 0.2, "full"):
        assert torch.equal(aligned_layers([images], band)[0](given_images), given_images)
        assert torch.equal(AmplitudeAlignment((2, 6, 5), band).double()(given_images), given_images)


def test_what_a_site_has_all_but_lost_is_not_blown_up() -> None:
    """A site whose scanner removes fine detail, but for noise; at the limit of 4 the noise grows fourfold at most."""
    generator = np.random.default_rng(0)
    sharp = generator.random((8, 1, 8, 8))
    blurred = 0.5 + 1e-4 * generator.random((8, 1, 8, 8))
    layer = aligned_layers([blurred, sharp], "full", max_gain=4.0)[0]
    rise = layer(torch.from_numpy(blurred)).std(dim=(2, 3)) / torch.from_numpy(blurred).std(dim=(2, 3))
    assert rise.max() <= 4 + 1e-9
    assert rise.min() > 3  # and it would be thousands
    black = aligned_layers([np.zeros((2, 1, 8, 8)), sharp], "full")[0](torch.zeros(1, 1, 8, 8).double())
    assert torch.equal(black, torch.zeros_like(black))


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 15, 9), (1, 1, 1), (1, 4, 5)])
@pytest.mark.parametrize("band", ["none", "dc", 0.2, "full"])
def test_plain_operators_do_the_same(shape: tuple[int, int, int], band: Band) -> None:
    generator = torch.Generator().manual_seed(0)
    layer = AmplitudeAlignment(shape, band)
    layer.measure([torch.rand(4, *shape, generator=generator) ** 2])
    layer.receive({"amplitude": 2 * layer.own_amplitude * torch.rand(layer.amplitude.shape, generator=generator)})
    images = torch.rand(2, *shape, generator=generator)
    torch.testing.assert_close(plain_harmonizer(layer)(images), layer(images), atol=1e-5, rtol=0)


def test_a_mean_of_a_channel_is_shared_from_few_images_but_a_spectrum_is_not() -> None:
    assert not AmplitudeAlignment((1, 4, 4), "dc").could_reveal_images()
    assert AmplitudeAlignment((1, 4, 4), "full").could_reveal_images()
    assert AlignAmplitude().measures_first


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match=r"max_gain must be 1 or more, not 0\.5"):
        AmplitudeAlignment((1, 4, 4), "dc", max_gain=0.5)
    layer = AmplitudeAlignment((1, 4, 4), "dc")
    with pytest.raises(ValueError, match="NaN"):
        layer.measure([torch.full((1, 1, 4, 4), torch.nan)])
    assert layer.half().own_amplitude.dtype == torch.float32
