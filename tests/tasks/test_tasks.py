import math

import pytest
import torch

from harmofl import registry
from harmofl.errors import UsageError
from harmofl.methods.amplitude_normalization import AmplitudeNormalization
from harmofl.methods.catalogue import centralized, fedavg, harmofl
from harmofl.settings import DataSettings, resolve
from harmofl.tasks.losses import dice_and_cross_entropy, dice_loss, half_of_both
from harmofl.tasks.scoring import score, scored_together
from harmofl.tasks.task import POOLED

PAPER_TASKS = ("histology", "nuclei", "prostate")

IMAGES = {"histology": 24, "nuclei": 20, "prostate": 10}


def sites_of(task: str) -> tuple[str, ...]:
    return registry.tasks.find(task).sites_of(tiny(task))


def tiny(task: str) -> DataSettings:
    return DataSettings(images=IMAGES[task], size=16)


@pytest.mark.parametrize(
    ("name", "num_sites", "metric"), [("histology", 5, "accuracy"), ("nuclei", 6, "dice"), ("prostate", 6, "dice")]
)
def test_a_task_has_the_papers_number_of_sites_and_its_metric(name: str, num_sites: int, metric: str) -> None:
    task = registry.tasks.find(name)
    assert (task.name, len(set(sites_of(name))), task.main_score) == (name, num_sites, metric)


def test_an_unknown_task_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"unknown task 'prostat'; did you mean 'prostate'\?"):
        registry.tasks.find("prostat")


@pytest.mark.parametrize("name", PAPER_TASKS)
def test_a_site_holds_images_between_zero_and_one_split_by_patient(name: str) -> None:
    task, second = registry.tasks.find(name), sites_of(name)[1]
    site = task.load_site(second, tiny(name))
    parts = [site.train, site.val[second], site.test[second]]
    groups = [set(part.groups.tolist()) for part in parts]
    assert site.val.keys() == site.test.keys() == {second}
    assert all(groups)
    assert sum(map(len, groups)) == len(set.union(*groups))
    for part in parts:
        assert part.images.shape[1:] == (task.channels, 16, 16)
        assert part.images.dtype == torch.float32
        assert 0 <= part.images.min() <= part.images.max() <= 1
        assert part.targets.dtype == torch.int64
        assert set(part.targets.unique().tolist()) <= set(range(len(task.classes)))
        assert part.targets.shape == ((len(part),) if name == "histology" else (len(part), 16, 16))


def test_the_pooled_site_trains_on_the_union_and_scores_each_site() -> None:
    task = registry.tasks.find("histology")
    pooled = task.load_site(POOLED, tiny("histology"))
    alone = [task.load_site(site, tiny("histology")) for site in sites_of("histology")]
    assert torch.equal(pooled.train.images, torch.cat([site.train.images for site in alone]))
    assert len(pooled.train.groups.unique()) == sum(len(site.train.groups.unique()) for site in alone)
    for site in alone:
        assert torch.equal(pooled.test[site.name].images, site.test[site.name].images)
        assert torch.equal(pooled.val[site.name].images, site.val[site.name].images)


def test_one_participant_trains_where_images_are_pooled_and_every_site_otherwise() -> None:
    task = registry.tasks.find("histology")
    data = tiny("histology")
    assert task.participants(fedavg, data) == sites_of("histology")
    assert task.participants(centralized, data) == (POOLED,)


def test_a_model_has_the_methods_harmonizer_for_the_tasks_images() -> None:
    settings, method = resolve("histology", harmofl, "smoke", overrides={"data.size": 16, "method.band": "full"})
    harmonizer = registry.tasks.find("histology").build_model(settings, method).harmonizer
    assert isinstance(harmonizer, AmplitudeNormalization)
    assert (harmonizer.image_shape, harmonizer.band) == ((3, 16, 16), "full")


def test_too_few_patients_for_a_split_are_refused_in_words() -> None:
    task = registry.tasks.find("histology")  # eight images of each patient: ten images are two patients
    with pytest.raises(UsageError, match="hospital-0: 2 patients cannot be split"):
        task.load_site("hospital-0", DataSettings(images=10, size=16))


def test_segmentation_losses_by_hand() -> None:
    masks = torch.tensor([[[1, 0]], [[0, 0]]])
    logits = torch.zeros(2, 2, 1, 2)  # every pixel half foreground
    # Soft Dice over the batch: 2·0.5 / (4·0.5 + 1) = 1/3; MONAI's smoothing is 1e-5.
    assert dice_loss(logits, masks).item() == pytest.approx(2 / 3, abs=1e-4)
    assert dice_and_cross_entropy(logits, masks).item() == pytest.approx(2 / 3 + math.log(2), abs=1e-4)


def test_the_released_codes_joint_loss_is_the_mean_of_cross_entropy_and_dice_of_both_classes() -> None:
    logits = torch.tensor([[[[0.0, 0.0]], [[0.0, math.log(3)]]]])  # foreground 1/2 and 3/4 sure
    masks = torch.tensor([[[0, 1]]])
    cross_entropy = (math.log(2) + math.log(4 / 3)) / 2
    background, foreground = 2 * 0.5 / (0.75 + 1), 2 * 0.75 / (1.25 + 1)
    expected = (cross_entropy + 1 - (background + foreground) / 2) / 2
    assert float(half_of_both(logits, masks)) == pytest.approx(expected, abs=1e-4)


def test_with_statistics_of_the_batch_a_last_image_is_scored_beside_those_before_it() -> None:
    overrides = {"model.norm": "batch-statistics", "training.batch_size": 4, "data.images": 24}
    settings, method = resolve("histology", "fedavg", "smoke", overrides=overrides)
    task = registry.tasks.find("histology")
    model = task.build_model(settings, method).eval()
    images = task.load_site("hospital-0", settings.data).train.load(torch.arange(5))
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model(images.images), images.targets)
        assert score(model, task, settings, images, thorough=False)["loss"] == pytest.approx(float(loss), abs=1e-6)
    running = settings.with_values("model", norm="batch")
    assert [len(places) for places in scored_together(5, running)] == [4, 1]


@pytest.mark.parametrize("name", ["histology", "prostate"])
def test_small_presets_perturb_as_much_as_the_paper_does_relative_to_the_weights(name: str) -> None:
    settings, method = resolve(name, harmofl, "paper")
    network = registry.tasks.find(name).build_model(settings, method).network
    norm = math.sqrt(sum(float(weight.detach().double().square().sum()) for weight in network.parameters()))
    relative = resolve(name, harmofl, "small")[1].settings["radius_relative"]
    assert relative == pytest.approx(method.settings["radius"] / norm, rel=0.01)
