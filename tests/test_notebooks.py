"""The notebooks of the documentation run, cell by cell, and are stored without outputs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "docs" / "notebooks").glob("*.ipynb"))


def cells_of(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text(encoding="utf-8"))["cells"])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs_and_begin_with_a_title(path: Path) -> None:
    cells = cells_of(path)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
    assert cells[0]["cell_type"] == "markdown"
    assert "".join(cells[0]["source"]).startswith("# ")


RUN = """
import json
import sys
import traceback

for path in sys.argv[1:]:
    names = {"__name__": "__main__"}
    for cell in json.load(open(path, encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            try:
                exec("".join(cell["source"]), names)
            except Exception:
                traceback.print_exc()
                sys.exit(f"{path}: {''.join(cell['source'])}")
"""


@pytest.mark.long
def test_every_cell_runs(tmp_path: Path) -> None:
    """Without Jupyter's kernels, and in one process, as importing takes longest; `make docs` runs all with a kernel.

    The one about experiments starts a process for each of its runs: only `make docs` runs it.
    """
    quick = [str(path) for path in NOTEBOOKS if path.stem != "experiment"]
    assert len(quick) == 3
    environment = {**os.environ, "MPLBACKEND": "agg", "TMPDIR": str(tmp_path)}
    shown = {"capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run([sys.executable, "-c", RUN, *quick], cwd=tmp_path, env=environment, check=False, **shown)
    assert done.returncode == 0, done.stderr
