"""Flower's SuperNode as a child of `harmofl deploy start`: python -m … [Flower's own options]."""

from harmofl.deployment.flower.runtime.programs import run_supernode
from harmofl.deployment.processes import end_with_parent

if __name__ == "__main__":
    end_with_parent()
    run_supernode()
