"""What the card of a model for volumes says: how they are prepared, cut into windows and put together again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Tree = Mapping[str, Any]

SAMPLE = """\
```python
import itertools

import nibabel, numpy, onnxruntime
from nibabel.orientations import axcodes2ornt, inv_ornt_aff, io_orientation, ornt_transform
from scipy.ndimage import map_coordinates

PATCH, SPACING, OVERLAP, MIRROR = {patch}, {spacing}, {overlap}, {mirror}
FILES = {files}  # one a channel, all on the same voxels

def oriented(file):  # slices lead to the head, rows to the back, columns to the patient's left
    image = nibabel.load(file)
    image = nibabel.Nifti1Image(numpy.asarray(image.dataobj), image.affine, image.header)
    return image, image.as_reoriented(ornt_transform(io_orientation(image.affine), axcodes2ornt("SPL")))

def scaled(values):
    low, high = {limits}
    values = values.astype("float64")
    return numpy.clip((values - low) / (high - low), 0, 1) if high > low else numpy.zeros(values.shape)

def sampled(values, factors, shape):  # linear interpolation; beyond the border its own values go on
    places = numpy.meshgrid(*(numpy.arange(n) * f for n, f in zip(shape, factors)), indexing="ij")
    return map_coordinates(values, places, order=1, mode="nearest")

pairs = [oriented(file) for file in FILES]
image, turned = pairs[0]
own = numpy.linalg.norm(turned.affine[:3, :3], axis=0)  # millimetres between slices, rows and columns
spacing = numpy.array(SPACING or own)
grid = [int(round((n - 1) * o / s + 1)) for n, o, s in zip(turned.shape[:3], own, spacing)]
volume = numpy.stack([sampled(scaled(numpy.asarray(t.dataobj)), spacing / own, grid) for _, t in pairs])
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

back = numpy.stack([sampled(values, own / spacing, turned.shape[:3]) for values in logits])  # the scan's own voxels
mask = nibabel.Nifti1Image(back.argmax(axis=0).astype("uint8"), turned.affine)
mask = mask.as_reoriented(ornt_transform(axcodes2ornt("SPL"), io_orientation(image.affine)))
nibabel.save(nibabel.Nifti1Image(numpy.asarray(mask.dataobj), image.affine), "mask.nii.gz")
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
        f"Scale its values to [0, 1], each channel for itself: {scaling}.",
        "Turn it so that slices lead to the head, rows to the back and columns to the patient's left.",
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
    files = ["scan.nii.gz"] if channels == 1 else [f"channel-{number}.nii.gz" for number in range(1, channels + 1)]
    return SAMPLE.format(
        patch=_patch(data),
        spacing=data.get("spacing"),
        overlap=prediction.get("overlap", 0.25),
        mirror=bool(prediction.get("mirror")),
        files=files,
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
