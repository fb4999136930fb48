"""Nothing heavy is imported before it is needed: `harmofl` starts at once."""

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "monai", "numpy", "scipy", "pydantic", "PIL", "matplotlib", "jinja2", "rich", "safetensors")
NOT_FOR_TRAINING = (
    *("matplotlib", "jinja2", "flwr", "nvflare", "mlflow", "tensorboard", "onnx", "opacus", "cryptography"),
    *("torch._dynamo", "torch._inductor", "monai.transforms", "monai.networks.nets"),
)


def loaded_by(statement: str) -> set[str]:
    """The modules that a new process has in memory after a statement."""
    code = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(result.stdout))


def test_importing_the_package_imports_nothing_heavy() -> None:
    assert not loaded_by("import harmofl") & set(HEAVY)


@pytest.mark.parametrize("module", ["harmofl.federation.training", "harmofl.federation.client"])
def test_what_trains_brings_only_what_every_training_needs(module: str) -> None:
    loaded = loaded_by(f"import {module}")
    assert "torch" in loaded
    assert not loaded & set(NOT_FOR_TRAINING)
