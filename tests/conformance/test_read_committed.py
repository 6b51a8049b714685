"""Deliveries that wait for the commit of their message: quorum queues of several nodes, and x-read-committed.

`Harness.hold_commits` stands for nodes in sync that have not acknowledged yet.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from durable_harness import DurableHarness
from engine_harness import Client, Harness, body_of, publish_frames

from warren.amqp import methods as m
from warren.amqp.declarations import QueueDeclaration
from warren.amqp.field_table import Table, encode_table
from warren.queues.browse import Cursor, Seen, look
from warren.queues.claim_names import claims_name
from warren.queues.claims import ClaimQueue, claims_arguments
from warren.queues.dispatch import DRAIN_BUDGET
from warren.streams.stream import Stream
from warren.vhosts.metadata import PolicyDelete, PolicyPut

from .rules import rule

RULE = "warren.queue.read-committed"
DEAD: Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


def declare(client: Client, **arguments: Any) -> None:
    """Declare q, which waits for commits."""
    more: Table = {"x-" + name.replace("_", "-"): value for name, value in arguments.items()}
    client.declare("q", durable=True, arguments={"x-read-committed": True} | more)


def publish(client: Client, *bodies: str, queue: str = "q", **properties: Any) -> None:
    """Publish persistent messages in one piece."""
    properties = {"delivery_mode": 2} | properties
    client.feed(b"".join(publish_frames("", queue, body.encode(), properties=properties) for body in bodies))


def hold(harness: Harness, *, held: bool = True) -> None:
    harness.hold_commits = held
    harness.settle()


def came(client: Client) -> list[str]:
    return [body.decode() for body in client.bodies()]


def get(client: Client, queue: str = "q") -> str | None:
    got = client.get(queue, no_ack=True)
    return None if got is None else body_of(got).decode()


def put_policy(harness: Harness, **definition: object) -> None:
    settings = json.dumps({key.replace("_", "-"): value for key, value in definition.items()})
    harness.broker.administer(PolicyPut("/", "p", "^q$", "queues", 0, settings))
    harness.settle()


# --- which queues -----------------------------------------------------------------------------------------------------


@rule(RULE, "A consumer gets a message once it is committed, not before; the confirm comes then, too.")
def test_a_delivery_waits_for_the_commit(harness: Harness, client: Client, other: Client) -> None:
    declare(client)
    client.consume("q")
    assert other.call(1, m.ConfirmSelect(False)) == m.ConfirmSelectOk()
    hold(harness)
    publish(other, "a", "b")
    client.nothing()
    other.nothing()
    hold(harness, held=False)
    assert came(client) == ["a", "b"]
    assert other.expect(m.BasicAck) == m.BasicAck(2, True)


@rule(RULE, "Messages of a later commit wait for that one.")
def test_each_message_waits_for_its_own_commit(harness: Harness, client: Client, other: Client) -> None:
    declare(client)
    client.consume("q")
    hold(harness)
    publish(other, "a")
    harness.broker.end_turn()  # the batch of a is closed; b is in the next one
    publish(other, "b")
    (job,) = harness.broker.log.commit_jobs
    harness.broker.log.commit_jobs.clear()
    job.committed_lsn = job.end_lsn()
    harness.broker.stored(job)
    harness.settle()
    assert came(client) == ["a"]
    hold(harness, held=False)
    assert came(client) == ["b"]
    harness.check()


@rule(RULE, "A quorum queue waits for commits where other nodes copy the log.")
@pytest.mark.parametrize("is_replicated", [True, False])
def test_quorum_queues(harness: Harness, client: Client, other: Client, is_replicated: bool) -> None:
    harness.broker.log.is_replicated = is_replicated
    client.declare("q", durable=True, arguments={"x-queue-type": "quorum"})
    client.consume("q")
    hold(harness)
    publish(other, "a", delivery_mode=1)
    assert came(client) == ([] if is_replicated else ["a"])
    hold(harness, held=False)
    assert came(client) == (["a"] if is_replicated else [])


@rule(RULE, "x-read-committed: false has a quorum queue deliver at once.")
def test_a_quorum_queue_may_deliver_at_once(harness: Harness, client: Client, other: Client) -> None:
    harness.broker.log.is_replicated = True
    client.declare("q", durable=True, arguments={"x-queue-type": "quorum", "x-read-committed": False})
    client.consume("q")
    hold(harness)
    publish(other, "a")
    assert came(client) == ["a"]


@rule(RULE, "Other queues deliver at once, whether others copy the log or not.")
def test_classic_queues_deliver_at_once(harness: Harness, client: Client, other: Client) -> None:
    harness.broker.log.is_replicated = True
    client.declare("q", durable=True)
    client.consume("q")
    hold(harness)
    publish(other, "a")
    assert came(client) == ["a"]


def circle(client: Client) -> None:
    """Make q pass what is too much to b, and b pass what is too much back."""
    declare(client, max_length=1, dead_letter_exchange="", dead_letter_routing_key="b")
    back: Table = {"x-max-length": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    client.declare("b", durable=True, arguments=back)


@pytest.mark.parametrize("delivery_mode", [1, 2])
@rule(RULE, "Messages that come back while others become ready stand after these.")
def test_letters_in_a_circle(harness: Harness, client: Client, other: Client, delivery_mode: int) -> None:
    circle(client)
    publish(client, "first", queue="b", delivery_mode=delivery_mode)
    hold(harness)
    publish(client, "1", "2", "3", "4")
    hold(harness, held=False)
    harness.queue("q").check_invariants()
    assert harness.queue("q").message_count == harness.queue("b").message_count == 1
    assert get(other) == "first"
    assert get(other, "b") == "4"


@rule(RULE, "A queue that no longer waits has its messages in their order, whatever comes back meanwhile.")
def test_a_policy_that_goes_while_letters_come_back(harness: Harness, client: Client, other: Client) -> None:
    client.declare("q", durable=True)
    back: Table = {"x-max-length": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    client.declare("b", durable=True, arguments=back)
    limits = {"max_length": 1, "dead_letter_exchange": "", "dead_letter_routing_key": "b"}
    put_policy(harness, read_committed=True, **limits)
    publish(client, "first", queue="b")
    hold(harness)
    publish(client, "1", "2", "3", "4")
    put_policy(harness, **limits)
    harness.queue("q").check_invariants()
    hold(harness, held=False)
    assert harness.queue("q").message_count == harness.queue("b").message_count == 1
    assert harness.queue("q").ready.uncommitted_count == 0
    assert get(other) is not None and get(other, "b") is not None


@rule(RULE, "A policy has a queue wait for commits; when it goes all messages are ready at once.")
def test_policies(harness: Harness, client: Client, other: Client) -> None:
    client.declare("q", durable=True)
    put_policy(harness, read_committed=True)
    client.consume("q")
    hold(harness)
    publish(other, "a", "b")
    client.nothing()
    harness.broker.administer(PolicyDelete("/", "p"))
    harness.settle()
    assert came(client) == ["a", "b"]
    publish(other, "c")
    assert came(client) == ["c"]
    hold(harness, held=False)
    client.nothing()
    harness.check()


@rule(RULE, "A queue that is not durable has nothing to wait for.")
def test_a_transient_queue_does_not_wait(harness: Harness, client: Client, other: Client) -> None:
    client.declare("q", arguments={"x-read-committed": True})
    client.consume("q")
    hold(harness)
    publish(other, "a")
    assert came(client) == ["a"]


@rule(RULE, "A transient message waits only for those before it.")
def test_transient_messages_keep_their_order(harness: Harness, client: Client, other: Client) -> None:
    declare(client)
    client.consume("q")
    hold(harness)
    publish(other, "first", delivery_mode=1)
    assert came(client) == ["first"]
    publish(other, "stored")
    publish(other, "second", delivery_mode=1)
    client.nothing()
    hold(harness, held=False)
    assert came(client) == ["stored", "second"]


# --- who sees them ----------------------------------------------------------------------------------------------------


@rule(RULE, "basic.get waits for the commit of the next message, and then returns it.")
def test_a_get_waits(harness: Harness, client: Client, other: Client) -> None:
    declare(client)
    hold(harness)
    publish(other, "a")
    client.send(1, m.BasicGet(0, "q", True))
    client.nothing()
    hold(harness, held=False)
    (got,) = client.take()
    assert body_of(got) == b"a"
    assert get(client) is None


@rule(RULE, "A get that waits is told when the messages are purged.")
def test_a_get_that_waits_learns_of_a_purge(harness: Harness, client: Client, other: Client) -> None:
    declare(client)
    hold(harness)
    publish(other, "a")
    client.send(1, m.BasicGet(0, "q", True))
    client.nothing()
    harness.queue("q").purge()
    harness.settle()
    client.expect(m.BasicGetEmpty)


@rule(RULE, "Of a transaction nothing is delivered before all of it is committed.")
def test_transactions(harness: Harness, client: Client, other: Client) -> None:
    declare(client)
    client.declare("plain", durable=True)
    client.consume("q")
    assert other.call(1, m.TxSelect()) == m.TxSelectOk()
    hold(harness)
    publish(other, "a")
    publish(other, "b", queue="plain")
    publish(other, "c")
    other.send(1, m.TxCommit())
    client.nothing()
    other.nothing()
    hold(harness, held=False)
    assert came(client) == ["a", "c"]
    other.expect(m.TxCommitOk)


@rule(RULE, "A dead letter waits for its commit, too.")
def test_dead_letters(harness: Harness, client: Client, other: Client) -> None:
    client.declare("from", durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
    declare(client)
    client.consume("q")
    publish(other, "a", queue="from")
    got = other.get("from")
    assert got is not None
    hold(harness)
    other.send(1, m.BasicReject(got.method.delivery_tag, False))
    client.nothing()
    hold(harness, held=False)
    assert came(client) == ["a"]


@rule(RULE, "A delayed message waits for the commit that ends its delay.")
def test_delayed_messages(harness: Harness, client: Client, other: Client) -> None:
    declare(client, retry_backoff=["1s"])
    client.consume("q")
    publish(other, "a")
    (first,) = client.deliveries()
    client.send(1, m.BasicNack(first.method.delivery_tag, multiple=False, requeue=True))
    hold(harness)
    harness.advance(2)
    client.nothing()
    hold(harness, held=False)
    assert came(client) == ["a"]
    harness.check()


@rule(RULE, "A drain claims only what is committed.")
def test_claims(harness: Harness, client: Client, other: Client) -> None:
    declare(client)
    claims = claim_queue(harness)
    hold(harness)
    publish(other, "a")
    queue = harness.plain_queue("q")
    assert claims.claim(queue, 10, 1 << 20, True, []).count == 0
    hold(harness, held=False)
    assert claims.claim(queue, 10, 1 << 20, True, []).count == 1
    harness.settle()
    harness.check()


def claim_queue(harness: Harness) -> ClaimQueue:
    name = claims_name("q", "c")
    harness.vhost.declare_queue(QueueDeclaration(name, durable=True, arguments=claims_arguments("q", "c")), None, "")
    harness.settle()
    queue = harness.queue(name)
    assert isinstance(queue, ClaimQueue)
    return queue


@rule(RULE, "A look at the queue shows only what is committed.")
def test_looks(harness: Harness, client: Client, other: Client) -> None:
    declare(client)
    publish(other, "a")
    hold(harness)
    publish(other, "b")
    found: list[Seen] = []
    look(harness.queue("q"), Cursor(), 10, found.extend)
    assert [seen.message.body() for seen in found] == [b"a"]


@rule(RULE, "After an unclean start with followers nothing is delivered before the first commit.")
@pytest.mark.parametrize("gets", [False, True])
def test_recovered_messages_wait_for_the_first_commit(gets: bool) -> None:
    before = DurableHarness()
    client = before.channel()
    client.declare("q", durable=True, arguments={"x-queue-type": "quorum"})
    publish(client, "a")
    before.write()
    harness = before.restart(clean=False, is_replicated=True)
    assert harness.queue("q").ready_count == 1
    client = harness.channel()
    if gets:
        client.send(1, m.BasicGet(0, "q", True))
    else:
        client.consume("q", no_ack=True)
    client.nothing()
    harness.store.commits_left = -1
    harness.settle()
    (got,) = client.take()
    assert body_of(got) == b"a"
    harness.check()


@rule(RULE, "After an unclean start with followers a stream shows nothing of its end before the first commit.")
def test_recovered_offsets_wait_for_the_first_commit() -> None:
    before = DurableHarness()
    client = before.channel()
    client.declare("q", durable=True, arguments={"x-queue-type": "stream"})
    publish(client, "a", "b")
    before.write()
    harness = before.restart(clean=False, is_replicated=True)
    stream = harness.queue("q")
    assert isinstance(stream, Stream)
    assert (stream.first_offset(), stream.synced_end(), stream.next_offset()) == (0, 0, 2)
    client = harness.channel()
    client.send(1, m.BasicQos(0, 10, False))
    client.expect(m.BasicQosOk)
    client.consume("q", arguments={"x-stream-offset": "first"})
    client.nothing()
    publish(client, "c")
    client.nothing()
    harness.advance(3)
    harness.store.commits_left = 1
    harness.settle()
    assert stream.synced_end() == 2
    harness.store.commits_left = -1
    harness.settle()
    assert came(client) == ["a", "b", "c"]
    assert stream.synced_end() == 3
    harness.check()


# --- counts, limits, ends ---------------------------------------------------------------------------------------------


@rule(RULE, "Messages count as ready while they wait, are purged with the others, and keep a queue from being empty.")
def test_counts(harness: Harness, client: Client, other: Client) -> None:
    declare(client)
    publish(other, "a")
    hold(harness)
    publish(other, "b", "cc")
    queue = harness.queue("q")
    assert (queue.ready_count, queue.message_count, queue.ready_bytes, queue.message_bytes) == (3, 3, 4, 4)
    refused = client.refused(1, m.QueueDelete(0, "q", if_unused=False, if_empty=True, no_wait=False))
    assert (refused.code, refused.text) == (406, "PRECONDITION_FAILED - queue 'q' in vhost '/' not empty")
    assert queue.purge() == 3
    harness.check()
    assert queue.ready_count == 0
    publish(other, "d")
    hold(harness, held=False)
    assert get(client) == "d"
    assert get(client) is None
    harness.broker.log.check_invariants()


@rule(RULE, "What was purged or deleted before its commit is not there after a crash.")
@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("in_flight", [False, True])
def test_purged_messages_are_gone(deleted: bool, in_flight: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    hold(harness)
    if in_flight:
        publish(client, "a", "b")
    else:
        client.connection.feed(publish_frames("", "q", b"a", properties={"delivery_mode": 2}))
    if deleted:
        client.feed(b"")
        harness.broker.delete_queue(harness.vhost, harness.queue("q"), "")
    else:
        harness.queue("q").purge()
    hold(harness, held=False)
    harness.write()
    harness = harness.restart(clean=False)
    client = harness.channel()
    if deleted:
        assert "q" not in harness.vhost.queues
        declare(client)
    assert get(client) is None
    harness.check()


@rule(RULE, "A full queue refuses publishes by counting messages that wait for their commit.")
def test_a_full_queue_refuses(harness: Harness, client: Client, other: Client) -> None:
    declare(client, max_length=2, overflow="reject-publish")
    assert other.call(1, m.ConfirmSelect(False)) == m.ConfirmSelectOk()
    hold(harness)
    publish(other, "a", "b", "c")
    assert other.expect(m.BasicNack).delivery_tag == 3
    hold(harness, held=False)
    assert other.expect(m.BasicAck) == m.BasicAck(2, True)
    assert [get(client), get(client), get(client)] == ["a", "b", None]


@rule(RULE, "A limit that drops the head acts when messages are ready.")
def test_heads_are_dropped_when_others_are_ready(harness: Harness, client: Client, other: Client) -> None:
    declare(client, max_length=2)
    publish(other, "a", "b")
    hold(harness)
    publish(other, "c", "d", "e")
    assert harness.queue("q").ready.count == 2
    hold(harness, held=False)
    assert [get(client), get(client), get(client)] == ["d", "e", None]
    harness.check()


@rule(RULE, "A message with a time to live of 0 goes to a consumer that waits, else it expires.")
def test_no_time_to_live(harness: Harness, client: Client, other: Client) -> None:
    declare(client)
    client.consume("q")
    hold(harness)
    publish(other, "a", expiration="0")
    harness.advance(1)
    hold(harness, held=False)
    assert came(client) == ["a"]
    client.send(1, m.BasicAck(1, False))
    client.hang_up()
    hold(harness)
    publish(other, "b", expiration="0")
    hold(harness, held=False)
    assert harness.queue("q").ready_count == 0
    harness.check()


@rule(RULE, "Messages of a queue with a time to live expire in their order, without a note for each.")
def test_time_to_live(harness: Harness, client: Client, other: Client) -> None:
    declare(client, message_ttl=1000)
    hold(harness)
    for body in ("a", "b", "c"):
        publish(other, body)
        harness.advance(0.1)
    hold(harness, held=False)
    keeper = harness.plain_queue("q").keeper
    assert keeper is not None
    assert len(keeper.expiry) == 0
    harness.advance(0.75)
    assert harness.queue("q").ready_count == 2
    harness.advance(0.2)
    assert harness.queue("q").ready_count == 0


@rule(RULE, "A consumer without acks gets a message once, also over a crash.")
def test_no_ack() -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    client.consume("q", no_ack=True)
    hold(harness)
    publish(client, "a", "b")
    client.nothing()
    hold(harness, held=False)
    assert came(client) == ["a", "b"]
    harness.write()
    harness = harness.restart(clean=False)
    assert harness.queue("q").ready_count == 0


@rule(RULE, "Higher priorities go first among messages that are committed.")
def test_priorities(harness: Harness, client: Client, other: Client) -> None:
    declare(client, max_priority=9)
    publish(other, "low", priority=1)
    hold(harness)
    publish(other, "high", priority=9)
    publish(other, "lower", priority=0)
    client.consume("q")
    assert came(client) == ["low"]
    hold(harness, held=False)
    assert came(client) == ["high", "lower"]
    harness.check()


@rule(RULE, "The messages of a key stay in order, and go to one consumer at a time.")
def test_shared_keys(harness: Harness, client: Client, other: Client) -> None:
    declare(client, key_shared=True)
    client.bind("q", "amq.fanout")
    client.consume("q", "one")
    client.consume("q", "two")
    hold(harness)
    for body in ("a1", "b1", "a2", "b2"):
        other.publish("amq.fanout", body[0], body.encode(), delivery_mode=2)
    client.nothing()
    hold(harness, held=False)
    found = [(each.method.consumer_tag, body_of(each).decode()) for each in client.deliveries()]
    assert sorted(body for _, body in found) == ["a1", "a2", "b1", "b2"]
    for key in "ab":
        assert [body for _, body in found if body[0] == key] == [f"{key}1", f"{key}2"]
        assert len({tag for tag, body in found if body[0] == key}) == 1
    harness.check()


@rule(RULE, "More messages than a turn hands out keep their order.")
def test_many_messages(harness: Harness, client: Client, other: Client) -> None:
    declare(client)
    client.consume("q", no_ack=True)
    count = DRAIN_BUDGET + 500
    hold(harness)
    publish(other, *map(str, range(count)))
    client.nothing()
    hold(harness, held=False)
    assert came(client) == [str(number) for number in range(count)]
    harness.check()


@rule(RULE, "A message also waits for the declaration of its queue to be durable.")
def test_declarations(harness: Harness, client: Client, other: Client) -> None:
    harness.broker.journal.hold()
    client.send(1, m.QueueDeclare(0, "q", False, True, False, False, True, encode_table({"x-read-committed": True})))
    client.consume("q")
    publish(other, "a", "b")
    client.nothing()
    harness.broker.journal.release()
    harness.settle()
    assert came(client) == ["a", "b"]


@rule(RULE, "It cannot be asked of a queue that keeps its messages in memory.")
def test_not_with_memory(client: Client) -> None:
    table = encode_table({"x-read-committed": True, "x-storage": "memory", "x-max-length": 5})
    refused = client.refused(1, m.QueueDeclare(0, "q", False, True, False, False, False, table))
    assert refused.text == (
        "PRECONDITION_FAILED - invalid arg 'x-read-committed' for queue 'q' in vhost '/': "
        '"not with x-storage memory, which commits nothing"'
    )
