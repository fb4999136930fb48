import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import harmofl
from folders import segmentation_folder
from harmofl.analysis.comparison import Comparison
from harmofl.analysis.plan import make_plan
from harmofl.analysis.survey import Survey
from harmofl.cli import app
from harmofl.errors import UsageError
from harmofl.reporting.plan_files import to_toml
from harmofl.settings import resolve


def test_a_planned_training_of_volumes_runs_as_the_plan_says(tmp_path: Path) -> None:
    sites = {"data.sites": ["BIDMC", "I2CVB"], "data.dimensions": 3, "training.rounds": 1}
    plan = harmofl.plan("prostate", preset="smoke", settings=sites, out=tmp_path)
    file = tomllib.loads((tmp_path / "plan.toml").read_text(encoding="utf-8"))
    settings, method = resolve(file=file)
    assert settings.data.spacing == plan.values["data.spacing"]
    assert settings.data.patch == plan.values["data.patch"]
    assert settings.model.strides == plan.values["model.strides"]
    assert settings.data.sites == ["BIDMC", "I2CVB"]
    assert method.key == plan.values["method.name"] == "freshbn"
    summary = harmofl.train(config=tmp_path / "plan.toml", workers=1, out=tmp_path / "run")
    assert set(summary["test"]) >= {"BIDMC", "I2CVB"}
    words = (tmp_path / "plan.md").read_text(encoding="utf-8")
    assert all(step.reason in words.replace("\\_", "_") for step in plan.steps)


def test_a_plan_keeps_the_method_that_the_user_chose(tmp_path: Path) -> None:
    chosen = {"data.sites": ["BIDMC", "I2CVB"], "method.name": "fedprox", "method.mu": 0.5}
    harmofl.plan("prostate", preset="smoke", settings=chosen, out=tmp_path)
    settings, method = resolve(file=tomllib.loads((tmp_path / "plan.toml").read_text(encoding="utf-8")))
    assert method.key == "fedprox"
    assert settings.method["mu"] == 0.5
    with pytest.raises(UsageError, match=r"method\.mu"):  # no setting of the method that the plan would name
        harmofl.plan("prostate", preset="smoke", settings={"method.mu": 0.5})


def test_a_plan_that_the_user_has_changed_is_not_replaced(tmp_path: Path) -> None:
    sites = {"data.sites": ["BIDMC", "I2CVB"]}
    harmofl.plan("prostate", preset="smoke", settings=sites, out=tmp_path)
    harmofl.plan("prostate", preset="smoke", settings=sites, out=tmp_path)  # the same again
    changed = (tmp_path / "plan.toml").read_text(encoding="utf-8") + "# mine\n"
    (tmp_path / "plan.toml").write_text(changed, encoding="utf-8")
    with pytest.raises(UsageError, match=r"plan\.toml already exists and says something else: rename it"):
        harmofl.plan("prostate", preset="smoke", settings=sites, out=tmp_path)
    assert (tmp_path / "plan.toml").read_text(encoding="utf-8") == changed


def test_the_command_plans_images_of_a_folder_and_names_it(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path / "images", sites=2, patients=6)
    arguments = ["plan", "--task", "segmentation", "--data", str(folder), "--preset", "small", "--quiet"]
    arguments += ["--set", f"data.cache={tmp_path}", "--set", "training.rounds=3", "--set", "seed=4"]
    arguments += ["--out", str(tmp_path / "plan")]
    printed = CliRunner().invoke(app, arguments)
    assert printed.exit_code == 0, printed.output
    assert "| data.size | 48 |" in printed.output  # the pictures are 40 pixels wide
    settings, _ = resolve(file=tomllib.loads((tmp_path / "plan" / "plan.toml").read_text(encoding="utf-8")))
    assert settings.data.folder == str(folder)
    assert (settings.training.rounds, settings.seed) == (3, 4)
    assert settings.data.size == 48


def test_whatever_is_chosen_is_written_as_toml() -> None:
    survey = Survey(images=20, patients=20, size=[64.0, 64.0])
    settings, _ = resolve("nuclei", "fedavg", "smoke")
    plan = make_plan(settings, Comparison("nuclei", "segmentation", "images", {"A": survey, "B": survey}))
    choices = {"data.sites": ['a "quoted" name', "ü\\n"], "data.intensity": [-160.0, 240.0], "data.resize": True}
    written = tomllib.loads(to_toml(plan.with_choices(choices)))["data"]
    assert {f"data.{name}": value for name, value in written.items() if name != "size"} == choices
