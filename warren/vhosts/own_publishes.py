"""Publishes that no channel makes: dead letters, messages that an exchange has held, copies for an operator.

1. The exchanges that act on messages act on these as well (``exchanges.content``).
2. Nothing is mandatory or confirmed here: the caller is told how many take the message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.amqp.field_table import decode_table
from warren.amqp.properties import HAS_DEATHS, expiration_ms_of, headers_of, is_persistent, known_headers
from warren.exchanges.content import Content
from warren.exchanges.exchange import Exchange
from warren.msgstore.log.message import Envelope, Message
from warren.queues.delay import due_time_ms
from warren.queues.origin import BROKER
from warren.queues.outcome import REFUSED
from warren.queues.receiver import Receiver

if TYPE_CHECKING:
    from warren.vhosts.virtual_host import VirtualHost


def route_message(
    vhost: VirtualHost, exchange: Exchange, keys: list[str], message: Message
) -> tuple[list[Receiver], bool]:
    """Return the queues that `message` goes to, and whether an exchange on the way takes it.

    The exchanges that act on it have done so.
    """
    content = Content(message.header_payload())
    if vhost.held:
        content.due_ms = due_time_ms(content.header_payload, vhost.log.now_ms)
    queues = vhost.route(exchange, keys, content)
    effects = content.effects
    if effects is None:
        return queues, False
    effects.publish(message)
    return queues, effects.has_takers()


def publish_released(vhost: VirtualHost, exchange: Exchange, message: Message) -> None:
    """Route a message that `exchange` has held, by the current bindings, and publish it."""
    message.sole = False
    keys = [message.envelope.routing_key, *_carbon_copies(message)]
    blind_copies = message.envelope.blind_copies
    if blind_copies is not None:
        keys += blind_copies
    content = Content(message.header_payload())  # without a time: nothing holds it again
    queues = vhost.route(exchange, keys, content)
    if content.effects is not None:
        content.effects.publish(message)
    vhost.log.own.given += len(queues)
    for queue in queues:
        queue.accept(message, BROKER)


def publish_copy(vhost: VirtualHost, message: Message, exchange: Exchange, routing_key: str) -> tuple[int, bool]:
    """Publish `message` once more, as an operator asked, with its properties but without its own time.

    Returns how many queues and exchanges took it, and whether one of them refused it.
    """
    header = message.header_payload()
    copy = Message(
        Envelope(exchange.name, routing_key),
        message.content,
        message.channel,
        message.body_bytes,
        message.frame_max_bytes,
        is_persistent(header),
        message.pieces,
    )
    if known_headers(header) & HAS_DEATHS:
        copy.republished = True
    copy.expiration_ms = expiration_ms_of(header)
    queues, held = route_message(vhost, exchange, [routing_key], copy)
    vhost.timers.worked += len(queues)  # wills whose time has come
    is_refused = False
    for queue in queues:
        is_refused = queue.accept(copy, BROKER) == REFUSED or is_refused
    return len(queues) + held, is_refused


def _carbon_copies(letter: Message) -> list[str]:
    headers = headers_of(letter.header_payload())
    copies = decode_table(headers).get("CC") if headers else None
    return [key for key in copies if isinstance(key, str)] if isinstance(copies, list) else []
