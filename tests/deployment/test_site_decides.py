"""The hospital decides: what it approved, from how many images, which models it scores, and how exactly."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hospital import RUN, SITE, Hospital
from loopback import ONE, OPEN, looped, make_kits
from typer.testing import CliRunner

from attacks import TINY, crafted, first_model, wanted, weights_in
from folders import segmentation_folder
from harmofl.cli.entry import app
from harmofl.deployment import memory, participant
from harmofl.deployment.approvals import Approvals
from harmofl.deployment.approving import images_used
from harmofl.deployment.audit import audit_log
from harmofl.deployment.checking import check_approvals
from harmofl.deployment.coordinator import RunOptions, coordinate
from harmofl.deployment.memory import MEGABYTE, refuse_what_cannot_fit, step_bytes
from harmofl.deployment.own_images import OwnImages
from harmofl.deployment.participant import Participant
from harmofl.deployment.policy import apply_own_choices
from harmofl.deployment.run_protocol import rounded
from harmofl.deployment.run_settings import describe_run, describe_unusual, digests
from harmofl.deployment.site_policy import Policy
from harmofl.errors import RefusalError, RunError
from harmofl.federation.messages import Reply, Request, decode_reply, encode, settings_to_send
from harmofl.federation.moves import distance
from harmofl.settings import resolve


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return segmentation_folder(tmp_path_factory.mktemp("images") / "images", sites=1, patients=12)


OPEN_BUT_PROTECTED = {
    "nothing approved": Policy(),
    "an ordinary run approved": Policy(),
    "every run approved": Policy(approval="none", runs=1000),
    "no limits but the protocol": Policy(approval="none", runs=1000, fewest_images=ONE, fewest_patients=ONE),
}


@pytest.mark.parametrize("policy", OPEN_BUT_PROTECTED)
def test_no_score_of_crafted_weights_leaves_a_hospital(tmp_path: Path, images: Path, policy: str) -> None:
    """The attack that read 256 of 256 grey values: tiny images, few of them, 256 models to score."""
    hospital = Hospital(tmp_path, images, OPEN_BUT_PROTECTED[policy])
    if policy == "an ordinary run approved":
        Approvals(hospital.kit).approve(digests(wanted())[-1], runs=1000)
    attack = wanted(**TINY)
    state = first_model(attack)
    for number in range(64 if policy == "nothing approved" else 8):
        reply = hospital.ask("evaluate", 1, attack, crafted(state, number), run=f"{number % 2:032x}")
        assert reply.error
        assert not reply.metrics


def test_a_server_that_plays_along_first_does_not_get_crafted_weights_scored(tmp_path: Path, images: Path) -> None:
    hospital = Hospital(tmp_path, images, Policy(approval="none"))
    settings = wanted(data__size=32)
    first = hospital.ask("train", 1, settings)
    assert not first.error
    reply = hospital.ask("evaluate", 2, settings, crafted(first.state, 0))
    assert "the global model has moved by" in reply.error
    assert "allows 0.3 (largest_move in its site.toml)" in reply.error
    assert not hospital.ask("train", 2, settings, dict(first.state), score=True).error


@pytest.mark.parametrize("layer", [0, -1])
@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_first_or_last_layer_cannot_be_replaced_in_one_round(
    tmp_path: Path, images: Path, kind: str, layer: int
) -> None:
    """It is short beside the whole network, whose length alone would let it pass."""
    hospital = Hospital(tmp_path, images, Policy(approval="none"))
    settings = wanted(data__size=32)
    first = hospital.ask("train", 1, settings)
    names = weights_in(first_model(settings))
    name = [name for name in names if first.state[name].ndim > 1][layer]
    replaced = dict(first.state) | {name: first.state[name].flip(0, 1)}
    assert distance(first_model(settings), {each: replaced[each] for each in weights_in(replaced)}) < 0.3
    reply = hospital.ask(kind, 2, settings, replaced)
    assert f"{name} of the global model has moved by" in reply.error
    assert "allows 0.8 (largest_tensor_move in its site.toml)" in reply.error
    assert not reply.metrics
    assert not reply.state
    bias = [name for name in names if name.endswith("bias")][layer]
    assert f"{bias} of the" in hospital.ask(kind, 2, settings, first.state | {bias: first.state[bias] - 0.5}).error
    assert not hospital.ask(kind, 2, settings, dict(first.state)).error


def test_neither_a_later_round_nor_an_empty_request_lets_a_server_leap(tmp_path: Path, images: Path) -> None:
    hospital = Hospital(tmp_path, images, Policy(approval="none"))
    settings = wanted(data__size=32, training__rounds=100)
    first = hospital.ask("train", 1, settings)
    hospital.ask("train", 2, settings, {})
    for number in (2, 100):
        reply = hospital.ask("evaluate", number, settings, crafted(first.state, 0))
        assert "the global model has moved by" in reply.error
        assert not reply.metrics


@pytest.mark.parametrize(("participation", "allowed"), [(1.0, "0.8"), (0.5, "1.13")])
def test_a_first_request_in_a_later_round_may_leap_only_where_not_all_are_asked(
    tmp_path: Path, images: Path, participation: float, allowed: str
) -> None:
    """At 1.13 of its length a layer can be emptied, and the trap of `harmofl privacy --crafted` is set at once."""
    hospital = Hospital(tmp_path, images, Policy(approval="none"))
    settings = wanted(data__size=32, training__rounds=100, federation__participation=participation)
    state = first_model(settings)
    name = next(name for name in weights_in(state) if state[name].ndim > 1)
    reply = hospital.ask("train", 3, settings, state | {name: -0.2 * state[name]})
    assert f"{name} of the global model has moved by 1.2" in reply.error
    assert f"allows {allowed} " in reply.error
    emptied = hospital.ask("train", 3, settings, state | {name: torch.zeros_like(state[name])})
    assert bool(emptied.error) == (participation == 1)


def test_a_site_that_was_not_drawn_in_the_first_round_scores_its_model(tmp_path: Path, images: Path) -> None:
    hospital = Hospital(tmp_path, images, Policy(approval="none"))
    settings = wanted(data__size=32, federation__participation=0.5)
    state = first_model(settings)
    near = state | {name: 1.1 * state[name] for name in weights_in(state)}
    assert not hospital.ask("evaluate", 1, settings, near).error
    assert not hospital.ask("train", 2, settings, near).error


def test_the_selected_model_is_scored_again_however_far_training_went_on(tmp_path: Path, images: Path) -> None:
    hospital = Hospital(tmp_path, images, Policy(approval="none"))
    settings = wanted(data__size=32, training__rounds=4)
    first = first_model(settings)
    models = [first | {name: 1.25**step * first[name] for name in weights_in(first)} for step in range(4)]
    for number, model in enumerate(models, start=1):
        assert not hospital.ask("train", number, settings, model, score=True).error
    selected = hospital.ask("evaluate", 1, settings, models[0], thorough=True)  # 49 % of its length away
    assert selected.metrics["test"]
    assert not selected.error
    farther = {name: 1.001 * models[0][name] for name in weights_in(first)}
    assert not hospital.ask("evaluate", 1, settings, models[3]).error
    assert "has moved by" in hospital.ask("evaluate", 1, settings, models[0] | farther).error


def test_only_as_many_models_are_scored_as_the_run_has_rounds(tmp_path: Path, images: Path) -> None:
    hospital = Hospital(tmp_path, images, Policy(approval="none"))
    settings = wanted(data__size=32, training__rounds=1)
    state = first_model(settings)
    assert not hospital.ask("train", 1, settings, state).error
    name = next(name for name, tensor in state.items() if tensor.ndim > 1)
    errors = []
    for number in range(5):
        near = state | {name: state[name] * (1 + 0.001 * number)}
        errors.append(hospital.ask("evaluate", 1, settings, near).error)
    assert errors[:3] == [""] * 3  # the round, the last and the selected model
    assert all("3 models of this run have been scored here" in error for error in errors[3:])
    assert not hospital.ask("evaluate", 1, settings, state).error  # one that was scored before tells nothing new
    assert "this run has rounds 1 to 1" in hospital.ask("evaluate", 2, settings, state).error


def test_a_round_is_trained_twice_at_most_with_different_models(tmp_path: Path, images: Path) -> None:
    hospital = Hospital(tmp_path, images, Policy(approval="none"))
    settings = wanted(data__size=32, training__rounds=1)
    state = first_model(settings)
    name = next(name for name, tensor in state.items() if tensor.ndim > 1)
    near = [state | {name: state[name] * (1 + 1e-5 * number)} for number in range(3)]
    assert [bool(hospital.ask("train", 1, settings, each).error) for each in near] == [False, False, True]
    assert "2 models of this run have been trained here" in hospital.ask("train", 1, settings, near[2]).error
    assert not hospital.ask("train", 1, settings, near[0]).error  # as a resumed run does


def test_a_run_starts_from_the_weights_of_its_seed_unless_the_hospital_allows_others(
    tmp_path: Path, images: Path
) -> None:
    settings = wanted(data__size=32)
    other = first_model(settings.model_copy(update={"seed": 5}))
    refused = Hospital(tmp_path / "closed", images, Policy(approval="none")).ask("train", 1, settings, other)
    assert "not the one that the run's seed gives" in refused.error
    policy = Policy(approval="none", initial_model=True)
    assert not Hospital(tmp_path / "open", images, policy).ask("train", 1, settings, other).error


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data__site_sizes": 2}, "images in train 2 of 16"),
        ({"data__limit": 9}, "too few are used here"),
    ],
)
def test_too_few_images_or_patients_are_refused(
    tmp_path: Path, images: Path, changes: dict[str, Any], words: str
) -> None:
    reply = Hospital(tmp_path, images, Policy(approval="none")).ask("train", 1, wanted(data__size=32, **changes))
    assert words in reply.error


def test_a_huge_network_is_refused_before_it_is_built(tmp_path: Path, images: Path) -> None:
    settings = wanted(model__features=1024)
    reply = Hospital(tmp_path, images, OPEN).ask("describe", 0, settings, state={})
    assert "MB: at most 2048 are accepted" in reply.error


@pytest.mark.parametrize("method", ["harmofl", "sitealign"])
@pytest.mark.parametrize("band", ["dc", 0.2, "full"])
def test_no_band_hides_a_huge_network(method: str, band: str | float) -> None:
    huge = {"model.features": 1024, "method.band": band, "data.folder": "there"}
    settings, chosen = resolve("segmentation", method, "smoke", overrides=huge)
    with pytest.raises(RefusalError, match="MB: at most 2048 are accepted"):
        refuse_what_cannot_fit(settings, chosen, 2048 * MEGABYTE, 2**60)


@pytest.mark.parametrize("huge", [{"data__size": 4096}, {"training__batch_size": 2**16}])
def test_images_and_batches_that_fit_in_no_memory_are_refused_before_the_model_is_built(
    tmp_path: Path, images: Path, huge: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(participant, "memory_of", lambda device: 16_000 * MEGABYTE)
    hospital = Hospital(tmp_path, images, OPEN)
    monkeypatch.setattr(Participant, "_make_client", lambda *arguments: pytest.fail("a model was built"))
    wide = {"model__features": 32, "data__size": 512, "training__batch_size": 128} | huge
    for kind in ("describe", "train"):
        error = hospital.ask(kind, 0 if kind == "describe" else 1, wanted(**wide), state={}).error
        assert "images of" in error
        assert "MB of memory or more, and there are 16000 here (largest_memory_mb in its site.toml)" in error


@pytest.mark.parametrize("norm", ["group", "instance"])
def test_a_step_that_would_fail_at_its_end_is_refused_for_the_memory_before(norm: str) -> None:
    """Instance norm refuses the single voxel that nine halvings leave, when all levels above it are in memory."""
    levels = [[2, 2, 2]] * 3 + [[1, 2, 2]] * 6
    changes = {
        "data__dimensions": 3,
        "data__patch": [8, 512, 512],
        "model__network": "dynunet",
        "model__strides": levels,
    }
    settings = wanted(**changes, model__norm=norm, model__features=4, training__batch_size=64)
    _, method = resolve(file=settings_to_send(settings))
    with pytest.raises(RefusalError, match="training on 64 images of 8 × 512 × 512"):
        refuse_what_cannot_fit(settings, method, 2048 * MEGABYTE, 8_000 * MEGABYTE)


def test_a_hospital_may_allow_less_memory_than_it_has(tmp_path: Path, images: Path) -> None:
    _, sites = make_kits(tmp_path, {SITE: str(images)}, ["segmentation"], largest_memory_mb=1)
    request = Request(RUN, "describe", 0, settings=settings_to_send(wanted()))
    assert "there are 1 here" in decode_reply(Participant(sites[SITE]).answer(encode(request))).error


def test_the_memory_of_a_step_grows_with_the_batch_and_the_area_of_images() -> None:
    needed = []
    for changes in ({}, {"training__batch_size": 8}, {"data__size": 128}):
        settings = wanted(**{"data__size": 64, "training__batch_size": 4} | changes)
        _, method = resolve(file=settings_to_send(settings))
        model = memory.build_shapes(settings, method)
        assert model is not None
        needed.append(step_bytes(settings, model.network) - 2 * memory.weights_bytes(model.network))
    assert needed[1] / needed[0] == pytest.approx(2, rel=0.01)
    assert needed[2] / needed[0] == pytest.approx(4, rel=0.01)


def test_every_request_of_a_run_must_have_its_settings(tmp_path: Path, images: Path) -> None:
    hospital = Hospital(tmp_path, images, Policy(approval="none"))
    assert not hospital.ask("train", 1, wanted(data__size=32)).error
    other = wanted(data__size=32, training__batch_size=1)
    assert "settings of this run have changed" in hospital.ask("train", 2, other).error


def test_runs_within_the_policy_start_by_themselves_and_others_wait(tmp_path: Path, images: Path) -> None:
    policy = Policy(approval="policy", allow={"training.rounds": [1, 10]}, runs=2)
    hospital = Hospital(tmp_path, images, policy)
    ordinary = wanted()
    assert not hospital.ask("train", 1, ordinary).error
    waiting = hospital.ask("train", 1, wanted(training__rounds=11, data__limit=29), run="1" * 32).error
    assert "its policy does not allow data.limit = 29, training.rounds = 11" in waiting
    assert not hospital.ask("train", 1, ordinary, run="2" * 32).error
    assert "2 runs with these settings were approved" in hospital.ask("train", 1, ordinary, run="3" * 32).error


def test_what_a_policy_let_start_waits_for_a_person_once_the_policy_is_closed(tmp_path: Path) -> None:
    _, sites = make_kits(tmp_path, {SITE: str(tmp_path)}, ["segmentation"], policy=Policy(approval="none"))
    settings = wanted(data__limit=29)
    _, method = resolve(file=settings_to_send(settings))
    digest = Approvals(sites[SITE]).admit(RUN, settings, method)
    for policy in (Policy(approval="policy"), Policy()):
        own = sites[SITE].settings.model_copy(update={"policy": policy})
        closed = Approvals(replace(sites[SITE], settings=own))
        with pytest.raises(RefusalError, match="waits for the hospital's approval"):
            closed.admit(RUN, settings, method)
        assert list(closed.waiting()) == [digest]
    closed.approve(digest, runs=1, by="somebody")
    assert closed.admit(RUN, settings, method) == digest


def test_a_policy_knows_smallest_by_the_number_that_it_came_to(tmp_path: Path) -> None:
    policy = Policy(approval="policy", allow={"training.rounds": [1, 10], "data.site_sizes": ["smallest"]})
    _, sites = make_kits(tmp_path, {SITE: str(tmp_path)}, ["segmentation"], policy=policy)
    settings = wanted(data__site_sizes=20)
    _, method = resolve(file=settings_to_send(settings))
    assert Approvals(sites[SITE]).admit(RUN, settings, method) == digests(wanted(data__site_sizes="smallest"))[0]


def test_who_approves_a_number_of_images_has_not_approved_the_smallest_sites(tmp_path: Path) -> None:
    _, sites = make_kits(tmp_path, {SITE: str(tmp_path)}, ["segmentation"], policy=Policy())
    _, method = resolve(file=settings_to_send(wanted()))
    (tmp_path / "run.toml").write_text(wanted(data__site_sizes=500).with_values("data", folder=None).to_toml())
    kit, approvals = ["--kit", str(sites[SITE].folder)], Approvals(sites[SITE])
    CliRunner().invoke(app, ["deploy", "approve", "--config", str(tmp_path / "run.toml"), *kit], input="y\n")
    assert approvals.admit(RUN, wanted(data__site_sizes=500), method)
    for other in ("smallest", 20):
        with pytest.raises(RefusalError, match="waits for the hospital's approval"):
            approvals.admit(RUN, wanted(data__site_sizes=other), method)
    approvals.approve(digests(wanted(data__site_sizes="smallest"))[0], runs=1)
    assert approvals.admit(RUN, wanted(data__site_sizes=20), method)  # what it came to


def test_no_server_can_search_for_two_settings_of_one_digest() -> None:
    (digest,) = digests(wanted())
    assert len(digest) * 4 >= 128  # half as many bits to try


def test_what_is_unusual_is_said_in_plain_words() -> None:
    settings = wanted(data__limit=4, seed=7)
    _, method = resolve(file=settings_to_send(settings))
    lines = describe_unusual(settings, method)
    assert any(line.startswith("data.limit = 4 (usual: ") and "at most so many images" in line for line in lines)
    assert any(line.startswith("seed = 7 (usual: 0)") for line in lines)
    assert "differential privacy: none" in describe_run(settings, method)
    private = settings.with_values("privacy", site_level="local", site_noise=0.5, image_level=True)
    words = "differential privacy: local at site level, noise 0.5 and at image level, noise 1"
    assert words in describe_run(private, method)


def test_scores_leave_rounded() -> None:
    numbers = {"train": {"loss": 0.0123456, "drift": 9876.5}, "val": {"A": {"metric": 0.876543, "loss": 1.23456}}}
    assert rounded(Reply("A", metrics=numbers), 3).metrics == {
        "train": {"loss": 0.0123, "drift": 9880.0},
        "val": {"A": {"metric": 0.877, "loss": 1.23}},
    }


def test_a_person_at_the_hospital_approves_what_they_have_read(tmp_path: Path, images: Path) -> None:
    server, sites = make_kits(tmp_path, {SITE: str(images)}, ["segmentation"], policy=Policy())
    unusual = {"training.rounds": 1, "training.batch_size": 2, "data.site_sizes": "smallest"}
    options = RunOptions("segmentation", "fedavg", "smoke", given=unusual)
    kit = str(sites[SITE].folder)

    def run() -> Any:
        with looped(sites):
            return coordinate(server, options, tmp_path / "run", wait=1)

    with pytest.raises(RunError, match=r"waits for the hospital's approval \(every run does\)"):
        run()
    (finding,) = check_approvals(sites[SITE])
    assert finding.hint == "harmofl deploy approve"
    shown = CliRunner().invoke(app, ["deploy", "approve", "--kit", kit]).output
    assert finding.what == f"waiting for approval: {shown.partition(':')[0]}"
    digest = shown.partition(":")[0]
    assert "FedAvg on segmentation: 1 rounds" in shown
    assert "images of patients that it would use: train" in shown
    assert "training.batch_size = 2 (usual" in shown
    assert not Approvals(sites[SITE]).is_approved(digest)
    assert "approved" in CliRunner().invoke(app, ["deploy", "approve", digest[:6], "--kit", kit]).output
    summary = run()
    scores = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    assert all(round(score["metric"], 3) == score["metric"] for score in scores if "metric" in score)
    assert summary["test"]
    for party in (server, sites[SITE]):  # and both logs name it by what the person saw
        lines = [json.loads(line) for line in audit_log(party.folder).read_text().splitlines()]
        assert {line["settings"] for line in lines if "settings" in line} == {digest}
    assert "nothing waits" in CliRunner().invoke(app, ["deploy", "approve", "--kit", kit]).output


def test_an_approval_is_taken_back_by_the_beginning_of_its_digest_or_by_the_runs_file(tmp_path: Path) -> None:
    _, sites = make_kits(tmp_path, {SITE: str(tmp_path)}, ["segmentation"], policy=Policy())
    approvals, digest = Approvals(sites[SITE]), digests(wanted())[-1]
    (tmp_path / "run.toml").write_text(wanted().with_values("data", folder=None).to_toml())

    def refuse(*which: str) -> Any:
        approvals.approve(digest, runs=1)
        return CliRunner().invoke(app, ["deploy", "approve", *which, "--refuse", "--kit", str(sites[SITE].folder)])

    for which in ((digest,), (digest[:6],), ("--config", str(tmp_path / "run.toml"))):
        assert refuse(*which).output == f"{digest}: no longer approved\n"
        assert not approvals.is_approved(digest)
    for unknown in (("000000",), ("*",), ()):
        assert refuse(*unknown).exit_code != 0
        assert approvals.is_approved(digest)


def test_a_site_that_lost_what_it_kept_says_so(tmp_path: Path, images: Path) -> None:
    hospital = Hospital(tmp_path, images, Policy(approval="none"))
    settings = wanted(data__size=32)
    first = hospital.ask("train", 1, settings, counted=0)
    assert not first.error
    for path in hospital.kit.state(RUN).glob("round-*.safetensors"):
        path.unlink()
    assert (
        "what it kept after round 1 is gone" in hospital.ask("train", 2, settings, dict(first.state), counted=1).error
    )


def test_a_network_of_endless_levels_is_refused_before_it_is_built(tmp_path: Path, images: Path) -> None:
    hospital = Hospital(tmp_path, images, Policy())
    endless = wanted(data__dimensions=3, data__patch=[32, 32, 32], model__network="dynunet")
    endless = endless.with_values("model", strides=[[1, 1, 1]] * 1000)
    assert "at most 10 levels" in hospital.ask("train", 1, endless, {}).error


def test_whoever_approves_is_told_of_patients_however_images_are_divided(tmp_path: Path, images: Path) -> None:
    hospital = Hospital(tmp_path, images, Policy())
    by_image = wanted(data__size=32, data__split_by="image")
    own = OwnImages.of(hospital.kit, apply_own_choices(by_image, hospital.kit))
    assert len(own.site.train) > own.num_patients(own.site.train)
    assert f"train {len(own.site.train)} of {own.num_patients(own.site.train)}," in images_used(hospital.kit, by_image)
