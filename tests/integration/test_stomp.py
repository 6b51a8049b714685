"""STOMP on the real process: on bare sockets, TLS and WebSockets, listed and closed, with AMQP beside it."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest
from broker_process import WarrenProcess
from stomp_harness import Reply, frame, maybe_first_frame
from web_socket_peer import WebSocketOn

from .certificates import Authority
from .management.client import Api


class StompSocket:
    """A client on a socket."""

    def __init__(self, sock: socket.socket | WebSocketOn) -> None:
        self._sock = sock
        self._received = b""
        sock.settimeout(30)

    def send(self, command: str, body: bytes = b"", /, **headers: Any) -> None:
        self._sock.sendall(frame(command, headers, body))

    def take(self) -> Reply:
        """Return the next frame; EOFError without one."""
        while (first := maybe_first_frame(self._received)) is None:
            self._receive()
        reply, self._received = first
        return reply

    def _receive(self) -> None:
        data = self._sock.recv(65536)
        if not data:
            raise EOFError
        self._received += data

    def connect(self) -> Reply:
        self.send("CONNECT", accept_version="1.2", host="/", login="guest", passcode="guest")
        return self.take()

    def close(self) -> None:
        self._sock.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "Warren test authority")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[WarrenProcess]:
    server = authority.issue("/CN=server", "DNS:localhost")
    directory: Path = tmp_path_factory.mktemp("broker")
    flags = dict.fromkeys(("stomp", "stomps", "stomp_ws", "stomp_wss"), "127.0.0.1:0")
    tls: dict[str, object] = {"tls.certificate": server.certificate, "tls.private_key": server.key}
    with WarrenProcess(directory, flags=flags, settings=tls) as process:
        yield process


@pytest.fixture(params=["", "s", "_ws", "_wss"], ids=["plain", "TLS", "WebSocket", "WebSocket-TLS"])
def client(broker: WarrenProcess, authority: Authority, request: pytest.FixtureRequest) -> Iterator[StompSocket]:
    way = request.param
    is_tls = way in ("s", "_wss")
    sock = socket.create_connection(("127.0.0.1", getattr(broker, f"stomp{way}_port")))
    if is_tls:
        context = ssl.create_default_context(cafile=authority.certificate)
        sock = context.wrap_socket(sock, server_hostname="localhost")
    made = StompSocket(WebSocketOn(sock, "v12.stomp", as_text=not is_tls) if "ws" in way else sock)
    assert made.connect().command == "CONNECTED"
    yield made
    made.close()


def test_messages_pass_between_stomp_and_amqp(broker: WarrenProcess, client: StompSocket) -> None:
    client.send("SUBSCRIBE", destination="/queue/passing", id="0", receipt="subscribed")
    assert client.take().command == "RECEIPT"
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port)) as amqp:
        amqp.channel().basic_publish("", "passing", b"x" * 500_000)
        message = client.take()
    assert message.command == "MESSAGE" and message.body == b"x" * 500_000
    client.send("SEND", b"y" * 500_000, destination="/queue/other", persistent="true", receipt="stored")
    assert client.take().headers == {"receipt-id": "stored"}
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port)) as amqp:
        assert amqp.channel().basic_get("other", auto_ack=True)[2] == b"y" * 500_000


def test_a_subscription_is_not_cancelled_from_outside(broker: WarrenProcess, client: StompSocket) -> None:
    client.send("SUBSCRIBE", destination="/queue/kept", id="0", receipt="subscribed")
    assert client.take().command == "RECEIPT"
    api = Api(broker.http_port)
    (row,) = api.eventually("/consumers/%2F?queue=kept", lambda rows: rows if len(rows) == 1 else None)
    channel = row["channel_details"]
    segments = (channel["connection_name"], str(channel["number"]), row["consumer_tag"])
    path = "/consumers/%2F/" + "/".join(quote(each, safe="") for each in segments)
    status, _, reason = api.ask("DELETE", path).refusal
    assert (status, reason) == (
        400,
        "clients of this protocol cannot be notified of that; close the connection instead",
    )
    assert len(api.get("/consumers/%2F?queue=kept")) == 1
    api.close()


def test_a_connection_is_listed_with_its_protocol_and_closed(broker: WarrenProcess, client: StompSocket) -> None:
    api = Api(broker.http_port)
    (row,) = api.eventually("/connections", lambda rows: rows if len(rows) == 1 else None)  # others are going
    assert row["protocol"] in ("STOMP 1.2", "Web STOMP 1.2")
    assert (row["user"], row["channels"]) == ("guest", 1)
    (channel,) = api.get("/channels")
    assert channel["connection_details"]["name"] == row["name"]
    assert {"amqp", "stomp", "stomp/ssl", "http/web-stomp", "https/web-stomp"} <= {
        each["protocol"] for each in api.get("/overview")["listeners"]
    }
    closed = api.ask("DELETE", f"/connections/{quote(row['name'], safe='')}", headers={"X-Reason": "enough"})
    assert closed.status == 204
    api.close()
    reply = client.take()
    assert reply.command == "ERROR" and b"enough" in reply.body
    with pytest.raises(EOFError):
        client.take()


def test_what_has_a_receipt_is_there_after_a_kill(tmp_path: Path) -> None:
    with WarrenProcess(tmp_path, flags={"stomp": "127.0.0.1:0"}) as process:
        client = StompSocket(socket.create_connection(("127.0.0.1", process.stomp_port)))
        client.connect()
        for number in range(20):
            body = json.dumps(number).encode()
            client.send("SEND", body, destination="/queue/kept", persistent="true", receipt=str(number))
        receipts = [client.take() for _ in range(20)]
        assert [reply.headers["receipt-id"] for reply in receipts] == [str(number) for number in range(20)]
        process.kill()
        client.close()
        process.start()
        client = StompSocket(socket.create_connection(("127.0.0.1", process.stomp_port)))
        client.connect()
        client.send("SUBSCRIBE", destination="/queue/kept", id="0")
        assert [json.loads(client.take().body) for _ in range(20)] == list(range(20))
        client.close()
