"""An administrator's settings of a vhost: the default type of its queues, and whether it may be deleted."""

from __future__ import annotations

from typing import Any

import pytest
from engine_harness import Client, Harness, Refusal, queue_declare

from warren.amqp import methods as m
from warren.amqp.field_table import EMPTY_TABLE, Table, decode_table
from warren.vhosts.metadata import MetadataChange, QueuePut, VhostDelete, VhostPut

from .rules import rule

QUORUM: Table = {"x-queue-type": "quorum"}
STREAM: Table = {"x-queue-type": "stream"}
CLASSIC: Table = {"x-queue-type": "classic"}


@pytest.fixture
def client(harness: Harness) -> Client:
    """A client in a vhost whose queues are quorum queues unless they say otherwise."""
    harness.broker.administer(VhostPut("/", default_queue_type="quorum"))
    return harness.channel()


def shown(harness: Harness, name: str) -> tuple[str, Table]:
    """Return the type of the queue, and its arguments."""
    queue = harness.queue(name)
    assert queue.parsed is not None
    return queue.parsed.queue_type, decode_table(queue.arguments)


# --- the default queue type -------------------------------------------------------------------------------------------


@rule("rabbitmq.vhost.default-queue-type", "A queue that names no type gets that of the vhost, as if it had named it.")
@pytest.mark.parametrize("arguments", [{}, {"x-max-length": 5}, {"x-b": "\u00e9"}])
def test_queues_get_the_default_type(client: Client, harness: Harness, arguments: Table) -> None:
    client.declare("q", durable=True, arguments=arguments)
    assert shown(harness, "q") == ("quorum", arguments | QUORUM)
    client.declare("q", durable=True, arguments=arguments)
    client.declare("q", durable=True, arguments=QUORUM | arguments)
    client.declare("q", passive=True)


@rule("rabbitmq.vhost.default-queue-type", "The default may be classic, too, and then is named.")
def test_the_default_may_be_classic(client: Client, harness: Harness) -> None:
    harness.broker.administer(VhostPut("/", default_queue_type="classic"))
    client.declare("q")
    assert shown(harness, "q") == ("classic", CLASSIC)
    client.declare("q")


@rule("rabbitmq.vhost.default-queue-type", "Or stream.")
def test_the_default_may_be_stream(client: Client, harness: Harness) -> None:
    harness.broker.administer(VhostPut("/", default_queue_type="stream"))
    for arguments in ({}, STREAM):
        client.declare("q", durable=True, arguments=arguments)
        assert shown(harness, "q") == ("stream", STREAM)
    assert client.refused(1, queue_declare("q", durable=True, arguments=QUORUM)).code == 406
    assert "rabbit_stream_queue" in client.refused(1, queue_declare("", durable=True)).text


@rule("rabbitmq.vhost.default-queue-type", "What cannot be a quorum queue or a stream is a classic one.")
@pytest.mark.parametrize("default", ["quorum", "stream"])
@pytest.mark.parametrize(
    "properties", [{}, {"durable": True, "exclusive": True}, {"durable": True, "auto_delete": True}]
)
def test_what_cannot_be_of_the_default_type_is_classic(
    harness: Harness, default: str, properties: dict[str, Any]
) -> None:
    harness.broker.administer(VhostPut("/", default_queue_type=default))
    client = harness.channel()
    for _ in range(2):
        client.declare("q", **properties)
    assert shown(harness, "q") == ("classic", {})


@rule("rabbitmq.vhost.default-queue-type", "Whoever names a type gets that one.")
def test_a_named_type_counts(client: Client, harness: Harness) -> None:
    client.declare("q", durable=True, arguments=CLASSIC)
    assert shown(harness, "q") == ("classic", CLASSIC)


INEQUIVALENT = "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': received"


@rule("rabbitmq.vhost.default-queue-type", "A redeclaration that names no type means the default.")
def test_a_redeclaration_without_type_means_the_default(client: Client) -> None:
    client.declare("q", durable=True, arguments=CLASSIC)
    text = f"{INEQUIVALENT} 'quorum' but current is 'classic'"
    refusal = client.refused(1, queue_declare("q", durable=True))
    assert refusal == Refusal("channel", 406, text, m.QueueDeclare)


@rule("rabbitmq.vhost.default-queue-type", "Arguments and names are checked for the type that a queue gets.")
def test_arguments_are_checked_for_the_default_type(client: Client) -> None:
    refusal = client.refused(1, queue_declare("q", durable=True, arguments={"x-max-priority": 3}))
    text = "invalid arg 'x-max-priority' for queue 'q' in vhost '/' of queue type rabbit_quorum_queue"
    assert refusal == Refusal("channel", 406, f"PRECONDITION_FAILED - {text}", m.QueueDeclare)
    refusal = client.refused(1, queue_declare("", durable=True))
    text = "Cannot declare a server-named queue for type rabbit_quorum_queue"
    assert refusal == Refusal("channel", 406, f"PRECONDITION_FAILED - {text}", m.QueueDeclare)


@rule(
    "rabbitmq.vhost.default-queue-type",
    "A queue that was declared without a type before there was a default can be declared so again.",
    deviation="RabbitMQ 3.10 does not let a vhost get a default later.",
)
def test_queues_from_before_the_default_stay_equivalent(harness: Harness) -> None:
    client = harness.channel()
    client.declare("q", durable=True)
    harness.broker.administer(VhostPut("/", default_queue_type="quorum"))
    client.declare("q", durable=True)
    client.declare("q", durable=True, arguments=CLASSIC)
    assert shown(harness, "q") == ("classic", {})
    text = f"{INEQUIVALENT} the value 'quorum' of type 'longstr' but current is none"
    refusal = client.refused(1, queue_declare("q", durable=True, arguments=QUORUM))
    assert refusal == Refusal("channel", 406, text, m.QueueDeclare)


@rule("rabbitmq.vhost.default-queue-type", "What the catalogue restores is what it was.")
def test_restored_queues_keep_their_type(harness: Harness) -> None:
    harness.broker.restore(VhostPut("/", default_queue_type="quorum"))
    harness.broker.restore(QueuePut("/", "q", False, EMPTY_TABLE, 1))
    assert shown(harness, "q") == ("classic", {})


@rule("rabbitmq.vhost.default-queue-type", "Another type than these is refused; stored ones mean none.")
@pytest.mark.parametrize("name", ["streams", "Quorum", "\u00e9"])
def test_unknown_default_types_are_refused(harness: Harness, name: str) -> None:
    with pytest.raises(ValueError, match=f"default queue type '{name}' is not classic, quorum or stream"):
        harness.broker.administer(VhostPut("v", default_queue_type=name))
    assert "v" not in harness.broker.vhosts
    harness.broker.restore(VhostPut("/", default_queue_type=name))
    harness.channel().declare("q", durable=True)
    assert shown(harness, "q") == ("classic", {})


# --- protection from deletion -----------------------------------------------------------------------------------------


@rule("rabbitmq.vhost.protected", "A vhost that is protected from deletion is not deleted until it no longer is.")
def test_protected_vhosts_are_not_deleted(harness: Harness) -> None:
    harness.broker.administer(VhostPut("v", protected_from_deletion=True))
    harness.permit("guest", vhost="v")
    client = harness.client(vhost="v")
    client.open(1)
    tickets = harness.broker.journal.last_ticket
    text = "Refusing to delete virtual host 'v' because it is protected from deletion"
    with pytest.raises(ValueError, match=text):
        harness.broker.administer(VhostDelete("v"))
    assert harness.broker.journal.last_ticket == tickets
    client.declare("q")
    harness.broker.administer(VhostPut("v"))
    harness.broker.administer(VhostDelete("v"))
    assert "v" not in harness.broker.vhosts


@rule("rabbitmq.vhost.protected", "It stays protected over a restart.")
def test_protection_is_stored(harness: Harness) -> None:
    change: MetadataChange = VhostPut("v", protected_from_deletion=True)
    harness.broker.administer(change)
    harness.settle()
    assert harness.take_changes() == [change]
    other = Harness()
    other.broker.restore(change)
    with pytest.raises(ValueError, match="protected"):
        other.broker.administer(VhostDelete("v"))
