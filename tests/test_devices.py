"""Memory that a training step frees is there for the next one."""

import os
import platform
import subprocess
import sys

import pytest

STEPS = """
import resource
import torch
from harmofl.devices import keep_freed_memory

def step():
    blocks = [torch.ones(2**21) for _ in range(8)]  # 8 MB each, all freed at the end

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
faults()
print(faults())
"""


def faults(**environment: str) -> int:
    """How many pages the system had to clear for five steps."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", STEPS]
    done = subprocess.run(command, env=clean | environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's memory is kept")
def test_memory_of_a_step_is_kept_for_the_next_unless_the_user_decides() -> None:
    kept, given_back = faults(), faults(MALLOC_TRIM_THRESHOLD_="0")
    assert kept < given_back / 20
