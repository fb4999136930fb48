"""Flower's SuperLink as a child of `harmofl deploy start`: python -m … SECRET_FILE [Flower's own options]."""

import sys
from pathlib import Path

from harmofl.deployment.flower.runtime.programs import run_superlink
from harmofl.deployment.processes import end_with_parent

if __name__ == "__main__":
    end_with_parent()
    run_superlink(Path(sys.argv.pop(1)).read_bytes())
