"""Limits of length and bytes: what is dropped, what is refused, what publishers are told and in which order."""

from __future__ import annotations

import json

import pytest
from durable_harness import DurableHarness
from engine_harness import Client, Harness, Received, bodies, body_of, publish_frames

from warren.amqp import methods as m
from warren.amqp.field_table import Table, decode_table
from warren.vhosts.metadata import PolicyDelete, PolicyPut

from .rules import rule

DEAD: Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
REFUSING = ("reject-publish", "reject-publish-dlx")


def ready(harness: Harness, name: str = "q") -> int:
    return int(harness.queue(name).ready_count)


def confirming(client: Client) -> None:
    assert client.call(1, m.ConfirmSelect(False)) == m.ConfirmSelectOk()


def publish_numbers(client: Client, count: int, mode: int = 1, first: int = 0) -> None:
    """Publish that many to q in one go, each its number."""
    numbers = range(first, first + count)
    client.feed(b"".join(publish_frames("", "q", b"%d" % at, properties={"delivery_mode": mode}) for at in numbers))


def answers(received: list[Received]) -> list[tuple[str, int, bool]]:
    """Return acks and nacks as (kind, tag, multiple)."""
    found = []
    for each in received:
        assert isinstance(each.method, m.BasicAck | m.BasicNack), each
        kind = "ack" if isinstance(each.method, m.BasicAck) else "nack"
        found.append((kind, each.method.delivery_tag, each.method.multiple))
    return found


def put_policy(harness: Harness, **definition: object) -> None:
    """Set a policy for q; underscores in keys stand for hyphens."""
    settings = json.dumps({key.replace("_", "-"): value for key, value in definition.items()})
    harness.broker.administer(PolicyPut("/", "p", "^q$", "queues", 0, settings))
    harness.settle()


def rest(harness: Harness) -> None:
    """Write everything."""
    harness.broker.log.close_if_due(lingered=True)
    harness.settle()


# --- what counts ------------------------------------------------------------------------------------------------------


@rule(
    "basic.02",
    "A persistent message is not discarded when a queue overflows.",
    deviation="As RabbitMQ: a length limit drops the oldest messages, persistent or not, unless the queue refuses.",
)
@rule("rabbitmq.queue.max-length", "A queue holds so many ready messages, and drops the oldest for what comes.")
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_the_oldest_goes(client: Client, harness: Harness, limit: int) -> None:
    client.declare("q", durable=True, arguments={"x-max-length": limit})
    for number in range(8):
        client.publish("", "q", b"%d" % number, delivery_mode=2)
        assert ready(harness) == min(number + 1, limit)
    assert bodies(client) == [b"%d" % number for number in range(8 - limit, 8)]


@rule("rabbitmq.queue.max-length-bytes", "So many bytes of bodies: for a large one as many small ones go as it takes.")
def test_bytes_of_bodies(client: Client, harness: Harness) -> None:
    client.declare("q", arguments={"x-max-length-bytes": 10})
    totals = []
    for size in (4, 4, 2, 0, 3, 11, 10, 0):
        client.publish("", "q", bytes(size), headers=b"\0\0\0\x08\x01hS\0\0\0\x01x")
        totals.append((ready(harness), int(harness.queue("q").ready_bytes)))
    # 11 bytes drop everything before them, the empty message too, and then themselves.
    assert totals == [(1, 4), (2, 8), (3, 10), (4, 10), (4, 9), (0, 0), (1, 10), (2, 10)]


@rule("rabbitmq.queue.max-length", "Of both limits the one that is reached first counts.")
def test_both_limits(client: Client, harness: Harness) -> None:
    client.declare("q", arguments={"x-max-length": 3, "x-max-length-bytes": 5})
    for body in (b"1", b"2", b"3", b"4", b"55555", b"6"):
        client.publish("", "q", body)
    assert bodies(client) == [b"6"]


@rule("rabbitmq.queue.max-length.unacked", "What clients have does not count.")
def test_the_unacked_do_not_count(client: Client, harness: Harness) -> None:
    client.declare("q", arguments={"x-max-length": 2, "x-max-length-bytes": 2})
    publish_numbers(client, 2)
    assert client.get("q") is not None and client.get("q") is not None
    publish_numbers(client, 2)
    queue = harness.queue("q")
    assert (queue.ready_count, queue.ready_bytes, queue.unacked_count) == (2, 2, 2)


@rule("rabbitmq.queue.max-length.zero", "With a limit of nothing only what goes straight to a consumer passes.")
@pytest.mark.parametrize("arguments", [{"x-max-length": 0}, {"x-max-length-bytes": 0}])
def test_a_limit_of_nothing(client: Client, other: Client, harness: Harness, arguments: Table) -> None:
    client.declare("q", durable=True, arguments=arguments)
    other.call(1, m.BasicQos(0, 1, False))
    other.consume("q")
    confirming(client)
    for body in (b"1", b"2"):
        client.publish("", "q", body, delivery_mode=2)
        assert isinstance(client.expect(m.BasicAck), m.BasicAck)
    assert other.bodies() == [b"1"]
    assert ready(harness) == 0
    index = harness.queue("q").ready.index_of(0)
    assert index is not None and index.live_count == 1


@rule("warren.queue.max-length.written", "What is dropped before it was written is never written.")
def test_what_is_dropped_is_not_written(client: Client, harness: Harness) -> None:
    client.declare("q", durable=True, arguments={"x-max-length": 10})
    publish_numbers(client, 1, mode=2)
    rest(harness)
    before = harness.store.written_bytes
    client.feed(publish_frames("", "q", bytes(10_000), properties={"delivery_mode": 2}) * 500)
    rest(harness)
    assert ready(harness) == 10
    assert harness.store.written_bytes - before < 20 * 10_000


@rule("rabbitmq.queue.max-length.requeue", "What is put back goes over the limit for a moment: then the oldest goes.")
def test_putting_back_drops_the_oldest(client: Client, harness: Harness) -> None:
    client.declare("dead")
    client.declare("q", arguments={"x-max-length": 3, **DEAD})
    publish_numbers(client, 3)
    for _ in range(3):
        assert client.get("q") is not None
    for body in (b"a", b"b"):
        client.publish("", "q", body)
    client.send(1, m.BasicNack(0, multiple=True, requeue=True))
    assert (bodies(client, "dead"), bodies(client)) == ([b"0", b"1"], [b"2", b"a", b"b"])


@rule("rabbitmq.queue.max-length.requeue", "A queue that refuses takes back whatever it has given.")
@pytest.mark.parametrize("overflow", REFUSING)
def test_putting_back_is_never_refused(client: Client, harness: Harness, overflow: str) -> None:
    client.declare("q", arguments={"x-max-length": 2, "x-overflow": overflow})
    publish_numbers(client, 2)
    assert client.get("q") is not None and client.get("q") is not None
    client.publish("", "q", b"a")
    client.publish("", "q", b"b")
    client.send(1, m.BasicNack(0, multiple=True, requeue=True))
    assert ready(harness) == 4
    client.publish("", "q", b"c")
    assert bodies(client) == [b"0", b"1", b"a", b"b"]


@rule("rabbitmq.queue.max-length.expired", "What has expired is no longer counted.")
@pytest.mark.parametrize("overflow", ["drop-head", *REFUSING])
def test_the_expired_make_room(client: Client, harness: Harness, overflow: str) -> None:
    client.declare("q", arguments={"x-max-length": 2, "x-overflow": overflow})
    client.publish("", "q", b"stays")
    client.publish("", "q", b"goes", expiration="1000")
    harness.pass_time(1)
    client.publish("", "q", b"new")
    assert bodies(client) == [b"stays", b"new"]


# --- overflow ---------------------------------------------------------------------------------------------------------


@rule("rabbitmq.queue.overflow", "drop-head drops the oldest and acks; the others keep what they have and nack.")
@pytest.mark.parametrize(
    ("overflow", "kept", "letters", "answered"),
    [
        (None, [b"2", b"3"], [b"0", b"1"], [("ack", 4, True)]),
        ("drop-head", [b"2", b"3"], [b"0", b"1"], [("ack", 4, True)]),
        ("reject-publish", [b"0", b"1"], [], [("nack", 3, False), ("nack", 4, False), ("ack", 2, True)]),
        ("reject-publish-dlx", [b"0", b"1"], [b"2", b"3"], [("nack", 3, False), ("nack", 4, False), ("ack", 2, True)]),
    ],
)
def test_overflow(
    client: Client,
    overflow: str | None,
    kept: list[bytes],
    letters: list[bytes],
    answered: list[tuple[str, int, bool]],
) -> None:
    client.declare("dead")
    client.declare("q", arguments={"x-max-length": 2, **DEAD} | ({"x-overflow": overflow} if overflow else {}))
    confirming(client)
    publish_numbers(client, 4)
    assert answers(client.take()) == answered
    got = [client.get("dead", no_ack=True) for _ in letters]
    assert [body_of(each) for each in got if each] == letters
    for each in got:
        assert each is not None and each.content is not None and each.content.properties.headers is not None
        deaths = decode_table(each.content.properties.headers)["x-death"]
        assert isinstance(deaths, list) and len(deaths) == 1
        death = deaths[0]
        assert isinstance(death, dict) and (death["reason"], death["count"]) == ("maxlen", 1)
    assert (bodies(client), bodies(client, "dead")) == (kept, [])


@rule("rabbitmq.queue.overflow.bytes", "What does not fit is refused, what does is taken, whichever came first.")
def test_bytes_that_do_not_fit(client: Client) -> None:
    client.declare("q", arguments={"x-max-length-bytes": 5, "x-overflow": "reject-publish"})
    confirming(client)
    client.feed(b"".join(publish_frames("", "q", bytes(size)) for size in (3, 3, 2, 1, 0)))
    assert answers(client.take()) == [("nack", 2, False), ("nack", 4, False), ("ack", 5, True)]


@rule("rabbitmq.queue.overflow.silent", "Without confirms nobody is told of a refused message.")
@pytest.mark.parametrize("mandatory", [False, True])
@pytest.mark.parametrize("overflow", REFUSING)
def test_a_refusal_without_confirms(client: Client, harness: Harness, overflow: str, mandatory: bool) -> None:
    client.declare("q", arguments={"x-max-length": 0, "x-overflow": overflow})
    client.publish("", "q", mandatory=mandatory)
    client.nothing()
    assert int(harness.queue("q").published) == 0


@rule("rabbitmq.queue.overflow.fan-out", "One refusing queue of several is a nack; the others have the message.")
@pytest.mark.parametrize("mode", [1, 2])
@pytest.mark.parametrize("refusing", ["a", "b", "c"])
def test_one_of_several_refuses(client: Client, harness: Harness, mode: int, refusing: str) -> None:
    for name in "abc":
        limits: Table = {"x-max-length": 0, "x-overflow": "reject-publish"}
        client.declare(name, durable=True, arguments=limits if name == refusing else {})
        client.bind(name, "amq.fanout")
    confirming(client)
    client.publish("amq.fanout", "", delivery_mode=mode)
    assert answers(client.take()) == [("nack", 1, False)]
    assert [ready(harness, name) for name in "abc"] == [0 if name == refusing else 1 for name in "abc"]


# --- the order of answers ---------------------------------------------------------------------------------------------


@rule("rabbitmq.confirm.nack", "A nack comes at once, alone, and before an ack for several that would cover it.")
def test_nacks_come_before_acks(client: Client) -> None:
    client.declare("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    client.declare("free")
    confirming(client)
    names = ["q", "free", "q", "free", "free", "q"]
    client.feed(b"".join(publish_frames("", name) for name in names))
    assert answers(client.take()) == [("nack", 3, False), ("nack", 6, False), ("ack", 5, True)]
    client.feed(b"".join(publish_frames("", name) for name in ["q", "q", "free"]))
    assert answers(client.take()) == [("nack", 7, False), ("nack", 8, False), ("ack", 9, True)]
    client.publish("", "q")
    assert answers(client.take()) == [("nack", 10, False)]
    client.publish("", "free")
    assert answers(client.take()) == [("ack", 11, True)]
    client.publish("", "free")
    assert answers(client.take()) == [("ack", 12, False)]


@rule("rabbitmq.confirm.nack", "It does not wait for the disk; the acks of what was published before still do.")
def test_a_nack_does_not_wait_for_the_disk(client: Client, harness: Harness) -> None:
    client.declare("q", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    client.declare("free", durable=True)
    confirming(client)
    harness.store.hold = True
    for name in ("q", "q", "free", "q"):
        client.publish("", name, delivery_mode=2)
    client.publish("", "free", delivery_mode=1)  # not stored, and after the stored ones
    assert answers(client.take()) == [("nack", 2, False), ("nack", 4, False)]
    harness.store.hold = False
    harness.settle()
    acks = answers(client.take())
    # The first batch was closed with the first message, the third message waits in the next one.
    assert acks == [("ack", 1, False), ("ack", 5, True)]


@rule("abuse.outbox", "Who publishes and does not take the nacks is no longer read, and goes on later.")
def test_nacks_that_nobody_takes() -> None:
    harness = Harness(outbox_soft_bytes=1000, outbox_hard_bytes=2000)
    client = harness.channel()
    client.declare("q", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    confirming(client)
    client.peer.stalled = True
    for _ in range(50):
        client.feed(publish_frames("", "q") * 20)
    assert client.connection.outbox.waiting_bytes() < 3000
    harness.wake(client.peer)
    assert answers(client.take()) == [("nack", tag, False) for tag in range(1, 1001)]


@rule("rabbitmq.confirm.nack", "Every publish is answered once: an ack for several does not end at a refused one.")
@pytest.mark.parametrize("mode", [1, 2])
def test_every_publish_is_answered_once(client: Client, harness: Harness, mode: int) -> None:
    client.declare("q", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    client.declare("free", durable=True)
    confirming(client)
    expected: dict[int, str] = {}
    open_tags: set[int] = set()
    answered: dict[int, str] = {}
    tag = 0
    for round_number in range(40):
        frames = b""
        for at in range(round_number % 5 + 1):
            tag += 1
            # The queue q is full but for the very first message.
            to_full = (tag * 7 + at * 3 + round_number) % 3 != 0
            expected[tag] = "nack" if to_full and tag > 1 else "ack"
            open_tags.add(tag)
            frames += publish_frames("", "q" if to_full or tag == 1 else "free", properties={"delivery_mode": mode})
        harness.store.hold = round_number % 3 != 2
        client.feed(frames)
        if not harness.store.hold:
            harness.settle()
        for kind, last, multiple in answers(client.take()):
            assert last in open_tags, f"{kind} {last} ends at what was answered before"
            for each in [each for each in open_tags if each == last or (multiple and each < last)]:
                answered[each] = kind
                open_tags.discard(each)
    harness.store.hold = False
    harness.settle()
    for kind, last, multiple in answers(client.take()):
        for each in [each for each in open_tags if each == last or (multiple and each < last)]:
            answered[each] = kind
            open_tags.discard(each)
    assert answered == expected
    assert set(expected.values()) == {"ack", "nack"}


# --- transactions -----------------------------------------------------------------------------------------------------


@rule("rabbitmq.tx.refused", "A commit of which a queue refuses a part closes the channel; the rest is committed.")
@pytest.mark.parametrize("mode", [1, 2])
def test_a_commit_that_is_refused_in_part(client: Client, harness: Harness, mode: int) -> None:
    client.declare("q", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    client.declare("free", durable=True)
    client.publish("", "free", b"acked")
    client.call(1, m.TxSelect())
    assert client.get("free") is not None
    client.send(1, m.BasicAck(1, False))
    for body, name in ((b"1", "q"), (b"2", "q"), (b"3", "free")):
        client.publish("", name, body, delivery_mode=mode)
    client.nothing()
    refusal = client.refused(1, m.TxCommit())
    assert (refusal.code, refusal.text) == (406, "PRECONDITION_FAILED - partial tx completion")
    assert (bodies(client), bodies(client, "free")) == ([b"1"], [b"3"])
    assert int(harness.queue("free").unacked_count) == 0


@rule("rabbitmq.tx.refused", "Whether there is room is decided by the commit, not by the publish.")
def test_room_is_looked_for_at_the_commit(client: Client, other: Client) -> None:
    client.declare("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    other.publish("", "q", b"in the way")
    client.call(1, m.TxSelect())
    client.publish("", "q", b"1")
    assert bodies(other) == [b"in the way"]
    assert client.call(1, m.TxCommit()) == m.TxCommitOk()
    client.publish("", "q", b"2")
    assert client.call(1, m.TxRollback()) == m.TxRollbackOk()
    assert client.call(1, m.TxCommit()) == m.TxCommitOk()
    assert bodies(client) == [b"1"]


# --- policies ---------------------------------------------------------------------------------------------------------


@rule("rabbitmq.policy.max-length", "A lower limit drops at once what is too much, oldest first, and dead-letters it.")
@pytest.mark.parametrize("definition", [{"max_length": 3}, {"max_length_bytes": 3}])
def test_a_lower_limit_drops_at_once(client: Client, harness: Harness, definition: dict[str, int]) -> None:
    client.declare("dead")
    client.declare("q", arguments=DEAD)
    publish_numbers(client, 7)
    put_policy(harness, **definition)
    assert bodies(client, "dead") == [b"0", b"1", b"2", b"3"]
    assert bodies(client) == [b"4", b"5", b"6"]


@rule("rabbitmq.policy.max-length", "What a policy allows changes with it: limit and overflow, and neither without it.")
def test_limits_come_and_go(client: Client, harness: Harness) -> None:
    client.declare("q")
    confirming(client)
    put_policy(harness, max_length=2, overflow="reject-publish")
    publish_numbers(client, 3)
    assert answers(client.take()) == [("nack", 3, False), ("ack", 2, True)]
    put_policy(harness, max_length=2)
    client.publish("", "q", b"x")
    assert ready(harness) == 2
    harness.broker.administer(PolicyDelete("/", "p"))
    harness.settle()
    publish_numbers(client, 5)
    assert ready(harness) == 7


@rule("rabbitmq.policy.max-length", "Lower limits do not shorten a queue that refuses.")
def test_a_refusing_queue_keeps_what_it_has(client: Client, harness: Harness) -> None:
    client.declare("q", arguments={"x-overflow": "reject-publish"})
    publish_numbers(client, 5)
    put_policy(harness, max_length=2)
    assert ready(harness) == 5


@rule("rabbitmq.policy.max-length", "Of argument and policy the smaller limit counts.")
@pytest.mark.parametrize(("argument", "of_policy"), [(2, 4), (4, 2)])
def test_the_smaller_limit(client: Client, harness: Harness, argument: int, of_policy: int) -> None:
    put_policy(harness, max_length=of_policy)
    client.declare("q", arguments={"x-max-length": argument})
    publish_numbers(client, 6)
    assert ready(harness) == 2


# --- on disk ----------------------------------------------------------------------------------------------------------


@rule("warren.queue.max-length.disk", "A head that is on disk is dropped when it has come: nothing else goes instead.")
def test_a_head_on_disk_is_dropped(client: Client, harness: Harness) -> None:
    harness.broker.log.memory_bytes = 0
    client.declare("dead")
    client.declare("q", durable=True, arguments=DEAD)
    publish_numbers(client, 600, mode=2)
    rest(harness)
    assert len(harness.queue("q").ready.in_memory()) < 600, "nothing is on disk only"
    put_policy(harness, max_length=50)
    assert ready(harness) == 50
    assert bodies(client, "dead") == [b"%d" % number for number in range(550)]
    assert bodies(client) == [b"%d" % number for number in range(550, 600)]
    rest(harness)
    index = harness.queue("q").ready.index_of(0)
    assert index is not None and index.live_count == 0


@rule("warren.queue.max-length.disk", "While the disk is slow more waits than may, and no more than that is dropped.")
def test_a_slow_disk(client: Client, harness: Harness) -> None:
    log = harness.broker.log
    log.memory_bytes = 0
    client.declare("q", durable=True, arguments={"x-max-length": 400})
    publish_numbers(client, 400, mode=2)
    rest(harness)
    in_memory = len(harness.queue("q").ready.in_memory())
    assert in_memory < 400
    harness.store.hold = True
    publish_numbers(client, 300, mode=2, first=400)
    assert ready(harness) > 400
    harness.store.hold = False
    harness.settle()
    assert ready(harness) == 400
    assert bodies(client) == [b"%d" % number for number in range(300, 700)]


@rule("warren.queue.max-length.restart", "What was at clients counts after a restart, and the oldest goes.")
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 2}])
def test_the_limit_holds_after_a_restart(clean: bool, arguments: Table) -> None:
    harness = DurableHarness()
    client = harness.channel()
    client.declare("q", durable=True, arguments={"x-max-length": 3, **arguments})
    publish_numbers(client, 3, mode=2)
    for _ in range(3):
        assert client.get("q") is not None
    publish_numbers(client, 3, mode=2, first=3)
    harness.write()
    harness = harness.restart(clean=clean)
    assert ready(harness) == 3
    assert bodies(harness.channel()) == [b"3", b"4", b"5"]
