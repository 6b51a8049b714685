"""Messages got over HTTP, over a real engine: none is lost before there is an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing
from engine_harness import Harness
from peer_frames import USER

from warren.engine_view.engine_view import EngineView
from warren.mgmt_plugin.http.server import HANDLER_TIMEOUT_S, Request
from warren.mgmt_plugin.operators import Operator
from warren.mgmt_plugin.resources.messages import ACK_MODES, MessageHandlers
from warren.mgmt_plugin.routes import Acting, Call
from warren.server.direct_clients import DirectClient, DirectClients, Got


class Slow(DirectClient):
    """A client for which the disk reads `most` messages and no more."""

    most = 0

    async def get(self, queue: str, *, no_ack: bool) -> Got | None:
        if self.most == 0:
            await trio.sleep_forever()
        self.most -= 1
        return await super().get(queue, no_ack=no_ack)


class SlowClients(DirectClients):
    def __init__(self, harness: Harness, most: int) -> None:
        super().__init__(harness.broker.open_direct, harness.settle)
        self._harness = harness
        self._most = most

    def open(self, user: str, vhost: str) -> DirectClient:
        client = Slow(self._harness.broker.open_direct(user, vhost), self._harness.settle)
        client.most = self._most
        return client


async def _unused(*_: Any) -> None:
    raise AssertionError


def get(harness: Harness, ackmode: str, *, most: int) -> list[str]:
    """Return the bodies of the answer for ten messages of `q`; the server cancels what takes too long."""

    async def body(limit_bytes: int, look: object = None) -> bytes:
        return json.dumps({"ackmode": ackmode, "count": 10, "encoding": "auto"}).encode()

    async def main() -> list[str]:
        view = EngineView(harness.broker, harness.settle)
        request = Request("POST", "/", "", {}, "127.0.0.1", False, body)
        operator = Operator(USER, ("administrator",), view.permissions)
        acting = Acting(SlowClients(harness, most), _unused)
        call = Call(request, {"vhost": "/", "queue": "q"}, operator, view.vhosts, acting)
        with trio.move_on_after(HANDLER_TIMEOUT_S):
            return [str(each["payload"]) for each in await MessageHandlers(view, 1 << 20).get_messages(call)]
        return []

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.fixture
def filled() -> Harness:
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    for body in (b"1", b"2", b"3"):
        client.publish("", "q", body)
    return harness


@pytest.mark.parametrize("ackmode", ACK_MODES)
def test_a_request_that_is_cancelled_takes_nothing(filled: Harness, ackmode: str) -> None:
    assert get(filled, ackmode, most=2) == []
    queue = filled.queue("q")
    assert (queue.ready_count, queue.unacked_count) == (3, 0)


@pytest.mark.parametrize(
    ("ackmode", "left"),
    [("ack_requeue_true", 3), ("ack_requeue_false", 0), ("reject_requeue_true", 3), ("reject_requeue_false", 0)],
)
def test_an_answer_settles_what_is_in_it(filled: Harness, ackmode: str, left: int) -> None:
    assert get(filled, ackmode, most=10) == ["1", "2", "3"]
    queue = filled.queue("q")
    assert (queue.ready_count, queue.unacked_count) == (left, 0)
