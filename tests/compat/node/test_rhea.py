"""Node's rhea, an AMQP 1.0 client: one run over thousands of messages, judged by the JSON it prints."""

from __future__ import annotations

import uuid

import pika
import pytest

from ..broker import Broker
from .conftest import RunNode


def test_rhea_sends_thousands_of_messages_and_receives_them(broker: Broker, run_node: RunNode) -> None:
    if not broker.started_here:
        pytest.skip("the scenario is for the user guest of a broker of its own")
    queue = f"rhea-{uuid.uuid4().hex[:8]}"
    with pika.BlockingConnection(broker.parameters()) as connection:
        connection.channel().queue_declare(queue, durable=True)
        given = {"AMQP_HOST": broker.host, "AMQP_PORT": str(broker.port), "QUEUE": queue}
        told = run_node(["rhea.js"], given)
        left = connection.channel().queue_delete(queue).method.message_count
    assert told == {
        "product": "RabbitMQ",
        "accepted": 5000,
        "released": 1,
        "bodies": [["message 1", 1, True], ["message 2", 2, True], ["message 3", 3, True]],
        "redelivered": [True, False],
        "total": 5000,
    }
    assert left == 0
