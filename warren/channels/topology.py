"""The methods exchange.* and queue.*: their rules in RabbitMQ's order, then one call on the virtual host.

Replies to changes of something durable wait for the commit: each handler passes the journal's ticket on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from mypy_extensions import i64

from warren.amqp import methods as m
from warren.amqp.declarations import ExchangeDeclaration, QueueDeclaration
from warren.amqp.errors import ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED, ChannelException
from warren.amqp.field_table import TYPE_NAMES, decode_table, find_tag
from warren.channels.access import CONFIGURE, READ, WRITE
from warren.channels.audit_trail import NOT_OF_MESSAGES
from warren.channels.cancel_notices import CancelNotices
from warren.channels.consuming import REPLY_TO_NAME
from warren.channels.session import Session
from warren.channels.shared import TOPOLOGY_UNITS
from warren.channels.topology_growth import binding_growth_bytes, growth_bytes
from warren.exchanges.exchange import Exchange
from warren.exchanges.registry import EXCHANGE_TYPES
from warren.exchanges.topic_exchange import TopicExchange
from warren.queues.base_queue import BaseQueue
from warren.queues.destination import Destination
from warren.queues.long_work import AT_ONCE_STEPS
from warren.queues.receiver import Receiver
from warren.vhosts.limits import MAX_QUEUES, is_reached
from warren.vhosts.policy_run import FirstPolicies
from warren.vhosts.super_streams import (
    SuperStreamDeclaration,
    bindings_max,
    declare_super_stream,
    maybe_super_stream,
)
from warren.vhosts.unbinding import Unbinding
from warren.vhosts.virtual_host import CONTROL_EXCHANGE, in_use

RESERVED_PREFIX: Final = "amq."
COUNT_MAX: Final = 0xFFFFFFFF  # of messages, as answers can say it: a stream may have more
TOPOLOGY_METHODS: Final = (
    m.ExchangeDeclare,
    m.ExchangeDelete,
    m.ExchangeBind,
    m.ExchangeUnbind,
    m.QueueDeclare,
    m.QueueBind,
    m.QueueUnbind,
    m.QueuePurge,
    m.QueueDelete,
)


def run_topology(session: Session, command: Any) -> None:
    """Do as `handle_topology` for a peer that is refused during an alarm, since it cannot wait.

    Raises:
        ChannelException: as the rules of the command say; 406, topology may not grow now.
    """
    peer = session.peer
    if peer.broker.growth.is_limited:
        peer.broker.growth.check(peer.key, growth_bytes(session, command))
    handle_topology(session, command)


def handle_topology(channel: Session, method: Any) -> None:
    """Handle one of `TOPOLOGY_METHODS`, or a declaration as a method that is not passive.

    Raises:
        ChannelException: as the method's rules say.
    """
    channel.peer.units_left -= TOPOLOGY_UNITS
    match method:
        case ExchangeDeclaration():
            _declare_exchange(channel, replace(method, name=_stripped(method.name)))
        case QueueDeclaration():
            _declare_queue(channel, replace(method, name=_stripped(method.name)))
        case m.ExchangeDeclare():
            _exchange_declare(channel, method)
        case m.ExchangeDelete():
            _exchange_delete(channel, method)
        case m.ExchangeBind():
            ticket = _exchange_bind(channel, method.destination, method.source, method, True)
            if not method.no_wait:
                channel.reply(m.ExchangeBindOk(), ticket)
        case m.ExchangeUnbind():
            ticket = _exchange_bind(channel, method.destination, method.source, method, False)
            if not method.no_wait:
                channel.reply(m.ExchangeUnbindOk(), ticket)
        case m.QueueDeclare():
            _queue_declare(channel, method)
        case m.QueueBind():
            _queue_bind(channel, method)
        case m.QueueUnbind():
            _queue_unbind(channel, method)
        case m.QueuePurge():
            _queue_purge(channel, method)
        case _:
            _queue_delete(channel, method)


def _stripped(name: str) -> str:
    return name.replace("\r", "").replace("\n", "")


def check_name(kind: str, name: str) -> None:
    """Refuse a `name` of an exchange or queue (`kind`) that cannot be kept, or that a client could not repeat.

    Any other control character is allowed, as in RabbitMQ: a program that shows a name escapes it.

    Raises:
        ChannelException: 406.
    """
    # PostgreSQL has no NUL in a text. Line breaks are removed from names that clients declare, bind and delete.
    for character in name:
        if character in "\0\r\n":
            raise ChannelException(PRECONDITION_FAILED, f"{kind} name {name!a} contains a NUL or a line break")


def _not_default(name: str) -> None:
    if name == "":
        raise ChannelException(ACCESS_REFUSED, "operation not permitted on the default exchange")


def _bindable(name: str) -> None:
    _not_default(name)
    if name == CONTROL_EXCHANGE:
        raise ChannelException(ACCESS_REFUSED, f"operation not permitted on '{CONTROL_EXCHANGE}'")


def _maybe_alternate(arguments: bytes, exchange: str, vhost: str) -> str | None:
    if len(arguments) == 4:
        return None
    table = decode_table(arguments)
    if "alternate-exchange" not in table:
        return None
    value = table["alternate-exchange"]
    if not isinstance(value, str):
        tag = TYPE_NAMES[find_tag(arguments, "alternate-exchange")]
        raise ChannelException(
            PRECONDITION_FAILED,
            f"invalid type '{tag}' for arg 'alternate-exchange' in exchange '{exchange}' in vhost '{vhost}'",
        )
    return value


def _any_access(channel: Session, kind: str, name: str) -> None:
    """Check any one of the three rights: passive declares reveal that an object exists.

    Raises:
        ChannelException: 403.
    """
    principal = channel.peer.principal
    assert principal is not None
    asked = "amq.default" if name == "" and kind == "exchange" else name
    if not (principal.may(READ, asked) or principal.may(WRITE, asked)):
        channel.authorize(CONFIGURE, kind, name)


def _outlives_clients(queue: BaseQueue) -> bool:
    """Tell whether `queue` matters beyond the clients that use it."""
    return queue.durable and queue.owner is None and not queue.auto_delete


def _note_change(channel: Session, did: str, messages: int = NOT_OF_MESSAGES) -> None:
    """Write a log line for the change and its author, unless it came over HTTP, where it has a line already."""
    peer = channel.peer
    if not peer.origin.is_direct:
        trail = peer.broker.audit_trail
        trail.changed(did, channel.vhost.name, peer.login.user_name, peer.origin.peer, messages)


# --- exchanges -----------------------------------------------------------------------------------------------------


def _exchange_declare(channel: Session, method: m.ExchangeDeclare) -> None:
    name = _stripped(method.exchange)
    if not method.passive:
        _declare_exchange(channel, ExchangeDeclaration.of_method(method, name), no_wait=method.no_wait)
        return
    _not_default(name)
    _any_access(channel, "exchange", name)
    channel.vhost.exchange(name)
    if not method.no_wait:
        channel.reply(m.ExchangeDeclareOk())


def _declare_exchange(channel: Session, declaration: ExchangeDeclaration, *, no_wait: bool = False) -> None:
    vhost = channel.vhost
    name = declaration.name
    if declaration.type not in EXCHANGE_TYPES:
        raise ChannelException(PRECONDITION_FAILED, f"unknown exchange type '{declaration.type}'")
    _not_default(name)
    channel.authorize(CONFIGURE, "exchange", name)
    if name not in vhost.exchanges:
        if name.startswith(RESERVED_PREFIX):
            raise ChannelException(ACCESS_REFUSED, f"exchange name '{name}' contains reserved prefix 'amq.*'")
        check_name("exchange", name)
        _check_arguments(channel, declaration.arguments)
        alternate = _maybe_alternate(declaration.arguments, name, vhost.name)
        if alternate is not None:
            channel.authorize(READ, "exchange", name)
            channel.authorize(WRITE, "exchange", alternate)
        limit = channel.peer.broker.limits.exchanges_per_vhost_max
        if len(vhost.exchanges) >= limit:
            raise ChannelException(
                PRECONDITION_FAILED,
                f"cannot declare exchange '{name}': exchange limit in vhost '{vhost.name}' ({limit}) is reached",
            )
    wanted = maybe_super_stream(declaration, vhost.name)
    if wanted is not None:
        _check_partitions(channel, wanted)
        ticket = declare_super_stream(vhost, wanted, channel.peer.login.user_name)
        channel.peer.begin(FirstPolicies(vhost, wanted.partition_names()))
        if not no_wait:
            channel.reply_when_done(m.ExchangeDeclareOk(), ticket)
        return
    ticket = vhost.declare_exchange(declaration, channel.peer.login.user_name)
    if not no_wait:
        channel.reply(m.ExchangeDeclareOk(), ticket)


def _check_partitions(channel: Session, wanted: SuperStreamDeclaration) -> None:
    """Make the checks of declaring and binding the partitions one by one."""
    vhost = channel.vhost
    missing = 0
    for name in wanted.partition_names():
        check_name("queue", name)
        channel.authorize(CONFIGURE, "queue", name)
        if wanted.name not in vhost.exchanges:
            channel.authorize(WRITE, "queue", name)
            missing += name not in vhost.queues
    if wanted.name in vhost.exchanges:
        return
    channel.authorize(READ, "exchange", wanted.name)
    count = len(wanted.keys)
    subject = f"super stream '{wanted.name}' with {count} partitions"
    if missing:
        _check_room_for_queues(channel, subject, missing)
    limit = channel.peer.broker.limits.bindings_per_exchange_max
    if count > limit:
        raise ChannelException(
            PRECONDITION_FAILED, f"cannot declare {subject}: its limit of {limit} bindings is reached"
        )


def _exchange_delete(channel: Session, method: m.ExchangeDelete) -> None:
    vhost = channel.vhost
    name = _stripped(method.exchange)
    _not_default(name)
    channel.authorize(CONFIGURE, "exchange", name)
    if name.startswith(RESERVED_PREFIX):
        raise ChannelException(
            ACCESS_REFUSED, f"deletion of system exchange '{name}' in vhost '{vhost.name}' not allowed"
        )
    ticket = vhost.last_ticket()  # another client may have just removed it
    exchange = vhost.exchanges.get(name)
    if exchange is not None:
        if method.if_unused and exchange.is_used():
            raise in_use("exchange", name, vhost.name)
        by = channel.peer.login.user_name
        ticket = vhost.take_exchange_out(exchange, by)
        if exchange.durable and not exchange.auto_delete:
            _note_change(channel, f"exchange.delete {name}")
        channel.peer.begin(Unbinding(vhost, exchange, by))
    if not method.no_wait:
        channel.reply_when_done(m.ExchangeDeleteOk(), ticket)


def _exchange_bind(
    channel: Session,
    destination_name: str,
    source_name: str,
    method: m.ExchangeBind | m.ExchangeUnbind,
    binding: bool,
) -> int:
    vhost = channel.vhost
    destination_name = _stripped(destination_name)
    source_name = _stripped(source_name)
    _bindable(destination_name)
    _bindable(source_name)
    channel.authorize(WRITE, "exchange", destination_name)
    channel.authorize(READ, "exchange", source_name)
    source = vhost.exchanges.get(source_name)
    destination = vhost.exchanges.get(destination_name)
    if source is not None:
        _authorize_topic_read(channel, source, method.routing_key)
    if not binding:
        if source is None or destination is None:
            return vhost.last_ticket()
        return vhost.unbind(source, destination, method.routing_key, method.arguments, channel.peer.login.user_name)
    source = vhost.exchange(source_name)
    destination = vhost.exchange(destination_name)
    _check_room_for_binding(channel, source, destination, method.routing_key, method.arguments)
    return vhost.bind(source, destination, method.routing_key, method.arguments, channel.peer.login.user_name)


def _check_room_for_binding(
    channel: Session, source: Exchange, destination: Destination, binding_key: str, arguments: bytes
) -> None:
    limit = bindings_max(source, channel.peer.broker.limits.bindings_per_exchange_max)
    if len(source.bindings) >= limit and not source.has_binding(destination, binding_key, arguments):
        raise ChannelException(
            PRECONDITION_FAILED,
            f"cannot bind from exchange '{source.name}' in vhost '{channel.vhost.name}': its limit of {limit} "
            "bindings is reached",
        )
    _check_arguments(channel, arguments)
    limit = channel.peer.broker.limits.binding_bytes_per_exchange_max
    if source.binding_bytes + len(arguments) > limit and not source.has_binding(destination, binding_key, arguments):
        raise ChannelException(
            PRECONDITION_FAILED,
            f"cannot bind from exchange '{source.name}' in vhost '{channel.vhost.name}': its limit of {limit} bytes "
            "of arguments is reached",
        )


def _check_arguments(channel: Session, arguments: bytes) -> None:
    """Refuse arguments that would take much memory for the life of their object."""
    limit = channel.peer.broker.limits.arguments_max_bytes
    if len(arguments) > limit:
        raise ChannelException(
            PRECONDITION_FAILED, f"the arguments have {len(arguments)} bytes, at most {limit} are allowed"
        )


def _authorize_topic_read(channel: Session, source: Exchange, binding_key: str) -> None:
    if isinstance(source, TopicExchange):
        principal = channel.peer.principal
        assert principal is not None
        principal.authorize_topic(READ, source.name, binding_key)


# --- queues --------------------------------------------------------------------------------------------------------


def _queue_declare(channel: Session, method: m.QueueDeclare) -> None:
    name = _stripped(method.queue)
    if not method.passive:
        _declare_queue(channel, QueueDeclaration.of_method(method, name), no_wait=method.no_wait)
        return
    found = _maybe_replies(channel, name)
    if found is None:
        name = channel.queue_name(name)
        _any_access(channel, "queue", name)
        queue = channel.vhost.queue(name, channel.peer)
        queue.used()
        found = _declared(channel, queue)
    if not method.no_wait:
        channel.reply(found)


def _declare_queue(channel: Session, declaration: QueueDeclaration, *, no_wait: bool = False) -> None:
    vhost = channel.vhost
    peer = channel.peer
    name = declaration.name
    found = _maybe_replies(channel, name)
    ticket = 0
    if found is None:
        if name == "":
            name = "amq.gen-" + peer.broker.unique_name()
            declaration = replace(declaration, name=name)
        elif name.startswith(RESERVED_PREFIX):
            raise ChannelException(ACCESS_REFUSED, f"queue name '{name}' contains reserved prefix 'amq.*'")
        check_name("queue", name)
        channel.authorize(CONFIGURE, "queue", name)
        if name not in vhost.queues:
            _check_arguments(channel, declaration.arguments)
            _check_new_queue(channel, name, declaration.arguments)
        ticket = vhost.declare_queue(declaration, peer, peer.login.user_name)
        queue = vhost.queues[name]
        if declaration.exclusive:
            peer.own(queue)
        found = _declared(channel, queue)
    if not no_wait:
        channel.reply(found, ticket)


def _declared(channel: Session, queue: BaseQueue) -> Any:
    """Return the answer to the declaration of `queue`, which an empty name stands for from now on."""
    channel.last_queue = queue.name
    return m.QueueDeclareOk(queue.name, min(int(queue.ready_count), COUNT_MAX), len(queue.consumers))


def _maybe_replies(channel: Session, name: str) -> Any:
    """Return the answer to the declaration of a queue of direct replies; None: `name` is not one of those.

    Raises:
        ChannelException: 404, there are no such replies.
    """
    if not name.startswith(REPLY_TO_NAME):
        return None
    vhost = channel.vhost
    if name != REPLY_TO_NAME and name not in vhost.reply_queues:
        raise ChannelException(NOT_FOUND, f"no queue '{name}' in vhost '{vhost.name}'")
    return m.QueueDeclareOk(name, 0, 1)


def _check_new_queue(channel: Session, name: str, arguments: bytes) -> None:
    if len(arguments) > 4:
        dead_letter_exchange = decode_table(arguments).get("x-dead-letter-exchange")
        if isinstance(dead_letter_exchange, str):
            channel.authorize(READ, "queue", name)
            channel.authorize(WRITE, "exchange", dead_letter_exchange)
    _check_room_for_queues(channel, f"queue '{name}'", 1)


def _check_room_for_queues(channel: Session, subject: str, more: int) -> None:
    vhost = channel.vhost
    count = len(vhost.queues) + more - 1
    limit = channel.peer.broker.limits.queues_per_vhost_max
    if is_reached(vhost.limits, MAX_QUEUES, count):
        limit = vhost.limits[MAX_QUEUES]
    if count >= limit:
        raise ChannelException(
            PRECONDITION_FAILED,
            f"cannot declare {subject}: queue limit in vhost '{vhost.name}' ({limit}) is reached",
        )


def _bind_names(channel: Session, method: m.QueueBind | m.QueueUnbind) -> tuple[str, str, str]:
    """Return queue, exchange and binding key, with the values that empty ones stand for."""
    queue_name = _stripped(method.queue)
    routing_key = method.routing_key
    if queue_name == "":
        queue_name = channel.queue_name("")
        if routing_key == "":
            routing_key = queue_name
    exchange_name = _stripped(method.exchange)
    if queue_name.startswith(REPLY_TO_NAME):
        raise ChannelException(ACCESS_REFUSED, "cannot bind or unbind to a volatile (direct reply-to) queue")
    _bindable(exchange_name)
    _authorize_binding(channel, queue_name, exchange_name, routing_key)
    return queue_name, exchange_name, routing_key


def _authorize_binding(channel: Session, queue_name: str, exchange_name: str, binding_key: str) -> None:
    """Make sure that a queue, or its substitute, may be bound.

    Raises:
        ChannelException: 403.
    """
    channel.authorize(WRITE, "queue", queue_name)
    channel.authorize(READ, "exchange", exchange_name)
    source = channel.vhost.exchanges.get(exchange_name)
    if source is not None:
        _authorize_topic_read(channel, source, binding_key)


def bind_subscriber(channel: Session, subscriber: Receiver, exchange: str, binding_key: str, arguments: bytes) -> None:
    """Bind a subscriber that has no queue, by the rules of queue.bind.

    Raises:
        ChannelException: 403; 404; 406, too many bindings, or they may not grow while memory is short.
    """
    _authorize_binding(channel, subscriber.name, exchange, binding_key)
    source = channel.vhost.exchange(exchange)
    _check_room_for_binding(channel, source, subscriber, binding_key, arguments)
    peer = channel.peer
    if peer.broker.has_alarm("memory"):
        size = binding_growth_bytes(channel, exchange, subscriber, binding_key, arguments)
        peer.broker.growth.check(peer.key, size)
    channel.vhost.bind(source, subscriber, binding_key, arguments, peer.login.user_name)


def unbind_subscriber(
    channel: Session, subscriber: Receiver, exchange: str, binding_key: str, arguments: bytes
) -> None:
    """Take such a binding away, by the rules of queue.unbind.

    Raises:
        ChannelException: 403.
    """
    _authorize_binding(channel, subscriber.name, exchange, binding_key)
    source = channel.vhost.exchanges.get(exchange)
    if source is not None:
        channel.vhost.unbind(source, subscriber, binding_key, arguments, channel.peer.login.user_name)


def _queue_bind(channel: Session, method: m.QueueBind) -> None:
    vhost = channel.vhost
    queue_name, exchange_name, routing_key = _bind_names(channel, method)
    queue = vhost.queue(queue_name, channel.peer)
    queue.check_allows("queue.bind")
    source = vhost.exchange(exchange_name)
    _check_room_for_binding(channel, source, queue, routing_key, method.arguments)
    by = channel.peer.login.user_name

    def done(ticket: int) -> None:
        if not method.no_wait and channel.is_open():
            channel.reply(m.QueueBindOk(), ticket)

    bind = vhost.maybe_bind_job(source, queue, routing_key, method.arguments, by, done)
    if bind is None:
        done(vhost.bind(source, queue, routing_key, method.arguments, by))
    else:
        # The messages that the queue gets at once are paid for here, as a publish pays for its queues; the rest waits.
        channel.peer.units_left -= min(bind.units(), i64(AT_ONCE_STEPS))
        channel.begin_bind(bind)


def _queue_unbind(channel: Session, method: m.QueueUnbind) -> None:
    vhost = channel.vhost
    queue_name, exchange_name, routing_key = _bind_names(channel, method)
    ticket = vhost.last_ticket()  # another client may have just removed it
    source = vhost.exchanges.get(exchange_name)
    if source is not None and queue_name in vhost.queues:
        queue = vhost.queue(queue_name, channel.peer)
        ticket = vhost.unbind(source, queue, routing_key, method.arguments, channel.peer.login.user_name)
    channel.reply(m.QueueUnbindOk(), ticket)


def _queue_purge(channel: Session, method: m.QueuePurge) -> None:
    name = channel.queue_name(_stripped(method.queue))
    channel.authorize(READ, "queue", name)
    queue = channel.vhost.queue(name, channel.peer)
    count = queue.purge()
    if count and _outlives_clients(queue):
        _note_change(channel, f"queue.purge {name}", count)
    if not method.no_wait:
        channel.reply(m.QueuePurgeOk(min(count, COUNT_MAX)))


def _queue_delete(channel: Session, method: m.QueueDelete) -> None:
    vhost = channel.vhost
    name = channel.queue_name(_stripped(method.queue))
    channel.authorize(CONFIGURE, "queue", name)
    peer = channel.peer
    notices = CancelNotices(peer)
    count = 0
    ticket = vhost.last_ticket()  # another client may have just removed it
    if name in vhost.queues:
        queue = vhost.queue(name, peer)
        queue.check_allows("queue.delete")
        if method.if_unused and queue.consumers:
            raise in_use("queue", name, vhost.name)
        if method.if_empty and queue.ready_count:
            raise ChannelException(PRECONDITION_FAILED, f"queue '{name}' in vhost '{vhost.name}' not empty")
        count = int(queue.ready_count)
        ticket = peer.broker.delete_queue(vhost, queue, peer.login.user_name, notices)
        if _outlives_clients(queue):
            _note_change(channel, f"queue.delete {name}", count)
    if not method.no_wait:
        channel.reply_when_done(m.QueueDeleteOk(min(count, COUNT_MAX)), ticket)
    peer.begin(notices)
