import threading
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch
from torch import Generator, Tensor

from harmofl.data.images import ImageSet, LabelledImages, StoredImages, split_into_batches
from harmofl.federation import inputs
from harmofl.federation.inputs import TrainingInputs
from harmofl.methods.amplitude_normalization import AmplitudeNormalization
from harmofl.methods.layers import Band, Harmonizer
from harmofl.settings import TrainingSettings

SHAPE = (3, 12, 9)


@pytest.fixture
def images() -> LabelledImages:
    generator = Generator().manual_seed(0)
    count = 11
    return LabelledImages(
        torch.rand(count, *SHAPE, generator=generator),
        torch.randint(2, (count,), generator=generator),
        torch.arange(count),
    )


def all_batches(maker: TrainingInputs, harmonizer: Harmonizer) -> list[tuple[Tensor, Tensor]]:
    return list(maker.batches(harmonizer, Generator().manual_seed(1)))


def frozen(images: LabelledImages, band: Band) -> AmplitudeNormalization:
    harmonizer = AmplitudeNormalization(SHAPE, band)
    harmonizer.measure([images.images])
    harmonizer.freeze()
    return harmonizer


@pytest.mark.parametrize("band", ["none", "dc", 0.2, "full"])
def test_keeping_harmonized_images_does_not_change_a_bit(
    images: LabelledImages, band: Band, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, harmonizer = TrainingSettings(batch_size=4, local_epochs=2), frozen(images, band)
    kept = all_batches(TrainingInputs(images, training, torch.device("cpu")), harmonizer)
    monkeypatch.setattr(inputs, "LARGEST_CACHE", 0)
    computed = all_batches(TrainingInputs(images, training, torch.device("cpu")), harmonizer)
    assert len(kept) == len(computed) == 6
    for (first, labels), (second, other_labels) in zip(kept, computed, strict=True):
        assert torch.equal(first, second)
        assert torch.equal(labels, other_labels)


def test_images_are_harmonized_again_when_the_amplitude_is_another(images: LabelledImages) -> None:
    maker = TrainingInputs(images, TrainingSettings(batch_size=4), torch.device("cpu"))
    harmonizer = frozen(images, "dc")
    before = all_batches(maker, harmonizer)
    harmonizer.receive({"amplitude": 2 * harmonizer.amplitude})
    after = all_batches(maker, harmonizer)
    channel_means = torch.cat([batch for batch, _ in after]).mean(dim=(-2, -1))
    assert not torch.equal(before[0][0], after[0][0])
    assert torch.allclose(channel_means, (harmonizer.amplitude / (12 * 9)).flatten().expand_as(channel_means))


def test_a_harmonizer_that_still_learns_sees_every_batch(images: LabelledImages) -> None:
    maker = TrainingInputs(images, TrainingSettings(batch_size=4, local_epochs=3), torch.device("cpu"))
    seen: list[int] = []

    class Counting(Harmonizer):
        repeatable = True
        learns = True

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(()))

        def forward(self, batch: Tensor) -> Tensor:
            seen.append(len(batch))
            return batch

    all_batches(maker, Counting())
    assert seen == 3 * [4, 4, 3]


def test_a_random_harmonizer_draws_anew_for_every_batch(images: LabelledImages) -> None:
    class Random(Harmonizer):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(()))

        def forward(self, batch: Tensor) -> Tensor:
            return batch + torch.rand(())

    maker = TrainingInputs(images, TrainingSettings(batch_size=11, local_epochs=2), torch.device("cpu"))
    means = {round(batch.mean().item(), 4) for _ in range(2) for batch, _ in all_batches(maker, Random())}
    assert len(means) == 4


def test_every_image_comes_once_an_epoch_with_its_own_label(images: LabelledImages) -> None:
    maker = TrainingInputs(images, TrainingSettings(batch_size=4), torch.device("cpu"))
    batches = all_batches(maker, Harmonizer())
    values = torch.cat([batch for batch, _ in batches]).flatten(1).sum(dim=1)
    order = [int((images.images.flatten(1).sum(dim=1) - value).abs().argmin()) for value in values]
    assert sorted(order) == list(range(11))
    assert torch.equal(torch.cat([labels for _, labels in batches]), images.targets[order])


def test_a_last_batch_of_one_joins_the_one_before() -> None:
    assert [len(batch) for batch in split_into_batches(torch.arange(9), 4)] == [4, 5]
    assert [len(batch) for batch in split_into_batches(torch.arange(10), 4)] == [4, 4, 2]
    assert [len(batch) for batch in split_into_batches(torch.arange(1), 4)] == [1]


def test_all_sites_of_a_process_share_one_memory_budget(
    images: LabelledImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "_keeping", WeakKeyDictionary())  # nothing of other tests
    monkeypatch.setattr(inputs, "LARGEST_CACHE", int(2.5 * images.nbytes))
    sites = [TrainingInputs(images, TrainingSettings(batch_size=4), torch.device("cpu")) for _ in range(2)]
    harmonizer = frozen(images, "dc")
    for _ in range(2):  # the first keeps its images from round to round, the second never
        batches = [all_batches(site, harmonizer) for site in sites]
        assert [site._harmonized is not None for site in sites] == [True, False]
        assert all(torch.equal(one[0], other[0]) for one, other in zip(*batches, strict=True))
    sites.pop(0)
    del batches
    all_batches(sites[0], harmonizer)
    assert sites[0]._harmonized is not None


@pytest.mark.parametrize("augmentation", ["flips", "standard", "strong"])
def test_images_are_augmented_before_they_are_harmonized_and_the_same_in_a_repeated_round(
    images: LabelledImages, augmentation: str
) -> None:
    training, harmonizer = TrainingSettings(batch_size=4, augmentation=augmentation), frozen(images, "dc")
    maker = TrainingInputs(images, training, torch.device("cpu"))
    first, again = all_batches(maker, harmonizer), all_batches(maker, harmonizer)
    assert all(torch.equal(one[0], other[0]) for one, other in zip(first, again, strict=True))
    plain = all_batches(TrainingInputs(images, TrainingSettings(batch_size=4), torch.device("cpu")), harmonizer)
    assert not torch.equal(first[0][0], plain[0][0])
    # Harmonized last, every image has the shared mean, whatever its contrast and noise became.
    means = torch.cat([batch for batch, _ in first]).mean(dim=(-2, -1))
    assert torch.allclose(means, (harmonizer.amplitude / (12 * 9)).flatten().expand_as(means), atol=1e-5)


def test_batches_of_several_sites_can_make_one_step() -> None:
    training = TrainingSettings(batch_size=2)
    images = LabelledImages(torch.rand(12, *SHAPE), torch.zeros(12, dtype=torch.int64), torch.arange(12))
    joined = TrainingInputs(images, training, torch.device("cpu"), batches_at_once=3)
    assert [len(batch) for batch, _ in joined.batches(Harmonizer(), Generator().manual_seed(0))] == [6, 6]


def stored(images: LabelledImages) -> StoredImages:
    """The same images as they lie on disk, in 8 bits."""
    planes = (255 * images.images).round().to(torch.uint8).numpy()
    rows = torch.arange(len(images))[:, None]
    return StoredImages(planes, None, rows, images.targets, images.groups)


def prefetching_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


@pytest.mark.parametrize("augmentation", ["none", "dihedral"])
def test_making_batches_ahead_does_not_change_a_bit(
    images: LabelledImages, augmentation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = TrainingSettings(batch_size=4, local_epochs=3, augmentation=augmentation)
    harmonizer = frozen(images, "full")
    monkeypatch.setattr(inputs, "LARGEST_CACHE", 0)
    ahead = all_batches(TrainingInputs(stored(images), training, torch.device("cpu")), harmonizer)
    monkeypatch.setattr(inputs, "prefetch", lambda items: items)
    in_turn = all_batches(TrainingInputs(stored(images), training, torch.device("cpu")), harmonizer)
    assert len(ahead) == 9
    for (first, labels), (second, other_labels) in zip(ahead, in_turn, strict=True):
        assert torch.equal(first, second)
        assert torch.equal(labels, other_labels)


def test_a_thread_works_ahead_only_where_there_is_work(images: LabelledImages, monkeypatch: pytest.MonkeyPatch) -> None:
    def works_ahead(train: ImageSet, harmonizer: Harmonizer, **more: Any) -> bool:
        batches = TrainingInputs(train, TrainingSettings(batch_size=4, **more), torch.device("cpu")).batches(
            harmonizer, Generator().manual_seed(1)
        )
        next(batches)
        found = bool(prefetching_threads())
        batches.close()  # type: ignore[attr-defined]
        assert not prefetching_threads()
        return found

    assert not works_ahead(images, Harmonizer())  # in memory, and nothing is to do
    assert not works_ahead(images, frozen(images, "dc"))  # harmonized once, and kept
    assert works_ahead(stored(images), Harmonizer())
    assert works_ahead(images, Harmonizer(), augmentation="dihedral")
    monkeypatch.setattr(inputs, "LARGEST_CACHE", 0)
    assert works_ahead(images, frozen(images, "dc"))


def test_a_layer_that_draws_is_called_in_its_turn(images: LabelledImages) -> None:
    callers: list[str] = []

    class Drawing(Harmonizer):
        def forward(self, batch: Tensor) -> Tensor:
            callers.append(threading.current_thread().name)
            return batch

    all_batches(TrainingInputs(stored(images), TrainingSettings(batch_size=4), torch.device("cpu")), Drawing())
    assert callers == 3 * [threading.main_thread().name]
