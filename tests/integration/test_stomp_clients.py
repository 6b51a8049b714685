"""Clients that others have written against the real process: stomp.py of each version, plain and over a WebSocket.

stompjs is in ``compat/node``.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import pika
import pytest
import stomp
from broker_process import WarrenProcess

DEADLINE_S = 60
BEATS_MS = 4000
VERSIONS = {"1.0": stomp.Connection10, "1.1": stomp.Connection11, "1.2": stomp.Connection12}


class Heard(stomp.ConnectionListener):  # type: ignore[misc]
    """Received frames, in queues; the client has a thread of its own."""

    def __init__(self) -> None:
        self.messages: queue.Queue[Any] = queue.Queue()
        self.receipts: queue.Queue[str] = queue.Queue()
        self.errors: queue.Queue[Any] = queue.Queue()
        self.ends: queue.Queue[None] = queue.Queue()
        self.silences: queue.Queue[None] = queue.Queue()

    def on_message(self, frame: Any) -> None:
        self.messages.put(frame)

    def on_receipt(self, frame: Any) -> None:
        self.receipts.put(frame.headers["receipt-id"])

    def on_error(self, frame: Any) -> None:
        self.errors.put(frame)

    def on_disconnected(self) -> None:
        self.ends.put(None)

    def on_heartbeat_timeout(self) -> None:
        self.silences.put(None)


class Client:
    """A connection of one version, and what it has heard."""

    def __init__(self, broker: WarrenProcess, version: str, *, on_web_socket: bool = False) -> None:
        options: dict[str, Any] = {"reconnect_attempts_max": 1}
        if version != "1.0":
            options |= {"heartbeats": (BEATS_MS, BEATS_MS), "vhost": "/"}
        if on_web_socket:
            self.stomp = stomp.WSConnection(
                [("127.0.0.1", broker.stomp_ws_port)], vhost="/", ws_path="/ws", reconnect_attempts_max=1
            )
        else:
            self.stomp = VERSIONS[version]([("127.0.0.1", broker.stomp_port)], **options)
        self.version = version
        self.heard = Heard()
        self.stomp.set_listener("heard", self.heard)

    def connect(self, password: str = "guest") -> Client:
        self.stomp.connect("guest", password, wait=True)
        return self

    def subscribe(self, destination: str, number: int = 1, ack: str = "auto", **headers: str) -> None:
        self.stomp.subscribe(destination, number, ack, headers={"receipt": f"subscribed {number}", **headers})
        assert self.heard.receipts.get(timeout=DEADLINE_S) == f"subscribed {number}"

    def send(self, destination: str, body: str, **headers: str) -> None:
        """Send a message, and wait until the broker has it."""
        self.stomp.send(destination, body, headers={"receipt": body, **headers})
        assert self.heard.receipts.get(timeout=DEADLINE_S) == body

    def next(self) -> Any:
        return self.heard.messages.get(timeout=DEADLINE_S)

    def ack(self, message: Any) -> None:
        headers = message.headers
        if self.version == "1.2":
            self.stomp.ack(headers["ack"])
        elif self.version == "1.1":
            self.stomp.ack(headers["message-id"], headers["subscription"])
        else:
            self.stomp.ack(headers["message-id"])

    def close(self) -> None:
        if self.stomp.is_connected():
            self.stomp.disconnect("bye")
            assert self.heard.receipts.get(timeout=DEADLINE_S) == "bye"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    flags = dict.fromkeys(("stomp", "stomp_ws"), "127.0.0.1:0")
    with WarrenProcess(tmp_path_factory.mktemp("broker"), flags=flags) as process:
        yield process


@pytest.fixture(params=list(VERSIONS))
def client(broker: WarrenProcess, request: pytest.FixtureRequest) -> Iterator[Client]:
    made = Client(broker, request.param).connect()
    yield made
    made.close()


def left_in(broker: WarrenProcess, name: str) -> list[bytes]:
    """Take all that is in a queue, by AMQP 0-9-1."""
    found = []
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port)) as amqp:
        channel = amqp.channel()
        while (message := channel.basic_get(name, auto_ack=True))[2] is not None:
            found.append(message[2])
    return found


def test_what_is_sent_comes_with_its_headers(client: Client) -> None:
    destination = f"/queue/py sent {client.version}".replace(" ", "-")
    client.subscribe(destination)
    client.send(destination, "héllo", kind="greeting", persistent="true")
    message = client.next()
    assert message.body == "héllo"
    assert (message.headers["destination"], message.headers["kind"]) == (destination, "greeting")


def test_what_was_not_acknowledged_comes_again(broker: WarrenProcess, client: Client) -> None:
    name = f"py-unanswered-{client.version}"
    mode = "client" if client.version == "1.0" else "client-individual"
    client.subscribe(f"/queue/{name}", ack=mode)
    for body in ("one", "two"):
        client.send(f"/queue/{name}", body, persistent="true")
    assert client.next().body == "one"
    second = client.next()
    if client.version == "1.0":
        client.close()  # its acknowledgements cover what is before, too
    else:
        client.ack(second)
        client.close()
    expected = [b"one", b"two"] if client.version == "1.0" else [b"one"]
    assert left_in(broker, name) == expected


def test_a_transaction_is_whole_or_nothing(broker: WarrenProcess, client: Client) -> None:
    name = f"py-transaction-{client.version}"
    client.subscribe(f"/queue/{name}")
    for number, commits in enumerate((False, True)):
        transaction = client.stomp.begin()
        for part in ("a", "b"):
            client.stomp.send(f"/queue/{name}", f"{part}{number}", transaction=transaction)
        if commits:
            client.stomp.commit(transaction)
        else:
            client.stomp.abort(transaction)
    assert [client.next().body for _ in range(2)] == ["a1", "b1"]


def test_a_topic_reaches_all_that_subscribe(broker: WarrenProcess, client: Client) -> None:
    other = Client(broker, "1.1").connect()
    for each in (client, other):
        each.subscribe("/topic/py.news.#")
    client.send("/topic/py.news.today", client.version)
    assert client.next().body == other.next().body == client.version
    other.close()


def test_a_wrong_password_is_an_error_that_the_client_shows(broker: WarrenProcess) -> None:
    refused = Client(broker, "1.2")
    with pytest.raises(stomp.exception.ConnectFailedException):
        refused.connect("wrong")
    error = refused.heard.errors.get(timeout=DEADLINE_S)
    assert error.headers["message"]


def test_heart_beats_keep_a_silent_connection(broker: WarrenProcess) -> None:
    silent = Client(broker, "1.2").connect()
    with pytest.raises(queue.Empty):
        silent.heard.ends.get(timeout=2.5 * BEATS_MS / 1000)
    assert silent.heard.silences.empty() and silent.stomp.is_connected()
    silent.close()


def test_messages_come_over_a_web_socket(broker: WarrenProcess) -> None:
    web = Client(broker, "1.2", on_web_socket=True).connect()
    web.subscribe("/queue/py-web", ack="client-individual")
    web.send("/queue/py-web", "through HTTP")
    message = web.next()
    assert message.body == "through HTTP"
    web.ack(message)
    web.close()
    assert left_in(broker, "py-web") == []
