"""Dead letters in circles and long chains: what stops them, and how much work they make."""

from __future__ import annotations

import pytest
from engine_harness import USER, Client, Harness, bodies, body_of, publish_frames

from warren.amqp import methods as m
from warren.amqp.declarations import QueueDeclaration
from warren.amqp.field_table import EMPTY_TABLE
from warren.queues.long_work import TURN_STEPS
from warren.vhosts.dead_lettering import DEATHS_MAX, LETTERS_MAX, LINE_MAX_BYTES, TARGET_STEPS
from warren.vhosts.metadata import VhostPut

from .dead_letters import CAUSES, dead_letters_to, deaths_of, ready
from .rules import rule


@rule("rabbitmq.dead-letter.cycle", "A letter does not enter a queue again that it died in without a client's doing.")
@pytest.mark.parametrize("size", [1, 2, 5, 20])
@pytest.mark.parametrize("cause", ["expired", "maxlen"])
def test_a_circle_is_cut(client: Client, harness: Harness, cause: str, size: int) -> None:
    for at in range(size):
        client.declare(f"q{at}", arguments=dead_letters_to("", f"q{(at + 1) % size}") | CAUSES[cause])
    client.publish("", "q0")
    for _ in range(3 * size):
        harness.pass_time(1)
    published = [int(harness.queue(f"q{at}").published) for at in range(size)]
    assert published == [1] * size
    assert sum(ready(harness, f"q{at}") for at in range(size)) == 0


@rule("rabbitmq.dead-letter.cycle", "A rejection anywhere in the circle keeps it turning.")
def test_a_rejection_keeps_a_circle_turning(client: Client, harness: Harness) -> None:
    client.declare("q", arguments=dead_letters_to("", "wait"))
    client.declare("wait", arguments=dead_letters_to("", "q", message_ttl=1000))
    client.publish("", "q")
    for turn in range(20):
        got = client.get("q")
        assert got is not None, f"it was dropped in turn {turn}"
        client.send(1, m.BasicReject(got.method.delivery_tag, False))
        harness.pass_time(1)


@rule(
    "rabbitmq.dead-letter.back", "Letters that come back to a queue go to a consumer with room, however long it may be."
)
@pytest.mark.parametrize("in_transaction", [False, True])
def test_many_that_are_rejected_at_a_time_come_back(client: Client, in_transaction: bool) -> None:
    client.declare("q", arguments=dead_letters_to("", max_length=1))
    client.consume("q", "c")
    for number in range(4):
        client.publish("", "q", b"%d" % number)
    assert [body_of(each) for each in client.deliveries()] == [b"0", b"1", b"2", b"3"]
    if in_transaction:
        client.call(1, m.TxSelect())
    client.send(1, m.BasicNack(4, multiple=True, requeue=False))
    if in_transaction:
        client.send(1, m.TxCommit())
    again = [each for each in client.take() if isinstance(each.method, m.BasicDeliver)]
    assert [body_of(each) for each in again] == [b"0", b"1", b"2", b"3"]


@rule("warren.dead-letter.chain", "A chain of any length is gone through at once, and the letter says where it was.")
@pytest.mark.parametrize("length", [1, 17, 80])
@pytest.mark.parametrize("cause", ["maxlen", "maxlen, refused"])
def test_a_long_chain(client: Client, harness: Harness, length: int, cause: str) -> None:
    for at in range(length):
        client.declare(f"q{at}", arguments=dead_letters_to("", f"q{at + 1}") | CAUSES[cause])
    client.declare(f"q{length}")
    client.call(1, m.ConfirmSelect(False))
    for body in (b"1", b"2"):
        client.publish("", "q0", body)
    kinds = {type(each.method) for each in client.take()}
    assert kinds == {m.BasicNack if "refused" in cause else m.BasicAck}
    got = client.get(f"q{length}")
    assert [death["queue"] for death in deaths_of(got)] == [f"q{at}" for at in reversed(range(length))]
    assert got is not None and got.method.message_count == 1


@rule("warren.dead-letter.chain", "What a death leads to is worked off in turns of bounded work, and ends.")
@pytest.mark.parametrize("cause", ["maxlen", "maxlen, refused"])
@pytest.mark.parametrize("size", [9, 18])
def test_a_cascade_is_bounded(client: Client, harness: Harness, cause: str, size: int) -> None:
    for at in range(size):
        client.declare(f"q{at}", arguments=dead_letters_to("amq.fanout") | CAUSES[cause])
        client.bind(f"q{at}", "amq.fanout")
    client.declare("end")
    client.bind("end", "amq.fanout")
    queues = [harness.plain_queue(f"q{at}") for at in range(size)]

    def letters() -> int:
        died = sum(0 if queue.deaths is None else int(queue.deaths.maxlen) for queue in queues)
        return ready(harness, "end") + died - 1  # but for the publish

    # Of one turn: the work that its bytes begin, and earlier work; the last letter of each may go to all queues.
    most = 2 * (TURN_STEPS // TARGET_STEPS + size + 1)
    client.connection.feed(publish_frames("", "q0", b"x"))
    counts = [letters()]
    while harness.broker.has_work():
        before = letters()
        harness.broker.end_turn()
        counts.append(letters() - before)
    assert max(counts) <= most
    # Each death goes to "end" as well, where nothing dies: messages there are kept.
    assert letters() == LETTERS_MAX
    assert ready(harness, "end") > LETTERS_MAX // (size + 1)
    harness.pass_time(1)
    (notice,) = [each for each in harness.notices if each.event == "dead_letters.dropped"]
    assert notice.fields["count"]
    client.call(1, m.QueuePurge(0, "end", False))
    client.publish("", "q1", b"another")
    assert ready(harness, "end") > LETTERS_MAX // (size + 1), "each message has a count of its own"


@rule("warren.dead-letter.chain", "The first letters of a death are sent to all queues, however many.")
def test_a_wide_exchange_of_dead_letters(client: Client, harness: Harness) -> None:
    client.declare("q", arguments=dead_letters_to("amq.fanout", max_length=0))
    count = LETTERS_MAX + 10
    for at in range(count):
        harness.vhost.declare_queue(QueueDeclaration(f"d{at}", durable=False))
        harness.vhost.bind(harness.vhost.exchange("amq.fanout"), harness.queue(f"d{at}"), "", EMPTY_TABLE)
    client.publish("", "q")
    assert sum(ready(harness, f"d{at}") for at in range(count)) == count


@rule("warren.dead-letter.chain", "A circle too long for x-death ends as well.")
def test_a_circle_longer_than_its_history_is_cut(client: Client, harness: Harness) -> None:
    size = DEATHS_MAX + 200
    for at in range(size):
        client.declare(f"q{at}", arguments=dead_letters_to("", f"q{(at + 1) % size}", max_length=0))
    client.publish("", "q0")
    assert sum(int(harness.queue(f"q{at}").published) for at in range(size)) == DEATHS_MAX + 1


@rule(
    "warren.dead-letter.chain",
    "Publishers of a vhost wait while too much is in line there to be placed; others do not.",
)
def test_publishers_wait_for_dead_letters(client: Client, harness: Harness, other: Client) -> None:
    for at in range(5):
        client.declare(f"q{at}", arguments=dead_letters_to("amq.fanout", max_length=0))
        client.bind(f"q{at}", "amq.fanout")
    client.declare("another")
    harness.broker.administer(VhostPut("elsewhere"))
    harness.permit(USER, vhost="elsewhere")
    elsewhere = harness.client(vhost="elsewhere")
    elsewhere.open(1)
    elsewhere.declare("theirs")
    # Nobody has seen to what is in line yet.
    client.connection.feed(b"".join(publish_frames("", "q0", bytes(4_000_000)) for _ in range(12)))
    assert harness.broker.letters_in_line.waiting_bytes > LINE_MAX_BYTES
    other.connection.feed(publish_frames("", "another", b"x"))
    assert ready(harness, "another") == 0
    elsewhere.connection.feed(publish_frames("", "theirs", b"x"))
    assert harness.broker.vhosts["elsewhere"].queues["theirs"].ready_count == 1
    harness.settle()
    assert ready(harness, "another") == 1
    assert (harness.broker.letters_in_line.waiting, harness.broker.letters_in_line.waiting_bytes) == (0, 0)


@rule("warren.dead-letter.chain", "What letters lead to is dropped when very many are in line; first deaths never are.")
def test_the_line_of_letters_is_bounded(client: Client, harness: Harness) -> None:
    harness.broker.letters_in_line.full = 200
    for at in range(6):
        client.declare(f"q{at}", arguments=dead_letters_to("amq.fanout", max_length=0))
        client.bind(f"q{at}", "amq.fanout")
    longest = 0
    client.connection.feed(b"".join(publish_frames("", "q0", b"x") for _ in range(150)))
    for _ in range(10_000):
        longest = max(longest, int(harness.broker.letters_in_line.waiting))
        if len(harness.broker.work) == 0:
            break
        harness.broker.end_turn()
    assert longest <= 150 + 200 + 6  # the publishes, and their effects
    assert harness.broker.letters_in_line.dropped > 0
    assert int(harness.queue("q1").published) >= 150


@rule("warren.dead-letter.chain", "Many at once as well: each arrives, in order.")
def test_many_at_once_through_a_long_chain(client: Client, harness: Harness) -> None:
    length = 19
    client.declare("q", arguments=dead_letters_to("", "q0", message_ttl=1000))
    for at in range(length):
        client.declare(f"q{at}", arguments=dead_letters_to("", f"q{at + 1}", max_length=0))
    client.declare(f"q{length}")
    for number in range(20):
        client.publish("", "q", b"%d" % number)
    harness.pass_time(1)
    assert bodies(client, f"q{length}") == [b"%d" % number for number in range(20)]
