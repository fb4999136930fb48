import json
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from PIL import Image

import harmofl
from folders import blob, classification_folder, picture, prostate_folder, save_volume, segmentation_folder
from runs import train, weights


def train_on(
    folder: Path, out: Path, task: str = "segmentation", method: str = "fedavg", **data: Any
) -> dict[str, Any]:
    settings = {f"data.{name}": value for name, value in data.items()} | {"federation.workers": 1}
    return harmofl.train(task, method, data=folder, preset="smoke", settings=settings, out=out)


def test_a_run_on_a_folder_is_scored_again_on_its_test_images(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path / "data")
    summary = train_on(folder, tmp_path / "run")
    scores = harmofl.evaluate(tmp_path / "run" / "model", data=folder)
    assert {site: found["metric"] for site, found in scores.items()} == {
        site: summary["test"][site] for site in ("site-0", "site-1")
    }
    assert scores["site-0"].keys() >= {"images", "loss", "precision", "recall", "dice_per_case"}
    everything = harmofl.evaluate(tmp_path / "run" / "model", data=folder, split="all")
    assert everything["site-0"]["images"] == 10 * 4
    assert scores["site-0"]["images"] < 10


def test_a_hospital_that_took_no_part_is_scored_on_all_its_images(tmp_path: Path) -> None:
    summary = train_on(segmentation_folder(tmp_path / "data"), tmp_path / "run")
    new = segmentation_folder(tmp_path / "new", sites=3)
    scores = harmofl.evaluate(tmp_path / "run" / "model", data=new)
    assert scores["site-2"]["images"] == 10 * 4  # every tile of it: the limit is for those who train
    assert scores["site-1"]["images"] < 10
    assert summary["test"].keys() == {"site-0", "site-1", "average", "std"}


@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
def test_other_images_of_a_site_that_took_part_need_a_word(tmp_path: Path, method: str) -> None:
    train_on(segmentation_folder(tmp_path / "data"), tmp_path / "run", method=method)
    other = segmentation_folder(tmp_path / "other", patients=6)
    for model in [tmp_path / "run/model"] + ([tmp_path / "run/model/sites/site-1"] if method == "fedbn" else []):
        with pytest.raises(harmofl.UsageError, match="site-0 took part in training, but with other images"):
            harmofl.evaluate(model, data=other)
        assert harmofl.evaluate(model, data=other, split="all")["site-0"]["images"] == 12 * 4
        with pytest.raises(harmofl.UsageError, match="another split"):
            harmofl.evaluate(model, data=tmp_path / "data", settings={"data.limit": 0})


@pytest.mark.parametrize("limit", [0, 8])
@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_a_site_that_took_part_under_another_name_needs_a_word(tmp_path: Path, task: str, limit: int) -> None:
    make = classification_folder if task == "classification" else segmentation_folder
    folder = make(tmp_path / "data")
    train_on(folder, tmp_path / "run", task, limit=limit)
    manifest = folder / "manifest.csv"
    manifest.write_text(manifest.read_text().replace("\nsite-0,", "\nclinic,"))
    with pytest.raises(harmofl.UsageError, match="clinic took part in training as site-0, and so with another split"):
        harmofl.evaluate(tmp_path / "run", data=folder)
    everything = harmofl.evaluate(tmp_path / "run", data=folder, split="all")
    assert everything["clinic"]["images"] == (12 if task == "classification" else 10 * 4)


def test_corrected_masks_are_for_scores_but_not_to_go_on_with(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path / "data")
    train_on(folder, tmp_path / "run")
    config, model = tmp_path / "run" / "config.toml", tmp_path / "run" / "model"
    assert "annotations" in (tmp_path / "run" / "data.json").read_text()
    assert not any(b"annotations" in path.read_bytes() for path in model.rglob("*") if path.is_file())
    before = harmofl.evaluate(model, data=folder)
    for path in folder.glob("site-0/*-mask.png"):
        picture(path, blob(40, 99)[1])
    after = harmofl.evaluate(model, data=folder)
    assert after["site-0"]["images"] == before["site-0"]["images"]
    assert after["site-0"]["loss"] != before["site-0"]["loss"]
    with pytest.raises(harmofl.UsageError, match="the masks, labels or images held out have changed since the run"):
        harmofl.train(config=config, out=tmp_path / "run", resume=True)


def test_a_named_test_set_needs_no_other_parts_and_all_means_all(tmp_path: Path) -> None:
    train_on(segmentation_folder(tmp_path / "data"), tmp_path / "run")
    few = segmentation_folder(tmp_path / "few", sites=1, patients=1)
    lines = (few / "manifest.csv").read_text().splitlines()
    tested = [f"{lines[0]},split", *(f"{line},test" for line in lines[1:])]
    (few / "manifest.csv").write_text("\n".join(line.replace("site-0,", "clinic,", 1) for line in tested))
    scores = harmofl.evaluate(tmp_path / "run", data=few, split="test")  # a run's folder will do
    assert scores["clinic"]["images"] == 2 * 4
    everything = harmofl.evaluate(tmp_path / "run" / "model", data=tmp_path / "data", split="all")
    assert everything["site-0"]["images"] == 10 * 4


def test_a_model_knows_no_path_of_the_machine_that_trained_it(tmp_path: Path) -> None:
    folder = segmentation_folder(tmp_path / "secret-patients")
    train_on(folder, tmp_path / "run", cache=str(tmp_path / "decoded"))
    for path in (tmp_path / "run" / "model").rglob("*"):
        if path.is_file():
            assert b"secret-patients" not in path.read_bytes()
            assert str(tmp_path).encode() not in path.read_bytes()
    with pytest.raises(harmofl.UsageError, match="trained on images in a folder: name a folder"):
        harmofl.evaluate(tmp_path / "run" / "model")


@pytest.mark.parametrize("device", ["cuda", "gpu"])
def test_a_device_that_is_not_there_is_refused(tmp_path: Path, device: str) -> None:
    with pytest.raises(harmofl.UsageError, match=f"device = '{device}'"):
        harmofl.evaluate(tmp_path, device=device)
    with pytest.raises(harmofl.UsageError, match=f"device = '{device}'"):
        harmofl.predict(tmp_path, "a.png", out=tmp_path, device=device)


def test_labels_that_the_model_does_not_know_are_refused(tmp_path: Path) -> None:
    train_on(classification_folder(tmp_path / "data"), tmp_path / "run", task="classification")
    other = classification_folder(tmp_path / "other", classes=("healthy", "unclear"))
    with pytest.raises(harmofl.UsageError, match=r"label 'unclear' is none of the classes \(healthy, ill\)"):
        harmofl.evaluate(tmp_path / "run" / "model", data=other)


@pytest.mark.parametrize("classes", [["ill", "healthy"], ["healthy", "ill", "unclear"]])
def test_classes_that_are_not_the_models_are_refused(tmp_path: Path, classes: list[str]) -> None:
    folder = classification_folder(tmp_path / "data")
    train_on(folder, tmp_path / "run", task="classification")
    with pytest.raises(harmofl.UsageError, match=r"data\.classes = .*: this model gives healthy, ill, in this order"):
        harmofl.evaluate(tmp_path / "run", data=folder, settings={"data.classes": classes})
    harmofl.evaluate(tmp_path / "run", data=folder, settings={"data.classes": ["healthy", "ill"]})


def test_images_of_another_depth_than_those_of_training_are_mentioned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = classification_folder(tmp_path / "data")
    train_on(folder, tmp_path / "run", task="classification")
    model = tmp_path / "run" / "model"
    assert json.loads((model / "model.json").read_text())["training_images"] == {"depths": ["8-bit"], "views": []}
    other = classification_folder(tmp_path / "other", sites=1)
    for path in list((other / "site-0").iterdir())[:5]:
        with Image.open(path) as shallow:
            picture(path, np.asarray(shallow).astype(np.uint16) * 257)  # the same picture
    note = "its values are not 8-bit, those of the training images 8-bit: data.intensity = 'auto' scales"
    outcomes = harmofl.predict(model, other / "site-0", out=tmp_path / "out")
    assert sum(note in "".join(outcome.notes) for outcome in outcomes) == 5
    assert sum(not outcome.notes for outcome in outcomes) == 7
    harmofl.evaluate(model, data=folder)
    assert caplog.text == ""
    harmofl.evaluate(model, data=other, split="all")
    assert f"site-0: 5 of 12 images: {note}" in caplog.text
    (model / "model.json").write_text((model / "model.json").read_text().replace('"training_images"', '"unknown"'))
    assert not any(each.notes for each in harmofl.predict(model, other / "site-0", out=tmp_path / "old"))


def test_a_mask_that_may_not_lie_on_its_image_is_mentioned_in_training_and_evaluation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = prostate_folder(tmp_path / "data")
    train_on(folder, tmp_path / "well", task="prostate")
    assert caplog.text == ""
    for mask in sorted(folder.glob("*/*egmentation.nii.gz"))[1:8]:
        save_volume(mask, np.asarray(nib.load(mask).dataobj), np.eye(4))
    train_on(folder, tmp_path / "run", task="prostate")
    words = "BIDMC/Case01_segmentation.nii.gz: it is not on the grid of its image: its affine is a default one"
    assert words in caplog.text
    assert "(its image: BIDMC/Case01.nii.gz)" in caplog.text
    assert "(and 6 more like it)" in caplog.text
    caplog.clear()
    harmofl.evaluate(tmp_path / "run", data=folder)
    assert words in caplog.text


@pytest.mark.parametrize("method", ["harmofl", "centralized"])
def test_a_held_out_site_takes_no_part_and_is_scored_at_the_end(tmp_path: Path, method: str) -> None:
    folder = prostate_folder(tmp_path / "data", sites=("A", "B", "C"))
    summary = train_on(folder, tmp_path / "run", "prostate", method, hold_out_site="C")
    assert summary["test"].keys() == {"A", "B", "average", "std"}
    assert summary["unseen"]["C"]["images"] == 22
    assert 0 <= summary["unseen"]["C"]["metric"] <= 1
    assert "note" not in summary["unseen"]["C"]
    records = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    assert {record["phase"] for record in records if record["site"] == "C"} == {"unseen"}
    again = harmofl.evaluate(tmp_path / "run" / "model", data=folder)["C"]
    assert again["metric"] == pytest.approx(summary["unseen"]["C"]["metric"])
    without = prostate_folder(tmp_path / "without", sites=("A", "B"))
    train_on(without, tmp_path / "other", "prostate", method)
    first, second = weights(tmp_path / "run"), weights(tmp_path / "other")
    assert all(torch.equal(first[name], second[name]) for name in first)  # its images changed nothing


def test_a_phantoms_site_can_be_held_out_too(tmp_path: Path) -> None:
    summary = train(tmp_path / "run", "fedavg", data__hold_out_site="hospital-2")
    assert "hospital-2" not in summary["test"]
    assert summary["unseen"]["hospital-2"]["images"] == 24
