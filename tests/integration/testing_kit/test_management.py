"""The management API of a broker under test: the real one, at a port that stays, and nothing of it is left."""

from __future__ import annotations

import base64
import gc
import http.client
import json
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from warren.testing import Broker

from .test_life import what_is_open


@pytest.fixture(scope="module")
def module_broker() -> Iterator[Broker]:
    with Broker(management=True) as broker:
        yield broker


def ask(broker: Broker, method: str, path: str, body: object = None, user: str = "guest:guest") -> Any:
    """Send a request as an administrator; return what the answer means."""
    headers = {"Authorization": "Basic " + base64.b64encode(user.encode()).decode()}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(broker.management_url + path, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def test_it_tells_and_changes_what_is_in_the_broker(broker: Broker) -> None:
    broker.declare_queue("by the test")
    ask(broker, "PUT", "/api/queues/%2F/over%20http", {"durable": True})
    assert broker.queue("over http").exists
    broker.publish("", "by the test", "x")
    told = {queue["name"]: queue["messages"] for queue in ask(broker, "GET", "/api/queues")}
    assert told == {"by the test": 1, "over http": 0}
    ask(broker, "POST", "/api/exchanges/%2F/amq.default/publish", published("over http"))
    assert [message.text for message in broker.queue("over http").messages()] == ["hello"]


def test_what_has_run_for_an_hour_says_so_whatever_the_system_clock_was_set_to(broker: Broker) -> None:
    before_ms = ask(broker, "GET", "/api/nodes")[0]["uptime"]
    broker.advance(3600)
    assert before_ms >= 0
    assert ask(broker, "GET", "/api/nodes")[0]["uptime"] - before_ms >= 3_600_000


def published(queue: str) -> dict[str, object]:
    return {"properties": {}, "routing_key": queue, "payload": "hello", "payload_encoding": "string"}


def test_a_user_that_it_makes_may_log_in_everywhere(broker: Broker) -> None:
    ask(broker, "PUT", "/api/users/new", {"password": "secret", "tags": "monitoring"})
    ask(broker, "PUT", "/api/permissions/%2F/new", {"configure": ".*", "write": ".*", "read": ".*"})
    url = broker.url.replace("guest:guest", "new:secret")
    pika.BlockingConnection(pika.URLParameters(url)).close()
    assert ask(broker, "GET", "/api/whoami", user="new:secret")["name"] == "new"


def test_a_reset_undoes_what_was_done_over_it(broker: Broker) -> None:
    ask(broker, "PUT", "/api/vhosts/other", {})
    ask(broker, "PUT", "/api/users/new", {"password": "secret", "tags": ""})
    ask(broker, "PUT", "/api/policies/%2F/p", {"pattern": ".*", "definition": {"max-length": 1}})
    broker.reset()
    assert [vhost["name"] for vhost in ask(broker, "GET", "/api/vhosts")] == ["/"]
    assert [user["name"] for user in ask(broker, "GET", "/api/users")] == ["guest"]
    assert ask(broker, "GET", "/api/policies") == []
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(broker, "GET", "/api/whoami", user="new:secret")
    assert refused.value.code == 401


def test_it_is_where_it_was_after_a_restart_and_away_meanwhile() -> None:
    with Broker(management=True) as broker:
        broker.declare_queue("kept")
        url = broker.management_url
        broker.crash()
        with pytest.raises(urllib.error.URLError, match="refused"):
            ask(broker, "GET", "/api/queues")
        broker.start()
        assert broker.management_url == url
        assert [queue["name"] for queue in ask(broker, "GET", "/api/queues")] == ["kept"]


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "data_dir"])
def test_exchanges_name_the_user_that_declared_them_also_after_restarts(tmp_path: Path, on_disk: bool) -> None:
    """As RabbitMQ: its own exchanges are its own, a second declaration changes nothing, nor does the user's end."""

    def shown() -> dict[str, str]:
        rows = ask(broker, "GET", "/api/exchanges/%2F")
        return {row["name"]: row["user_who_performed_action"] for row in rows}

    with Broker(data_dir=tmp_path if on_disk else None, management=True) as broker:
        ask(broker, "PUT", "/api/users/new", {"password": "secret", "tags": "management"})
        ask(broker, "PUT", "/api/permissions/%2F/new", {"configure": ".*", "write": ".*", "read": ".*"})
        url = broker.url.replace("guest:guest", "new:secret")
        with pika.BlockingConnection(pika.URLParameters(url)) as client:
            client.channel().exchange_declare("over amqp", "topic", durable=True)
            client.channel().exchange_declare("transient", "topic")
            before = shown()
        ask(broker, "PUT", "/api/exchanges/%2F/over%20http", {"type": "direct"}, user="new:secret")
        ask(broker, "PUT", "/api/exchanges/%2F/over%20http", {"type": "direct"})
        imported = {"name": "imported", "vhost": "/", "type": "x-delayed-message", "durable": True}
        file = {"exchanges": [imported | {"arguments": {"x-delayed-type": "fanout"}}]}
        ask(broker, "POST", "/api/definitions", file)
        ask(broker, "DELETE", "/api/users/new")
        assert before["transient"] == "new"
        assert {before[name] for name in before if not name or name.startswith("amq.")} == {"rmq-internal"}
        kept = {"over amqp": "new", "over http": "new", "imported": "guest"}
        for _ in range(2):
            after = shown()
            assert {name: after[name] for name in kept} == kept
            assert after["amq.topic"] == "rmq-internal"
            broker.crash()
            broker.start()


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "data_dir"])
def test_nothing_is_left_after_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_disk: bool) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Broker(data_dir=tmp_path / "first" if on_disk else None, management=True):
        pass  # files opened once in a process, by SQLite for instance, are open now
    gc.collect()
    before = what_is_open()
    with Broker(data_dir=tmp_path / "data" if on_disk else None, management=True) as broker:
        # A password that is hashed, and a file: both would need threads otherwise.
        ask(broker, "PUT", "/api/users/new", {"password": "secret", "tags": ""})
        ask(broker, "GET", "/api/overview")
    assert what_is_open() <= before
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("first", "data")] == []


def test_a_broker_without_it_says_how_to_have_it() -> None:
    with Broker() as broker:
        assert broker.management_port is None
        with pytest.raises(RuntimeError, match="management=True"):
            _ = broker.management_url


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_keeps_none_of_its_connections() -> None:
    with Broker(management=True) as broker:
        connection = http.client.HTTPConnection(broker.host, int(broker.management_port or 0), timeout=30)
        connection.request("GET", "/api/overview")
        connection.getresponse().read()
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)  # until the test is over
            os._exit(0)
        try:
            broker.stop()
            assert connection.sock.recv(1) == b""
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((broker.host, int(broker.management_port or 0)))
        finally:
            connection.close()
            os.close(writing)
            os.close(reading)
            os.waitpid(child, 0)
