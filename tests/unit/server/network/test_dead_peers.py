"""Peers whose machine is gone, without heartbeats: real TCP, a client that hears nothing. dead_peers (1), (2)."""

from __future__ import annotations

import ctypes
import socket
import struct
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Final, cast

import pytest
from broker_process import wait_until
from engine_harness import publish_frames
from reactor_harness import LOGIN, Peer, Place

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.server.network.dead_peers import LOOKS_AT_ONCE, NEVER, ROUND_S, DeadPeers, Keepalive

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sockets that hear nothing need a filter of Linux")

QUICK: Final = Keepalive(1, 1, 1)
SO_ATTACH_FILTER: Final = 26


def switch_off(sock: socket.socket) -> None:
    """Drop all packets for a socket, as if its machine had no power: a filter whose one instruction is "no byte"."""
    instruction = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("@HP", 1, ctypes.addressof(instruction)))


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place(keepalive=QUICK)
    yield made
    made.reactor.stop()
    made.reactor.close()


class Machine:
    """A client that has logged in without heartbeats."""

    def __init__(self, place: Place) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.sock = socket.create_connection(server.getsockname())
            accepted, _ = server.accept()
        QUICK.start(accepted)
        place.reactor.acceptor.adopt(accepted, "127.0.0.1")
        (peer,) = place.broker.connections.values()
        self.peer = peer
        self.sock.setblocking(False)
        self.sock.send(LOGIN)
        ok = method_frame(1, m.ChannelOpenOk(b""))
        place.turns_until(lambda: self.received().endswith(ok))

    def received(self) -> bytes:
        try:
            return self.sock.recv(1 << 16)
        except BlockingIOError:
            return b""


def is_gone_after_a_tick(place: Place) -> bool:
    place.turn()
    place.now_s += ROUND_S
    place.reactor.tick(place.now_s)
    return place.reactor.connection_count() == 0


@pytest.mark.parametrize("is_told", [False, True])
def test_a_blocked_publisher_whose_machine_is_gone_is_let_go_while_the_alarm_lasts(place: Place, is_told: bool) -> None:
    """`is_told`: bytes for it wait for their acknowledgement, such as connection.blocked. The kernel does not ask."""
    machine = Machine(place)
    place.broker.set_alarm("memory", True)
    machine.sock.send(publish_frames("", "q", b"1"))
    place.turns_until(machine.peer.is_held_back)
    switch_off(machine.sock)
    if is_told:
        machine.peer.outbox.write(method_frame(0, m.ConnectionUnblocked()))
    wait_until(lambda: is_gone_after_a_tick(place), "the connection to end")
    assert place.broker.connections == {}
    assert machine.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0, "it heard nothing of that"


@pytest.mark.parametrize(
    ("retransmits", "probes", "silent_ms", "is_over"),
    [(2, 0, 2000, True), (0, 2, 2000, True), (2, 2, 1999, False), (0, 0, 10**6, False), (0, 1, 10**6, False)],
)
def test_a_peer_is_over_when_it_acknowledges_nothing(
    retransmits: int, probes: int, silent_ms: int, is_over: bool
) -> None:
    """A peer that lives and takes nothing answers each question, the last one perhaps not yet."""
    info = struct.pack("=2xBB52xI", retransmits, probes, silent_ms)
    sock = SimpleNamespace(getsockopt=lambda *_: info)
    assert QUICK.is_over(cast(socket.socket, sock)) == is_over


def test_looks_take_turns() -> None:
    looks = DeadPeers(QUICK)
    everybody = range(3 * LOOKS_AT_ONCE // 2)
    first, second = looks.due(everybody, 100.0), looks.due(everybody, 100.5)
    assert len(first) == LOOKS_AT_ONCE
    assert sorted(first + second) == list(everybody)
    assert looks.due(everybody, 101.0) == []
    assert looks.due([7], 100.0 + ROUND_S) == [7]
    assert DeadPeers(NEVER).due(everybody, 100.0) == []


def test_a_socket_that_is_not_tcp_is_not_over() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        QUICK.start(ours)
        assert not QUICK.is_over(ours)
        assert not NEVER.is_over(ours)


def test_a_peer_that_waits_in_a_harness_is_none() -> None:
    """The defaults ask no socket."""
    NEVER.start(cast(socket.socket, Peer()))
