"""The file formats of medical images: reading pictures, volumes and masks, and writing masks back."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from harmofl.data.formats.alignment import MaskGrid, align
from harmofl.data.formats.content import content_of, is_readable
from harmofl.data.formats.dicom import read_dicom, read_dicom_labels, read_series
from harmofl.data.formats.grid import lay_on_grid
from harmofl.data.formats.guards import quiet, to_whole_numbers
from harmofl.data.formats.itk import read_itk, read_itk_labels
from harmofl.data.formats.nifti import nifti_mask, read_nifti, read_nifti_labels
from harmofl.data.formats.outlines import outline_notes, read_outlines
from harmofl.data.formats.pictures import (
    label_notes,
    read_picture,
    read_picture_labels,
    read_tiff,
    write_picture_mask,
)
from harmofl.data.formats.segmentations import is_segmentation, read_segmentation, write_segmentation_object
from harmofl.data.scans import Mask, Note, Scan, ScanMask, UnreadableError
from harmofl.files import write_whole

__all__ = [
    "is_readable",
    "load_libraries",
    "read_mask",
    "read_scan",
    "read_series",
    "write_mask",
    "write_segmentation_object",
]

READERS = {"picture": read_picture, "tiff": read_tiff, "nifti": read_nifti, "dicom": read_dicom, "itk": read_itk}
LABEL_READERS = {"nifti": read_nifti_labels, "dicom": read_dicom_labels, "itk": read_itk_labels}


LIBRARIES = (
    "PIL.Image",
    "SimpleITK",
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
            with suppress(ModuleNotFoundError):  # a file that needs it will say so
                import_module(name)


def read_scan(path: Path) -> Scan:
    """Read a picture, a volume or a folder with one DICOM series; `UnreadableError` says why it cannot be read."""
    content = content_of(path)
    if content == "outlines":
        raise UnreadableError("a text in angle brackets (XML or HTML), not an image")
    return READERS[content](path)


def read_mask(path: Path, scan: Scan, mask_grid: MaskGrid = "auto") -> ScanMask:
    """Read the labels of a scan; `mask_grid`: what becomes of those on another grid (`data.mask_grid`)."""
    content = content_of(path)
    if content == "outlines":
        return _read_outline_mask(path, scan)
    if content in ("picture", "tiff"):
        labels = read_picture_labels(path, tiff=content == "tiff")
        notes = _notes_on_mask(label_notes(path) if content == "picture" else ())
    elif content == "dicom" and is_segmentation(path):
        labels, notes = read_segmentation(path, scan), ()
    else:
        stored, geometry = LABEL_READERS[content](path)
        labels, notes = align(stored, geometry, scan, mask_grid)
    return ScanMask(to_whole_numbers(lay_on_grid(labels, scan)), notes)


def _read_outline_mask(path: Path, scan: Scan) -> ScanMask:
    slices, _, height, width = scan.pixels.shape
    if slices != 1:
        raise UnreadableError("outlines belong to a picture, not to a volume")
    return ScanMask(read_outlines(path, height, width)[None], _notes_on_mask(outline_notes(path)))


def _notes_on_mask(texts: Iterable[str]) -> tuple[Note, ...]:
    """Remarks on a mask's file."""
    return tuple(Note("mask", text) for text in texts)


def write_mask(stem: Path, mask: Mask, scan: Scan) -> Path:
    """Write a mask (S, H, W) to where its scan lies: `stem` plus .png, .tif (several pages) or .nii.gz."""
    slices, _, height, width = scan.pixels.shape
    if mask.shape != (slices, height, width):
        raise ValueError(f"a mask of shape {mask.shape} for slices of shape {(slices, height, width)}")
    labels = to_whole_numbers(mask)
    if scan.geometry.kind == "picture":
        path, content = write_picture_mask(stem, labels)
    else:
        path, content = stem.with_name(f"{stem.name}.nii.gz"), nifti_mask(labels, scan.geometry)
    write_whole(path, content)
    return path
