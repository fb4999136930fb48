"""The file formats of medical images: reading pictures, volumes and masks, and writing masks back."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from harmofl.data.formats.content import content_of, is_readable
from harmofl.data.formats.dicom import read_dicom, read_dicom_labels, read_series
from harmofl.data.formats.grid import lies_turned, on_the_same_grid, turned
from harmofl.data.formats.guards import quiet, whole
from harmofl.data.formats.nifti import nifti_mask, nifti_notes, read_nifti, read_nifti_labels
from harmofl.data.formats.outlines import outline_notes, read_outlines
from harmofl.data.formats.pictures import (
    label_notes,
    read_picture,
    read_picture_labels,
    read_tiff,
    write_picture_mask,
)
from harmofl.data.formats.segmentations import is_segmentation, read_segmentation, write_segmentation_object
from harmofl.data.scans import Mask, Scan, UnreadableError
from harmofl.files import write_whole

__all__ = [
    "is_readable",
    "load_libraries",
    "mask_notes",
    "read_mask",
    "read_scan",
    "read_series",
    "write_mask",
    "write_segmentation_object",
]

READERS = {"picture": read_picture, "tiff": read_tiff, "nifti": read_nifti, "dicom": read_dicom}


LIBRARIES = (
    "PIL.Image",
    "defusedxml.ElementTree",
    "nibabel.nifti1",
    "nibabel.nifti2",
    "nibabel.orientations",
    "nibabel.volumeutils",
    "pydicom.filereader",
    "pydicom.pixels",
    "tifffile",
)


def load_libraries() -> None:
    """Import what readers import, before several threads do so at once: some would see a module half made."""
    with quiet():
        for name in LIBRARIES:
            import_module(name)


def read_scan(path: Path) -> Scan:
    """Read a picture, a volume or a folder with one DICOM series; `UnreadableError` says why it cannot be read."""
    content = content_of(path)
    if content == "outlines":
        raise UnreadableError("a text in angle brackets (XML or HTML), not an image")
    return READERS[content](path)


def read_mask(path: Path, scan: Scan) -> Mask:
    """Read the labels (S, H, W) of a scan, pixel on pixel, in the smallest type of whole numbers that holds them."""
    content = content_of(path)
    if content == "outlines":
        slices, _, height, width = scan.pixels.shape
        if slices != 1:
            raise UnreadableError("outlines belong to a picture, not to a volume")
        return read_outlines(path, height, width)[None]
    if content in ("picture", "tiff"):
        labels = read_picture_labels(path, tiff=content == "tiff")
    elif content == "nifti":
        labels, geometry = read_nifti_labels(path)
        # Between two NIfTI files the voxels count, not the affines, unless these say that the voxels are the same.
        if scan.geometry.kind == "dicom" or lies_turned(geometry, labels.shape, scan):
            labels = turned(labels, geometry, scan)
    elif is_segmentation(path):
        labels = read_segmentation(path, scan)
    else:
        labels, geometry = read_dicom_labels(path)
        labels = turned(labels, geometry, scan)
    return whole(on_the_same_grid(labels, scan))


def mask_notes(path: Path, scan: Scan) -> tuple[str, ...]:
    """What a careful owner would want to know about a mask that can be read."""
    content = content_of(path)
    if content == "nifti":
        return nifti_notes(path, scan)
    if content == "outlines":
        return outline_notes(path)
    return label_notes(path) if content == "picture" else ()


def write_mask(stem: Path, mask: Mask, scan: Scan) -> Path:
    """Write a mask (S, H, W) to where its scan lies: `stem` plus .png, .tif (several pages) or .nii.gz."""
    slices, _, height, width = scan.pixels.shape
    if mask.shape != (slices, height, width):
        raise ValueError(f"a mask of shape {mask.shape} for slices of shape {(slices, height, width)}")
    labels = whole(mask)
    if scan.geometry.kind == "picture":
        path, content = write_picture_mask(stem, labels)
    else:
        path, content = stem.with_name(f"{stem.name}.nii.gz"), nifti_mask(labels, scan.geometry)
    write_whole(path, content)
    return path
