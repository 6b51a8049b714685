"""Transfers over a real engine: how much of a queue they look at in one turn."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from engine_harness import Harness
from peer_frames import USER

from warren.engine_view.engine_view import EngineView
from warren.mgmt_plugin.resources.browsing import Filter
from warren.mgmt_plugin.resources.transfers import (
    DONE,
    PIECE_BYTES,
    PIECE_COPIES,
    PIECE_MESSAGES,
    Destination,
    Transfer,
)


def pieces_of(
    monkeypatch: pytest.MonkeyPatch, harness: Harness, count: int, destination: Destination, rate: int | None = None
) -> list[int]:
    """Move `count` messages out of `q`; return how many were asked for in each turn."""
    view = EngineView(harness.broker, harness.settle)
    pieces: list[int] = []
    look = view.browsing.look

    def looked(queue: Any, cursor: Any, wanted: int, told: Any) -> None:
        pieces.append(wanted)
        look(queue, cursor, wanted, told)

    monkeypatch.setattr(view.browsing, "look", looked)
    queue: Any = harness.queue("q")
    passes = Filter(body=b"needle")
    transfer = Transfer("1", "/", "q", queue, destination, True, passes, False, count, rate, count, USER, 0)
    trio.run(transfer.run, view, clock=trio.testing.MockClock(autojump_threshold=0))
    assert (transfer.state, transfer.transferred) == (DONE, count)
    return pieces


@pytest.mark.parametrize(
    ("count", "size", "rate", "most"),
    [(12, PIECE_BYTES // 4, None, 4), (3, PIECE_BYTES * 2, None, 1), (150, 10, None, PIECE_MESSAGES), (9, 10, 2, 2)],
)
def test_a_piece_has_fewer_messages_if_they_are_large(
    monkeypatch: pytest.MonkeyPatch, count: int, size: int, rate: int | None, most: int
) -> None:
    """Their bodies are searched in the engine's turn, in which nobody else is served."""
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    client.declare("to")
    for _ in range(count):
        client.publish("", "q", bytes(size - 6) + b"needle")
    assert max(pieces_of(monkeypatch, harness, count, Destination("", "to", {}), rate)) == most
    assert harness.queue("to").ready_count == count


def test_a_piece_has_fewer_messages_if_each_goes_to_many_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    client.declare_exchange("x", "fanout")
    width = 2 * PIECE_COPIES // PIECE_MESSAGES
    for number in range(width):
        client.declare(f"to {number}")
        client.bind(f"to {number}", "x", "")
    for _ in range(PIECE_MESSAGES):
        client.publish("", "q", b"needle")
    pieces = pieces_of(monkeypatch, harness, PIECE_MESSAGES, Destination("x", None, {}))
    assert pieces[0] == 1 and max(pieces) == PIECE_COPIES // width
    assert harness.queue("to 0").ready_count == PIECE_MESSAGES
