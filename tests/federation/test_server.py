"""What the server makes of its sites' answers, good and bad."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import harmofl
from harmofl import Method, registry
from harmofl.devices import threads
from harmofl.errors import RunError, UsageError
from harmofl.events import Event, ImagesChosen
from harmofl.federation.client import Client
from harmofl.federation.messages import Reply, Request
from harmofl.methods.harmonizers import Harmonization
from harmofl.methods.layers import Harmonizer
from harmofl.methods.sharing import nothing
from harmofl.settings import resolve
from harmofl.states import State
from runs import SITES, altered, differences, equal, records, serve, stop_after_round, tensors, tiny, train, weights


def checkpoint(out: Path, number: int, part: str = "state") -> dict[str, torch.Tensor]:
    found, _ = tensors(out / "checkpoint" / f"round-{number:05d}.safetensors")
    return {name.removeprefix(f"{part}."): tensor for name, tensor in found.items() if name.startswith(f"{part}.")}


def mean(replies: list[Reply], shares: list[float]) -> dict[str, torch.Tensor]:
    """The weighted mean by hand: integers take the maximum."""
    total = {}
    for name, tensor in replies[0].state.items():
        stack = torch.stack([reply.state[name].double() for reply in replies])
        share = torch.tensor(shares, dtype=torch.float64).reshape(-1, *[1] * tensor.ndim)
        total[name] = (stack * share).sum(dim=0).float() if tensor.is_floating_point() else stack.amax(dim=0).long()
    return total


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-7)


def nan_weights(reply: Reply) -> dict[str, torch.Tensor]:
    return {name: torch.full_like(t, torch.nan) if t.is_floating_point() else t for name, t in reply.state.items()}


def test_the_round_is_the_plain_mean_of_the_sites(tmp_path: Path) -> None:
    replies = serve(tmp_path / "run", rounds=1).replies("train", 1)
    assert_close(checkpoint(tmp_path / "run", 1), mean([replies[site] for site in SITES], [0.2] * 5))


def test_sites_can_count_by_their_examples(tmp_path: Path) -> None:
    def change(request: Request, reply: Reply) -> Reply:
        number = 1 + SITES.index(reply.site)
        return altered(reply, num_examples=80 * number, num_steps=10 * number)  # batches of 8

    transport = serve(tmp_path / "run", change, rounds=1, federation__weights="examples")
    replies = transport.replies("train", 1)
    shares = [number / 15 for number in (1, 2, 3, 4, 5)]
    assert_close(checkpoint(tmp_path / "run", 1), mean([replies[site] for site in SITES], shares))


def test_the_order_in_which_sites_answer_changes_nothing(tmp_path: Path) -> None:
    serve(tmp_path / "reversed", method="harmofl")
    train(tmp_path / "in order", "harmofl")
    assert differences(tmp_path / "reversed", tmp_path / "in order") == []


@pytest.mark.parametrize("kind", ["nan", "error", "shape"])
def test_a_bad_answer_is_left_out_of_the_round_and_its_reason_recorded(tmp_path: Path, kind: str) -> None:
    def change(request: Request, reply: Reply) -> Reply:
        if request.kind != "train" or request.round != 2 or reply.site != "hospital-1":
            return reply
        if kind == "nan":
            return altered(reply, state=nan_weights(reply))
        if kind == "error":
            return Reply(reply.site, error="out of memory")
        return altered(reply, state={name: tensor[None] for name, tensor in reply.state.items()})

    transport = serve(tmp_path / "run", change, rounds=3)
    others = [reply for site, reply in transport.replies("train", 2).items() if site != "hospital-1"]
    assert_close(checkpoint(tmp_path / "run", 2), mean(others, [0.25] * 4))

    found = records(tmp_path / "run")
    (bad,) = [record for record in found if "error" in record]
    assert (bad["round"], bad["site"], bad["phase"]) == (2, "hospital-1", "train")
    assert {"nan": "NaN", "error": "out of memory", "shape": "shape"}[kind] in bad["error"]
    servers = {record["round"]: record for record in found if record["site"] == "server"}
    assert servers[2]["left_out"] == ["hospital-1"]
    assert "left_out" not in servers[1]
    assert "left_out" not in servers[3]
    assert {r["site"] for r in found if r["phase"] == "train" and r["round"] == 3} == {*SITES, "server"}


def test_a_run_in_which_all_sites_fail_stops_and_can_be_resumed(tmp_path: Path) -> None:
    def change(request: Request, reply: Reply) -> Reply:
        failing = request.kind == "train" and request.round == 2
        return altered(reply, state=nan_weights(reply)) if failing else reply

    with pytest.raises(RunError, match=r"round 2: 0 of 5 sites gave a usable answer, 3 are needed.*NaN.*--resume"):
        serve(tmp_path / "run", change, "harmofl")
    assert checkpoint(tmp_path / "run", 1)
    assert not (tmp_path / "run" / "checkpoint" / "round-00002.safetensors").exists()
    assert [r["site"] for r in records(tmp_path / "run") if "error" in r] == SITES

    serve(tmp_path / "run", method="harmofl", resume=True)
    train(tmp_path / "undisturbed", "harmofl")
    assert differences(tmp_path / "run", tmp_path / "undisturbed") == []


@pytest.mark.parametrize(("quorum", "goes_on"), [(0.4, True), (0.41, False)])
def test_below_the_quorum_the_run_stops(tmp_path: Path, quorum: float, goes_on: bool) -> None:
    def change(request: Request, reply: Reply) -> Reply:
        return reply if reply.site in SITES[:2] or request.kind != "train" else Reply(reply.site, error="gone")

    if goes_on:
        serve(tmp_path / "run", change, rounds=1, federation__quorum=quorum)
        assert (tmp_path / "run" / "summary.json").exists()
    else:
        with pytest.raises(RunError, match="2 of 5 sites gave a usable answer, 3 are needed"):
            serve(tmp_path / "run", change, rounds=1, federation__quorum=quorum)


def test_scores_that_no_site_can_give_stop_the_run(tmp_path: Path) -> None:
    def change(request: Request, reply: Reply) -> Reply:
        return Reply(reply.site, error="gone") if request.thorough else reply

    with pytest.raises(RunError, match="0 of 5 sites"):
        serve(tmp_path / "run", change, rounds=1)
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize("method", ["fedbn", "local"])
def test_a_site_that_misses_the_first_round_joins_later(tmp_path: Path, method: str) -> None:
    missing = "hospital-3"
    store = tmp_path / "run" / "checkpoint" / "sites" / missing

    def absent(request: Request, reply: Reply) -> Reply:
        if (request.kind, request.round, reply.site) != ("train", 1, missing):
            return reply
        store.joinpath("round-00001.safetensors").unlink()  # as if the request had never come
        return Reply(missing, error="unreachable")

    transport = serve(tmp_path / "run", absent, method, rounds=3)
    assert [(r["round"], r["site"]) for r in records(tmp_path / "run") if "error" in r] == [(1, missing)]
    sizes = {site: len(request.state) for site, request in transport.requests("train", 2).items()}
    assert sizes[missing] > max(size for site, size in sizes.items() if site != missing)
    assert len({len(request.state) for request in transport.requests("train", 3).values()}) == 1


def test_a_site_recovers_from_a_round_that_gave_nan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Client._descend
    trained: list[str] = []

    def explode(self: Client, *args: Any, **more: Any) -> Any:
        result = honest(self, *args, **more)
        trained.append(self.site.name)
        if self.site.name == "hospital-2" and trained.count("hospital-2") == 1:
            with torch.no_grad():
                next(self.model.network.parameters()).fill_(torch.nan)
        return result

    monkeypatch.setattr(Client, "_descend", explode)
    train(tmp_path / "run", "fedbn", rounds=2)
    bad = [(r["round"], r["site"]) for r in records(tmp_path / "run") if "error" in r]
    assert bad == [(1, "hospital-2")]


@pytest.mark.parametrize("schedule", ["before-training", "first-round", "every-round"])
def test_the_amplitude_is_the_plain_mean_over_sites_whatever_their_weights(tmp_path: Path, schedule: str) -> None:
    def change(request: Request, reply: Reply) -> Reply:
        number = 3 * 10 ** SITES.index(reply.site)
        return altered(reply, num_examples=number, num_steps=reply.num_steps and number // 3)

    several_batches = {"training__batch_size": 3}  # one alone would be the site's mean, the same in every round
    weighted = {"federation__weights": "examples"}
    transport = serve(
        tmp_path / "run", change, "harmofl", rounds=3, method__schedule=schedule, **several_batches, **weighted
    )
    amplitudes = []
    for number in range(1, 4):
        request = transport.requests("train", number)["hospital-0"]
        amplitudes.append(request.combined.get("harmonizer.amplitude"))
    final = weights(tmp_path / "run")["harmonizer.amplitude"]
    if schedule == "before-training":
        assert all(torch.equal(amplitude, amplitudes[0]) for amplitude in amplitudes)
        expected = exact_amplitude()
        torch.testing.assert_close(amplitudes[0], expected, rtol=1e-6, atol=0)
        assert torch.equal(final, amplitudes[0])
        return
    assert amplitudes[0] is None
    measured = [reply.sent["harmonizer.amplitude"].double() for reply in transport.replies("train", 1).values()]
    torch.testing.assert_close(amplitudes[1].double(), sum(measured) / 5, rtol=1e-6, atol=0)
    if schedule == "first-round":
        assert torch.equal(amplitudes[1], amplitudes[2])
        assert torch.equal(final, amplitudes[1])
        assert not any(reply.sent for reply in transport.replies("train", 2).values())
    else:
        assert not torch.equal(amplitudes[1], amplitudes[2])
        again = [reply.sent["harmonizer.amplitude"].double() for reply in transport.replies("train", 2).values()]
        torch.testing.assert_close(amplitudes[2].double(), sum(again) / 5, rtol=1e-6, atol=0)


def exact_amplitude() -> torch.Tensor:
    """The mean over sites of the mean over images of |sum of all pixels|, from the images themselves."""
    data = resolve("histology", "harmofl", "smoke", overrides=tiny())[0].data
    sites = [registry.tasks.find("histology").load_site(site, data).train.images.double() for site in SITES]
    return (
        torch.stack([images.sum(dim=(2, 3)).abs().mean(dim=0) for images in sites]).mean(dim=0)[:, None, None].float()
    )


def test_scores_stand_under_the_round_whose_model_they_belong_to(tmp_path: Path) -> None:
    transport = serve(tmp_path / "run", rounds=2)
    found = {(r["round"], r["site"], r["phase"]): r for r in records(tmp_path / "run") if "selected" not in r}
    for site in SITES:
        asked_in_round_2 = transport.replies("train", 2)[site].metrics["val"][site]["metric"]
        assert found[1, site, "val"]["metric"] == asked_in_round_2
    assert not any("val" in reply.metrics for reply in transport.replies("train", 1).values())
    state = transport.requests("train", 2)["hospital-0"].state
    assert equal(state, checkpoint(tmp_path / "run", 1))


def test_the_summary_holds_the_test_scores_of_the_best_round(tmp_path: Path) -> None:
    def change(request: Request, reply: Reply) -> Reply:
        """Validation scores that are best after round 2, better at hospital-0 after round 3."""
        metrics = dict(reply.metrics)
        scored = request.round if request.kind == "evaluate" else request.round - 1
        if "val" in metrics:
            value = {1: 0.1, 2: 0.6, 3: 0.5}[scored] + (0.2 if (scored, reply.site) == (3, SITES[0]) else 0)
            metrics["val"] = {reply.site: metrics["val"][reply.site] | {"metric": value}}
        return altered(reply, metrics=metrics)

    serve(tmp_path / "run", change, rounds=3, training__learning_rate=0.05)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["best_round"] == 2
    found = records(tmp_path / "run")
    of_round_2 = {r["site"]: r["metric"] for r in found if r["phase"] == "test" and r["round"] == 2}
    assert {site: summary["test"][site] for site in SITES} == of_round_2
    stored = {name.removeprefix("network."): t for name, t in weights(tmp_path / "run").items()}
    assert equal(stored, checkpoint(tmp_path / "run", 2))


def test_fedbn_is_scored_with_the_sites_own_batch_norms_of_that_round(tmp_path: Path) -> None:
    from harmofl.runs.model_folder import open_model
    from harmofl.tasks.scoring import score

    train(tmp_path / "run", "fedbn", rounds=3, training__learning_rate=0.05)
    best = json.loads((tmp_path / "run" / "summary.json").read_text())["best_round"]
    statistics = []
    for site in SITES:
        model, task, settings, _ = open_model(tmp_path / "run" / "model", site)
        own = tensors(tmp_path / "run" / "checkpoint" / "sites" / site / f"round-{best:05d}.safetensors")[0]
        state = model.network.state_dict()
        norms = {name.removeprefix("own."): tensor for name, tensor in own.items() if name.startswith("own.")}
        assert norms
        for name, tensor in norms.items():
            assert torch.equal(state[name], tensor), name
        for name, tensor in checkpoint(tmp_path / "run", best).items():
            assert torch.equal(state[name], tensor), name
        images = task.load_site(site, settings.data).val[site]
        with threads(1), torch.no_grad():
            again = score(model, task, settings, images, thorough=False)
        (recorded,) = [
            r for r in records(tmp_path / "run") if (r["round"], r["site"], r["phase"]) == (best, site, "val")
        ]
        assert again["loss"] == pytest.approx(recorded["loss"], rel=1e-5)
        assert again["metric"] == recorded["metric"]
        statistics.append(next(t for name, t in state.items() if name.endswith("running_mean")).clone())
    assert not torch.equal(statistics[0], statistics[1])


def test_a_checkpoint_that_is_cut_short_is_skipped(tmp_path: Path) -> None:
    def stop(request: Request, reply: Reply) -> Reply:
        return Reply(reply.site, error="gone") if request.round == 3 else reply

    with pytest.raises(RunError):
        serve(tmp_path / "run", stop, "fedadam", rounds=3)
    newest = tmp_path / "run" / "checkpoint" / "round-00002.safetensors"
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    transport = serve(tmp_path / "run", method="fedadam", rounds=3, resume=True)
    assert {request.round for request, _ in transport.passed if request.kind == "train"} == {2, 3}
    train(tmp_path / "undisturbed", "fedadam", rounds=3)
    assert differences(tmp_path / "run", tmp_path / "undisturbed") == []


def test_the_server_asks_nothing_more_of_a_finished_run(tmp_path: Path) -> None:
    first = train(tmp_path / "run")
    seen: list[Event] = []
    assert train(tmp_path / "run", resume=True, watch=seen.append) == first
    assert seen == [ImagesChosen("synthetic hospitals")]


def test_a_site_that_fails_to_train_still_scores_the_model_it_received(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Client._descend

    def explode(self: Client, *args: Any, **more: Any) -> Any:
        if self.site.name == "hospital-2":
            raise MemoryError("too large")
        return honest(self, *args, **more)

    monkeypatch.setattr(Client, "_descend", explode)
    train(tmp_path / "run", rounds=3)
    found = records(tmp_path / "run")
    errors = [(r["round"], r["site"], r["error"]) for r in found if "error" in r]
    assert errors == [(number, "hospital-2", "MemoryError: too large") for number in (1, 2, 3)]
    for number in (1, 2, 3):
        assert sorted(r["site"] for r in found if r["phase"] == "val" and r["round"] == number) == SITES


class MeasuredOnce(Harmonizer):
    """Keeps its site's mean for itself: what a harmonizer with a part of its own would do."""

    own = frozenset({"own_mean"})
    own_mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("own_mean", torch.zeros(()))

    def measure(self, batches: Iterable[Tensor]) -> None:
        self.own_mean.fill_(torch.cat(list(batches)).mean())

    def measurement(self) -> State:
        return {"mean": self.own_mean.clone()}

    def forward(self, images: Tensor) -> Tensor:
        assert self.own_mean > 0, "the site has forgotten what it measured"
        return images - self.own_mean


class BeforeTraining(Harmonization):
    schedule = "before-training"

    def __init__(self, make: type[Harmonizer]) -> None:
        self.make = make

    def __call__(self, image_shape: tuple[int, int, int]) -> Harmonizer:
        return self.make()


def test_what_a_harmonizer_keeps_stays_at_its_site_through_all_rounds(tmp_path: Path) -> None:
    method = Method("Own part", harmonizer=BeforeTraining(MeasuredOnce))
    train(tmp_path / "run", method, rounds=2)
    assert not any("error" in record for record in records(tmp_path / "run"))
    means = set()
    for site in SITES:
        model = harmofl.load_model(tmp_path / "run" / "model", site=site, method=method)
        means.add(round(float(model.harmonizer.own_mean), 6))  # type: ignore[arg-type, union-attr]
    assert len(means) == len(SITES)


class Silent(MeasuredOnce):
    def measurement(self) -> State:
        return {}


def test_a_harmonizer_that_does_not_say_what_it_will_measure_is_refused(tmp_path: Path) -> None:
    method = Method("Silent", harmonizer=BeforeTraining(Silent))
    with pytest.raises(
        UsageError,
        match=r"Silent: BeforeTraining measures .* but announces nothing to send; .*measurement\(\) must return",
    ):
        train(tmp_path / "run", method)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("norm", ["batch-statistics", "instance", "group", "weight-standardization"])
@pytest.mark.parametrize("method", ["fedbn", "silobn"])
def test_a_method_that_keeps_batch_norm_is_refused_where_there_is_nothing_to_keep(
    tmp_path: Path, method: str, norm: str
) -> None:
    with pytest.raises(UsageError, match=rf"model\.norm = '{norm}' has no layer .* keep nothing there and be FedAvg"):
        train(tmp_path / "run", method, model__norm=norm)
    assert not (tmp_path / "run").exists()


def test_pooled_variances_are_refused_where_a_rule_combines_them_itself(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"running_variances = 'pooled': must be 'mean', as Median combines"):
        train(tmp_path / "run", "median", federation__running_variances="pooled")


def test_a_site_that_shares_no_weights_has_the_amplitude_of_its_own_best_round(tmp_path: Path) -> None:
    """Every site is best after another round; the amplitude changes from round to round."""

    def change(request: Request, reply: Reply) -> Reply:
        metrics = dict(reply.metrics)
        scored = request.round if request.kind == "evaluate" else request.round - 1
        if "val" in metrics:
            best = 1 + SITES.index(reply.site) % 3
            metrics["val"] = {reply.site: metrics["val"][reply.site] | {"metric": 0.9 if scored == best else 0.1}}
        return altered(reply, metrics=metrics)

    alone = replace(registry.methods.find("harmofl"), name="alone", shares=nothing)
    options = {"method__schedule": "every-round", "training__batch_size": 3}
    serve(tmp_path / "run", change, alone, rounds=3, **options)
    amplitudes = {
        number: checkpoint(tmp_path / "run", number, "combined")["harmonizer.amplitude"] for number in (1, 2, 3)
    }
    assert not torch.equal(amplitudes[1], amplitudes[3])
    for site in SITES:
        best = 1 + SITES.index(site) % 3
        assert torch.equal(weights(tmp_path / "run", site)["harmonizer.amplitude"], amplitudes[best])
        (of_round,) = [
            r
            for r in records(tmp_path / "run")
            if (r["round"], r["site"], r["phase"]) == (best, site, "test") and "selected" not in r
        ]
        (selected,) = [r for r in records(tmp_path / "run") if r["site"] == site and r.get("selected")]
        assert (selected["round"], selected["loss"]) == (best, of_round["loss"])


def test_a_run_of_which_no_checkpoint_can_be_read_is_not_started_over(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", watch=stop_after_round(1))
    before = (tmp_path / "run" / "records.jsonl").read_text()
    for path in (tmp_path / "run" / "checkpoint").glob("*.safetensors"):
        path.write_bytes(b"cut")
    with pytest.raises(RunError, match=r"no checkpoint .* can be read"):
        train(tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "records.jsonl").read_text() == before


def test_a_run_that_nobody_could_score_says_why(tmp_path: Path) -> None:
    def change(request: Request, reply: Reply) -> Reply:
        return Reply(reply.site, error="its images are gone") if request.kind == "evaluate" else reply

    with pytest.raises(RunError, match=r"no site scored any round.*hospital-0, hospital-1.*: its images are gone"):
        serve(tmp_path / "run", change, rounds=1)
