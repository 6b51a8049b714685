"""Whole runs against the small broker: rates, accounting, errors a person can read, the command line."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

import pytest
import typer
from free_ports import free_port
from typer.testing import CliRunner

from warren.amqp import methods
from warren.amqp.field_table import decode_table
from warren.amqp.properties import decode_properties
from warren.perf import footprint, round_trip, workload
from warren.perf.choices import ExchangeType
from warren.perf.client import Address, BrokerError, PerfConnection, product_of
from warren.perf.command import default_backlog, parse_queue_arguments, perf
from warren.perf.workload import Run, Workload

from .small_broker import SmallBroker


def command_line() -> typer.Typer:
    app = typer.Typer()
    app.command()(perf)
    return app


@pytest.mark.parametrize(
    "load",
    [
        Workload(messages=500, backlog=100),
        Workload(messages=500, size_bytes=0),
        Workload(messages=500, auto_ack=False, prefetch=100, ack_batch=10),
        Workload(messages=500, auto_ack=False, ack_batch=1),
        Workload(messages=500, confirms=20, persistent=True, durable=True),
        Workload(messages=300, publishers=3, queues=3, consumers=3, confirms=1),
        Workload(messages=20, size_bytes=200_000),
        Workload(messages=100, rate=5000),
    ],
    ids=lambda load: f"{load.size_bytes}-{load.publishers}-{load.confirms}-{load.ack_batch}-{load.rate}",
)
def test_every_message_of_a_run_is_received_and_confirmed(load: Workload, address: Address) -> None:
    result = Run(load, address).run()
    assert result.missing == 0
    assert result.window.published == load.messages
    assert result.window.received == load.messages
    assert result.window.confirmed == (load.messages if load.confirms else 0)
    assert result.delivery.samples >= (load.messages if load.stamped else 0)
    assert result.broker == "small 1"


def test_fanout_copies_to_every_queue_that_is_consumed(address: Address) -> None:
    load = Workload(messages=100, exchange=ExchangeType.FANOUT, queues=4, consumers=3, backlog=50)
    result = Run(load, address).run()
    assert (result.copies_per_message, result.window.received, result.missing) == (3, 300, 0)


def test_bodies_split_by_a_small_frame_max_are_counted(broker: SmallBroker, address: Address) -> None:
    broker.frame_max_bytes = 4096
    result = Run(Workload(messages=50, size_bytes=20_000), address).run()
    assert (result.window.received, result.missing) == (50, 0)


def test_acks_are_cumulative_after_each_batch_and_cover_everything(broker: SmallBroker, address: Address) -> None:
    Run(Workload(messages=95, auto_ack=False, ack_batch=10), address).run()
    assert broker.acked == [(tag, 1) for tag in [*range(10, 91, 10), 95]]


def test_a_lost_message_is_reported_as_missing(
    broker: SmallBroker, address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload, "_PATIENCE_NS", 100_000_000)
    broker.lose = 7
    assert Run(Workload(messages=100), address).run().missing == 1


def test_a_repeated_delivery_tag_ends_the_run(broker: SmallBroker, address: Address) -> None:
    broker.repeat_tag = 50
    with pytest.raises(BrokerError, match="delivery 49 where 50 was due"):
        Run(Workload(messages=100), address).run()


def test_queues_are_deleted_after_a_run_and_after_a_failed_one(broker: SmallBroker, address: Address) -> None:
    Run(Workload(messages=10, queues=3), address).run()
    assert broker.queues == {}
    broker.repeat_tag = 5
    with pytest.raises(BrokerError):
        Run(Workload(messages=10, queues=3), address).run()
    assert broker.queues == {}


def test_a_run_that_keeps_its_queues_leaves_what_nobody_consumed(broker: SmallBroker, address: Address) -> None:
    Run(Workload(messages=10, consumers=0, confirms=5, keep=True), address).run()
    assert {queue: len(messages) for queue, messages in broker.queues.items()} == {"perf-0": 10}


def test_a_stopped_run_ends_early_and_still_accounts_for_everything(address: Address) -> None:
    run = Run(Workload(duration_s=3600, warmup_s=0, backlog=100), address, on_tick=lambda *_: run.stop())
    result = run.run()
    assert result.seconds < 3600
    assert (result.missing, result.window.received > 0) == (0, True)


def test_round_trips_come_back_in_order(address: Address) -> None:
    found = round_trip.run(address, size_bytes=16, warmup_s=0.0, duration_s=0.2, prefix="p", pid=os.getpid())
    assert found.window.received == found.latency.samples > 0
    assert found.as_dict()["mode"] == "rpc"


def test_footprints_count_what_they_open(broker: SmallBroker, address: Address) -> None:
    assert footprint.idle_connections(address, 5).count == 5
    for pipelined in (True, False):
        footprint.declared_queues(address, 700, durable=True, pipelined=pipelined, prefix="d", keep=False)
        assert broker.queues == {}
    footprint.declared_queues(address, 3, durable=True, pipelined=True, prefix="d", keep=True)
    assert sorted(broker.queues) == ["d-0", "d-1", "d-2"]


def test_an_absent_broker_is_one_clear_line() -> None:
    port = free_port()
    done = CliRunner().invoke(command_line(), ["--uri", f"amqp://127.0.0.1:{port}"])
    assert done.exit_code == 1
    assert done.output == f"warren perf: nothing listens on 127.0.0.1:{port}\n"


def test_a_prefix_that_does_not_fit_a_name_is_refused() -> None:
    done = CliRunner().invoke(command_line(), ["--prefix", "p" * 201])
    assert (done.exit_code, done.output) == (1, "warren perf: --prefix of 201 bytes: 200 are allowed\n")


@pytest.mark.parametrize(
    ("method", "scope", "code", "text"),
    [
        (methods.ConnectionStartOk, "connection", 403, "ACCESS_REFUSED - Login was refused"),
        (methods.ConnectionOpen, "connection", 530, "NOT_ALLOWED - vhost nope not found"),
        (methods.QueueDeclare, "channel", 406, "PRECONDITION_FAILED - inequivalent arg"),
        (methods.BasicPublish, "channel", 403, "ACCESS_REFUSED - write access"),
    ],
)
def test_what_the_broker_closes_is_told_with_code_and_text(
    method: type[Any], scope: str, code: int, text: str, broker: SmallBroker, address: Address
) -> None:
    broker.close_on, broker.close_code, broker.close_text = method, code, text
    with pytest.raises(BrokerError, match=f"127.0.0.1:{broker.port} closed the {scope}: {code} {text}"):
        Run(Workload(messages=10), address).run()


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (b"AMQP\x00\x01\x00\x00", "does not speak AMQP 0-9-1: it wants"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it is a port of HTTP; AMQP clients connect to another one"),
    ],
)
def test_something_else_than_amqp_is_named_as_such(answer: bytes, named: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = PerfConnection(Address(port=int(listener.getsockname()[1])))
        peer, _ = listener.accept()
        with peer:
            peer.sendall(answer)
            connection.greet()
            with pytest.raises(BrokerError, match=named):
                connection.advance()
        connection.abort()


def test_json_holds_the_workload_and_the_costs_of_the_process(address: Address) -> None:
    arguments = ["--uri", f"amqp://u:p@{address}/%2F", "-n", "200", "--json", "--pid", str(os.getpid())]
    done = CliRunner().invoke(command_line(), [*arguments, "--ack", "--prefetch", "50", "--ack-batch", "5"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["workload"]["prefetch"] == 50
    assert found["missing"] == 0
    assert found["broker_rss_bytes"] > 0
    assert set(found["delivery_latency_us"]) == {"p50", "p95", "p99", "p99.9", "max", "samples"}


def test_the_table_names_the_rates(address: Address) -> None:
    done = CliRunner().invoke(command_line(), ["--uri", f"amqp://{address}", "-n", "100"])
    assert done.exit_code == 0, done.output
    assert "received per s" in done.output


@pytest.mark.parametrize("uri", ["amqps://127.0.0.1", "http://127.0.0.1", "127.0.0.1:5672", "amqp://127.0.0.1:99999"])
def test_a_uri_that_cannot_be_used_is_refused(uri: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        Address.from_uri(uri)


def test_parts_of_a_uri_that_are_left_out_have_defaults() -> None:
    assert Address.from_uri("amqp://") == Address()
    assert Address.from_uri("amqp://u%40x:p@h:1/%2Fv") == Address("h", 1, "u@x", "p", "/v")


@pytest.mark.parametrize(
    "changes",
    [
        {"publishers": 0},
        {"queues": 0},
        {"bindings": 5},
        {"auto_ack": False, "prefetch": 10, "ack_batch": 11},
        {"routing_keys": 2},
        {"priority_levels": 257},
        {"delay_ms": -1},
    ],
    ids=str,
)
def test_a_load_that_means_nothing_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        Workload(**changes)  # type: ignore[arg-type]


def test_a_fanout_is_published_to_with_as_many_keys_as_asked_for(broker: SmallBroker, address: Address) -> None:
    load = Workload(messages=12, exchange=ExchangeType.FANOUT, routing_keys=3, queues=2, consumers=1)
    result = Run(load, address).run()
    assert (result.copies_per_message, result.window.received, result.missing) == (1, 12, 0)
    left = [message.routing_key for message in broker.left["perf-1"]]
    assert left == [f"key-{number:08}" for number in range(3)] * 4


def test_queues_are_declared_with_their_arguments(broker: SmallBroker, address: Address) -> None:
    arguments: dict[str, object] = {
        "x-max-length": 1_000_000,
        "x-expires": 1 << 40,
        "x-key-shared": True,
        "x-overflow": "drop-head",
    }
    Run(Workload(messages=10, queues=2, queue_arguments=arguments), address).run()
    assert [decode_table(encoded) for encoded in broker.arguments.values()] == [arguments, arguments]


@pytest.mark.parametrize("persistent", [False, True])
def test_messages_have_the_properties_that_were_asked_for(
    persistent: bool, broker: SmallBroker, address: Address
) -> None:
    load = Workload(messages=30, expiration_ms=60_000, priority_levels=3, delay_ms=250, persistent=persistent)
    assert Run(load, address).run().missing == 0
    found = [decode_properties(content, 7, 7 + int.from_bytes(content[3:7], "big")) for content in broker.published]
    assert len(found) == 30
    assert [each.priority for each in found] == [0, 1, 2] * 10
    assert {each.expiration for each in found} == {"60000"}
    assert {each.delivery_mode for each in found} == {2 if persistent else None}
    assert all(decode_table(each.headers or b"") == {"x-delay": 250} for each in found)


def test_plain_messages_have_none_of_them(broker: SmallBroker, address: Address) -> None:
    Run(Workload(messages=1), address).run()
    assert broker.published[0][19:21] == b"\0\0"
    assert broker.arguments == {"perf-0": bytes(4)}


def test_a_delay_is_not_taken_for_a_loss() -> None:
    assert Workload(delay_ms=60_000).patience_ns == Workload().patience_ns + 60_000_000_000


@pytest.mark.parametrize(
    ("texts", "arguments"),
    [
        ([], {}),
        (["x-max-length=1000"], {"x-max-length": 1000}),
        (["a=true", "b=false", "c=True"], {"a": True, "b": False, "c": "True"}),
        (["x-delivery-limit=-1", "x=-", "y=1.5", "z="], {"x-delivery-limit": -1, "x": "-", "y": "1.5", "z": ""}),
        (["a=b=c", "a=2"], {"a": 2}),
    ],
    ids=str,
)
def test_queue_arguments_are_read(texts: list[str], arguments: dict[str, object]) -> None:
    found = parse_queue_arguments(texts)
    assert found == arguments
    assert [type(value) for value in found.values()] == [type(value) for value in arguments.values()]


@pytest.mark.parametrize("text", ["", "x-max-length", "=1", f"x={1 << 63}"])
def test_a_queue_argument_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--queue-argument"):
        parse_queue_arguments([text])


def test_the_command_line_asks_for_rules(broker: SmallBroker, address: Address) -> None:
    arguments = ["--uri", f"amqp://{address}", "-n", "20", "--json", "--queue-argument", "x-max-priority=4"]
    arguments += ["--queue-argument", "x-message-ttl=60000", "--expiration", "5000", "--priority-levels", "4"]
    done = CliRunner().invoke(command_line(), [*arguments, "--delay", "1"])
    assert done.exit_code == 0, done.output
    load = json.loads(done.output)["workload"]
    assert load["queue_arguments"] == {"x-max-priority": 4, "x-message-ttl": 60000}
    assert (load["expiration_ms"], load["priority_levels"], load["delay_ms"]) == (5000, 4, 1)
    assert decode_table(broker.arguments["perf-0"]) == load["queue_arguments"]


@pytest.mark.parametrize("arguments", [["--queue-argument", "a=1"], ["--expiration", "1"], ["--delay", "1"]], ids=str)
def test_rules_belong_to_flow(arguments: list[str], address: Address) -> None:
    done = CliRunner().invoke(command_line(), ["fill", "--uri", f"amqp://{address}", "-n", "1", *arguments])
    assert done.exit_code == 1
    assert done.output.endswith("belong to flow\n")


def test_the_default_backlog_is_bounded_in_messages_and_bytes() -> None:
    assert [default_backlog(size) for size in (0, 16, 65536, 1 << 30)] == [100_000, 100_000, 2048, 100]


def test_a_broker_that_announces_another_one_is_named_by_its_own_name() -> None:
    announced = {"product": "RabbitMQ", "version": "3.13.7"}
    assert product_of(announced) == "RabbitMQ 3.13.7"
    assert product_of({**announced, "warren_version": "0.1.0"}) == "Warren 0.1.0"
