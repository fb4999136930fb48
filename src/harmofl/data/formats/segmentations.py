"""DICOM segmentations: read as masks of a scan, and written for a series."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harmofl.data.formats.alignment import OtherGridError
from harmofl.data.formats.dicom import SEGMENTATIONS, check_series, dataset_of, read_frames, series_files
from harmofl.data.formats.frames import Frame, affine_of, frame_count, list_frames, sort_frames, value_of
from harmofl.data.formats.grid import orientation_of, stored_grid, to_stored
from harmofl.data.formats.guards import check_size, describe_shape, reading
from harmofl.data.scans import Mask, Scan, UnreadableError
from harmofl.extras import require
from harmofl.files import write_whole
from harmofl.version import __version__

WRITING = "writing DICOM segmentations"
OTHER_GRID = "the segmentation lies on another grid than the image"


def is_segmentation(path: Path) -> bool:
    """Whether a DICOM file is a segmentation, not an image."""
    with reading("DICOM file"):
        return path.is_file() and dataset_of(path, headers_only=True).get("SOPClassUID") in SEGMENTATIONS


def read_segmentation(path: Path, scan: Scan) -> Mask:
    """(columns, rows, slices) of the scan, each voxel with the number of its segment."""
    with reading("DICOM segmentation"):
        dataset = dataset_of(path)
        kind = str(dataset.get("SegmentationType", ""))
        if kind not in ("BINARY", "LABELMAP"):
            raise UnreadableError(f"a segmentation of type {kind or 'unknown'}; BINARY and LABELMAP are read")
        grid = stored_grid(scan)
        size = (int(dataset.Columns), int(dataset.Rows))
        if size != grid[:2]:
            raise UnreadableError(f"the mask is {describe_shape(size)}, the image {describe_shape(grid[:2])}")
        check_size(*size, frame_count(dataset))
        return _combined(dataset, scan, has_numbers=kind == "LABELMAP")


def _combined(dataset: Any, scan: Scan, has_numbers: bool) -> Mask:
    """All frames, each put onto the slice that it lies on; slices without a frame stay empty."""
    labels = np.zeros(stored_grid(scan), dtype=np.int32)
    groups = dataset.PerFrameFunctionalGroupsSequence
    for frame, group, pixels in zip(list_frames([dataset]), groups, read_frames(dataset), strict=True):
        values = pixels[..., 0].T.astype(np.int32)
        if not has_numbers:
            number = value_of(dataset, group, "SegmentIdentificationSequence", "ReferencedSegmentNumber")
            values *= int(number)  # with one segment only, it stands once for all frames
        _put(labels[:, :, _slice_of(frame, scan)], values)
    return labels


def _put(target: Mask, values: Mask) -> None:
    """Write one frame into a slice, in place."""
    marked = values != 0
    if (marked & (target != 0) & (target != values)).any():
        raise UnreadableError("its segments overlap; a mask holds one number per pixel")
    target[marked] = values[marked]


def _slice_of(frame: Frame, scan: Scan) -> int:
    """Which of the scan's slices a frame lies on."""
    own, image = affine_of([frame])[0], scan.geometry.affine
    if own is None or image is None or scan.geometry.orientation is None:
        raise OtherGridError(OTHER_GRID)
    column, row, height = (float(index) for index in (np.linalg.inv(image) @ own[:, 3])[:3])
    off_grid = max(abs(column), abs(row), abs(height - round(height))) > 0.1
    if off_grid or not np.allclose(own[:3, :2], image[:3, :2], atol=1e-2):
        raise OtherGridError(OTHER_GRID)
    if not 0 <= round(height) < stored_grid(scan)[2]:
        raise OtherGridError(OTHER_GRID)
    return round(height)


def write_segmentation_object(
    stem: Path, mask: Mask, source: Path | Sequence[Path], class_names: Sequence[str]
) -> Path:
    """Write a mask (S, H, W) of a series (its folder or files) as a DICOM segmentation; class 1 has the first name.

    There is one segment for each name; the segmentation refers to the slices that it was made from.
    """
    require("dicom-seg", WRITING)
    if mask.max() > len(class_names):
        raise ValueError(f"the mask holds class {mask.max()}, but {len(class_names)} names were given")
    with reading("DICOM series to refer to"):
        content = _content(mask, source, class_names)
    path = stem.with_name(f"{stem.name}.dcm")
    write_whole(path, content)
    return path


def _content(mask: Mask, source: Path | Sequence[Path], class_names: Sequence[str]) -> bytes:
    from highdicom import UID
    from highdicom.seg import Segmentation

    images, frames = _sources(mask, source)
    segmentation = Segmentation(
        source_images=images,
        pixel_array=frames,
        segmentation_type="BINARY",
        segment_descriptions=[_description(number, name) for number, name in enumerate(class_names, start=1)],
        series_instance_uid=UID(),
        series_number=1,
        sop_instance_uid=UID(),
        instance_number=1,
        manufacturer="harmofl",
        manufacturer_model_name="harmofl",
        software_versions=__version__,
        device_serial_number="0",
    )
    buffer = io.BytesIO()
    segmentation.save_as(buffer)
    return buffer.getvalue()


def _sources(mask: Mask, source: Path | Sequence[Path]) -> tuple[list[Any], Mask]:
    """The series' files, and the mask's frames (frames, rows, columns) in the same order."""
    images = [dataset_of(file) for file in (series_files(source) if isinstance(source, Path) else source)]
    check_series(images)
    ordered, _ = sort_frames(list_frames(images))
    if len(mask) != len(ordered):
        raise UnreadableError(f"the mask has {len(mask)} slices, the series {len(ordered)}")
    frames = to_stored(mask, orientation_of(affine_of(ordered)[0])).transpose(2, 1, 0).astype(np.uint8)
    if len(images) == 1:  # one file keeps the order of its frames
        return images, np.ascontiguousarray(frames[np.argsort([frame.index for frame in ordered])])
    return [images[frame.file] for frame in ordered], np.ascontiguousarray(frames)


def _description(number: int, name: str) -> Any:
    from highdicom import AlgorithmIdentificationSequence
    from highdicom.seg import SegmentDescription
    from pydicom.sr.codedict import codes

    return SegmentDescription(
        segment_number=number,
        segment_label=name[:64],
        segmented_property_category=codes.SCT.Tissue,
        segmented_property_type=codes.SCT.Tissue,
        algorithm_type="AUTOMATIC",
        algorithm_identification=AlgorithmIdentificationSequence(
            name="harmofl", version=__version__, family=codes.DCM.ArtificialIntelligence
        ),
    )
