"""Turns of the reactor: everybody is served before anybody twice, and no turn is long. On sockets that are scripts."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from dataclasses import replace
from typing import Any, cast

import pytest
import trio
import trustme
from engine_harness import USER, content_frames
from kqueue_on_epoll import KQUEUE_ON_EPOLL, choose
from mqtt_packets import connect_packet, maybe_first_packet
from reactor_harness import LOGIN_STEPS, Peer, Place, Queueing, TlsPeer

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.methods import PROTOCOL_HEADER
from warren.channels.connection import Connection
from warren.channels.connection_states import AWAIT_OPEN, AWAIT_TUNE_OK, RUNNING
from warren.channels.shared import FEED_UNITS_MAX, METHOD_UNITS
from warren.mqtt.packets import DISCONNECT
from warren.mqtt.peer import MqttPeer
from warren.mqtt.reason_codes import KEEP_ALIVE
from warren.queues.long_work import TURN_STEPS, Job, Steps
from warren.server.client_of_node import ClientOfNode
from warren.server.network import reactor
from warren.server.network.acceptor import ACCEPT_FAILED_S, ACCEPTS_PER_TURN, HANDSHAKES_DUE_MAX, Listener
from warren.server.network.reactor import (
    BYTES_PER_UNIT,
    CLOCK_EVERY_SENDS,
    EVENT_UNITS,
    FEED_UNITS_MIN,
    TURN_UNITS,
    feed_units,
)
from warren.server.network.readiness import kinds
from warren.server.network.sockets import UNSENT_S
from warren.server.network.transport import RECEIVE_BYTES, Transport

QOS = method_frame(1, m.BasicQos(0, 1, False))
QOS_OK = method_frame(1, m.BasicQosOk())
# The cost of one connection in a turn beyond its share: its last method may exceed that.
OVERHEAD_UNITS = METHOD_UNITS + 1 + EVENT_UNITS + RECEIVE_BYTES // BYTES_PER_UNIT


@pytest.fixture(autouse=True, params=[*kinds(), KQUEUE_ON_EPOLL])
def selector(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every test with each selector that this system has."""
    choose(request.param, monkeypatch)


@pytest.fixture
def place() -> Any:
    made = Place()
    yield made
    made.reactor.stop()
    made.reactor.close()


# --- logins ---------------------------------------------------------------------------------------------------------


def test_a_login_counts_until_its_vhost_is_open(place: Place) -> None:
    """A client whose password was right may keep silent as well: it makes room like any other."""
    place.reactor.acceptor.begin_serving()
    peers = [Peer(b"".join(LOGIN_STEPS[:steps])) for steps in (1, 2, 3)]
    for peer in peers:
        place.reactor.acceptor.pass_on(cast(socket.socket, peer), FROM_AFAR)
    for _ in range(5):
        place.turn()
    states = [connection.state for connection in place.broker.connections.values()]
    assert states == [AWAIT_TUNE_OK, AWAIT_OPEN, RUNNING]
    assert place.reactor._admission.unauthenticated == 2
    for peer, steps in zip(peers, (1, 2, 3), strict=True):
        peer.say(b"".join(LOGIN_STEPS[steps:]))
    for _ in range(5):
        place.turn()
    assert place.reactor._admission.unauthenticated == 0


# --- clients of other nodes -------------------------------------------------------------------------------------------

FROM_AFAR = ClientOfNode("192.0.2.7:50412", "192.0.2.2:5671", is_tls=True, user=USER, node="rabbit@two")


def test_a_client_of_another_node_has_the_address_that_it_has_there(place: Place) -> None:
    place.reactor.acceptor.begin_serving()
    peer = Peer(PROTOCOL_HEADER)
    place.reactor.acceptor.pass_on(cast(socket.socket, peer), FROM_AFAR)
    (connection,) = place.broker.connections.values()
    assert (connection.origin.peer, connection.origin.local) == ("192.0.2.7:50412", "192.0.2.2:5671")
    assert connection.origin.address == "192.0.2.7", "by which it is decided who may log in from where"
    assert connection.origin.certificate_user == USER
    assert connection.origin.node_name == "rabbit@two"
    assert connection.origin.is_tls
    place.turns_until(lambda: b"EXTERNAL" in peer.received)


def test_clients_of_other_nodes_are_counted_by_where_they_are_from(place: Place) -> None:
    place.reactor.acceptor.begin_serving()
    place.reactor._admission._per_block_max = 1
    first, second, elsewhere = Peer(), Peer(), Peer()
    place.reactor.acceptor.pass_on(cast(socket.socket, first), FROM_AFAR)
    place.reactor.acceptor.pass_on(cast(socket.socket, second), replace(FROM_AFAR, peer="192.0.2.8:1"))
    place.reactor.acceptor.pass_on(cast(socket.socket, elsewhere), replace(FROM_AFAR, peer="198.51.100.1:1"))
    assert place.reactor.connection_count() == 2
    place.turns_until(lambda: first.received.endswith(method_frame(1, m.ChannelOpenOk(b""))))
    place.reactor.acceptor.pass_on(cast(socket.socket, third := Peer()), FROM_AFAR)
    assert place.reactor.connection_count() == 3, "the first has logged in"
    assert third.fileno() in place.reactor.sockets.by_fd


def test_clients_of_other_nodes_are_taken_while_clients_are_served(place: Place) -> None:
    assert not place.reactor.acceptor.may_accept()
    place.reactor.acceptor.pass_on(cast(socket.socket, Peer()), FROM_AFAR)
    assert place.reactor.connection_count() == 0
    place.reactor.acceptor.begin_serving()
    assert place.reactor.acceptor.may_accept()
    place.reactor.acceptor.stop()
    assert not place.reactor.acceptor.may_accept()


# --- what else is watched ---------------------------------------------------------------------------------------------


def test_a_descriptor_that_is_watched_is_read_in_the_turn_before_the_engine_ends_it(place: Place) -> None:
    fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    told: list[int] = []

    def read() -> None:
        told.append(os.eventfd_read(fd))
        place.broker.note("info", "said in the turn", {})

    place.reactor.poller.watch(fd, read)
    place.turn()
    assert told == []
    os.eventfd_write(fd, 7)
    place.turn()
    assert told == [7]
    assert place.broker.notices == [], "what it left behind was settled in that turn"
    os.eventfd_write(fd, 8)
    place.reactor.poller.unwatch(fd)
    place.turn()
    assert told == [7]
    os.close(fd)


def test_what_is_watched_may_end_after_the_reactor_is_closed() -> None:
    """Links to followers end when a leader stops, also after a failure of its disk."""
    place = Place()
    fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    place.reactor.poller.watch(fd, lambda: None)
    place.reactor.close()
    place.reactor.poller.unwatch(fd)
    os.close(fd)


def test_clients_wait_while_they_may_not_be_served_and_what_is_watched_goes_on(place: Place) -> None:
    (peer,) = place.connect(1)
    fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    looks = 0
    may_serve = False

    def may() -> bool:
        nonlocal looks
        looks += 1
        return may_serve

    def read() -> None:
        nonlocal may_serve
        os.eventfd_read(fd)
        may_serve = True

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(place.reactor.run)
            peer.say(method_frame(2, m.ChannelOpen("")))
            with trio.fail_after(30):
                while looks < 5:
                    await trio.sleep(0.01)
                assert (peer.reads, peer.taken()) == (0, b"")
                os.eventfd_write(fd, 1)
                while not peer.taken():
                    await trio.sleep(0.01)
            place.reactor.stop()

    place.reactor.poller.watch(fd, read)
    place.reactor.may_serve = may
    trio.run(main)
    place.reactor.poller.unwatch(fd)
    os.close(fd)


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("busy_count", [1, 9, 64, 300])
def test_who_asks_one_thing_waits_for_one_round_of_those_who_never_stop(place: Place, busy_count: int) -> None:
    *busy, innocent = place.connect(busy_count + 1)
    for peer in busy:
        peer.repeat(QOS)
    place.turn()
    # Connections that are ready when it comes go first, each once; this number is reached in a turn:
    per_turn = TURN_UNITS // (feed_units(busy_count + 1) + OVERHEAD_UNITS)
    bound = 2 + (busy_count + 1) // per_turn
    for _ in range(20):
        innocent.say(QOS)
        assert place.turns_until(lambda: innocent.received == QOS_OK) <= bound
        innocent.taken()


@pytest.mark.parametrize("busy_count", [9, 64])
def test_nobody_is_left_out_when_time_is_up_at_each_look_at_the_clock(place: Place, busy_count: int) -> None:
    peers = place.connect(busy_count)
    place.step_s = 1.0
    for peer in peers:
        peer.repeat(QOS)
    place.turns_until(lambda: all(peer.received for peer in peers))
    for peer in peers:
        peer.taken()
    # Somebody is served in each turn, and nobody twice before all were.
    assert place.turns_until(lambda: all(peer.received for peer in peers)) <= busy_count
    most, least = max(len(peer.received) for peer in peers), min(len(peer.received) for peer in peers)
    assert most <= 2 * least


@pytest.mark.parametrize("busy_count", [1, 9, 64, 300])
def test_the_work_of_a_turn_is_bounded_however_many_are_busy(place: Place, busy_count: int) -> None:
    peers = place.connect(busy_count)
    for peer in peers:
        peer.repeat(QOS)
    for _ in range(50):
        place.turn()
        answers = sum(len(peer.taken()) for peer in peers) // len(QOS_OK)
        assert answers * (METHOD_UNITS + 1) <= TURN_UNITS + FEED_UNITS_MAX


class Counting(Job):
    """Never done; counts the steps that it was given."""

    def __init__(self) -> None:
        self.steps: int = 0

    def run(self, steps: Steps) -> bool:
        self.steps += int(steps.left)
        steps.left = 0
        return False


def test_calls_from_outside_a_turn_do_no_more_long_work(place: Place) -> None:
    job = Counting()
    place.broker.work.begin(job)
    before = job.steps
    for _ in range(100):
        place.reactor.settle()
    assert job.steps == before
    place.turn()
    assert job.steps == before + TURN_STEPS


def test_a_busy_connection_is_not_read_while_it_has_something_to_handle(place: Place) -> None:
    (busy,) = place.connect(1)
    busy.repeat(QOS)
    place.turn()
    assert busy.reads == 1
    place.turn()
    assert busy.reads == 1
    # Each of its frames is answered once all the same, as the carried ones are followed by what is read next.
    place.turns_until(lambda: busy.reads == 4)
    assert busy.received == QOS_OK * (len(busy.received) // len(QOS_OK))


def test_replies_keep_the_order_of_requests_over_turns(place: Place) -> None:
    (peer,) = place.connect(1)
    tags = [f"tag-{number}" for number in range(2000)]
    declare = m.QueueDeclare(0, "q", False, False, False, False, False, b"\0\0\0\0")
    peer.say(method_frame(1, declare))
    place.turns_until(lambda: peer.taken() != b"")
    for tag in tags:
        peer.say(method_frame(1, m.BasicConsume(0, "q", tag, False, False, False, False, b"\0\0\0\0")))
    expected = b"".join(method_frame(1, m.BasicConsumeOk(tag)) for tag in tags)
    assert place.turns_until(lambda: len(peer.received) >= len(expected)) > 1
    assert peer.received == expected


def test_a_share_of_the_work_is_less_the_more_are_ready() -> None:
    assert feed_units(0) == feed_units(1) == FEED_UNITS_MAX
    assert feed_units(2) == TURN_UNITS // 2
    assert feed_units(16) == TURN_UNITS // 16
    assert feed_units(10**6) == FEED_UNITS_MIN


def test_an_event_of_a_closed_connection_is_not_taken_for_one_of_the_next_with_its_number(place: Place) -> None:
    place.step_s = 1.0
    peers = place.connect(40)
    for peer in peers:
        peer.repeat(QOS)
    place.turn()
    place.turn()
    gone, connection = peers[-1], max(place.broker.connections.values(), key=lambda each: each.key)
    assert not gone.received  # the turns did not reach it
    gone.is_torn = True
    number = gone.fd
    connection.outbox.write(QOS_OK)
    place.reactor.settle()
    place.turns_until(lambda: gone.fd < 0)
    successor = Peer()
    while successor.fd != number:
        successor = Peer()
    os.eventfd_read(successor.fd)  # nothing has come from it
    place.reactor.acceptor.adopt(cast(socket.socket, successor), "127.0.0.1")
    place.turns_until(lambda: all(peer.received for peer in peers if peer is not gone))
    assert successor.reads == 0


# --- sending ----------------------------------------------------------------------------------------------------------


def test_what_time_does_not_allow_to_send_is_sent_in_the_next_turns(place: Place) -> None:
    place.connect(0)
    publisher, *consumers = place.connect(200)
    for consumer in consumers:
        consumer.say(method_frame(1, m.QueueDeclare(0, "", False, False, True, False, False, b"\0\0\0\0")))
        consumer.say(method_frame(1, m.QueueBind(0, "", "amq.fanout", "", True, b"\0\0\0\0")))
        consumer.say(method_frame(1, m.BasicConsume(0, "", "c", False, True, False, False, b"\0\0\0\0")))
    place.turns_until(lambda: all(method_frame(1, m.BasicConsumeOk("c")) in peer.received for peer in consumers))
    for consumer in consumers:
        consumer.taken()
    place.step_s = 1.0
    publisher.say(
        method_frame(1, m.BasicPublish(0, "amq.fanout", "", mandatory=False, immediate=False))
        + content_frames(1, b"body")
    )
    served = [0]

    def some_more() -> bool:
        served.append(sum(1 for peer in consumers if peer.received))
        assert served[-1] - served[-2] <= CLOCK_EVERY_SENDS
        return served[-1] == len(consumers)

    assert place.turns_until(some_more) >= len(consumers) // CLOCK_EVERY_SENDS
    assert all(peer.received.count(b"body") == 1 for peer in consumers)


def test_who_does_not_take_its_last_words_is_closed_in_the_end(place: Place) -> None:
    (peer,) = place.connect(1)
    peer.takes_bytes = 5
    peer.say(method_frame(0, m.ConnectionClose(200, "bye", 0, 0)))
    place.turns_until(lambda: not place.broker.connections)
    assert peer.fd >= 0
    place.reactor.tick(place.now_s + UNSENT_S - 0.1)
    assert peer.fd >= 0
    place.reactor.tick(place.now_s + UNSENT_S)
    assert peer.fd == -1
    assert place.reactor.connection_count() == 0


def test_who_takes_nothing_at_all_is_closed_without_last_words(place: Place) -> None:
    (peer,) = place.connect(1)
    (connection,) = place.broker.connections.values()
    connection.origin.is_internal = False
    peer.takes_bytes = 0
    peer.say(QOS)
    place.turn()
    for _ in range(31):
        assert peer.fd >= 0
        place.now_s += 1
        place.reactor.tick(place.now_s)
    assert peer.fd == -1
    assert place.reactor.connection_count() == 0


def test_a_silent_client_of_mqtt_5_is_told_why_before_its_socket_is_closed(place: Place) -> None:
    peer = Peer(connect_packet(5, keep_alive_s=10))
    transport = Transport(cast(socket.socket, peer), "127.0.0.1", MqttPeer)
    transport.pre_auth = False
    place.reactor.sockets.begin(transport)
    place.turns_until(lambda: bool(peer.taken()))
    while peer.fd >= 0:
        assert place.now_s < 60
        place.now_s += 1
        place.reactor.tick(place.now_s)
    first = maybe_first_packet(peer.received)
    assert first is not None, "nothing was sent"
    assert (first[0].kind, first[0].body[0], first[1]) == (DISCONNECT, KEEP_ALIVE, b"")


# --- coming -----------------------------------------------------------------------------------------------------------


def test_a_storm_of_connections_is_accepted_a_few_in_each_turn(place: Place) -> None:
    (innocent,) = place.connect(1)
    queueing = Queueing()
    place.reactor.acceptor.listen(Listener(cast(socket.socket, queueing), None))
    for turns in range(1, 5):
        innocent.say(QOS)
        place.turn()
        assert innocent.taken() == QOS_OK
        assert len(queueing.accepted) == turns * ACCEPTS_PER_TURN


def test_a_connection_for_which_there_is_no_memory_is_closed_and_the_next_is_accepted(place: Place) -> None:
    made: list[Connection] = []

    def make(*given: Any) -> Connection:
        if not place.crashes:
            raise MemoryError
        made.append(Connection(*given))
        return made[-1]

    queueing = Queueing()
    place.reactor.acceptor.listen(Listener(cast(socket.socket, queueing), None, make))
    place.reactor.turn(place.reactor._selector.poll(0))
    assert [type(error) for error in place.crashes] == [MemoryError]
    assert len(made) == ACCEPTS_PER_TURN - 1 == place.reactor.connection_count()
    place.reactor.turn(place.reactor._selector.poll(0))
    assert len(made) == 2 * ACCEPTS_PER_TURN - 1


def test_a_connection_that_the_system_does_not_watch_is_closed_and_the_next_is_accepted(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system watches a limited number of descriptors for all processes of a user."""
    queueing = Queueing()
    place.reactor.acceptor.listen(Listener(cast(socket.socket, queueing), None))
    selector = place.reactor.poller.selector

    class Full:
        def register(self, fd: int, eventmask: int, /) -> None:
            monkeypatch.undo()
            raise OSError(errno.ENOSPC, "No space left on device")

        def __getattr__(self, name: str) -> Any:
            return getattr(selector, name)

    monkeypatch.setattr(place.reactor.poller, "selector", Full())
    place.reactor.turn(selector.poll(0))
    assert [type(error) for error in place.crashes] == [OSError]
    place.crashes.clear()
    assert place.reactor.connection_count() == ACCEPTS_PER_TURN - 1
    assert place.reactor._admission.unauthenticated == ACCEPTS_PER_TURN - 1


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), MemoryError()])
def test_a_listener_that_the_system_does_not_watch_again_is_tried_again(
    place: Place, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Meanwhile the others are served: the task of the sockets may not end for it."""
    (innocent,) = place.connect(1)
    queueing = Queueing()
    acceptor = place.reactor.acceptor
    listener = Listener(cast(socket.socket, queueing), None)
    acceptor.listen(listener)
    acceptor._rest(listener, 0.0)

    class Full:
        def register(self, fd: int, eventmask: int, /) -> None:
            raise error

        def __getattr__(self, name: str) -> Any:
            return getattr(selector, name)

    selector = place.reactor.poller.selector
    with monkeypatch.context() as context:
        context.setattr(place.reactor.poller, "selector", Full())
        innocent.say(QOS)
        place.turn()
        assert innocent.taken() == QOS_OK
        assert listener in acceptor.resting and not queueing.accepted
    place.now_s += ACCEPT_FAILED_S
    acceptor.watch_again(place.now_s)
    assert not acceptor.resting
    place.turn()
    assert queueing.accepted


def no_memory(*_: object) -> Any:
    raise MemoryError


class WithoutMemory(ClientOfNode):
    """A client of another node for which no peer can be made."""

    local = property(no_memory, lambda self, value: None)


@pytest.mark.parametrize("is_from_afar", [False, True])
def test_a_connection_without_memory_for_its_peer_leaves_nothing_behind(
    place: Place, monkeypatch: pytest.MonkeyPatch, is_from_afar: bool
) -> None:
    """Of a link, or of a client of another node: no listener closes these."""
    (innocent,) = place.connect(1)
    place.reactor.acceptor.begin_serving()
    peer = cast(socket.socket, Peer())
    if is_from_afar:
        place.reactor.acceptor.pass_on(peer, WithoutMemory("192.0.2.7:50412", "", is_tls=True))
        assert [type(error) for error in place.crashes] == [MemoryError]
        place.crashes.clear()
    else:
        monkeypatch.setattr(peer, "getpeername", no_memory)
        with pytest.raises(MemoryError):
            place.reactor.acceptor.adopt(peer, "127.0.0.1")
    assert peer.fileno() == -1
    innocent.say(QOS)
    place.turn()
    assert innocent.taken() == QOS_OK
    assert place.reactor.connection_count() == 1
    assert place.reactor._admission.unauthenticated == 0


def test_who_connects_behind_too_many_waits_for_a_share_of_a_second_not_for_its_end() -> None:
    place = Place(accepts_per_s=100)
    queueing = Queueing()
    place.reactor.acceptor.listen(Listener(cast(socket.socket, queueing), None))
    place.now_s = 7.0

    def accepted_in(seconds: float) -> int:
        before = len(queueing.accepted)
        place.now_s += seconds
        for _ in range(10):
            place.turn()
        return len(queueing.accepted) - before

    assert accepted_in(0.0) == 100
    assert accepted_in(0.0) == 0
    assert accepted_in(0.055) == 5
    assert accepted_in(0.025) == 3
    assert accepted_in(60.0) == 100
    place.reactor.stop()
    place.reactor.close()


def test_a_storm_of_tls_handshakes_takes_one_step_of_a_turn(place: Place) -> None:
    authority = trustme.CA()
    server, client = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(server)
    authority.configure_trust(client)
    steps = [0]

    class Counted(ssl.SSLObject):
        def do_handshake(self) -> None:
            steps[-1] += 1
            super().do_handshake()

    server.sslobject_class = Counted
    (innocent,) = place.connect(1)
    queueing = Queueing(lambda: TlsPeer(client))
    place.reactor.acceptor.listen(Listener(cast(socket.socket, queueing), lambda: server))
    place.step_s = 1.0
    for _ in range(100):
        innocent.say(QOS)
        steps.append(0)
        place.turn()
        assert innocent.taken() == QOS_OK
        assert steps[-1] <= 1
    assert len(queueing.accepted) < HANDSHAKES_DUE_MAX + ACCEPTS_PER_TURN + sum(steps)
    # The earliest ones are done first: so all of the first are accepted.
    assert all(cast(TlsPeer, peer).is_ready for peer in queueing.accepted[:20])
    place.step_s = 0.0
    place.turn()
    assert steps[-1] > 1  # when they take no time, all that are due


# --- defects of ours --------------------------------------------------------------------------------------------------


def test_an_error_while_something_is_written_for_a_peer_ends_that_peer_only(place: Place) -> None:
    """outbox.py (6)"""
    peer, other = place.connect(2)
    connection = next(iter(place.broker.connections.values()))
    error = RuntimeError("a defect")
    connection.outbox.failed(error)
    connection.outbox.failed(RuntimeError("another, that follows from it"))
    for _ in range(3):
        other.say(QOS)
        place.reactor.turn(place.reactor._selector.poll(0))
    assert place.crashes == [error]
    place.crashes.clear()
    assert b"an internal error" in peer.taken()
    assert other.taken() == QOS_OK * 3


def test_a_peer_for_which_memory_does_not_suffice_is_lost_and_the_next_ones_get_theirs(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = place.connect(3)
    monkeypatch.setattr(first, "send", no_memory)
    for peer in (first, second, third):
        peer.say(QOS)
    place.reactor.turn(place.reactor._selector.poll(0))
    assert [type(error) for error in place.crashes] == [MemoryError]
    place.crashes.clear()
    assert place.reactor.connection_count() == 2
    assert (second.taken(), third.taken()) == (QOS_OK, QOS_OK)
    second.say(QOS)
    place.turn()
    assert second.taken() == QOS_OK


@pytest.mark.skipif(reactor.__file__.endswith(".so"), reason="a compiled function cannot be replaced")
def test_a_peer_that_cannot_even_be_ended_keeps_nothing_from_the_next_ones(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their outboxes were on no list any longer: nothing was sent to them."""
    first, second, third = place.connect(3)
    connection = next(iter(place.broker.connections.values()))
    monkeypatch.setattr(reactor, "close_broken", no_memory)
    connection.outbox.failed(RuntimeError("a defect"))
    for peer in (first, second, third):
        peer.say(QOS)
    with pytest.raises(MemoryError):
        place.reactor.turn(place.reactor._selector.poll(0))
    monkeypatch.undo()
    place.crashes.clear()
    place.turn()
    assert (second.taken(), third.taken()) == (QOS_OK, QOS_OK)
