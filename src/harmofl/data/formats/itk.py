"""MetaImage (`.mha`, `.mhd`) and NRRD (`.nrrd`, `.nhdr`) volumes, read by SimpleITK."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harmofl.data.formats.frames import TO_RAS
from harmofl.data.formats.grid import orientation_of, slice_axis, to_slices
from harmofl.data.formats.guards import check_size, reading, to_plain_type
from harmofl.data.scans import Geometry, Mask, Pixels, Scan, UnreadableError
from harmofl.extras import how_to_install, missing_packages

READERS = {"metaimage": "MetaImageIO", "nrrd": "NrrdImageIO"}
HEADER = 2**16
"""Bytes among which the end of a header lies."""
END_OF_NRRD = re.compile(rb"\r?\n\r?\n")
DATA_FILE = re.compile(rb"^\s*(?:ElementDataFile[ \t=:]+|data ?file:)\s*(.*?)\s*$", re.MULTILINE | re.IGNORECASE)


def read_itk(path: Path) -> Scan:
    """A volume, its slices along the third stored axis; several numbers a voxel are channels."""
    stored, geometry = _read(path)
    return Scan(to_plain_type(to_slices(stored, geometry.orientation)), geometry)


def read_itk_labels(path: Path) -> tuple[Mask, Geometry]:
    """(columns, rows, slices) as stored, and how they lie."""
    stored, geometry = _read(path)
    if stored.shape[3] != 1:
        raise UnreadableError(f"the mask has {stored.shape[3]} numbers a voxel; a mask holds one")
    return stored[..., 0], geometry


def data_file_of(path: Path) -> Path | None:
    """The file beside a header that holds its voxels; None where the header's own file does."""
    with path.open("rb") as file:
        start = file.read(HEADER)
    is_nrrd = start.startswith(b"NRRD")
    header, *rest = END_OF_NRRD.split(start, maxsplit=1) if is_nrrd else [start]
    names: set[str] = {name.decode(errors="replace") for name in DATA_FILE.findall(header)}
    if len(start) == HEADER and not (rest if is_nrrd else names):
        raise UnreadableError(f"its header is longer than {HEADER} bytes")
    if names <= {"LOCAL"}:
        return None
    name, *others = names
    if others or re.search(r"[/\\]|^LIST\b|%\d*d|^\.*$", name):  # a header must not lead to files elsewhere
        raise UnreadableError(
            "its voxels lie in several files, or in another folder; save it as one .mha or .nrrd file"
        )
    beside = path.parent / name
    if not beside.resolve().is_relative_to(path.parent.resolve()):
        raise UnreadableError(f"the link {name}, which holds its voxels, leads out of the folder")
    return beside


def _read(path: Path) -> tuple[Pixels, Geometry]:
    """(columns, rows, slices, channels)."""
    if missing_packages("itk"):
        raise UnreadableError(how_to_install("itk", "reading MHA and NRRD files"))
    with reading("MHA or NRRD file"):
        itk: Any = import_module("SimpleITK")
        beside = data_file_of(path)
        if beside is not None and not beside.is_file():
            raise UnreadableError(f"its voxels should lie beside it in {beside.name}, which is not there")
        itk.ProcessObject.SetGlobalWarningDisplay(False)
        reader = itk.ImageFileReader()
        reader.SetImageIO(READERS["nrrd" if _starts_as_nrrd(path) else "metaimage"])
        reader.SetFileName(str(path))
        reader.ReadImageInformation()
        _check(reader)
        image = reader.Execute()
        return _stored(image, itk.GetArrayFromImage(image)), _geometry(image)


def _starts_as_nrrd(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"NRRD"


def _check(reader: Any) -> None:
    size = reader.GetSize()
    if len(size) not in (2, 3):
        raise UnreadableError(
            f"it has {len(size)} axes; volumes have three, and several channels a voxel or a file each"
        )
    width, height, *slices = size
    check_size(width, height, (slices[0] if slices else 1) * reader.GetNumberOfComponents())


def _stored(image: Any, array: NDArray[Any]) -> Pixels:
    """(columns, rows, slices, channels) from ITK's (slices, rows, columns, channels)."""
    if image.GetDimension() == 2:
        array = array[None]
    if image.GetNumberOfComponentsPerPixel() == 1:
        array = array[..., None]
    return np.transpose(array, (2, 1, 0, 3))


def _geometry(image: Any) -> Geometry:
    columns, rows, *slices = image.GetSize()
    shape = (columns, rows, slices[0] if slices else 1)
    if image.GetDimension() == 2:
        return Geometry(kind="nifti", stored_shape=shape, notes=("it does not say how it lies in the body",))
    affine = np.eye(4)
    directions = np.array(image.GetDirection()).reshape(3, 3)
    affine[:3, :3] = TO_RAS @ (directions * np.array(image.GetSpacing()))
    affine[:3, 3] = TO_RAS @ np.array(image.GetOrigin())
    return Geometry(
        kind="nifti",
        affine=affine,
        stored_shape=shape,
        orientation=orientation_of(affine),
        axis=slice_axis(affine),
    )
