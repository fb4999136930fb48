import threading
from collections.abc import Iterator

import pytest

from harmofl.data.prefetch import AHEAD, prefetch


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def test_items_come_in_order_and_the_thread_ends_with_them() -> None:
    assert list(prefetch(iter(range(100)))) == list(range(100))
    assert not threads()


def test_items_are_made_while_others_are_in_use_but_not_far_ahead() -> None:
    made: list[int] = []
    enough = threading.Event()

    def numbers() -> Iterator[int]:
        for number in range(10):
            made.append(number)
            if number == 1 + AHEAD:
                enough.set()
            yield number

    items = prefetch(numbers())
    assert next(items) == 0
    assert enough.wait(10)  # one waits, and the next is in the making, though nobody has asked
    assert len(made) <= 2 + AHEAD
    assert list(items) == list(range(1, 10))


def test_items_are_made_in_another_thread() -> None:
    assert list(prefetch(threading.current_thread().name for _ in range(2))) == ["prefetch", "prefetch"]


def test_an_error_is_raised_where_the_item_would_have_been() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise OSError("image 2 is gone")

    items = prefetch(broken())
    assert next(items) == 1
    with pytest.raises(OSError, match="image 2 is gone"):
        next(items)
    assert not threads()


def test_the_thread_ends_when_the_consumer_stops_early() -> None:
    items = prefetch(iter(range(10**9)))
    assert [next(items), next(items)] == [0, 1]
    items.close()  # type: ignore[attr-defined]
    assert not threads()


def test_the_thread_ends_when_the_consumer_fails() -> None:
    def consume() -> None:
        for number in prefetch(iter(range(10**9))):
            1 // number

    with pytest.raises(ZeroDivisionError):
        consume()
    assert not threads()
