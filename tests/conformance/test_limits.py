"""Limits for hostile peers: the number of objects, and the input before login."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from engine_harness import (
    Client,
    Harness,
    Refusal,
    basic_consume,
    exchange_declare,
    publish_frames,
    queue_declare,
)

from warren.amqp import methods as m
from warren.amqp.codec import frame
from warren.amqp.declarations import QueueDeclaration
from warren.amqp.errors import ChannelException
from warren.amqp.field_table import EMPTY_TABLE, encode_table
from warren.amqp.methods import HEARTBEAT_FRAME
from warren.channels.access import ANSWER_BYTES, ANSWERS_BYTES_MAX
from warren.channels.route_cache import CACHE_BYTES_MAX, ROUTE_BYTES
from warren.channels.topology_growth import (
    ALARM_BYTES,
    BINDING_BYTES,
    CONNECTION_BYTES,
    CONSUMER_BYTES,
    CONSUMERS_CONNECTION_BYTES,
    EXCHANGE_BYTES,
    QUEUE_BYTES,
    TopologyGrowth,
)
from warren.vhosts.metadata import (
    UserDelete,
    UserLimitsDelete,
    UserLimitsPut,
    UserPut,
    VhostDelete,
    VhostLimitsDelete,
    VhostLimitsPut,
    VhostPut,
)

from .hostile_frames import frame_head, silently_dropped
from .rules import rule

# --- before the login -------------------------------------------------------------------------------------------------


@rule("abuse.pre-auth", "Before tune-ok a frame of more than 8 KiB is refused at its first 7 octets, without a word.")
@pytest.mark.parametrize("size", [8193, 131072, 0xFFFFFFFF])
def test_a_large_frame_is_refused_at_its_head(harness: Harness, size: int) -> None:
    client = harness.raw_client()
    client.start()
    client.feed(frame_head(1, 0, size)[:6])
    client.nothing()
    client.feed(frame_head(1, 0, size)[6:])
    silently_dropped(client)


@rule("abuse.pre-auth", "Before open-ok there are at most ten frames, heartbeats included.")
def test_the_handshake_has_at_most_ten_frames(harness: Harness) -> None:
    client = harness.raw_client()
    client.start()
    client.feed(HEARTBEAT_FRAME * 10)
    client.nothing()
    client.feed(HEARTBEAT_FRAME)
    silently_dropped(client)


@rule("abuse.pre-auth", "Before open-ok there are at most 64 KiB.")
def test_the_handshake_has_at_most_64_kib(harness: Harness) -> None:
    client = harness.raw_client()
    client.start()
    heartbeat = frame(8, 0, bytes(8192))
    client.feed(heartbeat * 7)
    client.nothing()
    client.feed(heartbeat)
    silently_dropped(client)


@rule("abuse.pre-auth", "Who has not opened a connection within 10 s is dropped, without a word.")
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_the_handshake_has_a_deadline(harness: Harness, steps: int) -> None:
    client = harness.raw_client()
    if steps >= 1:
        client.start()
    if steps == 2:
        client.start_ok()
        client.expect(m.ConnectionTune)
    harness.pass_time(9.9)
    assert not client.ended
    harness.pass_time(0.2)
    silently_dropped(client)


@rule("abuse.login", "An unknown user and a wrong password get the same answer, octet for octet.")
@pytest.mark.parametrize("capabilities", [(), ("authentication_failure_close",)])
def test_a_refused_login_does_not_tell_why(harness: Harness, capabilities: tuple[str, ...]) -> None:
    answers = []
    for user, password in (("guest", b"wrong"), ("nobody", b"guest"), ("", b""), ("guest", b"")):
        client = harness.raw_client(capabilities=capabilities)
        client.start()
        client.start_ok(user, password)
        answers.append((client.take_bytes(), client.ended))
    assert len(set(answers)) == 1


# --- counts -----------------------------------------------------------------------------------------------------------


@rule("abuse.counts", "A channel has a limited number of consumers: 530.")
def test_consumers_of_a_channel_are_limited() -> None:
    harness = Harness(consumers_per_channel_max=3)
    client = harness.channel()
    client.declare("q")
    for _ in range(3):
        client.consume("q")
    refusal = client.refused(1, basic_consume("q"))
    text = "NOT_ALLOWED - reached maximum (3) of consumers per channel"
    assert refusal == Refusal("connection", 530, text, m.BasicConsume)


@rule("abuse.counts", "A channel owes a limited number of acks, whatever its prefetch; every ack makes room.")
def test_unacked_messages_of_a_channel_are_limited() -> None:
    harness = Harness(unacked_per_channel_max=4)
    client, other = harness.channel(), harness.channel()
    for name in ("p", "q"):
        client.declare(name)
        for _ in range(5):
            client.publish("", name)
    other.consume("p")
    other.consume("q")
    assert len(other.deliveries()) == 4
    for tag in range(1, 5):
        other.send(1, m.BasicAck(tag, False))
        harness.check()
    assert len(other.deliveries()) == 4
    other.send(1, m.BasicNack(8, multiple=True, requeue=False))
    harness.check()
    assert len(other.deliveries()) == 2


@rule("abuse.counts", "A transaction has a limited size: a publish beyond it is 406, and nothing of it is done.")
def test_the_size_of_a_transaction_is_limited() -> None:
    body = bytes(10_000)
    harness = Harness(transaction_max_bytes=4 * 11_500)
    client = harness.channel()
    client.declare("q")
    client.publish("", "q", b"acked")
    client.call(1, m.TxSelect())
    for end in (m.TxCommit(), m.TxRollback(), m.TxCommit()):
        client.feed(publish_frames("", "q", body) * 4)
        client.call(1, end)
    assert harness.queue("q").ready_count == 9
    client.get("q")
    client.send(1, m.BasicAck(1, False))
    client.feed(publish_frames("", "q", body) * 4)
    before = harness.broker.log.resident_bytes
    client.feed(publish_frames("", "q", body))
    refusal = client.refusal()
    assert (refusal.scope, refusal.code, refusal.method) == ("channel", 406, m.BasicPublish)
    assert "with 5 messages is too large (maximum 46000): commit more often" in refusal.text
    harness.check()
    assert (harness.queue("q").ready_count, harness.queue("q").unacked_count) == (9, 0)
    assert harness.broker.log.resident_bytes < before - 4 * len(body)


@pytest.mark.parametrize("end", ["commit", "rollback", "channel", "connection", "lost"])
@rule(
    "abuse.counts", "All open transactions together have a limited size, in shares of users; what ends is free again."
)
def test_the_size_of_all_transactions_is_limited(end: str) -> None:
    harness = Harness()
    harness.add_user("other")
    shares = harness.broker.shared.transaction_shares
    shares.most = 100_000
    clients = [harness.channel(), harness.channel(), harness.channel(user="other")]
    clients[0].declare("q")
    for client in clients:
        client.call(1, m.TxSelect())
    publish = publish_frames("", "q", bytes(10_000))
    for client in clients[:2]:
        client.feed(publish * 3)
    clients[1].feed(publish * 2)
    assert "open transactions of user 'guest' hold " in clients[1].refusal().text
    assert shares.used("guest") == shares.total > 3 * 10_000
    clients[2].feed(publish)  # there is something left for another user
    clients[2].call(1, m.TxCommit())
    match end:
        case "commit":
            clients[0].call(1, m.TxCommit())
        case "rollback":
            clients[0].call(1, m.TxRollback())
        case "channel":
            clients[0].call(1, m.ChannelClose(200, "", 0, 0))
        case "connection":
            clients[0].call(0, m.ConnectionClose(200, "", 0, 0))
        case _:
            clients[0].connection.lost()
    harness.settle()
    assert shares.total == 0 and harness.broker.log.resident_bytes >= 0
    shares.check_invariants()
    harness.check()


@rule("abuse.counts", "One message may be larger than a transaction; each queue that a message goes to counts.")
def test_a_transaction_takes_one_message_of_any_size() -> None:
    harness = Harness(transaction_max_bytes=20_000)
    client = harness.channel()
    for at in range(200):
        client.declare(f"q{at}")
        client.bind(f"q{at}", "amq.fanout")
    client.call(1, m.TxSelect())
    for exchange, key, body in (("", "q0", bytes(100_000)), ("amq.fanout", "", b"")):
        client.feed(publish_frames(exchange, key, body))
        client.call(1, m.TxCommit())
    assert [harness.queue(f"q{at}").ready_count for at in (0, 199)] == [2, 1]
    client.feed(publish_frames("amq.fanout", "", b""))
    client.feed(publish_frames("amq.fanout", "", b""))
    assert client.refusal().code == 406


@rule("abuse.counts", "A vhost has a limited number of queues: 406; existing ones may be declared again.")
def test_queues_of_a_vhost_are_limited() -> None:
    harness = Harness(queues_per_vhost_max=2)
    client = harness.channel()
    client.declare("a")
    client.declare("b")
    client.declare("a")
    text = "PRECONDITION_FAILED - cannot declare queue 'c': queue limit in vhost '/' (2) is reached"
    assert client.refused(1, queue_declare("c")) == Refusal("channel", 406, text, m.QueueDeclare)
    client.call(1, m.QueueDelete(0, "a", if_unused=False, if_empty=False, no_wait=False))
    client.declare("c")


@rule("abuse.counts", "A vhost has a limited number of exchanges: 406.")
def test_exchanges_of_a_vhost_are_limited(harness: Harness) -> None:
    limit = len(harness.vhost.exchanges) + 1
    harness = Harness(exchanges_per_vhost_max=limit)
    client = harness.channel()
    client.declare_exchange("a")
    client.declare_exchange("a")
    text = f"PRECONDITION_FAILED - cannot declare exchange 'b': exchange limit in vhost '/' ({limit}) is reached"
    assert client.refused(1, exchange_declare("b")) == Refusal("channel", 406, text, m.ExchangeDeclare)


@rule("abuse.counts", "An exchange has a limited number of bindings: 406; existing ones may be made again.")
def test_bindings_of_an_exchange_are_limited() -> None:
    harness = Harness(bindings_per_exchange_max=2)
    client = harness.channel()
    client.declare("q")
    client.bind("q", "amq.direct", "1")
    client.bind("q", "amq.direct", "2")
    client.bind("q", "amq.direct", "2")
    refusal = client.refused(1, m.QueueBind(0, "q", "amq.direct", "3", False, EMPTY_TABLE))
    assert (refusal.scope, refusal.code, refusal.method) == ("channel", 406, m.QueueBind)
    client.bind("q", "amq.topic", "3")


@rule("abuse.arguments", "Arguments have at most 128 KiB, those of all bindings of an exchange 64 MiB: 406.")
def test_arguments_are_bounded(harness: Harness, client: Client) -> None:
    client.declare("q")
    harness.broker.limits.arguments_max_bytes = 65536  # more would not fit into a frame
    table = encode_table({"a": "x" * 65536})
    text = "PRECONDITION_FAILED - the arguments have 65547 bytes, at most 65536 are allowed"
    for call in (
        queue_declare("another", arguments={"a": "x" * 65536}),
        exchange_declare("x", "direct", arguments={"a": "x" * 65536}),
        m.QueueBind(0, "q", "amq.direct", "k", False, table),
    ):
        assert client.refused(1, call) == Refusal("channel", 406, text, type(call))
    harness.broker.limits.binding_bytes_per_exchange_max = 1000
    full = m.QueueBind(0, "q", "amq.headers", "1", False, encode_table({"a": "x" * 500}))
    client.call(1, full)
    client.call(1, full)
    client.call(1, m.QueueUnbind(0, "q", "amq.headers", "1", full.arguments))
    client.call(1, full)
    refusal = client.refused(1, full._replace(routing_key="2"))
    assert refusal.text.endswith("its limit of 1000 bytes of arguments is reached")
    client.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    assert harness.vhost.exchange("amq.headers").binding_bytes == 0


@rule("abuse.topology", "While memory is short a connection adds a little to the topology, then waits as a publisher.")
def test_topology_waits_while_memory_is_short(harness: Harness, client: Client, other: Client) -> None:
    client.declare("q")
    harness.broker.set_alarm("memory", True)
    arguments = {"number": 0, "text": "x" * 200}
    added = 0
    while True:
        arguments["number"] = added
        client.send(1, m.QueueBind(0, "q", "amq.headers", "", False, encode_table(arguments)))
        answers = [received.method for received in client.take()]
        if m.QueueBindOk() not in answers:
            break
        added += 1
    assert 1 < added < CONNECTION_BYTES // BINDING_BYTES
    assert answers == [m.ConnectionBlocked("low on memory")]
    assert len(harness.vhost.exchange("amq.headers").bindings) == added
    # Existing objects can be declared again, and deleted, and consumers may come.
    other.declare("q")
    other.bind("q", "amq.headers", "", {"number": 0, "text": "x" * 200})
    other.consume("q")
    other.declare("its own")
    other.call(1, m.QueueDelete(0, "its own", if_unused=False, if_empty=False, no_wait=False))
    harness.broker.set_alarm("memory", False)
    harness.settle()
    assert [received.method for received in client.take()] == [m.ConnectionUnblocked(), m.QueueBindOk()]
    assert harness.broker.growth._used_bytes == {}
    assert len(harness.vhost.exchange("amq.headers").bindings) == added + 1


@rule("abuse.topology", "All connections together add 16 MiB during one alarm.")
def test_topology_of_all_is_bounded_while_memory_is_short(harness: Harness) -> None:
    growth = TopologyGrowth()
    for _ in range(2):
        growth.alarm_set("memory")
        assert growth._used_bytes == {}, "connections that are gone leave nothing"
        added = sum(growth.allows(key, CONNECTION_BYTES) for key in range(1000))
        assert added * CONNECTION_BYTES == ALARM_BYTES
        growth.alarm_over("memory")


@rule("abuse.topology", "Over HTTP the answer says why, at once.")
def test_a_direct_session_is_refused_while_memory_is_short(harness: Harness) -> None:
    direct = harness.broker.open_direct("guest", "/")
    harness.broker.set_alarm("memory", True)
    for number in range(CONNECTION_BYTES // QUEUE_BYTES + 1):
        direct.command(QueueDeclaration(f"q{number}", durable=False))
    harness.settle()
    refused = direct.direct.answers[-1]
    assert isinstance(refused, ChannelException)
    assert refused.explanation == "memory is short: nothing can be declared or bound until the memory alarm is over"
    assert len(harness.vhost.queues) < CONNECTION_BYTES // QUEUE_BYTES + 1


@rule("abuse.topology", "Disk space that is short limits it, too: a declaration is written.")
def test_topology_grows_no_further_while_the_disk_is_short(harness: Harness) -> None:
    client = harness.channel()
    harness.broker.set_alarm("disk", True)
    declared = 0
    while True:  # what was deleted counts: it was written
        client.send(1, m.ExchangeDeclare(0, "e", "direct", False, True, False, False, False, b"\0\0\0\0"))
        if [each.method for each in client.take()] != [m.ExchangeDeclareOk()]:
            break
        declared += 1
        client.call(1, m.ExchangeDelete(0, "e", if_unused=False, no_wait=False))
    assert 1 < declared <= CONNECTION_BYTES // EXCHANGE_BYTES
    harness.broker.set_alarm("memory", True)
    harness.broker.set_alarm("disk", False)
    assert harness.broker.growth.is_limited
    harness.broker.set_alarm("memory", False)
    harness.settle()
    assert not harness.broker.growth.is_limited


@rule("abuse.topology", "While memory is short, the consumers of a connection take at most 2 MiB.")
def test_very_many_consumers_are_refused_while_memory_is_short(harness: Harness) -> None:
    client = harness.channel()
    client.declare("q")
    harness.broker.set_alarm("memory", True)
    tags = (f"{number:0250}" for number in range(CONSUMERS_CONNECTION_BYTES // CONSUMER_BYTES))
    for tag in tags:
        client.send(1, basic_consume("q", tag, False, False, None))
        (answer,) = client.take()
        if not isinstance(answer.method, m.BasicConsumeOk):
            break
    assert isinstance(answer.method, m.ChannelClose) and answer.method.reply_code == 406
    assert "memory is short" in answer.method.reply_text
    client.send(1, m.ChannelCloseOk())
    harness.channel().consume("q")
    harness.broker.set_alarm("memory", False)
    client.open(2)
    client.consume("q", number=2)


# --- limits of vhosts and users ---------------------------------------------------------------------------------------


def limit_vhost(harness: Harness, vhost: str = "/", **limits: int) -> None:
    definition = json.dumps({key.replace("_", "-"): value for key, value in limits.items()})
    harness.broker.administer(VhostLimitsPut(vhost, definition))
    harness.settle()


def limit_user(harness: Harness, user: str, **limits: int) -> None:
    definition = json.dumps({key.replace("_", "-"): value for key, value in limits.items()})
    harness.broker.administer(UserLimitsPut(user, definition))
    harness.settle()


def refused_open(harness: Harness, user: str, vhost: str = "/") -> str:
    """Try to open a connection; return the text that refuses it, ``""`` when it is open."""
    client = harness.raw_client()
    client.start()
    client.start_ok(user)
    client.expect(m.ConnectionTune)
    client.send(
        0, m.ConnectionTuneOk(client.channel_max, client.frame_max_bytes, 0), m.ConnectionOpen(vhost, "", False)
    )
    (answer,) = client.take()
    if isinstance(answer.method, m.ConnectionOpenOk):
        return ""
    assert isinstance(answer.method, m.ConnectionClose)
    assert (answer.method.reply_code, answer.method.class_id, answer.method.method_id) == (530, 10, 40)
    client.send(0, m.ConnectionCloseOk())
    assert client.ended
    text: str = answer.method.reply_text
    return text


def vhost_full(user: str, limit: int, vhost: str = "/") -> str:
    return f"NOT_ALLOWED - access to vhost '{vhost}' refused for user '{user}': connection limit ({limit}) is reached"


@rule("rabbitmq.limits.vhost", "max-connections of a vhost counts all that are open in it: 530 at connection.open.")
def test_a_vhost_limits_its_connections(harness: Harness) -> None:
    harness.add_user("bob")
    harness.broker.administer(VhostPut("v"))
    harness.permit("bob", vhost="v")
    limit_vhost(harness, max_connections=2)
    clients = [harness.client("guest"), harness.client("bob")]
    assert refused_open(harness, "bob") == vhost_full("bob", 2)
    assert refused_open(harness, "bob", "v") == ""
    clients[0].hang_up()
    clients[0] = harness.client("bob")
    assert refused_open(harness, "guest") == vhost_full("guest", 2)
    clients[1].send(0, m.ConnectionClose(200, "", 0, 0))
    harness.client("guest")
    assert refused_open(harness, "guest") == vhost_full("guest", 2)


@rule("rabbitmq.limits.vhost", "0 connections are none, -1 as many as one likes; what is open stays; changes hold.")
def test_limits_of_connections_change_live(harness: Harness) -> None:
    client = harness.client()
    for limit, text in ((0, vhost_full("guest", 0)), (-1, ""), (2, vhost_full("guest", 2)), (3, "")):
        limit_vhost(harness, max_connections=limit)
        assert refused_open(harness, "guest") == text
    assert refused_open(harness, "guest") == vhost_full("guest", 3)
    harness.broker.administer(VhostLimitsDelete("/"))
    assert refused_open(harness, "guest") == ""
    limit_vhost(harness, max_connections=0)
    client.open(1)
    client.nothing()


@rule("rabbitmq.limits.vhost", "The limit is looked at before the right to enter; connections that fail do not count.")
def test_refused_connections_do_not_count(harness: Harness) -> None:
    harness.broker.administer(UserPut("eve", "", ""))
    harness.passwords["eve"] = b"eve"
    limit_vhost(harness, max_connections=1)
    for _ in range(3):
        assert refused_open(harness, "eve") == "NOT_ALLOWED - access to vhost '/' refused for user 'eve'"
    assert refused_open(harness, "guest") == ""
    assert refused_open(harness, "eve") == vhost_full("eve", 1)
    assert refused_open(harness, "guest", "nowhere") == "NOT_ALLOWED - vhost nowhere not found"


@rule("rabbitmq.limits.user", "max-connections of a user counts those in all vhosts: 530 at connection.open.")
def test_a_user_has_limited_connections(harness: Harness) -> None:
    harness.add_user("bob")
    harness.broker.administer(VhostPut("v"))
    harness.permit("bob", vhost="v")
    limit_user(harness, "bob", max_connections=2)
    first = harness.client("bob")
    harness.client("bob", "v")
    text = "NOT_ALLOWED - connection refused for user 'bob': user connection limit (2) is reached"
    assert refused_open(harness, "bob") == text
    assert refused_open(harness, "bob", "v") == text
    assert refused_open(harness, "guest") == ""
    first.hang_up()
    harness.client("bob", "v")
    assert refused_open(harness, "bob") == text
    for limit, refused in ((0, True), (-1, False), (3, True), (4, False)):
        limit_user(harness, "bob", max_connections=limit)
        assert (refused_open(harness, "bob") != "") == refused
    harness.broker.administer(UserLimitsDelete("bob"))
    assert refused_open(harness, "bob") == ""


@rule("rabbitmq.limits.user", "max-channels of a user counts those of all connections: 530.")
def test_a_user_has_limited_channels(harness: Harness) -> None:
    harness.add_user("bob")
    limit_user(harness, "bob", max_channels=2)
    one, two = harness.client("bob"), harness.client("bob")
    one.open(1)
    two.open(1)
    text = "NOT_ALLOWED - number of channels opened for user 'bob' has reached the maximum allowed user limit of (2)"
    assert one.refused(2, m.ChannelOpen("")) == Refusal("connection", 530, text, m.ChannelOpen)
    two.open(2)
    guest = harness.client()
    guest.open(1)
    guest.open(2)
    guest.open(3)


@rule("rabbitmq.limits.user", "A channel no longer counts once it is closed, whoever closed it and however.")
def test_closed_channels_do_not_count(harness: Harness) -> None:
    harness.add_user("bob")
    limit_user(harness, "bob", max_channels=2)
    bob = harness.client("bob")
    bob.open(1)
    bob.open(2)
    assert bob.call(1, m.ChannelClose(200, "", 0, 0)) == m.ChannelCloseOk()
    bob.open(1)
    assert bob.refused(2, m.BasicGet(0, "nowhere", True)).code == 404  # answers the close and opens 2 again
    bob.hang_up()
    bob = harness.client("bob")
    bob.open(1)
    bob.open(2)
    bob.send(0, m.ConnectionClose(200, "", 0, 0))
    bob = harness.client("bob")
    bob.open(7)
    bob.open(8)
    assert bob.refused(9, m.ChannelOpen("")).code == 530
    bob = harness.client("bob")
    bob.open(1)
    bob.open(2)
    limit_user(harness, "bob", max_channels=0)
    bob.declare("q")
    assert bob.refused(3, m.ChannelOpen("")).code == 530
    limit_user(harness, "bob", max_channels=-1)
    bob = harness.client("bob")
    for number in range(1, 10):
        bob.open(number)


@rule("rabbitmq.limits.vhost", "max-queues of a vhost counts all queues, exclusive ones too: 406.")
def test_a_vhost_limits_its_queues(client: Client, harness: Harness) -> None:
    client.declare("one", exclusive=True)
    limit_vhost(harness, max_queues=2)
    client.declare("two", durable=True)
    for call in (queue_declare("three"), queue_declare("three", exclusive=True)):
        text = "PRECONDITION_FAILED - cannot declare queue 'three': queue limit in vhost '/' (2) is reached"
        assert client.refused(1, call) == Refusal("channel", 406, text, m.QueueDeclare)
    assert "queue 'amq.gen-" in client.refused(1, queue_declare("")).text
    client.declare("one", exclusive=True)
    client.declare("two", passive=True)
    client.call(1, m.QueueDelete(0, "one", if_unused=False, if_empty=False, no_wait=False))
    client.declare("three")


@rule("rabbitmq.limits.vhost", "0 queues are none, -1 as many as one likes; the broker's own limit holds beside it.")
def test_limits_of_queues_change_live() -> None:
    harness = Harness(queues_per_vhost_max=3)
    client = harness.channel()
    limit_vhost(harness, max_queues=0)
    text = "PRECONDITION_FAILED - cannot declare queue 'q': queue limit in vhost '/' (0) is reached"
    assert client.refused(1, queue_declare("q")).text == text
    for limit in (-1, 10):
        limit_vhost(harness, max_queues=limit)
        client.declare(f"q{limit}")
    harness.broker.administer(VhostLimitsDelete("/"))
    client.declare("last")
    for limit, reached in ((-1, 3), (10, 3), (2, 2)):
        limit_vhost(harness, max_queues=limit)
        assert f"({reached}) is reached" in client.refused(1, queue_declare("q")).text


@rule("rabbitmq.limits.vhost", "Limits go with their vhost and their user, and hold after a start.")
def test_limits_come_and_go_with_what_they_are_of(harness: Harness) -> None:
    harness.add_user("bob")
    limit_user(harness, "bob", max_connections=0)
    harness.broker.administer(UserDelete("bob"))
    harness.add_user("bob")
    assert refused_open(harness, "bob") == ""
    harness.broker.administer(VhostPut("v"))
    limit_vhost(harness, "v", max_connections=0)
    harness.broker.administer(VhostDelete("v"))
    harness.broker.administer(VhostPut("v"))
    harness.permit("bob", vhost="v")
    assert refused_open(harness, "bob", "v") == ""
    harness.broker.restore(VhostLimitsPut("/", '{"max-connections":0}'))
    assert refused_open(harness, "bob") == vhost_full("bob", 0)
    harness.broker.restore(VhostLimitsPut("/", "{}"))
    harness.broker.restore(UserLimitsPut("bob", '{"max-connections":0}'))
    assert "user connection limit (0)" in refused_open(harness, "bob")


@rule("rabbitmq.limits.vhost", "Limits that are not valid, or of nobody, are refused and change nothing.")
def test_invalid_limits_change_nothing(harness: Harness) -> None:
    limit_vhost(harness, max_connections=0)
    limit_user(harness, "guest", max_connections=0)
    tickets = harness.broker.journal.last_ticket
    for change, text in (
        (VhostLimitsPut("/", '{"max-channels":5}'), 'Unrecognised terms [{<<"max-channels">>,5}] in limits'),
        (UserLimitsPut("guest", '{"max-queues":5}'), 'Unrecognised terms [{<<"max-queues">>,5}] in user-limits'),
        (VhostLimitsPut("/", '{"max-queues":"x"}'), 'max-queues should be a number, actually was <<"x">>'),
        (VhostLimitsPut("v", "{}"), "vhost 'v' does not exist"),
        (VhostLimitsDelete("v"), "vhost 'v' does not exist"),
        (UserLimitsPut("eve", "{}"), "user 'eve' does not exist"),
        (UserLimitsDelete("eve"), "user 'eve' does not exist"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
            harness.broker.administer(change)
    assert harness.broker.journal.last_ticket == tickets
    assert refused_open(harness, "guest") == vhost_full("guest", 0)
    harness.broker.administer(VhostLimitsDelete("/"))
    assert "user connection limit (0)" in refused_open(harness, "guest")


# --- names ------------------------------------------------------------------------------------------------------------


@rule("abuse.names", "Names with NUL, which no database keeps, are refused.")
@pytest.mark.parametrize("name", ["a\x00", "\x00", "\x1b[2J\x00"])
@pytest.mark.parametrize("make", [queue_declare, exchange_declare])
def test_nul_in_names_is_refused(client: Client, make: Any, name: str) -> None:
    refusal = client.refused(1, make(name))
    assert (refusal.scope, refusal.code) == ("channel", 406)
    assert refusal.text.isprintable()


@rule("abuse.names", "What the broker remembers of names it was asked for is bounded.")
def test_caches_are_bounded(client: Client, harness: Harness) -> None:
    principal = harness.broker.access.maybe_principal("guest", "/")
    assert principal is not None
    for number in range(5000):
        client.connection.feed(publish_frames("", f"nowhere {number}"))
        principal.may(1, f"name {number}")
    assert len(principal.routes.routes) <= 1 + CACHE_BYTES_MAX // ROUTE_BYTES
    assert len(principal._answers) <= 1 + ANSWERS_BYTES_MAX // ANSWER_BYTES
