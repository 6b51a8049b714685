"""amqp-publish, amqp-consume, amqp-get, amqp-declare-queue and amqp-delete-queue from Debian's amqp-tools."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel

from ..broker import DEADLINE_S, Broker, in_ci, wait_until
from ..conftest import Names
from ..pika_client.dialogue import channel_closed_with, consumers, drain, get, ready, wait_for_ready

Tool = Callable[..., subprocess.CompletedProcess[bytes]]


def _require(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        text = f"`{name}` is not on this machine; on Debian: apt-get install amqp-tools"
        if in_ci():
            pytest.fail(text)
        pytest.skip(text)
    return path


@pytest.fixture
def tool(broker: Broker) -> Tool:
    """Run one of the tools against the broker, feeding it standard input."""

    def run(name: str, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command = [_require(name), f"--url={broker.url}", *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, timeout=DEADLINE_S)

    return run


@pytest.fixture
def tool_ok(tool: Tool) -> Tool:
    """The same, for runs that must succeed."""

    def run(name: str, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        done = tool(name, *arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr.decode()
        return done

    return run


# declare and delete


@pytest.mark.parametrize("durable", [False, True])
def test_declare_queue_prints_the_name_it_declared(
    tool_ok: Tool, channel: BlockingChannel, names: Names, durable: bool
) -> None:
    queue = names.queue()
    arguments = ["-q", queue] + (["-d"] if durable else [])
    assert tool_ok("amqp-declare-queue", *arguments).stdout.decode().strip() == queue
    assert channel.queue_declare(queue, durable=durable).method.queue == queue


def test_declare_queue_without_a_name_prints_the_servers(tool_ok: Tool, channel: BlockingChannel) -> None:
    queue = tool_ok("amqp-declare-queue", "-q", "").stdout.decode().strip()
    assert queue.startswith("amq.gen-")
    assert ready(channel, queue) == 0
    channel.queue_delete(queue)


def test_delete_queue_prints_how_many_messages_it_dropped(
    tool_ok: Tool, channel: BlockingChannel, names: Names, broker: Broker
) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    for _ in range(3):
        channel.basic_publish("", queue, b"x")
    wait_for_ready(channel, queue, 3)
    assert tool_ok("amqp-delete-queue", "-q", queue).stdout.strip() == b"3"
    with channel_closed_with(404, f"NOT_FOUND - no {broker.queue(queue)}"):
        channel.queue_declare(queue, passive=True)


def test_delete_queue_spares_what_its_conditions_protect(
    tool: Tool, channel: BlockingChannel, names: Names, broker: Broker
) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    channel.basic_publish("", queue, b"x")
    wait_for_ready(channel, queue, 1)
    refused = tool("amqp-delete-queue", "-e", "-q", queue)
    assert refused.returncode != 0
    assert f"PRECONDITION_FAILED - {broker.queue(queue)} not empty" in refused.stderr.decode()
    channel.basic_consume(queue, lambda *_: None)
    refused = tool("amqp-delete-queue", "--if-unused", "-q", queue)
    assert refused.returncode != 0
    assert f"PRECONDITION_FAILED - {broker.queue(queue)} in use" in refused.stderr.decode()


# publish


def test_publish_sends_a_body_to_a_queue(tool_ok: Tool, channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    tool_ok("amqp-publish", "-r", queue, "-b", "from the command line")
    wait_for_ready(channel, queue, 1)
    assert drain(channel, queue) == [b"from the command line"]


def test_publish_sets_the_properties_it_is_asked_for(tool_ok: Tool, channel: BlockingChannel, names: Names) -> None:
    exchange, queue = names.exchange(), names.queue()
    channel.exchange_declare(exchange, "headers")
    channel.queue_declare(queue)
    channel.queue_bind(queue, exchange, "", {"x-match": "all", "colour": "green"})
    arguments = ["-e", exchange, "-r", "key", "-p", "-C", "text/plain", "-E", "utf-8", "-t", "reply"]
    arguments += ["-H", "colour: green", "-H", "size: large", "-b", "x"]
    tool_ok("amqp-publish", *arguments)
    wait_for_ready(channel, queue, 1)
    method, properties, _ = get(channel, queue, auto_ack=True)
    assert method.routing_key == "key"
    assert properties == BasicProperties(
        content_type="text/plain",
        content_encoding="utf-8",
        headers={"colour": "green", "size": "large"},
        delivery_mode=2,
        reply_to="reply",
    )


@pytest.mark.parametrize("size", [0, 1, 200_000])
def test_publish_reads_the_body_from_standard_input(
    tool_ok: Tool, channel: BlockingChannel, names: Names, size: int
) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    tool_ok("amqp-publish", "-r", queue, stdin=body)
    wait_for_ready(channel, queue, 1)
    assert drain(channel, queue) == [body]


def test_publish_sends_line_by_line(tool_ok: Tool, channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    lines = [b"line %d" % number for number in range(100)]
    tool_ok("amqp-publish", "-l", "-r", queue, stdin=b"\n".join(lines) + b"\n")
    wait_for_ready(channel, queue, 100)
    assert [body.rstrip(b"\n") for body in drain(channel, queue)] == lines


def test_publish_with_a_heartbeat_works(tool_ok: Tool, channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    tool_ok("amqp-publish", "--heartbeat=1", "-r", queue, "-b", "x")
    wait_for_ready(channel, queue, 1)


def test_a_wrong_password_is_told(broker: Broker) -> None:
    arguments = ["-s", broker.host, f"--port={broker.port}", f"--username={broker.username}", "--password=wrong"]
    command = [_require("amqp-publish"), *arguments, "-r", "q", "-b", "x"]
    done = subprocess.run(command, capture_output=True, timeout=DEADLINE_S)
    assert done.returncode != 0
    assert "ACCESS_REFUSED" in done.stderr.decode()


# get


def test_get_prints_one_message_and_fails_on_an_empty_queue(tool: Tool, channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    for body in (b"first", b"second"):
        channel.basic_publish("", queue, body)
    wait_for_ready(channel, queue, 2)
    for body in (b"first", b"second"):
        done = tool("amqp-get", "-q", queue)
        assert (done.returncode, done.stdout) == (0, body)
    done = tool("amqp-get", "-q", queue)
    assert (done.returncode, done.stdout) == (2, b"")


def test_get_from_a_missing_queue_tells_so(tool: Tool, names: Names, broker: Broker) -> None:
    queue = names.unused()
    done = tool("amqp-get", "-q", queue)
    assert done.returncode == 1
    assert f"NOT_FOUND - no {broker.queue(queue)}" in done.stderr.decode()


# consume


@pytest.mark.parametrize("options", [[], ["-A"], ["-p", "2"]], ids=["acknowledging", "no-ack", "prefetch"])
def test_consume_runs_a_command_for_each_message(
    tool_ok: Tool, channel: BlockingChannel, names: Names, options: list[str]
) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    for number in range(5):
        channel.basic_publish("", queue, b"%d;" % number)
    wait_for_ready(channel, queue, 5)
    done = tool_ok("amqp-consume", *options, "-q", queue, "-c", "5", "cat")
    assert done.stdout == b"0;1;2;3;4;"
    assert drain(channel, queue) == []


def test_consume_leaves_what_it_did_not_count(tool_ok: Tool, channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    for number in range(5):
        channel.basic_publish("", queue, b"%d;" % number)
    wait_for_ready(channel, queue, 5)
    assert tool_ok("amqp-consume", "-p", "1", "-q", queue, "-c", "2", "cat").stdout == b"0;1;"
    wait_for_ready(channel, queue, 3)
    assert drain(channel, queue) == [b"2;", b"3;", b"4;"]


def test_consume_declares_and_binds_its_own_queue(broker: Broker, channel: BlockingChannel, names: Names) -> None:
    exchange, probe = names.exchange(), names.queue("probe")
    channel.exchange_declare(exchange, "topic")
    command = [_require("amqp-consume"), f"--url={broker.url}", "-e", exchange, "-r", "a.*", "-x", "-c", "2", "cat"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None and process.stdout is not None
        # it names the queue the server named for it, and then binds and consumes
        line = process.stderr.readline().decode()
        queue = line.split(":", 1)[1].strip()
        assert queue.startswith("amq.gen-")
        unrouted: list[bytes] = []
        channel.add_on_return_callback(lambda _, method, properties, body: unrouted.append(body))
        channel.queue_declare(probe)

        def bound() -> bool:
            unrouted.clear()
            channel.basic_publish(exchange, "a.probe", b"first;", mandatory=True)
            ready(channel, probe)
            channel.connection.process_data_events(time_limit=0)
            return not unrouted

        wait_until(bound, "amqp-consume to bind its queue")
        channel.basic_publish(exchange, "other.key", b"not for it;")
        channel.basic_publish(exchange, "a.second", b"second;")
        assert process.stdout.read() == b"first;second;"
        assert process.wait(timeout=DEADLINE_S) == 0


def test_consume_ends_with_its_count_and_its_consumer_is_gone(
    tool_ok: Tool, channel: BlockingChannel, names: Names
) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    channel.basic_publish("", queue, b"x")
    wait_for_ready(channel, queue, 1)
    tool_ok("amqp-consume", "-q", queue, "-c", "1", "cat")
    wait_until(lambda: consumers(channel, queue) == 0, "the consumer to be gone")
