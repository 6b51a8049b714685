"""Events of a vhost that takes many turns to go, and of queues that change their policy in many turns."""

from __future__ import annotations

from engine_harness import USER, Harness, queue_declare

from warren.amqp.field_table import decode_table
from warren.vhosts.metadata import PolicyPut, VhostDelete, VhostPut
from warren.vhosts.virtual_host import EVENT_EXCHANGE

TURN_STEPS = 100


def watched(harness: Harness) -> None:
    client = harness.channel()
    client.declare("events")
    client.bind("events", EVENT_EXCHANGE, "#")
    harness.broker.work.turn_steps = TURN_STEPS
    harness.settle()


def told(harness: Harness) -> list[tuple[str, str]]:
    """Return key and name, or user, of each event."""
    harness.settle()
    client = harness.channel()
    found: list[tuple[str, str]] = []
    while (got := client.get("events", no_ack=True)) is not None:
        assert got.content is not None
        encoded = got.content.properties.headers
        assert encoded is not None
        headers = decode_table(encoded)
        found.append((got.method.routing_key, str(headers.get("name", headers.get("user", "")))))
    return [(key, name) for key, name in found if not key.startswith(("connection", "channel", "user"))]


def test_a_turn_adds_a_bounded_number_of_events_of_queues_under_a_policy() -> None:
    harness = Harness()
    client = harness.channel()
    client.send(1, *[queue_declare(f"q{at}") for at in range(300)])
    watched(harness)
    told(harness)
    broker = harness.broker
    broker.administer(PolicyPut("/", "p", "^q", "queues", 0, '{"max-length":10}', operator=True))
    waited = [len(broker.own_messages)]
    while broker.has_work():
        broker.work.end_turn()
        waited.append(len(broker.own_messages))
        broker.own_messages.publish()
        broker.end_turn()
    assert max(waited) < 20
    events = told(harness)
    updated = [name for key, name in events if key == "queue.policy.updated"]
    assert updated == [f"q{at}" for at in range(300)]
    assert [event for event in events if event[0] != "queue.policy.updated"] == [
        ("parameter.set", "p"),
        ("policy.set", "p"),
    ]
    assert events[0] == ("parameter.set", "p")


def test_a_vhost_that_takes_many_turns_to_go_is_told_after_everything_in_it() -> None:
    harness = Harness()
    watched(harness)
    harness.broker.administer(VhostPut("v"))
    harness.permit(USER, vhost="v")
    clients = [harness.client(vhost="v") for _ in range(30)]
    clients[0].open(1)
    clients[0].declare("own", exclusive=True)
    for at in range(30):
        clients[0].declare(f"q{at}", durable=True)
    exchanges = list(harness.broker.vhosts["v"].exchanges)
    harness.broker.administer(PolicyPut("v", "p", "^z", "queues", 0, '{"max-length":10}'))
    told(harness)
    before = harness.broker.churn.queues_deleted
    harness.broker.administer(VhostDelete("v"))
    events = told(harness)
    events.remove(("queue.deleted", "own"))  # when its connection does
    assert events == [
        ("permission.deleted", USER),
        *(event for event in events if event[0] == "queue.deleted"),
        *(("exchange.deleted", name) for name in exchanges),
        ("vhost.deleted", "v"),
        ("policy.cleared", "p"),
    ]
    deleted = sorted(name for key, name in events if key == "queue.deleted")
    assert deleted == sorted(f"q{at}" for at in range(30))
    assert harness.broker.churn.queues_deleted == before + 31
