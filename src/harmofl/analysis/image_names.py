"""What an image is called: its file, with the slice or tile that it is, or its number among a site's images."""

from __future__ import annotations

from pathlib import PurePosixPath

from harmofl.data.folder import ImageFolder
from harmofl.data.images import ImageSet, JoinedImages, StoredImages
from harmofl.data.volumes import VolumeSet
from harmofl.tasks.task import Source


def image_name(source: Source, site: str, images: ImageSet, place: int) -> str:
    """The name of the image at a place of a site's set; synthetic images have a number only."""
    if isinstance(images, JoinedImages):
        number, inner = images.places[place].tolist()
        return image_name(source, site, images.sets[number], inner)
    if isinstance(images, VolumeSet) and isinstance(source, ImageFolder):
        return PurePosixPath(source.decoded(site).samples[int(images.rows[place])].image).name
    if isinstance(images, StoredImages) and isinstance(source, ImageFolder):
        return _file_name(source, site, int(images.rows[place, images.rows.shape[1] // 2]))
    return f"image {place + 1}"


def _file_name(folder: ImageFolder, site: str, plane: int) -> str:
    decoded = folder.decoded(site)
    entry = decoded.entry
    assert entry is not None  # its images were opened
    sample, cut = int(entry.sample[plane]), int(entry.slice[plane])
    name = PurePosixPath(decoded.samples[sample].image).name
    same_sample = entry.sample == sample
    if entry.slice[same_sample].max() > 0:
        name += f", slice {cut + 1}"
    if entry.tiles[sample] > 1:
        first = int((same_sample & (entry.slice == cut)).argmax())
        name += f", tile {plane - first + 1}"
    return name
