"""The one schema of a run: every setting with its default, its limits and what it means."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BeforeValidator, Field, ValidationError

from harmofl.errors import UsageError, describe, unknown_name
from harmofl.settings.privacy import PrivacySettings
from harmofl.settings.section import Section
from harmofl.settings.trees import Tree, flatten
from harmofl.settings.values import (
    as_names,
    check_intensity,
    check_patch,
    check_spacing,
    check_strides,
    none_if_empty,
)

Positive = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(gt=0, le=1)]


Names = Annotated[list[str], BeforeValidator(as_names)]


AT_THE_SITES = "at the sites"
"""The folder of a run over a network: only each site says where its images lie."""


class DataSettings(Section):
    """Which images, and how they are divided."""

    folder: Annotated[str | None, BeforeValidator(none_if_empty)] = Field(
        None, description="where the images lie; without it the task's phantom is used"
    )
    sites: Names | None = Field(None, min_length=1, description="which sites take part; all of them if unset")
    hold_out_site: str | None = Field(None, description="a site that takes no part; the final model is scored on it")
    size: Annotated[int, Field(ge=16, le=4096)] = Field(
        96, description="height and width of the network's input, in pixels"
    )
    dimensions: Literal[2, 3] = Field(2, description="2: a volume's slices are images; 3: volumes stay whole")
    spacing: Annotated[list[float] | None, BeforeValidator(check_spacing)] = Field(
        None,
        description="millimetres between a volume's slices, rows and columns, to which volumes are resampled; each "
        "keeps its own if unset; only for data.dimensions = 3",
    )
    patch: Annotated[list[int] | None, BeforeValidator(check_patch)] = Field(
        None,
        description="slices, rows and columns of the network's input; data.size of each if unset; only for "
        "data.dimensions = 3",
    )
    resize: bool = Field(False, description="scale images to the size; otherwise larger ones are cut into tiles")
    color: Literal["as-is", "grey", "rgb"] = Field("as-is", description="what to make of an image's channels")
    intensity: Annotated[str | list[float], BeforeValidator(check_intensity)] = Field(
        "auto",
        description="which values become 0 and 1: percentile (minimum and 99th percentile of the image or volume), "
        "range (minimum and maximum), or [low, high]; auto: 0 and 255 for 8-bit images, else percentile",
    )
    slices: Literal["all", "with-prostate", "with-foreground", "inner-with-foreground"] = Field(
        "all",
        description="which slices of a volume are used: with-prostate and with-foreground mean those whose mask is not "
        "empty, inner-with-foreground those of them that are neither its first nor its last",
    )
    neighbours: Annotated[int, Field(ge=0, le=5)] = Field(
        0, description="slices on each side that are added to a volume's slice as channels"
    )
    mask_grid: Literal["auto", "voxels", "refuse"] = Field(
        "auto",
        description="what to do with a mask whose affine does not match its image's: voxels takes it voxel by voxel, "
        "refuse does not; auto: voxels, with a warning, between NIfTI files, and refuse if either is DICOM",
    )
    channels: Positive | None = Field(None, description="of the network's input; found in the data if unset")
    classes: Names | None = Field(
        None,
        min_length=2,
        description="labels in the manifest, or values in the masks (the first is background); found if unset",
    )
    limit: Annotated[int, Field(ge=0)] = Field(
        0, description="at most so many images (slices, tiles) per site of a folder, drawn by data.seed; 0: all"
    )
    site_sizes: Literal["all", "smallest"] | Positive = Field(
        "all",
        description="training images of a folder's sites: all, as many as the smallest site has, or a number",
    )
    min_images_for_amplitude: Positive = Field(
        8,
        description="a site with fewer training images (tiles, slices) shares no spectrum (bands other than dc); "
        "see docs/privacy.md",
    )
    split_by: Literal["patient", "image"] = Field(
        "patient",
        description="what a split keeps together; an image is a picture with all its tiles, or a slice of a volume",
    )
    patches: Positive = Field(
        4, description="patches drawn from each training volume per epoch; only for data.dimensions = 3"
    )
    foreground: Annotated[float, Field(ge=0, le=1)] = Field(
        0.5, description="share of the patches whose centre lies in the mask; only for data.dimensions = 3"
    )
    cache: str | None = Field(
        None, description="folder for decoded and synthetic images; the user's cache folder if unset"
    )
    seed: Annotated[int, Field(ge=0)] = Field(0, description="of splits and phantoms, whatever the run's seed")
    images: Annotated[int, Field(ge=10)] = Field(400, description="images (prostate: cases) per site of a phantom")
    shift: Annotated[float, Field(ge=0, le=3)] = Field(
        1.0, description="how different a phantom's sites look: 0 all alike, 1 like real hospitals"
    )

    @property
    def input_size(self) -> tuple[int, ...]:
        """Of the network: (height, width), or (slices, rows, columns) of volumes."""
        if self.dimensions == 2:
            return (self.size, self.size)
        return tuple(self.patch or (self.size,) * 3)

    @property
    def is_synthetic(self) -> bool:
        """Whether the images are a phantom's."""
        return self.folder is None

    @property
    def images_used(self) -> str:
        """Which images these are, in a word or two for people."""
        return self.folder or "synthetic hospitals"


class ModelSettings(Section):
    """The network."""

    network: str = Field("unet", description="the name of its architecture")
    features: Annotated[int, Field(ge=2, le=1024)] = Field(32, description="channels of the first layer")
    norm: Literal["batch", "batch-statistics", "instance", "group", "weight-standardization"] = Field(
        "batch",
        description="normalization layers; batch-statistics keeps no running statistics; weight-standardization has no "
        "such layers, but convolutions of standardized weights",
    )
    standardize: bool = Field(
        False,
        description="bring every image to mean 0 and standard deviation 1 after harmonization; undoes the band dc",
    )
    strides: Annotated[list[list[int]] | None, BeforeValidator(check_strides)] = Field(
        None,
        description="of dynunet: the factors by which each level divides a volume's slices, rows and columns; chosen "
        "by nnU-Net's rule, from data.patch and data.spacing, if unset",
    )
    statistics: Literal["method", "site"] = Field(
        "method",
        description="of batch norm, when a model is used: the method's, or re-estimated on each site's own training "
        "images, for the weights that it received",
    )
    initial: str | None = Field(None, description="a model folder to start from")


class TrainingSettings(Section):
    """What every site does in a round, and how many rounds there are."""

    rounds: Positive = Field(100, description="communication rounds")
    stop_after: Positive | None = Field(
        None, description="end after this many rounds without a better mean validation score; never if unset"
    )
    local_epochs: Positive = Field(1, description="passes over a site's images per round")
    batch_size: Positive = Field(16, description="images per step")
    pooled_batch: Literal["site", "all-sites"] = Field(
        "site",
        description="images per step of centralized: batch_size, so that it makes as many steps per round as all sites "
        "together, or batch_size for each site, so that it makes as many as one of them",
    )
    optimizer: Literal["sgd", "adam"] = Field("adam", description="the sites' optimizer")
    learning_rate: Annotated[float, Field(gt=0)] = Field(1e-4, description="the sites' step size")
    learning_rate_schedule: Literal["constant", "cosine"] = Field(
        "constant", description="over the rounds; cosine falls to zero at the end"
    )
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="SGD's momentum, Adam's first beta")
    second_momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.99, description="Adam's second beta")
    weight_decay: Annotated[float, Field(ge=0)] = Field(1e-4, description="L2 penalty of the optimizer")
    optimizer_state: Literal["keep", "reset"] = Field("keep", description="what becomes of it between rounds")
    loss: str = Field("cross-entropy", description="the name of the loss")
    score: str | None = Field(None, description="the name of the score that selects the round; the task's own if unset")
    gradient_clip: Annotated[float, Field(gt=0)] | None = Field(None, description="largest gradient norm")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="of the training passes; with bfloat16, only convolutions and matrix products are computed in it: "
        "weights, losses, the optimizer and scores stay in float32",
    )
    compile: bool = Field(
        False,
        description="compile the network's training passes (torch.compile), which needs a compiler and takes a minute "
        "or more at first; scoring and finished models are not compiled",
    )
    augmentation: Literal["none", "dihedral", "flips", "standard", "strong"] = Field(
        "none",
        description="random changes of training images: dihedral (rotations by 90°, flips), flips (along every axis), "
        "standard (also rotation, scale, shift, contrast, noise), strong (all of these stronger, and warps and blurs)",
    )


class FederationSettings(Section):
    """How the server works with the sites."""

    weights: Literal["uniform", "examples"] = Field("uniform", description="weight of a site in the average")
    largest_share: Annotated[float, Field(ge=0.5, le=1)] = Field(
        0.5,
        description="largest weight of one site in an average by examples, if three or more answer; 1: no limit",
    )
    clip_updates: Annotated[float, Field(ge=1)] | None = Field(
        None,
        description="updates longer than this many times the sites' median are shortened to that length; none if unset",
    )
    secure_aggregation: bool = Field(
        False,
        description="sites mask what they send, so that the server learns the sum over sites and no single update; "
        "see docs/secure-aggregation.md",
    )
    server_learning_rate: Annotated[float, Field(gt=0)] = Field(1.0, description="the server's step size")
    running_variances: Literal["mean", "pooled"] = Field(
        "mean", description="of batch norm: averaged, or pooled (mean of the variances + variance of the means)"
    )
    quorum: Fraction = Field(0.5, description="share of the sites asked that must answer for a round to count")
    participation: Fraction = Field(
        1.0, description="share of the sites that train in each round, drawn by the run's seed and the round; 1: all"
    )
    evaluate_every: Positive | None = Field(
        None,
        description="after how many rounds all sites score the model again, to choose the best one; "
        "1 / participation, rounded, if unset",
    )
    transport: Literal["float32", "float16", "int8"] = Field(
        "float32",
        description="how sites send changes of weights: exactly, in half precision, or in 8 bits; what rounding to "
        "8 bits loses is kept at the site and added to its next change",
    )
    timeout: Annotated[float, Field(gt=0)] = Field(
        3600.0, description="seconds to wait for a site, if workers train it"
    )
    workers: Annotated[int, Field(ge=0)] = Field(0, description="processes that train in parallel; 0: one per core")
    threads: Positive = Field(1, description="threads per worker; results depend on it")


class PredictionSettings(Section):
    """How a model is used on volumes larger than its input."""

    overlap: Annotated[float, Field(ge=0, le=0.9)] = Field(
        0.25, description="share of their size by which neighbouring windows overlap"
    )
    mirror: bool = Field(
        False, description="average over a volume's mirror images, along every axis: eight times the work"
    )


class PluginSettings(Section):
    """Code of the user's own."""

    files: list[str] = Field([], description="Python files that register methods, networks, tasks and so on")


class Settings(Section):
    """Every setting of a run."""

    task: str = Field(description="what is learned: see the first table")
    preset: str = Field("small", description="where the other settings start from")
    seed: Annotated[int, Field(ge=0, lt=2**31)] = Field(0, description="of initialization and order, never of the data")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto takes CUDA if there is one")
    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    method: dict[str, Any]
    training: TrainingSettings = TrainingSettings()
    federation: FederationSettings = FederationSettings()
    privacy: PrivacySettings = PrivacySettings()
    prediction: PredictionSettings = PredictionSettings()
    plugins: PluginSettings = PluginSettings()

    def with_values(self, section: str, **values: Any) -> Settings:
        """The same settings with other values in one section, which are not checked again."""
        return self.model_copy(update={section: getattr(self, section).model_copy(update=values)})

    def to_tree(self) -> Tree:
        """Every setting as a tree that `resolve` reads back; what is None is left out, as files have no word for it."""
        values = self.model_dump(mode="json", exclude_none=True)
        values["method"] = {name: value for name, value in values["method"].items() if value is not None}
        return values

    def to_toml(self) -> str:
        """The same as TOML."""
        return tomli_w.dumps(self.to_tree())


FREE_TO_CHANGE = (
    "federation.workers",
    "federation.timeout",
    "federation.quorum",
    "data.cache",
    "data.min_images_for_amplitude",
    "plugins.files",
)
"""Settings that a resumed run may change, as they do not change its results."""


def free_to_change(settings: Settings) -> tuple[str, ...]:
    """The settings that may change within this run; with central noise, sites share it by the quorum."""
    shared = ("federation.quorum",) if settings.privacy.site_level == "central" else ()
    return tuple(name for name in FREE_TO_CHANGE if name not in shared)


def validate(tree: Tree) -> Settings:
    """Settings from a tree, or an error that names each wrong one, its value and what is allowed."""
    _check_names(tree)
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        raise UsageError(describe(error)) from None


def _check_names(tree: Tree) -> None:
    known = set(setting_names()) | set(Settings.model_fields)
    for name, value in tree.items():
        if name not in Settings.model_fields:
            raise unknown_name("setting", name, known)
        section = Settings.model_fields[name].annotation
        if isinstance(section, type) and issubclass(section, Section):
            if not isinstance(value, dict):
                raise UsageError(f"{name} = {value!r}: must be a section, such as [{name}]")
            for inner in value.keys() - section.model_fields.keys():
                raise unknown_name("setting", f"{name}.{inner}", setting_names())


def setting_names() -> list[str]:
    """Every setting outside `method`, as `section.name`."""
    names = []
    for name, info in Settings.model_fields.items():
        section = info.annotation
        if isinstance(section, type) and issubclass(section, Section):
            names += [f"{name}.{inner}" for inner in section.model_fields]
        elif name != "method":
            names.append(name)
    return names


def differences(first: Settings, second: Settings) -> list[str]:
    """Settings in which two runs differ, apart from those that do not change results."""
    one, other = flatten(first.model_dump(mode="json")), flatten(second.model_dump(mode="json"))
    free = {*free_to_change(first)} & {*free_to_change(second)}
    names = sorted((one.keys() | other.keys()) - free)
    return [name for name in names if one.get(name) != other.get(name)]
