"""docs/extending.md: every file on the page is run as it stands there."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from folders import blob, picture
from harmofl import registry
from harmofl.cli import app
from harmofl.data.images import LabelledImages
from harmofl.inference.export import export_model
from harmofl.runs.folder import RunFolder
from harmofl.states import State, select_prefix

PAGE = Path(__file__).parent.parent / "docs" / "extending.md"
TINY = ("--preset", "smoke", "--workers", "1", "--set", "data.size=16", "--quiet")
NUCLEI = ("--task", "nuclei", "--method", "fedavg", "--set", "data.images=10", *TINY)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_registries")]


@pytest.fixture
def page_file(tmp_path: Path) -> Path:
    """The folder with the files of the page."""
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        if named := re.match(r'"""(my_\w+\.py):', code):
            (tmp_path / named[1]).write_text(code)
    return tmp_path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_network_trains_and_its_card_says_what_it_gives(page_file: Path) -> None:
    out = page_file / "run"
    run(
        "train",
        "--plugin",
        page_file / "my_network.py",
        *NUCLEI,
        "--set",
        "model.network=three-convolutions",
        "--out",
        out,
    )
    path = export_model(out, "torchscript", None, None)
    card = (path.parent / "MODEL.md").read_text()
    assert "Gives the class of every pixel (0 = background, 1 = nucleus)" in card
    assert "| network | three-convolutions, 4 first features, batch norm |" in card


def final_weights(out: Path) -> State:
    tensors, _ = RunFolder(out).checkpoints.load(3)
    return select_prefix("state", tensors)


@pytest.mark.parametrize(
    ("file", "own", "ours"), [("my_method", "my-scaffold", "scaffold"), ("my_rule", "my-median", "median")]
)
def test_a_method_with_state_and_a_server_rule_do_what_ours_do(page_file: Path, file: str, own: str, ours: str) -> None:
    """Two ways to write the same mathematics, equal but for rounding, and both unlike FedAvg."""
    sgd = ("training.optimizer=sgd", "training.momentum=0.0", "training.weight_decay=0.0", "training.rounds=3")
    several_steps = ("training.batch_size=4", "training.learning_rate=0.1")  # with one step, SCAFFOLD is FedAvg
    options = [word for setting in (*sgd, *several_steps) for word in ("--set", setting)]
    states = {}
    for method in (own, ours, "fedavg"):
        task = ("--task", "histology", "--method", method, *TINY, *options, "--plugin", page_file / f"{file}.py")
        run("train", *task, "--out", page_file / method)
        states[method] = final_weights(page_file / method)
    rounding, difference = (largest_difference(states[own], states[method]) for method in (ours, "fedavg"))
    assert rounding < 0.01 * difference


def largest_difference(first: State, second: State) -> float:
    return max((tensor.double() - second[name].double()).abs().max().item() for name, tensor in first.items())


def test_a_loss_trains(page_file: Path) -> None:
    run(
        "train",
        "--plugin",
        page_file / "my_loss.py",
        *NUCLEI,
        "--set",
        "training.loss=focal",
        "--out",
        page_file / "run",
    )
    assert registry.losses.find("focal").kinds == ("classification", "segmentation")


def test_the_lowest_of_a_score_is_selected_and_printed_in_its_unit(page_file: Path) -> None:
    out = page_file / "run"
    chosen = ["training.score=area-error", "training.rounds=3", "training.learning_rate=0.05"]
    options = [word for setting in chosen for word in ("--set", setting)]
    printed = run("train", "--plugin", page_file / "my_score.py", *NUCLEI, *options, "--out", out)
    records = [json.loads(line) for line in RunFolder(out).records.read_text().splitlines()]
    val = [record for record in records if record["phase"] == "val"]
    means = {
        number: np.mean([record["metric"] for record in val if record["round"] == number])
        for number in {record["round"] for record in val}
    }
    summary = RunFolder(out).read_summary()
    assert summary["best_round"] == min(means, key=lambda number: means[number])
    assert {"metric", "dice", "precision"} <= next(iter(summary["details"].values())).keys()
    assert "area error in pixels" in printed
    assert " %" not in printed
    page = run("report", out)
    text = Path(page.strip()).read_text(encoding="utf-8")
    assert "Further left is better" in text
    assert "Test area error in pixels" in text


def test_monais_network_loss_and_score_train_with_a_method_that_compares_representations(page_file: Path) -> None:
    out = page_file / "run"
    chosen = ("model.network=segresnet", "training.loss=dice-focal", "training.score=generalized-dice")
    options = [word for setting in chosen for word in ("--set", setting)]
    plugin = ("--plugin", page_file / "my_monai.py")
    printed = run("train", *plugin, *NUCLEI, "--method", "moon", *options, "--out", out)
    assert "generalized Dice in percent" in printed
    details = next(iter(RunFolder(out).read_summary()["details"].values()))
    assert 0 <= details["metric"] <= 1
    assert "dice" in details
    truth = torch.tensor([[[0, 1, 1, 0]], [[1, 1, 0, 0]]])
    found = torch.tensor([[[0, 1, 0, 0]], [[1, 1, 1, 1]]])
    measure = registry.scores.find("generalized-dice").scorer(("background", "nucleus"), False)
    logits = torch.nn.functional.one_hot(found, 2).movedim(-1, 1).float()
    measure.add(logits, LabelledImages(torch.zeros(2, 1, 1, 4), truth, torch.arange(2)))
    # 2·1/(2 + 1) and 2·2/(2 + 4), both 2/3.
    assert measure.scores()["generalized-dice"] == pytest.approx(2 / 3)


def test_a_task_reads_its_own_layout(page_file: Path) -> None:
    data = page_file / "cells"
    for site in ("north", "south"):
        for number in range(12):
            pixels, mask = blob(24, seed=number)
            picture(data / site / f"p{number // 2}_{number}.png", pixels)
            picture(data / site / f"p{number // 2}_{number}.mask.png", mask)
    plugin = ("--plugin", page_file / "my_task.py")
    checked = run("data", "check", *plugin, "--task", "cells", "--data", data, "--json")
    assert json.loads(checked)["ok"]
    out = page_file / "run"
    run("train", *plugin, "--task", "cells", "--method", "fedavg", "--data", data, *TINY, "--out", out)
    assert RunFolder(out).read_summary()["test"].keys() == {"north", "south", "average", "std"}
    assert "cells" in run("tasks", *plugin)
