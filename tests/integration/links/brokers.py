"""Both kinds of brokers as processes with one face, and pika to fill and empty their queues.

RabbitMQ runs with the plugins that links talk to (management, shovel, federation), on ports of its own, in a
directory of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import pika
import pytest
from broker_process import WarrenProcess, wait_until
from compat.broker import in_ci
from free_ports import free_port
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
DEADLINE_S = 60.0
RABBITMQ_START_S = 180.0


class BrokerProcess(Protocol):
    """A broker that can be killed and started again, and keeps its port."""

    @property
    def amqp_port(self) -> int: ...

    def start(self) -> None: ...

    def kill(self) -> None: ...


class RabbitProcess:
    """RabbitMQ in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._amqp_port, self._http_port = free_port(), free_port()
        self._epmd_port, self._dist_port = free_port(), free_port()
        self._epmd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True)
        plugins = "[rabbitmq_management,rabbitmq_shovel,rabbitmq_shovel_management,rabbitmq_federation]."
        (directory / "enabled_plugins").write_text(plugins)
        (directory / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self._amqp_port}\n"
            f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {self._http_port}\n"
        )
        self._environment = {
            **os.environ,
            "HOME": str(directory),
            "RABBITMQ_NODENAME": f"links{self._amqp_port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": str(directory / "rabbitmq-env.conf"),
            "RABBITMQ_PID_FILE": str(directory / "pid"),
            # Two processors are shared with the other broker and the test.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

    @property
    def amqp_port(self) -> int:
        return self._amqp_port

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        with (self.directory / "output.log").open("ab") as output:
            if self._epmd is None:
                epmd = shutil.which("epmd") or "epmd"
                self._epmd = subprocess.Popen([epmd], env=self._environment, stdout=output, stderr=output)
            self._server = subprocess.Popen(
                [str(PROGRAM)], env=self._environment, stdout=output, stderr=output, start_new_session=True
            )
        wait_until(self._is_serving, "RabbitMQ to take connections", RABBITMQ_START_S)

    def _is_serving(self) -> bool:
        assert self._server is not None
        assert self._server.poll() is None, (self.directory / "output.log").read_text()[-3000:]
        try:
            connect(self).close()
            self.api("GET", "overview")
        except (AMQPError, OSError, urllib.error.URLError):
            return False
        return True

    def kill(self) -> None:
        """End the whole process group at once."""
        if self._server is not None and self._server.poll() is None:
            os.killpg(self._server.pid, signal.SIGKILL)
            self._server.wait()

    def end(self) -> None:
        """Kill it and its port mapper."""
        self.kill()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()

    def api(self, method: str, path: str, body: object = None) -> Any:
        """Call the management API."""
        request = urllib.request.Request(f"http://127.0.0.1:{self._http_port}/api/{path}", method=method)
        request.add_header("Authorization", "Basic " + b64encode(b"guest:guest").decode())
        request.add_header("Content-Type", "application/json")
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(request, data, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None


def rabbitmq_or_skip() -> None:
    """Skip where RabbitMQ is not installed; fail where it has to be."""
    if not PROGRAM.exists():
        assert not in_ci(), "CI has to have rabbitmq-server"
        pytest.skip("rabbitmq-server is not installed")


def uri(broker: BrokerProcess) -> str:
    """Return where to reach it, credentials included."""
    return f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/%2f?heartbeat=5&connection_timeout=5000"


def connect(broker: BrokerProcess) -> pika.BlockingConnection:
    """Connect with pika."""
    parameters = pika.ConnectionParameters("127.0.0.1", broker.amqp_port, heartbeat=0, socket_timeout=30)
    return pika.BlockingConnection(parameters)


def fill(broker: BrokerProcess, queue: str, bodies: Iterable[bytes], **properties: Any) -> None:
    """Publish persistent messages into a durable queue, confirmed."""
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, **properties), mandatory=True)
    connection.close()


def length(broker: BrokerProcess, queue: str) -> int:
    """Return how many messages are ready; -1 if the queue does not exist."""
    connection = connect(broker)
    try:
        count: int = connection.channel().queue_declare(queue, passive=True).method.message_count
        return count
    except pika.exceptions.ChannelClosedByBroker:
        return -1
    finally:
        connection.close()


def drain(broker: BrokerProcess, queue: str) -> list[tuple[Any, Any, bytes]]:
    """Take and return all ready messages."""
    connection = connect(broker)
    try:
        channel: BlockingChannel = connection.channel()
        taken: list[tuple[Any, Any, bytes]] = []
        while True:
            method, properties, body = channel.basic_get(queue, auto_ack=True)
            if method is None or body is None:
                return taken
            taken.append((method, properties, body))
    finally:
        connection.close()


def bodies(broker: BrokerProcess, queue: str) -> list[bytes]:
    """Take all ready messages and return their bodies."""
    return [body for _, _, body in drain(broker, queue)]


def wait_for(condition: Any, what: str) -> None:
    """Poll until it holds; the other broker may be just starting."""

    def holds() -> bool:
        try:
            return bool(condition())
        except (AMQPError, OSError):
            return False

    wait_until(holds, what, DEADLINE_S)


__all__ = [
    "BrokerProcess",
    "RabbitProcess",
    "WarrenProcess",
    "bodies",
    "connect",
    "drain",
    "fill",
    "length",
    "rabbitmq_or_skip",
    "uri",
    "wait_for",
]
