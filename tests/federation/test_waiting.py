"""Replies that wait come out as they went in, and few of them are in memory."""

import math
import os

import torch

from harmofl.federation.messages import Reply
from harmofl.federation.transports import sort_replies
from harmofl.federation.waiting import Waiting


def reply_of(site: str, value: float = 1.0) -> Reply:
    state = {"weight": torch.full((3, 2), value), "count": torch.tensor(7)}
    return Reply(site, state, {"step.c": torch.tensor([value])}, 5, 2, {"train": {"loss": value}})


def test_replies_come_out_as_they_went_in_whether_they_lay_in_memory_or_on_disk() -> None:
    waiting, values = Waiting(in_memory=1), {"A": 0.5, "B": math.nan, "C": 1e-45, "D": math.inf}
    for site, value in values.items():
        waiting.put(reply_of(site, value))
    for site in ("C", "A", "D", "B"):  # in any order
        taken, expected = waiting.take(site), reply_of(site, values[site])
        assert site not in waiting
        assert taken.num_steps == 2
        assert str(taken.metrics) == str(expected.metrics)
        for part in ("state", "sent"):
            one, other = getattr(taken, part), getattr(expected, part)
            assert list(one) == list(other)  # the order too: what is wrong with a reply is said of the first
            assert all(one[name].dtype == other[name].dtype for name in one)
            assert all(torch.equal(one[name].nan_to_num(-1), other[name].nan_to_num(-1)) for name in one)


def test_tensors_beyond_the_first_are_on_disk_and_the_file_is_emptied() -> None:
    waiting = Waiting(in_memory=1)
    for site in "ABC":
        waiting.put(reply_of(site))
    assert [bool(waiting._replies[site].state) for site in "ABC"] == [True, False, False]
    file = waiting._file
    assert file is not None
    file.flush()
    assert os.fstat(file.fileno()).st_size > 0
    assert os.fstat(file.fileno()).st_nlink == 0  # no name: gone with the process
    for site in "BCA":
        waiting.take(site)
    assert os.fstat(file.fileno()).st_size == 0
    waiting.put(reply_of("A"))
    waiting.put(reply_of("B", 3.0))
    assert waiting.take("B").state["weight"].max() == 3


def test_a_second_reply_of_a_site_takes_the_place_of_the_first() -> None:
    waiting = Waiting(in_memory=0)
    waiting.put(reply_of("A", 1.0))
    waiting.put(reply_of("A", 2.0))
    assert waiting.take("A").state["weight"].max() == 2


def test_errors_need_no_file() -> None:
    waiting = Waiting(in_memory=0)
    waiting.put(Reply("A", error="no answer"))
    assert waiting._file is None
    assert waiting.take("A").error == "no answer"


def test_replies_are_sorted_whatever_the_order_in_which_they_come() -> None:
    sites = [f"site-{number:02d}" for number in range(12)]
    replies = [reply_of(site, float(number)) for number, site in enumerate(sites)]
    found = list(sort_replies(reversed(replies), sites))
    assert [reply.site for reply in found] == sites
    assert [float(reply.state["weight"][0, 0]) for reply in found] == list(range(12))
