"""Which values of a header that any client may have set count as a number of deliveries."""

from __future__ import annotations

from typing import Any

import pytest
from durable_harness import DurableHarness

from warren.amqp.field_table import Table, encode_table
from warren.msgstore.log.message import Envelope, Message, build_message
from warren.queues.lanes import DELAYED
from warren.queues.retry import COUNT_MAX, DELIVERY_COUNT, RETURN_COUNT, count_of


def message(headers: Table | None) -> Message:
    properties = b"\0\0" if headers is None else b"\x20\0" + encode_table(headers)
    return build_message(Envelope("", "q"), properties, b"m", 4096, True)


@pytest.mark.parametrize("count", [0, 1, 2, COUNT_MAX])
def test_a_count_is_what_the_header_says(count: int) -> None:
    assert count_of(message({"other": 9, DELIVERY_COUNT: count}), DELIVERY_COUNT) == count


@pytest.mark.parametrize("value", [True, False, -1, COUNT_MAX + 1, "3", b"3", 3.0, None, [3], {"x": 3}])
def test_other_values_are_no_count(value: object) -> None:
    assert count_of(message({RETURN_COUNT: value}), RETURN_COUNT) == 0


@pytest.mark.parametrize("headers", [None, {}, {"other": 9}, {RETURN_COUNT: 9}, {"other": DELIVERY_COUNT}])
def test_without_the_header_there_was_none(headers: Table | None) -> None:
    assert count_of(message(headers), DELIVERY_COUNT) == 0


@pytest.mark.parametrize("mode", [None, 1, 2])
@pytest.mark.parametrize("headers", [None, {DELIVERY_COUNT: 3}])
def test_a_quorum_queue_stores_all_whatever_their_mode(mode: int | None, headers: Table | None) -> None:
    harness = DurableHarness()
    client = harness.channel()
    client.declare("q", durable=True, arguments={"x-queue-type": "quorum"})
    properties: dict[str, Any] = {} if mode is None else {"delivery_mode": mode}
    client.publish("", "q", b"m", headers=None if headers is None else encode_table(headers), **properties)
    harness.write()
    harness = harness.restart(clean=False)
    got = harness.channel().get("q")
    assert got is not None and got.content is not None
    assert got.content.properties.delivery_mode == mode, "as it was published"


def test_a_return_with_a_delay_comes_back_at_once_while_the_disk_is_short() -> None:
    """As a counted one does: nothing would be stored again, and the message is on the disk already."""
    harness = DurableHarness()
    client = harness.channel()
    client.declare("q", durable=True)
    client.publish("", "q", b"m", delivery_mode=2)
    harness.write()
    got = client.get("q")
    assert got is not None
    queue = harness.plain_queue("q")
    log = harness.broker.log
    log.own.disk_is_short = True
    delivery = client.connection.channels[1].ledger.take(1, False)
    queue.requeue(delivery[0], delay_ms=1000)
    assert (queue.ready_count, queue.held(DELAYED)) == (1, None) and log.batch.row_bytes == 0
    log.own.disk_is_short = False
    again = queue.ready.take_next()
    queue.ready.put_back(again, queue.ready.next_place)
    assert again.body() == b"m" and queue.ready.next_redelivered
