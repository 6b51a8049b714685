"""Attacks on the disk: what the broker writes by itself, such as dead letters, commits and retained messages."""

from __future__ import annotations

import contextlib
import time

from mqtt_packets import publish_packet

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import Table, encode_table

from .attack_words import LOAD_S, Ports, attack, bind, consume, device, exchange, hostile, queue, subscribe_to
from .attacker import Attacker, publish_frames

MEGABYTE = bytes(1 << 20)
STORED = {"delivery_mode": 2}
TO_DEAD: Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


@attack
def letters_of_a_megabyte(ports: Ports) -> None:
    """One publish of 1 MiB to 1,000 queues without room, whose dead letters go to one: 1 GiB to be written."""
    client = hostile(ports)
    client.pump([queue("dead", durable=True), exchange("all", "fanout")])
    full = {**TO_DEAD, "x-max-length": 0}
    for number in range(1000):
        client.pump([queue(f"none{number}", full, durable=True), bind(f"none{number}", "all")])
    client.barrier()
    client.pump([publish_frames("all", "", MEGABYTE, STORED)])
    client.barrier()
    time.sleep(LOAD_S)


@attack
def large_messages_remembered(ports: Ports) -> None:
    """1,000 messages of 60 kB that an exchange remembers, and 30 queues that are bound to it."""
    client = hostile(ports)
    arguments = encode_table({"x-recent-history-length": 1000})
    client.pump(
        [method_frame(1, m.ExchangeDeclare(0, "past", "x-recent-history", False, True, False, False, True, arguments))]
    )
    client.pump(publish_frames("past", "", MEGABYTE[:60_000], STORED) for _ in range(1000))
    client.pump(queue(f"late{number}", durable=True) + bind(f"late{number}", "past") for number in range(30))
    client.barrier()


@attack
def quorum_consumer_leaves(ports: Ports) -> None:
    """A consumer of a quorum queue with 300 MB unacknowledged, which hangs up."""
    client = hostile(ports)
    client.pump([queue("quorum", {"x-queue-type": "quorum"}, durable=True), consume("quorum", "takes-all")])
    client.pump(publish_frames("", "quorum", MEGABYTE, STORED) for _ in range(300))
    client.barrier()
    client.close()


@attack
def large_messages_rejected(ports: Ports) -> None:
    """One basic.nack for 300 messages of 1 MiB, which are dead-lettered."""
    client = hostile(ports)
    client.pump([queue("dead", durable=True), queue("live", TO_DEAD, durable=True), consume("live", "takes-all")])
    client.pump(publish_frames("", "live", MEGABYTE, STORED) for _ in range(300))
    client.barrier()
    client.pump([method_frame(1, m.BasicNack(0, multiple=True, requeue=False))])
    client.barrier()
    time.sleep(LOAD_S / 2)


@attack
def large_messages_expire(ports: Ports) -> None:
    """300 messages of 1 MiB with a dead letter exchange, which expire in the same moment."""
    client = hostile(ports)
    client.pump([queue("dead", durable=True), queue("old", {**TO_DEAD, "x-message-ttl": 5_000}, durable=True)])
    client.pump(publish_frames("", "old", MEGABYTE, STORED) for _ in range(300))
    client.barrier()
    time.sleep(5 + LOAD_S / 2)


def transaction(ports: Ports) -> Attacker:
    """Return a client with a transaction on channel 1, and a durable queue."""
    client = hostile(ports)
    client.pump([queue("committed", durable=True), method_frame(1, m.TxSelect())])
    client.read_until(m.TxSelectOk, 1)
    return client


def commit(client: Attacker) -> None:
    client.pump([method_frame(1, m.TxCommit())])
    client.read_until(m.TxCommitOk, 1)


@attack
def commit_of_large_messages(ports: Ports) -> None:
    """Commits of 60 messages of 1 MiB, which are as large as they may be."""
    client = transaction(ports)
    for _ in range(5):
        client.pump(publish_frames("", "committed", MEGABYTE, STORED) for _ in range(60))
        commit(client)


@attack
def commit_of_many_messages(ports: Ports) -> None:
    """Commits of 50,000 messages, which are about as large as they may be."""
    client = transaction(ports)
    batch = publish_frames("", "committed", b"x" * 100, STORED) * 1_000
    for _ in range(4):
        client.pump(batch for _ in range(50))
        commit(client)


@attack
def transactions_without_end(ports: Ports) -> None:
    """Four channels that publish 300 MiB each in a transaction; it is too large long before that."""
    for _ in range(4):
        client = transaction(ports)
        with contextlib.suppress(ConnectionError):
            client.pump(publish_frames("", "committed", MEGABYTE, STORED) for _ in range(300))
            commit(client)
        client.close()


@attack
def commit_for_many_queues(ports: Ports) -> None:
    """One tx.commit of 120 messages for 1,000 queues each, which is about as large as it may be."""
    client = transaction(ports)
    client.pump([exchange("all", "fanout")])
    client.pump(queue(f"all{at}", durable=True) + bind(f"all{at}", "all") for at in range(1_000))
    client.pump(publish_frames("all", "", b"x" * 1_000, STORED) for _ in range(120))
    commit(client)


@attack
def commit_of_many_acks(ports: Ports) -> None:
    """One tx.commit of 200,000 acknowledgements."""
    client = transaction(ports)
    other = hostile(ports)
    batch = publish_frames("", "committed", b"x" * 100, STORED) * 1_000
    other.pump(batch for _ in range(200))
    other.barrier()
    client.pump([consume("committed", "takes-all")])
    client.barrier()
    other.close()
    client.pump([publish_frames("", "committed", b"last", STORED), method_frame(1, m.BasicAck(0, True))])
    commit(client)


@attack
def commit_of_requeues(ports: Ports) -> None:
    """One tx.commit that gives 300 messages of 1 MiB back to a quorum queue, which stores them again."""
    client = transaction(ports)
    other = hostile(ports)
    other.pump([queue("quorum", {"x-queue-type": "quorum"}, durable=True)])
    other.pump(publish_frames("", "quorum", MEGABYTE, STORED) for _ in range(300))
    other.barrier()
    client.pump([consume("quorum", "takes-all")])
    client.barrier()
    client.pump(
        [
            method_frame(1, m.BasicNack(0, multiple=True, requeue=True)),
            method_frame(1, m.BasicCancel("takes-all", True)),
        ]
    )
    commit(client)


@attack
def filters_of_everything(ports: Ports) -> None:
    """60,000 times the filter of everything in one SUBSCRIBE at QoS 1, with 20 MB retained; nothing is read."""
    client = device(ports, "retains")
    for at in range(200):
        client.call(publish_packet(f"a/{at}", MEGABYTE[:100_000], 1, 1, retain=True))
    hungry = device(ports, "hungry")
    hungry.send(subscribe_to(["#"] * 60_000))
    time.sleep(LOAD_S)


@attack
def many_filters_of_everything(ports: Ports) -> None:
    """1,024 filters each of which fits all of 20 MB retained, in one SUBSCRIBE at QoS 1; nothing is read."""
    client = device(ports, "retains")
    levels = "abcdefghij"
    for at in range(200):
        client.call(publish_packet("/".join([*levels, str(at)]), MEGABYTE[:100_000], 1, 1, retain=True))
    parts = [
        ["+" if number >> at & 1 else level for at, level in enumerate(levels)] for number in range(1 << len(levels))
    ]
    hungry = device(ports, "hungry")
    hungry.send(subscribe_to(["/".join([*each, "#"]) for each in parts]))
    time.sleep(LOAD_S)


@attack
def many_unacked(ports: Ports) -> None:
    """A channel with 300,000 unacknowledged deliveries, which closes."""
    client = hostile(ports)
    client.pump([queue("unacked"), consume("unacked", "takes-all")])
    batch = publish_frames("", "unacked", b"x") * 1_000
    client.pump(batch for _ in range(300))
    client.barrier()
    client.close()
