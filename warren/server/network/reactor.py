"""Serve the sockets of all protocols in one trio task through one selector, which is epoll on Linux.

A turn reads every ready socket once, feeds the engine, lets it hand out deliveries and confirms, and flushes the
outboxes that became dirty. The engine never waits, so nothing here awaits except the end of a turn.

1. A turn ends its reading after `TURN_UNITS` of work (`channels.shared`) or `TURN_BUDGET_S`, its sending after
   `TURN_BUDGET_S`. The next turn begins with the sockets that this one did not reach, in their order: otherwise the
   ready list of epoll begins with the same sockets whenever all of it fits into one answer. So every socket is served
   once before any is served twice. A connection does at most `feed_units` at a time, fewer when more are ready. Data
   that it has read beyond that waits for its place among the others, like a connection whose pause is over, and it
   reads nothing more before.
2. Accepting and TLS handshakes have limits of their own in each turn (`server.network.acceptor`).
3. A paused connection is not watched for input. It is watched again when the engine says that it resumed. One that only
   waits for its next turn stays watched: anything else would cost two system calls for each turn.
4. A socket is closed only after its outbox is with the kernel and its peer could read it (`server.network.sockets`).
5. An exception that is not the peer's doing ends that connection with 541, is logged with its traceback and counted.
6. `wake` ends a wait at once, from any thread: results of the threads of the message store become confirms and
   deliveries in that very turn (`server.network.poller`).
7. While `may_serve` is false, clients are not read, and nothing is handed out or sent to them: another node may serve
   by then. Watched descriptors (`watch`) and the message store continue, since they can allow clients again.
8. A peer whose machine is gone is noticed without heartbeats, and while the connection is not read
   (`server.network.dead_peers`). A peer that is given up gets the bytes that its socket takes at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import trio
from mypy_extensions import i64

from warren.amqp.outbox import Outbox
from warren.channels.broker import Broker
from warren.channels.connection_states import CHECKING_LOGIN, ENDED, RUNNING
from warren.channels.ending import close_broken
from warren.channels.peer import Peer
from warren.channels.shared import FEED_UNITS_MAX
from warren.msgstore.files.store import wall_time_ms
from warren.server.histogram import Histogram
from warren.server.network.acceptor import ACCEPT_PAUSE_S, Acceptor
from warren.server.network.admission import Admission
from warren.server.network.dead_peers import NEVER, Keepalive
from warren.server.network.poller import GO_ON, Poller
from warren.server.network.readiness import READ, WRITE
from warren.server.network.sockets import Sockets
from warren.server.network.transport import RECEIVE_BYTES, Transport
from warren.server.network.web_rules import WebSocketEnd

TURN_BUDGET_S: Final = 0.010
TURN_UNITS: Final = 16384
FEED_UNITS_MIN: Final = 256
# The limit for one read of a connection: as much as it may handle, in frames as small as they come, yet enough for
# large ones.
UNIT_BYTES: Final = 64
RECEIVE_MIN_BYTES: Final = 65536
# The cost of an event, apart from the work of the engine and from its bytes.
EVENT_UNITS: Final = 8
BYTES_PER_UNIT: Final = 1024
CLOCK_EVERY_UNITS: Final = 2048
CLOCK_EVERY_SENDS: Final = 16
YIELD_EVERY_S: Final = 0.002
LURK_S: Final = 0.001
HELD_S: Final = 0.005  # between two looks while clients are held back


def _ignore(_key: int) -> None:
    """Do nothing."""


def feed_units(ready: int) -> int:
    """Return how many units of work each of `ready` sockets may do in a turn."""
    return min(max(TURN_UNITS // max(ready, 1), FEED_UNITS_MIN), FEED_UNITS_MAX)


class Reactor:
    """The turns of one broker: `poller` waits, `acceptor` has the listeners, `sockets` those that are open.

    `certificate_user` maps a verified certificate to a user name, `on_crash` receives our own faults, `on_settled` runs
    when the engine has left notices, defects or login requests, `is_alone` tells whether no other task waits to run.
    `on_closed` gets the key of each peer whose socket is closed. `dispatch` runs when the message log has jobs,
    `on_wake` in the turn after a `wake`. `clock` is monotonic, in seconds.
    """

    def __init__(
        self,
        broker: Broker,
        admission: Admission,
        *,
        certificate_user: Callable[[dict[str, object]], str | None],
        on_crash: Callable[[BaseException], None],
        on_settled: Callable[[], None],
        on_closed: Callable[[int], None] = _ignore,
        is_alone: Callable[[], bool],
        dispatch: Callable[[], None],
        on_wake: Callable[[], None],
        tls_handshake_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        clock_ms: Callable[[], int] = wall_time_ms,
        keepalive: Keepalive = NEVER,
    ) -> None:
        self.broker = broker
        self.crashes = 0
        self.turn_times = Histogram()
        self.may_serve: Callable[[], bool] | None = None  # None: a broker by itself may always
        self.poller = Poller(on_wake)
        self.sockets = Sockets(
            broker,
            self.poller,
            admission,
            certificate_user=certificate_user,
            on_closed=on_closed,
            tls_handshake_timeout_s=tls_handshake_timeout_s,
            keepalive=keepalive,
            clock=clock,
        )
        self._admission = admission
        self._on_crash = on_crash
        self._on_settled = on_settled
        self._is_alone = is_alone
        self._dispatch = dispatch
        self._clock = clock
        self._clock_ms = clock_ms
        self._selector = self.poller.selector
        self._transports = self.sockets.by_fd
        self._by_key = self.sockets.by_key
        self._handshakes = self.sockets.handshakes
        self._unsent: list[Outbox] = []  # to be sent in the next turn
        self._units: i64 = 0  # done in this turn
        self._feed_units: i64 = FEED_UNITS_MAX  # how much a connection may do in this turn
        self._receive_bytes: int = RECEIVE_BYTES  # and how much it may read
        self._stopped = False
        # Last: the compiler knows all other fields as set.
        self.acceptor = Acceptor(
            broker, self.poller, self.sockets, admission, on_crash=self._crashed, read=self._read, clock=clock
        )

    # --- from outside -----------------------------------------------------------------------------------------------

    def connection_count(self) -> int:
        return len(self._transports)

    async def run(self) -> None:
        """Serve until `stop`."""
        last_yield_s = self._clock()
        busy = False
        while not self._stopped:
            if self.may_serve is not None and not self.may_serve():
                self._hold()
                await trio.sleep(HELD_S)
                continue
            is_idle = not self._has_work()
            # Requests follow as answers to what was just sent: waiting here for a moment costs a third of the way
            # through trio's scheduler and back.
            events = self._selector.poll(LURK_S if is_idle and busy and self._is_alone() else 0)
            if not events and is_idle:
                busy = False
                if self.acceptor.resting:
                    with trio.move_on_after(ACCEPT_PAUSE_S):
                        await trio.lowlevel.wait_readable(self._selector.fileno())
                    self.acceptor.watch_again(self._clock())
                else:
                    await trio.lowlevel.wait_readable(self._selector.fileno())
                last_yield_s = self._clock()
                continue
            busy = True
            self._turn(events)
            now_s = self._clock()
            self.turn_times.observe(now_s - self.broker.now_s)  # since the turn began
            if now_s - last_yield_s > YIELD_EVERY_S:
                # Other tasks (timers, commits, HTTP) have a turn however busy the sockets are.
                await trio.lowlevel.checkpoint()
                last_yield_s = now_s

    def stop(self) -> None:
        """Close all sockets and end `run`."""
        self._stopped = True
        self.sockets.close_all()
        self.acceptor.stop()
        self.poller.wake()

    def close(self) -> None:
        """Release the descriptors; `run` has ended."""
        self.poller.close()

    def tick(self, now_s: float) -> None:
        """Handle passing time: heartbeats, deadlines, lingering sockets. Call about twice a second."""
        self.broker.log.now_ms = self._clock_ms()
        self.broker.tick(now_s)
        self.sockets.tick(now_s)
        self.settle()

    # --- turns ------------------------------------------------------------------------------------------------------

    def turn(self, events: list[tuple[int, int]]) -> None:
        """Handle ready sockets, as `run` does; wake the reactor if work is left."""
        self._turn(events)
        if self._has_work():
            self.poller.wake()

    def _turn(self, events: list[tuple[int, int]]) -> None:
        """Handle ready sockets, beginning with those that the last turn did not reach, then settle."""
        start_s = self._clock()
        self.broker.now_s = start_s
        self.broker.log.now_ms = self._clock_ms()
        if self.acceptor.resting:
            self.acceptor.watch_again(start_s)
        if self.poller.ready:
            events = self.poller.take(events)
        self._share_out(len(events))
        transports = self._transports
        self._units = 0
        check_at: i64 = CLOCK_EVERY_UNITS
        reached = 0
        try:
            for fd, mask in events:
                reached += 1
                transport = transports.get(fd)
                if transport is None:
                    if not self.poller.happened(fd):
                        self.acceptor.has_waiting(fd)
                    continue
                self._units += EVENT_UNITS
                if mask & WRITE:
                    self._flush(transport)
                if mask & GO_ON:
                    self._go_on(transport)
                elif mask & ~WRITE:
                    self._read(transport)
                if self._units >= check_at:
                    if self._units >= TURN_UNITS or self._clock() - start_s > TURN_BUDGET_S:
                        self.poller.leave(events[reached:])
                        break
                    check_at = self._units + CLOCK_EVERY_UNITS
        except BaseException:
            self.poller.leave(events[reached:])  # this task restarts, and each event is told only once
            raise
        # After the last event: until here a closed descriptor cannot be reused by another connection.
        if self.acceptor.accepting:
            self.acceptor.accept_some()
        if self._handshakes.due_count:
            self.acceptor.shake_hands()
        self._settle(runs_long_work=True)

    def _hold(self) -> None:
        """Handle only the descriptors through which clients may be served again."""
        for fd, _ in self._selector.poll(0):
            self.poller.happened(fd)

    def _share_out(self, ready: int) -> None:
        """Divide the work of a turn among `ready` sockets."""
        units = feed_units(ready)
        if units != self._feed_units:
            self._feed_units = units
            self._receive_bytes = min(max(units * UNIT_BYTES, RECEIVE_MIN_BYTES), RECEIVE_BYTES)
            self.broker.shared.feed_units = units

    def settle(self) -> None:
        """Finish the engine's turn, and send its output. Call after every engine call from outside."""
        self._settle(runs_long_work=False)
        if self._has_work():
            self.poller.wake()

    def _settle(self, *, runs_long_work: bool) -> None:
        if self.may_serve is not None and not self.may_serve():
            return
        broker = self.broker
        broker.end_turn(runs_long_work=runs_long_work)
        log = broker.log
        if log.commit_jobs or log.read_jobs or log.seal_jobs or log.checkpoint_jobs or log.unlink_jobs:
            self._dispatch()
        for peer in broker.take_resumed():
            transport = self._by_key.get(peer.key)
            if transport is not None:
                self.poller.requeue(transport.fd)
        outboxes = broker.take_dirty()
        # Last bytes: when they are with the kernel, the socket is closed.
        given_up: list[Transport] = []
        for peer in broker.take_ended():
            transport = self._by_key.get(peer.key)
            if peer.heartbeats.is_given_up and transport is not None:
                given_up.append(transport)
            else:
                outboxes.append(peer.outbox)
        if self._unsent:
            outboxes = self._unsent + outboxes
            self._unsent = []
        if outboxes:
            self._send(outboxes)
        for transport in given_up:
            self.sockets.close(transport)  # nobody waits for it, but it was sent its last words
        if broker.notices or broker.logins or broker.work.defects:
            self._on_settled()

    def _has_work(self) -> bool:
        """Tell whether another turn is due though no socket is ready."""
        mine = len(self.poller.ready) > 0 or len(self._unsent) > 0 or self._handshakes.due_count > 0
        return mine or self.broker.has_work()

    def _send(self, outboxes: list[Outbox]) -> None:
        """Send the contents of `outboxes`; leave the rest to the next turn if time is over."""
        start_s = self._clock() if len(outboxes) > CLOCK_EVERY_SENDS else 0.0
        countdown: i64 = CLOCK_EVERY_SENDS
        for sent, outbox in enumerate(outboxes):
            if countdown == 0:
                if self._clock() - start_s > TURN_BUDGET_S:
                    self._unsent = outboxes[sent:]
                    return
                countdown = CLOCK_EVERY_SENDS
            countdown -= 1
            try:
                if outbox.failure is not None:
                    self._end_failed(outbox)
                transport = self._by_key.get(outbox.key)
                if transport is not None:
                    self._flush(transport)
            except BaseException:
                self._unsent = outboxes[sent + 1 :]
                raise

    def _end_failed(self, outbox: Outbox) -> None:
        """End a peer after a defect of ours while something was written for it; the others continue."""
        error = outbox.failure
        assert error is not None
        outbox.failure = None
        self._crashed(error)
        peer = self.broker.connections.get(outbox.key)
        if peer is not None:
            close_broken(peer)
            self.poller.wake()  # its unacked messages return to their queues

    def _crashed(self, error: BaseException) -> None:
        """Count a defect of ours, which ends one connection."""
        self.crashes += 1
        self._on_crash(error)

    def _read(self, transport: Transport) -> None:
        peer = transport.peer
        if peer is None:
            self.acceptor.heard(transport)
            return
        try:
            data = transport.receive(self._receive_bytes)
        except WebSocketEnd as end:
            # The last bytes of the WebSocket are sent like those of the protocol.
            if peer.state != ENDED:
                if end.reason:
                    peer.drop(end.reason)
                else:
                    peer.lost()
            return
        except OSError:
            self.sockets.lost(transport)
            return
        except Exception as error:
            # A defect of ours, or of the WebSocket parser, met by one connection: end only that one.
            self._crashed(error)
            self.sockets.lost(transport)
            return
        self._units += transport.receiving_units
        if transport.is_behind():
            self.broker.resumed.append(peer)
        if data is None:
            if transport.pre_auth and transport.is_web:
                self._admission.heard(transport.fd, self.broker.now_s, has_to_wait=False)
            return
        if transport.linger_deadline_s:
            if not data:
                self.sockets.close(transport)
            return
        if not data:
            self.sockets.lost(transport)
            return
        self._feed(transport, peer, data)

    def _go_on(self, transport: Transport) -> None:
        peer = transport.peer
        if peer is not None:
            self._feed(transport, peer, b"")
            if transport.is_behind() and not peer.paused:
                self._read(transport)

    def _feed(self, transport: Transport, peer: Peer, data: bytes) -> None:
        try:
            peer.feed(data)
            self._units += self._feed_units - peer.units_left + len(data) // BYTES_PER_UNIT
        except Exception as error:
            # A defect of ours, met by one connection: end only that one.
            self._crashed(error)
            close_broken(peer)
        switched = self.broker.take_switched()
        if switched is not None:
            transport.peer = switched[0]
            self._feed(transport, switched[0], switched[1])
            return
        if transport.pre_auth:
            self._count_step(transport, peer)
        self._watch(transport)

    def _count_step(self, transport: Transport, peer: Peer) -> None:
        """Note a step of a login, or its end: the peer has sent something, or gets something after a check of ours."""
        if peer.state >= RUNNING:
            transport.pre_auth = False
            self._admission.leave(transport.fd)
        else:
            has_to_wait = peer.state == CHECKING_LOGIN
            self._admission.heard(transport.fd, self.broker.now_s, has_to_wait=has_to_wait)

    def _flush(self, transport: Transport) -> None:
        peer = transport.peer
        if peer is None:
            return
        if transport.pre_auth and peer.state != CHECKING_LOGIN:
            self._count_step(transport, peer)
        try:
            done = transport.flush()
        except OSError:
            self.sockets.lost(transport)
            return
        except Exception as error:
            # A defect of ours, or too little memory, met by one connection: the outboxes after it are sent, too.
            self._crashed(error)
            self.sockets.lost(transport)
            return
        wanted = transport.interest & ~WRITE if done else transport.interest | WRITE
        if wanted != transport.interest:
            self.sockets.set_interest(transport, wanted)
        if peer.state == ENDED:
            self.sockets.finish(transport, sent=done)

    def _watch(self, transport: Transport) -> None:
        """Watch for input unless the connection is paused."""
        peer = transport.peer
        wanted = transport.interest | READ
        if peer is not None and peer.is_held_back() and not transport.linger_deadline_s:
            wanted &= ~READ
        if wanted != transport.interest:
            self.sockets.set_interest(transport, wanted)
