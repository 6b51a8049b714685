"""A peer: the state of one client that all protocols share.

It has an outbox, pauses, replies that wait for the log, jobs, exclusive queues and sessions (`channels.session`). Parts
of it have a module each: `origin`, `login` (user and vhost, and what was agreed), `heartbeats`, `back_pressure` (waits
in a shortage) and `ending` (ends that the broker decides). A protocol derives from it, and adds how bytes become
commands and how an end is told:

    feed                         bytes of the peer; `units_left` and PAUSED_TURN bound the work of one call
    login_accepted, _refused     the shell's answer to the `LoginRequest` on `Broker.logins`
    close_session, session_ended a session fails, or is asked to end: it is told when everything is back
    answer_close                 everything that the peer asked to end has ended
    send_close, write_heartbeat  the last words, and the sign of life for the peer
    forget_input                 it has ended
    tell_blocked and the like    for a protocol that has words for that

1. The states are those of `connection_states`; which may follow which is the protocol's table.
2. Replies leave in the order of their requests (`reply_gate`).
3. When a peer ends, its sessions have ended and its exclusive queues are deleted before that is answered.
4. While a pause holds, received input is not handled; `Broker.resumed` has the peers that continue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.amqp.errors import ChannelException
from warren.amqp.field_table import Table
from warren.amqp.outbox import Outbox
from warren.channels.access import Principal, Usage
from warren.channels.back_pressure import UNWANTED, tell_blocked, tell_unblocked
from warren.channels.connection_states import AWAIT_HEADER, CHECKING_LOGIN, ENDED, RUNNING, STATE_NAMES
from warren.channels.ending import give_up
from warren.channels.heartbeats import Heartbeats
from warren.channels.jobs import ConnectionEnd, ConnectionJobs
from warren.channels.login import Login, LoginRequest
from warren.channels.origin import Origin
from warren.channels.overdue import sweep
from warren.channels.reply_gate import ReplyGate
from warren.channels.rounds import is_long
from warren.channels.session import CHANNEL_CLOSING, Session
from warren.channels.shared import (
    FEED_UNITS_MAX,
    PAUSED_COMMIT,
    PAUSED_INBOUND,
    PAUSED_OUTBOX,
    PAUSED_TURN,
    PAUSED_WORK,
    Shared,
)
from warren.queues.base_queue import BaseQueue
from warren.queues.long_work import Job
from warren.queues.turns import Turns
from warren.vhosts.virtual_host import VirtualHost

if TYPE_CHECKING:
    from warren.channels.broker import Broker

CLOSE_TIMEOUT_S: Final = 30.0

# Longer than a broker runs.
NO_LIMIT_S: Final = 1e12


# For connections without any: never changed.
_NO_QUEUES: Final[dict[str, BaseQueue]] = {}


class Peer:
    """One client. `key` is its name for the shell."""

    def __init__(
        self, broker: Broker, key: int, origin: Origin, protocol: str, next_states: tuple[tuple[int, ...], ...]
    ) -> None:
        shared: Shared = broker.shared
        self.shared = shared
        self.outbox = Outbox(key, shared.dirty, broker.limits.outbox_soft_bytes, shared.spare_writers)
        self.turns = Turns(self.outbox, shared.served, shared.owed)
        self.vhost: VirtualHost | None = None
        self.principal: Principal | None = None
        self.channels: dict[int, Session] = {}  # its sessions, by number
        self.running: bool = False  # open, and neither side is closing
        self.paused: i64 = 0
        self.inbound_bytes: i64 = 0  # the bytes of its unfinished contents
        self.received_bytes: i64 = 0
        self.units_left: i64 = FEED_UNITS_MAX  # of the work that this call of `feed` may do
        self.broker = broker
        self.protocol = protocol
        self.key = key
        self.origin = origin
        self.state: int = AWAIT_HEADER
        self.login = Login(broker.limits.frame_max_bytes, broker.limits.channel_max)
        self.received_reads: i64 = 0  # the number of reads from the socket
        self.blocked_notice: int = UNWANTED  # see `back_pressure`
        self.exclusive_queues = _NO_QUEUES
        self._next_states = next_states
        self._work: ConnectionJobs | None = None
        self._gate = ReplyGate()
        self.heartbeats = Heartbeats(broker.now_s, broker.now_s + broker.limits.handshake_timeout_s)
        self._next_sweep_s: float = 0.0

    # --- overridden by protocols ------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Handle received bytes; ``b""`` after `Broker.take_resumed` continues with the input that was held back."""
        raise AssertionError("overridden")

    def login_accepted(self) -> None:
        """Continue the handshake: the shell has verified the peer's identity."""
        raise AssertionError("overridden")

    def login_refused(self, request: LoginRequest) -> None:
        """Refuse the peer: the shell does not know it."""
        raise AssertionError("overridden")

    def close_session(self, session: Session, error: ChannelException, method_id: int) -> None:
        """End `session` because of `error`."""
        raise AssertionError("overridden")

    def session_ended(self, session: Session, refusal: ChannelException | None, method_id: int) -> None:
        """Notify the peer that a session has released everything: as it asked for, or because of `refusal`."""
        raise AssertionError("overridden")

    def answer_close(self) -> None:
        """Answer the peer's request to close: everything that it ends has ended."""
        raise AssertionError("overridden")

    def send_close(self, reply_code: int, explanation: str, method_id: int) -> None:
        """Begin to close from our side."""
        raise AssertionError("overridden")

    def forget_input(self) -> None:
        """Drop received input that was not handled: the peer has ended."""
        raise AssertionError("overridden")

    def write_heartbeat(self) -> None:
        """Send a sign of life."""
        raise AssertionError("overridden")

    def tell_blocked(self, reason: str) -> None:
        """Notify the peer, if it asks for that, that it has to wait."""

    def tell_unblocked(self) -> None:
        """Notify the peer that it need not wait any longer."""

    def tell_given_up(self, reason: str) -> None:
        """Send a last message before an unresponsive peer is dropped; it may not arrive."""

    # --- life -------------------------------------------------------------------------------------------------------

    def opened(self, vhost: VirtualHost, principal: Principal, usage: Usage) -> None:
        """Begin to work in `vhost` as `principal`: the handshake is over."""
        broker = self.broker
        self.vhost = vhost
        self.principal = principal
        self.login.vhost_name = vhost.name
        self.enter(RUNNING)
        self.running = True
        self.login.usage = usage
        usage.connections += 1
        vhost.open_connections += 1
        broker.open_connections += 1
        broker.churn.connections_opened += 1

    @property
    def client_properties(self) -> Table:
        """The properties that the client states, as 0-9-1 has them; do not change them."""
        return self.login.stated_properties

    def own(self, queue: BaseQueue) -> None:
        """Tie an exclusive queue to the connection."""
        if self.exclusive_queues is _NO_QUEUES:
            self.exclusive_queues = {}
        self.exclusive_queues[queue.name] = queue

    def details(self) -> dict[str, object]:
        """Return its own fields in the management API, besides those of all peers: by the name of the protocol."""
        return {}

    def is_checking_login(self) -> bool:
        """Tell whether the shell is verifying its identity."""
        return self.state == CHECKING_LOGIN

    def enter(self, state: int) -> None:
        """Change the state, as the table of states allows."""
        assert state in self._next_states[self.state], f"{STATE_NAMES[self.state]} to {STATE_NAMES[state]}"
        self.state = state
        self.broker.rounds.hurry(self.key)

    def searched(self) -> i64:
        """Return the number of steps that the patterns of permissions and policies have taken so far."""
        principal = self.principal
        vhost = self.vhost
        return 0 if principal is None or vhost is None else principal.searched + vhost.policies.searched

    # --- output, and waiting replies --------------------------------------------------------------------------------

    def write_when_durable(self, data: bytes, ticket: int, batch: int) -> None:
        """Send a reply after all earlier ones, once the metadata change `ticket` and the log's `batch` are on disk."""
        broker = self.broker
        gate = self._gate
        if gate.is_shut() or ticket > broker.journal.committed_ticket or batch > broker.log.done_batch:
            if not gate.is_shut():
                broker.shut_gates.add(self)
            gate.hold(ticket, batch, data)
            return
        self.outbox.write(data)

    def open_gate(self) -> bool:
        """Send the replies that have nothing left to wait for; return True when no reply waits."""
        self._gate.open(self.broker.journal.committed_ticket, self.broker.log.done_batch, self.outbox)
        if self._gate.is_shut():
            return False
        self.resume(PAUSED_COMMIT)
        return True

    def _forget_gate(self) -> None:
        self._gate.forget()
        self.broker.shut_gates.forget(self)

    def pause(self, reason: i64) -> None:
        """Stop handling input for `reason`."""
        self.paused |= reason

    def is_held_back(self) -> bool:
        """Tell whether it is not read for longer than until its next turn."""
        return self.paused & ~PAUSED_TURN != 0

    def share_used(self) -> None:
        """Go on in a later turn."""
        self.pause(PAUSED_TURN)
        self.broker.resumed.append(self)

    def check_outbox(self) -> None:
        # A client could publish unroutable messages and not read its returns and nacks: these would fill the memory.
        if self.outbox.waiting_bytes() > self.broker.limits.outbox_hard_bytes:
            self.pause_for_outbox()

    def pause_for_outbox(self) -> None:
        """Stop handling input until the peer has taken its waiting bytes."""
        self.pause(PAUSED_OUTBOX)
        # Replies alone do not stop deliveries; `drained` is only called after a stop.
        self.outbox.writable = False

    def resume(self, reason: i64) -> None:
        """End the pause for `reason`; the shell resumes reading when no other pause holds."""
        if self.paused & reason:
            self.paused &= ~reason
            if self.paused == 0:
                self.broker.resumed.append(self)

    def begin(self, job: Job) -> None:
        """Do `job`, in this turn as far as possible; until it is done the peer is not read."""
        work = self._work
        if work is None:
            work = ConnectionJobs(self, job)
            self._work = work
            if not self.broker.work.begin(work) and self.running:
                self.pause(PAUSED_WORK)  # also if it has to wait before it begins
        else:
            work.add(job)

    def work_done(self) -> None:
        """Resume reading: all jobs are done."""
        self._work = None
        self.resume(PAUSED_WORK)

    def drained(self) -> None:
        """Resume deliveries and held requests: the peer has taken everything."""
        self.resume(PAUSED_OUTBOX)
        self.turns.wake()

    # --- shortages --------------------------------------------------------------------------------------------------

    def wait_inbound(self) -> None:
        """Pause a peer that holds many partly received contents. `tick` tells it, if it still waits then."""
        self.pause(PAUSED_INBOUND)
        self.broker.rounds.hurry(self.key)

    def resume_inbound(self) -> None:
        """End the inbound pause. Its peer is ended if it cannot be told: others wait for the same moment."""
        if self.broker.flow.alarm_reason == "":
            try:
                tell_unblocked(self)
            except Exception as error:
                self.outbox.failed(error)
        self.resume(PAUSED_INBOUND)

    # --- time -------------------------------------------------------------------------------------------------------

    def is_patient(self) -> bool:
        """Tell whether it need not look at the time in every tick: see `Rounds`."""
        is_due_soon = self.state != RUNNING or self.paused & PAUSED_INBOUND or self.outbox.waiting_bytes() > 0
        heartbeats = self.heartbeats
        return not is_due_soon and is_long(heartbeats.interval_s) and is_long(heartbeats.own_interval_s)

    def tick(self, now_s: float) -> None:
        """Send a heartbeat when due, give up on a silent peer, enforce deadlines."""
        if self.paused & PAUSED_INBOUND:
            tell_blocked(self)
        heartbeats = self.heartbeats
        if self.state != RUNNING:
            if now_s >= heartbeats.deadline_s and self.state != ENDED:
                self.drop("handshake or close timed out")
            return
        timeout_s = self.broker.limits.send_timeout_s
        heartbeats.tick(now_s, self.received_bytes, self.outbox, is_read=self.paused == 0, send_timeout_s=timeout_s)
        if now_s >= self._next_sweep_s:
            self._next_sweep_s = sweep(self, now_s)
        if heartbeats.is_stuck(timeout_s) and not self.origin.is_internal:
            # Heartbeats show that it lives; but it would hold its waiting bytes and unacknowledged messages for ever.
            give_up(self, f"the peer did not read pending data, timeout: {timeout_s:g}s")
        elif heartbeats.is_gone():
            give_up(self, f"missed heartbeats from client, timeout: {heartbeats.interval_s}s")
        elif heartbeats.is_due():
            self.write_heartbeat()

    # --- the end ----------------------------------------------------------------------------------------------------

    def lost(self) -> None:
        """Handle a lost socket."""
        if self.state == RUNNING and not self.origin.is_direct:
            self.broker.note("info", "connection.lost", {"peer": self.origin.peer, "reason": "closed by the peer"})
        self.end_channels()
        self.end()

    def drop(self, why: str) -> None:
        """End without a word to the peer."""
        self.broker.note("warning", "connection.dropped", {"peer": self.origin.peer, "reason": why})
        self.end_channels()
        self.end()

    def end_channels(self, *, answered: bool = False) -> None:
        """Begin to end its sessions, and then its exclusive queues; `answered`: `answer_close` follows."""
        self.running = False
        channels: list[Session] = []
        for channel in self.channels.values():
            if channel.state != CHANNEL_CLOSING:
                channel.close()
                channels.append(channel)
        if self.login.usage is not None:
            self.login.usage.channels -= len(self.channels)
        self.channels.clear()
        if channels or self.exclusive_queues or answered:
            self.begin(ConnectionEnd(self, channels, answered=answered))

    def end(self) -> None:
        """End now: the last bytes follow, then the socket is closed."""
        if self.state == ENDED:
            return
        self.enter(ENDED)
        self.running = False
        self.forget_input()
        self._forget_gate()
        usage = self.login.usage
        if usage is not None:
            self.login.usage = None
            usage.connections -= 1
            self.broker.open_connections -= 1
            churn = self.broker.churn
            churn.connections_closed += 1
            churn.received_bytes += int(self.received_bytes)
            churn.sent_bytes += int(self.outbox.sent_bytes)
            if self.vhost is not None:
                self.vhost.open_connections -= 1
        self.turns.close()
        self.broker.forget_connection(self)
        self.broker.ended.append(self)
        if self.login.has_begun:
            self.broker.events.connection_closed(self)
