"""What the card of a model for volumes says: how they are prepared, cut into windows and put together again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harmofl.inference.outputs import mask_values

Tree = Mapping[str, Any]

SAMPLE = """\
```python
import itertools

import nibabel, numpy, onnxruntime
from nibabel.orientations import apply_orientation, axcodes2ornt, io_orientation, ornt_transform
from scipy.ndimage import map_coordinates

PATCH, SPACING, OVERLAP, MIRROR = {patch}, {spacing}, {overlap}, {mirror}
FILES = {files}  # one a channel; the mask lies on the first one's voxels
VALUES = {values}  # what stands in the mask for each class

def read(file):  # its values on the voxels of the first
    image = nibabel.load(file)
    values = numpy.asarray(image.dataobj).reshape(image.shape[:3])
    if values.shape == shape and numpy.allclose(image.affine, affine, atol=1e-3):
        return values
    move = numpy.linalg.inv(image.affine) @ affine
    places = move[:3, :3] @ numpy.indices(shape).reshape(3, -1) + move[:3, 3:]
    return map_coordinates(values.astype("float64"), places.reshape(3, *shape), order=1, mode="nearest")

def scaled(values):
    low, high = {limits}
    high = high if high > low else values.max()  # an almost empty scan keeps the little that it has
    values = values.astype("float64")
    return numpy.clip((values - low) / (high - low), 0, 1) if high > low else numpy.zeros(values.shape)

def sampled(values, factors, shape):  # linear interpolation; beyond the border its own values go on
    places = numpy.meshgrid(*(numpy.arange(n) * f for n, f in zip(shape, factors)), indexing="ij")
    return map_coordinates(values, places, order=1, mode="nearest")

first = nibabel.load(FILES[0])
affine, shape = first.affine, first.shape[:3]
stored, common = io_orientation(affine), axcodes2ornt("SPL")  # slices to the head, rows to the back, columns left
turned = [apply_orientation(scaled(read(file)), ornt_transform(stored, common)) for file in FILES]
lengths = dict(zip(stored[:, 0], numpy.linalg.norm(affine[:3, :3], axis=0)))
own = numpy.array([lengths[axis] for axis in common[:, 0]])  # millimetres between slices, rows and columns
spacing = numpy.array(SPACING or own)
grid = [int(round((n - 1) * o / s + 1)) for n, o, s in zip(turned[0].shape, own, spacing)]
volume = numpy.stack([sampled(values, spacing / own, grid) for values in turned])
missing = [(0, max(0, p - n)) for p, n in zip(PATCH, grid)]
volume = numpy.pad(volume, [(0, 0), *missing], mode="symmetric").astype("float32")

weights = 1.0  # windows count most in their middle
for axis, p in enumerate(PATCH):
    gaussian = numpy.exp(-(((numpy.arange(p) - (p - 1) / 2) / (p / 8)) ** 2) / 2)
    weights = weights * gaussian.reshape([-1 if a == axis else 1 for a in range(3)])
weights = numpy.maximum(weights, max(weights.min(), 1e-3))

def starts(n, p):
    return [*range(0, n - p, max(1, int(p * (1 - OVERLAP)))), n - p]

session = onnxruntime.InferenceSession("model.onnx")
flips = [axes for count in range(4 if MIRROR else 1) for axes in itertools.combinations((2, 3, 4), count)]
logits, total = 0.0, numpy.zeros(volume.shape[1:])
for corner in itertools.product(*(starts(n, p) for n, p in zip(volume.shape[1:], PATCH))):
    place = tuple(slice(c, c + p) for c, p in zip(corner, PATCH))
    window = volume[(slice(None), *place)][None]
    each = [numpy.flip(session.run(["logits"], {{"images": numpy.flip(window, f).copy()}})[0], f)[0] for f in flips]
    if numpy.isscalar(logits):
        logits = numpy.zeros((len(each[0]), *volume.shape[1:]))
    logits[(slice(None), *place)] += weights * numpy.mean(each, axis=0)
    total[place] += weights
logits = (logits / total)[:, : grid[0], : grid[1], : grid[2]]

back = numpy.stack([sampled(values, own / spacing, turned[0].shape) for values in logits])  # the scan's own voxels
mask = apply_orientation(numpy.array(VALUES, dtype="{kind}")[back.argmax(axis=0)], ornt_transform(common, stored))
nibabel.save(nibabel.Nifti1Image(mask, affine), "mask.nii.gz")
```"""


def describe_preparation(description: Tree, scaling: str) -> list[str]:
    """What happens to a volume before it goes in, step by step."""
    data = description["settings"]["data"]
    spacing = data.get("spacing")
    resample = (
        f"Resample it to {_by(spacing)} mm between slices, rows and columns, linearly, from its first voxel on: "
        "(n − 1) · own / new + 1 voxels along each axis, rounded."
        if spacing
        else "It keeps its own spacing."
    )
    return [
        f"Scale its values to [0, 1], each channel separately: {scaling}.",
        "Turn it so that slices run towards the head, rows towards the back and columns towards the patient's left.",
        resample,
        *(_class_steps(data) if description["kind"] == "classification" else _mask_steps(description)),
    ]


def _class_steps(data: Tree) -> list[str]:
    size = f"{_by(_patch(data))} voxels"
    if data.get("spacing"):
        return [f"Cut it, or mirror it at its ends, to {size} around its middle."]
    return [f"Scale it to {size} (trilinear)."]


def _mask_steps(description: Tree) -> list[str]:
    data, prediction = description["settings"]["data"], description["settings"].get("prediction", {})
    overlap = prediction.get("overlap", 0.25)
    steps = [
        f"Cut it into windows of {_by(_patch(data))} voxels that share {overlap:.0%} of their size; the last along "
        "each axis ends where the volume does. Mirror a smaller volume at its ends.",
        "Add up the logits of all windows, each voxel weighted by a Gaussian of its place in the window (σ = an eighth "
        "of the window along each axis, at least 0.001), and divide by the sum of the weights.",
        "Interpolate the logits linearly to the voxels of the scan; the highest is the class.",
    ]
    if prediction.get("mirror"):
        steps.insert(1, "Take the mean of the logits over each window and its seven mirror images, turned back.")
    return steps


def sample_for(description: Tree) -> str:
    """A script that makes the same mask from a NIfTI file with onnxruntime, nibabel and scipy."""
    data, prediction = description["settings"]["data"], description["settings"].get("prediction", {})
    channels = description["input"]["channels"]
    values = mask_values(description["classes"])
    files = ["scan.nii.gz"] if channels == 1 else [f"channel-{number}.nii.gz" for number in range(1, channels + 1)]
    return SAMPLE.format(
        patch=_patch(data),
        spacing=data.get("spacing"),
        overlap=prediction.get("overlap", 0.25),
        mirror=bool(prediction.get("mirror")),
        files=files,
        values=values,
        kind="uint8" if max(values) < 256 else "uint16",
        limits=_limits(data.get("intensity", "auto")),
    )


def _limits(intensity: str | list[float]) -> str:
    if isinstance(intensity, list):
        return f"{intensity[0]}, {intensity[1]}"
    if intensity == "range":
        return "values.min(), values.max()"
    percentile = "values.min(), numpy.percentile(values, 99)"
    return f'(0, 255) if values.dtype == "uint8" else ({percentile})' if intensity == "auto" else percentile


def _patch(data: Tree) -> list[int]:
    return list(data.get("patch") or [data["size"]] * 3)


def _by(sizes: list[Any]) -> str:
    return " × ".join(f"{size:g}" for size in sizes)
