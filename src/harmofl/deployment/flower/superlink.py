"""Flower's SuperLink as a child of `harmofl deploy start`: python -m … PARENT SECRET_FILE [Flower's own options]."""

import sys
from pathlib import Path

from harmofl.deployment.flower.runtime import leave_with, run_superlink

if __name__ == "__main__":
    leave_with(int(sys.argv.pop(1)))
    run_superlink(Path(sys.argv.pop(1)).read_bytes())
