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
from warren.mgmt_plugin.resources.transfers import DONE, PIECE_BYTES, PIECE_MESSAGES, Destination, Transfer


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
    view = EngineView(harness.broker, harness.settle)
    pieces: list[int] = []
    look = view.browsing.look

    def looked(queue: Any, cursor: Any, wanted: int, told: Any) -> None:
        pieces.append(wanted)
        look(queue, cursor, wanted, told)

    monkeypatch.setattr(view.browsing, "look", looked)
    queue: Any = harness.queue("q")
    transfer = Transfer(
        "1", "/", "q", queue, Destination("", "to", {}), True, Filter(body=b"needle"), False, count, None,
        count, USER, 0,
    )  # fmt: skip
    if rate is not None:
        transfer.rate = rate
    trio.run(transfer.run, view, clock=trio.testing.MockClock(autojump_threshold=0))
    assert (transfer.state, transfer.transferred, harness.queue("to").ready_count) == (DONE, count, count)
    assert max(pieces) == most
