"""The extras of harmofl: packages that some commands and file formats need, and training does not."""

from __future__ import annotations

from importlib.util import find_spec

from harmofl.errors import UsageError

PACKAGES = {
    "dicom": ("nibabel", "pydicom"),
    "dicom-seg": ("highdicom",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "itk": ("SimpleITK", "nibabel"),
    "nifti": ("nibabel",),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "privacy": ("opacus",),
    "reports": ("anyascii", "matplotlib"),
    "secure": ("cryptography",),
    "tensorboard": ("tensorboard",),
    "tiff": ("imagecodecs", "tifffile"),
}
"""What each extra brings, as it is imported; engines name their own package."""


def require(extra: str, purpose: str) -> None:
    """Raise an error that says what to install, if a package of an extra is missing.

    Args:
        extra: its name, as in `pip install 'harmofl[extra]'`.
        purpose: what needs it, as the beginning of a sentence.

    >>> require("reports", "drawing figures")
    """
    if missing_packages(extra):
        raise UsageError(how_to_install(extra, purpose))


def missing_packages(extra: str) -> list[str]:
    """The packages of an extra that are not installed."""
    return [package for package in PACKAGES[extra] if find_spec(package) is None]


def how_to_install(extra: str, purpose: str) -> str:
    """One line that names the extra.

    >>> how_to_install("nifti", "reading NIfTI files")
    "reading NIfTI files needs an extra: pip install 'harmofl[nifti]'"
    """
    return f"{purpose} needs an extra: pip install 'harmofl[{extra}]'"


def extra_of(error: ImportError) -> str | None:
    """The smallest extra that brings the package which could not be imported, if there is one."""
    package = (error.name or "").partition(".")[0]
    return min((name for name, brought in PACKAGES.items() if package in brought), key=_number_brought, default=None)


def _number_brought(extra: str) -> int:
    return len(PACKAGES[extra])
