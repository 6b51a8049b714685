"""The arguments of queue.declare. Texts are those of RabbitMQ 3.10.8 where no rule says otherwise."""

from __future__ import annotations

import pytest
from engine_harness import Client, Harness, Refusal, queue_declare

from warren.amqp import methods as m
from warren.amqp.field_table import Table, Timestamp, encode_table, with_length
from warren.vhosts.metadata import QueuePut

from .rules import rule

IN_Q = "for queue 'q' in vhost '/'"
CLASSIC: Table = {}
QUORUM: Table = {"x-queue-type": "quorum"}
STREAM: Table = {"x-queue-type": "stream"}
TEN_YEARS_MS = 315_360_000_000
INTEGERS = ("expires", "message-ttl", "max-length", "max-length-bytes", "max-priority")
TEXTS = ("overflow", "dead-letter-routing-key", "queue-mode")
NO_INTEGER: list[tuple[object, str]] = [
    ("5", "longstr"),
    (True, "bool"),
    (1.5, "double"),
    (None, "void"),
    (b"5", "binary"),
    ([1], "array"),
    ({"a": 1}, "table"),
    (Timestamp(5), "timestamp"),
]
NO_TEXT: list[tuple[object, str]] = [
    (5, "signedint"),
    (2**40, "long"),
    (True, "bool"),
    (None, "void"),
    (["a"], "array"),
]


def is_declared(client: Client, arguments: Table, **properties: bool) -> None:
    """Declare, delete: each case begins with nothing."""
    durable = arguments.get("x-queue-type") in ("quorum", "stream")
    call = queue_declare("q", arguments=arguments, **{"durable": durable, **properties})
    assert client.call(1, call) == m.QueueDeclareOk("q", 0, 0)
    assert client.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False)) == m.QueueDeleteOk(0)


def is_refused(client: Client, harness: Harness, arguments: Table, text: str, **properties: bool) -> None:
    """Expect 406 with `text`, and that nothing was made."""
    durable = arguments.get("x-queue-type") in ("quorum", "stream")
    call = queue_declare("q", arguments=arguments, **{"durable": durable, **properties})
    refused = Refusal("channel", 406, f"PRECONDITION_FAILED - {text}", m.QueueDeclare)
    assert client.refused(1, call) == refused
    assert "q" not in harness.vhost.queues


def cases(*rows: tuple[Table, str, str]) -> pytest.MarkDecorator:
    """Parametrize over (arguments, name of the argument that is refused, reason)."""
    return pytest.mark.parametrize(
        ("arguments", "text"), [(table, f"invalid arg '{name}' {IN_Q}: {reason}") for table, name, reason in rows]
    )


# --- values -----------------------------------------------------------------------------------------------------------


@rule("rabbitmq.queue.arguments", "Numbers: any integer type will do.")
@pytest.mark.parametrize("key", [key for key in INTEGERS if key != "max-priority"])
@pytest.mark.parametrize(
    "encoded",
    [b"b\x05", b"B\x05", b"s\x00\x05", b"u\x00\x05", b"I\0\0\0\x05", b"i\0\0\0\x05", b"l" + bytes(7) + b"\x05"],
)
def test_numbers_have_any_integer_type(client: Client, key: str, encoded: bytes) -> None:
    name = f"x-{key}".encode()
    table = with_length(bytes([len(name)]) + name + encoded)
    assert client.call(1, m.QueueDeclare(0, "q", False, False, False, False, False, table)).queue == "q"


@rule("rabbitmq.queue.arguments", "Numbers: everything else is refused, 406.")
@pytest.mark.parametrize("key", INTEGERS)
@pytest.mark.parametrize(("value", "kind"), NO_INTEGER)
def test_other_values_are_no_numbers(client: Client, harness: Harness, key: str, value: object, kind: str) -> None:
    text = f"invalid arg 'x-{key}' {IN_Q}: \"expected integer, got {kind}\""
    is_refused(client, harness, {f"x-{key}": value}, text)


@rule("rabbitmq.queue.arguments", "Texts and choices are longstr, flags bool; everything else is refused, 406.")
@pytest.mark.parametrize("key", TEXTS)
@pytest.mark.parametrize(("value", "kind"), NO_TEXT)
def test_other_values_are_no_texts(client: Client, harness: Harness, key: str, value: object, kind: str) -> None:
    text = f"invalid arg 'x-{key}' {IN_Q}: {{unacceptable_type,{kind}}}"
    is_refused(client, harness, {f"x-{key}": value, "x-dead-letter-exchange": ""}, text)


@rule("rabbitmq.queue.arguments", "A dead letter exchange that is no longstr has a text of its own.")
@pytest.mark.parametrize("base", [CLASSIC, QUORUM, STREAM])
@pytest.mark.parametrize(("value", "kind"), NO_TEXT)
def test_a_dead_letter_exchange_is_a_text(
    client: Client, harness: Harness, base: Table, value: object, kind: str
) -> None:
    text = f"invalid type '{kind}' for arg 'x-dead-letter-exchange' in queue 'q' in vhost '/'"
    is_refused(client, harness, {**base, "x-max-length": -1, "x-dead-letter-exchange": value}, text)


@rule("rabbitmq.queue.arguments", "Every argument has its range.")
@pytest.mark.parametrize(
    "arguments",
    [
        {"x-expires": 1},
        {"x-expires": TEN_YEARS_MS},
        {"x-message-ttl": 0},
        {"x-message-ttl": TEN_YEARS_MS},
        {"x-max-length": 0},
        {"x-max-length": 2**62},
        {"x-max-length-bytes": 0},
        {"x-max-priority": 0},
        {"x-max-priority": 255},
        {"x-overflow": "drop-head"},
        {"x-overflow": "reject-publish"},
        {"x-overflow": "reject-publish-dlx"},
        {"x-dead-letter-exchange": "no such exchange"},
        {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": ""},
        {"x-single-active-consumer": True},
        {"x-single-active-consumer": False},
        {"x-queue-mode": "lazy"},
        {"x-queue-mode": "default"},
        {"x-queue-version": 1},
        {"x-queue-version": 2},
        {"x-queue-leader-locator": "balanced"},
        {"x-queue-type": ""},
        {"x-queue-type": "undefined"},
        {"x-queue-type": "classic"},
        {"x-unknown": -1, "unknown": None},
        {**QUORUM, "x-expires": 1, "x-message-ttl": 0, "x-max-length": 0, "x-max-length-bytes": 0},
        {**QUORUM, "x-overflow": "reject-publish-dlx"},
        {**QUORUM, "x-dead-letter-exchange": "", "x-dead-letter-strategy": "at-least-once"},
        {**QUORUM, "x-dead-letter-strategy": "at-most-once"},
        {**QUORUM, "x-delivery-limit": -1},
        {**QUORUM, "x-delivery-limit": 0},
        {**QUORUM, "x-consumer-timeout": 0},
        {**QUORUM, "x-consumer-disconnected-timeout": 0},
        {**QUORUM, "x-quorum-initial-group-size": 1},
        {**QUORUM, "x-queue-leader-locator": "client-local"},
        {**QUORUM, "x-max-in-memory-length": 0, "x-max-in-memory-bytes": 0},
        {**QUORUM, "x-delayed-retry-type": "failed", "x-delayed-retry-min": 0, "x-delayed-retry-max": TEN_YEARS_MS},
        {**QUORUM, "x-single-active-consumer": True},
        {**STREAM, "x-max-age": "7D", "x-max-length-bytes": 0, "x-stream-max-segment-size-bytes": 0},
        {**STREAM, "x-stream-filter-size-bytes": 16, "x-initial-cluster-size": 1},
        {**STREAM, "x-queue-leader-locator": "client-local"},
    ],
)
def test_possible_values_are_accepted(client: Client, arguments: Table) -> None:
    is_declared(client, arguments)


@rule("rabbitmq.queue.arguments", "What is out of its range is refused, 406.")
@cases(
    ({"x-expires": 0}, "x-expires", "{value_zero,0}"),
    ({"x-expires": -1}, "x-expires", "{value_negative,-1}"),
    ({"x-expires": TEN_YEARS_MS + 1}, "x-expires", "{value_too_large,315360000001}"),
    ({"x-message-ttl": -1}, "x-message-ttl", "{value_negative,-1}"),
    ({"x-message-ttl": 2**62}, "x-message-ttl", "{value_too_large,4611686018427387904}"),
    ({"x-max-length": -(2**62)}, "x-max-length", "{value_negative,-4611686018427387904}"),
    ({"x-max-length-bytes": -1}, "x-max-length-bytes", "{value_negative,-1}"),
    ({"x-max-priority": -1}, "x-max-priority", "{value_negative,-1}"),
    ({"x-max-priority": 256}, "x-max-priority", "{max_value_exceeded,256}"),
    ({"x-overflow": "drop-tail"}, "x-overflow", "invalid_overflow"),
    ({"x-overflow": ""}, "x-overflow", "invalid_overflow"),
    ({"x-dead-letter-routing-key": "k"}, "x-dead-letter-routing-key", "routing_key_but_no_dlx_defined"),
    ({"x-queue-mode": 'l"\\y\r\n'}, "x-queue-mode", '"unsupported queue mode \'l\\"\\\\y\\r\\n\'"'),
    ({"x-queue-version": -1}, "x-queue-version", "{value_negative,-1}"),
    ({"x-queue-version": 3}, "x-queue-version", "\"unsupported queue version '3'\""),
    ({"x-queue-type": "mystery"}, "x-queue-type", "\"unsupported queue type 'mystery'\""),
    ({"x-queue-type": b"classic"}, "x-queue-type", "{unacceptable_type,binary}"),
    ({**QUORUM, "x-dead-letter-strategy": "never"}, "x-dead-letter-strategy", "invalid_dlx_strategy"),
    ({**QUORUM, "x-dead-letter-strategy": 5}, "x-dead-letter-strategy", "{unacceptable_type,signedint}"),
    ({**QUORUM, "x-quorum-initial-group-size": 0}, "x-quorum-initial-group-size", "{value_zero,0}"),
    ({**QUORUM, "x-queue-leader-locator": "here"}, "x-queue-leader-locator", "invalid_queue_locator_arg"),
    ({**QUORUM, "x-max-in-memory-length": -1}, "x-max-in-memory-length", "{value_negative,-1}"),
    ({**QUORUM, "x-max-in-memory-bytes": "1"}, "x-max-in-memory-bytes", '"expected integer, got longstr"'),
    ({**STREAM, "x-max-age": "1"}, "x-max-age", "invalid_max_age"),
    ({**STREAM, "x-initial-cluster-size": 0}, "x-initial-cluster-size", "{value_zero,0}"),
)
def test_impossible_values_are_refused(client: Client, harness: Harness, arguments: Table, text: str) -> None:
    is_refused(client, harness, arguments, text)


@rule("rabbitmq.queue.arguments", "Arguments of RabbitMQ 4 are checked as there; 3.10 knows them less well.")
@cases(
    ({**QUORUM, "x-delivery-limit": "20"}, "x-delivery-limit", '"expected integer, got longstr"'),
    ({**QUORUM, "x-consumer-timeout": -1}, "x-consumer-timeout", "{value_negative,-1}"),
    ({**QUORUM, "x-consumer-disconnected-timeout": -1}, "x-consumer-disconnected-timeout", "{value_negative,-1}"),
    ({**QUORUM, "x-delayed-retry-type": "some"}, "x-delayed-retry-type", "invalid_delayed_retry_type"),
    ({**QUORUM, "x-delayed-retry-min": -1}, "x-delayed-retry-min", "{value_negative,-1}"),
    ({**QUORUM, "x-delayed-retry-max": True}, "x-delayed-retry-max", '"expected integer, got bool"'),
)
def test_arguments_of_later_versions_are_checked(client: Client, harness: Harness, arguments: Table, text: str) -> None:
    is_refused(client, harness, arguments, text)


@rule(
    "rabbitmq.queue.arguments",
    "A name is UTF-8 of at most 255 bytes.",
    deviation="Longer routing keys and other bytes are refused, 406: no frame could carry them.",
)
@pytest.mark.parametrize("name", ["x-dead-letter-exchange", "x-dead-letter-routing-key"])
def test_names_fit_into_a_frame(client: Client, harness: Harness, name: str) -> None:
    base: Table = {"x-dead-letter-exchange": ""}
    is_declared(client, {**base, name: "\u00e9" * 127 + "x"})
    text = f"invalid arg '{name}' {IN_Q}: \"longer than 255 bytes\""
    is_refused(client, harness, {**base, name: "\u00e9" * 128}, text)
    pair = bytes([len(name)]) + name.encode() + b"S\0\0\0\x01\xff"
    encoded = with_length(pair if name == "x-dead-letter-exchange" else encode_table(base)[4:] + pair)
    refusal = client.refused(1, m.QueueDeclare(0, "q", False, False, False, False, False, encoded))
    assert refusal.text == f"PRECONDITION_FAILED - invalid arg '{name}' {IN_Q}: \"not UTF-8\""


@rule("rabbitmq.queue.arguments", "Faults are told in one order, whatever the order of the arguments.")
@pytest.mark.parametrize("base", [CLASSIC, QUORUM])
def test_faults_are_told_in_one_order(client: Client, harness: Harness, base: Table) -> None:
    wrong: Table = {
        "x-expires": -1,
        "x-message-ttl": -1,
        "x-dead-letter-routing-key": "k",
        "x-dead-letter-strategy": "x",
        "x-max-length": -1,
        "x-max-length-bytes": -1,
        "x-max-in-memory-length": -1,
        "x-max-in-memory-bytes": -1,
        "x-max-priority": -1,
        "x-overflow": "x",
        "x-queue-mode": 1,
        "x-queue-version": -1,
        "x-single-active-consumer": 1,
        "x-quorum-initial-group-size": -1,
        "x-queue-leader-locator": 1,
    }
    others = QUORUM_ONLY if base is CLASSIC else CLASSIC_ONLY
    names = [name for name in wrong if name not in others]
    while names:
        call = queue_declare("q", durable=True, arguments={**{each: wrong[each] for each in reversed(names)}, **base})
        assert f"invalid arg '{names.pop(0)}' {IN_Q}: " in client.refused(1, call).text
    assert "q" not in harness.vhost.queues


# --- types ------------------------------------------------------------------------------------------------------------

CLASSIC_ONLY = {"x-max-priority": 5, "x-queue-mode": "lazy", "x-queue-version": 2}
QUORUM_ONLY = {
    "x-dead-letter-strategy": "at-most-once",
    "x-max-in-memory-length": 5,
    "x-max-in-memory-bytes": 5,
    "x-quorum-initial-group-size": 3,
    "x-consumer-disconnected-timeout": 5,
}
STREAM_ONLY = {
    "x-max-age": "1D",
    "x-stream-max-segment-size-bytes": 5000,
    "x-stream-filter-size-bytes": 16,
    "x-initial-cluster-size": 1,
}
NOT_STREAM = {"x-expires": 5, "x-max-length": 5, "x-single-active-consumer": True, "x-delivery-limit": 5}


@rule("rabbitmq.queue.arguments", "Arguments of other queue types are refused, 406, whatever their values.")
@pytest.mark.parametrize("is_possible", [True, False])
@pytest.mark.parametrize(
    ("base", "foreign", "kind"),
    [
        (CLASSIC, QUORUM_ONLY, "rabbit_classic_queue"),
        (CLASSIC, STREAM_ONLY, "rabbit_classic_queue"),
        (QUORUM, CLASSIC_ONLY, "rabbit_quorum_queue"),
        (QUORUM, STREAM_ONLY, "rabbit_quorum_queue"),
        (STREAM, CLASSIC_ONLY, "rabbit_stream_queue"),
        (STREAM, QUORUM_ONLY, "rabbit_stream_queue"),
        (STREAM, NOT_STREAM, "rabbit_stream_queue"),
    ],
)
def test_arguments_of_other_types_are_refused(
    client: Client, harness: Harness, base: Table, foreign: Table, kind: str, is_possible: bool
) -> None:
    for name, value in foreign.items():
        text = f"invalid arg '{name}' {IN_Q} of queue type {kind}"
        is_refused(client, harness, {**base, name: value if is_possible else None}, text)


@rule("rabbitmq.queue.arguments", "Of arguments of other types the first one given is told, after all bad values.")
def test_the_first_argument_of_another_type_is_told(client: Client, harness: Harness) -> None:
    text = f"invalid arg 'x-max-age' {IN_Q} of queue type rabbit_quorum_queue"
    is_refused(client, harness, {**QUORUM, "x-max-age": "1D", "x-max-priority": 1}, text)
    text = f"invalid arg 'x-max-priority' {IN_Q} of queue type rabbit_quorum_queue"
    is_refused(client, harness, {**QUORUM, "x-max-priority": 1, "x-max-age": "1D"}, text, durable=False)
    text = f"invalid arg 'x-max-length' {IN_Q}: {{value_negative,-1}}"
    is_refused(client, harness, {**QUORUM, "x-max-priority": 1, "x-max-length": -1}, text)


@rule(
    "rabbitmq.queue.quorum", "A quorum queue is durable, not exclusive and not auto-deleted, and has a name: else 406."
)
def test_a_quorum_queue_is_durable_shared_and_named(client: Client, harness: Harness) -> None:
    is_declared(client, QUORUM)
    is_refused(client, harness, QUORUM, f"invalid property 'non-durable' {IN_Q}", durable=False)
    exclusive = f"invalid property 'exclusive-owner' {IN_Q}"
    is_refused(client, harness, QUORUM, exclusive, exclusive=True)
    is_refused(client, harness, QUORUM, exclusive, exclusive=True, durable=False)
    auto_delete = f"invalid property 'auto-delete' {IN_Q}"
    is_refused(client, harness, QUORUM, auto_delete, auto_delete=True)
    is_refused(client, harness, QUORUM, auto_delete, auto_delete=True, exclusive=True, durable=False)
    queues = list(harness.vhost.queues)
    call = queue_declare("", durable=True, arguments={**QUORUM, "x-max-length": -1})
    text = "PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_quorum_queue"
    assert client.refused(1, call) == Refusal("channel", 406, text, m.QueueDeclare)
    assert list(harness.vhost.queues) == queues


@rule("rabbitmq.queue.arguments", "Queue types are classic, quorum and stream.")
@pytest.mark.parametrize("name", ["classic", "quorum", "stream"])
def test_queue_types(client: Client, harness: Harness, name: str) -> None:
    client.declare("q", durable=True, arguments={"x-queue-type": name})
    assert harness.queue("q").rules.queue_type == name


@rule("rabbitmq.queue.arguments", "A redeclaration agrees in every argument that the type knows; others do not matter.")
@pytest.mark.parametrize(
    ("declared", "again", "what"),
    [
        ({}, {"x-queue-type": "classic"}, ""),
        ({"x-queue-type": "classic"}, {"x-queue-type": ""}, ""),
        ({}, {"x-max-age": "1D", "x-unknown": 1}, ""),
        (QUORUM, {**QUORUM, "x-max-priority": 5}, ""),
        ({}, QUORUM, "x-queue-type': received the value 'quorum' of type 'longstr' but current is none"),
        (QUORUM, {}, "x-queue-type': received none but current is the value 'quorum' of type 'longstr'"),
        (QUORUM, {"x-queue-type": "classic"}, "x-queue-type': received 'classic' but current is 'quorum'"),
        (STREAM, {**STREAM, "x-max-length": 5}, ""),
        (STREAM, QUORUM, "x-queue-type': received 'quorum' but current is 'stream'"),
        ({}, {"x-dead-letter-exchange": 1}, "x-dead-letter-exchange': received the value '1' of type 'signedint' but"),
        ({}, {"x-max-length": "a"}, "x-max-length': received the value 'a' of type 'longstr' but current is none"),
        ({"x-delivery-limit": 5}, {"x-delivery-limit": 6}, "x-delivery-limit': received '6' but current is '5'"),
        ({"x-retry-backoff": ["5s"]}, {"x-retry-backoff": ["6s"]}, "x-retry-backoff': received '[{longstr,"),
        ({"x-key-shared": True}, {}, "x-key-shared': received none but current is the value 'true' of type 'bool'"),
    ],
)
def test_redeclarations_agree_in_known_arguments(client: Client, declared: Table, again: Table, what: str) -> None:
    client.declare("q", durable=True, arguments=declared)
    call = queue_declare("q", durable=True, arguments=again)
    if not what:
        assert client.call(1, call) == m.QueueDeclareOk("q", 0, 0)
        return
    key, _, how = what.partition("': ")
    text = client.refused(1, call).text
    assert text.startswith(f"PRECONDITION_FAILED - inequivalent arg '{key}' {IN_Q}: {how}")


# --- our own arguments ------------------------------------------------------------------------------------------------


@rule("warren.queue.arguments", "Our own arguments, and some of quorum queues, are for classic and quorum queues.")
@pytest.mark.parametrize("base", [CLASSIC, QUORUM])
@pytest.mark.parametrize(
    "arguments",
    [
        {"x-visibility-timeout": 1},
        {"x-visibility-timeout": TEN_YEARS_MS},
        {"x-consumer-timeout": 2**62},
        {"x-delivery-limit": 3, "x-delivery-limit-action": "park"},
        {"x-delivery-limit-action": "drop"},
        {"x-delivery-limit-action": "dead-letter"},
        {"x-delayed-retry-type": "all", "x-delayed-retry-min": 1000, "x-delayed-retry-max": 1000},
        {"x-delayed-retry-type": "returned"},
        {"x-delayed-retry-type": "disabled"},
        {"x-retry-backoff": [0, 5000, "500ms", "5s", "5m", "1h", "1d"]},
        {"x-retry-backoff": "exponential:1s:5m", "x-delayed-retry-type": "failed"},
        {"x-message-deduplication": True, "x-deduplication-header": "id", "x-cache-size": 1, "x-cache-ttl": 1},
        {"x-message-deduplication": False},
        {"x-key-shared": True, "x-key-header": "customer"},
        {"x-key-shared": True, "x-single-active-consumer": False},
        {"x-key-shared": False, "x-single-active-consumer": True},
        {"x-storage": "disk"},
        {"x-consumer-prefetch-max": 1},
        {"x-max-unacked": 1},
    ],
)
def test_our_own_arguments_are_accepted(client: Client, base: Table, arguments: Table) -> None:
    is_declared(client, {**base, **arguments})


BACKOFF_FORM = "\"expected an array of delays (5000, '5s', '1h') or 'exponential:FIRST:CAP'\""


@rule("warren.queue.arguments", "They are checked as all others: 406.")
@cases(
    ({"x-visibility-timeout": 0}, "x-visibility-timeout", "{value_zero,0}"),
    ({"x-visibility-timeout": TEN_YEARS_MS + 1}, "x-visibility-timeout", "{value_too_large,315360000001}"),
    ({"x-visibility-timeout": "30s"}, "x-visibility-timeout", '"expected integer, got longstr"'),
    ({"x-consumer-timeout": -1}, "x-consumer-timeout", "{value_negative,-1}"),
    ({"x-delivery-limit": 1.5}, "x-delivery-limit", '"expected integer, got double"'),
    ({"x-delivery-limit-action": "keep"}, "x-delivery-limit-action", "invalid_delivery_limit_action"),
    ({"x-delivery-limit-action": 1}, "x-delivery-limit-action", "{unacceptable_type,signedint}"),
    ({"x-delayed-retry-type": "exponential"}, "x-delayed-retry-type", "invalid_delayed_retry_type"),
    ({"x-delayed-retry-max": TEN_YEARS_MS + 1}, "x-delayed-retry-max", "{value_too_large,315360000001}"),
    ({"x-retry-backoff": 5000}, "x-retry-backoff", "{unacceptable_type,signedint}"),
    ({"x-retry-backoff": []}, "x-retry-backoff", BACKOFF_FORM),
    ({"x-retry-backoff": ["5s", -1]}, "x-retry-backoff", BACKOFF_FORM),
    ({"x-retry-backoff": ["5s", True]}, "x-retry-backoff", BACKOFF_FORM),
    ({"x-retry-backoff": "exponential:5m:1s"}, "x-retry-backoff", BACKOFF_FORM),
    ({"x-message-deduplication": "yes"}, "x-message-deduplication", "{unacceptable_type,longstr}"),
    ({"x-deduplication-header": 1}, "x-deduplication-header", "{unacceptable_type,signedint}"),
    ({"x-cache-size": 0}, "x-cache-size", "{value_zero,0}"),
    ({"x-cache-size": 10_000_001}, "x-cache-size", "{value_too_large,10000001}"),
    ({"x-cache-ttl": 0}, "x-cache-ttl", "{value_zero,0}"),
    ({"x-key-shared": 1}, "x-key-shared", "{unacceptable_type,signedint}"),
    ({"x-key-header": True}, "x-key-header", "{unacceptable_type,bool}"),
    ({"x-storage": "tape"}, "x-storage", "invalid_storage"),
    ({"x-consumer-prefetch-max": 0}, "x-consumer-prefetch-max", "{value_zero,0}"),
    ({"x-max-unacked": 0}, "x-max-unacked", "{value_zero,0}"),
    ({"x-max-unacked": -1}, "x-max-unacked", "{value_negative,-1}"),
)
def test_impossible_values_of_our_own_are_refused(
    client: Client, harness: Harness, arguments: Table, text: str
) -> None:
    is_refused(client, harness, arguments, text)


@rule("warren.queue.arguments", "What cannot work together is refused, with the reason: 406.")
@cases(
    (
        {"x-key-shared": True, "x-max-priority": 5},
        "x-key-shared",
        '"not with x-max-priority, which lets messages overtake others of their key"',
    ),
    (
        {"x-key-shared": True, "x-single-active-consumer": True},
        "x-key-shared",
        '"not with x-single-active-consumer, which leaves one consumer for all keys"',
    ),
    ({"x-storage": "memory"}, "x-storage", '"memory needs a limit: x-max-length or x-max-length-bytes"'),
    (
        {**QUORUM, "x-storage": "memory", "x-max-length": 5},
        "x-storage",
        '"not memory: a quorum queue keeps its messages on disk"',
    ),
)
def test_contradictions_are_refused(client: Client, harness: Harness, arguments: Table, text: str) -> None:
    is_refused(client, harness, arguments, text)
    assert len(text) + len("PRECONDITION_FAILED - ") <= 255


@rule("warren.queue.arguments", "A memory queue has a limit of messages or of bytes.")
@pytest.mark.parametrize("limit", ["x-max-length", "x-max-length-bytes"])
def test_a_memory_queue_has_a_limit(client: Client, limit: str) -> None:
    is_declared(client, {"x-storage": "memory", limit: 100})


@rule(
    "warren.queue.arguments", "A queue of an earlier version is restored, arguments that are impossible today included."
)
def test_impossible_arguments_do_not_keep_a_queue_from_coming_back(client: Client, harness: Harness) -> None:
    arguments = encode_table({"x-max-length": -1, "x-max-age": "1D", "x-storage": "memory", "x-unknown": 1})
    harness.broker.restore(QueuePut("/", "q", False, arguments, 77))
    assert client.declare("q", passive=True) == m.QueueDeclareOk("q", 0, 0)
    assert harness.queue("q").arguments == arguments
