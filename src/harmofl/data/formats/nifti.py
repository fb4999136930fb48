"""NIfTI volumes (`.nii`, `.nii.gz`), and masks written onto a volume's own voxels."""

from __future__ import annotations

import gzip
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from harmofl.data.formats.content import GZIP_START
from harmofl.data.formats.grid import is_valid, orientation_of, slice_axis, to_slices, to_stored
from harmofl.data.formats.guards import check_size, describe_shape, quiet, reading, to_plain_type
from harmofl.data.scans import Geometry, Mask, Pixels, Scan, UnreadableError

CHANNEL_LIMIT = 32
"""A longer fourth axis is time or gradients, not channels."""
GZIP_RATIO = 1032
"""The most that gzip's method can shrink anything."""
OFFSET_LIMIT = 2**24
"""Bytes of extensions between header and voxels."""
AFTER_LIMIT = 2**24
"""Bytes after the voxels, which mean nothing."""
NO_ORIENTATION = "its header does not say how it lies in the body; its slices are taken as stored"
NO_CODES = "its header marks its orientation as unknown (qform and sform code 0); the spacing alone is used"


@dataclass(frozen=True)
class NiftiGeometry(Geometry):
    """Of a NIfTI file, with its header: a mask of it keeps spacing, units, and both transforms."""

    header: bytes = b""


def read_nifti(path: Path) -> Scan:
    """A volume, its slices along the third stored axis; a fourth axis holds the channels."""
    stored, header = _read(path)
    geometry = _geometry(header)
    return Scan(to_plain_type(to_slices(stored, geometry.orientation)), geometry)


def read_nifti_labels(path: Path) -> tuple[Mask, Geometry]:
    """(columns, rows, slices) as stored, and how they lie."""
    stored, header = _read(path)
    if stored.shape[3] != 1:
        raise UnreadableError(
            f"the mask has a fourth axis ({describe_shape(stored.shape)}); a mask holds one number per voxel"
        )
    return stored[..., 0], _geometry(header)


def nifti_mask(mask: Mask, geometry: Geometry) -> bytes:
    """The content of a `.nii.gz` with a mask (S, H, W) on the voxels that it was made from."""
    stored = to_stored(mask, geometry.orientation)
    with quiet():
        image = _on_header(stored, geometry) if isinstance(geometry, NiftiGeometry) else _on_affine(stored, geometry)
        content: bytes = image.to_bytes()
    # masks shrink well at any level, and noisy ones take minutes at the highest; no time: same mask, same file
    return gzip.compress(content, compresslevel=3, mtime=0)


def _on_header(stored: Mask, geometry: NiftiGeometry) -> Any:
    from nibabel.nifti1 import Nifti1Image
    from nibabel.nifti2 import Nifti2Image

    header = _parsed(geometry.header)
    header.set_data_dtype(stored.dtype)
    header.set_intent("none")
    header["cal_min"] = header["cal_max"] = 0  # the display window of the image's values
    shape = stored.shape[: len(geometry.stored_shape)]
    image_type = Nifti2Image if len(geometry.header) == 540 else Nifti1Image
    return image_type(stored.reshape(shape), None, header)  # no affine: the header's two transforms stay untouched


def _on_affine(stored: Mask, geometry: Geometry) -> Any:
    from nibabel.nifti1 import Nifti1Image

    affine = np.eye(4) if geometry.affine is None else geometry.affine
    image = Nifti1Image(stored, affine)
    image.header.set_xyzt_units("mm")
    image.set_sform(affine, code=1)
    image.set_qform(affine, code=1)
    if not np.allclose(image.get_qform(), affine, atol=1e-4):
        image.set_qform(None, code=0)  # a tilted stack is sheared, which a qform cannot say
    return image


def _opened(path: Path) -> BinaryIO:
    with path.open("rb") as file:
        zipped = file.read(2) == GZIP_START
    return cast(BinaryIO, gzip.open(path)) if zipped else path.open("rb")


def _read(path: Path) -> tuple[Pixels, Any]:
    """(columns, rows, slices, channels) with the header's scaling applied, and the header."""
    with reading("NIfTI file"), _opened(path) as stream:
        from nibabel.volumeutils import apply_read_scaling

        header = _header(stream)
        shape = _shape(header)
        _check_type(header)
        _check_length(path, header, zipped=isinstance(stream, gzip.GzipFile))
        stored = _voxels(stream, header).reshape(shape, order="F")
        if isinstance(stream, gzip.GzipFile):
            _check_end(stream)
        slope, intercept = header.get_slope_inter()
        return np.asarray(apply_read_scaling(stored, slope, intercept)), header


def _voxels(stream: BinaryIO, header: Any) -> NDArray[Any]:
    kind, count = header.get_data_dtype(), math.prod(header.get_data_shape())
    stream.seek(header.get_data_offset())
    content = stream.read(count * kind.itemsize)
    if len(content) < count * kind.itemsize:
        raise UnreadableError("the file is cut off")
    return np.frombuffer(content, dtype=kind)


def _check_end(stream: gzip.GzipFile) -> None:
    """Read on to the end, where gzip's checksum stands: damaged voxels look like any others."""
    left = AFTER_LIMIT
    while content := stream.read(2**20):
        left -= len(content)
        if left < 0:
            raise UnreadableError(f"the file is damaged: more than {AFTER_LIMIT:,} bytes follow its voxels")


def _header(stream: BinaryIO) -> Any:
    start = stream.read(4)
    size = 540 if 540 in (int.from_bytes(start, "little"), int.from_bytes(start, "big")) else 348
    block = start + stream.read(size - 4)
    if len(block) < size:
        raise UnreadableError("the file is cut off in its header")
    magic = block[4:7] if size == 540 else block[344:347]
    if magic in (b"ni1", b"ni2"):
        raise UnreadableError("the header of a .hdr/.img pair; save it as one .nii file")
    if magic not in (b"n+1", b"n+2"):
        raise UnreadableError("not a NIfTI file")
    return _parsed(block)


def _parsed(block: bytes) -> Any:
    """The header alone: nibabel's image classes would also unpack extensions of any length."""
    from nibabel.nifti1 import Nifti1Header
    from nibabel.nifti2 import Nifti2Header

    return Nifti2Header(block) if len(block) == 540 else Nifti1Header(block)


def _shape(header: Any) -> tuple[int, int, int, int]:
    """Columns, rows, slices, channels; refused before a voxel is read if they are not that or too many."""
    sizes = [int(size) for size in header.get_data_shape()]
    while len(sizes) > 2 and sizes[-1] == 1:
        sizes.pop()
    if not 2 <= len(sizes) <= 4:
        raise UnreadableError(f"has {len(sizes)} axes ({describe_shape(sizes)}); volumes of 2 to 4 axes are read")
    columns, rows, slices, channels = (*sizes, 1, 1)[:4]
    check_size(columns, rows, slices * channels if min(slices, channels) > 0 else 0)
    if channels > CHANNEL_LIMIT:
        raise UnreadableError(
            f"has {channels} volumes along its fourth axis ({describe_shape(sizes)}); "
            f"at most {CHANNEL_LIMIT} are read as channels: save each as a file"
        )
    return columns, rows, slices, channels


def _check_type(header: Any) -> None:
    kind = header.get_data_dtype()
    if kind.kind not in "uif":
        name = "colours" if kind.fields else kind.name
        raise UnreadableError(f"holds voxels of type {name}; only whole and real numbers are read")


def _check_length(path: Path, header: Any, zipped: bool) -> None:
    """Fail before memory is set aside for voxels that cannot be in the file."""
    offset = header.get_data_offset()
    if not 0 <= offset <= OFFSET_LIMIT:
        raise UnreadableError(f"its header puts the voxels at byte {offset}")
    needed = offset + math.prod(header.get_data_shape()) * header.get_data_dtype().itemsize
    if needed > path.stat().st_size * (GZIP_RATIO if zipped else 1):
        raise UnreadableError(f"the file is cut off: its header announces {needed:,} bytes")


def _geometry(header: Any) -> NiftiGeometry:
    affine = _affine(header)
    coded = int(header["sform_code"]) > 0 or int(header["qform_code"]) > 0
    notes = () if coded else (NO_CODES,)
    return NiftiGeometry(
        kind="nifti",
        affine=affine,
        stored_shape=tuple(int(size) for size in header.get_data_shape()[:3]),
        orientation=orientation_of(affine),
        axis=slice_axis(affine) if coded else None,
        notes=notes if is_valid(affine) else (NO_ORIENTATION,),
        header=bytes(header.binaryblock),
    )


def _affine(header: Any) -> NDArray[np.float64] | None:
    try:
        return np.asarray(header.get_best_affine(), dtype=np.float64)
    except ValueError:  # a quaternion that is no rotation
        return None
