"""Makes `runs` and `folders`, the helpers of many tests, importable from every folder below."""

from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # the tests' tensors are tiny: more threads only wait for one another


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep decoded images out of the user's cache, and out of other tests."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("HARMOFL_CACHE", str(folder))
    return folder
