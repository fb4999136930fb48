"""The Python calls that the commands make too."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from harmofl import registry
from harmofl.devices import threads
from harmofl.errors import DiskError, RunError, UsageError
from harmofl.federation.server import Server, check_measurement, start_from
from harmofl.federation.transports import Transport, hindrance, num_workers, simulated
from harmofl.files import check_writable, write_whole
from harmofl.methods.method import Method
from harmofl.runs.folder import Record, RunFolder
from harmofl.runs.model_folder import located, open_model, read_description
from harmofl.settings import DataSettings, Settings, Tree, read_toml, resolve
from harmofl.settings.schema import FOUND_IN_DATA
from harmofl.tasks.scorers import Scores

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from harmofl.data.check import Check
    from harmofl.inference.prediction import Outcome

Watch = Callable[[Record], None]


def train(
    task: str | None = None,
    method: str | Method | None = None,
    *,
    out: str | Path,
    data: str | Path | None = None,
    preset: str | None = None,
    config: str | Path | None = None,
    seed: int | None = None,
    workers: int | None = None,
    device: str | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    watch: Watch = lambda record: None,
) -> Record:
    """Train one method on one task and return the summary; everything else lies in the folder `out`.

    `settings` are single settings as {"section.name": value}. With no data the task's phantom is used.
    """
    overrides = dict(settings or {})
    folder = None if data is None else str(data)
    given = {"seed": seed, "federation.workers": workers, "device": device, "data.folder": folder}
    overrides |= {name: value for name, value in given.items() if value is not None}
    file = read_toml(Path(config)) if config else {}
    resolved, chosen = resolve(task, method, preset, file, overrides)
    if resolved.data.folder:
        resolved = resolved.with_values("data", folder=os.path.abspath(resolved.data.folder))
    if is_for_another_folder(file, resolved):
        resolved = adapted(resolved, overrides)
    check_start(resolved, Path(out), resume)
    return run(settled(resolved, watch), chosen, Path(out), resume, watch)


def check_start(settings: Settings, out: Path, resume: bool) -> None:
    """Raise the errors that need no look at the images, which may take minutes."""
    check_device(settings.device)
    RunFolder(out).check_start(resume)
    if settings.model.initial:
        read_description(Path(settings.model.initial))


def announce_images(data: DataSettings, watch: Watch) -> None:
    """Say first of all which images are used, so that nobody takes synthetic hospitals for their own."""
    watch({"phase": "images", "images": data.images_used})


def is_for_another_folder(file: Tree, settings: Settings) -> bool:
    """Whether a settings file was written for images that lay elsewhere."""
    section = file.get("data")
    folder = section.get("folder") if isinstance(section, dict) else None
    return bool(folder) and os.path.abspath(str(folder)) != settings.data.folder


def adapted(settings: Settings, overrides: Mapping[str, Any]) -> Settings:
    """Settings without what was found in another folder's images, unless this one holds the same sites."""
    if not settings.data.folder:
        return settings.with_values("data", **{name: None for name in FOUND_IN_DATA if f"data.{name}" not in overrides})
    everyone = settings.with_values("data", sites=None, hold_out_site=None).data
    there, chosen = registry.tasks.find(settings.task).open_folder(everyone).sites, settings.data.sites or ()
    if not set(chosen) <= set(there):
        found = {name: None for name in ("sites", "channels", "classes") if f"data.{name}" not in overrides}
        return settings.with_values("data", **found)
    others = sorted(set(there) - {*chosen, settings.data.hold_out_site})
    if chosen and others:
        logger.warning("not among the configuration's data.sites, so left out: %s", ", ".join(others))
    return settings


def settled(settings: Settings, watch: Watch) -> Settings:
    """Settings with what the data decide: which sites take part, how many channels, which classes."""
    task = registry.tasks.find(settings.task)
    if not settings.data.folder:
        if not settings.data.is_synthetic:
            raise UsageError(
                "these settings are of images that lay at their hospitals: say where they are, with --data"
            )
        task.open(settings.data)  # or an error that says that there is no phantom
        announce_images(settings.data, watch)
        return settings
    images = task.open_folder(settings.data, watch)
    announce_images(settings.data, watch)
    images.prepare()
    return settings.with_values("data", **images.found())


def run(
    settings: Settings,
    method: Method,
    out: Path,
    resume: bool,
    watch: Watch,
    transport: AbstractContextManager[Transport] | None = None,
) -> Record:
    """Run a federation in a folder, from its start or from its last checkpoint; with no transport it is simulated."""
    check_device(settings.device)
    if transport is None:
        check_method_travels(method, settings)
    task = registry.tasks.find(settings.task)
    check_measurement(method, task.image_shape(settings.data))
    if settings.model.initial:  # before the folder is claimed: a wrong one leaves nothing behind
        start_from(task.build_model(settings, method).network, Path(settings.model.initial))
    folder = RunFolder(out)
    identifier = folder.begin(settings, resume)
    try:
        if resume and folder.summary.exists():
            return folder.read_summary()
        reached = transport or simulated(settings, method, out)
        with threads(settings.federation.threads), reached as sites:
            return Server(task, method, settings, sites, folder, identifier, watch).run()
    except (OSError, DiskError) as error:
        cause = (isinstance(error, OSError) and error.strerror) or error
        kept = "what was written before is kept: mend the cause and go on with --resume"
        raise RunError(f"{out}: {cause}; {kept}") from error
    finally:
        folder.release()


def check_data(
    task: str,
    data: str | Path,
    *,
    preset: str | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    sheet: str | Path | None = None,
    watch: Watch = lambda record: None,
) -> tuple[Check, Path | None]:
    """Look at all images of a folder: numbers per site and split, and every problem; `sheet`: a picture to write."""
    from harmofl.data.check import check_images

    overrides = {"data.limit": 0} | dict(settings or {}) | {"data.folder": os.path.abspath(data)}
    file = read_toml(Path(config)) if config else {}
    resolved, _ = resolve(task, "fedavg", preset, file, overrides)
    if is_for_another_folder(file, resolved):
        resolved = adapted(resolved, overrides)
    chosen = registry.tasks.find(task)
    folder = chosen.open_folder(resolved.data, watch)
    check = check_images(chosen, folder)
    if sheet is None or not folder.samples:
        return check, None
    from harmofl.reporting.contact_sheet import contact_sheet
    from harmofl.reporting.style import to_png

    try:
        write_whole(Path(sheet), to_png(contact_sheet(chosen, folder)))
    except OSError as error:  # what was found counts more than its picture
        logger.warning("--sheet %s: %s", sheet, error.strerror or error)
        return check, None
    return check, Path(sheet)


def load_model(folder: str | Path, site: str | None = None, method: Method | None = None) -> nn.Module:
    """A trained model in eval mode, harmonizer included: raw images (N, C, H, W) in [0, 1] in, logits out.

    `site`: whose model, where each site has its own. `method`: the one it was trained with, if it is your own and
    not registered.
    """
    return open_model(located(Path(folder)), site, method)[0]


def evaluate(
    folder: str | Path,
    *,
    data: str | Path | None = None,
    site: str | None = None,
    settings: Mapping[str, Any] | None = None,
    split: str = "auto",
    device: str = "auto",
    watch: Watch = lambda record: None,
) -> dict[str, Scores]:
    """Score a finished model per site: on labelled images of a folder, or on the test images of its task's phantom.

    `settings`: changes of its data settings. `site`: whose model, where each site has its own. `split`: train, val,
    test or all images; auto takes the test images of sites that took part in training, and all of other sites.
    """
    from harmofl.inference.evaluation import evaluate_model

    check_device(device)
    return evaluate_model(located(Path(folder)), data, site, settings, split, device, watch)


def predict(
    folder: str | Path,
    images: str | Path | Sequence[str | Path],
    *,
    out: str | Path,
    site: str | None = None,
    overlay: bool = False,
    dicom_seg: bool = False,
    overlap: float = 0.25,
    batch_size: int | None = None,
    device: str = "auto",
    watch: Watch = lambda record: None,
    overwrite: bool = False,
) -> list[Outcome]:
    """Masks or classes for new images: files, folders or patterns; one outcome per image, failed ones included.

    What lies in a folder and is not predicted has an outcome too, after the others; its `left_out` says why.

    `overwrite`: replace what an earlier prediction wrote to `out`; else that is refused.
    """
    from harmofl.inference.prediction import predict as predict_images

    check_device(device)
    named = [images] if isinstance(images, (str, Path)) else images
    return predict_images(
        located(Path(folder)),
        named,
        Path(out),
        site,
        overlay,
        device,
        batch_size,
        dicom_seg,
        overlap,
        watch=watch,
        overwrite=overwrite,
    )


def export(
    run: str | Path, format: Literal["onnx", "torchscript"], *, out: str | Path | None = None, site: str | None = None
) -> Path:
    """Write a finished model as one file that runs without harmofl, with a model card beside it."""
    from harmofl.inference.export import export_model

    return export_model(Path(run), format, Path(out) if out else None, site)


def landscape(
    runs: Sequence[str | Path],
    *,
    out: str | Path,
    images: int = 0,
    points: int = 0,
    local_epochs: int = 3,
    seed: int = 0,
    device: str = "auto",
    watch: Watch = lambda record: None,
) -> list[Path]:
    """Draw the loss around the selected models of runs on the same data, and measure sharpness; return the files."""
    from harmofl.analysis.landscape import landscape as survey
    from harmofl.reporting.landscape_figures import write_figures
    from harmofl.reporting.landscape_table import write_tables

    check_device(device)
    out = Path(out)
    check_writable(out)
    found = survey(
        [Path(run) for run in runs],
        out,
        points=points,
        local_epochs=local_epochs,
        images=images,
        seed=seed,
        device=device,
        watch=watch,
    )
    return write_tables(found, out) + write_figures(found, out)


def pictures(
    runs: Sequence[str | Path] = (),
    *,
    out: str | Path,
    task: str | None = None,
    data: str | Path | None = None,
    preset: str | None = None,
    bands: Sequence[str | float] | None = None,
    settings: Mapping[str, Any] | None = None,
    device: str = "auto",
    watch: Watch = lambda record: None,
) -> list[Path]:
    """Draw a task's images before and after harmonization, or what finished runs make of theirs; return the files.

    `task`: samples, amplitudes and statistics of its images, for some `bands`. `runs`: their masks or classes for
    test images chosen by a rule; `data`: where the images lie now.
    """
    from harmofl.analysis.hospitals import parse_band
    from harmofl.experiments.finding import find_runs
    from harmofl.reporting.pictures import draw_appearance, draw_cases

    check_device(device)
    folder = None if data is None else Path(data)
    given = {"task": task, "preset": preset, "band": bands, "settings": settings}
    if runs:
        if named := [name for name, value in given.items() if value]:
            raise UsageError(
                f"{named[0]} = {given[named[0]]!r}: runs have their own; leave it out, or leave out the runs"
            )
        return draw_cases(find_runs([Path(run) for run in runs], folder), Path(out), device, watch)
    if not task:
        raise UsageError("nothing to draw: name a task (--task), or the folders of finished runs")
    chosen = [parse_band(str(band)) for band in bands or ("dc", "full")]
    overrides = dict(settings or {}) | ({"data.folder": os.path.abspath(folder)} if folder else {})
    resolved, _ = resolve(task, "fedavg", preset, overrides=overrides)
    return draw_appearance(settled(resolved, watch), chosen, Path(out), device, watch)


def check_method_travels(method: Method, settings: Settings) -> None:
    """Refuse a method that cannot reach the worker processes."""
    if num_workers(settings, method) > 1 and (reason := hindrance(method)):
        hint = "its pieces must be defined at the top of a file (no lambda), or use workers=1"
        raise UsageError(f"{method.name} cannot be sent to worker processes: {hint} ({reason})")


def check_device(device: str) -> None:
    """Refuse an unknown device, and CUDA where there is none."""
    import torch

    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"device = {device!r}: must be 'auto', 'cpu' or 'cuda'")
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("device = 'cuda': no CUDA device here; use 'cpu' or 'auto'")
