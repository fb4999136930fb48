"""What a file holds, judged by its first bytes: names lie (a `.png` may be a JPEG inside)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from harmofl.data.scans import UnreadableError

Content = Literal["picture", "tiff", "nifti", "dicom", "itk", "outlines"]

ITK_SUFFIXES = (".mha", ".mhd", ".nrrd", ".nhdr")
SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".svs", ".nii", ".nii.gz", ".dcm", *ITK_SUFFIXES)
ITK_STARTS = (b"NRRD", b"ObjectType", b"NDims")
TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
PICTURE_STARTS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")
GZIP_START = b"\x1f\x8b"


def is_readable(path: Path) -> bool:
    """Whether it looks like an image file, or a folder with a DICOM series, that `read_scan` reads."""
    if path.name.startswith(".") or path.name.upper() == "DICOMDIR":
        return False
    if path.is_dir():
        return any(is_dicom(file) for file in path.iterdir() if not file.name.startswith("."))
    return path.is_file() and (path.name.lower().endswith(SUFFIXES) or is_dicom(path))


def is_dicom(path: Path) -> bool:
    """Whether the file carries DICOM's mark; files of a series often have no suffix, or a number as one."""
    try:
        return _start(path)[128:132] == b"DICM"
    except UnreadableError:
        return False


def content_of(path: Path) -> Content:
    """The kind of content, or an `UnreadableError` that says what the file is not."""
    if path.is_dir():
        return "dicom"
    start = _start(path)
    if start[128:132] == b"DICM":  # first: the 128 bytes before may be another format's start
        return "dicom"
    if start.startswith(PICTURE_STARTS):
        return "picture"
    if start.startswith(TIFF_STARTS):
        return "tiff"
    if start.startswith(GZIP_START) or start[344:347] in (b"n+1", b"ni1") or start[4:7] in (b"n+2", b"ni2"):
        return "nifti"
    if start.startswith(ITK_STARTS) or (path.suffix.lower() in (".mha", ".mhd") and b"NDims" in start):
        return "itk"
    if start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<"):
        return "outlines"
    raise UnreadableError(_not_an_image(path, start))


def _start(path: Path) -> bytes:
    if not path.is_file():  # a pipe or a device would wait for ever
        raise UnreadableError("not a file" if path.exists() else "no such file")
    try:
        with path.open("rb") as file:
            return file.read(352)
    except OSError as error:
        raise UnreadableError(f"cannot be opened: {error.strerror}") from None


def _not_an_image(path: Path, start: bytes) -> str:
    if not start:
        return "an empty file"
    if path.suffix.lower() == ".dcm":
        return "not a DICOM file: it lacks the letters DICM after its first 128 bytes"
    return "not an image, or cut off at its start: neither PNG, JPEG, TIFF, NIfTI, DICOM, MHA nor NRRD"
