"""Numbers of every size in every parameter, policy, argument and limit: taken or refused, and nothing else.

The tables of the product list the keys; a new key is tried without a line here.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import math
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from engine_harness import Client, Harness, queue_declare

from warren.amqp import methods as m
from warren.amqp.codec import frame, method_frame
from warren.amqp.declarations import QueueDeclaration
from warren.amqp.errors import ChannelException
from warren.amqp.field_table import Timestamp, encode_table
from warren.amqp.numbers import LONG_MAX, SECONDS_MAX, TIME_MAX_MS, count_of, is_long, is_number, seconds_of
from warren.amqp.publishes import PublishScan, scan_publishes
from warren.amqp_client.client_errors import BrokerError
from warren.exchanges.registry import EXCHANGE_TYPES
from warren.links import shovel
from warren.links.host import Parameter, Policy
from warren.links.upstreams import UpstreamBook, validate_upstream, validate_upstream_set
from warren.queues.arguments import ARGUMENTS, QueueArguments
from warren.queues.effective_policy import NO_POLICY
from warren.queues.rules import QueueRules, rules_of
from warren.server.settings import KEYS
from warren.server.settings_reader import load_settings, shown_values
from warren.server.start_errors import SettingsError
from warren.vhosts.definitions import parse_json
from warren.vhosts.limits import USER_LIMITS, VHOST_LIMITS
from warren.vhosts.metadata import ParameterPut, PolicyPut, UserLimitsPut, VhostLimitsPut
from warren.vhosts.policies import OPERATOR_KEYS

HUGE = 10**400
# As JSON: all numbers that its grammar allows, beyond the range of a double or a long.
JSON_NUMBERS = (
    "0",
    "-1",
    "0.5",
    "-0.5",
    "1e-400",
    "1e300",
    "-1e300",
    str(LONG_MAX),
    str(LONG_MAX + 1),
    str(-LONG_MAX - 2),
    str(HUGE),
    str(-HUGE),
    "9" * 4000,
)
NO_JSON = ("1e400", "-1e400", "NaN", "Infinity", "-Infinity", "9" * 5000)
# As AMQP: numbers that fit into a field.
FIELD_NUMBERS: tuple[object, ...] = (
    0,
    -1,
    LONG_MAX,
    -LONG_MAX - 1,
    math.inf,
    -math.inf,
    math.nan,
    1e308,
    Decimal("0.5"),
    Timestamp(LONG_MAX),
    True,
)
TEXTS = ("999999999999Y", "9" * 250, "-" + "9" * 250, "1e400", "exponential:1ms:999999999999d", "")
SHOVEL = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b"}
SHOVEL_NUMBERS = ("reconnect-delay", "prefetch-count", "src-prefetch-count", "delete-after", "src-delete-after")
PROPERTY_NUMBERS = ("delivery_mode", "priority", "timestamp")
UPSTREAM_NUMBERS = ("prefetch-count", "reconnect-delay", "max-hops", "expires", "message-ttl")


# --- kinds of numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, 2.5, LONG_MAX, -LONG_MAX - 1, 1e-300])
def test_what_fits_is_a_number(value: float) -> None:
    assert is_number(value)
    assert is_long(value) is isinstance(value, int)


@pytest.mark.parametrize("value", [HUGE, -HUGE, LONG_MAX + 1, math.inf, -math.inf, math.nan, 1e300, True, "1", None])
def test_anything_else_is_none(value: object) -> None:
    assert not is_number(value)
    assert not is_long(value)


@pytest.mark.parametrize("value", [HUGE, -HUGE, math.inf, -math.inf, 1e300, -1, 0, 0.25])
def test_conversions_stay_in_their_range(value: float) -> None:
    assert 0.0 <= seconds_of(value, 5.0) <= SECONDS_MAX
    assert 1 <= count_of(value, 9, low=1, high=100) <= 100


@pytest.mark.parametrize("value", [math.nan, "1", None, True, [1]])
def test_what_is_no_number_counts_as_the_default(value: object) -> None:
    assert seconds_of(value, 5.0) == 5.0
    assert count_of(value, 9, high=100) == 9


@pytest.mark.parametrize("text", NO_JSON)
def test_numbers_that_cannot_be_shown_again_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_stored_ones_are_the_largest_that_can() -> None:
    assert parse_json("[1e400,-1e400]", stored=True) == [1.7976931348623157e308, -1.7976931348623157e308]


# --- parameters of links ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", JSON_NUMBERS)
@pytest.mark.parametrize("key", SHOVEL_NUMBERS)
def test_a_shovel_is_refused_or_runs(key: str, text: str) -> None:
    value = SHOVEL | {key: json.loads(text)}
    if shovel.validate("s", value):
        with pytest.raises(BrokerError):
            shovel.parse("s", value)
        return
    definition = shovel.parse("s", value)
    assert 0.0 <= definition.reconnect_delay_s <= SECONDS_MAX
    assert 0 <= definition.prefetch_count <= 0xFFFF
    assert definition.delete_after == "never" or 0 <= int(definition.delete_after) <= LONG_MAX


@pytest.mark.parametrize("text", JSON_NUMBERS)
@pytest.mark.parametrize("key", PROPERTY_NUMBERS)
def test_properties_that_a_shovel_sets_can_be_written(key: str, text: str) -> None:
    value = SHOVEL | {"dest-properties": {key: json.loads(text)}}
    if not shovel.validate("s", value):
        ((_, number),) = shovel.parse("s", value).publish_properties
        assert 0 <= number < 1 << (64 if key == "timestamp" else 8)


@pytest.mark.parametrize("text", JSON_NUMBERS)
@pytest.mark.parametrize("key", UPSTREAM_NUMBERS)
def test_an_upstream_is_refused_or_resolved(key: str, text: str) -> None:
    number = json.loads(text)
    upstream = {"uri": "amqp://h", key: number}
    members = [{"upstream": "u", key: number}]
    assert bool(validate_upstream("u", upstream)) is bool(validate_upstream_set("s", members))
    for parameters in (
        [Parameter("federation-upstream", "/", "u", upstream), Parameter("federation-upstream-set", "/", "s", [])],
        [
            Parameter("federation-upstream", "/", "u", {"uri": "amqp://h"}),
            Parameter("federation-upstream-set", "/", "s", members),
        ],
    ):
        book = UpstreamBook(parameters)
        wrong = bool(validate_upstream("u", upstream))
        assert [text.partition(" should")[0] for _, text in book.problems] == ([key] if wrong else [])
        for policy in (Policy(upstream="u"), Policy(upstream_set="s")):
            for each in book.resolve("/", policy):
                assert 0.0 <= each.reconnect_delay_s <= SECONDS_MAX
                assert 0 <= each.prefetch_count <= 0xFFFF
                assert 1 <= each.max_hops <= 0x7FFF
                for time_ms in (each.expires_ms, each.message_ttl_ms):
                    assert time_ms is None or 0 <= time_ms <= TIME_MAX_MS


# --- refusals ---------------------------------------------------------------------------------------------------------


def ack(client: Client, tag: int) -> None:
    assert str(tag) in client.refused(1, m.BasicAck(tag, False)).text


def nack(client: Client, tag: int) -> None:
    client.refused(1, m.BasicNack(tag, multiple=True, requeue=True))


def reject(client: Client, tag: int) -> None:
    client.refused(1, m.BasicReject(tag, False))


def argument(client: Client, number: int) -> None:
    client.refused(1, queue_declare("q", arguments={"x-max-length": -1 - (number & LONG_MAX)}))


def argument_above(client: Client, number: int) -> None:
    number &= LONG_MAX
    assert str(number) in client.refused(1, queue_declare("q", arguments={"x-expires": number})).text


def policy(client: Client, number: int) -> None:
    for value in (number**20, -(number**20)):
        with pytest.raises(ValueError, match=str(value)):
            client.harness.broker.administer(PolicyPut("/", "p", "", "all", 0, f'{{"expires":{value}}}'))


def expiration(client: Client, number: int) -> None:
    for text in (str(number**5), str(-number)):
        client.publish("", "q", expiration=text)
        assert text in client.refusal().text
        client.open(1)


def body_size(client: Client, size: int) -> None:
    other = client.harness.channel()
    header = b"\x00\x3c\x00\x00" + size.to_bytes(8, "big") + b"\x00\x00"
    other.feed(
        method_frame(1, m.BasicPublish(0, "", "q", mandatory=False, immediate=False)) + frame(m.FRAME_HEADER, 1, header)
    )
    assert str(size) in other.refusal().text
    other.hang_up()


def encoded_publish(client: Client, size: int) -> None:
    header = b"\x00\x3c\x00\x00" + size.to_bytes(8, "big") + b"\x00\x00"
    publish = method_frame(1, m.BasicPublish(0, "", "q", mandatory=False, immediate=False)) + frame(
        m.FRAME_HEADER, 1, header
    )
    with pytest.raises(ChannelException, match=str(size)):
        scan_publishes(PublishScan(1 << 24), publish, 1 << 40, 1 << 40)


REFUSALS = (ack, nack, reject, argument, argument_above, policy, expiration, body_size, encoded_publish)


@pytest.mark.parametrize("number", [LONG_MAX // 2 + 1, LONG_MAX, LONG_MAX + 1, 2 * LONG_MAX + 1])
@pytest.mark.parametrize("refuse", REFUSALS, ids=lambda refuse: refuse.__name__)
def test_a_number_that_was_refused_is_not_kept(
    harness: Harness, refuse: Callable[[Client, int], None], number: int
) -> None:
    """``numbers.py`` (2)"""

    def blocks_after(times: int) -> int:
        for _ in range(times):
            refuse(client, number)
        harness.notices.clear()
        gc.collect()
        return sys.getallocatedblocks()

    client = harness.channel()
    before = blocks_after(100)
    assert blocks_after(300) - before < 200


# --- policies, arguments ----------------------------------------------------------------------------------------------


def numbers_of(rules: QueueRules) -> list[int]:
    found = []
    for name in dir(rules):
        value = getattr(rules, name)
        if isinstance(value, int):
            assert -1 <= value <= LONG_MAX, name
            found.append(value)
    return found


@pytest.mark.parametrize("text", [*JSON_NUMBERS, *(json.dumps(each) for each in TEXTS), "[9e99]", f"[{HUGE}]"])
@pytest.mark.parametrize("key", [row.key for row in ARGUMENTS if row.noun])
def test_a_policy_is_refused_or_holds(harness: Harness, key: str, text: str) -> None:
    for name, queue_type in (("c", "classic"), ("q", "quorum"), ("s", "stream")):
        arguments = encode_table({"x-queue-type": queue_type})
        harness.vhost.declare_queue(QueueDeclaration(name, durable=True, arguments=arguments))
    for operator in (False, True):
        if operator and key not in OPERATOR_KEYS:
            continue
        try:
            harness.broker.administer(PolicyPut("/", "p", "", "all", 0, f'{{"{key}":{text}}}', operator=operator))
        except ValueError:
            continue
        for queue in harness.vhost.queues.values():
            assert numbers_of(queue.rules)
    client = harness.channel()
    client.publish("", "c", b"x")
    client.publish("", "q", b"x")
    client.publish("", "s", b"x")
    harness.pass_time(1.0)
    assert client.call(1, queue_declare("another")).queue == "another"


@pytest.mark.parametrize("queue_type", ["classic", "quorum", "stream"])
@pytest.mark.parametrize("row", ARGUMENTS, ids=lambda row: row.key)
def test_an_argument_is_refused_or_holds(harness: Harness, row: Any, queue_type: str) -> None:
    client = harness.channel()
    for number, value in enumerate((*FIELD_NUMBERS, *TEXTS, [LONG_MAX], ["999999999999d"])):
        name = f"q{number}"
        arguments = {"x-queue-type": queue_type, row.name: value}
        if row.key == "queue-type":
            arguments = {row.name: value}
        client.send(1, queue_declare(name, durable=True, arguments=arguments))
        reply = client.take()[-1].method
        if isinstance(reply, m.ChannelClose):
            assert reply.reply_code == 406
            client.send(1, m.ChannelCloseOk())
            client.call(1, m.ChannelOpen(""))
            continue
        assert numbers_of(harness.vhost.queues[name].rules)
        client.publish("", name, b"x")
    harness.pass_time(1.0)
    assert client.call(1, queue_declare("another")).queue == "another"


@pytest.mark.parametrize("passive", [False, True])
def test_a_queue_with_more_messages_than_an_answer_can_say_is_declared_and_deleted(
    harness: Harness, passive: bool
) -> None:
    client = harness.channel()
    client.declare("q")
    harness.queue("q").ready.count = 1 << 32
    assert client.call(1, queue_declare("q", passive=passive)) == m.QueueDeclareOk("q", 0xFFFFFFFF, 0)
    delete = m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False)
    assert client.call(1, delete) == m.QueueDeleteOk(0xFFFFFFFF)


@pytest.mark.parametrize("row", ARGUMENTS, ids=lambda row: row.key)
def test_a_stored_argument_never_keeps_a_queue_from_being_there(row: Any) -> None:
    for value in (*FIELD_NUMBERS, *TEXTS):
        stored = QueueArguments(
            QueueDeclaration("q", durable=True, arguments=encode_table({row.name: value})), "/", stored=True
        )
        assert numbers_of(rules_of(stored, NO_POLICY))


@pytest.mark.parametrize("type_name", EXCHANGE_TYPES)
@pytest.mark.parametrize("key", ["x-recent-history-length", "x-max-hops", "hash-header", "alternate-exchange"])
def test_an_argument_of_an_exchange_is_refused_or_holds(harness: Harness, type_name: str, key: str) -> None:
    client = harness.channel()
    for number, value in enumerate(FIELD_NUMBERS):
        name = f"e{number}"
        table = encode_table({key: value, "x-delayed-type": "fanout"})
        client.send(1, m.ExchangeDeclare(0, name, type_name, False, False, False, False, False, table))
        reply = client.take()[-1].method
        if isinstance(reply, m.ChannelClose):
            assert reply.reply_code == 406
            client.send(1, m.ChannelCloseOk())
            client.call(1, m.ChannelOpen(""))
            continue
        client.publish(name, "k", b"x", headers=encode_table({"x-received-from": [1, 2, 3]}))
    assert client.call(1, queue_declare("another")).queue == "another"


@pytest.mark.parametrize("key", ["x-priority", "x-visibility-timeout", "x-consumer-timeout", "x-stream-offset"])
def test_an_argument_of_a_consumer_is_refused_or_holds(harness: Harness, key: str) -> None:
    client = harness.channel()
    client.call(1, queue_declare("c"))
    client.call(1, queue_declare("s", durable=True, arguments={"x-queue-type": "stream"}))
    client.call(1, m.BasicQos(0, 10, False))
    for name in ("c", "s"):
        for number, value in enumerate(FIELD_NUMBERS):
            table = encode_table({key: value})
            client.send(1, m.BasicConsume(0, name, f"{name}{number}", False, False, False, False, table))
            reply = client.take()[-1].method
            if isinstance(reply, m.ChannelClose):
                assert reply.reply_code == 406
                client.send(1, m.ChannelCloseOk())
                client.call(1, m.ChannelOpen(""))
                client.call(1, m.BasicQos(0, 10, False))
    client.publish("", "c", b"x")
    harness.pass_time(1.0)
    assert client.call(2, m.ChannelOpen(""))


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", JSON_NUMBERS)
def test_a_limit_is_refused_or_holds(harness: Harness, text: str) -> None:
    fits = is_long(json.loads(text))
    changes: list[tuple[str, VhostLimitsPut | UserLimitsPut]] = [
        *((key, VhostLimitsPut("/", f'{{"{key}":{text}}}')) for key in VHOST_LIMITS),
        *((key, UserLimitsPut("guest", f'{{"{key}":{text}}}')) for key in USER_LIMITS),
    ]
    for key, change in changes:
        if fits:
            harness.broker.administer(change)
        else:
            with pytest.raises(ValueError, match=f"^{key} should be a number, actually was "):
                harness.broker.administer(change)


# --- what an earlier version has stored -------------------------------------------------------------------------------


def test_what_is_stored_never_keeps_the_broker_from_starting(harness: Harness) -> None:
    definition = json.dumps(SHOVEL)[:-1] + f', "reconnect-delay": {HUGE}, "prefetch-count": 1e400}}'
    harness.broker.restore(ParameterPut("/", "shovel", "s", definition))
    harness.broker.restore(VhostLimitsPut("/", f'{{"max-queues":{HUGE}}}'))
    harness.broker.restore(UserLimitsPut("guest", f'{{"max-channels":{-HUGE}}}'))
    harness.broker.restore(PolicyPut("/", "p", "", "all", 0, f'{{"message-ttl":{HUGE}}}'))
    assert harness.vhost.limits == {"max-queues": LONG_MAX}
    assert harness.broker.access.usage("guest").limits == {"max-channels": -LONG_MAX - 1}
    (notice,) = harness.broker.notices
    assert (notice.level, notice.event) == ("error", "policy.invalid")
    assert {key: notice.fields[key] for key in ("vhost", "policy")} == {"vhost": "/", "policy": "p"}
    parameter = harness.broker.parameters.maybe_parameter("/", "shovel", "s")
    assert parameter is not None
    problems = shovel.validate("s", parameter.value)
    assert [problem.partition(" should")[0] for problem in problems] == ["prefetch-count", "reconnect-delay"]


# --- settings ---------------------------------------------------------------------------------------------------------


def numbers_set(settings: Any) -> list[float]:
    """Return the numbers of all settings, of the tables too."""
    found = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            found.append(value)
        elif dataclasses.is_dataclass(value):
            found += numbers_set(value)
    return found


@pytest.mark.parametrize("key", sorted(KEYS))
def test_a_setting_is_refused_or_holds(key: str, tmp_path: Path) -> None:
    texts = [*JSON_NUMBERS, *NO_JSON, "nan", "inf", "-inf", "1e999999", "9" * 4000 + " GiB", "9" * 4000 + "%"]
    for text in texts:
        try:
            settings = load_settings({key: text}, {})
        except SettingsError:
            continue
        assert all(is_number(value) for value in numbers_set(settings))
        assert list(shown_values(settings))
    for text in ("1e400", "nan", "-inf", str(HUGE), "-1", "[1e400]"):
        config = tmp_path / "warren.toml"
        table, _, leaf = key.rpartition(".")
        config.write_text(f"[{table}]\n{leaf} = {text}\n" if table else f"{leaf} = {text}\n")
        try:
            settings = load_settings({}, {}, config)
        except SettingsError:
            continue
        assert all(is_number(value) for value in numbers_set(settings))
