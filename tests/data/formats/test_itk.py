from pathlib import Path

import numpy as np
import pytest

from harmofl.data.file_hashes import hash_file
from harmofl.data.formats import is_readable, read_mask, read_scan, write_mask
from harmofl.data.formats.nifti import read_nifti
from harmofl.data.scans import UnreadableError
from volumes import SAGITTAL, SLICES_LAST, Array, write_case

SimpleITK = pytest.importorskip("SimpleITK")
SUFFIXES = ("mha", "mhd", "nrrd", "nhdr")


def write_both(folder: Path, suffix: str, affine: Array) -> tuple[Path, Path]:
    """The same volume as NIfTI and in another format, and masks beside."""
    write_case(folder, "case", seed=0, affine=affine, shape=(12, 10, 6))
    for name in ("case", "case_segmentation"):
        image = SimpleITK.ReadImage(str(folder / f"{name}.nii.gz"))
        SimpleITK.WriteImage(image, str(folder / f"{name}.{suffix}"))
    return folder / "case.nii.gz", folder / f"case.{suffix}"


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("affine", [SLICES_LAST, SAGITTAL])
def test_a_volume_reads_as_the_same_volume_in_nifti_does(tmp_path: Path, suffix: str, affine: Array) -> None:
    nifti, other = write_both(tmp_path, suffix, affine)
    expected, found = read_scan(nifti), read_scan(other)
    assert is_readable(other)
    assert np.array_equal(found.pixels, expected.pixels)
    assert found.geometry.affine is not None
    assert np.allclose(found.geometry.affine, expected.geometry.affine, atol=1e-5)
    masks = [
        read_mask(path.with_name(path.name.replace("case", "case_segmentation")), expected) for path in (nifti, other)
    ]
    assert np.array_equal(masks[0].labels, masks[1].labels)
    assert masks[1].notes == ()


def test_a_mask_of_it_is_written_onto_its_voxels(tmp_path: Path) -> None:
    _, path = write_both(tmp_path, "mha", SAGITTAL)
    scan = read_scan(path)
    mask = (scan.pixels[:, 0] > 200).astype(np.uint8)
    written = read_nifti(write_mask(tmp_path / "out", mask, scan))
    assert np.array_equal(written.pixels[:, 0] > 0, mask > 0)
    assert np.allclose(written.geometry.affine, SAGITTAL, atol=1e-5)


def test_voxels_beside_a_header_belong_to_it_and_must_lie_there(tmp_path: Path) -> None:
    _, path = write_both(tmp_path, "mhd", SLICES_LAST)
    before = hash_file(path)
    raw = next(file for file in tmp_path.iterdir() if file.suffix in (".raw", ".zraw") and "seg" not in file.name)
    raw.write_bytes(raw.read_bytes()[::-1])
    assert hash_file(path) != before
    raw.unlink()
    assert hash_file(path)  # the header can be read: what is missing is said below
    with pytest.raises(UnreadableError, match="should lie beside it in case"):
        read_scan(path)


@pytest.mark.parametrize("name", ["../secret.raw", "/etc/passwd", "LIST", "slice%03d.raw"])
def test_a_header_does_not_lead_to_other_places(tmp_path: Path, name: str) -> None:
    _, path = write_both(tmp_path, "mhd", SLICES_LAST)
    lines = [line for line in path.read_text().splitlines() if not line.startswith("ElementDataFile")]
    path.write_text("\n".join([*lines, f"ElementDataFile = {name}", ""]))
    with pytest.raises(UnreadableError, match="several files, or in another folder"):
        read_scan(path)


@pytest.mark.parametrize("suffix", ["mha", "mhd"])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ElementDataFile : ../secret.raw", "another folder"),
        ("ElementDataFile: ../secret.raw", "another folder"),
        (" ElementDataFile = LOCAL\nElementDataFile = secret.raw", "several files"),
        ("Note = x\n" * 8000 + "ElementDataFile = ../secret.raw", "header is longer than 65536 bytes"),
    ],
)
def test_no_spelling_of_a_header_leads_there(tmp_path: Path, suffix: str, line: str, message: str) -> None:
    (tmp_path / "secret.raw").write_bytes(bytes(range(64)))
    path = tmp_path / "images" / f"case.{suffix}"
    path.parent.mkdir()
    path.write_text(f"ObjectType = Image\nNDims = 3\nDimSize = 4 4 4\nElementType = MET_UCHAR\n{line}\n")
    with pytest.raises(UnreadableError, match=message):
        read_scan(path)


@pytest.mark.parametrize("suffix", ["mha", "nrrd"])
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, suffix: str) -> None:
    _, path = write_both(tmp_path, suffix, SLICES_LAST)
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(UnreadableError) as caught:
        read_scan(path)
    assert "\n" not in str(caught.value)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, path = write_both(tmp_path, "mha", SLICES_LAST)
    monkeypatch.setattr("harmofl.data.formats.itk.missing_packages", lambda _: ["SimpleITK"])
    with pytest.raises(UnreadableError, match=r"pip install 'harmofl\[itk\]'"):
        read_scan(path)
