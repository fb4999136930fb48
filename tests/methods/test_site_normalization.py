"""FedRDN: statistics of a random site in training, of the own site otherwise."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harmofl.errors import RefusalError
from harmofl.methods.catalogue import fedrdn
from harmofl.methods.channel import Combining
from harmofl.methods.layers import Harmonizer
from harmofl.methods.model import Model
from harmofl.methods.pieces import Memory
from harmofl.methods.site_normalization import SMALLEST_DEVIATION, NormalizeBySite, SiteNormalization
from harmofl.states import snapshot

DARK = torch.tensor([[[[0.0, 0.2]], [[0.4, 0.4]]], [[[0.2, 0.6]], [[0.2, 0.8]]]])
"""Two images of two channels and two pixels: means 0.1 and 0.4, 0.4 and 0.5; deviations 0.1 and 0.2, 0 and 0.3."""


def measured(images: torch.Tensor = DARK) -> SiteNormalization:
    layer = SiteNormalization((2, 1, 2))
    layer.measure(images.split(1))
    return layer


def received(**sites: tuple[float, float]) -> SiteNormalization:
    """A layer of its own mean 0 and deviation 1 that knows sites of a (mean, deviation), for both channels."""
    layer, combining = SiteNormalization((2, 1, 2)), Combining({"harmonizer": fedrdn.harmonizer}, {}, len(sites))
    for site, (mean, deviation) in sites.items():
        statistics = {"mean": torch.full((2, 1, 1), mean), "deviation": torch.full((2, 1, 1), deviation)}
        combining.add(site, {f"harmonizer.{name}": tensor for name, tensor in statistics.items()})
    layer.receive({name.removeprefix("harmonizer."): tensor for name, tensor in combining.value().items()})
    return layer


def test_statistics_are_those_of_each_image_averaged_over_images() -> None:
    layer = measured()
    assert layer.mean.flatten().tolist() == pytest.approx([0.25, 0.45])
    assert layer.deviation.flatten().tolist() == pytest.approx([0.15, 0.15])  # not 0.2179, of all pixels together
    assert layer.measurement().keys() == {"mean", "deviation"}


def test_an_image_is_normalized_with_its_own_site_s_statistics_when_a_model_is_used() -> None:
    layer = measured().eval()
    expected = torch.tensor([[[[-5 / 3, -1 / 3]], [[-1 / 3, -1 / 3]]]])  # (0 − 0.25) / 0.15 and so on
    torch.testing.assert_close(layer(DARK[:1]), expected)
    layer.receive({"mean.B": torch.ones(2, 1, 1), "deviation.B": torch.ones(2, 1, 1)})
    torch.testing.assert_close(layer(DARK[:1]), expected)  # whatever other sites there are


def test_in_training_every_image_takes_mean_and_deviation_of_one_random_site() -> None:
    layer, images = received(A=(0.1, 0.5), B=(0.2, 0.25)), torch.full((400, 2, 1, 2), 0.6)
    torch.manual_seed(0)
    values = layer.train()(images)
    per_image = values.flatten(1)
    assert torch.equal(per_image, per_image[:, :1].expand_as(per_image))  # one site for all of an image
    found = {round(value, 4) for value in per_image[:, 0].tolist()}
    assert found == {1.0, 1.6}  # (0.6 − 0.1) / 0.5 and (0.6 − 0.2) / 0.25, never a mixture
    assert 150 < int((per_image[:, 0] > 1.3).sum()) < 250
    assert not torch.equal(layer(images), values)  # other sites in the next epoch
    torch.manual_seed(0)
    assert torch.equal(layer(images), values)  # but the same ones again with the same seed


def test_sites_are_drawn_in_the_order_of_their_names_however_they_came() -> None:
    first, second = received(A=(0.1, 0.5), B=(0.2, 0.25)), received(B=(0.2, 0.25), A=(0.1, 0.5))
    assert torch.equal(first.means, second.means)
    assert torch.equal(first.deviations, second.deviations)


def test_where_every_site_has_mean_0_and_deviation_1_it_is_fedavg() -> None:
    images = torch.rand(5, 2, 1, 2)
    assert torch.equal(received(A=(0.0, 1.0), B=(0.0, 1.0)).train()(images), images)


def test_a_channel_without_contrast_is_not_blown_up() -> None:
    layer = measured(torch.full((2, 2, 1, 2), 0.5)).eval()
    assert torch.equal(layer(torch.full((1, 2, 1, 2), 0.5)), torch.zeros(1, 2, 1, 2))
    assert layer(torch.ones(1, 2, 1, 2)).max() == 0.5 / SMALLEST_DEVIATION


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**31))
def test_in_any_number_of_dimensions_normalized_images_have_mean_0_and_deviation_1_on_average(
    channels: int, dimensions: int, seed: int
) -> None:
    images = torch.rand(4, channels, *(5, 4, 3)[:dimensions], generator=torch.Generator().manual_seed(seed)).double()
    layer = SiteNormalization(images.shape[1:]).double()
    layer.measure([images[:3], images[3:]])
    normalized = layer.eval()(images).flatten(2)
    torch.testing.assert_close(normalized.mean(dim=(0, 2)), torch.zeros(channels).double(), rtol=0, atol=1e-9)
    deviations = normalized.std(dim=2, correction=0).mean(dim=0)
    torch.testing.assert_close(deviations, torch.ones(channels).double(), rtol=1e-9, atol=0)


def test_only_the_site_s_own_statistics_are_part_of_a_model() -> None:
    layer = received(A=(0.1, 0.5), B=(0.2, 0.25))
    assert snapshot(layer).keys() == {"mean", "deviation"} == layer.own
    assert not layer.could_reveal_images()
    assert not layer.repeatable  # so that no epoch sees the images of the one before


@pytest.mark.parametrize(
    ("images", "words"),
    [(torch.full((1, 2, 1, 2), torch.nan), "NaN"), (torch.rand(1, 3, 1, 2), r"images must be \(N, 2, 1, 2\)")],
)
def test_images_that_would_spoil_the_statistics_are_refused(images: torch.Tensor, words: str) -> None:
    layer = measured()
    with pytest.raises(ValueError, match=words):
        layer.measure([images])
    with pytest.raises(ValueError, match="no images"):
        layer.measure([])
    assert layer.mean.flatten().tolist() == pytest.approx([0.25, 0.45])


def test_a_site_that_has_measured_nothing_says_so_instead_of_using_images_as_they_are() -> None:
    piece = NormalizeBySite()
    model = Model(piece((2, 1, 2)), torch.nn.Identity())  # type: ignore[arg-type]
    with pytest.raises(RefusalError, match="was not there when the sites measured"):
        piece.receive(model, Memory(received={"mean.A": DARK, "deviation.A": DARK}))
    assert isinstance(model.harmonizer, Harmonizer)
