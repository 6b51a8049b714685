"""Node's amqplib, the version package-lock.json pins: one script per scenario, judged here by the JSON it prints."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from ..broker import Broker
from .conftest import RunNode

Scenario = Callable[[str], Any]


@pytest.fixture
def scenario(broker: Broker, run_node: RunNode) -> Scenario:
    """Run a scenario by name and return what it printed."""
    return lambda name: run_node(
        ["run.js", name], {"AMQP_URL": broker.url, "PREFIX": f"amqplib-{name}-{uuid.uuid4().hex[:8]}"}
    )


def test_amqplib_connects_and_sees_who_answers(scenario: Scenario) -> None:
    told = scenario("connect")
    assert told["product"] == "RabbitMQ"
    assert told["capabilities"]["publisher_confirms"] is True


def test_amqplib_is_refused_with_a_reason(scenario: Scenario) -> None:
    told = scenario("refused")
    assert "403 (ACCESS-REFUSED)" in told["password"]
    assert "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN" in told["password"]
    # amqplib shows the close it did not expect at this point, and not its text
    assert told["vhost"] == "Expected ConnectionOpenOk; got <ConnectionClose channel:0>"


def test_amqplib_asserts_checks_purges_and_deletes_queues(scenario: Scenario) -> None:
    assert scenario("queues") == {
        "declared": True,
        "named": True,
        "got": "0",
        "checked": 4,
        "purged": {"messageCount": 4},
        "empty": False,
        "deleted": {"messageCount": 1},
        "deletedAgain": {"messageCount": 0},
    }


def test_amqplib_routes_through_every_exchange_type(scenario: Scenario) -> None:
    told = scenario("exchanges")
    for kind in ("direct", "topic", "fanout", "headers"):
        assert told[kind] == [kind, "a.b", True]
    assert told["walked"] == ["through the binding", "through the alternate", "through the alternate now"]


def test_amqplib_consumes_in_order_and_acknowledges(scenario: Scenario) -> None:
    told = scenario("consume")
    assert told["bodies"] == [str(number) for number in range(200)]
    assert told["tags"] == list(range(1, 201))
    assert told["left"] == "after"


def test_amqplib_waits_for_confirms_and_hears_returns_first(scenario: Scenario) -> None:
    told = scenario("confirms")
    assert (told["confirmed"], told["messageCount"]) == (500, 500)
    assert told["log"] == [["return", 312, "NO_ROUTE"], ["confirm"]] * 3


def test_amqplib_limits_its_consumers_by_prefetch(scenario: Scenario) -> None:
    told = scenario("prefetch")
    assert told["consumer"] == [3, 5]
    # the second consumer came after prefetch(3) and prefetch(4, global): both limits hold
    assert told["global"] == [3, 5]


def test_amqplib_headers_of_every_type_arrive_unchanged(scenario: Scenario) -> None:
    told = scenario("headers")
    sent, got = told["sent"], told["headers"]
    plain = {name: value for name, value in sent.items() if not (isinstance(value, dict) and "!" in value)}
    assert {name: got[name] for name in plain} == plain
    assert got["octets"] == "00ffce"
    for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float", "double"):
        assert got[name] == sent[name]["value"], name
    assert got["timestamp"]["value"] == sent["timestamp"]["value"]
    assert got["decimal"]["value"] == sent["decimal"]["value"]
    properties = {name: value for name, value in told["properties"].items() if value is not None}
    assert properties == {
        "contentType": "application/json",
        "contentEncoding": "utf-8",
        "deliveryMode": 2,
        "priority": 4,
        "correlationId": "correlation",
        "replyTo": "reply",
        "expiration": "60000",
        "messageId": "message",
        "timestamp": 1700000000,
        "type": "type",
        "appId": "app",
    }


def test_amqplib_requeues_in_order_and_sees_redelivered(scenario: Scenario) -> None:
    assert scenario("requeue") == [
        [["a", True], ["b", True], None],
        [["a", True], ["b", True]],
        [["a", True], ["b", True]],
        None,
    ]


def test_amqplib_hears_heartbeats_on_an_idle_connection(scenario: Scenario) -> None:
    assert scenario("heartbeats") == {"errors": [], "works": True}


def test_amqplib_is_told_which_method_failed(scenario: Scenario, broker: Broker) -> None:
    told = scenario("channel_errors")
    queue, exchange = broker.queue(told["queue"]), broker.exchange(told["exchange"])
    missing_queue = broker.queue(told["queue"] + "-missing")
    missing_exchange = broker.exchange(told["exchange"] + "-missing")
    expected = {
        "check a missing queue": (404, 50, 10, f"NOT_FOUND - no {missing_queue}"),
        "check a missing exchange": (404, 40, 10, f"NOT_FOUND - no {missing_exchange}"),
        "a different queue": (
            406,
            50,
            10,
            f"PRECONDITION_FAILED - inequivalent arg 'durable' for {queue}: received 'false' but current is 'true'",
        ),
        "a different exchange": (
            406,
            40,
            10,
            f"PRECONDITION_FAILED - inequivalent arg 'type' for {exchange}: received 'fanout' but current is 'direct'",
        ),
        "a reserved name": (
            403,
            50,
            10,
            "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'",
        ),
        "bind to a missing exchange": (404, 50, 20, f"NOT_FOUND - no {missing_exchange}"),
        "consume a missing queue": (404, 60, 20, f"NOT_FOUND - no {missing_queue}"),
        "publish to a missing exchange": (404, 60, 40, f"NOT_FOUND - no {missing_exchange}"),
        "acknowledge nothing": (406, 60, 80, "PRECONDITION_FAILED - unknown delivery tag 12"),
        "delete a system exchange": (
            403,
            40,
            20,
            f"ACCESS_REFUSED - deletion of system {broker.exchange('amq.topic')} not allowed",
        ),
    }
    for what, (code, class_id, method_id, text) in expected.items():
        got_code, got_class_id, got_method_id, message = told["result"][what]
        assert (got_code, got_class_id, got_method_id) == (code, class_id, method_id), what
        assert text in message, what
    assert told["result"].keys() == expected.keys()


def test_amqplib_is_told_why_its_connection_was_closed(scenario: Scenario) -> None:
    code, message = scenario("connection_error")
    assert code == 530
    assert "NOT_ALLOWED - attempt to reuse consumer tag 'twice'" in message


def test_amqplib_recovers_and_goes_on_consuming(scenario: Scenario) -> None:
    told = scenario("recovery")
    assert told["connects"] == 2
    assert [told["bodies"][0], told["bodies"][-1]] == ["before", "after"]


def test_amqplib_updates_its_secret(scenario: Scenario) -> None:
    assert scenario("update_secret") is True


def test_amqplib_works_by_callbacks_too(scenario: Scenario) -> None:
    assert scenario("callback_api") == "by callback"


def test_amqplib_calls_over_direct_reply_to(scenario: Scenario) -> None:
    assert scenario("direct_reply_to") == {"one": "ONE", "two": "TWO", "three": "THREE"}


def test_amqplib_moves_large_messages_in_small_and_large_frames(scenario: Scenario) -> None:
    assert scenario("large") == [True, True]


def test_amqplib_hears_that_its_consumer_was_cancelled(scenario: Scenario) -> None:
    assert scenario("cancelled") == ["last", None]


def test_amqplib_consumer_priorities_are_honoured(scenario: Scenario) -> None:
    assert scenario("priorities") == {"high": ["1", "2"], "low": ["3"]}
