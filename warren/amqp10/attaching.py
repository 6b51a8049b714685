"""The requests of an attach: terminus, settle mode and filters of a link, and the answer to the client.

The request is checked, and the consumer begun, before the link belongs to a session. If this fails, the link is
attached without a terminus and detached at once: so AMQP 1.0 refuses a link (2.6.3). If it succeeds, the link belongs
to its session (``session.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.amqp import methods as m
from warren.amqp.declarations import QueueDeclaration
from warren.amqp.errors import NOT_FOUND, ChannelException
from warren.amqp.field_table import EMPTY_TABLE, encode_table
from warren.amqp.numbers import number_text
from warren.amqp10.addresses import MANAGEMENT, queue_address, source_of, target_of
from warren.amqp10.error_conditions import (
    HANDLE_IN_USE,
    INVALID_FIELD,
    LIMIT_EXCEEDED,
    UNIMPLEMENTED,
    LinkError,
    SessionError,
)
from warren.amqp10.filters import CAPABILITIES
from warren.amqp10.ledger import transfer_head
from warren.amqp10.links import Link, ReceivingLink, SendingLink
from warren.amqp10.management import Management
from warren.amqp10.performatives import (
    ATTACH,
    RELEASED,
    SOURCE,
    TARGET,
    U32,
    Arguments,
    described,
    frame,
    maybe_described,
)
from warren.amqp10.source import Wanted
from warren.amqp10.values import Array, Described, Symbol, UByte, UInt, ULong
from warren.channels.access import READ, WRITE
from warren.channels.consuming import consume, open_replies
from warren.channels.topology import run_topology
from warren.queues.arguments import STREAM
from warren.queues.base_queue import BaseQueue
from warren.queues.consumer import Consumer
from warren.queues.queue import Queue
from warren.queues.selective import SELECTIVE_MAX, why_not_selected

if TYPE_CHECKING:
    from warren.amqp10.session import Amqp10Session


HANDLE_MAX: Final = 255
SIZE_MAX: Final = (1 << 63) - 1  # no message is larger
LINK_NAME_MAX_BYTES: Final = 1024
# The most characters of filters that look at messages, on all links of a session together.
FILTERS_MAX: Final = 65536
STREAM_PREFETCH: Final = 65535
TAG_PREFIX: Final = "link-"  # of consumers, before the handle of their link
# Settle modes of senders.
SETTLED: Final = 1
MIXED: Final = 2
VOLATILE: Final = "rabbitmq:volatile-queue"  # the capability of a source for direct reply-to
# The outcomes that a source supports, as the answer to an attach lists them.
_OUTCOMES: Final = ("amqp:accepted:list", "amqp:rejected:list", "amqp:released:list", "amqp:modified:list")


def attach(session: Amqp10Session, fields: Arguments) -> None:
    """Take an attach.

    Raises:
        AmqpError: the session fails.
    """
    name = fields.text(0)
    handle = fields.number(1, -1)
    role = fields.any(2)
    if name is None or handle < 0 or not isinstance(role, bool):
        raise SessionError(INVALID_FIELD, "an attach without name, handle or role")
    if len(name.encode()) > LINK_NAME_MAX_BYTES:
        raise SessionError(INVALID_FIELD, f"the name of a link is longer than {LINK_NAME_MAX_BYTES} bytes")
    if handle > HANDLE_MAX:
        raise SessionError(LIMIT_EXCEEDED, f"the maximum handle is {HANDLE_MAX}")
    if handle in session.links:
        raise SessionError(HANDLE_IN_USE, f"handle {handle} is in use")
    try:
        if role:
            _attach_receiver(session, name, handle, fields)
        else:
            _attach_sender(session, name, handle, fields)
    except ChannelException as error:
        if isinstance(error, SessionError):
            raise
        _refuse(session, name, handle, role, error)


def _write_attach(session: Amqp10Session, values: list[object]) -> None:
    """Write our side of a link.

    Raises:
        SessionError: the frame would be larger than the peer takes.
    """
    data = frame(session.channel, ATTACH, values)
    most = int(session.amqp10.peer_frame_bytes)
    if len(data) > most:
        raise SessionError(LIMIT_EXCEEDED, f"the answer to an attach has {len(data)} bytes (maximum of a frame {most})")
    session.peer.outbox.write(data)


def _refuse(session: Amqp10Session, name: str, handle: int, role: bool, error: ChannelException) -> None:
    """Refuse a link: attach it without a terminus, then detach it."""
    initial = UInt(0) if role else None
    values: list[object] = [str(name), UInt(handle), not role, None, None, None, None, None, None, initial]
    _write_attach(session, values)
    link = Link(name, handle)
    session.links[handle] = link
    session.fail_link(link, error)


def _attach_sender(session: Amqp10Session, name: str, handle: int, fields: Arguments) -> None:
    """Attach a link on which the client sends."""
    link = ReceivingLink(name, handle, fields.number(9, 0) & U32)
    found = maybe_described("a target", fields.any(6))
    if found is None:
        raise LinkError(INVALID_FIELD, "a sender without a target")
    code, target = found
    if code != TARGET:
        raise LinkError(UNIMPLEMENTED, "transactions are not supported")
    if target.flag(4):
        raise LinkError(UNIMPLEMENTED, "dynamic targets are not supported")
    address = target.text(0)
    if address is None:
        link.is_anonymous = True
    elif address == MANAGEMENT:
        _pair(session, fields)
        link.is_management = True
    else:
        link.exchange, link.routing_key = target_of(address)
        if link.exchange == "":
            session.authorize(WRITE, "exchange", "amq.default")
            if link.lacks_queue(session.vhost):
                raise ChannelException(NOT_FOUND, f"no queue '{link.routing_key}' in vhost '{session.vhost.name}'")
        else:
            session.authorize(WRITE, "exchange", link.exchange)
            session.vhost.exchange(link.exchange)
    session.links[handle] = link
    mode = UByte(_settle_mode(fields))
    most = ULong(int(session.shared.message_max_bytes))
    given = described(TARGET, [None if address is None else str(address), UInt(0), Symbol("session-end")])
    values: list[object] = [
        str(name),
        UInt(handle),
        True,
        mode,
        UByte(0),
        fields.any(5),
        given,
        None,
        None,
        None,
        most,
    ]
    if link.is_management:
        values += [None, None, {Symbol("paired"): True}]
    _write_attach(session, values)
    session.top_up(link)


def _pair(session: Amqp10Session, fields: Arguments) -> None:
    paired = fields.table(13).get("paired")
    if paired is not True:
        raise LinkError(INVALID_FIELD, f"links of {MANAGEMENT} come in pairs: set the property 'paired'")
    if session.management is None:
        session.management = Management(session)


def _attach_receiver(session: Amqp10Session, name: str, handle: int, fields: Arguments) -> None:
    """Attach a link on which the client receives."""
    link = SendingLink(name, handle)
    found = maybe_described("a source", fields.any(5))
    if found is None:
        raise LinkError(INVALID_FIELD, "a receiver without a source")
    code, source = found
    if code != SOURCE:
        raise LinkError(INVALID_FIELD, "not a valid source")
    settled = _settle_mode(fields) == SETTLED
    link.message_max = min(fields.number(10, 0), SIZE_MAX)
    address = source.text(0)
    filters: dict[object, object] = {}
    may_filter = False
    capability = ""
    if source.flag(4):
        if address is not None:
            raise LinkError(INVALID_FIELD, "a dynamic source with an address")
        if VOLATILE in _symbols(source.any(10)):
            capability = VOLATILE
            address = queue_address(_await_replies(session, link, settled))
        else:
            capability = "temporary-queue"
            run_topology(session, QueueDeclaration("", durable=False, exclusive=True, auto_delete=True))
            link.queue = session.last_queue
            address = queue_address(link.queue)
            _consume(session, link, link.queue, settled, EMPTY_TABLE)
    elif address == MANAGEMENT:
        _pair(session, fields)
        link.is_management = True
    elif address is None:
        raise LinkError(INVALID_FIELD, "a source without an address")
    else:
        queue = source_of(address)
        session.authorize(READ, "queue", queue)  # before the error texts reveal anything about the queue
        wanted = Wanted(source, fields)
        filters = wanted.applied
        found_queue = session.vhost.queues.get(queue)
        may_filter = found_queue is not None and why_not_selected(found_queue) == ""
        if found_queue is not None and wanted.expressions is not None:
            _check_selection(found_queue)
            _hold_filters(session, link, wanted)
        table = wanted.arguments
        _consume(session, link, queue, settled, encode_table(table) if table else EMPTY_TABLE)
        if link.consumer is not None and wanted.expressions is not None:
            link.consumer.queue.select(link.consumer, wanted.expressions)
    session.links[handle] = link
    given: list[object] = [str(address), source.any(1), Symbol("session-end"), UInt(0), source.flag(4)]
    lifetime: object = None
    if capability:
        lifetime = {Symbol("lifetime-policy"): Described(ULong(0x2B), [])}
    given += [lifetime, None, filters or None, described(RELEASED, [])]
    given += [Array(0xA3, [Symbol(each) for each in _OUTCOMES])]
    if capability:
        given.append(Array(0xA3, [Symbol(capability)]))
    mode = UByte(SETTLED if settled or link.is_management else 0)
    values: list[object] = [str(name), UInt(handle), False, mode, UByte(0), described(SOURCE, given)]
    values += [fields.any(6), None, None, UInt(0), ULong(link.message_max) if link.message_max else None]
    values.append(Array(0xA3, [Symbol(each) for each in CAPABILITIES]) if may_filter else None)
    if link.is_management:
        values += [None, {Symbol("paired"): True}]
    _write_attach(session, values)


def _symbols(value: object) -> list[object]:
    """Return the entries of a list of capabilities; a single one may stand alone."""
    if isinstance(value, Array):
        return list(value.elements)
    return value if isinstance(value, list) else [value]


def _await_replies(session: Amqp10Session, link: SendingLink, settled: bool) -> str:
    """Make a queue for direct reply-to, which stores nothing and ends with the link, and send the client its messages.

    Raises:
        LinkError: the client wants to settle deliveries: such a queue does not wait for that.
    """
    if not settled:
        raise LinkError(INVALID_FIELD, f"a source with {VOLATILE} needs a sender's settle mode of {SETTLED}")
    session.prefetch = 0
    consumer = open_replies(session, f"{TAG_PREFIX}{link.handle}", EMPTY_TABLE)
    _begin_consumer(session, link, consumer)
    return consumer.queue.name


def _check_selection(queue: BaseQueue) -> None:
    """Make sure that a queue can have another consumer that wants only some of its messages.

    Raises:
        LinkError: the arguments of the queue do not allow it, or it has too many such consumers.
    """
    why = why_not_selected(queue)
    if why:
        raise LinkError(UNIMPLEMENTED, f"{why}: attach without filters, or use another queue")
    keeper = queue.keeper if isinstance(queue, Queue) else None
    if keeper is not None and keeper.dispatch.selective_count() >= SELECTIVE_MAX:
        text = f"queue '{queue.name}' has {SELECTIVE_MAX} receivers with filters, which is the maximum"
        raise LinkError(LIMIT_EXCEEDED, text)


def _hold_filters(session: Amqp10Session, link: SendingLink, wanted: Wanted) -> None:
    """Count the size of a link's filters, since parsed filters are many times larger.

    Raises:
        LinkError: the filters of the session are too large together.
    """
    if wanted.expressions is None:
        return
    held: i64 = wanted.expressions.size
    link.filter_size = held
    for other in session.links.values():
        if isinstance(other, SendingLink) and not other.is_gone:
            held += other.filter_size
    if held > FILTERS_MAX:
        raise LinkError(LIMIT_EXCEEDED, f"the filters of a session have more than {FILTERS_MAX} characters in total")


def _consume(session: Amqp10Session, link: SendingLink, queue: str, settled: bool, arguments: bytes) -> None:
    found = session.vhost.queues.get(queue)
    session.prefetch = STREAM_PREFETCH if found is not None and found.rules.queue_type == STREAM else 0
    tag = f"{TAG_PREFIX}{link.handle}"
    no_ack = settled and link.message_max == 0
    consume(session, m.BasicConsume(0, queue, tag, False, no_ack, False, False, arguments))
    if link.message_max:
        session.transfers.limit(session.ledger.consumers[tag], link.message_max, settles=settled)
    _begin_consumer(session, link, session.ledger.consumers[tag])


def _begin_consumer(session: Amqp10Session, link: SendingLink, consumer: Consumer) -> None:
    consumer.credit = 0
    consumer.deliver_head = transfer_head(session.channel, link.handle)
    link.consumer = consumer


def _settle_mode(fields: Arguments) -> int:
    """Return the settle mode of the sender that an attach asks for.

    Raises:
        LinkError: there is no such mode.
    """
    mode = fields.number(3, MIXED)
    if mode > MIXED:
        raise LinkError(INVALID_FIELD, f"a sender's settle mode of {number_text(mode)} (maximum {MIXED})")
    return mode
