import json
import re
from pathlib import Path
from typing import Any

import pytest

from harmofl import registry
from harmofl.inference.card import model_card, write_card
from harmofl.inference.export import export_model
from harmofl.methods.method import Method
from runs import train

DESCRIPTION: dict[str, Any] = {
    "task": "nuclei",
    "title": "nuclei segmentation",
    "kind": "segmentation",
    "network": {"network": "unet", "features": 8, "norm": "batch"},
    "input": {"channels": 3, "height": 64, "width": 64, "range": [0, 1]},
    "classes": ["background", "nucleus"],
    "sites": ["north_1", "south"],
    "best_round": 7,
    "synthetic": True,
    "settings": {
        "preset": "small",
        "seed": 3,
        "data": {"size": 64, "shift": 1.0},
        "method": {"name": "harmofl", "band": "dc", "radius": 0.05},
        "training": {"rounds": 12, "batch_size": 4},
    },
    "version": "0.1.0",
}
SUMMARY: dict[str, Any] = {
    "metric_name": "dice",
    "test": {"north_1": 0.5, "south": 0.754321, "average": 0.62716, "std": 0.18},
    "details": {"north_1": {"round": 7, "loss": 1.0, "metric": 0.5, "recall": 0.25, "hd95": 3.5}, "south": {}},
    "versions": {"harmofl": "0.1.0", "torch": "2.13.0"},
}
FOLDER = {"size": 64, "intensity": "percentile", "neighbours": 1}
HARMOFL = registry.methods.find("harmofl")


def card(summary: dict[str, Any] | None = SUMMARY, method: Method = HARMOFL, **changes: Any) -> str:
    return model_card(DESCRIPTION | changes, method, summary)


def with_settings(**sections: Any) -> dict[str, Any]:
    return DESCRIPTION["settings"] | sections


def test_a_card_says_what_the_model_does_and_needs() -> None:
    text = card()
    assert text.startswith("# HarmoFL model: nuclei segmentation\n\n")
    assert "the class of every pixel (0 = background, 1 = nucleus)" in text
    assert "at 2 sites: north\\_1, south." in text
    assert "| input | `images` | (N, 3, 64, 64) | float32 | 0 to 1 |" in text
    assert "| output | `logits` | (N, 2, 64, 64) |" in text
    assert "divide 8-bit values by 255" in text
    assert "| output | `logits` | (N, 2) |" in card(kind="classification")


def test_a_card_shows_every_score_of_every_site() -> None:
    text = card()
    assert "in percent, HD95 in pixels:" in text
    assert "| site | Dice score | recall | HD95 |" in text
    assert "| north\\_1 | 50.00 | 25.00 | 3.50 |" in text
    assert "| south | 75.43 | – | – |" in text
    assert "| **average** | 62.72 | – | – |" in text


def test_a_card_shows_the_classes_scores_and_the_hospital_that_took_no_part() -> None:
    details = {"north_1": {"dice_gland": 0.4, "dice_tumor": 0.6}}
    unseen = {
        "east": {"round": 7, "metric": 0.33, "dice_gland": 0.3, "dice_tumor": 0.36, "note": "statistics re-estimated"}
    }
    summary = SUMMARY | {"details": details, "unseen": unseen}
    text = card(summary, classes=["background", "gland", "tumor"])
    assert "| site | Dice score | Dice of gland | Dice of tumor |" in text
    assert "| north\\_1 | 50.00 | 40.00 | 60.00 |" in text
    assert "| east (took no part) | 33.00 | 30.00 | 36.00 |" in text
    assert "east" not in card(summary, site="south").replace("least", "")


def test_a_card_says_how_images_are_brought_to_size() -> None:
    assert "Cut it into tiles of 64 × 64 pixels, without scaling" in card()
    scaled = card(settings=with_settings(data=FOLDER | {"resize": True, "color": "grey"}))
    assert "1. Make it grey.\n2. Scale its values to [0, 1]: the minimum" in scaled
    assert "\n3. Scale it to 64 × 64 pixels" in scaled


def test_a_class_is_that_of_the_whole_image_so_that_there_are_no_tiles() -> None:
    text = card(kind="classification")
    assert "Scale it to 64 × 64 pixels" in text
    assert "tiles" not in text


@pytest.mark.parametrize(
    ("images", "synthetic", "said"),
    [
        ({"depths": ["not 8-bit"], "views": ["axial"]}, False, True),
        ({"depths": ["8-bit"], "views": []}, False, False),
        (None, False, True),
        (None, True, False),
    ],
)
def test_a_card_says_how_slices_are_turned_where_there_were_volumes(
    images: dict[str, list[str]] | None, synthetic: bool, said: bool
) -> None:
    settings = with_settings(data={"size": 64})
    text = card(training_images=images, synthetic=synthetic, settings=settings)
    assert ("patient's left on the right" in text) == said


def test_a_site_s_own_model_shows_the_site_s_scores_only() -> None:
    text = card(site="south")
    assert "this is the one of south" in text
    assert "| south | 75.43 |" in text
    assert "50.00" not in text
    assert "**average**" not in text


def test_missing_scores_are_said_to_be_missing() -> None:
    text = card(summary=None)
    assert "Missing: the folder that this model comes from holds no `summary.json`." in text
    assert "| versions | harmofl 0.1.0 |" in text


def test_a_card_says_how_the_model_came_to_be() -> None:
    text = card()
    assert "| method | HarmoFL (Jiang, Wang and Dou, AAAI 2022) |" in text
    assert '| its settings | `band = "dc"`, `radius = 0.05` |' in text
    assert "| network | unet, 8 first features, batch norm |" in text
    assert "| selected round | 7 of 12 |" in text
    assert "| preset, seed | small, 3 |" in text
    assert "| versions | harmofl 0.1.0, torch 2.13.0 |" in text
    assert "harmofl train --config config.toml --out " in text
    assert "| method | Own |" in card(method=Method("Own"))


def test_a_card_says_what_privacy_was_promised() -> None:
    assert "differential privacy" not in card()
    site = {"level": "local", "clip": 0.5, "noise": 2.0, "rounds": 3, "epsilon": 4.031, "epsilon_of_a_round": 2.22}
    image = {"clip": 1.0, "noise": 0.0, "epsilon": {}}
    text = card(SUMMARY | {"privacy": {"delta": 1e-5, "accountant": "RDP", "site": site, "image": image}})
    promised = "site level: ε = 4.03 at δ = 1e-05 (clip 0.5, noise 2, 3 rounds of ε = 2.22 each), against everybody"
    assert f"| differential privacy | {promised}, the server too |" in text
    assert "| differential privacy | image level: no bound, as there is no noise" in text


def test_a_card_names_its_limits() -> None:
    assert "not a medical device" in card()
    beside = "a prediction depends on the images beside it"
    assert beside not in card()
    assert beside in card(network=DESCRIPTION["network"] | {"norm": "batch-statistics"})


def test_synthetic_images_are_said_loudly_and_real_ones_need_no_warning() -> None:
    loud = "**WARNING: trained on synthetic images (phantoms)"
    assert loud in card()
    assert loud in card(synthetic=True)
    text = card(synthetic=False, settings=with_settings(data=FOLDER))
    assert "synthetic" not in text
    assert "the minimum of the image (or volume) becomes 0 and its 99th percentile 1" in text
    assert "The channels are a slice and its neighbours, 1 on each side" in text
    window = with_settings(data=FOLDER | {"intensity": [-100.0, 240.0]})
    assert "-100 becomes 0 and 240 becomes 1, clipped" in card(settings=window)


def test_no_path_reaches_the_card() -> None:
    settings = with_settings(data=FOLDER | {"folder": "/home/ann/images", "cache": "/home/ann/cache"})
    assert "/home/ann" not in card(settings=settings)


def test_tables_are_whole() -> None:
    rows = [line for line in card().splitlines() if line.startswith("|")]
    blocks = re.split(r"\n(?!\|)", card())
    for block in blocks:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines() if line.startswith("|")}
        assert len(widths) <= 1
    assert len(rows) > 10


def test_a_card_is_written_whole(tmp_path: Path) -> None:
    write_card(tmp_path / "new" / "MODEL.md", DESCRIPTION, HARMOFL, SUMMARY)
    assert (tmp_path / "new" / "MODEL.md").read_text(encoding="utf-8") == card()


def test_the_card_of_a_run_holds_its_scores_and_is_always_the_same(tmp_path: Path) -> None:
    summary = train(tmp_path / "run", "harmofl", rounds=1)
    first = export_model(tmp_path / "run", "torchscript").with_name("MODEL.md").read_text()
    again = export_model(tmp_path / "run" / "model", "torchscript", out=tmp_path / "out").with_name("MODEL.md")
    assert again.read_text() == first
    assert f"| **average** | {100 * summary['test']['average']:.2f} |" in first
    assert str(tmp_path) not in first
    assert all(site in first for site in json.loads((tmp_path / "run" / "model" / "model.json").read_text())["sites"])
