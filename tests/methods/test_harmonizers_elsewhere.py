import copy
import tomllib
import warnings
from pathlib import Path

import pytest
import torch
from monai.data import MetaTensor, list_data_collate
from spectra import Band
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from harmofl import AmplitudeNormalization, UsageError
from harmofl.settings import resolve


def frozen_layer(shape: tuple[int, ...], band: Band) -> tuple[nn.Sequential, Tensor, Tensor]:
    """A layer inside a model, images for it, and what becomes of them."""
    images = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    layer = AmplitudeNormalization(shape, band)
    layer(images.square())
    layer.freeze()
    return nn.Sequential(layer).eval(), images, layer.eval()(images)


def script(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, and still much used
        return torch.jit.script(model)


@pytest.mark.parametrize("shape", [(2, 9), (2, 8, 7), (1, 4, 6, 5)])
@pytest.mark.parametrize("band", ["dc", 0.3, "full"])
def test_a_frozen_layer_is_exported_and_scripted(shape: tuple[int, ...], band: Band) -> None:
    model, images, expected = frozen_layer(shape, band)
    exported = torch.export.export(model, (images,)).module()
    torch.testing.assert_close(exported(images), expected, atol=1e-5, rtol=0)
    scripted = script(copy.deepcopy(model))
    torch.testing.assert_close(scripted(images), expected, atol=1e-5, rtol=0)
    assert isinstance(model[0], AmplitudeNormalization)


def test_a_frozen_layer_becomes_onnx(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model, images, expected = frozen_layer((1, 4, 6, 5), 0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (images,), tmp_path / "layer.onnx", dynamo=True, verbose=False, input_names=["images"])
    found = onnxruntime.InferenceSession(tmp_path / "layer.onnx").run(None, {"images": images.numpy()})[0]
    torch.testing.assert_close(torch.from_numpy(found), expected, atol=1e-5, rtol=0)


def test_a_layer_that_still_learns_is_not_scripted() -> None:
    with pytest.raises(RuntimeError, match="call freeze\\(\\) first"):
        script(nn.Sequential(AmplitudeNormalization((1, 4, 4))))


@pytest.mark.parametrize("shape", [(2, 8, 7), (1, 4, 6, 5)])
@pytest.mark.parametrize("band", ["dc", 0.3, "full"])
def test_images_of_monai_are_learned_from_as_plain_ones_and_keep_their_affine(
    shape: tuple[int, ...], band: Band
) -> None:
    affine = torch.diag(torch.tensor([0.6, 0.6, 3.0, 1.0], dtype=torch.float64))
    each = [torch.rand(shape, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    batch = list_data_collate([MetaTensor(image, affine=affine) for image in each])
    layer, plain = AmplitudeNormalization(shape, band), AmplitudeNormalization(shape, band)
    found, expected = layer(batch), plain(torch.stack(each))
    assert isinstance(found, MetaTensor)
    assert torch.equal(found.affine[0], affine)
    assert torch.equal(found.as_tensor(), expected)
    layer.measure([batch])
    plain.measure([torch.stack(each)])
    for name, buffer in layer.state_dict().items():
        assert type(buffer) is Tensor
        assert torch.equal(buffer, plain.state_dict()[name])
    assert type(layer.measurement()["amplitude"]) is Tensor


@pytest.mark.parametrize("shape", [(2, 8, 7), (1, 4, 6, 5)])
@pytest.mark.parametrize("band", ["dc", 0.3, "full"])
def test_the_average_of_models_with_their_buffers_has_the_mean_amplitude(shape: tuple[int, ...], band: Band) -> None:
    model = nn.Sequential(AmplitudeNormalization(shape, band, decay=1.0))
    averaged = AveragedModel(model, use_buffers=True)
    amplitudes = []
    for number in range(3):
        model(torch.rand(2, *shape, generator=torch.Generator().manual_seed(number)))
        amplitudes.append(model[0].amplitude.clone())
        averaged.update_parameters(model)
    torch.testing.assert_close(averaged.module[0].amplitude, torch.stack(amplitudes).mean(dim=0))
    averaged.eval()(torch.rand(2, *shape))


def test_a_radius_in_millimetres_reaches_equally_far_along_every_axis_of_a_volume() -> None:
    layer = AmplitudeNormalization((1, 8, 16, 16), band=0.1, spacing=(3.0, 1.0, 1.0))
    inside = layer.inside
    assert inside is not None
    # Bins of slices lie 1/24 cycles a millimetre apart, those of rows and columns 1/16: two and one of them fit.
    assert inside[:, 0, 0].tolist() == [True, True, True, False, False, False, True, True]
    assert inside[0, :, 0].nonzero().flatten().tolist() == [0, 1, 15]
    assert inside[0, 0].nonzero().flatten().tolist() == [0, 1]


def test_a_layer_that_learned_from_patches_serves_a_whole_volume() -> None:
    layer = AmplitudeNormalization((1, 4, 4, 4), band="dc")
    layer(torch.full((1, 1, 4, 4, 4), 0.25))
    layer.freeze()
    assert layer(torch.rand(1, 1, 9, 7, 5)).mean().item() == pytest.approx(0.25, abs=1e-6)


def test_a_method_has_its_radius_in_millimetres() -> None:
    values = {"data.dimensions": 3, "method.spacing": [3, 1, 1], "method.band": 0.1, "data.patch": [8, 16, 16]}
    settings, method = resolve("prostate", "harmofl", "smoke", overrides=values)
    layer = method.harmonizer((1, 8, 16, 16))
    assert isinstance(layer, AmplitudeNormalization)
    assert layer.spacing == (3.0, 1.0, 1.0)
    again, _ = resolve(file=tomllib.loads(settings.to_toml()))
    assert again == settings
    with pytest.raises(UsageError, match=r"method\.spacing = \[3\.0, 1\.0, 1\.0\]: must be 2 numbers"):
        method.harmonizer((1, 16, 16))


@pytest.mark.parametrize(
    ("spacing", "band", "message"),
    [
        ([0, 1, 1], 0.1, r"method\.spacing = \[0, 1, 1\]: must be a number above 0 for each axis"),
        ([2, 2, 2], 0.5, r"method\.band = 0\.5: must be .* up to 0\.44 \(cycles per unit of spacing\)"),
    ],
)
def test_a_wrong_spacing_or_a_radius_beyond_it_is_refused(spacing: list[float], band: float, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve("prostate", "harmofl", "smoke", overrides={"method.spacing": spacing, "method.band": band})
