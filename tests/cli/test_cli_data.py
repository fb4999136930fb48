"""Folders of images on the command line: the documents' commands as written, and how each command ends."""

import csv
import json
import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import harmofl
from folders import classification_folder, prostate_folder, segmentation_folder
from runs import call

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")


def run(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of a document in a folder; trainings in seconds, not minutes."""
    words = shlex.split(command, comments=True)
    assert words.pop(0) == "harmofl"
    if words[0] == "train":
        words += ["--preset=smoke", "--set=data.size=32", "--workers=1"]
    return call(words, cwd)


def size_of(path: Path | None) -> tuple[int, int]:
    """Width and height of a picture."""
    assert path is not None
    with Image.open(path) as opened:
        return opened.size


def commands(heading: str) -> list[str]:
    """The commands that stand under a heading."""
    section = DOCUMENT.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return [
        line
        for block in re.findall(r"```\n(.*?)```", section, re.DOTALL)
        for line in block.splitlines()
        if line.startswith("harmofl ")
    ]


def name_hospital(folder: Path) -> None:
    """Call the first site as the document does."""
    table = folder / "manifest.csv"
    table.write_text(re.sub("^site-0,", "Hospital A,", table.read_text(), flags=re.MULTILINE))


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the documents speak of, in which the first three commands were run."""
    folder = tmp_path_factory.mktemp("workplace")
    name_hospital(segmentation_folder(folder / "my-images"))
    name_hospital(segmentation_folder(folder / "labelled-images-of-another-hospital", sites=3))
    segmentation_folder(folder / "unlabelled-images", sites=1)
    prostate_folder(folder / "prostate", sites=("BIDMC", "HK", "UCL"))
    (folder / "new-patients").mkdir()
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 255, (50, 70, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "new-patients" / f"{number}.png")
    return folder


@pytest.mark.slow
def test_the_three_commands_of_the_document_work_as_written(workplace: Path) -> None:
    check, train, predict = commands("Your own images, in three commands")
    checked = run(check, workplace)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "Training would work: 2 sites" in checked.stdout
    assert size_of(workplace / "contact-sheet.png")[0] > 500
    trained = run(train, workplace)
    assert trained.returncode == 0, trained.stderr
    predicted = run(predict, workplace)
    assert (predicted.returncode, predicted.stderr) == (0, "")
    for number in range(3):
        assert size_of(workplace / "predictions" / f"{number}_mask.png") == (70, 50)
        assert (workplace / "predictions" / f"{number}_overlay.png").exists()

    held_out, evaluate, adapt, predict_adapted = commands("A hospital that took no part")
    done = run(held_out, workplace)
    assert "At UCL, which took no part: " in done.stdout, done.stderr
    done = run(evaluate, workplace)
    assert done.returncode == 0, done.stderr
    assert re.search(r"site-2 +│ 40 ", done.stdout)
    done = run(adapt, workplace)
    assert done.returncode == 0, done.stderr
    done = run(f"{predict_adapted} --overwrite", workplace)
    assert done.returncode == 0, done.stderr

    (export,) = commands("Other software")
    done = run(export, workplace)
    assert done.returncode == 0, done.stderr
    assert "# FreshBN model" in (workplace / "runs" / "ours" / "export" / "Hospital A" / "MODEL.md").read_text()


def test_a_check_that_finds_problems_ends_with_code_2_and_names_all(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path / "data")
    for name in ("p0-0", "p3-1"):
        (folder / "site-0" / f"{name}.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    done = run(f"harmofl data check --task segmentation --data {folder} --json", tmp_path)
    assert done.returncode == 2
    found = json.loads(done.stdout)
    assert found["ok"] is False
    assert {problem["file"] for problem in found["problems"] if problem["fatal"]} == {
        "site-0/p0-0.png",
        "site-0/p3-1.png",
    }
    assert not (tmp_path / "contact-sheet.png").exists()


def test_a_check_of_nothing_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for task in ("histology", "nuclei", "prostate", "classification", "segmentation"):
        done = run(f"harmofl data check --task {task} --data {tmp_path / 'empty'}", tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("harmofl: ")


def test_classes_are_predicted_into_a_table_and_a_bad_file_is_exit_code_1(tmp_path: Path) -> None:
    folder = classification_folder(tmp_path / "data")
    done = run(f"harmofl train --task classification --data {folder} --method harmofl --out run", tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "broken.png").write_bytes(b"nothing")
    for name in ("scan.bmp", "volume.gipl"):
        (folder / "site-0" / name).write_bytes(b"not read")
    done = run(f"harmofl predict run/model {folder}/site-0 broken.png --out classes", tmp_path)
    assert done.returncode == 1
    assert "broken.png: " in done.stderr
    assert f"{folder}/site-0: left out scan.bmp, volume.gipl: not an image that can be read" in done.stderr
    assert "12 of 13 images predicted, 2 left out: classes" in done.stdout
    with (tmp_path / "classes" / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 13
    for row in rows[:12]:
        assert float(row["p_healthy"]) + float(row["p_ill"]) == pytest.approx(1, abs=1e-5)
    assert rows[12]["error"]


def test_the_same_calls_work_from_python(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path / "data")
    check, sheet = harmofl.check_data("segmentation", folder, preset="smoke", sheet=tmp_path / "sheet.png")
    assert check.ok
    assert sheet == tmp_path / "sheet.png"
    settings = {"federation.workers": 1}
    harmofl.train("segmentation", "fedbn", data=folder, preset="smoke", settings=settings, out=tmp_path / "run")
    image = folder / "site-0" / "p0-0.png"
    with pytest.raises(harmofl.UsageError, match=r"one model per site: choose one with site \(--site\)"):
        harmofl.predict(tmp_path / "run" / "model", image, out=tmp_path / "out")
    (outcome,) = harmofl.predict(tmp_path / "run" / "model", image, out=tmp_path / "out", site="site-1")
    assert outcome.error == ""
    assert size_of(outcome.output) == (40, 40)
    exported = harmofl.export(tmp_path / "run", "torchscript", site="site-1")
    assert exported == tmp_path / "run" / "export" / "site-1" / "model.pt"
