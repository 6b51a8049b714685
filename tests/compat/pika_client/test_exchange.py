"""exchange class: declare, passive, equivalence, delete, bind and unbind, with every refusal's code and text."""

from __future__ import annotations

from typing import Any

import pytest
from pika import spec
from pika.adapters.blocking_connection import BlockingChannel

from ..broker import Broker
from ..conftest import Names
from .dialogue import (
    Connect,
    channel_closed_with,
    connection_closed_with,
    drain,
    get,
    round_trip,
    send_method,
)

PREDECLARED = {
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
}
NOT_ON_DEFAULT = "ACCESS_REFUSED - operation not permitted on the default exchange"


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
@pytest.mark.parametrize("durable", [False, True])
def test_an_exchange_of_each_standard_type_can_be_declared_twice(
    channel: BlockingChannel, names: Names, kind: str, durable: bool
) -> None:
    exchange = names.exchange()
    channel.exchange_declare(exchange, kind, durable=durable)
    channel.exchange_declare(exchange, kind, durable=durable)
    channel.exchange_declare(exchange, passive=True)


@pytest.mark.parametrize("exchange", PREDECLARED)
def test_a_predeclared_exchange_is_there_durable_and_redeclarable(channel: BlockingChannel, exchange: str) -> None:
    channel.exchange_declare(exchange, passive=True)
    channel.exchange_declare(exchange, PREDECLARED[exchange], durable=True)


def test_the_trace_exchange_is_there_and_internal(channel: BlockingChannel, broker: Broker) -> None:
    channel.exchange_declare("amq.rabbitmq.trace", "topic", durable=True, internal=True)
    trace = broker.exchange("amq.rabbitmq.trace")
    with channel_closed_with(403, f"ACCESS_REFUSED - cannot publish to internal {trace}"):
        channel.basic_publish("amq.rabbitmq.trace", "publish.x", b"")
        round_trip(channel)


def test_a_passive_declare_ignores_type_and_flags(channel: BlockingChannel, names: Names) -> None:
    exchange = names.exchange()
    channel.exchange_declare(exchange, "fanout", durable=True)
    channel.exchange_declare(exchange, "direct", passive=True, durable=False, auto_delete=True)


def test_a_passive_declare_of_nothing_is_404(channel: BlockingChannel, names: Names, broker: Broker) -> None:
    exchange = names.unused()
    with channel_closed_with(404, f"NOT_FOUND - no {broker.exchange(exchange)}"):
        channel.exchange_declare(exchange, passive=True)


def test_a_reserved_exchange_name_is_refused(channel: BlockingChannel) -> None:
    refusal = "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'"
    with channel_closed_with(403, refusal):
        channel.exchange_declare("amq.mine", "direct")


@pytest.mark.parametrize("passive", [False, True])
def test_the_default_exchange_cannot_be_declared(channel: BlockingChannel, passive: bool) -> None:
    with channel_closed_with(403, NOT_ON_DEFAULT):
        channel.exchange_declare("", "direct", durable=True, passive=passive)


def test_an_unknown_exchange_type_is_refused(connect: Connect, names: Names, broker: Broker) -> None:
    channel = connect().channel()
    if broker.older_than(3, 13):
        with connection_closed_with(503, "COMMAND_INVALID - unknown exchange type 'carrier-pigeon'"):
            channel.exchange_declare(names.exchange(), "carrier-pigeon")
    else:
        with channel_closed_with(406, "PRECONDITION_FAILED - unknown exchange type 'carrier-pigeon'"):
            channel.exchange_declare(names.exchange(), "carrier-pigeon")


@pytest.mark.parametrize(
    ("change", "argument", "received", "current"),
    [
        ({"exchange_type": "fanout"}, "type", "'fanout'", "'direct'"),
        ({"durable": True}, "durable", "'true'", "'false'"),
        ({"auto_delete": True}, "auto_delete", "'true'", "'false'"),
        ({"internal": True}, "internal", "'true'", "'false'"),
        (
            {"arguments": {"alternate-exchange": "elsewhere"}},
            "alternate-exchange",
            "the value 'elsewhere' of type 'longstr'",
            "none",
        ),
    ],
)
def test_a_different_redeclaration_of_an_exchange_names_the_argument(
    channel: BlockingChannel,
    names: Names,
    broker: Broker,
    change: dict[str, Any],
    argument: str,
    received: str,
    current: str,
) -> None:
    exchange = names.exchange()
    declaration: dict[str, Any] = {"exchange_type": "direct"}
    channel.exchange_declare(exchange, **declaration)
    text = (
        f"inequivalent arg '{argument}' for {broker.exchange(exchange)}: received {received} but current is {current}"
    )
    with channel_closed_with(406, f"PRECONDITION_FAILED - {text}"):
        channel.exchange_declare(exchange, **(declaration | change))


def test_a_lost_alternate_exchange_argument_is_inequivalent(
    channel: BlockingChannel, names: Names, broker: Broker
) -> None:
    exchange = names.exchange()
    channel.exchange_declare(exchange, "direct", arguments={"alternate-exchange": "elsewhere"})
    text = (
        f"inequivalent arg 'alternate-exchange' for {broker.exchange(exchange)}: "
        "received none but current is the value 'elsewhere' of type 'longstr'"
    )
    with channel_closed_with(406, f"PRECONDITION_FAILED - {text}"):
        channel.exchange_declare(exchange, "direct")


def test_other_exchange_arguments_are_kept_but_not_compared(channel: BlockingChannel, names: Names) -> None:
    exchange = names.exchange()
    channel.exchange_declare(exchange, "direct", arguments={"x-colour": "green"})
    channel.exchange_declare(exchange, "direct", arguments={"x-colour": "red", "x-size": 3})
    channel.exchange_declare(exchange, "direct")


def test_an_alternate_exchange_must_be_a_string(channel: BlockingChannel, names: Names, broker: Broker) -> None:
    exchange = names.exchange()
    text = f"invalid type 'signedint' for arg 'alternate-exchange' in {broker.exchange(exchange)}"
    with channel_closed_with(406, f"PRECONDITION_FAILED - {text}"):
        channel.exchange_declare(exchange, "direct", arguments={"alternate-exchange": 7})


def test_carriage_returns_and_line_feeds_are_taken_out_of_exchange_names(
    channel: BlockingChannel, names: Names
) -> None:
    exchange = names.exchange()
    channel.exchange_declare(exchange[:5] + "\r\n" + exchange[5:], "fanout")
    channel.exchange_declare(exchange, passive=True)


@pytest.mark.parametrize("label", ["a name with spaces & %2F", "überraschung-✓", "x" * 120])
def test_exchange_names_may_hold_any_text(channel: BlockingChannel, names: Names, label: str) -> None:
    exchange = names.exchange(label)
    channel.exchange_declare(exchange, "fanout")
    queue = names.queue(label)
    channel.queue_declare(queue)
    channel.queue_bind(queue, exchange)
    channel.basic_publish(exchange, "", b"x")
    assert get(channel, queue, auto_ack=True)[0].exchange == exchange


def test_a_name_of_255_octets_is_accepted(channel: BlockingChannel, names: Names) -> None:
    stem = names.exchange()
    exchange = stem + "é" * ((255 - len(stem)) // 2)
    channel.exchange_declare(exchange, "direct")
    channel.exchange_delete(exchange)


# delete


def test_deleting_a_missing_exchange_succeeds(channel: BlockingChannel, names: Names) -> None:
    channel.exchange_delete(names.unused())


@pytest.mark.parametrize("exchange", PREDECLARED)
def test_a_predeclared_exchange_cannot_be_deleted(channel: BlockingChannel, broker: Broker, exchange: str) -> None:
    text = f"ACCESS_REFUSED - deletion of system {broker.exchange(exchange)} not allowed"
    with channel_closed_with(403, text):
        channel.exchange_delete(exchange)


def test_the_default_exchange_cannot_be_deleted(channel: BlockingChannel) -> None:
    with channel_closed_with(403, NOT_ON_DEFAULT):
        channel.exchange_delete("")


def test_if_unused_refuses_to_delete_a_bound_exchange(channel: BlockingChannel, names: Names, broker: Broker) -> None:
    exchange, queue = names.exchange(), names.queue()
    channel.exchange_declare(exchange, "direct")
    channel.queue_declare(queue)
    channel.queue_bind(queue, exchange, "k")
    with channel_closed_with(406, f"PRECONDITION_FAILED - {broker.exchange(exchange)} in use"):
        channel.exchange_delete(exchange, if_unused=True)


def test_if_unused_deletes_an_exchange_that_is_only_a_destination(
    channel: BlockingChannel, names: Names, broker: Broker
) -> None:
    exchange = names.exchange()
    channel.exchange_declare(exchange, "direct")
    channel.exchange_bind(exchange, "amq.fanout")
    channel.exchange_delete(exchange, if_unused=True)
    with channel_closed_with(404, f"NOT_FOUND - no {broker.exchange(exchange)}"):
        channel.exchange_declare(exchange, passive=True)


def test_deleting_an_exchange_drops_its_bindings_on_both_sides(channel: BlockingChannel, names: Names) -> None:
    source, middle, queue = names.exchange("source"), names.exchange("middle"), names.queue()
    channel.exchange_declare(source, "fanout")
    channel.exchange_declare(middle, "fanout")
    channel.queue_declare(queue)
    channel.exchange_bind(middle, source)
    channel.queue_bind(queue, middle)
    channel.exchange_delete(middle)
    channel.exchange_declare(middle, "fanout")
    channel.basic_publish(source, "", b"lost")
    channel.basic_publish(middle, "", b"lost")
    assert drain(channel, queue) == []


def test_an_auto_delete_exchange_goes_with_its_last_binding(
    channel: BlockingChannel, names: Names, broker: Broker
) -> None:
    exchange, first, second = names.exchange(), names.queue("first"), names.queue("second")
    channel.exchange_declare(exchange, "direct", auto_delete=True)
    for queue in (first, second):
        channel.queue_declare(queue)
        channel.queue_bind(queue, exchange, "k")
    channel.queue_unbind(first, exchange, "k")
    channel.exchange_declare(exchange, passive=True)
    channel.queue_delete(second)
    with channel_closed_with(404, f"NOT_FOUND - no {broker.exchange(exchange)}"):
        channel.exchange_declare(exchange, passive=True)


def test_an_auto_delete_exchange_stays_when_it_loses_a_binding_as_destination(
    channel: BlockingChannel, names: Names
) -> None:
    exchange = names.exchange()
    channel.exchange_declare(exchange, "direct", auto_delete=True)
    channel.exchange_bind(exchange, "amq.direct", "k")
    channel.exchange_unbind(exchange, "amq.direct", "k")
    channel.exchange_declare(exchange, passive=True)


def test_an_auto_delete_exchange_goes_with_its_last_exchange_binding(
    channel: BlockingChannel, names: Names, broker: Broker
) -> None:
    source, destination = names.exchange("source"), names.exchange("destination")
    channel.exchange_declare(source, "direct", auto_delete=True)
    channel.exchange_declare(destination, "direct")
    channel.exchange_bind(destination, source, "k")
    channel.exchange_delete(destination)
    with channel_closed_with(404, f"NOT_FOUND - no {broker.exchange(source)}"):
        channel.exchange_declare(source, passive=True)


# exchange to exchange bindings


def test_a_message_walks_through_bound_exchanges(channel: BlockingChannel, names: Names) -> None:
    first, second, third = (names.exchange(label) for label in ("first", "second", "third"))
    queue = names.queue()
    channel.exchange_declare(first, "topic")
    channel.exchange_declare(second, "fanout")
    channel.exchange_declare(third, "direct")
    channel.exchange_bind(second, first, "logs.#")
    channel.exchange_bind(third, second)
    channel.queue_declare(queue)
    channel.queue_bind(queue, third, "logs.disk")
    channel.basic_publish(first, "logs.disk", b"full")
    channel.basic_publish(first, "logs.net", b"wrong key at the end")
    channel.basic_publish(first, "metrics.disk", b"wrong key at the start")
    method, _, body = get(channel, queue, auto_ack=True)
    assert (method.exchange, method.routing_key, body) == (first, "logs.disk", b"full")
    assert drain(channel, queue) == []


def test_a_queue_reached_on_several_ways_gets_one_copy(channel: BlockingChannel, names: Names) -> None:
    source, left, right = (names.exchange(label) for label in ("source", "left", "right"))
    queue = names.queue()
    for exchange in (source, left, right):
        channel.exchange_declare(exchange, "fanout")
    channel.queue_declare(queue)
    for exchange in (left, right):
        channel.exchange_bind(exchange, source)
        channel.queue_bind(queue, exchange)
    channel.queue_bind(queue, source)
    channel.basic_publish(source, "", b"one")
    assert drain(channel, queue) == [b"one"]


def test_a_circle_of_exchanges_ends(channel: BlockingChannel, names: Names) -> None:
    first, second, queue = names.exchange(), names.exchange(), names.queue()
    for exchange in (first, second):
        channel.exchange_declare(exchange, "fanout")
    channel.exchange_bind(first, second)
    channel.exchange_bind(second, first)
    channel.exchange_bind(first, first)
    channel.queue_declare(queue)
    channel.queue_bind(queue, second)
    channel.basic_publish(first, "", b"round")
    assert drain(channel, queue) == [b"round"]


def test_binding_the_same_again_changes_nothing_and_one_unbind_removes_it(
    channel: BlockingChannel, names: Names
) -> None:
    source, destination, queue = names.exchange(), names.exchange(), names.queue()
    channel.exchange_declare(source, "direct")
    channel.exchange_declare(destination, "fanout")
    channel.queue_declare(queue)
    channel.queue_bind(queue, destination)
    channel.exchange_bind(destination, source, "k")
    channel.exchange_bind(destination, source, "k")
    channel.exchange_unbind(destination, source, "k")
    channel.basic_publish(source, "k", b"lost")
    assert drain(channel, queue) == []


@pytest.mark.parametrize("missing_end", ["source", "destination"])
def test_binding_needs_both_exchanges(channel: BlockingChannel, names: Names, broker: Broker, missing_end: str) -> None:
    missing = names.unused()
    ends: dict[str, Any] = {"source": "amq.direct", "destination": "amq.fanout", missing_end: missing}
    with channel_closed_with(404, f"NOT_FOUND - no {broker.exchange(missing)}"):
        channel.exchange_bind(routing_key="k", **ends)


@pytest.mark.parametrize("end", ["source", "destination"])
@pytest.mark.parametrize("call", ["exchange_bind", "exchange_unbind"])
def test_the_default_exchange_cannot_be_bound_to_an_exchange(channel: BlockingChannel, end: str, call: str) -> None:
    ends = {"source": "amq.direct", "destination": "amq.fanout", end: ""}
    with channel_closed_with(403, NOT_ON_DEFAULT):
        getattr(channel, call)(routing_key="k", **ends)


@pytest.mark.parametrize("missing_end", ["source", "destination", "neither"])
def test_unbinding_what_is_not_bound_succeeds(channel: BlockingChannel, names: Names, missing_end: str) -> None:
    ends: dict[str, Any] = {"source": "amq.direct", "destination": "amq.fanout"}
    if missing_end != "neither":
        ends[missing_end] = names.unused()
    channel.exchange_unbind(routing_key="never bound", **ends)


# internal and alternate exchanges


def test_an_internal_exchange_takes_no_publish_from_clients(
    channel: BlockingChannel, names: Names, broker: Broker
) -> None:
    exchange = names.exchange()
    channel.exchange_declare(exchange, "fanout", internal=True)
    refusal = f"ACCESS_REFUSED - cannot publish to internal {broker.exchange(exchange)}"
    with channel_closed_with(403, refusal):
        channel.basic_publish(exchange, "", b"")
        round_trip(channel)


def test_an_internal_exchange_works_behind_another(channel: BlockingChannel, names: Names) -> None:
    front, inner, queue = names.exchange("front"), names.exchange("inner"), names.queue()
    channel.exchange_declare(front, "fanout")
    channel.exchange_declare(inner, "fanout", internal=True)
    channel.exchange_bind(inner, front)
    channel.queue_declare(queue)
    channel.queue_bind(queue, inner)
    channel.basic_publish(front, "", b"in")
    assert drain(channel, queue) == [b"in"]


def test_an_alternate_exchange_takes_what_matched_nothing(channel: BlockingChannel, names: Names) -> None:
    exchange, spare = names.exchange(), names.exchange("spare")
    wanted, leftovers = names.queue("wanted"), names.queue("leftovers")
    channel.exchange_declare(spare, "fanout")
    channel.exchange_declare(exchange, "direct", arguments={"alternate-exchange": spare})
    channel.queue_declare(wanted)
    channel.queue_bind(wanted, exchange, "k")
    channel.queue_declare(leftovers)
    channel.queue_bind(leftovers, spare)
    channel.basic_publish(exchange, "k", b"matched")
    channel.basic_publish(exchange, "other", b"left over", mandatory=True)
    assert drain(channel, wanted) == [b"matched"]
    method, _, body = get(channel, leftovers, auto_ack=True)
    assert (method.exchange, method.routing_key, body) == (exchange, "other", b"left over")


def test_alternate_exchanges_form_a_chain_that_is_walked_once(channel: BlockingChannel, names: Names) -> None:
    first, second, third, queue = names.exchange(), names.exchange(), names.exchange(), names.queue()
    channel.exchange_declare(first, "direct", arguments={"alternate-exchange": second})
    channel.exchange_declare(second, "direct", arguments={"alternate-exchange": third})
    channel.exchange_declare(third, "direct", arguments={"alternate-exchange": first})
    channel.queue_declare(queue)
    channel.queue_bind(queue, third, "here")
    channel.confirm_delivery()
    channel.basic_publish(first, "here", b"found")
    channel.basic_publish(first, "nowhere", b"lost in a circle")
    assert drain(channel, queue) == [b"found"]


def test_a_missing_alternate_exchange_is_ignored(channel: BlockingChannel, names: Names) -> None:
    exchange = names.exchange()
    channel.exchange_declare(exchange, "direct", arguments={"alternate-exchange": names.unused()})
    channel.basic_publish(exchange, "k", b"lost")
    round_trip(channel)


# nowait forms


def test_nowait_forms_are_obeyed_without_an_answer(channel: BlockingChannel, names: Names, broker: Broker) -> None:
    source, destination, queue = names.exchange("source"), names.exchange("destination"), names.queue()
    channel.queue_declare(queue)
    send_method(channel, spec.Exchange.Declare(exchange=source, type="fanout", nowait=True))
    send_method(channel, spec.Exchange.Declare(exchange=destination, type="fanout", nowait=True))
    send_method(channel, spec.Exchange.Bind(destination=destination, source=source, nowait=True))
    send_method(channel, spec.Queue.Bind(queue=queue, exchange=destination, nowait=True))
    channel.basic_publish(source, "", b"bound")
    send_method(channel, spec.Exchange.Unbind(destination=destination, source=source, nowait=True))
    channel.basic_publish(source, "", b"unbound")
    assert drain(channel, queue) == [b"bound"]
    send_method(channel, spec.Exchange.Delete(exchange=source, nowait=True))
    with channel_closed_with(404, f"NOT_FOUND - no {broker.exchange(source)}"):
        channel.exchange_declare(source, passive=True)


def test_a_nowait_declare_that_fails_still_closes_the_channel(channel: BlockingChannel) -> None:
    refusal = "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'"
    with channel_closed_with(403, refusal):
        send_method(channel, spec.Exchange.Declare(exchange="amq.mine", type="fanout", nowait=True))
        round_trip(channel)
