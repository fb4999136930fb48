"""Small data sets on disk, in exactly the layouts that are downloaded or that a hospital makes."""

import csv
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

from harmofl import registry
from harmofl.data.folder import ImageFolder
from harmofl.data.inspection import check_for_training
from harmofl.errors import UsageError
from harmofl.settings import resolve

Array = NDArray[np.uint8]


def picture(path: Path, pixels: NDArray[np.generic]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def blob(size: int, seed: int, channels: int = 3, brightness: int = 60) -> tuple[Array, Array]:
    """A noisy picture with a bright disk, and the disk's mask in 0 and 255."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[:size, :size]
    middle = random.uniform(0.35, 0.65, 2) * size
    disk = (rows - middle[0]) ** 2 + (columns - middle[1]) ** 2 < (size / 4) ** 2
    pixels = random.normal(brightness, 10, (size, size, channels)) + 120 * disk[..., None]
    pixels = np.clip(pixels, 0, 255).astype(np.uint8)
    return (pixels if channels > 1 else pixels[..., 0]), (255 * disk).astype(np.uint8)


def write_manifest(folder: Path, rows: list[dict[str, str]]) -> Path:
    with (folder / "manifest.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder


def segmentation_folder(
    folder: Path, sites: int = 2, patients: int = 5, images: int = 2, size: int = 40, channels: int = 3
) -> Path:
    """Own data with masks: `patients` × `images` pictures a site, each site brighter than the one before."""
    rows = []
    for site in range(sites):
        for patient in range(patients):
            for number in range(images):
                seed = 1000 * site + 10 * patient + number
                pixels, mask = blob(size, seed, channels, brightness=40 + 40 * site)
                name = f"site-{site}/p{patient}-{number}"
                picture(folder / f"{name}.png", pixels)
                picture(folder / f"{name}-mask.png", mask)
                row = {"site": f"site-{site}", "patient": f"p{patient}", "image": f"{name}.png"}
                rows.append(row | {"mask": f"{name}-mask.png"})
    return write_manifest(folder, rows)


def classification_folder(
    folder: Path, sites: int = 2, images: int = 12, classes: tuple[str, ...] = ("healthy", "ill"), size: int = 24
) -> Path:
    """Own data with labels: a class is a brightness; no patients."""
    rows = []
    for site in range(sites):
        for number in range(images):
            label = classes[number % len(classes)]
            pixels, _ = blob(size, 1000 * site + number, 1, brightness=30 + 40 * (number % len(classes)) + 10 * site)
            name = f"site-{site}/{number}.png"
            picture(folder / name, pixels)
            rows.append({"site": f"site-{site}", "image": name, "label": label})
    return write_manifest(folder, rows)


def camelyon17_folder(folder: Path, centers: int = 2, patients: int = 4, patches: int = 6) -> Path:
    """Patches in the WILDS layout."""
    lines = [",patient,node,x_coord,y_coord,tumor,slide,center,split"]
    for center in range(centers):
        for patient in range(patients):
            number = 20 * center + patient
            for patch in range(patches):
                name = f"patient_{number:03d}_node_1"
                x, y, tumor = 96 * patch, 32, patch % 2
                pixels, _ = blob(96, 100 * number + patch, brightness=60 + 30 * tumor + 20 * center)
                picture(folder / "patches" / name / f"patch_{name}_x_{x}_y_{y}.png", pixels)
                lines.append(f"{len(lines) - 1},{number:03d},1,{x},{y},{tumor},{number},{center},0")
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    return folder


def volume(shape: tuple[int, int, int], seed: int) -> tuple[NDArray[np.float32], Array]:
    """An array as NIfTI stores it, with a bright ball, dark first and last slices, and the ball's mask."""
    random = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(*(np.linspace(-1, 1, length) for length in shape), indexing="ij"))
    ball = (grid**2).sum(axis=0) < 0.5
    ball[..., 0] = ball[..., -1] = False
    pixels = random.normal(200, 20, shape) + 400 * ball
    return pixels.astype(np.float32), ball.astype(np.uint8)


def save_volume(path: Path, array: NDArray[np.generic], affine: NDArray[np.float64]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(array, affine), path)
    return path


def dicom_slice(pixels: NDArray[np.generic], height: float, series: str) -> Dataset:
    """A CT slice with a position: rows 0.75 mm and columns 0.5 mm apart."""
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    kind = "1.2.840.10008.5.1.4.1.1.2"
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID = kind
    dataset.SOPInstanceUID = generate_uid()
    dataset.SeriesInstanceUID, dataset.StudyInstanceUID, dataset.FrameOfReferenceUID = series, "1.2.5", "1.2.6"
    dataset.Modality, dataset.PatientID, dataset.PatientName, dataset.StudyID = "CT", "p", "P", "1"
    dataset.PatientBirthDate = dataset.PatientSex = dataset.AccessionNumber = dataset.StudyDate = ""
    dataset.StudyTime = dataset.ReferringPhysicianName = ""
    dataset.SeriesNumber, dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, 1, "MONOCHROME2"
    dataset.Rows, dataset.Columns = pixels.shape
    dataset.BitsAllocated = dataset.BitsStored = 16
    dataset.HighBit, dataset.PixelRepresentation = 15, 0
    dataset.PixelSpacing, dataset.SliceThickness = [0.75, 0.5], 3
    dataset.ImageOrientationPatient, dataset.ImagePositionPatient = [1, 0, 0, 0, 1, 0], [10, 20, height]
    dataset.PixelData = pixels.astype(np.uint16).tobytes()
    return dataset


def prostate_folder(
    folder: Path, sites: tuple[str, ...] = ("BIDMC", "HK"), cases: int = 4, shape: tuple[int, int, int] = (40, 36, 5)
) -> Path:
    """The six-site layout; cases differ in size, sites in orientation."""
    for place, site in enumerate(sites):
        for case in range(cases):
            pixels, mask = volume((shape[0], shape[1], shape[2] + case % 2), 100 * place + case)
            affine = np.diag([0.6, 0.6, 3.0, 1.0]) if place % 2 else np.diag([-0.6, -0.6, 3.0, 1.0])
            save_volume(folder / site / f"Case{case:02d}.nii.gz", pixels, affine)
            ending = "Segmentation" if place % 2 else "segmentation"
            save_volume(folder / site / f"Case{case:02d}_{ending}.nii.gz", mask, affine)
    return folder


def outlines(*polygons: list[tuple[float, float]]) -> str:
    """Aperio XML of closed outlines, as (x, y) corners."""
    regions = ""
    for number, polygon in enumerate(polygons, start=1):
        corners = "".join(f'<Vertex X="{x}" Y="{y}"/>' for x, y in polygon)
        regions += f'<Region Id="{number}"><Vertices>{corners}</Vertices></Region>'
    return f'<Annotations><Annotation Id="1"><Regions>{regions}</Regions></Annotation></Annotations>'


def nuclei_folder(folder: Path, patients: int = 4, size: int = 70) -> Path:
    """MoNuSeg (train and test) and TNBC, with square nuclei."""
    square = outlines([(10, 10), (30, 10), (30, 30), (10, 30)], [(40, 40), (60, 40), (60, 60), (40, 60)])
    for patient in range(patients):
        part = "MoNuSeg 2018 Training Data" if patient < patients - 1 else "MoNuSegTestData"
        pixels, _ = blob(size, patient, brightness=90)
        name = f"TCGA-XX-{patient:04d}-01Z"
        images, notes = (part, part) if "Test" in part else (f"{part}/Tissue Images", f"{part}/Annotations")
        picture(folder / images / f"{name}.tif", pixels)
        (folder / notes).mkdir(parents=True, exist_ok=True)
        (folder / notes / f"{name}.xml").write_text(square)
    for slide in range(1, 6):
        pixels, mask = blob(size, 50 + slide, brightness=140)
        picture(folder / f"TNBC_NucleiSegmentation/Slide_{slide:02d}/{slide:02d}_1.png", pixels)
        picture(folder / f"TNBC_NucleiSegmentation/GT_{slide:02d}/{slide:02d}_1.png", mask)
    return folder


def opened(task: str, folder: Path, preset: str = "smoke", **data: Any) -> ImageFolder:
    """The images of a folder, with a preset's settings and some of one's own."""
    overrides = {"data.folder": str(folder)} | {f"data.{name}": value for name, value in data.items()}
    settings, _ = resolve(task, "fedavg", preset, overrides=overrides)
    return registry.tasks.find(task).open_folder(settings.data)


def broken(folder: Path, task: str = "segmentation", **data: Any) -> str:
    """Why training on a folder is refused."""
    with pytest.raises(UsageError) as caught:
        check_for_training(opened(task, folder, **data))
    return str(caught.value)
