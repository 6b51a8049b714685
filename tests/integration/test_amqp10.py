"""AMQP 1.0 on the real process: Qpid Proton and RabbitMQ's client, plain and with TLS, with 0-9-1 on the other side."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote
from uuid import UUID

import pika
import pytest
from broker_process import WarrenProcess
from proton import Delivery, Described, Event, Message, SSLDomain, byte, int32, symbol, timestamp
from proton.handlers import MessagingHandler
from proton.reactor import Container, DynamicNodeProperties, Filter
from proton.utils import BlockingConnection, LinkDetached, SendException
from rabbitmq_amqp_python_client import (
    AddressHelper,
    AMQPMessagingHandler,
    ClassicQueueSpecification,
    Connection,
    Converter,
    Environment,
    ExchangeSpecification,
    ExchangeToQueueBindingSpecification,
    ExchangeType,
    QuorumQueueSpecification,
    StreamConsumerOptions,
    StreamFilterOptions,
    StreamSpecification,
    ValidationCodeException,
)
from rabbitmq_amqp_python_client import Event as RabbitEvent
from rabbitmq_amqp_python_client import Message as RabbitMessage
from rabbitmq_amqp_python_client.entities import MessageProperties, OffsetSpecification
from web_socket_peer import WebSocketOn

from warren.amqp10.performatives import AMQP_HEADER, FRAME_SASL, OPEN, SASL_HEADER, SASL_INIT, frame
from warren.amqp10.values import Symbol

from .certificates import Authority
from .management.client import Api

TIMEOUT_S = 30


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "Warren test authority")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[WarrenProcess]:
    server = authority.issue("/CN=localhost", "DNS:localhost")
    tls: dict[str, object] = {"tls.certificate": server.certificate, "tls.private_key": server.key}
    directory: Path = tmp_path_factory.mktemp("broker")
    with WarrenProcess(directory, flags={"amqps": "127.0.0.1:0"}, settings=tls) as process:
        yield process


@pytest.fixture
def channel(broker: WarrenProcess) -> Iterator[Any]:
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port)) as connection:
        yield connection.channel()


@pytest.fixture(params=["plain", "TLS"])
def connection(
    broker: WarrenProcess, authority: Authority, request: pytest.FixtureRequest
) -> Iterator[BlockingConnection]:
    if request.param == "TLS":
        domain = SSLDomain(SSLDomain.MODE_CLIENT)
        domain.set_trusted_ca_db(str(authority.certificate))
        domain.set_peer_authentication(SSLDomain.VERIFY_PEER)
        url = f"amqps://guest:guest@localhost:{broker.amqps_port}"
        made = BlockingConnection(url, timeout=TIMEOUT_S, ssl_domain=domain)
    else:
        made = BlockingConnection(f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}", timeout=TIMEOUT_S)
    yield made
    made.close()


def test_messages_pass_between_the_two_protocols(connection: BlockingConnection, channel: Any) -> None:
    channel.queue_declare("passing", durable=True)
    sender = connection.create_sender("/queues/passing")
    for body in (b"small", b"y" * 500_000):
        sender.send(Message(body=body, inferred=True, durable=True, id="m", properties={"n": 1}))
    for body in (b"small", b"y" * 500_000):
        method, properties, got = channel.basic_get("passing", auto_ack=True)
        assert got == body and method is not None
        assert (properties.delivery_mode, properties.message_id, properties.headers) == (2, "m", {"n": 1})
    receiver = connection.create_receiver("/queues/passing", credit=10)
    channel.basic_publish("", "passing", b"x" * 500_000, pika.BasicProperties(content_type="text/plain"))
    message = receiver.receive(timeout=TIMEOUT_S)
    assert bytes(cast(bytes, message.body)) == b"x" * 500_000 and message.content_type == "text/plain"
    receiver.release(delivered=False)
    again = receiver.receive(timeout=TIMEOUT_S)
    assert again.first_acquirer is False
    receiver.accept()
    channel.queue_delete("passing")


def test_bodies_and_properties_of_every_type_come_back(connection: BlockingConnection, channel: Any) -> None:
    channel.queue_declare("types")
    sender = connection.create_sender("/queues/types")
    receiver = connection.create_receiver("/queues/types", credit=10)
    for body in ("text", 5, 1.5, True, ["a", {"b": 1}], {"key": ["value"]}):
        sender.send(Message(body=body, subject="s", address="/queues/types", correlation_id=7, user_id=b"guest"))
        message = receiver.receive(timeout=TIMEOUT_S)
        receiver.accept()
        assert message.body == body
        assert (message.subject, message.address, message.user_id) == ("s", "/queues/types", b"guest")
        assert message.correlation_id == 7
    types = {"int": int32(5), "byte": byte(-1), "id": UUID(int=7), "when": timestamp(1_700_000_000_123), "x-own": 0.5}
    sender.send(Message(properties=types))  # it has no body at all
    message = receiver.receive(timeout=TIMEOUT_S)
    assert message.body is None and message.properties == types
    assert [type(message.properties[name]) for name in types] == [type(value) for value in types.values()]
    channel.queue_delete("types")


def test_outcomes_and_errors_reach_the_client(connection: BlockingConnection, channel: Any) -> None:
    with pytest.raises(SendException) as refused:
        connection.create_sender("/exchanges/amq.direct/nobody-has-this").send(Message(body="x"))
    assert refused.value.state == Delivery.RELEASED
    with pytest.raises(LinkDetached, match="amqp:not-found"):
        connection.create_sender("/queues/nobody-has-this")
    with pytest.raises(LinkDetached, match="amqp:not-found"):
        connection.create_receiver("/queues/nobody-has-this")
    with pytest.raises(LinkDetached, match="amqp:not-found"):
        connection.create_sender("/exchanges/nobody-has-this/k")
    channel.queue_declare("full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    with pytest.raises(SendException) as rejected:
        connection.create_sender("/queues/full").send(Message(body="x"))
    assert rejected.value.state == Delivery.REJECTED
    channel.queue_delete("full")


def test_filters_are_answered_and_invalid_ones_refused_with_a_reason(
    connection: BlockingConnection, channel: Any
) -> None:
    channel.queue_declare("selected", durable=True, arguments={"x-queue-type": "stream"})
    for price in (5, 50, 500):
        properties = pika.BasicProperties(headers={"price": price})
        channel.basic_publish("", "selected", b"%d" % price, properties)

    def selection(text: str) -> Filter:
        offset, sql = symbol("rabbitmq:stream-offset-spec"), symbol("amqp:sql-filter")
        return Filter({offset: Described(offset, "first"), symbol("sql-filter"): Described(sql, text)})

    wanted = selection("price BETWEEN 1 AND 2")
    with pytest.raises(LinkDetached, match="an operator or the end is expected in place of BETWEEN at character 7"):
        connection.create_receiver("/queues/selected", options=wanted)
    wanted = selection("price >= 50 AND price / 10 < 50")
    receiver = connection.create_receiver("/queues/selected", credit=10, options=wanted)
    message = receiver.receive(timeout=TIMEOUT_S)
    assert bytes(cast(bytes, message.body)) == b"50" and message.annotations is not None
    assert message.annotations["x-stream-offset"] == 1
    receiver.accept()
    answered = receiver.link.remote_source.filter
    answered.rewind()
    answered.next()
    assert set(cast("dict[Any, Any]", answered.get_dict())) == set(wanted.filter_set)
    channel.queue_delete("selected")


def test_receivers_of_a_queue_get_what_they_select_and_others_the_rest(
    connection: BlockingConnection, channel: Any
) -> None:
    channel.queue_declare("shared", durable=True)
    sql = symbol("amqp:sql-filter")
    receivers = {
        color: connection.create_receiver(
            "/queues/shared",
            name=color,
            credit=10,
            options=Filter({symbol("sql-filter"): Described(sql, f"color = '{color}'")}),
        )
        for color in ("red", "blue")
    }
    for color in ("green", "blue", "red", "green", "blue"):
        channel.basic_publish("", "shared", color.encode(), pika.BasicProperties(headers={"color": color}))
    for color, count in (("blue", 2), ("red", 1)):
        for _ in range(count):
            message = receivers[color].receive(timeout=TIMEOUT_S)
            assert bytes(cast(bytes, message.body)) == color.encode()
            receivers[color].accept()
    assert [channel.basic_get("shared", auto_ack=True)[2] for _ in range(3)] == [b"green", b"green", None]
    channel.queue_declare("keyed", arguments={"x-key-shared": True})
    with pytest.raises(LinkDetached, match="shares keys"):
        connection.create_receiver("/queues/keyed", options=Filter({symbol("f"): Described(sql, "n = 1")}))
    channel.queue_delete("shared")
    channel.queue_delete("keyed")


class Answers(MessagingHandler):
    """A server of requests, and a client with a dynamic queue for the answers."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self.answers: list[str] = []

    def on_start(self, event: Event) -> None:
        self.connection = event.container.connect(self._url, reconnect=False)
        self.requests = event.container.create_receiver(self.connection, "/queues/requests")
        self.anywhere = event.container.create_sender(self.connection, None)
        temporary = DynamicNodeProperties({symbol("x"): "y"})
        self.replies = event.container.create_receiver(self.connection, dynamic=True, options=temporary)
        self.sender = event.container.create_sender(self.connection, "/queues/requests")

    def on_link_opened(self, event: Event) -> None:
        if event.link == self.replies:
            self.sender.send(Message(body="ping", reply_to=self.replies.remote_source.address, correlation_id="c"))

    def on_message(self, event: Event) -> None:
        if event.receiver == self.requests:
            request = event.message
            body = request.body.replace("i", "o")
            reply = Message(address=request.reply_to, body=body, correlation_id=request.correlation_id)
            self.anywhere.send(reply)
        else:
            self.answers.append(event.message.body)
            self.connection.close()


def test_requests_are_answered_over_a_dynamic_source_and_an_anonymous_target(
    broker: WarrenProcess, channel: Any
) -> None:
    channel.queue_declare("requests")
    handler = Answers(f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}")
    Container(handler).run()
    assert handler.answers == ["pong"]
    channel.queue_delete("requests")


def test_a_connection_is_listed_with_its_protocol_and_closed(broker: WarrenProcess) -> None:
    made = BlockingConnection(f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}", timeout=TIMEOUT_S)
    made.create_sender("/exchanges/amq.topic/k")
    api = Api(broker.http_port)
    rows = api.eventually("/connections", lambda rows: [each for each in rows if each["protocol"] == "AMQP 1.0"])
    assert [(each["user"], each["channels"], each["vhost"]) for each in rows] == [("guest", 1, "/")]
    name = quote(rows[0]["name"], safe="")
    assert api.ask("DELETE", f"/connections/{name}", headers={"X-Reason": "enough"}).status == 204
    api.close()
    with pytest.raises(Exception, match="amqp:connection:forced"):
        made.create_receiver("/queues/any")


def test_what_was_accepted_is_there_after_a_kill(tmp_path: Path) -> None:
    with WarrenProcess(tmp_path) as process:
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", process.amqp_port)) as amqp:
            amqp.channel().queue_declare("kept", durable=True)
        made = BlockingConnection(f"amqp://guest:guest@127.0.0.1:{process.amqp_port}", timeout=TIMEOUT_S)
        sender = made.create_sender("/queues/kept")
        for number in range(20):
            sender.send(Message(body=number, durable=True))
        process.kill()
        process.start()
        made = BlockingConnection(f"amqp://guest:guest@127.0.0.1:{process.amqp_port}", timeout=TIMEOUT_S)
        receiver = made.create_receiver("/queues/kept", credit=20)
        assert [receiver.receive(timeout=TIMEOUT_S).body for _ in range(20)] == list(range(20))
        made.close()


def test_it_is_spoken_over_a_web_socket(tmp_path: Path) -> None:
    with (
        WarrenProcess(tmp_path, flags={"amqp_ws": "127.0.0.1:0"}) as process,
        socket.create_connection(("127.0.0.1", process.amqp_ws_port), timeout=TIMEOUT_S) as sock,
    ):
        web = WebSocketOn(sock, "amqp")
        login = frame(0, SASL_INIT, [Symbol("PLAIN"), b"\0guest\0guest"], frame_type=FRAME_SASL)
        web.sendall(SASL_HEADER + login)
        received = b""
        while b"\x00\x53\x44" not in received:  # the outcome of SASL
            received += web.recv(65536)
        web.sendall(AMQP_HEADER + frame(0, OPEN, ["web", "vhost:/"]))
        while b"LINK_PAIR" not in received:
            received += web.recv(65536)
        api = Api(process.http_port)
        rows = api.eventually("/connections", lambda rows: rows)
        assert [each["protocol"] for each in rows] == ["Web AMQP 1.0"]
        api.close()


def test_where_it_is_turned_off_its_header_is_answered_with_that_of_0_9_1(tmp_path: Path) -> None:
    with (
        WarrenProcess(tmp_path, settings={"amqp_1_0": "false"}) as process,
        pytest.raises(Exception, match=r"(?i)protocol|mismatch|closed|aborted"),
    ):
        BlockingConnection(f"amqp://guest:guest@127.0.0.1:{process.amqp_port}", timeout=TIMEOUT_S)


# --- rabbitmq-amqp-python-client --------------------------------------------------------------------------------------


class Enough(Exception):
    """All that was awaited has come."""


class Collector(AMQPMessagingHandler):
    """Takes a number of messages and accepts them."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.bodies: list[str] = []
        self._count = count

    def on_amqp_message(self, event: RabbitEvent) -> None:
        self.bodies.append(Converter.bytes_to_string(event.message.body))
        self.delivery_context.accept(event)
        if len(self.bodies) == self._count:
            raise Enough


@pytest.fixture(params=["plain", "TLS"])
def rabbit(broker: WarrenProcess, authority: Authority, request: pytest.FixtureRequest) -> Iterator[Connection]:
    if request.param == "TLS":
        from rabbitmq_amqp_python_client import PosixSslConfigurationContext

        context = PosixSslConfigurationContext(ca_cert=str(authority.certificate))
        environment = Environment(f"amqps://guest:guest@localhost:{broker.amqps_port}/", ssl_context=context)
    else:
        environment = Environment(f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/")
    made = environment.connection()
    made.dial()
    yield made
    environment.close()


def collect(connection: Connection, queue: str, count: int, **given: Any) -> list[str]:
    collector = Collector(count)
    consumer = connection.consumer(AddressHelper.queue_address(queue), message_handler=collector, **given)
    with pytest.raises(Enough):
        consumer.run()
    consumer.close()
    return collector.bodies


def test_rabbitmqs_client_declares_publishes_and_consumes(rabbit: Connection) -> None:
    management = rabbit.management()
    management.declare_queue(QuorumQueueSpecification(name="orders/\u00e4"))
    management.declare_exchange(ExchangeSpecification(name="shop", exchange_type=ExchangeType.topic))
    binding = ExchangeToQueueBindingSpecification(
        source_exchange="shop", destination_queue="orders/\u00e4", binding_key="order.#"
    )
    path = management.bind(binding)
    publisher = rabbit.publisher(AddressHelper.exchange_address("shop", "order.new"))
    for number in range(10):
        status = publisher.publish(RabbitMessage(body=Converter.string_to_bytes(f"order {number}")))
        assert status.remote_state == Delivery.ACCEPTED
    publisher.close()
    info = management.queue_info("orders/\u00e4")
    assert (info.name, info.queue_type.value, int(info.message_count)) == ("orders/\u00e4", "quorum", 10)
    assert collect(rabbit, "orders/\u00e4", 8) == [f"order {number}" for number in range(8)]
    assert management.purge_queue("orders/\u00e4") == 2
    management.unbind(path)
    management.delete_exchange("shop")
    management.delete_queue("orders/\u00e4")
    with pytest.raises(ValidationCodeException, match="404"):
        management.queue_info("orders/\u00e4")
    management.close()


def test_rabbitmqs_client_reads_a_stream_from_an_offset(rabbit: Connection) -> None:
    management = rabbit.management()
    management.declare_queue(StreamSpecification(name="events"))
    publisher = rabbit.publisher(AddressHelper.queue_address("events"))
    for number in range(10):
        publisher.publish(RabbitMessage(body=Converter.string_to_bytes(f"event {number}")))
    for specification, first in ((OffsetSpecification.first, 0), (4, 4)):
        options = StreamConsumerOptions(offset_specification=cast("Any", specification))
        found = collect(rabbit, "events", 10 - first, consumer_options=options)
        assert found == [f"event {number}" for number in range(first, 10)]
    management.delete_queue("events")
    management.close()


def test_rabbitmqs_client_gets_what_its_filters_ask_for(rabbit: Connection) -> None:
    management = rabbit.management()
    management.declare_queue(StreamSpecification(name="filtered"))
    publisher = rabbit.publisher(AddressHelper.queue_address("filtered"))
    for number in range(40):
        properties = {"region": ("emea", "amer")[number % 2], "price": number * 1.5}
        body = Converter.string_to_bytes(str(number))
        kind = ("order.created", "order.paid", "visit")[number % 3]
        publisher.publish(RabbitMessage(body=body, subject=kind, id=f"m-{number}", application_properties=properties))
    publisher.close()
    cases: list[tuple[dict[str, Any], list[int]]] = [
        (
            {"sql": "p.subject LIKE 'order.%' AND region IN ('emea', 'apj') AND price >= 45"},
            [number for number in range(30, 40) if number % 2 == 0 and number % 3 != 2],
        ),
        ({"sql": "properties.message_id = 'm-7' OR h.priority <> 4"}, [7]),
        ({"message_properties": MessageProperties(subject="&s:it")}, list(range(2, 40, 3))),
        (
            {
                "message_properties": MessageProperties(subject="&p:order"),
                "application_properties": {"region": "amer", "price": 1.5},
            },
            [1],
        ),
    ]
    for given, expected in cases:
        options = StreamConsumerOptions(
            offset_specification=cast("Any", OffsetSpecification.first), filter_options=StreamFilterOptions(**given)
        )
        found = collect(rabbit, "filtered", len(expected), consumer_options=options)
        assert found == [str(number) for number in expected], given
    management.delete_queue("filtered")
    management.close()


def test_rabbitmqs_client_selects_from_a_queue(rabbit: Connection) -> None:
    management = rabbit.management()
    management.declare_queue(QuorumQueueSpecification(name="chosen"))
    publisher = rabbit.publisher(AddressHelper.queue_address("chosen"))
    for number in range(20):
        body = Converter.string_to_bytes(str(number))
        publisher.publish(RabbitMessage(body=body, application_properties={"price": number}))
    publisher.close()
    options = StreamConsumerOptions(filter_options=StreamFilterOptions(sql="price % 5 = 3"))
    assert collect(rabbit, "chosen", 4, consumer_options=options) == ["3", "8", "13", "18"]
    assert collect(rabbit, "chosen", 5) == ["0", "1", "2", "4", "5"]
    management.delete_queue("chosen")
    management.close()


def test_rabbitmqs_client_is_told_of_arguments_that_differ(rabbit: Connection) -> None:
    management = rabbit.management()
    management.declare_queue(ClassicQueueSpecification(name="same"))
    management.declare_queue(ClassicQueueSpecification(name="same"))
    with pytest.raises(ValidationCodeException, match="ErrPreconditionFailed"):
        management.declare_queue(ClassicQueueSpecification(name="same", max_len=5))
    management.delete_queue("same")
    management.close()
