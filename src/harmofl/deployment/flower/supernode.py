"""Flower's SuperNode as a child of `harmofl deploy start`: python -m … PARENT [Flower's own options]."""

import sys

from harmofl.deployment.flower.runtime import leave_with, run_supernode

if __name__ == "__main__":
    leave_with(int(sys.argv.pop(1)))
    run_supernode()
