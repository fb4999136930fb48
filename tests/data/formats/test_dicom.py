"""DICOM: slices in the order of the body, values in the file's units, masks that lie on the series."""

import contextlib
import shutil
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom.data import get_testdata_file
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

from harmofl.data.formats import guards, is_readable, read_mask, read_scan, segmentations, write_mask
from harmofl.data.formats import write_segmentation_object as write_segmentation
from harmofl.data.scans import Scan, UnreadableError
from harmofl.errors import UsageError

CT = "1.2.840.10008.5.1.4.1.1.2"
AXIAL = [1, 0, 0, 0, 1, 0]
SERIES, STUDY, FRAME = "1.2.3.4", "1.2.3.5", "1.2.3.6"


def image(pixels: np.ndarray, **tags: Any) -> Dataset:
    """A small CT slice of what is needed and nothing else."""
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID = CT
    dataset.SOPInstanceUID = generate_uid()
    dataset.SeriesInstanceUID, dataset.StudyInstanceUID, dataset.FrameOfReferenceUID = SERIES, STUDY, FRAME
    dataset.Modality, dataset.PatientID, dataset.PatientName, dataset.StudyID = "CT", "p", "P", "1"
    dataset.PatientBirthDate = dataset.PatientSex = dataset.AccessionNumber = dataset.StudyDate = ""
    dataset.StudyTime = dataset.ReferringPhysicianName = ""
    dataset.SeriesNumber = 1
    dataset.SamplesPerPixel = 3 if pixels.shape[-1:] == (3,) and pixels.ndim > 2 else 1
    dataset.PhotometricInterpretation = "RGB" if dataset.SamplesPerPixel == 3 else "MONOCHROME2"
    frame = pixels.shape[:-1] if dataset.SamplesPerPixel == 3 else pixels.shape
    dataset.Rows, dataset.Columns = frame[-2:]
    if len(frame) == 3:
        dataset.NumberOfFrames = frame[0]
    if dataset.SamplesPerPixel == 3:
        dataset.PlanarConfiguration = 0
    dataset.BitsAllocated = dataset.BitsStored = 8 * pixels.dtype.itemsize
    dataset.HighBit = dataset.BitsStored - 1
    dataset.PixelRepresentation = int(pixels.dtype.kind == "i")
    dataset.PixelData = pixels.tobytes()
    for name, value in tags.items():
        setattr(dataset, name, value)
    return dataset


def saved(path: Path, dataset: Dataset) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    dataset.save_as(path, enforce_file_format=True)
    return path


def placed(pixels: np.ndarray, height: float, **tags: Any) -> Dataset:
    """A slice with a position: rows 0.7 mm and columns 0.5 mm apart."""
    tags = {"ImageOrientationPatient": AXIAL, "ImagePositionPatient": [10, 20, height], **tags}
    return image(pixels, PixelSpacing=[0.7, 0.5], SliceThickness=3, **tags)


VOLUME = np.arange(60, dtype=np.int16).reshape(4, 3, 5) - 10
"""(slices, rows, columns)"""


def series(folder: Path, **tags: Any) -> Path:
    """Four slices in a shuffled order of names and numbers, and a text that is none of them."""
    for name, place in zip("abcd", (2, 0, 3, 1), strict=True):
        saved(folder / name, placed(VOLUME[place], 5 + 3 * place, InstanceNumber=99 - place, **tags))
    (folder / "README.txt").write_text("not DICOM")
    return folder


def reason(path: Path) -> str:
    with pytest.raises(UnreadableError) as error:
        read_scan(path)
    assert str(path) not in str(error.value)
    return str(error.value)


def test_slices_are_put_in_the_order_of_their_positions(tmp_path: Path) -> None:
    scan = read_scan(series(tmp_path / "series"))
    assert scan.pixels.dtype == np.float32
    np.testing.assert_array_equal(scan.pixels[:, 0], VOLUME)
    assert scan.geometry.kind == "dicom"
    assert scan.geometry.stored_shape == (5, 3, 4)
    assert scan.geometry.notes == ()


def test_the_affine_leads_to_the_right_the_front_and_the_head(tmp_path: Path) -> None:
    scan = read_scan(series(tmp_path / "series"))
    expected = [[-0.5, 0, 0, -10], [0, -0.7, 0, -20], [0, 0, 3, 5], [0, 0, 0, 1]]
    np.testing.assert_allclose(scan.geometry.affine, expected)


@pytest.mark.parametrize(
    ("directions", "axis"), [(AXIAL, 2), ([1, 0, 0, 0, 0, -1], 1), ([0, 1, 0, 0, 0, -1], 0), (None, None)]
)
def test_the_body_axis_of_the_slices_is_known(tmp_path: Path, directions: list[int] | None, axis: int | None) -> None:
    saved(tmp_path / "a", placed(VOLUME[0], 5, ImageOrientationPatient=directions))
    assert read_scan(tmp_path / "a").geometry.axis == axis


PADDING = -2000


def padded_series(folder: Path, **tags: Any) -> Path:
    """The series of `VOLUME` with one pixel in a corner, and one whole slice, that stand for nothing."""
    for place, pixels in enumerate(VOLUME):
        pixels = np.full_like(pixels, PADDING) if place == 3 else pixels.copy()
        pixels[0, 0] = PADDING
        saved(folder / str(place), placed(pixels, 5 + 3 * place, **tags))
    return folder


def filled(value: float) -> np.ndarray:
    expected = VOLUME.astype(np.float32)
    expected[3] = expected[:, 0, 0] = value
    return expected


@pytest.mark.parametrize(
    "tags",
    [
        {"PixelPaddingValue": PADDING},
        {"PixelPaddingValue": -1990, "PixelPaddingRangeLimit": -2010},
        {"PixelPaddingValue": PADDING, "RescaleSlope": 1, "RescaleIntercept": 0},
    ],
    ids=["value", "range", "scaled"],
)
def test_padded_pixels_are_as_dark_as_the_darkest_of_the_others(tmp_path: Path, tags: dict[str, Any]) -> None:
    scan = read_scan(padded_series(tmp_path / "s", **tags))
    np.testing.assert_array_equal(scan.pixels[:, 0], filled(-9))  # -10 was in the corner that is padded
    untagged = read_scan(padded_series(tmp_path / "t"))
    np.testing.assert_array_equal(untagged.pixels[:, 0], filled(PADDING))


def test_padding_is_known_by_its_unsigned_name_too(tmp_path: Path) -> None:
    dataset = image(np.array([[PADDING, 3], [4, 5]], dtype=np.int16))
    dataset.add_new("PixelPaddingValue", "US", 65536 + PADDING)
    assert read_scan(saved(tmp_path / "a", dataset)).pixels[0, 0].tolist() == [[3, 3], [4, 5]]


def test_padding_is_as_dark_where_white_is_zero(tmp_path: Path) -> None:
    pixels = np.array([[0, 30], [40, 50]], dtype=np.uint8)
    tags = {"PixelPaddingValue": 0, "PhotometricInterpretation": "MONOCHROME1"}
    scan = read_scan(saved(tmp_path / "a", image(pixels, **tags)))
    assert scan.pixels.dtype == np.uint8
    assert scan.pixels[0, 0].tolist() == [[205, 225], [215, 205]]


def test_a_padding_value_among_the_others_is_none(tmp_path: Path) -> None:
    pixels = np.array([[-5, 0], [0, 5]], dtype=np.int16)
    scan = read_scan(saved(tmp_path / "a", image(pixels, PixelPaddingValue=0)))
    np.testing.assert_array_equal(scan.pixels[0, 0], pixels)


def test_pixels_that_are_all_padding_stay_as_they_are(tmp_path: Path) -> None:
    pixels = np.full((2, 2), PADDING, dtype=np.int16)
    scan = read_scan(saved(tmp_path / "a", image(pixels, PixelPaddingValue=PADDING)))
    np.testing.assert_array_equal(scan.pixels[0, 0], pixels)


def test_without_positions_the_numbers_give_the_order(tmp_path: Path) -> None:
    for name, place in zip("abcd", (2, 0, 3, 1), strict=True):
        saved(tmp_path / "s" / name, image(VOLUME[place], InstanceNumber=place + 1))
    scan = read_scan(tmp_path / "s")
    np.testing.assert_array_equal(scan.pixels[:, 0], VOLUME)
    np.testing.assert_array_equal(scan.geometry.affine, np.eye(4))
    assert "how it lies in the body" in scan.geometry.notes[0]


def test_slices_stored_from_the_other_side_are_seen_from_the_same(tmp_path: Path) -> None:
    scan = read_scan(series(tmp_path / "s", ImageOrientationPatient=[-1, 0, 0, 0, -1, 0]))
    np.testing.assert_array_equal(scan.pixels[:, 0], VOLUME[:, ::-1, ::-1])


def test_a_mask_lies_on_the_series_that_it_was_made_from(tmp_path: Path) -> None:
    scan = read_scan(series(tmp_path / "s", ImageOrientationPatient=[-1, 0, 0, 0, -1, 0]))
    mask = (scan.pixels[:, 0] + 10).astype(np.uint8)
    path = write_mask(tmp_path / "mask", mask, scan)
    written = nib.load(path)
    assert written.shape == (5, 3, 4)
    np.testing.assert_allclose(written.affine, scan.geometry.affine, atol=1e-6)
    # column 1, row 2 of the slice at 11 mm lies at (10 - 0.5, 20 - 2 x 0.7, 11) in DICOM's axes
    voxel = np.linalg.inv(written.affine) @ [-9.5, -18.6, 11, 1]
    assert written.get_fdata()[tuple(np.rint(voxel[:3]).astype(int))] == VOLUME[2, 2, 1] + 10
    assert int(written.header["sform_code"]) == int(written.header["qform_code"]) == 1
    assert written.header.get_xyzt_units()[0] == "mm"
    np.testing.assert_array_equal(read_mask(path, scan).labels, mask)


@pytest.mark.parametrize("target", ["RAS", "LPS", "LPI", "PLS", "SRA"])
def test_a_nifti_mask_in_any_order_of_axes_is_turned_to_the_series(tmp_path: Path, target: str) -> None:
    scan = read_scan(series(tmp_path / "s"))
    mask = (scan.pixels[:, 0] + 10).astype(np.uint8)
    image = nib.load(write_mask(tmp_path / "mask", mask, scan))
    now, then = nib.io_orientation(image.affine), nib.orientations.axcodes2ornt(tuple(target))
    image.as_reoriented(nib.orientations.ornt_transform(now, then)).to_filename(tmp_path / "turned.nii")
    np.testing.assert_array_equal(read_mask(tmp_path / "turned.nii", scan).labels, mask)


def test_a_tilted_stack_has_a_sheared_affine_that_a_mask_keeps(tmp_path: Path) -> None:
    for place in range(3):
        position = [0, place * 1.0, place * 3.0]
        saved(tmp_path / "s" / str(place), placed(VOLUME[place], 0, ImagePositionPatient=position))
    scan = read_scan(tmp_path / "s")
    np.testing.assert_allclose(scan.geometry.affine[:3, 2], [0, -1, 3])
    written = nib.load(write_mask(tmp_path / "m", np.zeros((3, 3, 5), np.uint8), scan))
    np.testing.assert_allclose(written.affine, scan.geometry.affine, atol=1e-6)
    assert int(written.header["qform_code"]) == 0


def test_uneven_slices_are_noted(tmp_path: Path) -> None:
    for place, height in enumerate((0, 3, 9)):
        saved(tmp_path / "s" / str(place), placed(VOLUME[place], height))
    assert read_scan(tmp_path / "s").geometry.notes == ("its slices are not evenly spaced: 3 to 6 mm apart",)


def test_values_are_in_the_units_of_the_file(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.dcm", image(VOLUME[0], RescaleSlope=2, RescaleIntercept=-1000))
    np.testing.assert_array_equal(read_scan(path).pixels[0, 0], VOLUME[0] * 2.0 - 1000)


def test_white_as_zero_is_turned_round_but_not_in_a_mask(tmp_path: Path) -> None:
    stored = np.arange(6, dtype=np.uint16).reshape(2, 3)
    tags = {"PhotometricInterpretation": "MONOCHROME1", "BitsStored": 12, "HighBit": 11}
    scan = read_scan(saved(tmp_path / "a.dcm", image(stored, **tags)))
    np.testing.assert_array_equal(scan.pixels[0, 0], 4095.0 - stored)
    np.testing.assert_array_equal(read_mask(tmp_path / "a.dcm", scan).labels[0], stored)


def test_colour_pictures_stay_bytes(tmp_path: Path) -> None:
    stored = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
    scan = read_scan(saved(tmp_path / "a", image(stored)))
    assert scan.pixels.dtype == np.uint8
    np.testing.assert_array_equal(scan.pixels[0], stored.transpose(2, 0, 1))
    assert scan.geometry.kind == "dicom"
    Image.fromarray(stored[..., 0]).save(tmp_path / "m.png")
    np.testing.assert_array_equal(read_mask(tmp_path / "m.png", scan).labels[0], stored[..., 0])


def test_frames_of_one_file_are_slices(tmp_path: Path) -> None:
    scan = read_scan(saved(tmp_path / "a.dcm", image(VOLUME)))
    np.testing.assert_array_equal(scan.pixels[:, 0], VOLUME)
    assert "how it lies" in scan.geometry.notes[0]


def enhanced(order: tuple[int, ...]) -> Dataset:
    """A file of many frames that describes where each of them lies and how it is scaled."""
    dataset = image(VOLUME[list(order)])
    shared, plane, measures = Dataset(), Dataset(), Dataset()
    plane.ImageOrientationPatient = AXIAL
    measures.PixelSpacing, measures.SliceThickness = [0.7, 0.5], 3
    shared.PlaneOrientationSequence, shared.PixelMeasuresSequence = [plane], [measures]
    dataset.SharedFunctionalGroupsSequence = [shared]
    dataset.PerFrameFunctionalGroupsSequence = []
    for place in order:
        group, position, scale = Dataset(), Dataset(), Dataset()
        position.ImagePositionPatient = [10, 20, 5 + 3 * place]
        scale.RescaleSlope, scale.RescaleIntercept, scale.RescaleType = 2, place, "US"
        group.PlanePositionSequence, group.PixelValueTransformationSequence = [position], [scale]
        dataset.PerFrameFunctionalGroupsSequence.append(group)
    return dataset


def test_frames_with_positions_are_ordered_scaled_and_placed(tmp_path: Path) -> None:
    scan = read_scan(saved(tmp_path / "a.dcm", enhanced((2, 0, 3, 1))))
    np.testing.assert_array_equal(scan.pixels[:, 0], VOLUME * 2.0 + np.arange(4)[:, None, None])
    np.testing.assert_allclose(scan.geometry.affine[:3, 3], [-10, -20, 5])
    np.testing.assert_allclose(scan.geometry.affine[2, 2], 3)


def test_a_mask_as_another_series_is_laid_on_by_position(tmp_path: Path) -> None:
    scan = read_scan(series(tmp_path / "s"))
    for place in range(4):
        saved(tmp_path / "m" / str(9 - place), placed((VOLUME[place] + 10).astype(np.uint8), 5 + 3 * place))
    np.testing.assert_array_equal(read_mask(tmp_path / "m", scan).labels, VOLUME + 10)


@pytest.mark.parametrize(
    ("name", "shape", "kind"),
    [
        ("CT_small.dcm", (1, 1, 128, 128), np.float32),
        ("MR_small_RLE.dcm", (1, 1, 64, 64), np.float32),
        ("examples_ybr_color.dcm", (30, 3, 240, 320), np.uint8),
        ("examples_palette.dcm", (1, 3, 350, 800), np.uint8),
        ("JPEG2000.dcm", (1, 1, 1024, 256), np.float32),
        ("SC_rgb_jpeg_dcmtk.dcm", (1, 3, 100, 100), np.uint8),
        ("MR_small_jpeg_ls_lossless.dcm", (1, 1, 64, 64), np.float32),
        ("SC_rgb_rle_16bit_2frame.dcm", (2, 3, 100, 100), np.float32),
        ("rtdose.dcm", (15, 1, 10, 10), np.float32),
    ],
)
def test_files_of_many_makers(name: str, shape: tuple[int, ...], kind: type) -> None:
    path = get_testdata_file(name, download=False)
    if path is None:
        pytest.skip(f"pydicom does not carry {name} here")
    scan = read_scan(Path(path))
    assert scan.pixels.shape == shape
    assert scan.pixels.dtype == kind


def test_compressed_and_plain_twins_have_the_same_pixels() -> None:
    plain = read_scan(Path(str(get_testdata_file("MR_small.dcm"))))
    packed = read_scan(Path(str(get_testdata_file("MR_small_RLE.dcm"))))
    np.testing.assert_array_equal(plain.pixels, packed.pixels)


# What cannot be read


def test_a_folder_with_two_series_lists_them(tmp_path: Path) -> None:
    series(tmp_path / "s", SeriesDescription="T1")
    saved(tmp_path / "s" / "other", placed(VOLUME[0], 0, SeriesInstanceUID="1.9.9", SeriesDescription="scout"))
    message = reason(tmp_path / "s")
    assert "2 series" in message
    assert "T1 (1.2.3.4)" in message
    assert "scout (1.9.9)" in message


def test_slices_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    series(tmp_path / "size")
    saved(tmp_path / "size" / "e", placed(np.zeros((5, 5), np.int16), 30))
    assert "differ in size or colours: 5 x 3, 5 x 5" in reason(tmp_path / "size")
    series(tmp_path / "turn")
    saved(tmp_path / "turn" / "e", placed(VOLUME[0], 30, ImageOrientationPatient=[0, 1, 0, 0, 0, -1]))
    assert reason(tmp_path / "turn") == "its slices are not parallel"
    series(tmp_path / "twice")
    saved(tmp_path / "twice" / "e", placed(VOLUME[0], 5))
    assert "at one place" in reason(tmp_path / "twice")


def test_a_folder_without_dicom_files_and_an_index_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert reason(tmp_path / "empty") == "a folder without DICOM files"
    index = image(VOLUME[0])
    index.file_meta.MediaStorageSOPClassUID = index.SOPClassUID = "1.2.840.10008.1.3.10"
    assert "an index of other files" in reason(saved(tmp_path / "index", index))


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    series(tmp_path / "s")
    outside = saved(tmp_path / "outside", placed(VOLUME[0], 30))
    (tmp_path / "s" / "e").symlink_to(outside)
    assert "the link e in it leads out" in reason(tmp_path / "s")


@pytest.mark.parametrize("part", [0.05, 0.3, 0.6, 0.98])
def test_files_that_are_cut_off_anywhere(tmp_path: Path, part: float) -> None:
    path = Path(shutil.copy(str(get_testdata_file("CT_small.dcm")), tmp_path / "a.dcm"))
    path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])
    reason(path)


def test_damaged_bytes_raise_nothing_but_unreadable(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(3)
    content = np.frombuffer(saved(tmp_path / "whole", placed(VOLUME[0], 1)).read_bytes(), np.uint8)
    for _ in range(150):
        broken = content.copy()
        broken[rng.integers(132, len(broken), 3)] = rng.integers(0, 256, 3)
        (tmp_path / "a.dcm").write_bytes(broken.tobytes())
        with contextlib.suppress(UnreadableError):
            read_scan(tmp_path / "a.dcm")
    assert capfd.readouterr() == ("", "")


def test_sizes_are_checked_before_pixels_are_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path / "a.dcm", image(VOLUME[0], NumberOfFrames=2**31 - 1))
    assert "too large" in reason(path)
    series(tmp_path / "s")
    monkeypatch.setattr(guards, "VOXEL_LIMIT", 59)
    assert "too large: 5 x 3 x 4 = 60" in reason(tmp_path / "s")


def test_files_without_pixels_and_unknown_compressions_are_refused(tmp_path: Path) -> None:
    no_picture = image(VOLUME[0])
    del no_picture.Rows
    assert "without a picture" in reason(saved(tmp_path / "a.dcm", no_picture))
    no_pixels = image(VOLUME[0])
    del no_pixels.PixelData
    assert "holds no pixels" in reason(saved(tmp_path / "b.dcm", no_pixels))
    assert "nothing" not in reason(saved(tmp_path / "c.dcm", image(VOLUME[0], Rows=0)))
    lossless = image(VOLUME[0])
    lossless.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2.4.70"
    lossless.PixelData = pydicom.encaps.encapsulate([b"\xff\xd8\xff\xd9"])
    assert "JPEG Lossless" in reason(saved(tmp_path / "d.dcm", lossless))


def test_a_deflated_file_is_refused_before_it_swells(tmp_path: Path) -> None:
    dataset = image(np.zeros((64, 64), np.int16))
    dataset.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2.1.99"
    assert "deflated" in reason(saved(tmp_path / "a.dcm", dataset))


def test_odd_tags_do_not_stop_a_picture(tmp_path: Path) -> None:
    dataset = placed(VOLUME[0], 3)
    dataset.add_new("SliceThickness", "DS", "3")
    saved(tmp_path / "a.dcm", dataset)
    content = (tmp_path / "a.dcm").read_bytes().replace(b"0.7\\0.5 ", b"wide\\0.5")
    (tmp_path / "a.dcm").write_bytes(content)
    scan = read_scan(tmp_path / "a.dcm")
    np.testing.assert_array_equal(scan.pixels[0, 0], VOLUME[0])
    assert "how large its pixels are" in scan.geometry.notes[0]


def test_dicom_is_known_by_its_mark_not_by_its_name(tmp_path: Path) -> None:
    folder = series(tmp_path / "s")
    assert is_readable(folder)
    assert is_readable(folder / "a")
    assert is_readable(saved(tmp_path / "1.2.840.99", image(VOLUME[0])))
    assert not is_readable(folder / "README.txt")
    (tmp_path / "b.dcm").write_bytes(b"x" * 500)
    assert "lacks the letters DICM" in reason(tmp_path / "b.dcm")


# Segmentations

MASK = np.arange(60).reshape(4, 3, 5) % 3
MASK[1] = 0  # a segmentation leaves such slices out


@pytest.mark.parametrize("directions", [AXIAL, [-1, 0, 0, 0, -1, 0], [0, 1, 0, 1, 0, 0]])
def test_a_written_segmentation_names_its_slices_and_reads_back(tmp_path: Path, directions: list[int]) -> None:
    pytest.importorskip("highdicom")
    source = series(tmp_path / "s", ImageOrientationPatient=directions)
    scan = read_scan(source)
    mask = MASK if scan.pixels.shape[-2:] == (3, 5) else MASK.transpose(0, 2, 1)
    path = write_segmentation(tmp_path / "out", mask, source, ["liver", "tumour"])
    assert path.name == "out.dcm"
    written = pydicom.dcmread(path)
    assert [segment.SegmentLabel for segment in written.SegmentSequence] == ["liver", "tumour"]
    slices = {pydicom.dcmread(source / name).SOPInstanceUID for name in "abcd"}
    named = {one.ReferencedSOPInstanceUID for one in written.ReferencedSeriesSequence[0].ReferencedInstanceSequence}
    assert named == slices
    np.testing.assert_array_equal(read_mask(path, scan).labels, mask)


def test_highdicom_finds_the_same_segments(tmp_path: Path) -> None:
    highdicom = pytest.importorskip("highdicom")
    source = series(tmp_path / "s")
    path = write_segmentation(tmp_path / "out", MASK, source, ["liver", "tumour"])
    slices = sorted((pydicom.dcmread(source / name) for name in "abcd"), key=lambda one: one.ImagePositionPatient[2])
    found = highdicom.seg.segread(path).get_pixels_by_source_instance(
        [one.SOPInstanceUID for one in slices], combine_segments=True, assert_missing_frames_are_empty=True
    )
    np.testing.assert_array_equal(found, MASK)


def test_a_segmentation_of_one_class_is_read_back(tmp_path: Path) -> None:
    pytest.importorskip("highdicom")
    source = series(tmp_path / "s")
    one = (MASK > 0).astype(np.uint8)
    path = write_segmentation(tmp_path / "out", one, source, ["liver"])
    np.testing.assert_array_equal(read_mask(path, read_scan(source)).labels, one)


def test_a_segmentation_of_other_slices_or_kind_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("highdicom")
    path = write_segmentation(tmp_path / "out", MASK, series(tmp_path / "s"), ["liver", "tumour"])
    moved = read_scan(series(tmp_path / "moved", ImageOrientationPatient=[0, 1, 0, 0, 0, -1]) / "a")
    with pytest.raises(UnreadableError, match="another grid"):
        read_mask(path, moved)
    with pytest.raises(UnreadableError, match="the mask is 5 x 3, the image 5 x 5"):
        read_mask(path, Scan(np.zeros((1, 1, 5, 5), np.uint8)))
    assert "not an image" in reason(path)
    changed = pydicom.dcmread(path)
    changed.SegmentationType = "FRACTIONAL"
    with pytest.raises(UnreadableError, match="FRACTIONAL"):
        read_mask(saved(tmp_path / "f.dcm", changed), read_scan(tmp_path / "s"))


def test_without_the_extra_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "highdicom", None)
    with pytest.raises(UsageError, match=r"pip install 'harmofl\[dicom-seg\]'"):
        segmentations.write_segmentation_object(tmp_path / "out", MASK, tmp_path, ["a", "b"])


def test_a_class_without_a_name_is_not_written(tmp_path: Path) -> None:
    pytest.importorskip("highdicom")
    with pytest.raises(ValueError, match="class 2"):
        write_segmentation(tmp_path / "out", MASK, series(tmp_path / "s"), ["liver"])
