"""The small publisher with confirms against a broker. amqp_publisher.py (1) and (2)."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from broker_process import WarrenProcess

from warren.spark_bridge.amqp_publisher import Publisher, Unconfirmed
from warren.spark_bridge.bridge_errors import BrokerError, NotAllowed, Unreachable
from warren.spark_bridge.frames import encode_publishes
from warren.spark_bridge.properties import encode_properties

from ..certificates import Authority
from ..management.client import Api, connect


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    with WarrenProcess(tmp_path_factory.mktemp("broker")) as process:
        yield process


@pytest.fixture
def queue(broker: WarrenProcess, request: pytest.FixtureRequest) -> str:
    api = Api(broker.http_port)
    name = request.node.name
    api.put(f"/queues/%2F/{name}", {"durable": True})
    api.close()
    return str(name)


def publisher(broker: WarrenProcess, *, user: str = "guest", password: str = "guest", window: int = 100) -> Publisher:
    return Publisher("127.0.0.1", broker.amqp_port, "/", user, password, max_in_flight=window)


def messages(queue: str, bodies: list[bytes], *, mandatory: bool = True, exchange: str = "") -> pa.Array:
    properties = encode_properties({"delivery_mode": pa.array([2] * len(bodies), pa.int16())}, len(bodies))
    return encode_publishes(exchange, queue, properties, pa.array(bodies, pa.binary()), mandatory=mandatory)


def send(broker: WarrenProcess, *batches: pa.Array) -> None:
    """Publish all and wait until that is confirmed."""
    with publisher(broker) as made:
        send_with(made, *batches)


def send_with(made: Publisher, *batches: pa.Array) -> None:
    for each in batches:
        made.publish(each)
    made.finish()


def read(broker: WarrenProcess, queue: str) -> list[bytes]:
    connection = connect(broker.amqp_port, "/")
    channel = connection.channel()
    found: list[bytes] = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None or body is None:
            connection.close()
            return found
        found.append(body)


@pytest.mark.parametrize("window", [1, 7, 10_000])
def test_what_is_confirmed_is_in_the_queue_in_order(broker: WarrenProcess, queue: str, window: int) -> None:
    bodies = [b"%d" % number for number in range(500)] + [bytes(200_000), b""]
    with publisher(broker, window=window) as made:
        for part in (bodies[:200], bodies[200:]):
            made.publish(messages(queue, part))
            assert made.sent - made.confirmed <= window
        made.finish()
        assert made.confirmed == made.sent == len(bodies)
    assert read(broker, queue) == bodies


def test_a_mandatory_message_without_a_queue_is_an_error(broker: WarrenProcess, queue: str) -> None:
    with pytest.raises(Unconfirmed, match="routing key 'nobody'"):
        send(broker, messages(queue, [b"1"]), messages("nobody", [b"2"]))
    send(broker, messages("nobody", [b"3"], mandatory=False))
    assert read(broker, queue) == [b"1"]


def test_a_message_that_is_refused_is_an_error(broker: WarrenProcess) -> None:
    api = Api(broker.http_port)
    api.put("/queues/%2F/small", {"durable": True, "arguments": {"x-max-length": 2, "x-overflow": "reject-publish"}})
    api.close()
    with pytest.raises(Unconfirmed, match="refused 3 messages"):
        send(broker, messages("small", [b"x"] * 5))
    assert read(broker, "small") == [b"x"] * 2


def test_what_the_broker_closes_with_is_told(broker: WarrenProcess) -> None:
    with pytest.raises(BrokerError, match="no exchange 'nowhere'"):
        send(broker, messages("q", [b"x"], exchange="nowhere"))
    with pytest.raises(NotAllowed, match="login refused"):
        publisher(broker, password="wrong")
    with pytest.raises(NotAllowed, match="vhost"):
        Publisher("127.0.0.1", broker.amqp_port, "elsewhere", "guest", "guest")


def test_a_broker_that_goes_is_an_error(tmp_path: Path) -> None:
    with WarrenProcess(tmp_path) as process:
        api = Api(process.http_port)
        api.put("/queues/%2F/q", {"durable": True})
        api.close()
        made = publisher(process)
        send_with(made, messages("q", [b"x"]))
        process.kill()
        with pytest.raises(Unreachable):
            send_with(made, messages("q", [b"x"]))
        made.close()
        with pytest.raises(Unreachable):
            publisher(process)


def test_it_speaks_amqp_only(broker: WarrenProcess) -> None:
    with pytest.raises(Unreachable):
        Publisher("127.0.0.1", broker.http_port, "/", "guest", "guest", timeout_s=5)


def test_tls_hides_what_is_sent(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates", "Warren test authority")
    certificate = authority.issue("/CN=server", "IP:127.0.0.1")
    flags = {"amqp": "off", "amqps": "127.0.0.1:0"}
    settings = {"tls.certificate": certificate.certificate, "tls.private_key": certificate.key}
    with WarrenProcess(tmp_path / "broker", flags, settings) as process:
        api = Api(process.http_port)
        api.put("/queues/%2F/q", {"durable": True})
        context = ssl.create_default_context(cafile=str(authority.certificate))
        with Publisher("127.0.0.1", process.amqps_port, "/", "guest", "guest", context=context) as made:
            made.publish(messages("q", [b"x" * 100_000] * 50))
            made.finish()
        with pytest.raises(Unreachable, match="certificate"):
            Publisher("127.0.0.1", process.amqps_port, "/", "guest", "guest", context=ssl.create_default_context())
        assert api.eventually("/queues/%2F/q", lambda row: row.get("messages") == 50)
        api.close()
