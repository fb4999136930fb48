"""Outlines drawn in Aperio ImageScope (`.xml`), as in MoNuSAC and MoNuSeg, filled to a mask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harmofl.data.formats.guards import reading
from harmofl.data.scans import Mask, UnreadableError

Vertices = NDArray[np.float64]

IGNORED = "ambiguous"
"""MoNuSAC's test images mark so what two pathologists could not agree on."""


def read_outlines(path: Path, height: int, width: int) -> Mask:
    """(H, W) uint8: 1 wherever at least one outline lies, whatever its class."""
    mask = np.zeros((height, width), dtype=np.uint8)
    for vertices in _polygons(_root(path)):
        _fill(mask, vertices)
    return mask


def outline_notes(path: Path) -> tuple[str, ...]:
    """What a careful owner would want to know about the outlines."""
    return () if any(True for _ in _polygons(_root(path))) else ("it holds no outlines: the mask is empty",)


def _root(path: Path) -> Any:
    with reading("file of outlines (XML)"):
        from defusedxml import DefusedXmlException
        from defusedxml.ElementTree import parse

        try:
            root = parse(path, forbid_dtd=True).getroot()
        except DefusedXmlException:
            raise UnreadableError("holds a document type or entities, which are not read") from None
        if root.tag != "Annotations":
            raise UnreadableError(f"not Aperio's outlines: it starts with <{root.tag}>, not <Annotations>")
        return root


def _polygons(root: Any) -> Iterator[Vertices]:
    for annotation in root.iter("Annotation"):
        names = {(attribute.get("Name") or "").strip().lower() for attribute in annotation.iterfind("Attributes/*")}
        if IGNORED in names:
            continue
        for region in annotation.iter("Region"):
            if region.get("NegativeROA") != "1":
                yield _vertices(region)


def _vertices(region: Any) -> Vertices:
    try:
        corners = [(float(vertex.attrib["X"]), float(vertex.attrib["Y"])) for vertex in region.iter("Vertex")]
    except (KeyError, ValueError):
        corners = [(np.nan, np.nan)]
    vertices = np.array(corners, dtype=np.float64).reshape(-1, 2)
    if not np.isfinite(vertices).all():
        raise UnreadableError(f"region {region.get('Id')!r} has a vertex that is not two numbers")
    return vertices


def _fill(mask: Mask, vertices: Vertices) -> None:
    """Mark the pixels whose centre lies inside; pixel (row, column) has its centre at (row + 0.5, column + 0.5)."""
    if len(np.unique(vertices, axis=0)) < 3:
        return  # a point or a line has no area
    height, width = mask.shape
    top, left = _clipped(np.floor(vertices[:, 1].min()), height), _clipped(np.floor(vertices[:, 0].min()), width)
    bottom, right = _clipped(np.ceil(vertices[:, 1].max()), height), _clipped(np.ceil(vertices[:, 0].max()), width)
    window = mask[top:bottom, left:right]
    inside = _inside(vertices - (left + 0.5, top + 0.5), *window.shape)
    window[inside] = 1
    if not inside.any() and _area(vertices) >= 1:
        _mark_corners(mask, vertices)


def _clipped(edge: float, size: int) -> int:
    return int(min(max(edge, 0), size))


def _inside(vertices: Vertices, height: int, width: int) -> NDArray[np.bool_]:
    """Which whole-numbered points the outline winds around: every edge counts once in each row that it crosses."""
    (x, y), (next_x, next_y) = vertices.T, np.roll(vertices, -1, axis=0).T
    first = np.ceil(np.minimum(y, next_y)).clip(0, height).astype(np.intp)
    count = np.ceil(np.maximum(y, next_y)).clip(0, height).astype(np.intp) - first
    edge = np.repeat(np.arange(len(count)), count)
    row = np.arange(len(edge)) - np.repeat(np.cumsum(count) - count, count) + first[edge]
    crossing = x[edge] + (row - y[edge]) * (next_x - x)[edge] / (next_y - y)[edge]
    column = np.ceil(crossing).clip(0, width).astype(np.intp)
    winding = np.zeros((height, width + 1), dtype=np.int32)
    np.add.at(winding, (row, column), np.where(next_y > y, 1, -1)[edge])
    return np.asarray(np.cumsum(winding, axis=1)[:, :-1] != 0)


def _area(vertices: Vertices) -> float:
    (x, y), (next_x, next_y) = vertices.T, np.roll(vertices, -1, axis=0).T
    return float(abs((x * next_y - next_x * y).sum()) / 2)


def _mark_corners(mask: Mask, vertices: Vertices) -> None:
    """A sliver between the pixels' centres is not lost: the pixels of its corners stand for it."""
    columns, rows = np.floor(vertices).T
    seen = (rows >= 0) & (rows < mask.shape[0]) & (columns >= 0) & (columns < mask.shape[1])
    mask[rows[seen].astype(np.intp), columns[seen].astype(np.intp)] = 1
