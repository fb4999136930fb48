"""The model card: what a model does, what it needs, how well it did and what it must not be used for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harmofl import registry
from harmofl.files import write_whole
from harmofl.inference.volume_card import describe_preparation, sample_for
from harmofl.methods.method import Method
from harmofl.runs.privacy_words import describe_privacy
from harmofl.tasks.scores import PERCENT, Score, dice, score_in

Tree = Mapping[str, Any]

INTENSITIES = {
    "auto": "divide 8-bit values by 255; of others, the minimum of the image (or volume) becomes 0 and its 99th "
    "percentile 1, clipped",
    "percentile": "the minimum of the image (or volume) becomes 0 and its 99th percentile 1, clipped",
    "range": "the minimum of the image (or volume) becomes 0 and its maximum 1",
}

ONNX_SAMPLE = """\
```python
import numpy, onnxruntime

images = numpy.zeros({shape}, dtype="float32")  # yours, scaled to [0, 1]
session = onnxruntime.InferenceSession("model.onnx")
logits = session.run(["logits"], {{"images": images}})[0]
```"""

TORCHSCRIPT_SAMPLE = """\
```python
import torch

images = torch.zeros{shape}  # yours, scaled to [0, 1]
model = torch.jit.load("model.pt")
logits = model(images)
```"""


SEEN_AS = (
    "Slices lie along the volume's third axis; axial ones are seen with the patient's left on the right and the back "
    "below."
)
"""How a volume's slices are turned before the network sees them."""


def write_card(path: Path, description: Tree, method: Method, summary: Tree | None) -> None:
    """Write a model's card."""
    write_whole(path, model_card(description, method, summary))


def model_card(description: Tree, method: Method, summary: Tree | None) -> str:
    """The card as Markdown, the same for the same run.

    `description`: what `model.json` holds, without paths, and `site` where each site has a model of its own.
    `summary`: what `summary.json` holds, if there is one.
    """
    sections = [
        f"# {method.name} model: {description['title']}",
        *_warning(description),
        _purpose(description, method),
        "## Input and output",
        _interface(description),
        "## Run it",
        _samples(description),
        "## Test scores",
        *_scores(description, summary),
        "## Training",
        _training(description, method, summary),
        *_idea(method),
        "The same training again, with the `config.toml` of the run's folder (and the same images):",
        "```\nharmofl train --config config.toml --out runs/again\n```",
        "## Limits",
        _limits(description),
    ]
    return "\n\n".join(sections) + "\n"


def _warning(description: Tree) -> list[str]:
    if not description["synthetic"]:
        return []
    return [
        "> **WARNING: trained on synthetic images (phantoms). It has never seen a real image and is of no clinical "
        "use.** It serves to try out software."
    ]


def _purpose(description: Tree, method: Method) -> str:
    part, whole = ("voxel", "a volume") if _of_volumes(description) else ("pixel", "an image")
    what = f"the class of every {part}" if _per_pixel(description) else f"the class of {whole}"
    sites = description["sites"]
    text = f"Gives {what} ({_classes(description)}). Trained with {method.name} at {len(sites)} sites: {_names(sites)}."
    site = description.get("site")
    return text + (f" Each site has a model of its own; **this is the one of {_escape(site)}**." if site else "")


def _per_pixel(description: Tree) -> bool:
    return bool(description["kind"] == "segmentation")


def _classes(description: Tree) -> str:
    return ", ".join(f"{number} = {_escape(name)}" for number, name in enumerate(description["classes"]))


def _of_volumes(description: Tree) -> bool:
    return bool(description["settings"]["data"].get("dimensions", 2) == 3)


def _shape(description: Tree) -> tuple[int, ...]:
    size = description["input"]
    return tuple(size[name] for name in ("channels", "depth", "height", "width") if name in size)


def _interface(description: Tree) -> str:
    shape = ", ".join(map(str, _shape(description)))
    low, high = description["input"]["range"]
    classes = len(description["classes"])
    pixels = f", {shape.partition(', ')[2]}" if _per_pixel(description) else ""
    table = _table(
        ["", "name", "shape", "type", "values"],
        [
            ["input", "`images`", f"(N, {shape})", "float32", f"{low} to {high}"],
            ["output", "`logits`", f"(N, {classes}{pixels})", "float32", "the highest is the predicted class"],
        ],
    )
    return f"{table}\n\n{_preparation(description)}"


def _preparation(description: Tree) -> str:
    data = description["settings"]["data"]
    scaling = _scaling(data.get("intensity", "auto"))
    if _of_volumes(description):
        steps = describe_preparation(description, scaling)
    else:
        scale = f"Scale its values to [0, 1]: {scaling}."
        steps = [*_coloring(data), scale, _fitting(description), *_slicing(description)]
    steps.append("Nothing else: harmonization, where the method has one, is inside the model.")
    heading = "How to prepare a volume:" if _of_volumes(description) else "How to prepare an image:"
    return f"{heading}\n\n" + "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))


def _slicing(description: Tree) -> list[str]:
    """How volumes are cut, where there were any, or may have been."""
    neighbours = description["settings"]["data"].get("neighbours")
    if neighbours:
        ends = "the first and the last slice are their own neighbours"
        order = f"{neighbours} on each side, in the order stored; {ends}"
        return [f"The channels are a slice and its neighbours, {order}. {SEEN_AS}"]
    known = description.get("training_images")
    has_volumes = bool(known["views"]) if known else not description["synthetic"]
    return [f"Each slice of a volume is an image. {SEEN_AS}"] if has_volumes else []


def _fitting(description: Tree) -> str:
    data = description["settings"]["data"]
    size = f"{data['size']} × {data['size']} pixels"
    if data.get("resize") or not _per_pixel(description):  # a label is true of the whole image only
        return f"Scale it to {size} (bilinear, antialiased)."
    return f"Cut it into tiles of {size}, without scaling; mirror it at its edges if it is smaller."


def _coloring(data: Tree) -> list[str]:
    return {"grey": ["Make it grey."], "rgb": ["Make it RGB."]}.get(data.get("color", "as-is"), [])


def _scaling(intensity: str | Sequence[float]) -> str:
    return INTENSITIES[intensity] if isinstance(intensity, str) else _window(intensity)


def _window(ends: Sequence[float]) -> str:
    return f"{ends[0]:g} becomes 0 and {ends[1]:g} becomes 1, clipped"


def _samples(description: Tree) -> str:
    shape = (1, *_shape(description))
    onnx, torchscript = ONNX_SAMPLE.format(shape=shape), TORCHSCRIPT_SAMPLE.format(shape=shape)
    samples = f"ONNX (`model.onnx`):\n\n{onnx}\n\nTorchScript (`model.pt`):\n\n{torchscript}"
    if _of_volumes(description) and _per_pixel(description):
        samples += f"\n\nThe mask of a whole scan, as `harmofl predict` makes it:\n\n{sample_for(description)}"
    return samples


def _scores(description: Tree, summary: Tree | None) -> list[str]:
    if summary is None:
        return ["Missing: the folder that this model comes from holds no `summary.json`."]
    test, site = summary["test"], description.get("site")
    sites = [site] if site else [name for name in test if name not in ("average", "std")]
    scores = {_escape(name): {**summary.get("details", {}).get(name, {}), "metric": test.get(name)} for name in sites}
    if not site:  # what a hospital that took no part would get is not what one site's own model gives
        scores["**average**"] = {"metric": test["average"]}
        scores |= {f"{_escape(name)} (took no part)": found for name, found in summary.get("unseen", {}).items()}
    known = _score_columns(description, score_in(summary))
    columns = {
        name: each for name, each in known.items() if any(found.get(name) is not None for found in scores.values())
    }
    rows = [[name, *(_number(each, found.get(key)) for key, each in columns.items())] for name, found in scores.items()]
    return [
        f"On images held back from training{_units(columns.values())}:",
        _table(["site", *(each.words for each in columns.values())], rows, numbers=True),
    ]


def _score_columns(description: Tree, main: Score) -> dict[str, Score]:
    """What the scores of a site may hold, and what each of them is."""
    names = description["classes"][1:]
    of_classes = {f"dice_{name}": replace(dice, title=f"Dice of {_escape(name)}") for name in names}
    others = {score.name: score for score in registry.scores if score.name != main.name}
    return {"metric": main} | of_classes | others


def _units(scores: Collection[Score]) -> str:
    """In what the numbers are, percent first and once for all scores that are percentages."""
    in_percent = ["in percent"] if any(score.unit == PERCENT for score in scores) else []
    others = [score.words_with_unit for score in scores if score.unit not in (PERCENT, "")]
    return "".join(f", {words}" for words in in_percent + others)


def _number(score: Score, value: float | None) -> str:
    return "–" if value is None else f"{score.in_unit(value):.2f}"


def _training(description: Tree, method: Method, summary: Tree | None) -> str:
    settings, network = description["settings"], description["network"]
    values = {name: value for name, value in settings["method"].items() if name != "name" and value is not None}
    rows = [
        ["method", method.name + (f" ({method.paper})" if method.paper else "")],
        ["its settings", ", ".join(f"`{name} = {_toml(value)}`" for name, value in values.items()) or "none"],
        ["network", f"{network['network']}, {network['features']} first features, {network['norm']} norm"],
        ["selected round", _selected_round(description)],
        ["preset, seed", f"{settings['preset']}, {settings['seed']}"],
        ["images", _images(description)],
        ["versions", _versions(description, summary)],
        *(["differential privacy", line] for line in describe_privacy(summary or {})),
    ]
    return _table(["", ""], [[name, text] for name, text in rows])


def _idea(method: Method) -> list[str]:
    return [method.idea] if method.idea else []


def _selected_round(description: Tree) -> str:
    selected = description.get("best_round")
    return f"{'unknown' if selected is None else selected} of {description['settings']['training']['rounds']}"


def _images(description: Tree) -> str:
    data = description["settings"]["data"]
    origin = f"synthetic, shift {data.get('shift', 1.0):g}" if description["synthetic"] else "the sites' own"
    if _of_volumes(description):
        return f"{origin}, volumes in patches of {' × '.join(map(str, _shape(description)[1:]))} voxels"
    return f"{origin}, {data['size']} × {data['size']} pixels"


def _versions(description: Tree, summary: Tree | None) -> str:
    versions = (summary or {}).get("versions") or {"harmofl": description.get("version", "unknown")}
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _limits(description: Tree) -> str:
    limits = [
        "Research software, not a medical device: no diagnosis and no treatment may rest on it.",
        "The scores hold for images like those of the sites above. Measure on your own images before you rely on it.",
    ]
    if description["network"]["norm"] == "batch-statistics":
        limits.append(
            "Its norm layers use the statistics of the batch: **a prediction depends on the images beside it**. Give "
            "it batches as large and as mixed as in training "
            f"({description['settings']['training']['batch_size']} images), never single images."
        )
    if description["synthetic"]:
        limits.append("Its images were synthetic: its scores say nothing about real images.")
    return "\n".join(f"- {limit}" for limit in limits)


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _names(names: Iterable[str]) -> str:
    return ", ".join(_escape(name) for name in names)


def _escape(text: str) -> str:
    return "".join("\\" + character if character in "\\|*_<`[" else character for character in text)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], numbers: bool = False) -> str:
    marks = ["---", *("---:" if numbers else "---" for _ in headings[1:])]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (headings, marks, *rows))
