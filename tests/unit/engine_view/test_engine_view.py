"""The view of an engine: rows are values, references are looked up again, commands end their turn."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from durable_harness import DurableHarness
from engine_harness import Client, Harness, publish_frames
from mqtt_harness import mqtt_client

from warren.amqp import methods as m
from warren.engine_view.bindings import PIECE
from warren.engine_view.browsing import RUN_DELIVERIES
from warren.engine_view.engine_view import EngineView
from warren.engine_view.held import PARKED
from warren.engine_view.refs import ConnectionRef, ConsumerRef, QueueRef
from warren.mqtt.sessions import restore_sessions


class Viewed:
    """An engine with a queue, a consumer that owes an answer, and a view of it."""

    def __init__(self) -> None:
        self.harness = Harness()
        self.settled = 0
        self.view = EngineView(self.harness.broker, self._settle)
        self.client = self.harness.channel()
        self.client.declare("q")
        self.client.consume("q", "c")
        self.client.publish("", "q", b"four")
        self.client.take()

    def _settle(self) -> None:
        self.settled += 1
        self.harness.settle()


def test_a_row_is_a_value_that_stays_as_it_was() -> None:
    viewed = Viewed()
    found = viewed.view.queues.maybe("/", "q")
    assert found is not None
    before = viewed.view.queues.row(found)
    viewed.client.publish("", "q", b"and more")
    after = viewed.view.queues.row(found)
    assert (before.message_bytes, before.message_bytes_unacknowledged, before.consumers) == (4, 4, 1)
    assert after.message_bytes == 12
    with pytest.raises(AttributeError, match="immutable"):
        before.name = "other"  # type: ignore[misc]
    assert msgspec.json.decode(msgspec.json.encode(viewed.view.queues.brief(found)))["messages"] == 2


def test_what_is_not_there_is_none_or_empty() -> None:
    view = Viewed().view
    assert view.queues.maybe("/", "unknown") is None and view.queues.maybe("unknown", "q") is None
    assert view.queues.in_vhost("unknown") == [] and view.queues.count("unknown") == 0
    assert view.exchanges.maybe("/", "unknown") is None
    assert view.connections.maybe_named("unknown") is None
    assert view.vhosts.maybe_row("unknown") is None


def test_a_reference_says_when_its_object_is_gone() -> None:
    viewed = Viewed()
    view = viewed.view
    (queue,) = view.queues.in_vhost("/")
    (consumer,) = view.queues.consumers(queue)
    (connection,) = view.connections.all()
    (channel,) = view.connections.channels(connection)
    told: list[tuple[str, str]] = []
    view.queues.watch_gone(lambda vhost, gone: told.append((vhost, view.queues.name(gone))))
    assert not view.queues.is_gone(queue) and not view.consumers.is_gone(consumer)
    assert not view.connections.is_gone(connection) and not view.connections.is_channel_gone(channel)
    viewed.client.send(1, m.QueueDelete(0, "q", False, False, False))
    viewed.client.hang_up()
    viewed.harness.settle()
    assert view.queues.is_gone(queue) and view.consumers.is_gone(consumer) and told == [("/", "q")]
    assert view.connections.is_gone(connection) and view.connections.is_channel_gone(channel)


def cancelled(viewed: Viewed, client: Client, tag: str, reason: str = "it hangs") -> bool:
    """Cancel a consumer of `client` on channel 1 by the view."""
    connection = ConnectionRef(client.connection)
    consumer = viewed.view.consumers.maybe(connection, 1, tag)
    assert consumer is not None
    found = viewed.view.consumers.cancel(consumer, reason)
    assert viewed.view.consumers.maybe(connection, 1, tag) is None or not found
    return found


def test_a_consumer_is_cancelled_and_its_client_told_once() -> None:
    viewed = Viewed()
    client, queue = viewed.client, viewed.harness.queue("q")
    assert cancelled(viewed, client, "c")
    assert client.expect(m.BasicCancel) == m.BasicCancel("c", True)
    client.nothing()
    assert (viewed.settled, len(queue.consumers), queue.unacked_count) == (1, 0, 1)
    client.send(1, m.BasicAck(1, False))
    assert queue.unacked_count == 0
    (notice,) = [notice for notice in viewed.harness.notices if notice.event == "consumer.cancelled"]
    assert (notice.fields["queue"], notice.fields["consumer_tag"], notice.fields["reason"]) == ("q", "c", "it hangs")


def test_a_client_that_does_not_understand_it_is_cancelled_without_a_word() -> None:
    viewed = Viewed()
    client = viewed.harness.client(capabilities=())
    client.open(1)
    client.declare("short", auto_delete=True)
    client.consume("short", "mute")
    client.take()
    assert cancelled(viewed, client, "mute")
    client.nothing()
    assert "short" not in viewed.harness.vhost.queues


def test_a_cancelled_consumer_of_replies_takes_its_queue_with_it() -> None:
    viewed = Viewed()
    client = viewed.harness.channel()
    client.consume("amq.rabbitmq.reply-to", "replies", no_ack=True)
    client.take()
    assert len(viewed.harness.vhost.reply_queues) == 1
    assert cancelled(viewed, client, "replies")
    assert client.expect(m.BasicCancel) == m.BasicCancel("replies", True)
    assert not viewed.harness.vhost.reply_queues
    client.consume("amq.rabbitmq.reply-to", "again", no_ack=True)


def test_a_protocol_without_a_word_for_it_keeps_its_consumer() -> None:
    viewed = Viewed()
    client = mqtt_client(viewed.harness)
    client.subscribe("t", qos=1)
    consumers = [each for name, queue in viewed.harness.vhost.queues.items() if name != "q" for each in queue.consumers]
    (consumer,) = consumers
    assert not viewed.view.consumers.cancel(ConsumerRef(consumer), "it hangs")
    assert not consumer.gone and "consumer.cancelled" not in viewed.harness.events()


def test_a_session_whose_connection_is_ending_is_ended() -> None:
    harness = Harness()
    view = EngineView(harness.broker, harness.settle)
    client = mqtt_client(harness, client_id="c", clean=False)
    client.subscribe("a", qos=1)
    for number in range(1, 501):
        client.publish("a", b"x", 1, packet_id=number)
    harness.broker.work.turn_steps = 10
    harness.settle()
    client.peer.lost()
    assert ("/", "c") in harness.broker.named_clients, "it takes many turns to end"
    session = view.mqtt_sessions.maybe("/", "c")
    assert session is not None
    view.mqtt_sessions.end(session, "enough")
    harness.settle()
    assert view.mqtt_sessions.maybe("/", "c") is None
    assert "mqtt-subscription-cqos1" not in harness.vhost.queues


def test_the_subscriptions_of_a_session_are_found_in_pieces() -> None:
    """They were found in one go; and a list of connections copied those of each client to count them."""
    harness = Harness()
    view = EngineView(harness.broker, harness.settle)
    client = mqtt_client(harness, client_id="c", clean=False)
    filters = [str(number) for number in range(2 * PIECE + 5)]
    for each in filters:
        client.subscribe(each, qos=1)
    session = view.mqtt_sessions.maybe("/", "c")
    assert session is not None
    pieces = list(view.mqtt_sessions.subscriptions(session))
    assert pieces[:-1] == [None, None] and pieces[-1] is not None
    assert [view.mqtt_sessions.subscription(each)["filter"] for each in pieces[-1]] == filters
    walk = view.mqtt_sessions.subscriptions(session)
    assert next(walk) is None
    client.unsubscribe(filters[PIECE - 1])  # where it paused
    del filters[PIECE - 1]
    *_, found = walk
    assert found is not None
    assert [view.mqtt_sessions.subscription(each)["filter"] for each in found] == filters
    listed, describe = view.connections.subscriptions(ConnectionRef(client.peer))
    assert sorted(str(describe(each)["filter"]) for each in listed) == sorted(filters)
    mqtt = client.peer.details()["mqtt"]
    assert isinstance(mqtt, dict) and mqtt["subscriptions"] == len(filters)


class EarlyLook(DurableHarness):
    """A broker whose sessions and retained messages are looked at before they have been read from disk."""

    def _restore_messages(self) -> None:
        super()._restore_messages()
        view = EngineView(self.broker, self.settle)
        view.mqtt_sessions.in_vhost("/")
        list(view.retained.matching("/", "#"))


def test_a_look_at_sessions_and_retained_messages_at_a_start_leaves_them_there() -> None:
    harness = DurableHarness()
    mqtt_client(harness, client_id="c", clean=False).publish("a", b"x", 1, retain=True)
    harness.stop(clean=False)
    later = EarlyLook(harness._fs, harness._catalogue)
    for _ in restore_sessions(later.broker):
        pass
    view = EngineView(later.broker, later.settle)
    assert view.mqtt_sessions.maybe("/", "c") is not None
    assert list(view.retained.matching("/", "#")) == [["a"]]


def test_what_clients_have_is_told_in_runs_and_as_it_was_when_asked() -> None:
    harness = Harness()
    view = EngineView(harness.broker, harness.settle)
    clients = [harness.channel() for _ in range(2)]
    clients[0].declare("q")
    clients[0].declare("r")
    count = RUN_DELIVERIES + 10
    clients[0].feed(b"".join(publish_frames("", name, b"%d" % at) for at in range(count) for name in ("q", "r")))
    for client in clients:
        client.consume("q", "of q", arguments={})
        client.consume("r", "of r", arguments={})
        client.take()
    queue = QueueRef(harness.queue("q"))
    had = view.browsing.outstanding(queue)
    before = {place for place, _ in itertools.chain(*view.browsing.outstanding(queue))}
    clients[0].send(1, m.BasicAck(0, multiple=True))
    clients[1].hang_up()
    runs = list(had)
    assert max(map(len, runs)) <= RUN_DELIVERIES
    assert {place for run in runs for place, _ in run} == before and len(before) == count
    assert sum(map(len, runs)) == count
    assert list(itertools.chain(*had)) == [], "it is told once"


def test_what_many_clients_have_is_told_in_few_runs() -> None:
    """Also if they have messages of other queues: each run is merged with the others, and takes a turn."""
    harness = Harness()
    view = EngineView(harness.broker, harness.settle)
    clients = [harness.channel() for _ in range(20)]
    clients[0].declare("r")
    for at, client in enumerate(clients):
        client.declare(f"q{at % 2}")
        client.publish("", f"q{at % 2}", b"x")
        client.publish("", "r", b"x")
        client.get(f"q{at % 2}")
        client.get("r")
    (run,) = view.browsing.outstanding(QueueRef(harness.queue("q0")))
    assert len(run) == 10


def test_looking_for_what_clients_have_gives_way_at_each_client() -> None:
    """There may be very many that have nothing."""
    harness = Harness()
    view = EngineView(harness.broker, harness.settle)
    clients = [harness.channel() for _ in range(20)]
    clients[0].declare("q")
    told = list(view.browsing.unacked(QueueRef(harness.queue("q"))))
    assert told == [None] * len(clients)


def test_a_sorted_list_is_kept_until_the_queues_change() -> None:
    viewed = Viewed()
    view = viewed.view
    viewed.client.declare("a")
    assert view.queues.maybe_sorted("/", 1) is None, "two would have to be sorted"
    version = view.queues.topology_version("/")
    queues = sorted(view.queues.in_vhost("/"), key=view.queues.name)
    view.queues.keep_sorted("/", queues, version)
    kept = view.queues.maybe_sorted("/", 1)
    assert kept is not None and [view.queues.name(each) for each in kept] == ["a", "q"]
    viewed.client.declare("b")
    assert view.queues.maybe_sorted("/", 1) is None
    view.queues.keep_sorted("/", queues, version)
    assert view.queues.maybe_sorted("/", 1) is None, "that list is older than the queues"


def test_a_command_ends_its_turn() -> None:
    viewed = Viewed()
    (connection,) = viewed.view.connections.all()
    viewed.view.connections.close(connection, "no longer wanted")
    assert viewed.settled == 1 and viewed.client.refusal().text.endswith("no longer wanted")
    with pytest.raises(ValueError, match="unknown"):
        viewed.view.trace("unknown", on=True)


def test_counts_are_those_of_the_engine() -> None:
    view = Viewed().view
    assert view.counts().publish == view.counts("/").publish == view.counts_by_vhost()["/"].publish == 1
    assert (view.open_connections(), view.churn().queues_created) == (1, 1)
    with pytest.raises(KeyError):
        view.counts("unknown")


def test_nothing_is_released_of_a_queue_that_was_deleted_after_a_look() -> None:
    harness = Harness()
    harness.channel().declare("q")
    view = EngineView(harness.broker, harness.settle)
    queue = view.queues.maybe("/", "q")
    assert queue is not None
    harness.broker.delete_queue(harness.vhost, harness.queue("q"))
    told: list[int] = []
    view.held.release(queue, PARKED, [1], told.append)
    assert told == [0]
