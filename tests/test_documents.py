"""What the documents show must work as written."""

import doctest
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import harmofl
from folders import segmentation_folder

ROOT = Path(__file__).parent.parent


def code_after(text: str, marker: str) -> str:
    block = re.search(re.escape(marker) + r".*?```python\n(.*?)```", text, re.DOTALL)
    assert block, f"no Python code after {marker!r}"
    return block.group(1)


def test_the_ten_lines_of_the_readme_run_and_train() -> None:
    code = code_after((ROOT / "README.md").read_text(encoding="utf-8"), "<!-- tested: pieces -->")
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert float(names["loss"]) > 0  # type: ignore[arg-type]
    assert bool(names["harmonizer"].frozen)  # type: ignore[attr-defined]
    assert len([line for line in code.splitlines() if line.strip()]) <= 11


def test_the_optimizer_of_the_readme_trains() -> None:
    code = code_after((ROOT / "README.md").read_text(encoding="utf-8"), "<!-- tested: optimizer -->")
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert all(len(state) == 3 for state in names["optimizer"].state.values())  # AdamW has made a step
    assert names["schedule"].get_last_lr()[0] < 1e-3


def test_the_monai_loop_of_the_guide_trains_and_predicts_a_whole_volume() -> None:
    text = (ROOT / "docs" / "guides" / "pytorch.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile(code_after(text, "<!-- tested: monai -->"), "pytorch.md", "exec"), names)
    assert float(names["loss"]) > 0
    assert bool(names["model"][0].frozen)
    assert tuple(names["logits"].shape) == (1, 2, 24, 40, 32)


def test_every_training_on_a_page_names_its_method_or_a_file_that_does() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "guides").glob("*.md")]
    blocks = [
        each for page in pages for each in re.findall(r"```(?:bash)?\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    ]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    commands = [line for line in lines if re.match(r"harmofl train\s+--", line)]
    assert len(commands) > 10
    assert [line for line in commands if not re.search(r"--(method|config|resume)\b", line)] == []


@pytest.fixture
def run_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Run code of a page as a script, in this process and without workers."""

    def run(code: str) -> None:
        (tmp_path / "script.py").write_text(code)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
        runpy.run_path("script.py", run_name="__main__")

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heading", "run", "setting"),
    [
        ("## A method of your own", "sparse", "strength = 0.001"),
        ("## A method with state", "fedcm", "own_share = 0.1"),
        ("## A server rule", "majority", 'name = "majority"'),
    ],
)
def test_the_complete_methods_of_the_documentation_train(
    heading: str, run: str, setting: str, tmp_path: Path, run_script: Callable[[str], None]
) -> None:
    code = code_after((ROOT / "docs" / "methods.md").read_text(encoding="utf-8"), heading)
    if run == "fedcm":  # one of them as a process of its own, whose workers import it
        (tmp_path / "method.py").write_text(code)
        command = [sys.executable, "method.py"]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        assert result.returncode == 0, result.stderr
    else:
        run_script(code)
    assert setting in (tmp_path / "runs" / run / "config.toml").read_text()
    records = (tmp_path / "runs" / run / "records.jsonl").read_text().splitlines()
    assert not any("error" in json.loads(record) for record in records)


@pytest.mark.slow
def test_the_logger_of_the_documentation_logs_every_round(
    run_script: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    run_script(code_after(text, "<!-- tested: logger -->"))
    out, err = capsys.readouterr()
    assert err == ""
    assert [line.split()[:2] for line in out.splitlines()] == [["round", "1"], ["round", "2"]]


def test_that_method_is_under_twenty_lines() -> None:
    code = code_after((ROOT / "docs" / "methods.md").read_text(encoding="utf-8"), "## A method of your own")
    definition = code[: code.index("if __name__")]
    assert len([line for line in definition.splitlines() if line.strip()]) < 20


def test_the_one_line_ablation_of_the_documentation_is_a_method() -> None:
    code = code_after((ROOT / "docs" / "methods.md").read_text(encoding="utf-8"), "Ablations are one line each")
    names: dict[str, object] = {}
    exec(compile(code, "methods.md", "exec"), names)
    assert names["amplitude_only"].settings.keys() == {"spacing", "band", "decay", "schedule"}  # type: ignore[attr-defined]


def test_the_experiment_of_the_documentation_can_be_read(tmp_path: Path) -> None:
    from harmofl.experiments.cells import read_experiment

    text = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    whole, rows, extending = (part.split("```")[0] for part in text.split("```toml\n")[1:])
    shutil.copy(ROOT / "experiments" / "table-histology.toml", tmp_path)
    num_cells = {whole: 2 * 1 * 3, f'title = "T"\ntask = "nuclei"\n{rows}': 2, extending: 9 * 3}
    for plan, number in num_cells.items():
        (tmp_path / "mine.toml").write_text(plan)
        assert len(read_experiment(tmp_path / "mine.toml").cells) == number
    for name in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE):
        for stem in re.findall(r"`([a-z-]+)`", name):
            prefix = "" if not stem.startswith("-") else "ablation"
            assert (ROOT / "experiments" / f"{prefix}{stem}.toml").exists(), stem


EXAMPLES = sorted(path for path in (ROOT / "src").rglob("*.py") if ">>> " in path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def examples_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the examples run: a folder with images and a finished run."""
    folder = tmp_path_factory.mktemp("examples")
    images = segmentation_folder(folder / "my-images", sites=3)
    harmofl.train("segmentation", "fedavg", data=images, preset="smoke", workers=1, out=folder / "runs" / "first")
    return folder


@pytest.mark.usefixtures("own_registries")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_docstring_examples_are_true(path: Path, examples_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(examples_folder)
    module = import_module(".".join(path.relative_to(ROOT / "src").with_suffix("").parts))
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0


def test_every_public_name_has_an_example() -> None:
    assert [name for name in harmofl.__all__ if ">>> " not in (getattr(harmofl, name).__doc__ or "")] == []


def without_code(page: Path) -> str:
    """A page's text; of Python only the quoted words, as attributes are no settings."""
    quoted = re.compile(r'"[^"\n]*"')
    text = page.read_text(encoding="utf-8")
    return re.sub(r"```python\n(.*?)```", lambda block: " ".join(quoted.findall(block[1])), text, flags=re.DOTALL)


def test_every_setting_named_in_the_documents_exists() -> None:
    from harmofl import registry
    from harmofl.settings import setting_names

    known = set(setting_names()) | {f"method.{name}" for method in registry.methods for name in method.settings}
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {
        name
        for page in pages
        for name in re.findall(r"\b((?:data|model|method|training|federation)\.[a-z_0-9]+)\b", without_code(page))
        if not name.endswith((".py", ".md", ".safetensors", ".json", ".toml", ".pkl", ".ipynb"))
    }
    assert named - known - {"method.strength"} == set()
