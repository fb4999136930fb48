"""A site's process lives on, whatever happens to a message or to the SuperNode beside it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

pytest.importorskip("flwr", reason="harmofl[flower] is not installed")

from harmofl.deployment.flower.site import Node
from harmofl.deployment.kits import Federation, SiteKit, SiteSettings


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Any]:
    federation = Federation(engine="flower", server="localhost:1", sites=["A"])
    node: Any = Node(SiteKit(tmp_path, federation, SiteSettings(name="A", data="synthetic", tasks=["nuclei"])))
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        node._child = SimpleNamespace(process=process)
        yield node
        process.kill()


def inbox(error: Exception | None) -> Any:
    def answer_one(answer: Any) -> bool:
        if error:
            raise error
        return True

    return SimpleNamespace(answer_one=answer_one)


def test_without_a_supernode_there_are_no_messages(node: Any) -> None:
    assert not node.answer_one(bytes)


def test_a_message_is_answered(node: Any) -> None:
    node._inbox = inbox(None)
    assert node.answer_one(bytes)


def test_a_supernode_that_is_just_being_started_is_left_alone(node: Any) -> None:
    node._inbox = inbox(httpx.ConnectError("not yet"))
    assert not node.answer_one(bytes)
    assert node._child.process.poll() is None


@pytest.mark.parametrize("error", [httpx.ReadTimeout("late"), RuntimeError("no message"), KeyError("anything")])
def test_a_supernode_that_waits_for_the_rest_of_an_answer_is_started_again(node: Any, error: Exception) -> None:
    node._inbox = inbox(error)
    assert not node.answer_one(bytes)
    assert node._child.process.wait(10) != 0
    assert node._inbox is None
