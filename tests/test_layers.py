"""The folders are the architecture: who may import whom, and the README's map of them."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
LAYERS = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True, no_logo=True))"


def test_every_package_imports_only_from_layers_below_it_and_no_cycle_is_left() -> None:
    result = subprocess.run([sys.executable, "-c", LAYERS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_the_map_in_the_readme_lists_every_package_in_the_order_of_the_layers() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").split("src/harmofl/ ")[1].split("\nexperiments/ ")[0]
    lines = [re.findall(r"^  \S+|(?<=  )\w+\.py", line) for line in text.splitlines()[1:]]
    shown = [{name.strip().removesuffix("/").removesuffix(".py") for name in names} for names in lines]
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    assert shown == [set(re.split(r" [:|] ", layer)) for layer in reversed(contract["layers"])]
