import torch

from harmofl.methods.catalogue import scaffold
from harmofl.methods.channel import collect_kept, collect_sent, expect_combined, expect_sent, open_memories
from harmofl.methods.combinations import Gathered
from harmofl.methods.pieces import Piece


def test_a_piece_cannot_change_what_the_server_holds() -> None:
    combined = {"step.x": torch.tensor([1.0])}
    memories = open_memories(scaffold.pieces(), {}, combined)
    memories["step"].received["x"] += 5
    assert combined["step.x"].tolist() == [1.0]


def test_what_leaves_a_piece_is_a_plain_copy() -> None:
    memories = open_memories(scaffold.pieces(), {}, {})
    weight = torch.nn.Parameter(torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last))
    memories["step"].kept = memories["step"].sent = {"x": weight}
    for state in (collect_kept(memories), collect_sent(memories)):
        assert state["step.x"].is_contiguous()
        assert not state["step.x"].requires_grad
        assert state["step.x"].data_ptr() != weight.data_ptr()


def test_a_piece_sends_all_that_it_announced_or_nothing() -> None:
    announced = {"step.a": torch.zeros(1), "step.b": torch.zeros(2), "harmonizer.c": torch.zeros(3)}
    assert expect_sent(announced, ["step.a"]).keys() == {"step.a", "step.b"}
    assert expect_sent(announced, []) == {}


def test_gathered_tensors_are_expected_once_per_site() -> None:
    class Bank(Piece):
        combine = Gathered

    announced = {"bank.mean": torch.zeros(3), "step.x": torch.zeros(1)}
    received = ["bank.mean.A", "bank.mean.B", "step.x"]
    expected = expect_combined({"bank": Bank(), "step": Piece()}, announced, received)
    assert {name: tuple(tensor.shape) for name, tensor in expected.items()} == {
        "bank.mean.A": (3,),
        "bank.mean.B": (3,),
        "step.x": (1,),
    }
