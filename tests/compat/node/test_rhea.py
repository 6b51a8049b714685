"""Node's rhea, an AMQP 1.0 client: one run over thousands of messages, judged by the JSON it prints."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from pathlib import Path

import pika
import pytest

from ..broker import DEADLINE_S, Broker
from .test_amqplib import node_modules  # noqa: F401 - a fixture

HERE = Path(__file__).parent


def test_rhea_sends_thousands_of_messages_and_receives_them(broker: Broker, node_modules: Path) -> None:  # noqa: F811
    node = shutil.which("node")
    assert node is not None  # `node_modules` has asked for npm
    if not broker.started_here:
        pytest.skip("the scenario is for the user guest of a broker of its own")
    queue = f"rhea-{uuid.uuid4().hex[:8]}"
    with pika.BlockingConnection(broker.parameters()) as connection:
        connection.channel().queue_declare(queue, durable=True)
        given = {"AMQP_HOST": broker.host, "AMQP_PORT": str(broker.port), "QUEUE": queue}
        environment = os.environ | given | {"NODE_PATH": str(node_modules)}
        command = [node, str(HERE / "rhea.js")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
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
