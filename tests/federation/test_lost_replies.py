"""A site whose reply never counted goes back to what it kept before: both sides stay in step."""

from pathlib import Path

import pytest
import torch

from harmofl.federation.messages import Reply, Request
from harmofl.runs.checkpoints import read_checkpoint
from harmofl.runs.folder import RunFolder
from harmofl.runs.store import Store
from runs import SITES, altered, differences, records, serve, tensors

LOSER = "hospital-1"


def refuse_round_two(request: Request, reply: Reply) -> Reply:
    """The site trained and kept what it learned, but its reply is refused."""
    if request.kind != "train" or request.round != 2 or reply.site != LOSER:
        return reply
    return altered(reply, state={name: tensor[None] for name, tensor in reply.state.items()})


def versions(out: Path, site: str) -> list[int]:
    return Store(out / "checkpoint" / "sites" / site).versions()


def kept(out: Path, site: str, number: int) -> dict[str, torch.Tensor]:
    return tensors(out / "checkpoint" / "sites" / site / f"round-{number:05d}.safetensors")[0]


def test_scaffolds_server_variate_stays_the_mean_of_the_sites(tmp_path: Path) -> None:
    serve(tmp_path, refuse_round_two, "scaffold", rounds=3)
    combined = tensors(tmp_path / "checkpoint" / "round-00003.safetensors")[0]
    sites = [kept(tmp_path, site, 3) for site in SITES]
    names = [name.removeprefix("combined.") for name in combined if name.startswith("combined.step.")]
    assert names
    for name in names:
        mean = torch.stack([site[name].double() for site in sites]).mean(dim=0)
        torch.testing.assert_close(combined[f"combined.{name}"].double(), mean, rtol=1e-4, atol=1e-7)


def test_the_next_request_names_the_last_round_that_counted(tmp_path: Path) -> None:
    counted: dict[tuple[str, int], int | None] = {}

    def note(request: Request, reply: Reply) -> Reply:
        if request.kind == "train":
            counted[reply.site, request.round] = request.counted
        return refuse_round_two(request, reply)

    serve(tmp_path, note, "feddyn", rounds=4)
    assert [counted[LOSER, number] for number in (1, 2, 3, 4)] == [0, 1, 1, 3]
    assert [counted[SITES[0], number] for number in (1, 2, 3, 4)] == [0, 1, 2, 3]
    assert 2 not in versions(tmp_path, LOSER)


def test_a_site_of_a_run_of_0_1_goes_on_from_the_last_that_it_kept(tmp_path: Path) -> None:
    """Its checkpoints did not note which round that was: a site may have missed the last one."""
    notes = {"round": 3, "selection": {"per_site": False, "best": {}}, "num_records": 0, "seconds": 0.0, "kept": [3]}
    folder = RunFolder(tmp_path)
    folder.checkpoints.save(3, {}, notes | {"trained": SITES})
    assert read_checkpoint(folder, 3).counted == dict.fromkeys(SITES)
    folder.checkpoints.save(3, {}, notes | {"counted": {LOSER: 2}})
    assert read_checkpoint(folder, 3).counted == {LOSER: 2}


@pytest.mark.parametrize("method", ["scaffold", "fedbn"])
def test_a_run_resumed_after_a_refused_reply_is_the_same_to_the_bit(tmp_path: Path, method: str) -> None:
    serve(tmp_path / "whole", refuse_round_two, method, rounds=4)

    def stop(request: Request, reply: Reply) -> Reply:
        if request.kind == "train" and request.round == 3 and reply.site == SITES[-1]:
            raise KeyboardInterrupt  # sites have trained round 3, the server has not finished it
        return refuse_round_two(request, reply)

    with pytest.raises(KeyboardInterrupt):
        serve(tmp_path / "resumed", stop, method, rounds=4)
    serve(tmp_path / "resumed", refuse_round_two, method, rounds=4, resume=True)
    assert differences(tmp_path / "resumed", tmp_path / "whole") == []


def test_a_lost_round_changes_nothing_at_its_site(tmp_path: Path) -> None:
    """The same as if the site had failed before it trained."""

    def fail_round_two(request: Request, reply: Reply) -> Reply:
        lost = request.kind == "train" and request.round == 2 and reply.site == LOSER
        return Reply(reply.site, error="no answer") if lost else reply

    serve(tmp_path / "refused", refuse_round_two, "scaffold", rounds=3)
    serve(tmp_path / "failed", fail_round_two, "scaffold", rounds=3)
    one, other = (kept(tmp_path / name, LOSER, 3) for name in ("refused", "failed"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_robust_rule_warns_when_too_few_sites_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    serve(tmp_path, refuse_round_two, "krum", rounds=3)
    servers = {record["round"]: record for record in records(tmp_path) if record["site"] == "server"}
    assert servers[2]["warning"] == "4 sites answered, 5 are needed to withstand a bad one"
    assert "warning" not in servers[1]
    assert "warning" not in servers[3]
    assert "4 sites answered: Krum needs 5 to withstand a bad one" in caplog.text
