"""DICOM images: one file with one or more frames, or a folder that holds one series."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harmofl.data.formats.content import is_dicom
from harmofl.data.formats.frames import Frame, affine_of, frame_count, list_frames, numbers, sort_frames, value_of
from harmofl.data.formats.grid import orientation_of, slice_axis, to_slices
from harmofl.data.formats.guards import check_size, describe_shape, reading, to_plain_type
from harmofl.data.scans import Geometry, Mask, Pixels, Scan, UnreadableError

DIRECTORY = "1.2.840.10008.1.3.10"
DEFLATED = "1.2.840.10008.1.2.1.99"
MORE_CODECS = "; more kinds can be with: pip install pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg"
SEGMENTATIONS = ("1.2.840.10008.5.1.4.1.1.66.4", "1.2.840.10008.5.1.4.1.1.66.7")


def read_dicom(path: Path) -> Scan:
    """A file or a folder with one series, its slices in the order of their positions."""
    with reading("DICOM file"):
        return read_series(series_files(path))


def read_series(files: Sequence[Path]) -> Scan:
    """The same from the files of one series."""
    stored, geometry = _read(files, labels=False)
    return Scan(to_plain_type(to_slices(stored, geometry.orientation)), geometry)


def read_dicom_labels(path: Path) -> tuple[Mask, Geometry]:
    """(columns, rows, slices) of a mask that is a DICOM image, and how they lie."""
    with reading("DICOM file"):
        stored, geometry = _read(series_files(path), labels=True)
    if stored.shape[3] != 1:
        raise UnreadableError("a colour picture; a mask holds one number per pixel")
    return stored[..., 0], geometry


def _read(files: Sequence[Path], labels: bool) -> tuple[Pixels, Geometry]:
    """(columns, rows, slices, channels)."""
    with reading("DICOM file"):
        headers = [dataset_of(file, headers_only=True) for file in files]
        check_series(headers)
        ordered, notes = sort_frames(list_frames(headers))
        affine, more = affine_of(ordered)
        frames, padding = zip(*(_frames(dataset_of(file), labels) for file in files), strict=True)
        stored = _stack(frames, ordered)
        if any(each.any() for each in padding):
            _fill(stored, _stack(padding, ordered))
        return stored, Geometry(
            kind="dicom",
            affine=np.eye(4) if affine is None else affine,
            stored_shape=stored.shape[:3],
            orientation=orientation_of(affine),
            axis=slice_axis(affine),
            notes=notes + more,
        )


def _stack(pixels: Sequence[NDArray[Any]], frames: Sequence[Frame]) -> NDArray[Any]:
    """(columns, rows, slices, channels) in the order of the frames."""
    return np.stack([pixels[frame.file][frame.index] for frame in frames], axis=2).swapaxes(0, 1)


def _fill(stored: Pixels, padding: NDArray[np.bool_]) -> None:
    """Give padded pixels the least of the others' values, in place: else they would be the image's darkest."""
    padded, others = stored[padding], stored[~padding]
    # A value that lies among the others is no padding, whatever the file calls it.
    if others.size and (padded.max() < others.min() or padded.min() > others.max()):
        stored[padding] = others.min()


def series_files(path: Path) -> list[Path]:
    """The file itself, or the DICOM files of a folder."""
    if not path.is_dir():
        return [path]
    files = [file for file in sorted(path.iterdir()) if file.name.upper() != "DICOMDIR" and is_dicom(file)]
    for file in files:
        if not file.resolve().is_relative_to(path.resolve()):
            raise UnreadableError(f"the link {file.name} in it leads out of the folder")
    if not files:
        raise UnreadableError("a folder without DICOM files")
    return files


def dataset_of(path: Path, headers_only: bool = False) -> Any:
    """pydicom's view of one file."""
    from pydicom import dcmread
    from pydicom.filereader import read_file_meta_info

    meta = read_file_meta_info(path)
    if meta.get("MediaStorageSOPClassUID") == DIRECTORY:
        raise UnreadableError("a DICOMDIR, an index of other files; give the folder of one series instead")
    if meta.get("TransferSyntaxUID") == DEFLATED:  # would be unpacked whole, to any size, before a tag is seen
        raise UnreadableError("a deflated DICOM file, which is not read; save it uncompressed")
    return dcmread(path, stop_before_pixels=headers_only)


def series_of(path: Path) -> str:
    """Which series a DICOM file belongs to; empty if it does not say, or cannot be read."""
    try:
        with reading("DICOM file"):
            return str(dataset_of(path, headers_only=True).get("SeriesInstanceUID") or "")
    except UnreadableError:
        return ""


def is_placed(path: Path) -> bool:
    """Whether a DICOM file says where it lies in the body."""
    try:
        with reading("DICOM file"):
            return all(frame.place is not None for frame in list_frames([dataset_of(path, headers_only=True)]))
    except UnreadableError:
        return False


def check_series(headers: Sequence[Any]) -> None:
    """One series of pictures of one size, not larger than is read."""
    if any(header.get("SOPClassUID") in SEGMENTATIONS for header in headers):
        raise UnreadableError("a DICOM segmentation, not an image")
    if any(header.get("Rows") is None or header.get("Columns") is None for header in headers):
        raise UnreadableError("a DICOM file without a picture, or cut off before it")
    _check_one_series(headers)
    sizes = {(int(header.Columns), int(header.Rows), int(header.get("SamplesPerPixel") or 1)) for header in headers}
    if len(sizes) > 1:
        shapes = sorted({describe_shape(size[:2]) for size in sizes})
        raise UnreadableError(f"its slices differ in size or colours: {', '.join(shapes)}")
    ((columns, rows, samples),) = sizes
    check_size(columns, rows, samples * sum(frame_count(header) for header in headers))


def _check_one_series(headers: Sequence[Any]) -> None:
    series = {str(header.get("SeriesInstanceUID", "")): header for header in headers}
    if len(series) > 1:
        names = [f"{header.get('SeriesDescription') or 'no description'} ({uid})" for uid, header in series.items()]
        listed = "; ".join(names[:5]) + ("; …" if len(names) > 5 else "")
        raise UnreadableError(f"a folder with {len(series)} series, one is read: {listed}")


def read_frames(dataset: Any) -> Pixels:
    """(frames, rows, columns, channels), as they are stored."""
    array = _decoded(dataset)
    samples = int(dataset.get("SamplesPerPixel") or 1)
    return array.reshape(frame_count(dataset), int(dataset.Rows), int(dataset.Columns), samples)


def _frames(dataset: Any, labels: bool) -> tuple[Pixels, NDArray[np.bool_]]:
    """(frames, rows, columns, channels), as they are seen, labels as they are stored; and which pixels are padding."""
    frames = read_frames(dataset)
    if labels:
        return frames, np.broadcast_to(np.False_, frames.shape)
    seen = _seen(dataset, frames)
    return seen, _padding(dataset, frames) if seen.shape[3] == 1 else np.broadcast_to(np.False_, seen.shape)


def _padding(dataset: Any, frames: Pixels) -> NDArray[np.bool_]:
    """Which pixels stand for nothing, as they only fill the corners around a round picture."""
    first = numbers(value_of(dataset, None, "", "PixelPaddingValue"), 1)
    last = numbers(value_of(dataset, None, "", "PixelPaddingRangeLimit"), 1)
    if first is None or frames.dtype.kind not in "iu":
        return np.broadcast_to(np.False_, frames.shape)
    # In the pixels' own type: many files call -2000 by its unsigned name, 63536.
    ends = np.array([first[0], first[0] if last is None else last[0]]).astype(np.int64).astype(frames.dtype)
    return np.asarray((frames >= ends.min()) & (frames <= ends.max()))


def _decoded(dataset: Any) -> Pixels:
    from pydicom.pixels import pixel_array

    if not any(name in dataset for name in ("PixelData", "FloatPixelData", "DoubleFloatPixelData")):
        raise UnreadableError("holds no pixels, or is cut off before them")
    try:
        return np.asarray(pixel_array(dataset))
    except (NotImplementedError, RuntimeError) as error:
        syntax = dataset.file_meta.TransferSyntaxUID
        if syntax.is_compressed:
            raise UnreadableError(f"its compression ({syntax.name}) cannot be unpacked here{MORE_CODECS}") from error
        raise


def _seen(dataset: Any, frames: Pixels) -> Pixels:
    """Grey in the units of the file, larger is brighter; or RGB."""
    from pydicom.pixels import apply_color_lut

    colours = str(dataset.get("PhotometricInterpretation", ""))
    if colours == "PALETTE COLOR":
        colour = np.asarray(apply_color_lut(frames[..., 0], dataset))[..., :3]
        return colour if colour.dtype == np.uint8 else (colour >> 8).astype(np.uint8)
    if frames.shape[3] > 1:
        return frames
    if colours == "MONOCHROME1":
        frames = _inverted(dataset, frames)
    return _rescaled(dataset, frames)


def _inverted(dataset: Any, frames: Pixels) -> Pixels:
    """White and black exchanged within the range of the stored numbers."""
    if frames.dtype.kind == "f":
        return -frames
    bits = int(dataset.get("BitsStored") or 8 * frames.dtype.itemsize)
    inverted = (-1 if frames.dtype.kind == "i" else 2**bits - 1) - frames.astype(np.int64)
    return inverted.astype(np.uint8) if frames.dtype == np.uint8 else inverted


def _rescaled(dataset: Any, frames: Pixels) -> Pixels:
    from pydicom.pixels import apply_modality_lut

    if "ModalityLUTSequence" in dataset:
        return np.asarray(apply_modality_lut(frames, dataset), dtype=np.float32)
    groups = list(dataset.get("PerFrameFunctionalGroupsSequence") or [None] * len(frames))
    scales = [_scale(dataset, group) for group in groups]
    if frames.dtype == np.uint8 and all(scale == (1.0, 0.0) for scale in scales):
        return frames
    slopes, intercepts = np.array(scales, dtype=np.float64).T[..., None, None, None]
    return np.asarray(frames * slopes + intercepts, dtype=np.float32)


def _scale(dataset: Any, group: Any) -> tuple[float, float]:
    slope = numbers(value_of(dataset, group, "PixelValueTransformationSequence", "RescaleSlope"), 1)
    intercept = numbers(value_of(dataset, group, "PixelValueTransformationSequence", "RescaleIntercept"), 1)
    return (1.0 if slope is None else float(slope[0]), 0.0 if intercept is None else float(intercept[0]))
