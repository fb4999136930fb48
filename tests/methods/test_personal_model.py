"""Ditto: a personal model beside the global one."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from toys import Parabolas, Point

import harmofl
from harmofl.federation.messages import Reply, Request
from harmofl.federation.optimizers import build_optimizer
from harmofl.methods.catalogue import ditto, fedavg
from harmofl.methods.channel import open_memories
from harmofl.methods.layers import Harmonizer
from harmofl.methods.model import Model
from harmofl.methods.personal_model import PersonalModel
from harmofl.methods.pieces import LocalRound
from harmofl.runs.folder import RunFolder
from harmofl.settings import TrainingSettings
from harmofl.states import select_prefix
from runs import differences, serve, train

SITES = [(1.0, 0.0), (3.0, 4.0)]


def personal(toy: Parabolas) -> list[float]:
    return [float(toy.kept[site]["step.x"]) for site in toy.sites]


def test_two_rounds_by_hand() -> None:
    toy = Parabolas(ditto.with_settings(pull=1.0), SITES, steps=1, rate=0.1)
    # From 0: the gradients are 0 and −12; v starts at the global model, so that nothing pulls yet.
    assert toy.round() == pytest.approx(0.6)
    assert personal(toy) == pytest.approx([0.0, 1.2])
    # v_A = 0 − 0.1 · (0 + (0 − 0.6)) = 0.06; v_B = 1.2 − 0.1 · (3 · (1.2 − 4) + (1.2 − 0.6)) = 1.98.
    # The global model: 0.6 − 0.1 · 0.6 = 0.54 and 0.6 + 0.1 · 10.2 = 1.62.
    assert toy.round() == pytest.approx(1.08)
    assert personal(toy) == pytest.approx([0.06, 1.98])


def test_a_personal_model_ends_between_its_sites_optimum_and_the_global_model() -> None:
    """Where a·(v − b) + λ·(v − θ) = 0: v = (a·b + λ·θ)/(a + λ)."""
    for pull in (0.0, 1.0, 9.0):
        toy = Parabolas(ditto.with_settings(pull=pull), SITES, steps=20, rate=0.05)
        for _ in range(60):
            toy.round()
        expected = [(a * b + pull * toy.x) / (a + pull) for a, b in SITES]
        assert personal(toy) == pytest.approx(expected, abs=1e-4)


def test_the_global_model_is_fedavgs_whatever_the_personal_ones_do() -> None:
    beside, alone = (Parabolas(method, SITES, steps=3, rate=0.1) for method in (ditto, fedavg))
    assert [beside.round() for _ in range(4)] == [alone.round() for _ in range(4)]


def test_gradients_of_the_personal_model_are_clipped_too() -> None:
    model = Model(Harmonizer(), Point(3.0))  # type: ignore[arg-type]
    start = [weight.detach().clone() for weight in model.parameters()]
    training = TrainingSettings(optimizer="sgd", momentum=0.0, weight_decay=0.0, learning_rate=0.1, gradient_clip=1.0)
    optimizer = build_optimizer(model.network, training, 1)
    memory = open_memories(ditto.pieces(), {}, {})["step"]
    step = PersonalModel().start(LocalRound(1, model, start, 0.1, memory))
    step(model.network, optimizer, lambda: 50 * model.network.x.square())  # gradient 300, clipped to 1
    assert memory.scratch["x"].item() == pytest.approx(2.9)
    assert model.network.x.item() == pytest.approx(2.9)


def test_what_a_hook_opens_before_a_personal_step_it_closes_after_it() -> None:
    """As the profile of a run measures steps."""
    model = Model(Harmonizer(), Point(3.0))  # type: ignore[arg-type]
    optimizer = build_optimizer(model.network, TrainingSettings(), 1)
    seen: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("opened"))
    optimizer.register_step_post_hook(lambda *_: seen.append("closed"))
    start = [weight.detach().clone() for weight in model.parameters()]
    step = PersonalModel().start(LocalRound(1, model, start, 0.1, open_memories(ditto.pieces(), {}, {})["step"]))
    step(model.network, optimizer, lambda: model.network.x.square())
    assert seen == ["opened", "closed"] * 2


def test_the_personal_model_is_used_once_there_is_one() -> None:
    model = Model(Harmonizer(), Point(3.0))  # type: ignore[arg-type]
    pieces = ditto.pieces()
    for kept, expected in (({}, 3.0), ({"step.x": torch.tensor(5.0, dtype=torch.float64)}, 5.0)):
        PersonalModel().use(model, open_memories(pieces, kept, {})["step"])
        assert model.network.x.item() == expected


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("ditto") / "run"
    train(out, "ditto", rounds=3)
    return out


def test_every_site_ends_with_the_personal_model_of_the_selected_round(run: Path) -> None:
    best = harmofl.load_model(run / "model", site="hospital-0")
    stores = sorted((run / "checkpoint" / "sites" / "hospital-0").glob("round-*.safetensors"))
    kept = [select_prefix("step", load_file(store)) for store in stores]
    found = best.network.state_dict()
    assert any(all(torch.equal(found[name], state[name]) for name in state) for state in kept if state)
    other = harmofl.load_model(run / "model", site="hospital-1").network.state_dict()
    assert any(not torch.equal(found[name], other[name]) for name in found)


def test_what_travels_is_fedavg_to_the_bit(run: Path, tmp_path: Path) -> None:
    train(tmp_path / "plain", "fedavg", rounds=3)
    states = [select_prefix("state", RunFolder(out).checkpoints.load(3)[0]) for out in (run, tmp_path / "plain")]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_an_interrupted_run_is_resumed_exactly(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "resumed"

    def stop(request: Request, reply: Reply) -> Reply:
        if request.kind == "train" and request.round == 3 and reply.site == "hospital-4":
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        serve(out, stop, "ditto", rounds=3)
    serve(out, method="ditto", rounds=3, resume=True)
    assert differences(out, run) == []
