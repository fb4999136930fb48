"""A trained model as one file for other software: ONNX or TorchScript, harmonizer included.

The file is run and compared with the model before it is written: a file that is there gives the model's own numbers.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from harmofl.errors import RunError, UsageError, unknown_name
from harmofl.extras import require
from harmofl.files import write_whole
from harmofl.inference.card import write_card
from harmofl.inference.plain import plain_model
from harmofl.methods.method import Method
from harmofl.methods.model import Model
from harmofl.runs.finished import read_summary
from harmofl.runs.folder import RunFolder
from harmofl.runs.model_folder import find_model_folder, has_one_model, open_model, read_description
from harmofl.states import num_bytes, snapshot

if TYPE_CHECKING:
    import onnx

Format = Literal["onnx", "torchscript"]
Description = dict[str, Any]

FILES: dict[str, str] = {"onnx": "model.onnx", "torchscript": "model.pt"}
TOLERANCE = 1e-4
"""Largest difference of logits, relative to the largest of them or to 1, at which two models are the same."""

LARGEST_ONNX = 2**31 - 2**20
"""One ONNX file holds 2 GiB at most; a little less, for what is not weights."""


def export_model(
    run: Path, format: Format, out: Path | None = None, site: str | None = None, method: Method | None = None
) -> Path:
    """Write a run's model (or a model folder's) as one file, with `MODEL.md` beside it, and return its path.

    `site`: whose model, where each site has its own. `method`: the one it was trained with, if it is your own and
    not registered.
    """
    if format not in FILES:
        raise unknown_name("format", format, FILES)
    run, folder = _find_folders(run)
    trained = open_model(folder, site, method)
    description = _describe(folder, site)
    path = RunFolder(run).summary
    summary = read_summary(path) if path.exists() else None
    content = _export(trained.model, format, description)
    target = out or run / "export" / description.get("site", "")
    try:
        write_whole(target / FILES[format], content)
        write_card(target / "MODEL.md", description, trained.method, summary)
    except OSError as error:
        raise UsageError(f"--out {target}: {error.strerror or error}") from error
    return target / FILES[format]


def _find_folders(folder: Path) -> tuple[Path, Path]:
    """The folder of the run and that of its model, whichever of them was given."""
    model = find_model_folder(folder)
    if not (model / "model.json").exists():
        raise UsageError(f"{folder}: neither a finished run (no model/model.json) nor a model folder (no model.json)")
    is_inside_run = model.name == "model" and (model.parent / "config.toml").exists()
    return (model.parent if model != folder or is_inside_run else folder), model


def _describe(folder: Path, site: str | None) -> Description:
    """What `model.json` says; with the site, if the model is its own."""
    description = read_description(folder)
    if site is not None and not has_one_model(folder):
        own = read_description(folder / "sites" / site)
        description |= {"site": site, "best_round": own.get("best_round")}
    return description


def _export(model: Model, format: Format, description: Description) -> bytes:
    """The file's content, which was run and gave the model's own numbers."""
    _check_possible(model, format)
    size = description["input"]
    generator = torch.Generator().manual_seed(0)
    # Another number of images than the exporter sees: it must not take that number for granted.
    shape = [size[name] for name in ("channels", "depth", "height", "width") if name in size]
    example, images = (torch.rand(number, *shape, generator=generator) for number in (3, 2))
    write, run = (_to_onnx, _run_onnx) if format == "onnx" else (_to_torchscript, _run_torchscript)
    try:
        with _silence_exporters(), torch.no_grad():
            content = write(plain_model(model), example, description)
            difference = _difference(run(content, images), model(images))
    except Exception as error:  # exporters, and harmonizers of others, raise whatever they like
        raise RunError(f"this model cannot be exported as {format}: {_shorten(error)}") from error
    if not difference <= TOLERANCE:  # nor is "not a number" the same
        raise RunError(
            f"the exported {format} file gives different numbers from the model (difference {difference:.1e}, "
            f"allowed {TOLERANCE:.0e}): nothing was written"
        )
    return content


def _check_possible(model: Model, format: Format) -> None:
    if format != "onnx":
        return
    require("onnx", "--format onnx")
    if num_bytes(snapshot(model)) > LARGEST_ONNX:
        raise UsageError("--format onnx: one file holds 2 GiB at most, and this model is larger; try torchscript")


def _difference(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max().clamp_min(1.0))


def _shorten(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


@contextmanager
def _silence_exporters() -> Iterator[None]:
    """Keep the messages that exporters print for their developers off the user's terminal."""
    loggers = [logging.getLogger(name) for name in ("torch", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _to_onnx(model: Model, example: Tensor, description: Description) -> bytes:
    program = torch.onnx.export(
        model,
        (example,),
        dynamo=True,
        verbose=False,
        input_names=["images"],
        output_names=["logits"],
        dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
    )
    assert program is not None
    proto = program.model_proto
    _forget_origin(proto)
    for name, value in description.items():
        proto.metadata_props.add(key=name, value=value if isinstance(value, str) else json.dumps(value))
    return bytes(proto.SerializeToString())


def _forget_origin(proto: onnx.ModelProto) -> None:
    """Remove where in which source file each node comes from: paths of this machine, larger than a small model."""
    graph = proto.graph
    for part in (proto, graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")


def _run_onnx(content: bytes, images: Tensor) -> Tensor:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])


def _to_torchscript(model: Model, example: Tensor, description: Description) -> bytes:
    buffer = io.BytesIO()
    traced = torch.jit.trace(model, (example,), check_trace=False)  # type: ignore[no-untyped-call]
    torch.jit.save(traced, buffer, _extra_files={"model.json": json.dumps(description, indent=2)})
    return _remove_debug_files(buffer.getvalue())


def _remove_debug_files(archive: bytes) -> bytes:
    """Remove what says which line of which source file each operator comes from: paths of this machine."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as source, zipfile.ZipFile(buffer, "w") as target:
        for entry in source.infolist():
            if not entry.filename.endswith(".debug_pkl"):
                target.writestr(entry, source.read(entry))
    return buffer.getvalue()


def _run_torchscript(content: bytes, images: Tensor) -> Tensor:
    logits: Tensor = torch.jit.load(io.BytesIO(content))(images)  # type: ignore[no-untyped-call]
    return logits
