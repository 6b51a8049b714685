"""`warren perf` over AMQP 1.0, MQTT and STOMP, against the real process: every message is accounted for."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import typer
from broker_process import WarrenProcess
from typer.testing import CliRunner

from warren import __version__
from warren.perf.amqp10_flow import Amqp10
from warren.perf.client import Address, BrokerError
from warren.perf.command import perf
from warren.perf.mqtt_flow import Mqtt
from warren.perf.protocol_run import Dialect, ProtocolRun
from warren.perf.stomp_flow import Stomp
from warren.perf.workload import Result, Workload

from .management.client import Api


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    flags = {"mqtt": "127.0.0.1:0", "stomp": "127.0.0.1:0"}
    with WarrenProcess(tmp_path_factory.mktemp("broker"), flags=flags) as process:
        yield process


def run(broker: WarrenProcess, protocol: str, work: Workload) -> Result:
    dialects: dict[str, tuple[Dialect, int]] = {
        "amqp10": (Amqp10(), broker.amqp_port),
        "mqtt": (Mqtt(), broker.mqtt_port),
        "stomp": (Stomp(), broker.stomp_port),
    }
    dialect, port = dialects[protocol]
    return ProtocolRun(dialect, work, Address(port=port)).run()


@pytest.mark.parametrize("protocol", ["amqp10", "mqtt", "stomp"])
@pytest.mark.parametrize(
    "work",
    [
        Workload(messages=3000, backlog=500),
        Workload(messages=300, size_bytes=0),
        Workload(messages=2000, auto_ack=False, confirms=50, persistent=True),
        Workload(messages=1000, auto_ack=False, ack_batch=10, prefetch=20, confirms=1, durable=True, persistent=True),
        Workload(messages=600, publishers=3, queues=2, consumers=4, auto_ack=False, confirms=10),
        Workload(messages=30, size_bytes=100_000, auto_ack=False, confirms=5),
        Workload(messages=100, rate=5000, consumers=0),
    ],
    ids=lambda work: f"{work.size_bytes}-{work.publishers}-{work.confirms}-{work.ack_batch}-{work.rate:g}",
)
def test_every_message_is_received_by_every_consumer_of_its_topic(
    broker: WarrenProcess, protocol: str, work: Workload
) -> None:
    result = run(broker, protocol, work)
    assert (result.missing, result.nacked) == (0, 0)
    published = result.window.published
    assert published >= work.messages
    if work.publishers == 1:
        assert result.window.received == published * work.consumers
    elif protocol == "amqp10":  # consumers of a queue share its messages
        assert result.window.received == published
    assert result.window.confirmed == (published if work.confirms else 0)
    assert result.delivery.samples >= (result.window.received if work.stamped else 0)
    api = Api(broker.http_port)
    api.eventually("/queues", lambda rows: rows == [])
    api.close()


def test_the_command_line_chooses_the_protocol_and_refuses_what_it_has_not(broker: WarrenProcess) -> None:
    app = typer.Typer()
    app.command()(perf)
    uri = f"mqtt://guest:guest@127.0.0.1:{broker.mqtt_port}"
    done = CliRunner().invoke(app, ["--protocol", "mqtt", "--uri", uri, "-n", "500", "--confirms", "10", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["missing"], told["broker"]) == (0, "MQTT broker 3.1.1")
    for wrong, word in (
        (["--exchange", "topic"], "--exchange"),
        (["--delay", "5", "--priority-levels", "3"], "--priority-levels, --delay"),
        (["rpc"], "belongs to flow"),
        (["--uri", "amqp://127.0.0.1"], "mqtt://"),
        (["--confirms", "70000"], "65535 packet ids"),
        (["--uri", uri.replace("guest:guest", "guest:wrong")], "refused the login"),
    ):
        done = CliRunner().invoke(app, ["--protocol", "mqtt", "--uri", uri, "-n", "1", *wrong])
        assert done.exit_code == 1
        assert word in done.output


def test_a_load_of_amqp_1_0_is_told_as_one_of_0_9_1(broker: WarrenProcess) -> None:
    app = typer.Typer()
    app.command()(perf)
    uri = f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}"
    options = ["--protocol", "amqp10", "--uri", uri, "-n", "500", "--prefix", "a/b c", "--json"]
    done = CliRunner().invoke(app, [*options, "--confirms", "10", "--durable", "-q", "3", "-y", "3", "-x", "3"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["missing"], told["broker"]) == (0, f"Warren {__version__}")
    for wrong, word in (
        (["--size", "200000"], "a message has to fit into one"),
        (["--uri", uri.replace("guest:guest", "guest:wrong")], "refused the login"),
        (["--uri", uri + "/none"], "vhost none not found"),
    ):
        done = CliRunner().invoke(app, [*options, *wrong])
        assert done.exit_code == 1
        assert word in done.output


def test_what_a_broker_says_of_a_refused_login_is_shown(broker: WarrenProcess) -> None:
    with pytest.raises(BrokerError, match="Access refused for user"):
        Stomp().open(Address(port=broker.stomp_port, password="wrong"), "c")
