"""Where reading begins: what each kind of start means, and what becomes of a search while the stream changes.

In parentheses: the invariants in the header of ``streams/offset_search.py``.
"""

from __future__ import annotations

import pytest
from engine import START_MS
from sealing_stream import CHUNK, Sealing

from warren.amqp import methods as m
from warren.streams.consumer import AT_FIRST, AT_LAST, AT_NEXT, AT_OFFSET, AT_TIME, Start
from warren.streams.offset_search import find


def found(s: Sealing, kind: int, value: int = 0) -> list[int]:
    told: list[int] = []
    find(s.stream, Start(kind, value), told.append)
    s.harness.settle()
    return told


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("count", [0, 1, CHUNK + 3])
def test_first_last_and_next_are_told(count: int, is_restarted: bool) -> None:
    s = Sealing()
    s.publish(count)
    if is_restarted:
        s.restart(clean=False)
    assert found(s, AT_FIRST) == [0]
    assert found(s, AT_LAST) == [max(count - 1, 0)]
    assert found(s, AT_NEXT) == [count]


def test_an_offset_means_itself_whether_it_exists_or_not() -> None:
    s = Sealing()
    s.publish(3)
    assert [found(s, AT_OFFSET, offset) for offset in (0, 2, 3, 1 << 40)] == [[0], [2], [3], [1 << 40]]


@pytest.mark.parametrize("chunk", [CHUNK, 1000])
def test_a_time_means_the_first_message_that_is_not_older(chunk: int) -> None:
    """(1): in sealed chunks, in the log and in the tail."""
    s = Sealing(chunk=chunk)
    for _ in range(35):
        s.publish()
        s.harness.pass_time(2)
    s.restart(clean=True)
    for _ in range(5):
        s.publish()
        s.harness.pass_time(2)
    for offset, time_ms in enumerate(s.times):
        assert found(s, AT_TIME, time_ms) == [offset]
        assert found(s, AT_TIME, time_ms + 1) == [offset + 1]
    assert found(s, AT_TIME, START_MS - 1) == [0]


@pytest.mark.parametrize("chunk", [CHUNK, 1000])
def test_nothing_is_told_once_the_stream_is_deleted(chunk: int) -> None:
    """(3)"""
    s = Sealing(chunk=chunk)
    for _ in range(40):
        s.publish()
        s.harness.pass_time(1)
    s.restart(clean=True)
    told: list[int] = []
    stream = s.stream
    s.harness.store.hold = True
    find(s.stream, Start(AT_TIME, s.times[12]), told.append)
    s.publisher.send(1, m.QueueDelete(0, "s", if_unused=False, if_empty=False, no_wait=False))
    assert stream.deleted
    s.harness.store.hold = False
    s.harness.settle()
    assert told == []
