"""Clients of all protocols, users, vhosts, policies and links come, grow old and go: no object of Warren stays.

In a round each protocol has clients that live over a collection of young objects, so that a cycle which they leave is
in the generation that the broker looks at last (``server/cyclic_collector.py``). Half of them leave without a word.
``WARREN_TEST_CHURN_ROUNDS`` sets the number of rounds (`make churn`: 80).
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pika
import pytest
from amqp10_harness import Amqp10Client
from amqp10_harness import message as amqp10_message
from broker_process import WarrenProcess, wait_until
from mqtt_harness import connect_packet, publish_packet
from mqtt_socket import MqttSocket, subscribe
from stomp_harness import frame as stomp_frame
from stomp_harness import maybe_first_frame
from web_socket_peer import WebSocketOn

from warren.amqp10.performatives import AMQP_HEADER, CLOSE, OPEN
from warren.amqp10.values import UInt

from .management.client import EVERYTHING, Api, connect, q

WARM_ROUNDS = 3
# The last change of the metadata and the last checkpoint are remembered until the next one. A leak leaves more.
LAST_OF_A_KIND = 1
# SQLAlchemy keeps each form of a statement once it is compiled, at most 500. Which forms are needed, for one row or for
# several, depends on how many changes the writer of the catalogue finds together.
STATEMENTS = ("sqlalchemy.", "operator.attrgetter")
ROUNDS = int(os.environ.get("WARREN_TEST_CHURN_ROUNDS", "4"))
PROTOCOLS = ("mqtt", "stomp", "amqp_ws", "mqtt_ws", "stomp_ws")


class Amqp10Socket(Amqp10Client):
    """A client of AMQP 1.0 on a socket: each action waits for an answer."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.next_id = 0

    def raw(self, data: bytes, *, settle: bool = True) -> bytes:
        self.sock.sendall(data)
        came = b""
        while not is_whole(came):
            more = self.sock.recv(65536)
            if not more:
                raise EOFError
            came += more
        return came


def is_whole(data: bytes) -> bool:
    at = 0
    while at + 8 <= len(data):
        at += 8 if data[at : at + 4] == b"AMQP" else int.from_bytes(data[at : at + 4], "big")
    return at == len(data) > 0


class Place:
    """A broker that counts, and a vhost with a user of its own for each round."""

    def __init__(self, process: WarrenProcess, path: Path) -> None:
        self.process = process
        self.api = Api(process.http_port)
        self._path = str(path)

    def tell(self, command: str) -> Counter[str]:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(self._path)
            sock.sendall(command.encode())
            answer = b""
            while data := sock.recv(65536):
                answer += data
        return Counter(json.loads(answer))

    def play(self, number: int) -> None:
        """One round."""
        api, vhost, user = self.api, f"vhost {number}", f"user {number}"
        v, u = q(vhost), q(user)
        api.put(f"/vhosts/{v}")
        api.put(f"/users/{u}", {"password": "x", "tags": "administrator"})
        api.put(f"/permissions/{v}/{u}", EVERYTHING)
        api.put(f"/topic-permissions/{v}/{u}", {"exchange": "amq.topic", "write": ".*", "read": ".*"})
        api.put(f"/policies/{v}/p", {"pattern": "^q", "definition": {"max-length": 1000}, "apply-to": "queues"})
        api.put(f"/operator-policies/{v}/p", {"pattern": "^q", "definition": {"expires": 10**7}, "apply-to": "queues"})
        api.put(f"/vhost-limits/{v}/max-queues", {"value": 1000})
        api.put(f"/user-limits/{u}/max-channels", {"value": 1000})
        with ExitStack() as stack:
            own = Api(self.process.http_port, user, "x")
            stack.callback(own.close)
            amqp = connect(self.process.amqp_port, vhost, user, "x")
            stack.callback(amqp.close)
            self._amqp(amqp)
            self._shovel(v)
            closing = number % 2 == 0
            for way in ("", "_ws"):
                for version in (4, 5):
                    self._mqtt(stack, way, version, f"{vhost}:{user}", leave=closing)
                self._stomp(stack, way, vhost, user, leave=not closing)
            self._amqp10(stack, vhost, user, leave=closing)
            begun = socket.create_connection(("127.0.0.1", self.process.amqp_ws_port), timeout=30)
            web = WebSocketOn(begun, "amqp")
            stack.callback(web.close)
            web.sendall(b"AMQP\0\0\x09\x01")
            assert web.recv(1000)
            for path in ("whoami", "overview", f"queues/{v}", f"exchanges/{v}", f"connections?page=1&vhost={v}"):
                own.get(f"/{path}")
            self.tell("age")
        api.delete(f"/parameters/shovel/{v}/s")
        api.delete(f"/policies/{v}/p")
        api.delete(f"/users/{u}")
        api.delete(f"/vhosts/{v}")
        api.eventually("/connections", lambda rows: rows == [])

    def _amqp(self, amqp: pika.BlockingConnection) -> None:
        channel = amqp.channel()
        channel.confirm_delivery()
        channel.exchange_declare("x", "topic")
        channel.queue_declare("q", durable=True)
        channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
        for queue in ("q", "s"):
            channel.queue_bind(queue, "x", "#")
        got: list[bytes] = []
        reader = amqp.channel()
        reader.basic_qos(prefetch_count=10)

        def take(of: Any, method: Any, _properties: object, body: bytes) -> None:
            got.append(body)
            of.basic_ack(method.delivery_tag)

        reader.basic_consume("q", take)
        reader.basic_consume("s", take, arguments={"x-stream-offset": "first"})
        transacted = amqp.channel()
        transacted.tx_select()
        transacted.basic_publish("x", "k", b"committed")
        transacted.tx_commit()
        transacted.basic_publish("x", "k", b"left")
        for _ in range(3):
            channel.basic_publish("x", "k", b"m", pika.BasicProperties(delivery_mode=2, headers={"a": 1}))
        while len(got) < 8:
            amqp.process_data_events(1)

    def _shovel(self, v: str) -> None:
        local = f"amqp:///{v}"
        value = {"src-uri": local, "src-queue": "q", "dest-uri": local, "dest-queue": "moved", "reconnect-delay": 1}
        self.api.put(f"/parameters/shovel/{v}/s", {"value": value})
        self.api.eventually(f"/shovels/{v}", lambda rows: [row["state"] for row in rows] == ["running"])

    def _socket(self, protocol: str, way: str) -> socket.socket | WebSocketOn:
        sock = socket.create_connection(("127.0.0.1", getattr(self.process, f"{protocol}{way}_port")), timeout=30)
        return WebSocketOn(sock, "mqtt" if protocol == "mqtt" else "v12.stomp") if way else sock

    def _mqtt(self, stack: ExitStack, way: str, version: int, user: str, *, leave: bool) -> None:
        client = MqttSocket(self._socket("mqtt", way))
        stack.callback(client.close)
        will = ("gone", b"bye", 1, True)
        name = f"c{version}{way}"
        options = {"user": user, "password": "x", "will": will, "clean": version == 5}
        assert client.call(connect_packet(version, name, **options)).kind == 2  # type: ignore[arg-type]
        if version == 4:
            for qos in range(3):
                client.send(subscribe(f"{name}/{qos}/#", qos))
        client.send(publish_packet(f"{name}/1/a", b"kept", 1, version=version, retain=True))
        while client.take().kind != 4:
            pass
        if leave:
            stack.callback(client.send, b"\xe0\x00")

    def _stomp(self, stack: ExitStack, way: str, vhost: str, user: str, *, leave: bool) -> None:
        sock = self._socket("stomp", way)
        stack.callback(sock.close)

        def call(command: str, body: bytes = b"", **headers: str) -> str:
            sock.sendall(stomp_frame(command, headers, body))
            came = b""
            while (first := maybe_first_frame(came)) is None:
                data = sock.recv(65536)
                assert data, "the broker has ended the connection"
                came += data
            return first[0].command

        assert call("CONNECT", accept_version="1.2", host=vhost, login=user, passcode="x") == "CONNECTED"
        assert call("SUBSCRIBE", id="1", destination="/queue/st", ack="client", receipt="1") == "RECEIPT"
        assert call("BEGIN", transaction="t", receipt="2") == "RECEIPT"
        assert call("SEND", b"m", destination="/topic/st", transaction="t", receipt="3") == "RECEIPT"
        if leave:
            stack.callback(sock.sendall, stomp_frame("DISCONNECT"))

    def _amqp10(self, stack: ExitStack, vhost: str, user: str, *, leave: bool) -> None:
        client = Amqp10Socket(self.process.amqp_port)
        stack.callback(client.sock.close)
        client.login(user, "x")
        assert client.raw(AMQP_HEADER) == AMQP_HEADER
        assert client.send(OPEN, ["client", f"vhost:{vhost}", UInt(131072), None, None])[0].name == "open"
        client.begin()
        client.sender(0, "/queues/moved")
        client.receiver(1, "/queues/moved")
        client.transfer(0, amqp10_message(b"one"))
        client.credit(1, 2)
        if leave:
            stack.callback(client.send, CLOSE, [])


@pytest.mark.parametrize("rounds", [ROUNDS])
def test_what_came_over_any_protocol_and_grew_old_leaves_no_object(tmp_path: Path, rounds: int) -> None:
    path = tmp_path / "counts"
    flags = dict.fromkeys(PROTOCOLS, "127.0.0.1:0")
    wrapper = [sys.executable, str(Path(__file__).with_name("counted_broker.py")), str(path)]
    with WarrenProcess(tmp_path, flags=flags, wrapper=wrapper) as process:
        place = Place(process, path)
        for number in range(WARM_ROUNDS):
            place.play(number)
        before = Counter[str]()

        def settled() -> bool:
            """Closed objects have been released when nothing changes."""
            nonlocal before
            earlier, before = before, place.tell("count")
            return before == earlier

        wait_until(settled, "the objects to become no fewer")
        for number in range(WARM_ROUNDS, WARM_ROUNDS + rounds):
            place.play(number)
        grown = Counter[str]()

        def is_as_before() -> bool:
            nonlocal grown
            more = place.tell("count") - before
            kept = {name: count for name, count in more.items() if not name.startswith(STATEMENTS)}
            grown = Counter({name: count for name, count in kept.items() if count > LAST_OF_A_KIND})
            return not grown

        try:
            wait_until(is_as_before, "the objects of Warren to be as many as before", 30)
        except AssertionError:
            raise AssertionError(f"after {rounds} rounds there are more of {dict(grown)}") from None
        print(f"\n{rounds} rounds, {before.total()} live objects, and no more of any type afterwards")
        place.api.close()
