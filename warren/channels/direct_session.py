"""A session inside the process: the broker's own management acts on it for a user, and its results are values.

1. It is open from the beginning. It has neither a handshake nor a password: its caller has checked the user.
2. Permissions of the user, limits of vhosts, texts of refusals and events of declarations are those of any other
   session, because it is one. It does not count towards a limit of connections, and nobody is told about it.
3. Commands are done in their order, at once if possible. One that has to wait is the first of `commands` until
   `resume` finds that nothing holds it back.
4. Results come to `answers`, in the order of the commands, as soon as a client would be told. An `AmqpError` is the
   last one: it has closed the session.
5. `on_answer` is called when there is an answer or when the session may continue. It must not call back.

Commands are values: those of `amqp.methods` for exchange.*, queue.*, basic.get, basic.ack, basic.nack and tx.select,
declarations as those of `amqp.declarations`, a message as a `Publish`, staged messages as `StagedPublishes`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from librt.strings import read_i32_be, read_i64_be
from mypy_extensions import i64

from warren.amqp import methods as m
from warren.amqp.errors import (
    FRAME_ERROR,
    PRECONDITION_FAILED,
    AmqpError,
    ChannelException,
    ConnectionException,
)
from warren.amqp.methods import FRAME_HEAD_BYTES, FRAME_OVERHEAD_BYTES
from warren.amqp.properties import BODY_SIZE_OFFSET
from warren.channels.access import Principal
from warren.channels.back_pressure import block_publisher
from warren.channels.confirms import Confirms
from warren.channels.connection_states import CLOSING, NEXT_STATES, RUNNING
from warren.channels.consuming import get, may_get
from warren.channels.jobs import ChannelEnd
from warren.channels.origin import Origin
from warren.channels.peer import NO_LIMIT_S, Peer
from warren.channels.prepared_publish import NUMBER, PROPERTIES_AT, PreparedPublish
from warren.channels.session import Session
from warren.channels.topology import run_topology
from warren.channels.transaction import tx_select
from warren.msgstore.log.message import Message
from warren.queues.delivery import DeliveryLedger
from warren.vhosts.virtual_host import VirtualHost

if TYPE_CHECKING:
    from warren.channels.broker import Broker

PEER: Final = "management"
# For spans.
PROTOCOL: Final = "AMQP 0-9-1"
# More work than any number of commands can ask for at a time: a turn of the API is not that of a client.
UNLIMITED_UNITS: Final = 1 << 60


class Got(NamedTuple):
    """The answer to basic.get; `message_count` messages are left in the queue."""

    message: Message
    delivery_tag: int
    redelivered: bool
    message_count: int


class Published(NamedTuple):
    """The answer to a publish."""

    routed: bool
    accepted: bool


class Publish:
    """A message to be published and confirmed. `properties`: as `BasicProperties.encode` returns them.

    `body`: its parts.
    """

    def __init__(self, exchange: str, routing_key: str, properties: bytes, *body: bytes) -> None:
        self.prepared = PreparedPublish(exchange, routing_key, properties, mandatory=True)
        self.body = list(body)


class StagedPublishes:
    """Messages in the form that `amqp.publishes` has accepted; those before `pos` are published. Not answered."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.pos: i64 = 0


class DirectPeer(Peer):
    """The peer of one such session, of `principal` in `vhost`."""

    def __init__(self, broker: Broker, key: int, principal: Principal, vhost: VirtualHost) -> None:
        super().__init__(broker, key, Origin(PEER, PEER, ""), PROTOCOL, NEXT_STATES)
        self.origin.is_direct = True
        self.login.user_name = principal.user.name
        broker.note_user(self)
        self.login.vhost_name = vhost.name
        self.vhost = vhost
        self.principal = principal
        self.heartbeats.deadline_s = NO_LIMIT_S
        self.state = RUNNING
        self.running = True
        self.answers: deque[Any] = deque()
        self.is_returned: bool = False  # the message that is being published
        self.on_answer: Callable[[], None] = _nothing
        self._waiting: deque[tuple[int, int, object]] = deque()  # answers, each with a ticket and a batch to wait for

    def answer(self, value: object, ticket: int = 0, batch: int = 0) -> None:
        """Add an answer, after all earlier ones, once the metadata change `ticket` and the log's `batch` are on disk.

        This is `write_when_durable` for values.
        """
        self._waiting.append((ticket, batch, value))
        if len(self._waiting) == 1 and not self.open_gate():
            self.broker.shut_gates.add(self)

    def open_gate(self) -> bool:
        waiting = self._waiting
        committed_ticket = self.broker.journal.committed_ticket
        done_batch = int(self.broker.log.done_batch)
        while waiting:
            ticket, batch, value = waiting[0]
            if ticket > committed_ticket or batch > done_batch:
                return False
            waiting.popleft()
            self.answers.append(value)
            self.on_answer()
        return True

    def _forget_gate(self) -> None:
        self._waiting.clear()
        self.broker.shut_gates.forget(self)

    def resume(self, reason: i64) -> None:
        if self.paused & reason:
            self.paused &= ~reason
            if self.paused == 0:
                self.on_answer()

    # --- the end ----------------------------------------------------------------------------------------------------

    def failed(self, session: DirectSession, error: AmqpError) -> None:
        """Close `session` with `error` as the last answer."""
        if isinstance(error, ChannelException):
            self.close_session(session, error, 0)
        else:
            self.end_channels()
            self.send_close(error.reply_code, error.explanation, 0)

    def close_session(self, session: Session, error: ChannelException, method_id: int) -> None:
        session.close()
        self.begin(ChannelEnd(session, told=True, refusal=error))

    def session_ended(self, session: Session, refusal: ChannelException | None, method_id: int) -> None:
        if self.running:
            self.answer(refusal)

    def send_close(self, reply_code: int, explanation: str, method_id: int) -> None:
        self.running = False
        self.enter(CLOSING)
        self._forget_gate()
        self.answer(ConnectionException(reply_code, explanation))

    def forget_input(self) -> None:
        self.on_answer = _nothing  # it refers to us: do not leave a cycle for the cyclic collector


class DirectLedger(DeliveryLedger):
    """The unanswered deliveries of basic.get."""

    def __init__(self, peer: DirectPeer, unacked_max: i64) -> None:
        super().__init__(NUMBER, peer.turns, 0, unacked_max)
        self._peer = peer

    def write_got(self, message: Message, tag: i64, redelivered: bool, left: i64) -> None:
        self._peer.answer(Got(message, int(tag), redelivered, int(left)))


class DirectConfirms(Confirms):
    """The confirms of the session of `peer`: one publish at a time."""

    def __init__(self, peer: DirectPeer, *, syncs: bool) -> None:
        super().__init__(peer.shared.confirms, peer.outbox, syncs=syncs)
        self._peer = peer

    def write_confirmed(self, up_to: i64, count: i64) -> None:
        self._peer.answer(Published(not self._peer.is_returned, True))

    def write_refused(self, number: i64) -> None:
        self._peer.answer(Published(not self._peer.is_returned, False))


class DirectSession(Session):
    """The only session of `peer`."""

    def __init__(self, peer: DirectPeer) -> None:
        super().__init__(peer, NUMBER, DirectLedger(peer, peer.broker.limits.unacked_per_channel_max))
        self.direct = peer
        self.commands: deque[Any] = deque()

    def command(self, command: Any) -> None:
        """Do `command` after all earlier ones; its answer comes to the peer."""
        self.commands.append(command)
        self.resume()

    def resume(self) -> None:
        """Do the commands that nothing holds back."""
        peer = self.direct
        while self.commands and not peer.paused:
            if not self.is_open():
                self.commands.clear()
                return
            command = self.commands.popleft()
            peer.units_left = UNLIMITED_UNITS
            try:
                if not self._do(command):
                    self.commands.appendleft(command)
                    return
            except AmqpError as error:
                peer.failed(self, error)

    def _do(self, command: Any) -> bool:
        """Do `command`; False: something holds it back, for which the peer is paused."""
        match command:
            case Publish():
                return self._publish(command)
            case StagedPublishes():
                return self._publish_staged(command)
            case m.BasicGet():
                if not may_get(self, command.queue):
                    return False
                get(self, command)
            case m.BasicAck():
                self.acknowledge(command.delivery_tag, command.multiple)
            case m.BasicNack():
                self.reject(command.delivery_tag, multiple=command.multiple, requeue=command.requeue, failed=False)
            case m.TxSelect():
                tx_select(self)
            case _:
                run_topology(self, command)
        return True

    # --- publishing -------------------------------------------------------------------------------------------------

    def _may_publish(self) -> bool:
        """Tell whether publishers need not wait; if they do, the peer is paused."""
        if self.shared.stopped or self.vhost.is_crowded:
            block_publisher(self.peer)
            return False
        return True

    def _publish(self, publish: Publish) -> bool:
        if not self._may_publish():
            return False
        publish.prepared.find_route(self)
        limit = self.peer.login.frame_max_bytes
        size = PROPERTIES_AT + len(publish.prepared.tail) - 1
        if size > limit:
            # A client could not be sent it: a content header is one frame.
            text = f"type 2, {size} octets: {{frame_too_large,{size},{limit - FRAME_OVERHEAD_BYTES}}}"
            raise ConnectionException(FRAME_ERROR, text)
        if self.confirms is None:
            self.confirms = DirectConfirms(self.direct, syncs=self.sync_confirms)
        self.direct.is_returned = False
        publish.prepared.publish_parts(self, publish.body)
        return True

    def _publish_staged(self, staged: StagedPublishes) -> bool:
        data = staged.data
        while staged.pos < len(data):
            if self.peer.paused or not self._may_publish():
                return False
            header: i64 = _frame_end(data, staged.pos)
            arguments = data[staged.pos + FRAME_HEAD_BYTES + 4 : header - 1]
            route = self.last_route
            if (
                route is None
                or self.last_version != self.vhost.topology_version
                or self.last_arguments != arguments
                or not route.cacheable
            ):
                route = self.find_route(arguments)
            self.route = route
            header_end: i64 = _frame_end(data, header)
            body_bytes: i64 = read_i64_be(data, header + FRAME_HEAD_BYTES + BODY_SIZE_OFFSET)
            limit: i64 = self.shared.message_max_bytes
            if body_bytes > limit:
                text = f"message size {int(body_bytes)} is larger than configured max size {int(limit)}"
                raise ChannelException(PRECONDITION_FAILED, text)
            largest: i64 = header_end - header
            end: i64 = header_end
            left: i64 = body_bytes
            while left > 0:
                following: i64 = _frame_end(data, end)
                if following - end > largest:
                    largest = following - end
                left -= following - end - FRAME_OVERHEAD_BYTES
                end = following
            staged.pos = end
            self.complete(data[header:end], None, data, header, header_end, body_bytes, largest)
        return True

    # --- answers ----------------------------------------------------------------------------------------------------

    def reply(self, method: Any, ticket: int = 0, batch: int = 0) -> None:
        self.direct.answer(method, ticket, batch)

    def write_returned(self, message: Message) -> None:
        self.direct.is_returned = True

    def drop_content(self) -> None:
        """Forget the route; a message is never received in part."""
        self.route = None


def _frame_end(data: bytes, pos: i64) -> i64:
    """Return the end of the whole frame at `pos`."""
    return pos + FRAME_OVERHEAD_BYTES + (i64(read_i32_be(data, pos + 3)) & 0xFFFFFFFF)


def _nothing() -> None:
    """Do nothing: nobody waits for an answer."""
