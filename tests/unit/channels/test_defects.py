"""Work without a connection that meets a defect of ours, such as a lack of memory: it rests, and continues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from engine_harness import Client, Harness, basic_consume, bodies, publish_frames
from peer_frames import content_header

from warren.amqp import methods as m
from warren.amqp.codec import frame, method_frame
from warren.amqp.declarations import QueueDeclaration
from warren.amqp.field_table import encode_table
from warren.channels import broker as broker_module
from warren.channels import ending, jobs
from warren.channels import peer as peer_module
from warren.channels.back_pressure import tell_unblocked, unblock
from warren.channels.broker import Broker
from warren.channels.connection import Connection
from warren.channels.connection_states import ENDED
from warren.channels.ending import close_broken
from warren.channels.overdue import end_overdue
from warren.channels.reply_gate import ReplyGate
from warren.channels.shared import PAUSED_INBOUND
from warren.channels.shortage_notes import close_stalled
from warren.exchanges.binding import Binding
from warren.msgstore.log.queue_index import IndexOwner
from warren.msgstore.log.reclamation import Reclamation
from warren.queues.backlog import Backlog
from warren.queues.base_queue import BaseQueue
from warren.queues.consumer import Consumer
from warren.queues.delivery import DeliveryLedger
from warren.queues.long_work import REST_MS
from warren.queues.queue import Queue
from warren.queues.timers import FAILED_MS
from warren.vhosts import metadata_lane
from warren.vhosts.metadata import PolicyPut, VhostDelete
from warren.vhosts.topology_watcher import TopologyWatcher

interpreted = pytest.mark.skipif(jobs.__file__.endswith(".so"), reason="a compiled method cannot be replaced")
EMPTY = encode_table({})
DIES: dict[str, object] = {"x-dead-letter-exchange": "dead"}


class Scarce:
    """Memory that does not suffice for the first calls."""

    def __init__(self, failures: int = 1) -> None:
        self.left = failures

    def take(self) -> None:
        if self.left:
            self.left -= 1
            raise MemoryError


def failing(
    real: Callable[..., Any], scarce: Scarce, only: Callable[..., bool] = lambda *_: True
) -> Callable[..., Any]:
    """Return `real`, which fails first, where `only` says so."""

    def called(*given: Any, **named: Any) -> Any:
        if only(*given):
            scarce.take()
        return real(*given, **named)

    return called


def settle_with_defect(harness: Harness) -> None:
    """Come to rest, and let the job that has failed continue."""
    with pytest.raises(MemoryError):
        harness.settle()
    harness.settle()


def rest(harness: Harness) -> None:
    harness.pass_time(REST_MS / 1000)


# --- dead letters -----------------------------------------------------------------------------------------------------


def dying(harness: Harness, targets: tuple[str, ...]) -> Client:
    """Return a client of a queue `q` whose dead letters go to `targets`."""
    client = harness.channel()
    client.declare_exchange("dead", "fanout")
    for name in targets:
        client.declare(name, durable=True)
        client.bind(name, "dead", "")
    client.declare("q", durable=True, arguments=DIES)
    client.call(1, m.ConfirmSelect(False))
    return client


def reject(client: Client, *bodies: bytes) -> None:
    for body in bodies:
        client.publish("", "q", body, delivery_mode=2)
        client.expect(m.BasicAck)
        got = client.call(1, m.BasicGet(0, "q", False))
        assert isinstance(got, m.BasicGetOk)
        client.connection.feed(method_frame(1, m.BasicReject(got.delivery_tag, False)))


@interpreted
def test_a_letter_that_one_queue_could_not_take_comes_to_it_later_and_once_to_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness()
    client = dying(harness, ("one", "two", "three"))
    to_two = lambda queue, *_: queue.name == "two"  # noqa: E731
    monkeypatch.setattr(Queue, "accept", failing(Queue.accept, Scarce(), to_two))
    reject(client, b"1")
    settle_with_defect(harness)
    reject(client, b"2")
    harness.settle()
    rest(harness)
    assert harness.vhost.letters.in_line.waiting == 0
    for name in ("one", "two", "three"):
        assert bodies(client, name) == [b"1", b"2"]
    assert not harness.queue("q").persistent()[0]


@interpreted
def test_letters_pass_one_that_can_never_be_placed_and_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    client = dying(harness, ("one",))
    bad = lambda queue, message, *_: queue.name == "one" and message.body() == b"bad"  # noqa: E731
    monkeypatch.setattr(Queue, "accept", failing(Queue.accept, Scarce(1000), bad))
    reject(client, b"bad")
    settle_with_defect(harness)
    reject(client, b"1", b"2")
    for _ in range(4):
        rest(harness)  # and is not reported again
    assert bodies(client, "one") == [b"1", b"2"]
    assert harness.vhost.letters.in_line.waiting == 1
    assert harness.queue("q").persistent()[0] == 1, "the letter is lost"
    monkeypatch.undo()
    rest(harness)
    assert bodies(client, "one") == [b"bad"]
    assert not harness.queue("q").persistent()[0]


@interpreted
def test_a_letter_to_very_many_queues_gives_the_batch_back_while_it_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    names = tuple(f"t{at}" for at in range(1100))
    client = dying(harness, names)
    late = lambda queue, *_: queue.name == "t1090"  # noqa: E731
    monkeypatch.setattr(Queue, "accept", failing(Queue.accept, Scarce(), late))
    reject(client, b"1")
    settle_with_defect(harness)
    client.publish("", "q", b"2", delivery_mode=2)
    client.expect(m.BasicAck)
    rest(harness)
    assert {int(harness.queue(name).ready_count) for name in names} == {1}


# --- the journal ------------------------------------------------------------------------------------------------------


@interpreted
@pytest.mark.parametrize("count", [1, 1000])
def test_changes_of_the_metadata_are_stored_later(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    harness = Harness()
    client = harness.channel()
    journal = harness.broker.journal
    journal.hold()
    for at in range(count):
        client.connection.feed(method_frame(1, m.QueueDeclare(0, f"q{at}", False, True, False, False, True, EMPTY)))
    scarce = Scarce()
    encode = metadata_lane.encode_change
    monkeypatch.setattr(metadata_lane, "encode_change", failing(encode, scarce, lambda change: change.name == "q0"))
    journal.release()
    settle_with_defect(harness)
    other = harness.channel()
    other.send(1, m.QueueDeclare(0, "other", False, True, False, False, False, EMPTY))
    rest(harness)
    other.expect(m.QueueDeclareOk)
    named = [getattr(change, "name", "") for change in harness.changes]
    assert named[-count - 1 :] == [*(f"q{at}" for at in range(count)), "other"]


@interpreted
def test_a_change_for_which_memory_does_not_suffice_is_stored_before_later_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness()
    client = harness.channel()
    monkeypatch.setattr(metadata_lane, "encode_change", failing(metadata_lane.encode_change, Scarce(2)))
    declare = method_frame(1, m.QueueDeclare(0, "q", False, True, False, False, False, EMPTY))
    client.connection.feed(declare + declare)
    settle_with_defect(harness)
    client.nothing()
    rest(harness)
    assert [type(received.method) for received in client.take()] == [m.QueueDeclareOk, m.QueueDeclareOk]
    assert "q" in [getattr(change, "name", "") for change in harness.changes]


# --- the end of things ------------------------------------------------------------------------------------------------


class Forgetful(TopologyWatcher):
    """Does not get memory for what it is told first. The only watcher of a vhost: the step that tells it fails."""

    def __init__(self, failures: int = 1) -> None:
        self._scarce = Scarce(failures)

    def queue_let_go(self, queue: BaseQueue) -> None:
        self._scarce.take()

    def consumer_deleted(self, consumer: Consumer) -> None:
        self._scarce.take()

    def binding_deleted(self, vhost: str, binding: Binding, by: str) -> None:
        self._scarce.take()


def with_queues(harness: Harness, count: int) -> Client:
    client = harness.channel()
    client.declare_exchange("x", "fanout")
    for at in range(count):
        client.declare(f"q{at}", durable=True)
        client.bind(f"q{at}", "x", "")
        client.publish("", f"q{at}", b"m", delivery_mode=2)
    return client


@pytest.mark.parametrize("failures", [1, 1000])
def test_a_vhost_ends_and_leaves_no_message(failures: int) -> None:
    harness = Harness()
    with_queues(harness, 3)
    harness.vhost.watcher = Forgetful(failures)
    vhost = harness.vhost
    harness.broker.administer(VhostDelete("/"))
    settle_with_defect(harness)
    for _ in range(40):
        rest(harness)
    assert not vhost.queues and not vhost.exchanges
    assert not harness.indexes, "messages are left in the log"
    assert VhostDelete("/") in harness.changes


def test_all_bindings_of_a_deleted_exchange_go() -> None:
    harness = Harness()
    with_queues(harness, 3)
    harness.vhost.watcher = Forgetful()
    source = harness.vhost.exchanges["x"]
    harness.vhost.delete_exchange(source)
    settle_with_defect(harness)
    rest(harness)
    assert not source.bindings


@interpreted
def test_all_queues_follow_a_policy_also_the_one_at_which_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    with_queues(harness, 3)
    first = lambda queue, *_: queue.name == "q0"  # noqa: E731
    monkeypatch.setattr(Queue, "apply_rules", failing(Queue.apply_rules, Scarce(4), first))
    harness.broker.administer(PolicyPut("/", "p", ".*", "queues", 0, '{"max-length":10}'))
    settle_with_defect(harness)
    rest(harness)
    assert [int(harness.queue(f"q{at}").rules.max_length) for at in (1, 2)] == [10, 10]
    for _ in range(4):
        rest(harness)
    assert harness.queue("q0").rules.max_length == 10


@interpreted
def test_a_queue_that_was_not_used_and_could_not_be_deleted_is_deleted_later(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    client = harness.channel()
    for name in ("one", "two"):
        client.declare(name, arguments={"x-expires": 1000})
    monkeypatch.setattr(Broker, "delete_queue", failing(Broker.delete_queue, Scarce()))
    with pytest.raises(MemoryError):
        harness.pass_time(1)
    harness.settle()
    assert len(harness.vhost.queues) == 1
    harness.pass_time(FAILED_MS / 1000)
    assert not harness.vhost.queues


# --- publishers and deliveries ----------------------------------------------------------------------------------------


@interpreted
def test_publishers_resume_and_the_one_that_could_not_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    clients = [harness.channel() for _ in range(3)]
    clients[0].declare("q")
    harness.broker.set_alarm("memory", True)
    for client in clients:
        client.connection.feed(publish_frames("", "q", b"m"))
    monkeypatch.setattr(jobs, "unblock", failing(unblock, Scarce()))
    harness.broker.set_alarm("memory", False)
    with pytest.raises(MemoryError):
        harness.settle()
    harness.settle()
    assert harness.queue("q").ready_count == 2


@interpreted
@pytest.mark.parametrize("asked", [m.BasicNack(0, True, True), None], ids=str)
def test_a_queue_delivers_again_when_a_return_has_failed(
    monkeypatch: pytest.MonkeyPatch, asked: m.BasicNack | None
) -> None:
    """All deliveries are back, the one that failed with the end of the connection."""
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    client.feed(b"".join(publish_frames("", "q", b"%d" % at) for at in range(5)))
    holder = harness.channel()
    holder.consume("q")
    monkeypatch.setattr(Queue, "requeue", failing(Queue.requeue, Scarce()))
    if asked is None:
        holder.connection.lost()
    else:
        holder.connection.feed(method_frame(1, asked))
    with pytest.raises(MemoryError):
        harness.settle()
    close_broken(holder.connection)  # as the reactor does
    harness.settle()
    rest(harness)
    assert harness.queue("q").ready_count == 5
    client.feed(method_frame(1, basic_consume("q", "c")))
    assert harness.queue("q").ready_count == 0, "it delivers nothing"


@interpreted
def test_a_consumer_whose_end_could_not_be_told_is_no_longer_the_active_one() -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q", arguments={"x-single-active-consumer": True})
    first, second = harness.channel(), harness.channel()
    first.consume("q")
    second.consume("q")
    harness.broker.watchers = Forgetful()  # type: ignore[assignment]
    first.connection.lost()
    settle_with_defect(harness)
    rest(harness)
    client.publish("", "q", b"m")
    assert second.bodies() == [b"m"]
    assert len(harness.queue("q").consumers) == 1


def test_all_clients_are_told_that_their_queue_is_gone() -> None:
    harness = Harness()
    consumers = [harness.channel() for _ in range(3)]
    consumers[0].declare("q")
    for consumer in consumers:
        consumer.consume("q")
    harness.vhost.watcher = Forgetful()
    harness.broker.delete_queue(harness.vhost, harness.queue("q"))
    settle_with_defect(harness)
    rest(harness)
    for consumer in consumers:
        consumer.expect(m.BasicCancel)


@interpreted
def test_deliveries_of_a_commit_that_has_failed_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    client.feed(b"".join(publish_frames("", "q", b"%d" % at) for at in range(4)))
    holder = harness.channel()
    assert holder.call(1, m.TxSelect()) == m.TxSelectOk()
    holder.consume("q")
    holder.send(1, m.BasicNack(1, False, True), m.BasicReject(2, False), m.BasicReject(3, False))
    monkeypatch.setattr(Queue, "reject", failing(Queue.reject, Scarce()))
    holder.connection.feed(method_frame(1, m.TxCommit()))
    with pytest.raises(MemoryError):
        harness.settle()
    close_broken(holder.connection)
    harness.settle()
    rest(harness)
    assert bodies(client) == [b"0", b"1", b"2", b"3"]


@interpreted
def test_a_consumer_that_could_not_be_told_of_its_timeout_is_ended_and_others_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness()
    consumers = [harness.channel() for _ in range(3)]
    for at, consumer in enumerate(consumers):
        consumer.declare(f"q{at}", arguments={"x-consumer-timeout": 60_000})
        consumer.consume(f"q{at}")
        consumer.publish("", f"q{at}", b"m")
        consumer.take()
    monkeypatch.setattr(broker_module, "end_overdue", failing(end_overdue, Scarce()))
    with pytest.raises(MemoryError):
        harness.pass_time(60)
    close_broken(consumers[0].connection)  # as the reactor does
    harness.settle()
    for consumer in consumers[1:]:
        consumer.expect(m.BasicCancel)
    assert [int(harness.queue(f"q{at}").ready_count) for at in range(3)] == [1, 1, 1]


@interpreted
@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 2}, {"x-queue-type": "stream"}], ids=str)
def test_a_queue_whose_turn_has_failed_delivers_after_a_pause(
    monkeypatch: pytest.MonkeyPatch, arguments: dict[str, object]
) -> None:
    """It delivered nothing until something else was published there, or answered."""
    harness = Harness()
    client = harness.channel()
    client.declare("q", durable=True, arguments=arguments)
    consumers = [harness.channel() for _ in range(2)]
    for consumer in consumers:
        consumer.call(1, m.BasicQos(0, 1, False))
        consumer.consume("q")
    queue = harness.queue("q")
    queue.pause(paused=True)
    client.feed(b"".join(publish_frames("", "q", b"m", properties={"delivery_mode": 2}) for _ in range(2)))
    monkeypatch.setattr(Consumer, "has_room", failing(Consumer.has_room, Scarce()))
    queue.pause(paused=False)
    queue.wake()
    settle_with_defect(harness)
    harness.pass_time(FAILED_MS / 1000)
    assert [consumer.bodies()[:1] for consumer in consumers] == [[b"m"], [b"m"]]


# --- binds ------------------------------------------------------------------------------------------------------------


@interpreted
def test_a_bind_that_has_failed_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    client.declare_exchange("h", "x-recent-history")
    client.publish("h", "", b"remembered")
    monkeypatch.setattr(Queue, "accept", failing(Queue.accept, Scarce()))
    other = harness.channel()
    other.connection.feed(method_frame(1, m.QueueBind(0, "q", "h", "", False, EMPTY)))
    with pytest.raises(MemoryError):
        harness.settle()
    close_broken(other.connection)
    harness.settle()
    client.bind("q", "h", "")
    assert len(harness.vhost.exchanges["h"].bindings) == 1


@interpreted
def test_removed_messages_are_taken_apart_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    client.feed(b"".join(publish_frames("", "q", b"m") for _ in range(10)))
    calls: list[int] = []
    real = Reclamation.take_apart

    def counted(*given: Any) -> Any:
        calls.append(1)
        return failing(real, scarce)(*given)

    scarce = Scarce(2)
    monkeypatch.setattr(Reclamation, "take_apart", counted)
    harness.queue("q").purge()
    settle_with_defect(harness)
    harness.settle()
    assert len(calls) == 1
    rest(harness)
    rest(harness)
    assert len(calls) == 3
    assert harness.broker.log.reclamation.is_empty()


# --- peers that are told one after the other --------------------------------------------------------------------------


def end_failed(harness: Harness, client: Client) -> None:
    """End the peer for which something could not be done, as the reactor does."""
    with pytest.raises(MemoryError):
        harness.settle()
    close_broken(client.connection)
    harness.settle()


@interpreted
def test_peers_continue_after_a_shortage_and_one_that_cannot_be_told_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(inbound_max_bytes=1_000_000)
    clients = [harness.channel() for _ in range(5)]
    clients[0].declare("q")
    begun = method_frame(1, m.BasicPublish(0, "", "q", mandatory=False, immediate=False))
    for client in clients:
        client.feed(begun + frame(2, 1, content_header({}, 600_000)) + frame(3, 1, bytes(100_000)) * 4)
    inbound = harness.broker.shared.inbound
    waiting = [client for client in clients if client.connection in inbound.waiting]
    assert len(waiting) > 1
    monkeypatch.setattr(peer_module, "tell_unblocked", failing(tell_unblocked, Scarce()))
    inbound._end_shortage()
    assert not any(client.connection.paused & PAUSED_INBOUND for client in waiting)
    end_failed(harness, waiting[0])
    monkeypatch.undo()
    assert not waiting[1].ended


@interpreted
def test_replies_are_sent_after_a_commit_and_a_peer_to_which_one_cannot_be_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was a failure of the store, and the broker ended."""
    harness = Harness()
    clients = [harness.channel() for _ in range(3)]
    harness.hold_commits = True
    for at, client in enumerate(clients):
        client.feed(method_frame(1, m.QueueDeclare(0, f"q{at}", False, True, False, False, False, EMPTY)))
        client.nothing()
    harness.broker.journal.committed_ticket = 1000
    harness.broker.log.done_batch = 1000
    monkeypatch.setattr(ReplyGate, "open", failing(ReplyGate.open, Scarce()))
    harness.broker.shut_gates.open()
    failed = [client for client in clients if client.connection.outbox.failure is not None]
    assert len(failed) == 1
    with pytest.raises(MemoryError):
        harness._flush()
    for client in clients:
        if client not in failed:
            client.expect(m.QueueDeclareOk)


@interpreted
def test_peers_look_at_the_time_and_one_that_always_fails_in_that_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was the first in each tick, and no other one was looked at: no heartbeats, no limits."""
    harness = Harness()
    clients = [harness.raw_client() for _ in range(3)]  # in a hurry
    only_first = lambda peer, *_: peer is clients[0].connection  # noqa: E731
    monkeypatch.setattr(Connection, "tick", failing(Connection.tick, Scarce(1000), only_first))
    harness.broker.tick(harness.now_s + 60)
    assert [client.connection.state for client in clients[1:]] == [ENDED, ENDED]
    end_failed(harness, clients[0])


@interpreted
def test_channels_that_send_no_more_are_closed_and_a_peer_that_cannot_be_told_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness(content_timeout_s=10.0)
    clients = [harness.channel() for _ in range(3)]
    begun = method_frame(1, m.BasicPublish(0, "", "q", mandatory=False, immediate=False))
    for client in clients:
        client.feed(begun + frame(2, 1, content_header({}, 9)) + frame(3, 1, b"1"))
    only_first = lambda channel, *_: channel.peer is clients[0].connection  # noqa: E731
    monkeypatch.setattr(broker_module, "close_stalled", failing(close_stalled, Scarce(1000), only_first))
    now_s = harness.now_s
    for _ in range(4):
        now_s += 5
        harness.broker.tick(now_s)
    assert not any(client.connection.inbound_bytes for client in clients[1:])
    end_failed(harness, clients[0])


@interpreted
def test_an_alarm_stops_publishers_although_a_peer_cannot_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    clients = [harness.channel() for _ in range(3)]
    told: list[object] = []
    only_first = lambda peer, *_: peer is clients[0].connection  # noqa: E731
    told_each = lambda peer: told.append(peer)  # noqa: E731
    monkeypatch.setattr(broker_module, "alarm_set", failing(told_each, Scarce(), only_first))
    harness.broker.set_alarm("memory", True)
    assert harness.broker.shared.stopped
    assert told == [client.connection for client in clients[1:]]
    end_failed(harness, clients[0])


@interpreted
def test_an_alarm_stops_publishers_although_it_cannot_be_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    monkeypatch.setattr(Broker, "note", failing(Broker.note, Scarce()))
    with pytest.raises(MemoryError):
        harness.broker.set_alarm("memory", True)
    assert harness.broker.shared.stopped


@interpreted
def test_a_shutdown_closes_all_connections_although_one_cannot_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    clients = [harness.channel() for _ in range(3)]
    monkeypatch.setattr(ending, "close_at_once", failing(ending.close_at_once, Scarce()))
    harness.broker.shut_down("a test")
    end_failed(harness, clients[0])
    for client in clients:
        client.pick(m.ConnectionClose)


@interpreted
def test_channels_may_owe_more_after_an_alarm_and_one_that_cannot_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    clients = [harness.channel() for _ in range(3)]
    ledgers = [client.connection.channels[1].ledger for client in clients]
    harness.broker.set_alarm("memory", True)
    owed = harness.broker.shared.owed
    owed._waiting = dict.fromkeys(ledgers)
    monkeypatch.setattr(DeliveryLedger, "owe_more", failing(DeliveryLedger.owe_more, Scarce()))
    harness.broker.set_alarm("memory", False)
    assert [ledger.unacked_max == ledger.unacked_limit for ledger in ledgers] == [False, True, True]
    end_failed(harness, clients[0])


# --- the batches of the log -------------------------------------------------------------------------------------------


@interpreted
def test_a_batch_is_written_and_confirmed_although_a_queue_could_not_be_told_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was not noted as under way: its confirms were lost, and its commit was a failure of the store."""
    harness = Harness()
    client = harness.channel()
    for name in ("one", "two"):
        client.declare(name, durable=True)
        client.bind(name, "amq.fanout")
    client.call(1, m.ConfirmSelect(False))
    told: list[Backlog] = []

    def batch_closed(backlog: Backlog) -> None:
        told.append(backlog)
        real(backlog)

    real = Backlog.batch_closed
    monkeypatch.setattr(Backlog, "batch_closed", failing(batch_closed, Scarce()))
    client.connection.feed(publish_frames("amq.fanout", "", b"m", properties={"delivery_mode": 2}))
    settle_with_defect(harness)
    assert len(told) == 1
    client.expect(m.BasicAck)


@interpreted
def test_reads_that_wait_for_a_batch_continue_although_one_meets_a_defect() -> None:
    class Owner(IndexOwner):
        def __init__(self, scarce: Scarce) -> None:
            self.scarce = scarce
            self.told = 0

        def batch_closed(self) -> None:
            self.scarce.take()
            self.told += 1

    harness = Harness()
    log = harness.broker.log
    owners = [Owner(Scarce(left)) for left in (0, 1, 0)]
    for owner in owners:
        log.call_when_written(owner)
    client = harness.channel()
    client.connection.feed(method_frame(1, m.QueueDeclare(0, "q", False, True, False, False, False, EMPTY)))
    settle_with_defect(harness)
    assert [owner.told for owner in owners] == [1, 0, 1]


# --- what waits for the end of a turn ---------------------------------------------------------------------------------


@interpreted
def test_events_follow_one_that_could_not_be_published(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("events")
    client.bind("events", "amq.rabbitmq.event", "queue.created")
    monkeypatch.setattr(Queue, "accept", failing(Queue.accept, Scarce()))
    for name in ("one", "two", "three"):
        harness.vhost.declare_queue(QueueDeclaration(name, durable=False))
    settle_with_defect(harness)
    assert harness.queue("events").ready_count == 2
