"""One site alone, against the same numbers computed in another way."""

from pathlib import Path

import torch
from torch import Generator

from harmofl import registry
from harmofl.data.images import seed_of
from harmofl.devices import threads
from harmofl.federation.messages import Reply, Request
from harmofl.federation.transports import Clients
from harmofl.settings import Settings, resolve
from harmofl.states import snapshot
from runs import equal, tiny

SITE = "hospital-1"


def ask(folder: Path, request: Request, **more: object) -> Reply:
    settings, method = resolve("histology", "fedavg", "smoke", overrides=tiny(**more))
    with threads(1):
        return Clients(settings, method, folder).answer(SITE, request)


def initial(settings: Settings) -> dict[str, torch.Tensor]:
    _, method = resolve("histology", "fedavg", "smoke")
    return snapshot(registry.tasks.find("histology").build_model(settings, method).network)


def settings_of(**more: object) -> Settings:
    return resolve("histology", "fedavg", "smoke", overrides=tiny(**more))[0]


def test_drift_is_the_mean_over_steps_of_the_squared_distance_to_the_start(tmp_path: Path) -> None:
    """Plain gradient descent written out, with the distance summed entry by entry in double precision."""
    plain = {"training__momentum": 0.0, "training__weight_decay": 0.0, "training__local_epochs": 2}
    settings = settings_of(**plain)
    task = registry.tasks.find("histology")
    reply = ask(tmp_path, Request("run", "train", 1, initial(settings)), **plain)
    assert reply.error == ""

    network = task.build_model(settings, resolve("histology", "fedavg", "smoke")[1]).network.train()
    start = [weight.detach().clone().double() for weight in network.parameters()]
    images = task.load_site(SITE, settings.data).train
    generator = Generator().manual_seed(seed_of(settings.seed, 1, SITE, "order"))
    distances, losses = [], []
    for _ in range(2):
        order = torch.randperm(len(images), generator=generator)
        for chosen in order.split(settings.training.batch_size):
            loss = task.loss(settings)(network(images.images[chosen]), images.targets[chosen])
            gradients = torch.autograd.grad(loss, list(network.parameters()))
            with torch.no_grad():
                for weight, gradient in zip(network.parameters(), gradients, strict=True):
                    weight -= settings.training.learning_rate * gradient
            now = [weight.detach().double() for weight in network.parameters()]
            distances.append(sum(float(((a - b) ** 2).sum()) for a, b in zip(now, start, strict=True)))
            losses += [loss.item()] * len(chosen)

    train = reply.metrics["train"]
    assert reply.num_steps == len(distances)
    assert reply.num_examples == len(images)
    torch.testing.assert_close(train["drift"], sum(distances) / len(distances), rtol=1e-3, atol=0)
    torch.testing.assert_close(train["loss"], sum(losses) / len(losses), rtol=1e-4, atol=0)


def test_a_request_can_be_repeated(tmp_path: Path) -> None:
    state = initial(settings_of())
    first = ask(tmp_path, Request("run", "train", 1, state))
    second = ask(tmp_path, Request("run", "train", 2, first.state, keep=(1,)))
    again = ask(tmp_path, Request("run", "train", 2, first.state, keep=(1,)))
    assert equal(second.state, again.state)
    assert not equal(first.state, second.state)
    assert second.metrics["train"]["drift"] == again.metrics["train"]["drift"]


def test_the_optimizer_is_kept_or_reset_as_the_settings_say(tmp_path: Path) -> None:
    state = initial(settings_of())

    def second_round(folder: Path, optimizer_state: str) -> dict[str, torch.Tensor]:
        ask(folder, Request("run", "train", 1, state), training__optimizer_state=optimizer_state)
        return ask(folder, Request("run", "train", 2, state), training__optimizer_state=optimizer_state).state

    def without_a_first(folder: Path) -> dict[str, torch.Tensor]:
        return ask(folder, Request("run", "train", 2, state)).state

    fresh = without_a_first(tmp_path / "fresh")
    assert equal(second_round(tmp_path / "reset", "reset"), fresh)
    assert not equal(second_round(tmp_path / "kept", "keep"), fresh)


def test_what_goes_wrong_at_a_site_becomes_its_reply(tmp_path: Path) -> None:
    state = initial(settings_of())
    missing = dict(list(state.items())[1:])
    assert "Missing key" in ask(tmp_path, Request("run", "train", 1, missing)).error
    settings, method = resolve("histology", "fedavg", "smoke", overrides=tiny())
    reply = Clients(settings, method, tmp_path).answer("nowhere", Request("run", "train", 1, state))
    assert reply.site == "nowhere"
    assert "nowhere" in reply.error


def test_training_that_gives_nan_is_an_error_and_leaves_no_version(tmp_path: Path) -> None:
    state = initial(settings_of())
    reply = ask(tmp_path, Request("run", "train", 1, state), training__learning_rate=1e30)
    assert "NaN or infinite" in reply.error
    assert not list(tmp_path.rglob("*.safetensors"))


def test_nothing_outside_the_client_changes(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    count = torch.get_num_threads()
    ask(tmp_path, Request("run", "train", 1, initial(settings_of())))
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == count


def test_a_site_with_few_images_keeps_its_spectrum_to_itself(tmp_path: Path) -> None:
    def measured(**more: object) -> Reply:
        settings, method = resolve("histology", "harmofl", "smoke", overrides=tiny(**more))
        with threads(1):
            return Clients(settings, method, tmp_path).answer(SITE, Request("run", "measure", 0))

    count = len(registry.tasks.find("histology").load_site(SITE, settings_of().data).train)
    few: dict[str, object] = {"data__min_images_for_amplitude": count + 1}
    refused = measured(method__band="full", **few)
    assert refused.error.startswith(f"{count} training images: an amplitude of fewer than {count + 1} could give")
    assert not refused.sent
    enough: dict[str, object] = {"data__min_images_for_amplitude": count}
    assert measured(method__band="full", **enough).sent["harmonizer.amplitude"].numel() > 3
    assert (
        measured(method__band="dc", **few).sent["harmonizer.amplitude"].numel() == 3
    )  # means of channels hold no image
