import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import harmofl
from harmofl import AmplitudeNormalization, Method, registry
from harmofl.inference import export
from harmofl.inference.export import export_model
from harmofl.inference.plain import plain_harmonizer
from harmofl.methods.harmonizers import Harmonization
from harmofl.methods.layers import SMALLEST_RATIO, Band, Harmonizer
from harmofl.runs.model_folder import describe_model, open_model, write_model
from harmofl.settings import resolve
from harmofl.tasks.data_facts import find_data_facts

SITES = ("north", "south")
CASES = [  # every task, band and norm; odd and even sizes
    ("histology", "dc", "batch", 32),
    ("nuclei", "full", "group", 33),
    ("prostate", 0.1, "batch-statistics", 32),
    ("histology", "none", "instance", 32),
    ("nuclei", "dc", "weight-standardization", 32),
]


def lively(model: torch.nn.Module) -> torch.nn.Module:
    """Norm layers and amplitudes as after a training on dark images: a wrong layer would show."""
    images = torch.rand(8, *model.harmonizer_shape, generator=torch.Generator().manual_seed(1)) ** 2
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = 1.0
    model.harmonizer.measure([images])
    model.harmonizer.freeze()
    with torch.no_grad():
        model.train()(images)
    return model.eval()


def written(
    folder: Path, task: str = "histology", method: str | Method = "harmofl", sites: tuple[str, ...] = (), **changes: Any
) -> Path:
    """A model folder, one model per site if sites are given."""
    overrides = {name.replace("__", "."): value for name, value in changes.items()}
    resolved, chosen = resolve(task, method, "smoke", overrides=overrides)
    found = registry.tasks.find(task)
    for number, place in enumerate([folder / "sites" / site for site in sites] or [folder]):
        model = found.build_model(resolved.model_copy(update={"seed": number}), chosen)
        model.harmonizer_shape = (3, resolved.data.size, resolved.data.size)
        write_model(place, lively(model), found, resolved, find_data_facts(resolved), SITES, 2)
    if sites:
        describe_model(folder, found, resolved, find_data_facts(resolved), sites, None)
    return folder


def images_for(folder: Path, number: int) -> torch.Tensor:
    size = json.loads((folder / "model.json").read_text())["input"]
    generator = torch.Generator().manual_seed(number)
    return torch.rand(number, size["channels"], size["height"], size["width"], generator=generator)


def run(path: Path, images: torch.Tensor) -> torch.Tensor:
    execute = export._run_onnx if path.suffix == ".onnx" else export._run_torchscript
    with export._silence_exporters():
        return execute(path.read_bytes(), images)


def check_same(path: Path, folder: Path, number: int, site: str | None = None, method: Method | None = None) -> None:
    images = images_for(folder, number)
    with torch.no_grad():
        expected = open_model(folder, site, method).model(images)
    assert expected.std() > 0.01
    torch.testing.assert_close(run(path, images), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("format", ["onnx", "torchscript"])
@pytest.mark.parametrize(("task", "band", "norm", "size"), CASES)
def test_the_file_gives_the_model_s_numbers_for_any_number_of_images(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], task: str, band: Band, norm: str, size: int, format: Any
) -> None:
    folder = written(tmp_path / "model", task, method__band=band, model__norm=norm, data__size=size)
    path = export_model(folder, format)
    assert path == folder / "export" / ("model.onnx" if format == "onnx" else "model.pt")
    assert {entry.name for entry in path.parent.iterdir()} == {path.name, "MODEL.md"}
    for number in (1, 2, 5):
        check_same(path, folder, number)
    assert capfd.readouterr() == ("", "")
    assert str(Path.cwd()).encode() not in path.read_bytes()  # nor any other path of this machine
    assert b"site-packages" not in path.read_bytes()


@pytest.mark.parametrize("norm", ["batch", "batch-statistics"])
def test_batch_statistics_and_only_they_look_at_the_images_beside(tmp_path: Path, norm: str) -> None:
    folder = written(tmp_path / "model", model__norm=norm)
    path, images = export_model(folder, "torchscript"), images_for(folder, 4)
    alone, together = run(path, images[:2]), run(path, images)[:2]
    assert torch.allclose(alone, together, atol=1e-4) == (norm == "batch")


def test_both_files_and_the_card_s_samples_work_without_this_package(tmp_path: Path) -> None:
    folder = written(tmp_path / "model", method__band="full")
    for format in ("onnx", "torchscript"):
        export_model(folder, format, out=tmp_path / "out")  # type: ignore[arg-type]
    images = images_for(folder, 5)
    with torch.no_grad():
        np.savez(tmp_path / "out" / "test.npz", images=images, logits=open_model(folder).model(images))
    onnx_sample, torch_sample = re.findall(r"```python\n(.*?)```", (tmp_path / "out" / "MODEL.md").read_text(), re.S)
    program = f"""
{onnx_sample}
one_image = logits
{torch_sample}
assert abs(one_image - logits.detach().numpy()).max() < 1e-4
import sys
test = numpy.load("test.npz")
for found in (session.run(None, {{"images": test["images"]}})[0], model(torch.tensor(test["images"])).detach().numpy()):
    assert abs(found - test["logits"]).max() < 1e-4
assert not {{"harmofl", "monai"}} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path / "out", check=True, timeout=120)


def test_the_files_say_what_they_need_but_not_where_they_were_made(tmp_path: Path) -> None:
    import onnxruntime

    folder = written(tmp_path / "model")
    description = json.loads((folder / "model.json").read_text())
    session = onnxruntime.InferenceSession(str(export_model(folder, "onnx")))
    said = session.get_modelmeta().custom_metadata_map
    assert said["title"] == "breast histology classification"
    assert json.loads(said["input"]) == description["input"]
    assert [session.get_inputs()[0].name, session.get_outputs()[0].name] == ["images", "logits"]
    assert session.get_inputs()[0].shape == ["batch", 3, 32, 32]
    extra = {"model.json": ""}
    with export._silence_exporters():
        torch.jit.load(str(export_model(folder, "torchscript")), _extra_files=extra)
    assert json.loads(extra["model.json"])["sites"] == list(SITES)
    assert str(tmp_path) not in extra["model.json"].decode() + str(said)  # type: ignore[attr-defined]


def test_a_site_s_own_model_is_exported_where_each_has_one(tmp_path: Path) -> None:
    folder = written(tmp_path / "run" / "model", method="fedbn", sites=SITES)
    (tmp_path / "run" / "config.toml").touch()
    with pytest.raises(harmofl.UsageError, match=r"one model per site.*--site.*north, south"):
        export_model(tmp_path / "run", "torchscript")
    with pytest.raises(harmofl.UsageError, match="unknown site 'sooth'; did you mean 'south'"):
        export_model(tmp_path / "run", "torchscript", site="sooth")
    path = export_model(tmp_path / "run", "torchscript", site="south")
    assert path == tmp_path / "run" / "export" / "south" / "model.pt"
    check_same(path, folder, 2, site="south")
    card = (path.parent / "MODEL.md").read_text()
    assert "at 2 sites: north, south" in card
    assert "this is the one of south" in card
    assert "| selected round | 2 of" in card
    assert export_model(folder, "torchscript", site="north").parent == tmp_path / "run" / "export" / "north"


def test_a_site_does_not_matter_where_all_share_a_model(tmp_path: Path) -> None:
    folder = written(tmp_path / "model")
    assert export_model(folder, "torchscript", site=SITES[0]) == folder / "export" / "model.pt"


class Halved(Harmonizer):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images / 2


class Counting(Harmonizer):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images * float(images.sum())  # a tracer keeps the number it saw


class Broken(Harmonizer):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if torch.jit.is_tracing():
            raise OSError("no way\nand much more")
        return images


class Own(Harmonization):
    def __init__(self, kind: type[Harmonizer]) -> None:
        self.kind = kind

    def __call__(self, image_shape: tuple[int, int, int]) -> Harmonizer:
        return self.kind()


def test_a_harmonizer_of_your_own_is_exported_as_it_is(tmp_path: Path) -> None:
    method = Method("Halving", harmonizer=Own(Halved))
    folder = written(tmp_path / "model", method=method)
    check_same(export_model(folder, "torchscript", method=method), folder, 4, method=method)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(Counting, "gives different numbers from the model.*nothing was written"), (Broken, "OSError: no way$")],
)
def test_a_harmonizer_that_cannot_be_exported_is_refused_and_leaves_nothing(
    tmp_path: Path, kind: type[Harmonizer], reason: str
) -> None:
    method = Method("Own", harmonizer=Own(kind))
    folder = written(tmp_path / "model", method=method)
    with pytest.raises(harmofl.RunError, match=reason):
        export_model(folder, "torchscript", method=method)
    assert not (folder / "export").exists()


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path / "model")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(harmofl.UsageError, match=r"^--format onnx needs an extra: pip install 'harmofl\[onnx\]'$"):
        export_model(folder, "onnx")
    export_model(folder, "torchscript")


def test_a_model_too_large_for_one_onnx_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path / "model")
    monkeypatch.setattr(export, "LARGEST_ONNX", 1000)
    with pytest.raises(harmofl.UsageError, match="2 GiB at most"):
        export_model(folder, "onnx")


def test_wrong_requests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(harmofl.UsageError, match="neither a finished run"):
        export_model(tmp_path, "onnx")
    folder = written(tmp_path / "model")
    with pytest.raises(harmofl.UsageError, match="unknown format 'onxx'; did you mean 'onnx'"):
        export_model(folder, "onxx")  # type: ignore[arg-type]
    (tmp_path / "file").touch()
    with pytest.raises(harmofl.UsageError, match=r"--out .*file: (Not a directory|File exists)"):
        export_model(folder, "torchscript", out=tmp_path / "file")


# The formulation without a Fourier transform


def measured(shape: tuple[int, ...], band: Band) -> AmplitudeNormalization:
    harmonizer = AmplitudeNormalization(shape, band)
    harmonizer.measure([torch.rand(4, *shape, generator=torch.Generator().manual_seed(7)) ** 2])
    harmonizer.freeze()
    return harmonizer.eval()


@pytest.mark.parametrize("shape", [(3, 16, 16), (1, 15, 17), (2, 16, 9), (2, 5, 8), (3, 97, 128), (2, 5, 6, 9)])
@pytest.mark.parametrize("band", ["none", "dc", 0.1, 0.35, "full"])
def test_plain_operators_do_what_the_harmonizer_does(shape: tuple[int, ...], band: Band) -> None:
    harmonizer = measured(shape, band)
    plain = plain_harmonizer(harmonizer)
    images = torch.rand(2, *shape, generator=torch.Generator().manual_seed(3))
    mixed = torch.stack([images[0], torch.zeros(shape)])  # what an image becomes does not depend on another's
    almost_flat = 0.5 + 2e-7 * images  # rounding error, no phase
    for batch in (images, images - 0.9, almost_flat, torch.full_like(images, -0.3), mixed):
        torch.testing.assert_close(plain(batch), harmonizer(batch), atol=1e-5, rtol=0)


def test_plain_operators_stay_exact_at_the_paper_s_largest_size() -> None:
    harmonizer = measured((1, 384, 384), "full")
    images = torch.rand(1, 1, 384, 384, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(plain_harmonizer(harmonizer)(images), harmonizer(images), atol=1e-5, rtol=0)


@settings(deadline=None)
@given(
    height=st.integers(1, 12),
    width=st.integers(1, 12),
    band=st.sampled_from(["dc", 0.2, 0.5, "full"]),
    offset=st.floats(-1, 1, width=32),
    levels=st.integers(0, 5),
    seed=st.integers(0, 100),
)
def test_plain_operators_agree_on_any_image(
    height: int, width: int, band: Band, offset: float, levels: int, seed: int
) -> None:
    harmonizer = measured((2, height, width), band)
    noise = torch.randint(levels + 1, (1, 2, height, width), generator=torch.Generator().manual_seed(seed))
    images = noise / max(1, levels) + offset
    assume((images.mean(dim=(-2, -1)).abs() > 1e-5).all())  # else rounding decides the mean's sign
    difference = (plain_harmonizer(harmonizer)(images) - harmonizer(images)).abs().max()
    assert difference <= 1e-5 + rounding(images)


def rounding(images: torch.Tensor) -> float:
    """How far the phases of weak bins, known only to a float's precision, can move a pixel."""
    amplitudes = torch.fft.rfft2(images.double()).abs()
    weakness = amplitudes.max() / amplitudes
    weakness = weakness[weakness < 2 / SMALLEST_RATIO]
    return float(1e-6 * weakness.sum())
