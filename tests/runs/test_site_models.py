import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import harmofl
from folders import segmentation_folder
from harmofl.data.images import LabelledImages
from harmofl.methods.adaptations import OwnLayers
from harmofl.runs.model_folder import open_model
from harmofl.runs.site_models import MEAN_OF_MODELS, models_for
from harmofl.settings import resolve
from runs import weights


def train_without_a_site(folder: Path, out: Path, method: str) -> dict[str, Any]:
    settings = {"data.hold_out_site": "site-2", "federation.workers": 1}
    return harmofl.train("segmentation", method, data=folder, preset="smoke", settings=settings, out=out)


def test_fedbn_meets_a_new_hospital_with_its_own_statistics(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path / "data", sites=3)
    summary = train_without_a_site(folder, tmp_path / "run", "fedbn")
    assert summary["unseen"]["site-2"]["note"] == OwnLayers.note
    model_folder = tmp_path / "run" / "model"
    settings, method = resolve(file=json.loads((model_folder / "model.json").read_text())["settings"])
    images = LabelledImages(torch.rand(6, 3, 32, 32), torch.zeros(6, 32, 32, dtype=torch.int64), torch.arange(6))
    (model,) = models_for(model_folder, "site-2", images, settings).models
    sites = [weights(tmp_path / "run", site) for site in ("site-0", "site-1")]
    shared = {f"network.{name}" for name in method.shares(model.network)}
    for name, tensor in model.state_dict().items():
        if name in shared:
            assert torch.equal(tensor, sites[0][name])
        elif name.endswith((".weight", ".bias")):
            torch.testing.assert_close(tensor, (sites[0][name] + sites[1][name]) / 2)
        elif name.endswith("running_mean"):
            assert not torch.allclose(tensor, (sites[0][name] + sites[1][name]) / 2)
    own = open_model(model_folder, "site-0").model
    (known,) = models_for(model_folder, "site-0", images, settings).models
    assert all(torch.equal(known.state_dict()[name], tensor) for name, tensor in own.state_dict().items())


def test_a_model_that_lies_at_its_hospital_is_missed_by_name(tmp_path: Path) -> None:
    """As at the server of a federation of machines, which has the description only."""
    folder = segmentation_folder(tmp_path / "data", sites=3)
    train_without_a_site(folder, tmp_path / "run", "freshbn")
    shutil.rmtree(tmp_path / "run" / "model" / "sites")
    with pytest.raises(harmofl.UsageError, match=r"the model of site-0 is not here.*each hospital has its own"):
        harmofl.adapt(tmp_path / "run", folder / "site-2", out=tmp_path / "theirs", min_images=2)


def test_local_models_meet_a_new_hospital_together(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path / "data", sites=3)
    summary = train_without_a_site(folder, tmp_path / "run", "local")
    assert summary["unseen"]["site-2"]["note"] == MEAN_OF_MODELS
    each = [
        harmofl.evaluate(tmp_path / "run" / "model", data=folder, site=site)["site-2"]["metric"]
        for site in ("site-0", "site-1")
    ]
    assert summary["unseen"]["site-2"]["metric"] == pytest.approx(sum(each) / 2)
