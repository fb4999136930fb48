"""What comes next is made while what came last is still in use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from queue import Full, Queue
from threading import Event, Thread
from typing import TypeVar

Item = TypeVar("Item")

AHEAD = 1
"""Items that wait, ready; one more is being made meanwhile."""
PATIENCE = 0.1
"""Seconds after which a full queue is tried again, in case nobody wants more."""


def prefetch(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the items, in order, while a thread makes those that follow.

    An error in the making is raised where the item would have been. The thread ends with the items, with an error, or
    as soon as the consumer stops.

    Example:
        >>> list(prefetch(iter([1, 2, 3])))
        [1, 2, 3]
    """
    queue: Queue[tuple[Item] | BaseException | None] = Queue(AHEAD)
    unwanted = Event()

    def put(content: tuple[Item] | BaseException | None) -> None:
        while not unwanted.is_set():
            with suppress(Full):
                queue.put(content, timeout=PATIENCE)
                return

    def make() -> None:
        try:
            for item in items:
                put((item,))
                if unwanted.is_set():
                    return
            put(None)
        except BaseException as error:
            put(error)

    thread = Thread(target=make, name="prefetch", daemon=True)
    thread.start()
    try:
        while (content := queue.get()) is not None:
            if isinstance(content, BaseException):
                raise content
            yield content[0]
    finally:
        unwanted.set()
        thread.join()
