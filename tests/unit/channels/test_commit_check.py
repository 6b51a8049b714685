"""commit_check.py: the checks before a staged batch is committed, and the room that is reserved for it."""

from __future__ import annotations

import pytest
from engine_harness import Client, Harness, publish_frames

from warren.amqp import methods as m
from warren.amqp.field_table import Table, encode_table
from warren.channels.commit_check import CommitCheck
from warren.channels.transaction import commit_checked
from warren.queues.long_work import ALL_STEPS, Steps
from warren.vhosts.metadata import PolicyPut

from .transacting import begin, channel_of, put, transaction_of

REJECTS: Table = {"x-overflow": "reject-publish"}
LATER = encode_table({"x-delay": 60_000})
QUEUES = 200


def checked(client: Client, steps: int = ALL_STEPS) -> CommitCheck:
    """Return the check of the present transaction, without promises, `steps` steps at a time."""
    check = CommitCheck(mandatory=False)
    publishes = transaction_of(client).publishes
    while not check.run(publishes, Steps(steps)):
        pass
    return check


def promised(client: Client) -> CommitCheck:
    """Return the check of what is in the transaction now; its promises hold until it ends."""
    check = CommitCheck(mandatory=True)
    check.is_promised = True
    assert check.run(transaction_of(client).publishes, Steps(ALL_STEPS))
    return check


def delete(client: Client, queue: str) -> None:
    client.call(1, m.QueueDelete(0, queue, if_unused=False, if_empty=False, no_wait=False))


@pytest.mark.parametrize("steps", [1, 2, ALL_STEPS])
def test_what_nobody_would_get_is_counted_as_things_are_now(steps: int) -> None:
    _, client = begin()
    client.declare("q")
    assert checked(client, steps).unroutable == 0
    put(client, "q", 2)
    put(client, "nobody", 3)
    assert checked(client, steps).unroutable == 3
    delete(client, "q")
    assert checked(client, steps).unroutable == 5
    client.call(1, m.TxRollback())
    assert checked(client, steps).unroutable == 0


def test_what_an_exchange_holds_is_not_unroutable() -> None:
    _, client = begin()
    client.declare_exchange("later", "x-delayed-message", arguments={"x-delayed-type": "direct"})
    put(client, "nobody", 2, exchange="later", headers=LATER)
    assert checked(client).unroutable == 0


def test_only_a_batch_that_is_mandatory_fails_for_what_nobody_would_get() -> None:
    _, client = begin()
    put(client, "nobody")
    for mandatory in (False, True):
        check = CommitCheck(mandatory=mandatory)
        assert check.run(transaction_of(client).publishes, Steps(ALL_STEPS))
        assert check.has_passed() is not mandatory


@pytest.mark.parametrize("steps", [1, 3, ALL_STEPS])
def test_a_queue_that_would_refuse_is_found_before_the_commit(steps: int) -> None:
    harness, client = begin()
    client.declare("full", arguments={**REJECTS, "x-max-length": 3})
    client.declare("bytes", arguments={**REJECTS, "x-max-length-bytes": 10})
    client.declare("drops", arguments={"x-max-length": 1})
    put(client, "drops", 5)
    put(client, "full", 3)
    put(client, "bytes", 1, bytes(10))
    assert checked(client, steps).full_queue is None
    put(client, "full")
    assert checked(client, steps).full_queue is harness.queue("full")
    client.call(1, m.TxRollback())
    put(client, "bytes", 2, bytes(6))
    assert checked(client, steps).full_queue is harness.queue("bytes")
    client.call(1, m.TxRollback())
    put(client, "full", 3)
    assert checked(client, steps).full_queue is None
    client.call(1, m.TxCommit())
    put(client, "full")
    assert checked(client, steps).full_queue is harness.queue("full")
    delete(client, "full")
    assert checked(client, steps).full_queue is None


def test_what_is_held_for_later_needs_no_room_now() -> None:
    _, client = begin()
    client.declare("full", arguments={**REJECTS, "x-max-length": 1})
    put(client, "full", 5, headers=LATER)
    put(client, "full")
    assert checked(client).full_queue is None


def test_nobody_else_gets_the_room_that_was_promised_until_the_check_has_ended() -> None:
    harness, client = begin()
    client.declare("q", arguments={**REJECTS, "x-max-length": 3})
    put(client, "q", 2)
    check = promised(client)
    assert check.has_passed()
    other = harness.channel()
    other.publish("", "q", b"fits")
    other.publish("", "q", b"does not")
    assert harness.queue("q").message_count == 1
    check.end()
    other.publish("", "q", b"fits again")
    assert harness.queue("q").message_count == 2


def test_bytes_are_promised_too() -> None:
    harness, client = begin()
    client.declare("q", arguments={**REJECTS, "x-max-length-bytes": 10})
    put(client, "q", 2, bytes(4))
    check = promised(client)
    other = harness.channel()
    other.publish("", "q", bytes(3))
    assert harness.queue("q").message_count == 0
    other.publish("", "q", bytes(2))
    assert harness.queue("q").message_count == 1
    check.end()
    other.publish("", "q", bytes(8))
    assert harness.queue("q").message_count == 2


def test_a_check_that_fails_at_the_last_queue_leaves_the_others_as_they_were() -> None:
    harness, client = begin()
    for name in ("a", "b"):
        client.declare(name, arguments={**REJECTS, "x-max-length": 1})
    put(client, "a")
    put(client, "b", 2)
    check = promised(client)
    assert check.full_queue is harness.queue("b")
    check.end()
    harness.channel().publish("", "a", b"x")
    assert harness.queue("a").message_count == 1


def test_a_commit_at_once_leaves_what_was_promised_to_another() -> None:
    harness, client = begin()
    client.declare("q", arguments={**REJECTS, "x-max-length": 5})
    put(client, "q", 2)
    check = promised(client)
    other = harness.channel()
    other.call(1, m.TxSelect())
    for count, passes in ((4, False), (2, True), (2, False)):
        put(other, "q", count)
        commit_checked(channel_of(other), CommitCheck(mandatory=True), lambda: None)
        harness.settle()
        other.expect(m.TxCommitOk if passes else m.TxRollbackOk)
    assert harness.queue("q").message_count == 2
    check.end()


def wide(max_length: int) -> tuple[Harness, Client]:
    """Return a client in a transaction; exchange ``x`` to `QUEUES` queues, the first limited to `max_length`."""
    harness, client = begin()
    client.declare_exchange("x", "fanout")
    for number in range(QUEUES):
        client.declare(f"q{number}", arguments={**REJECTS, "x-max-length": max_length} if number == 0 else None)
        client.bind(f"q{number}", "x")
    return harness, client


def test_a_commit_that_takes_turns_is_let_in_as_a_whole() -> None:
    """Neither what others publish meanwhile nor a lower limit keeps any of it out."""
    harness, client = wide(150)
    put(client, "", 100, exchange="x")
    other = harness.channel()
    noted: list[str] = []
    first, last = harness.queue("q0"), harness.queue(f"q{QUEUES - 1}")
    commit_checked(channel_of(client), CommitCheck(mandatory=True), lambda: noted.append("done"))
    while first.message_count == 0:
        harness.broker.end_turn()
    assert last.message_count < 100
    other.connection.feed(publish_frames("", "q0", b"other") * 200)
    assert first.message_count + 100 - last.message_count >= 150, "the rest of the room is promised"
    harness.broker.administer(PolicyPut("/", "p", "q0", "queues", 0, '{"max-length": 1}'))
    assert not noted
    harness.settle()
    assert noted == ["done"]
    client.expect(m.TxCommitOk)
    assert first.message_count == 150
    assert last.message_count == 100


def test_a_commit_that_fails_is_rolled_back_and_answered_so() -> None:
    harness, client = wide(150)
    put(client, "", 151, exchange="x")
    noted: list[str] = []
    check = CommitCheck(mandatory=True)
    commit_checked(channel_of(client), check, lambda: noted.append("done"))
    harness.settle()
    assert check.full_queue is harness.queue("q0")
    assert not noted
    client.expect(m.TxRollbackOk)
    assert {int(queue.message_count) for queue in harness.vhost.queues.values()} == {0}
    put(client, "", 150, exchange="x")
    client.call(1, m.TxCommit())
    assert {int(queue.message_count) for queue in harness.vhost.queues.values()} == {150}
