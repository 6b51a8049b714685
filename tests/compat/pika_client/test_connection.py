"""Blocking connections of pika: URLs, hosts, refused logins, negotiation, heartbeats, broken sockets, secrets."""

from __future__ import annotations

import socket
from typing import Any

import pika
import pytest
from free_ports import free_port
from pika.exceptions import (
    AMQPConnectionError,
    ConnectionWrongStateError,
    NoFreeChannels,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from ..broker import Broker
from ..conftest import Names
from .dialogue import Connect, connection_closed_with, impl, pump, ready, until_closed, wait_for_ready

REFUSED = "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile."


def test_pika_sees_the_capabilities_it_asks_for(connect: Connect) -> None:
    connection = connect()
    assert connection.basic_nack_supported
    assert connection.consumer_cancel_notify_supported
    assert connection.exchange_exchange_bindings_supported
    assert connection.publisher_confirms_supported


def test_a_url_with_an_encoded_vhost_connects(broker: Broker) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.url + "?heartbeat=30&frame_max=65536")) as connection:
        assert connection.is_open
        assert impl(connection).params.frame_max == 65536
        assert impl(connection).params.heartbeat == 30


def test_the_first_reachable_of_several_hosts_is_used(broker: Broker) -> None:
    nobody = broker.parameters(port=free_port(), retry_delay=0)
    with pika.BlockingConnection([nobody, broker.parameters()]) as connection:
        assert connection.is_open


def test_a_connection_closes_on_request_and_only_once(connect: Connect) -> None:
    connection = connect()
    connection.close(reply_code=200, reply_text="had enough")
    assert connection.is_closed
    with pytest.raises(ConnectionWrongStateError):
        connection.close()


def test_thirty_connections_live_side_by_side(connect: Connect, names: Names) -> None:
    connections = [connect() for _ in range(30)]
    queue = names.queue()
    for number, connection in enumerate(connections):
        channel = connection.channel()
        channel.queue_declare(queue)
        channel.confirm_delivery()
        channel.basic_publish("", queue, str(number))
    assert ready(connections[0].channel(), queue) == 30


@pytest.mark.parametrize("properties", [{"connection_name": "the name in the user interface"}, {}])
def test_client_properties_of_every_kind_are_accepted(connect: Connect, properties: dict[str, str]) -> None:
    extras: dict[str, Any] = {"number": 7, "flag": True, "nothing": None, "nested": {"list": [1, "two", {}]}}
    assert connect(client_properties={**properties, **extras}).is_open


# refused logins


@pytest.mark.parametrize(
    ("username", "password"), [("guest", "wrong"), ("nobody-of-that-name", "guest"), ("guest", ""), ("", "")]
)
def test_a_refused_login_is_told_with_403_and_no_reason(connect: Connect, username: str, password: str) -> None:
    with pytest.raises(ProbableAuthenticationError) as caught:
        connect(credentials=pika.PlainCredentials(username, password))
    told = str(caught.value)
    assert "403" in told
    assert REFUSED in told


def test_a_missing_vhost_is_refused_with_530(connect: Connect) -> None:
    with pytest.raises(ProbableAccessDeniedError) as caught:
        connect(virtual_host="no-such-vhost")
    told = str(caught.value)
    assert "530" in told
    assert "NOT_ALLOWED - vhost no-such-vhost not found" in told


# negotiation


@pytest.mark.parametrize("frame_max", [4096, 8192, 65536, 131072])
def test_a_client_may_ask_for_smaller_frames(connect: Connect, frame_max: int) -> None:
    assert impl(connect(frame_max=frame_max)).params.frame_max == frame_max


def test_a_message_of_many_frames_crosses_a_connection_of_4096_octet_frames(connect: Connect, names: Names) -> None:
    body = bytes(range(256)) * 400
    channel = connect(frame_max=4096).channel()
    queue = channel.queue_declare(names.queue(), exclusive=True).method.queue
    channel.basic_publish("", queue, body)
    assert channel.basic_get(queue, auto_ack=True)[2] == body


def test_pika_opens_as_many_channels_as_negotiated_and_no_more(connect: Connect) -> None:
    connection = connect(channel_max=4)
    assert [int(connection.channel()) for _ in range(4)] == [1, 2, 3, 4]
    with pytest.raises(NoFreeChannels):
        connection.channel()


def test_the_broker_allows_at_least_two_thousand_channels(connect: Connect) -> None:
    connection = connect()
    assert impl(connection).params.channel_max >= 2000
    assert connection.channel(2000).channel_number == 2000


# heartbeats


def test_a_heartbeating_client_stays_connected_and_keeps_working(connect: Connect, names: Names) -> None:
    connection = connect(heartbeat=1)
    channel = connection.channel()
    queue = channel.queue_declare(names.queue(), exclusive=True).method.queue
    checker = impl(connection)._heartbeat_checker
    for round_number in range(2):
        seen: int = checker._heartbeat_frames_received
        pump(connection, lambda seen=seen: checker._heartbeat_frames_received > seen, "another heartbeat")  # type: ignore[misc]
        channel.basic_publish("", queue, b"%d" % round_number)
        assert channel.basic_get(queue, auto_ack=True)[2] == b"%d" % round_number


# life and death


def test_update_secret_is_answered(connect: Connect, broker: Broker) -> None:
    connection = connect()
    connection.update_secret(broker.password, "renewed in time")
    assert connection.channel().is_open


def test_a_connection_error_takes_every_channel_with_it(connect: Connect) -> None:
    connection = connect()
    bystander, culprit = connection.channel(), connection.channel()
    with connection_closed_with(540, "NOT_IMPLEMENTED - active=false"):
        culprit.flow(False)
    assert bystander.is_closed
    assert connection.is_closed


def test_a_socket_that_breaks_requeues_what_was_unacknowledged(connect: Connect, names: Names) -> None:
    queue = names.queue()
    survivor = connect().channel()
    survivor.queue_declare(queue)
    survivor.basic_publish("", queue, b"once more")
    wait_for_ready(survivor, queue, 1)
    victim = connect()
    assert victim.channel().basic_get(queue)[2] == b"once more"
    assert ready(survivor, queue) == 0
    impl(victim)._transport._sock.shutdown(socket.SHUT_RDWR)
    with pytest.raises(AMQPConnectionError):
        until_closed(victim)
    pump(survivor.connection, lambda: ready(survivor, queue) == 1, "the message to come back")
    method, _, body = survivor.basic_get(queue, auto_ack=True)
    assert method is not None and method.redelivered
    assert body == b"once more"
