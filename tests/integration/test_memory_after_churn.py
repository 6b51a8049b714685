"""Closed clients and deleted objects leave nothing behind: in the engine to the object, in the process to some
megabytes.

The cyclic garbage collector of the broker never looks at what has been there for long, so a reference cycle is a leak.
The engine is therefore driven with the collector off, and its objects are counted.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from amqp10_harness import amqp10_client, message
from broker_process import WarrenProcess, wait_until
from compat.pika_client.wire import WireClient
from engine_harness import USER, Harness, content_frames
from mqtt_harness import MqttClient, mqtt_client
from pika import spec
from stomp_harness import StompClient, stomp_client

from warren.amqp import methods as m
from warren.amqp.codec import frame, method_frame
from warren.amqp.declarations import QueueDeclaration
from warren.amqp.field_table import EMPTY_TABLE, Table, encode_table
from warren.amqp10.performatives import ACCEPTED, CLOSE
from warren.channels.ending import force_close
from warren.msgstore.log.message import Message
from warren.queues.browse import Cursor, look
from warren.queues.claim_names import claims_name
from warren.queues.claims import ClaimQueue, claims_arguments, ends_of, mark_of
from warren.queues.offset_columns import read_columns
from warren.server.freed_memory import KEPT_BYTES
from warren.streams.consumer import AT_TIME, Start
from warren.streams.offset_search import find
from warren.streams.sealed_reads import read_sealed
from warren.streams.stream import Stream
from warren.vhosts.metadata import UserDelete, VhostDelete, VhostPut

from .peers import broker_at, open_wire, publish_frames

MIB = 1 << 20

# --- the engine ------------------------------------------------------------------------------------------------------

Scene = Callable[[Harness], None]


def _polite(harness: Harness) -> None:
    client = harness.channel()
    client.declare("q", exclusive=True)
    client.consume("q", "tag")
    client.publish("", "q", b"one")
    client.publish("", "q", b"two")
    (first, second) = client.deliveries()
    client.send(1, m.BasicAck(first.method.delivery_tag, False))
    client.send(1, m.BasicReject(second.method.delivery_tag, False))
    client.call(1, m.ChannelClose(200, "", 0, 0))
    client.open(1)
    client.call(0, m.ConnectionClose(200, "", 0, 0))
    client.hang_up()


def _vanishes_with_everything_open(harness: Harness) -> None:
    client = harness.client()
    for number in (1, 2, 3, 4):
        client.open(number)
    client.call(2, m.TxSelect())
    client.call(3, m.ConfirmSelect(False))
    client.declare("kept")
    client.declare("own", exclusive=True)
    client.bind("kept", "amq.topic", "a.#")
    client.consume("kept", "acking")
    client.consume("own", "own", no_ack=True)
    client.consume("amq.rabbitmq.reply-to", no_ack=True)
    client.publish("amq.topic", "a.b", b"unacked")
    client.publish("", "own", b"seen")
    client.publish("", "kept", b"uncommitted", number=2)
    client.publish("", "kept", b"confirmed", number=3)
    begun = method_frame(4, m.BasicPublish(0, "", "kept", mandatory=False, immediate=False))
    client.feed(begun + content_frames(4, b"x" * 9000, frame_max_bytes=4096)[:5000])
    assert len(client.take()) == 4
    client.hang_up()
    _delete(harness, "kept")


def _delete(harness: Harness, *queues: str) -> None:
    client = harness.channel()
    for name in queues:
        client.call(1, m.QueueDelete(0, name, if_unused=False, if_empty=False, no_wait=False))
    client.hang_up()


def _channel_errors(harness: Harness) -> None:
    client = harness.channel()
    for call in (
        m.QueueDeclare(0, "nowhere", True, False, False, False, False, EMPTY_TABLE),
        m.BasicAck(77, False),
        m.BasicGet(0, "nowhere", False),
        m.ExchangeDeclare(0, "x", "no such type", False, False, False, False, False, EMPTY_TABLE),
    ):
        assert client.refused(1, call).scope == "channel"
    client.publish("no such exchange", "", b"lost")
    assert client.refusal().code == 404
    client.hang_up()


def _connection_errors(harness: Harness) -> None:
    for data in (
        method_frame(1, m.ChannelOpen("")),
        b"\x01\x00\x01\x00\x00\x00\x04\x00\x00\x00\x00\xce",
        b"\x09\x00\x01\x00\x00\x00\x00\xce",
        b"\x01\x00\x01\xff\xff\xff\xff",
    ):
        client = harness.channel()
        client.declare("own", exclusive=True)
        client.consume("own")
        client.feed(data)
        assert client.refusal().scope == "connection"
        client.hang_up()


def _logins_that_fail(harness: Harness) -> None:
    for speak in (
        lambda client: client.feed(b"GET / HTTP/1.1\r\n\r\n"),
        lambda client: client.start(),
        lambda client: (client.start(), client.start_ok("nobody", b"wrong")),
        lambda client: (client.start(), client.feed(b"\x01\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00\xce")),
        lambda client: (client.start(), client.send(0, m.ConnectionStartOk({}, "PLAIN", b"?", "en_US"))),
    ):
        client = harness.raw_client()
        speak(client)
        client.hang_up()


def _consumers_whose_queue_goes(harness: Harness) -> None:
    owner, others = harness.channel(), [harness.channel() for _ in range(3)]
    owner.declare("single", arguments={"x-single-active-consumer": True})
    owner.declare("temporary", auto_delete=True)
    for number, client in enumerate(others):
        client.consume("single", arguments={"x-priority": number})
        client.consume("temporary")
    for _ in range(4):
        owner.publish("", "single", b"unacked")
        owner.publish("", "temporary", b"unacked")
    owner.call(1, m.QueueDelete(0, "single", if_unused=False, if_empty=False, no_wait=False))
    for client in [*others, owner]:
        client.hang_up()


def _exchanges_of_every_kind(harness: Harness) -> None:
    client = harness.channel()
    kinds = ("direct", "fanout", "topic", "headers", "x-consistent-hash", "x-modulus-hash", "x-random")
    for kind in (*kinds, "x-recent-history"):
        client.declare_exchange(kind, kind, arguments={"alternate-exchange": "amq.fanout"})
        client.declare(f"q {kind}")
        client.bind(f"q {kind}", kind, "1", {"x-match": "any", "a": 1})
        client.call(1, m.ExchangeBind(0, kind, "amq.topic", "#", False, EMPTY_TABLE))
        client.publish(kind, "1", b"m", headers=encode_table({"a": 1, "CC": ["elsewhere"]}))
    client.call(1, m.ExchangeBind(0, "direct", "fanout", "", False, EMPTY_TABLE))
    client.call(1, m.ExchangeBind(0, "fanout", "direct", "", False, EMPTY_TABLE))
    client.publish("direct", "1", b"round and round")
    for kind in (*kinds, "x-recent-history"):
        client.call(1, m.ExchangeDelete(0, kind, if_unused=False, no_wait=False))
        client.call(1, m.QueueDelete(0, f"q {kind}", if_unused=False, if_empty=False, no_wait=False))
    client.hang_up()


def _held_up(harness: Harness) -> None:
    """Go while a commit, an alarm, or the own outbox is waited for."""
    harness.hold_commits = True
    client = harness.channel()
    client.send(1, m.QueueDeclare(0, "late", False, True, False, False, False, EMPTY_TABLE))
    client.send(1, m.BasicQos(0, 1, False))
    client.hang_up()
    harness.hold_commits = False
    harness.settle()
    harness.broker.set_alarm("memory", True)
    client = harness.channel()
    client.publish("", "late", b"blocked")
    client.hang_up()
    harness.broker.set_alarm("memory", False)
    client = harness.channel()
    client.peer.stalled = True
    client.feed(b"".join(publish_frames("", "nowhere", b"x" * 60000, mandatory=True) for _ in range(10)))
    assert client.connection.paused
    client.hang_up()
    _delete(harness, "late")


def _forced_out(harness: Harness) -> None:
    client = harness.channel()
    client.declare("own", exclusive=True)
    client.consume("own")
    force_close(client.connection, "a reason")
    harness.settle()
    assert client.refusal().code == 320
    client.hang_up()
    silent = harness.client(heartbeat_s=1)
    harness.pass_time(60)
    silent.hang_up()


def _goes_within_a_large_frame(harness: Harness) -> None:
    client = harness.channel()
    client.declare("kept")
    begun = method_frame(1, m.BasicPublish(0, "", "kept", mandatory=False, immediate=False)) + content_frames(
        1, bytes(100_000)
    )
    client.feed(begun[:40_000])
    client.feed(begun[40_000:70_000])
    client.hang_up()
    _delete(harness, "kept")


def _vhosts(harness: Harness) -> None:
    """A vhost goes with a client that is in the middle of something, dead letters, and bindings."""
    harness.broker.administer(VhostPut("v"))
    harness.permit(USER, vhost="v")
    client = harness.client(vhost="v")
    client.open(1)
    dying: Table = {"x-message-ttl": 1000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    client.declare("dying", arguments=dying)
    client.declare("dead", arguments={"x-max-priority": 2})
    client.declare_exchange("to all", "fanout")
    client.bind("dead", "to all")
    client.consume("dead")
    for _ in range(3):
        client.publish("", "dying", b"x")
    harness.pass_time(2)
    client.publish("", "dying", b"x")
    vhost = harness.broker.vhosts["v"]
    assert len(vhost.sorted_queues.get(vhost.topology_version)) == 2  # as a list of the API keeps them
    harness.broker.administer(VhostDelete("v"))
    harness.settle()
    client.hang_up()
    harness.settle()


def _streams(harness: Harness) -> None:
    """Consume from everywhere, alone and in a group; the stream goes under one consumer that is still there."""
    arguments: Table = {"x-queue-type": "stream", "x-max-age": "1h", "x-message-deduplication": True}
    client, second = harness.channel(), harness.channel()
    client.declare("s", durable=True, arguments=arguments)
    for number in range(20):
        client.publish("", "s", b"%d" % number)
    starts: list[Table] = [{"x-stream-offset": start} for start in ("first", "next", "1h", 5)]
    starts.append({"x-stream-offset": "first", "x-group": "g"})
    for reader in (client, second):
        reader.call(1, m.BasicQos(0, 3, False))
        for number, start in enumerate(starts):
            reader.consume("s", f"c{number}", arguments=start)
    (last, *_) = reversed(second.deliveries())
    second.send(1, m.BasicAck(last.method.delivery_tag, True))
    harness.pass_time(2)
    second.hang_up()
    client.send(1, m.QueueDelete(0, "s", if_unused=False, if_empty=False, no_wait=False))
    client.take()
    client.hang_up()


def _sealed_streams(harness: Harness) -> None:
    """Seal, read what is sealed in every way, compact, retain; the streams go while that is under way."""
    log = harness.broker.log
    client, second = harness.channel(), harness.channel()
    for name, more in (("s", {"x-max-length-bytes": 4000}), ("k", {"x-cleanup": "compact"})):
        arguments: Table = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 300}
        client.declare(name, durable=True, arguments=arguments | more)
    log.sealed.chunk_messages = 5
    streams = [harness.queue(name) for name in ("s", "k")]

    def publish(count: int) -> None:
        for number in range(count):
            headers = encode_table({"x-stream-filter-value": f"v{number % 3}"})
            client.publish("", ("s", "k")[number % 2], bytes(100), headers=headers)
        log.force()
        harness.settle()
        for stream in streams:
            assert isinstance(stream, Stream)
            stream.messages.sealer.step(stream)
        harness.settle()

    publish(100)
    log.memory_bytes, memory_bytes = 0, log.memory_bytes
    publish(60)  # is read back from the log
    log.memory_bytes = memory_bytes
    publish(21)
    told: list[object] = []
    for reader in (client, second):
        reader.call(1, m.BasicQos(0, 7, False))
    for stream in streams:
        assert isinstance(stream, Stream) and stream.messages.sealed_end() > 60
        table = stream.messages.sealer.table
        for reader in (client, second):
            for number, start in enumerate(("first", stream.next_offset() - 20, "1h")):
                start_at: Table = {"x-stream-offset": start}
                reader.consume(stream.name, f"{stream.name}{number}", arguments=start_at)
                reader.consume(stream.name, f"{stream.name}{number}f", arguments=start_at | {"x-stream-filter": "v1"})
            reader.consume(stream.name, f"{stream.name}g", arguments={"x-stream-offset": "first", "x-group": "g"})
        look(stream, Cursor(3), 5, told.append)
        find(stream, Start(AT_TIME, log.now_ms - 1000), told.append)
        read_sealed(stream, *table.place(stream.first_offset()), told.append)
        read_columns(
            stream,
            stream.messages.sealed_end(),
            stream.synced_end(),
            bodies=True,
            properties=False,
            told=lambda *_: told.append(1),
        )
        harness.settle()
    assert len(told) == 8
    (last, *_) = reversed(second.deliveries())
    second.send(1, m.BasicNack(last.method.delivery_tag, multiple=True, requeue=True))
    publish(40)
    second.hang_up()
    harness.store.hold = True
    log.sealed.chunk_messages = 3
    for stream in streams:
        assert isinstance(stream, Stream)
        look(stream, Cursor(), 5, told.append)
        find(stream, Start(AT_TIME, log.now_ms - 1000), told.append)
        stream.messages.sealer.step(stream)
    client.send(1, *(m.QueueDelete(0, name, if_unused=False, if_empty=False, no_wait=False) for name in ("s", "k")))
    harness.store.hold = False
    harness.settle()
    client.take()
    client.hang_up()
    assert harness.store.files.streams.names("streams") == []
    log.checkpoints.want()
    harness.settle()


def _super_streams(harness: Harness) -> None:
    """Spread a group over partitions, move them to and fro, and let them go under instances that are still there."""
    client, second = harness.channel(), harness.channel()
    arguments: Table = {"x-super-stream": 3, "x-max-age": "1h"}
    declare = m.ExchangeDeclare(0, "e", "x-super-stream", False, True, False, False, False, encode_table(arguments))
    for _ in range(2):
        assert client.call(1, declare) == m.ExchangeDeclareOk()
    client.feed(b"".join(publish_frames("e", str(number), b"x") for number in range(30)))
    partitions = ("e-0", "e-1", "e-2")
    for reader in (client, second):
        reader.call(1, m.BasicQos(0, 3, False))
        for name in partitions:
            reader.consume(name, name, arguments={"x-stream-offset": "first", "x-group": "g"})
    (last, *_) = reversed(second.deliveries())
    second.send(1, m.BasicNack(last.method.delivery_tag, multiple=True, requeue=True))
    (last, *_) = reversed(second.deliveries())
    second.send(1, m.BasicAck(last.method.delivery_tag, True))
    harness.pass_time(2)
    second.hang_up()
    order = encode_table({"x-stream-partition-order": 0})
    client.send(1, m.QueueUnbind(0, "e-0", "e", "0", order), m.QueueBind(0, "e-0", "e", "9", False, order))
    client.send(1, m.ExchangeDelete(0, "e", if_unused=False, no_wait=False))
    client.send(1, *(m.QueueDelete(0, name, if_unused=False, if_empty=False, no_wait=False) for name in partitions))
    client.take()
    client.hang_up()


def _drains(harness: Harness) -> None:
    """Claim, read, acknowledge and give back; then the queue goes, and the claims while they are being read."""
    client = harness.channel()
    client.declare("q", durable=True, arguments={"x-max-priority": 2})
    arguments = claims_arguments("q", "c")
    harness.vhost.declare_queue(QueueDeclaration(claims_name("q", "c"), durable=True, arguments=arguments))
    claims = harness.vhost.queues[claims_name("q", "c")]
    assert isinstance(claims, ClaimQueue)
    for number in range(20):
        client.publish("", "q", b"%d" % number, delivery_mode=1 + number % 2, priority=number % 3)
    client.publish("", claims.name, b"refused", expiration="5")
    ends = ends_of(harness.queue("q"), mark_of(harness.queue("q")))
    assert claims.claim(harness.plain_queue("q"), 15, 1 << 30, True, ends).count == 15
    harness.broker.log.force()
    harness.settle()
    told: list[object] = []
    claims.find_first(told.append)
    read_columns(claims, 0, 15, bodies=True, properties=True, told=lambda *found: told.append(found))
    claims.settle_below(7, lambda: told.append(None))
    harness.settle()
    claims.give_back(harness.plain_queue("q"), told.append)
    harness.settle()
    assert len(told) == 4 and claims.first_offset() == 15
    assert claims.claim(harness.plain_queue("q"), 5, 1 << 30, True, []).count == 5
    harness.broker.log.force()
    harness.settle()
    harness.store.hold = True
    read_columns(claims, 15, 20, bodies=True, properties=True, told=lambda *found: told.append(found))
    harness.settle()
    harness.broker.delete_queue(harness.vhost, harness.queue("q"))
    harness.broker.delete_queue(harness.vhost, claims)
    harness.store.hold = False
    harness.settle()
    client.hang_up()


def _mqtt(harness: Harness) -> None:
    """Subscribe, publish and leave in each way: with a word, without one, with a will, taken over, and refused."""
    for version in (4, 5):
        client = mqtt_client(harness, version, "reader")
        client.subscribe("a/#", "b", qos=1)
        other = mqtt_client(harness, version, "writer", will=("gone", b"bye", 0, False))
        for qos in (0, 1):
            other.publish("a/b", b"x", qos, **({"packet_id": 3} if qos else {}))
        client.take()
        client.unsubscribe("b")
        other.hang_up()
        again = mqtt_client(harness, version, "reader")
        again.publish("b", b"kept", retain=True)
        again.publish("b", b"", retain=True)
        again.feed(b"\xe0\x00")
        client.hang_up()
        again.hang_up()
        for data in (b"\xf0\x00", b"\x30\x80\x80\x80\x80\x80"):
            client = mqtt_client(harness, version, "wrong")
            client.subscribe("c", qos=1)
            client.feed(data)
            assert client.ended
            client.hang_up()
    MqttClient(harness).hang_up()
    harness.broker.log.force()  # the records of what is retained
    harness.pass_time(1)


def _stomp(harness: Harness) -> None:
    """Subscribe, send, acknowledge, in transactions too, and leave in each way."""
    for leave in ("DISCONNECT", "", "NONSENSE"):
        client = stomp_client(harness)
        client.send("SUBSCRIBE", id="1", destination="/queue/q", ack="client-individual")
        client.send("SUBSCRIBE", id="2", destination="/topic/t", ack="auto")
        client.send("SEND", b"one", destination="/topic/t")
        client.send("SEND", b"two", destination="/queue/q")
        client.send("BEGIN", transaction="t")
        client.send("SEND", b"three", destination="/queue/q", transaction="t")
        client.send("UNSUBSCRIBE", id="2")
        if leave:
            client.send(leave)
        client.hang_up()
    StompClient(harness).hang_up()
    _delete(harness, "q")
    harness.permit(USER)  # drops the remembered answers about queues whose names are used once


def _amqp10(harness: Harness) -> None:
    """Attach, send, receive, settle, and leave in each way."""
    channel = harness.channel()
    channel.declare("q10")
    for leave in (True, False):
        client = amqp10_client(harness)
        client.sender(0, "/queues/q10")
        client.receiver(1, "/queues/q10")
        client.transfer(0, message(b"one"))
        client.transfer(0, message(b"two"))
        client.credit(1, 2)
        client.settle(0, 0, ACCEPTED)
        if leave:
            client.send(CLOSE, [])
        client.hang_up()
    channel.hang_up()
    _delete(harness, "q10")


def _users(harness: Harness) -> None:
    """A user comes, works, and is deleted, as with leases of a Vault."""
    harness.add_user("lease")
    client = harness.client("lease")
    client.open(1)
    client.declare("of a lease", exclusive=True)
    client.publish("", "of a lease", b"x")
    harness.broker.administer(UserDelete("lease"))
    harness.settle()
    client.hang_up()


SCENES: list[Scene] = [
    _mqtt,
    _stomp,
    _amqp10,
    _users,
    _drains,
    _streams,
    _sealed_streams,
    _super_streams,
    _polite,
    _vanishes_with_everything_open,
    _channel_errors,
    _connection_errors,
    _logins_that_fail,
    _consumers_whose_queue_goes,
    _exchanges_of_every_kind,
    _held_up,
    _forced_out,
    _goes_within_a_large_frame,
    _vhosts,
]


def _objects_of_the_engine() -> Counter[str]:
    return Counter(
        type(each).__name__
        for each in gc.get_objects()
        if str(type(each).__module__).startswith("warren.") and not isinstance(each, type)
    )


def _garbage() -> Counter[str]:
    """The types of what only a collector frees; it is freed."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return Counter(type(each).__name__ for each in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.collect()


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__.strip("_"))
def test_the_engine_forgets_what_is_over_without_a_collector(scene: Scene) -> None:
    gc.collect()
    # What was there before is out of sight, and costs nothing: also the remains of earlier tests, such as a thread that
    # is about to end, which may become garbage meanwhile.
    gc.freeze()
    harness = Harness(outbox_soft_bytes=1 << 16, outbox_hard_bytes=1 << 18)

    def play(times: int) -> None:
        for _ in range(times):
            scene(harness)
            harness.notices.clear()
            harness.take_changes()

    play(10)
    gc.collect()
    gc.disable()
    before, blocks_before = _objects_of_the_engine(), sys.getallocatedblocks()
    try:
        play(40)
        # Whatever a collector finds now would have stayed for ever. It also empties the interpreter's free lists.
        assert _garbage() == Counter()
        assert _objects_of_the_engine() - before == Counter()
        # Objects unknown to the collector (messages, deliveries, bytes) show here.
        assert sys.getallocatedblocks() - blocks_before < 40
    finally:
        gc.enable()
    assert not harness.broker.connections
    assert harness.broker.shared.inbound.held_bytes == 0
    assert not harness.broker.vhosts["/"].queues


def test_a_budget_for_bodies_received_in_part_ends_who_exceeds_it_and_stops_nobody_else() -> None:
    harness = Harness(inbound_max_bytes=100_000)
    holder, others = harness.client(), harness.channel()
    others.declare("q")
    rest = {}
    for number in (1, 2, 3):
        holder.open(number)
        content = content_frames(number, b"x" * 90_000, frame_max_bytes=4096)
        header_bytes = len(content_frames(number, b""))
        holder.feed(
            method_frame(number, m.BasicPublish(0, "", "q", mandatory=False, immediate=False)) + content[:header_bytes]
        )
        rest[number] = content[header_bytes : header_bytes + 20 * 4096]
    holder.feed(rest[1])
    others.publish("", "q", b"first")
    holder.feed(rest[2])
    others.publish("", "q", b"second")
    assert [body(each) for each in harness.queue("q").ready.in_memory()] == [b"first", b"second"]
    holder.feed(rest[3])
    refusal = holder.refusal()
    assert (refusal.scope, refusal.code) == ("connection", 506)
    assert harness.broker.shared.inbound.held_bytes == 0
    others.nothing()


def body(message: Message) -> bytes:
    return bytes(message.body())


# --- the process -----------------------------------------------------------------------------------------------------


def _churn_connections(process: WarrenProcess, count: int) -> None:
    for number in range(count):
        client = WireClient(broker_at(process))
        client.handshake()
        client.open_channel()
        if number % 2:
            client.end()
        client.close()


def _churn_queues(process: WarrenProcess, count: int) -> None:
    with open_wire(process) as client:
        for start in range(0, count, 500):
            requests, replies = [], 0
            for number in range(start, start + 500):
                name = f"churned {number}"
                durable = number % 2 == 0
                requests += [
                    m.QueueDeclare(0, name, False, durable, False, False, False, EMPTY_TABLE),
                    m.QueueBind(0, name, "amq.topic", f"{name}.#", False, EMPTY_TABLE),
                    m.QueueDelete(0, name, if_unused=False, if_empty=False, no_wait=False),
                ]
            replies = len(requests)
            sender = threading.Thread(
                target=client.send_bytes, args=(b"".join(method_frame(1, request) for request in requests),)
            )
            sender.start()
            for _ in range(replies):
                client.next_frame()
            sender.join()


def _churn_messages(process: WarrenProcess, count: int) -> None:
    body = b"m" * 100
    with open_wire(process) as publisher, open_wire(process) as consumer:
        consumer.send(1, spec.Queue.Declare(exclusive=False, auto_delete=True))
        queue = consumer.expect(spec.Queue.DeclareOk, 1).queue
        consumer.send(1, spec.Basic.Consume(queue=queue, no_ack=True, consumer_tag="c"))
        consumer.expect(spec.Basic.ConsumeOk, 1)
        message = publish_frames("", queue, body)
        sender = threading.Thread(target=publisher.send_bytes, args=(message * count,))
        deliver = method_frame(1, m.BasicDeliver("c", 1, False, "", queue))
        publish = method_frame(1, m.BasicPublish(0, "", queue, mandatory=False, immediate=False))
        left = count * (len(deliver) + len(message) - len(publish))
        sender.start()
        while left:
            left -= len(consumer.socket.recv(min(left, MIB)))
        sender.join()


@pytest.mark.long
def test_the_process_gives_back_what_connections_queues_and_messages_took(tmp_path: Path) -> None:
    with WarrenProcess(tmp_path) as process:
        _churn_connections(process, 200)
        _churn_queues(process, 500)
        _churn_messages(process, 20_000)
        before = process.resident_bytes()
        grown = {}
        for name, churn, count in (
            ("connections", _churn_connections, 2000),
            ("queues", _churn_queues, 5000),
            ("messages", _churn_messages, 200_000),
        ):
            churn(process, count)
            grown[name] = (process.resident_bytes() - before) / MIB
        print(", ".join(f"after {name}: {size:+.1f} MiB" for name, size in grown.items()))
        wait_until(lambda: process.resident_bytes() - before < 12 * MIB, f"the memory to be given back: {grown}")


@pytest.mark.long
def test_the_memory_of_unfinished_messages_goes_back_to_the_system(tmp_path: Path) -> None:
    connections, frames = 20, 100
    piece = frame(m.FRAME_BODY, 1, bytes(128 * 1024 - m.FRAME_OVERHEAD_BYTES))
    with WarrenProcess(tmp_path) as process:
        before = process.resident_bytes()
        clients = [open_wire(process) for _ in range(connections)]
        for client in clients:
            client.send(1, spec.Basic.Publish(exchange="", routing_key="q"))
            client.send_header(1, 100 * MIB)
        # In turns, so that the pieces of each lie between those of others.
        for _ in range(frames):
            for client in clients:
                client.send_bytes(piece)
        held = connections * frames * len(piece)
        wait_until(lambda: process.resident_bytes() - before > 0.9 * held, "the broker to have read them")
        # Later objects, which stay, occupy the memory after them.
        later = [open_wire(process) for _ in range(connections)]
        for client in clients:
            client.close()
        wait_until(lambda: process.resident_bytes() - before < KEPT_BYTES, "the memory to be given back", 60)
        for client in later:
            client.close()
