"""The session of an AMQP 1.0 connection: its links, messages in both directions, windows and credit.

1. The client chooses the handles, and both directions use the same one. A link that fails is detached, and stays known
   until the client has detached it, too. A session that fails is ended in the same way.
2. A client may have `LINK_CREDIT` deliveries on the way on each link, and `WINDOW` transfers on a session. Both are
   topped up in steps. A delivery in several transfers is kept in pieces, each copied once. `channels.inbound` counts
   them. Their size is limited to that of a message, and `HEAD_BYTES` before its body.
3. The route and properties of a delivery are kept, by the bytes before its body: the next delivery with the same bytes
   costs only a look-up.
4. When a link ends, its unanswered deliveries are requeued.
5. No frame is larger than the client takes. The answer to an attach repeats the client's own statements about the link.
   If these do not fit into a frame, the session fails.

Parts of it have a module each: `attaching`, `dispositions` (outcomes, and the end of links), `link_draining` and
`management`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mypy_extensions import i64

from warren.amqp import methods as m
from warren.amqp.errors import AmqpError, ChannelException
from warren.amqp.field_table import Table
from warren.amqp.numbers import milliseconds_of, number_text
from warren.amqp10.addresses import target_of
from warren.amqp10.attaching import TAG_PREFIX
from warren.amqp10.conversion import Body, Sections, annotations_to_keep
from warren.amqp10.dispositions import DispositionRun, LinkEnd, Outcomes, accepted, settled_frame
from warren.amqp10.error_conditions import (
    DELETED,
    DETACH_FORCED,
    ILLEGAL_STATE,
    INVALID_FIELD,
    LIMIT_EXCEEDED,
    MESSAGE_SIZE,
    TRANSFER_LIMIT,
    UNATTACHED_HANDLE,
    UNIMPLEMENTED,
    WINDOW_VIOLATION,
    Amqp10Error,
    LinkError,
    SessionError,
    condition_of,
)
from warren.amqp10.ledger import Amqp10Ledger
from warren.amqp10.link_draining import begin_drain
from warren.amqp10.links import HEAD_BYTES, Link, ReceivingLink, SendingLink
from warren.amqp10.management import Management
from warren.amqp10.originals import Layout, keep_sections
from warren.amqp10.performatives import (
    ACCEPTED,
    DETACH,
    MODIFIED,
    RECEIVED,
    REJECTED,
    RELEASED,
    U32,
    Arguments,
    Disposition,
    Flow,
    Transfer,
    described,
    error_value,
    frame,
    maybe_described,
    write_flow,
)
from warren.amqp10.values import UInt
from warren.channels.back_pressure import hold_content
from warren.channels.consuming import cancel
from warren.channels.jobs import LOOKS_PER_STEP
from warren.channels.prepared_publish import PreparedPublish
from warren.channels.session import Session
from warren.msgstore.log.message import Message
from warren.queues.consumer import Consumer
from warren.queues.counters import MessageCounts

if TYPE_CHECKING:
    from warren.amqp10.peer import Amqp10Peer

WINDOW: Final = 4096
WINDOW_STEP: Final = WINDOW // 2
HEADS_MAX: Final = 64
HEAD_KEPT_BYTES: Final = 1024


class Amqp10Session(Session):
    """One session. `channel`: its number in both directions, of which `number` is one more."""

    def __init__(self, peer: Amqp10Peer, channel: int, next_incoming_id: i64, window: i64) -> None:
        self.amqp10: Amqp10Peer = peer
        self.channel = channel
        self.transfers = Amqp10Ledger(peer, channel + 1, channel, window, peer.broker.limits.unacked_per_channel_max)
        super().__init__(peer, channel + 1, self.transfers)
        self.transfers.session = self
        self.links: dict[int, Link] = {}
        self._transfer = Transfer()
        self._disposition = Disposition()
        self._flow = Flow()
        self._body = Body()
        self._next_incoming_id: i64 = next_incoming_id
        self._kept_count: i64 = 0  # how many heads its links keep
        self._window: i64 = WINDOW  # the number of transfers that its peer may send
        self._outcomes: Outcomes | None = None
        self._ticket: int = 0  # the ticket of the latest change that this session has made
        self.management: Management | None = None  # made with its first pair of links

    # --- results of commands ----------------------------------------------------------------------------------------

    def reply(self, method: Any, ticket: int = 0, batch: int = 0) -> None:
        if ticket > self._ticket:
            self._ticket = ticket
        management = self.management
        if management is not None:
            management.done(method, ticket, batch)

    def write_returned(self, message: Message) -> None:
        outcomes = self._outcomes
        if outcomes is None:
            return
        run = outcomes.take_back(outcomes.published + 1)
        if run is not None:
            link = run.link
            self.write_state(run.delivery_id, described(RELEASED, []))
            if link.lacks_queue(self.vhost) and not link.is_gone:
                self.fail_link(link, LinkError(DELETED, f"the queue '{link.routing_key}' is gone"))
            self.top_up(link)

    def consumer_cancelled(self, consumer: Consumer) -> None:
        text = f"the queue '{consumer.queue.name}' is gone, or the right to read it"
        self._detach_consumer(consumer, LinkError(DELETED, text))

    def give_up_consumer(self, consumer: Consumer, explanation: str) -> bool:
        self._detach_consumer(consumer, LinkError(LIMIT_EXCEEDED, explanation))
        return True

    def end_consumer(self, consumer: Consumer, reason: str) -> bool:
        self._detach_consumer(consumer, LinkError(DETACH_FORCED, reason))
        return True

    def _detach_consumer(self, consumer: Consumer, error: LinkError) -> None:
        link = self.links.get(int(consumer.tag.removeprefix(TAG_PREFIX)))
        if isinstance(link, SendingLink) and link.consumer is consumer and not link.is_gone:
            self.fail_link(link, error)

    def drop_content(self) -> None:
        self.shared.inbound.let_go(self)
        for link in self.links.values():
            if isinstance(link, ReceivingLink):
                link.pieces.drop()

    # --- out --------------------------------------------------------------------------------------------------------

    def write_outcome(self, first: i64, count: i64) -> None:
        """Write that deliveries of the client, `count` from `first` on, are accepted."""
        outbox = self.peer.outbox
        outbox.touch()
        accepted(outbox.writer, self.channel, first, count)

    def write_state(self, delivery_id: i64, state: object) -> None:
        """Write the outcome of one delivery of the client."""
        number = int(delivery_id)
        self.peer.outbox.write(settled_frame(self.channel, True, number, number, state))

    def top_up(self, link: ReceivingLink) -> None:
        """Give a sender credit again, if much of it is used."""
        if link.is_gone or self.state != 0:
            return
        credit: i64 = link.credit_due()
        if credit > 0:
            link.credit = credit
            self._write_link_flow(link)

    def _write_link_flow(self, link: ReceivingLink) -> None:
        self._write_flow(link.handle, link.delivery_count, link.credit, -1, drain=False)

    def write_sending_flow(self, link: SendingLink, *, drain: bool) -> None:
        """Write the state of a link on which the client receives. `drain`: its credit is used up."""
        consumer = link.consumer
        available: i64 = 0
        if consumer is not None and (consumer.search is None or not consumer.search.is_through):
            available = consumer.queue.ready_count
            if available > U32:
                available = U32
        self._write_flow(link.handle, link.delivery_count(), link.credit_left(), available, drain=drain)

    def _write_session_flow(self) -> None:
        self._write_flow(-1, 0, 0, -1, drain=False)

    def _write_flow(self, handle: i64, delivery_count: i64, credit: i64, available: i64, *, drain: bool) -> None:
        self._window = WINDOW
        outbox = self.peer.outbox
        outbox.touch()
        write_flow(
            outbox.writer,
            self.channel,
            self._next_incoming_id,
            WINDOW,
            self.transfers.next_outgoing_id,
            handle,
            delivery_count,
            credit,
            available,
            drain,
        )

    # --- transfers --------------------------------------------------------------------------------------------------

    def transfer(self, data: bytes, pos: i64, end: i64) -> None:
        """Take a transfer. The caller has checked whether publishers have to wait.

        Raises:
            AmqpError: the session or the connection fails.
        """
        transfer = self._transfer
        transfer.read(data, pos, end)
        self._next_incoming_id = (self._next_incoming_id + 1) & U32
        self._window -= 1
        if self._window < 0:
            raise SessionError(WINDOW_VIOLATION, f"more transfers than the window allows ({WINDOW})")
        link = self.links.get(transfer.handle)
        if isinstance(link, ReceivingLink) and not link.is_gone:
            try:
                self._take(link, transfer, data, transfer.payload, end)
            except ChannelException as error:
                if isinstance(error, SessionError):
                    raise
                self.fail_link(link, error)
            except Amqp10Error as error:
                self.fail_link(link, LinkError(error.condition, error.explanation))  # the frame itself is valid
        elif link is None or not link.is_gone:
            raise SessionError(UNATTACHED_HANDLE, f"a transfer on handle {int(transfer.handle)}, not a sender's")
        if self._window <= WINDOW_STEP:
            self._write_session_flow()

    def _take(self, link: ReceivingLink, transfer: Transfer, data: bytes, start: i64, end: i64) -> None:
        if transfer.aborted or transfer.resume:
            raise LinkError(UNIMPLEMENTED, "transfers that are aborted or resumed are not supported")
        if not link.is_cut():
            if transfer.delivery_id < 0:
                raise LinkError(INVALID_FIELD, "a transfer without a delivery id")
            if link.credit <= 0:
                raise LinkError(TRANSFER_LIMIT, "a delivery without credit")
            if transfer.message_format != 0:
                text = f"a message of format {int(transfer.message_format)}: only 0 is supported"
                raise LinkError(UNIMPLEMENTED, text)
            link.credit -= 1
            link.delivery_count = (link.delivery_count + 1) & U32
            if not transfer.more:
                self._deliver(link, transfer.delivery_id, transfer.settled, data, start, end)
                return
            link.delivery_id = transfer.delivery_id
            link.is_settled = transfer.settled
        elif transfer.delivery_id >= 0 and transfer.delivery_id != link.delivery_id:
            raise LinkError(ILLEGAL_STATE, "a delivery begins before the one on the same link has ended")
        if transfer.settled:
            link.is_settled = True
        self._keep(link, data[start:end])
        if transfer.more:
            return
        whole = link.pieces.take()
        self._count_pieces()
        self._deliver(link, link.delivery_id, link.is_settled, whole, 0, len(whole))

    def _keep(self, link: ReceivingLink, piece: bytes) -> None:
        """Keep a part of a delivery."""
        if link.pieces.size + len(piece) > self.shared.message_max_bytes + HEAD_BYTES:
            link.pieces.drop()
            raise self._too_large()
        hold_content(self, link.pieces.add(piece))

    def _count_pieces(self) -> None:
        """Count the held bytes again: one link no longer holds any, and other links may."""
        self.shared.inbound.let_go(self)
        for link in self.links.values():
            if isinstance(link, ReceivingLink) and link.is_cut():
                self.shared.inbound.hold(self, link.pieces.size)

    def _too_large(self) -> LinkError:
        most = int(self.shared.message_max_bytes)
        return LinkError(MESSAGE_SIZE, f"a message of more than {most} bytes")

    def _deliver(self, link: ReceivingLink, delivery_id: i64, settled: bool, data: bytes, start: i64, end: i64) -> None:
        """Handle a delivery that is whole."""
        if link.is_management:
            assert self.management is not None
            self.management.take(link, delivery_id, settled, data, start, end)
            return
        body = self._body
        body.find(data, start, end, HEAD_BYTES)
        layout: Layout | None = None
        head = data[start : body.sections]
        same = head  # equal for messages that have the same properties
        if body.is_plain:
            content = data[body.start : body.end]
        else:
            layout = Layout()
            layout.read(data, body.sections, end, HEAD_BYTES)
            content = layout.content
            same = head + layout.mark()
        if len(content) > self.shared.message_max_bytes:
            raise self._too_large()
        kept = link.kept_settled if settled else link.kept
        if settled:
            prepared = kept.get(same)
            if prepared is None:
                prepared = self._understand(link, head, layout, mandatory=False)
                self._remember(kept, same, prepared)
            prepared.publish(self, content)
            self.top_up(link)
            return
        outcomes = self._outcomes
        if outcomes is None:
            outcomes = Outcomes(self.shared.confirms, self, syncs=self.sync_confirms)
            self._outcomes = outcomes
            self.confirms = outcomes
        try:
            prepared = kept.get(same)
            if prepared is None:
                prepared = self._understand(link, head, layout, mandatory=True)
                self._remember(kept, same, prepared)
            outcomes.expect(link, delivery_id)
            try:
                prepared.publish(self, content)
            except AmqpError:
                outcomes.take_back(outcomes.published + 1)
                raise
        except ChannelException as error:
            if not link.is_anonymous:
                raise
            # The link stays usable for other messages.
            self.write_state(delivery_id, described(REJECTED, [error_value(condition_of(error), error.explanation)]))
            self.top_up(link)

    def _understand(
        self, link: ReceivingLink, head: bytes, layout: Layout | None, *, mandatory: bool
    ) -> PreparedPublish:
        """Return the prepared publish for the sections before a body. `layout`: of that body, None if it is as usual.

        Raises:
            AmqpError: they are malformed, or have no valid destination.
        """
        self.amqp10.count_command()
        sections = Sections()
        sections.read(head)
        if layout is not None:
            layout.describe(sections)
        keep_sections(sections, exactly=layout is not None and layout.has_footer)
        exchange, key = link.exchange, link.routing_key
        if link.is_anonymous:
            if sections.to is None:
                raise LinkError(INVALID_FIELD, "a message without `to` on a link without a target")
            exchange, key = target_of(sections.to)
        return PreparedPublish(exchange, key, sections.encode(), number=self.number, mandatory=mandatory)

    def _remember(self, kept: dict[bytes, PreparedPublish], same: bytes, prepared: PreparedPublish) -> None:
        if len(same) <= HEAD_KEPT_BYTES:
            if self._kept_count >= HEADS_MAX:
                self._forget_heads()
            self._kept_count += 1
            kept[same] = prepared

    def _forget_heads(self) -> None:
        for link in self.links.values():
            if isinstance(link, ReceivingLink):
                link.forget_heads()
        self._kept_count = 0

    # --- the client's answers to deliveries -------------------------------------------------------------------------

    def disposition(self, data: bytes, pos: i64, end: i64) -> None:
        """Take a disposition.

        Raises:
            AmqpError: it is malformed.
        """
        found = self._disposition
        found.read(data, pos, end)
        if not found.is_receiver or found.first < 0:
            return  # about deliveries that the client has sent: our answers settle these
        state: i64 = found.state
        if state == 0 and not found.settled:
            return
        if state == RECEIVED and not found.settled:
            return
        transfers = self.transfers
        span: i64 = (found.last - found.first) & U32
        if span > 0x7FFFFFFF:
            raise SessionError(INVALID_FIELD, "a disposition whose last delivery comes before its first")
        first: i64 = transfers.tag_of(found.first)
        last: i64 = first + span
        if first < 1:
            first = 1
        if last >= transfers.next_tag:
            last = transfers.next_tag - 1
        if last < first:
            return
        if state == ACCEPTED and found.settled:
            if first == last:
                if transfers.is_outstanding(first):
                    self.acknowledge(first, False)
                return
            if transfers.is_oldest(first) and transfers.is_outstanding(last):
                self.acknowledge(last, True)
                return
        self._settle(found, first, last, state)

    def _settle(self, found: Disposition, first: i64, last: i64, state: i64) -> None:
        transfers = self.transfers
        tags = transfers.outstanding_between(first, last)
        looks: i64 = min(last - first, transfers.unacked_count)
        self.amqp10.units_left -= len(tags) + looks // LOOKS_PER_STEP
        outcome = RELEASED
        failed = False
        delay_ms = -1
        annotations: Table = {}
        if state == ACCEPTED:
            outcome = ACCEPTED
        elif state == REJECTED:
            outcome = REJECTED
        elif state == MODIFIED:
            modified = maybe_described("a state", found.state_value())
            if modified is not None:
                fields = modified[1]
                failed = fields.flag(0)
                if fields.flag(1):
                    outcome = REJECTED  # as with RabbitMQ: dead-lettered, if the queue does that
                annotations = annotations_to_keep(fields.table(2))
                due = fields.table(2).get("x-opt-delivery-time")
                if isinstance(due, int):
                    delay_ms = milliseconds_of(int(due) - int(self.shared.log.now_ms)) or 0
        elif state not in (0, RECEIVED, RELEASED):
            raise SessionError(INVALID_FIELD, "a delivery state that is not an outcome")
        answer = b""
        if not found.settled:
            told = None if state == 0 else found.state_value()
            answer = settled_frame(self.channel, False, int(found.first), int(found.last), told)
            if len(answer) > self.amqp10.peer_frame_bytes:
                told = described(int(state), [])
                answer = settled_frame(self.channel, False, int(found.first), int(found.last), told)
        run = DispositionRun(
            self, tags, outcome, failed=failed, delay_ms=delay_ms, annotations=annotations, answer=answer
        )
        self.peer.begin(run)

    # --- flow -------------------------------------------------------------------------------------------------------

    def flow(self, data: bytes, pos: i64, end: i64) -> None:
        """Take a flow.

        Raises:
            AmqpError: it is malformed, or for no link.
        """
        flow = self._flow
        flow.read(data, pos, end)
        transfers = self.transfers
        if flow.incoming_window < 0:
            raise SessionError(INVALID_FIELD, "a flow without a window")
        # Transfers that we have sent and the peer has not seen yet are subtracted from its window.
        begun: i64 = flow.next_incoming_id if flow.next_incoming_id >= 0 else i64(0)
        under_way: i64 = (transfers.next_outgoing_id - begun) & U32
        if transfers.widen(max(flow.incoming_window - under_way, i64(0))):
            self._wake_consumers()
        if flow.handle < 0:
            if flow.echo:
                self._write_session_flow()
            return
        link = self.links.get(flow.handle)
        if link is None:
            raise SessionError(UNATTACHED_HANDLE, f"flow for handle {int(flow.handle)}: not attached")
        if link.is_gone:
            return
        if isinstance(link, ReceivingLink):
            if flow.echo:
                self._write_link_flow(link)
        elif isinstance(link, SendingLink):
            self._credit(link, flow)

    def _credit(self, link: SendingLink, flow: Flow) -> None:
        if flow.link_credit >= 0:
            counted: i64 = flow.delivery_count if flow.delivery_count >= 0 else i64(0)
            sent: i64 = link.delivery_count()
            limit: i64 = counted + flow.link_credit
            credit: i64 = (limit - sent) & U32
            if credit > 0x7FFFFFFF:
                credit = 0  # the client has withdrawn credit that was used by deliveries still on the way
                limit = sent
            link.grant(limit, credit)
            link.is_draining = flow.drain
        consumer = link.consumer
        if consumer is None:
            if self.management is not None:
                self.management.send_responses(link)
        elif consumer.credit > 0 and not link.is_gone:
            consumer.come_back()
            consumer.queue.wake()
        if link.is_draining:
            begin_drain(self, link)
        elif flow.echo:
            self.write_sending_flow(link, drain=False)

    def _wake_consumers(self) -> None:
        for consumer in list(self.ledger.consumers.values()):
            if consumer.credit > 0:
                consumer.come_back()
                consumer.queue.wake()
        for link in self.links.values():
            if isinstance(link, SendingLink) and link.responses and self.management is not None:
                self.management.send_responses(link)

    # --- links ------------------------------------------------------------------------------------------------------

    def detach(self, fields: Arguments) -> None:
        """Take a detach.

        Raises:
            AmqpError: there is no such link.
        """
        handle = fields.number(0, -1)
        link = self.links.get(handle)
        if link is None:
            raise SessionError(UNATTACHED_HANDLE, f"detach of handle {number_text(handle)}: not attached")
        if link.is_gone:
            del self.links[handle]
            return
        answer = frame(self.channel, DETACH, [UInt(handle), True if fields.flag(1) else None])
        self._end_link(link, answer)

    def fail_link(self, link: Link, error: ChannelException) -> None:
        """Detach a link because of `error`."""
        link.is_gone = True
        self.amqp10.note_link_error(self, error)
        told = error_value(condition_of(error), error.explanation)
        self._end_link(link, frame(self.channel, DETACH, [UInt(link.handle), True, told]))

    def _end_link(self, link: Link, answer: bytes) -> None:
        if isinstance(link, SendingLink) and link.consumer is not None:
            consumer = link.consumer
            if self.transfers.drop_held(link.handle):
                self._wake_consumers()
            cancel(self, m.BasicCancel(consumer.tag, True))
            self.peer.begin(LinkEnd(self, link, consumer, answer))
            return
        if isinstance(link, ReceivingLink):
            link.pieces.drop()
            self._count_pieces()
        self.link_ended(link, answer)

    def link_ended(self, link: Link, answer: bytes) -> None:
        """Detach a link after its consumer and deliveries have ended."""
        if isinstance(link, SendingLink):
            if link.consumer is not None:
                self.transfers.forget_limit(link.consumer)
            link.consumer = None
            link.responses.clear()
            queue = self.vhost.queues.get(link.queue) if link.queue else None
            if queue is not None:
                self.peer.broker.delete_queue(self.vhost, queue)
        elif isinstance(link, ReceivingLink):
            link.forget()
        if not link.is_gone:
            self.links.pop(link.handle, None)
            link.is_gone = True  # confirms that come later must not give it credit
        if self.is_open():
            self.peer.outbox.write(answer)

    def add_counts(self, counts: MessageCounts) -> None:
        super().add_counts(counts)
        counts.deliver_no_ack -= self.transfers.own  # responses of management, which are not from a queue

    # --- the end ----------------------------------------------------------------------------------------------------

    def ended(self) -> None:
        for link in self.links.values():
            if isinstance(link, ReceivingLink):
                link.forget()
        self.links.clear()
        self.management = None
        self.transfers.session = None
        super().ended()
