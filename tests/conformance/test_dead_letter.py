"""Dead letters: what dies, as what it comes back, where it goes, what stops it, and what a crash leaves of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from durable_harness import DurableHarness
from engine_harness import USER, Client, Harness, Received, bodies, body_of, publish_frames

from warren.amqp import methods as m
from warren.amqp.declarations import QueueDeclaration
from warren.amqp.field_table import EMPTY_TABLE, Table, Timestamp, decode_table, encode_table
from warren.queues.base_queue import BaseQueue
from warren.queues.held_lanes import UNDELIVERED_RETRY_MS
from warren.queues.lanes import UNDELIVERED
from warren.queues.long_work import TURN_STEPS
from warren.vhosts.dead_lettering import DEATHS_MAX, LETTERS_MAX, LINE_MAX_BYTES, TARGET_STEPS
from warren.vhosts.metadata import PolicyPut, VhostPut

from .rules import rule

RETRY_S = UNDELIVERED_RETRY_MS / 1000
# The arguments of a queue for each cause of death of its messages.
CAUSES: dict[str, Table] = {
    "rejected": {},
    "expired": {"x-message-ttl": 1000},
    "maxlen": {"x-max-length": 0},
    "maxlen, refused": {"x-max-length": 0, "x-overflow": "reject-publish-dlx"},
    "delivery_limit": {"x-delivery-limit": 0},
}
every_cause = pytest.mark.parametrize("cause", CAUSES)


def dead_letters_to(exchange: str, key: str | None = None, **arguments: object) -> Table:
    table: Table = {"x-dead-letter-exchange": exchange}
    if key is not None:
        table["x-dead-letter-routing-key"] = key
    return table | {"x-" + name.replace("_", "-"): value for name, value in arguments.items()}


def kill(client: Client, harness: Harness, cause: str, queue: str = "q", body: bytes = b"x", **properties: Any) -> None:
    """Publish a message to a queue made for the cause, and have it die."""
    client.publish("", queue, body, **properties)
    if cause == "expired":
        harness.pass_time(1)
    if cause in ("rejected", "delivery_limit"):
        got = client.get(queue)
        assert got is not None
        client.send(1, m.BasicReject(got.method.delivery_tag, cause == "delivery_limit"))


def headers_of(received: Received | None) -> Table:
    assert received is not None and received.content is not None
    headers = received.content.properties.headers
    return {} if headers is None else decode_table(headers)


def deaths_of(received: Received | None) -> list[Table]:
    deaths = headers_of(received)["x-death"]
    assert isinstance(deaths, list)
    found: list[Table] = []
    for death in deaths:
        assert isinstance(death, dict)
        found.append(death)
    return found


def history(received: Received | None) -> list[tuple[object, object, object]]:
    """Return (queue, reason, count), newest death first."""
    return [(death["queue"], death["reason"], death["count"]) for death in deaths_of(received)]


def ready(harness: Harness, name: str = "q") -> int:
    return int(harness.queue(name).ready_count)


def undelivered(queue: BaseQueue) -> int:
    """Return how many letters of a queue no target has taken yet."""
    lane = queue.held(UNDELIVERED)
    return 0 if lane is None else int(lane.count)


# --- what a letter looks like -----------------------------------------------------------------------------------------


@rule(
    "rabbitmq.dead-letter.history",
    "A letter says why, where and when it died, how often, and where it had been published.",
)
@every_cause
def test_what_a_letter_says(client: Client, harness: Harness, cause: str) -> None:
    client.declare("dead")
    client.declare("q", arguments=dead_letters_to("", "dead") | CAUSES[cause])
    client.bind("q", "amq.direct", "k")
    client.publish("amq.direct", "k", headers=encode_table({"a": 1}))
    if cause == "expired":
        harness.pass_time(1)
    if cause in ("rejected", "delivery_limit"):
        client.get("q")
        client.send(1, m.BasicReject(1, cause == "delivery_limit"))
    got = client.get("dead")
    reason = cause.partition(",")[0]
    assert deaths_of(got) == [
        {
            "count": 1,
            "reason": reason,
            "queue": "q",
            "time": Timestamp(int(harness.broker.log.now_ms) // 1000),
            "exchange": "amq.direct",
            "routing-keys": ["k"],
        }
    ]
    headers = headers_of(got)
    assert headers["a"] == 1
    for which in ("first", "last"):
        place = [headers[f"x-{which}-death-{field}"] for field in ("reason", "queue", "exchange")]
        assert place == [reason, "q", "amq.direct"]
    assert got is not None and (got.method.exchange, got.method.routing_key) == ("", "dead")
    assert not got.method.redelivered


@rule("rabbitmq.dead-letter.history", "A second death of the same kind counts, and stands first again.")
def test_a_second_death_counts(client: Client, harness: Harness) -> None:
    client.declare("q", arguments=dead_letters_to("", "other"))
    client.declare("other", arguments=dead_letters_to("", "q", message_ttl=1000))
    client.publish("", "q")
    first_s = int(harness.broker.log.now_ms) // 1000
    for turn in range(1, 4):
        got = client.get("q")
        if turn > 1:
            assert history(got) == [("other", "expired", turn - 1), ("q", "rejected", turn - 1)]
            assert [death["time"] for death in deaths_of(got)] == [first_s + 1, first_s]
            headers = headers_of(got)
            assert (headers["x-first-death-queue"], headers["x-last-death-queue"]) == ("q", "other")
        assert got is not None
        client.send(1, m.BasicReject(got.method.delivery_tag, False))
        harness.pass_time(1)


@rule("warren.dead-letter.counts", "Counts of failed deliveries stay behind: a letter has all its tries where it goes.")
@pytest.mark.parametrize("delayed", [False, True])
def test_a_letter_has_all_its_tries(client: Client, harness: Harness, delayed: bool) -> None:
    limit: Table = {"x-delivery-limit": 2}
    client.declare("q", arguments=dead_letters_to("", "second") | limit)
    client.declare("second", arguments=dead_letters_to("", "dead") | limit)
    client.declare("dead")
    client.publish("", "q", headers=encode_table({"x-delay": 1000} if delayed else {"a": 1}))
    if delayed:
        harness.pass_time(1)
    for queue in ("q", "second"):
        for failures in range(3):
            got = client.get(queue)
            assert got is not None
            assert headers_of(got).get("x-delivery-count", 0) == failures
            client.send(1, m.BasicReject(got.method.delivery_tag, True))
    assert history(client.get("dead")) == [("second", "delivery_limit", 1), ("q", "delivery_limit", 1)]


@rule("warren.dead-letter.counts", "So has a message that a client publishes again with the headers it had.")
@pytest.mark.parametrize("header", ["x-delivery-count", "x-acquired-count"])
def test_a_republished_message_has_all_its_tries(client: Client, harness: Harness, header: str) -> None:
    client.declare("dead")
    client.declare("q", durable=True, arguments=dead_letters_to("", "dead", delivery_limit=1))
    client.declare("plain")
    client.call(1, m.ConfirmSelect(False))
    harness.store.hold = True
    client.publish("", "q", b"x" * 100, headers=encode_table({header: 100, "a": 1}), delivery_mode=2)
    client.nothing()
    harness.store.hold = False
    harness.settle()
    assert client.expect(m.BasicAck) == m.BasicAck(1, False), "its confirm waits for the disk as any other"
    for _ in range(2):
        got = client.get("q")
        assert got is not None and headers_of(got)["a"] == 1
        client.send(1, m.BasicReject(got.method.delivery_tag, True))
    assert ready(harness, "dead") == 1
    client.publish("", "plain", headers=encode_table({header: 100}))
    client.take()
    assert headers_of(client.get("plain")) == {header: 100}, "a queue that counts nothing has no opinion"


# --- where it goes ----------------------------------------------------------------------------------------------------


@rule(
    "rabbitmq.dead-letter.keys",
    "A letter goes by its own keys, CC and BCC included, or by the queue's one.",
)
@pytest.mark.parametrize("key", [None, "k", ""])
@every_cause
def test_the_keys_of_a_letter(client: Client, harness: Harness, cause: str, key: str | None) -> None:
    names = ("q", "cc", "bcc", "k", "none")
    for name in names[1:]:
        client.declare(f"dead-{name}")
        client.bind(f"dead-{name}", "amq.direct", "" if name == "none" else name)
    client.declare("dead-q")
    client.bind("dead-q", "amq.direct", "q")
    client.declare("q", arguments=dead_letters_to("amq.direct", key) | CAUSES[cause])
    kill(client, harness, cause, headers=encode_table({"CC": ["cc", "cc"], "BCC": ["bcc"], "a": 1}))
    there = [name for name in names if ready(harness, f"dead-{name}")]
    assert there == {None: ["q", "cc", "bcc"], "k": ["k"], "": ["none"]}[key]
    for name in there:
        got = client.get(f"dead-{name}", no_ack=True)
        headers = headers_of(got)
        assert "BCC" not in headers
        assert headers.get("CC") == (["cc", "cc"] if key is None else None)
        (death,) = deaths_of(got)
        assert death["routing-keys"] == ["q", "cc", "cc"]
        assert client.get(f"dead-{name}") is None


@rule(
    "warren.dead-letter.bcc",
    "The keys of BCC are not stored: after a restart a letter does not go by them.",
    deviation="In RabbitMQ it does. Nobody may see these keys, and a backup of the store shows what is in it.",
)
def test_blind_copies_are_not_stored() -> None:
    harness = DurableHarness()
    client = harness.channel()
    client.declare("q", durable=True, arguments=dead_letters_to("amq.direct"))
    for name in ("cc", "bcc"):
        client.declare(f"dead-{name}", durable=True)
        client.bind(f"dead-{name}", "amq.direct", name)
    client.publish("", "q", headers=encode_table({"CC": ["cc"], "BCC": ["bcc"]}), delivery_mode=2)
    harness.write()
    harness = harness.restart(clean=True)
    client = harness.channel()
    assert client.get("q") is not None
    client.send(1, m.BasicReject(1, False))
    assert (ready(harness, "dead-cc"), ready(harness, "dead-bcc")) == (1, 0)


@rule("rabbitmq.dead-letter.order", "What dies together arrives in the order of the queue.")
@pytest.mark.parametrize("cause", ["rejected", "expired", "maxlen"])
def test_letters_arrive_in_order(client: Client, harness: Harness, cause: str) -> None:
    client.declare("dead")
    client.declare("q", arguments=dead_letters_to("", "dead") | ({"x-message-ttl": 1000} if cause == "expired" else {}))
    for number in range(50):
        client.publish("", "q", b"%d" % number)
    if cause == "expired":
        harness.pass_time(1)
    elif cause == "maxlen":
        harness.broker.administer(PolicyPut("/", "p", "^q$", "queues", 0, json.dumps({"max-length": 0})))
    else:
        client.consume("q")
        client.take()
        client.send(1, m.BasicNack(0, multiple=True, requeue=False))
    assert bodies(client, "dead") == [b"%d" % number for number in range(50)]


@rule("rabbitmq.dead-letter.missing", "Without exchange or route a letter is lost, and nobody is told.")
@pytest.mark.parametrize("arguments", [dead_letters_to("missing"), dead_letters_to("amq.direct", "nobody")])
@every_cause
def test_letters_are_lost_quietly(client: Client, harness: Harness, cause: str, arguments: Table) -> None:
    client.declare("q", arguments=arguments | CAUSES[cause])
    client.call(1, m.ConfirmSelect(False))
    client.publish("", "q", mandatory=True)
    answer = m.BasicNack(1, multiple=False, requeue=False) if "refused" in cause else m.BasicAck(1, False)
    assert [each.method for each in client.take()] == [answer]
    if cause == "expired":
        harness.pass_time(1)
    if cause in ("rejected", "delivery_limit"):
        client.get("q")
        client.send(1, m.BasicReject(1, cause == "delivery_limit"))
    queue = harness.queue("q")
    assert (queue.ready_count, queue.unacked_count, undelivered(queue)) == (0, 0, 0)
    client.nothing()


@rule("rabbitmq.dead-letter.policy", "A policy says where letters go from then on; an argument goes before it.")
def test_dead_lettering_by_policy(client: Client, harness: Harness) -> None:
    for name in ("a", "b"):
        client.declare(name)
    client.declare("q1")
    client.declare("q2", arguments=dead_letters_to("", "a"))
    for queue in ("q1", "q2"):
        client.publish("", queue)
    definition = json.dumps({"dead-letter-exchange": "", "dead-letter-routing-key": "b"})
    harness.broker.administer(PolicyPut("/", "p", "^q", "queues", 0, definition))
    harness.settle()
    for tag, queue in ((1, "q1"), (2, "q2")):
        assert client.get(queue) is not None
        client.send(1, m.BasicReject(tag, False))
    assert (ready(harness, "a"), ready(harness, "b")) == (1, 1)


# --- circles and chains -----------------------------------------------------------------------------------------------


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


@rule("warren.dead-letter.cycle", "Deaths that a client publishes count on and cut no circle.")
def test_published_deaths_cut_no_circle(client: Client, harness: Harness) -> None:
    client.declare("q", arguments=dead_letters_to("", "wait", message_ttl=1000))
    client.declare("wait", arguments=dead_letters_to("", "nobody"))
    client.publish("", "q")
    for turn in range(1, 4):
        harness.pass_time(1)
        got = client.get("wait", no_ack=True)
        assert history(got) == [("q", "expired", turn)]
        assert got is not None and got.content is not None
        client.publish("", "q", headers=got.content.properties.headers)


PASSED_ON: Table = {"x-death": [{"queue": "q", "reason": "expired", "count": 3}], "mine": 1}


@rule("rabbitmq.dead-letter.as-published", "Until a message dies here its x-death comes back as a client published it.")
@pytest.mark.parametrize(
    "arguments",
    [{}, {"x-max-priority": 5}, {"x-queue-type": "quorum"}, {"x-delivery-limit": 3, "x-delayed-retry-type": "all"}],
)
def test_published_deaths_come_back_as_published(arguments: Table) -> None:
    harness = DurableHarness()
    client = harness.channel()
    client.declare("q", durable=True, arguments=dead_letters_to("", "wait") | arguments)
    client.declare("wait", durable=True, arguments=dead_letters_to("", "q", message_ttl=1000))
    headers = encode_table(PASSED_ON)
    client.publish("", "q", b"x", headers=headers, delivery_mode=2)
    harness.write()
    harness = harness.restart(clean=True)
    client = harness.channel()
    got = client.get("q")
    assert got is not None and got.content is not None and got.content.properties.headers == headers
    client.send(1, m.BasicReject(got.method.delivery_tag, True))
    got = client.get("q")
    assert headers_of(got)["x-death"] == PASSED_ON["x-death"]
    assert got is not None
    client.send(1, m.BasicReject(got.method.delivery_tag, False))
    assert history(client.get("wait")) == [("q", "rejected", 1), ("q", "expired", 3)]


@rule("rabbitmq.dead-letter.as-published", "They cut no circle after a restart either.")
def test_published_deaths_cut_no_circle_after_a_restart() -> None:
    harness = DurableHarness()
    client = harness.channel()
    client.declare("q", durable=True, arguments=dead_letters_to("", "wait", message_ttl=1000))
    client.declare("wait", durable=True, arguments=dead_letters_to("", "q", message_ttl=1000))
    sent: Table = {"x-death": [{"queue": "wait", "reason": "expired", "count": 1}]}
    client.publish("", "q", b"x", headers=encode_table(sent), delivery_mode=2)
    harness.write()
    harness = harness.restart(clean=False)
    client = harness.channel()
    harness.pass_time(1)
    assert history(client.get("wait")) == [("q", "expired", 1), ("wait", "expired", 1)], "not dropped as its circle"


@rule("rabbitmq.dead-letter.as-published", "So they do from a delayed exchange, a transaction, a history and a replay.")
@pytest.mark.parametrize("way", ["delay", "transaction", "history", "CC", "BCC"])
def test_published_deaths_come_back_as_published_by_every_way(client: Client, harness: Harness, way: str) -> None:
    client.call(1, m.ExchangeDeclare(0, "e", "x-recent-history", False, False, False, False, False, EMPTY_TABLE))
    client.declare("q")
    others: dict[str, Table] = {"delay": {"x-delay": 1000}, "CC": {"CC": ["q"]}, "BCC": {"BCC": ["q"]}}
    headers = PASSED_ON | others.get(way, {})
    if way == "transaction":
        client.call(1, m.TxSelect())
    client.publish("e" if way == "history" else "", "other" if "CC" in way else "q", headers=encode_table(headers))
    if way == "transaction":
        client.call(1, m.TxCommit())
    if way == "history":
        client.bind("q", "e", "q")
    harness.pass_time(1)
    assert headers_of(client.get("q"))["x-death"] == PASSED_ON["x-death"]


Q = {"queue": "q", "reason": "rejected"}
R = {"queue": "r", "reason": "expired"}
# x-death as a client publishes it, and after the next rejection in q: without times, exchanges and keys.
PUBLISHED_DEATHS: dict[str, tuple[object, list[object]]] = {
    "nothing": ([], [Q | {"count": 1}]),
    "a dead letter": ([Q | {"count": 7}, R | {"count": 2}], [Q | {"count": 8}, R | {"count": 2}]),
    "of an old broker, one each time": ([Q, R, Q, R, Q], [Q | {"count": 4}, R | {"count": 2}]),
    "of an old broker, with others": ([R, Q], [Q | {"count": 2}, R]),
    "of an old broker, alone": ([Q], [Q | {"count": 1}]),
    "repeated": ([R | {"count": 9}, R | {"count": 2}, R], [Q | {"count": 1}, R | {"count": 9}]),
    "bytes for texts": ([{"queue": b"q", "reason": b"rejected", "count": 3}], [{"count": 4}]),
    "a text for a count": ([Q | {"count": "7"}], [Q | {"count": 1}]),
    "a negative count": ([Q | {"count": -7}], [Q | {"count": 1}]),
    "the largest count": ([Q | {"count": (1 << 63) - 1}], [Q | {"count": (1 << 63) - 1}]),
    "a count that is a table": ([Q | {"count": {"n": 1}}, R | {"count": [1]}], [Q | {"count": 1}, R | {"count": [1]}]),
    "a text for a time": ([Q | {"count": 1, "time": "noon"}], [Q | {"count": 2, "time": "noon"}]),
    "another reason": ([{"queue": "q", "reason": "boredom", "count": 3}], [Q | {"count": 1}, {"reason": "boredom"}]),
    "no tables": ([5, None, "q", [Q]], [Q | {"count": 1}, 5, None, "q", [Q]]),
    "no names": ([{}, {"queue": 5}, {"count": 3}], [Q | {"count": 1}, {}, {"queue": 5}, {"count": 3}]),
    "a text": ("[{queue: q}]", [Q | {"count": 1}]),
    "a table": (Q | {"count": 7}, [Q | {"count": 1}]),
}


@rule("rabbitmq.dead-letter.published", "An x-death that a client publishes is counted on, whatever is in it.")
@pytest.mark.parametrize("name", PUBLISHED_DEATHS)
def test_published_deaths(client: Client, name: str) -> None:
    published, expected = PUBLISHED_DEATHS[name]
    client.declare("q", arguments=dead_letters_to("", "dead"))
    client.declare("dead")
    client.publish("", "q", headers=encode_table({"x-death": published, "mine": 1}))
    got = client.get("q")
    assert got is not None and headers_of(got)["mine"] == 1
    client.send(1, m.BasicReject(got.method.delivery_tag, False))
    headers = headers_of(client.get("dead"))
    deaths = headers["x-death"]
    assert isinstance(deaths, list) and len(deaths) == len(expected)
    for death, wanted in zip(deaths, expected, strict=True):
        if isinstance(wanted, dict):
            assert isinstance(death, dict) and wanted.items() <= death.items()
        else:
            assert death == wanted
    assert headers["mine"] == 1 and headers["x-last-death-queue"] == "q"


@rule("rabbitmq.dead-letter.published", "Going round with it, a message does not grow.")
@pytest.mark.parametrize("name", PUBLISHED_DEATHS)
def test_published_deaths_do_not_grow(client: Client, name: str) -> None:
    client.declare("q", arguments=dead_letters_to("", "dead"))
    client.declare("dead")
    headers = encode_table({"x-death": PUBLISHED_DEATHS[name][0]})
    sizes: list[int] = []
    for _ in range(5):
        client.publish("", "q", headers=headers)
        got = client.get("q")
        assert got is not None
        client.send(1, m.BasicReject(got.method.delivery_tag, False))
        dead = client.get("dead")
        assert dead is not None and dead.content is not None and dead.content.properties.headers is not None
        headers = dead.content.properties.headers
        sizes.append(len(headers))
    assert sizes[1:] == sizes[1:2] * 4


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


# --- at least once ----------------------------------------------------------------------------------------------------


def quorum(client: Client, exchange: str, key: str | None = None, name: str = "q", **arguments: object) -> None:
    """Declare a quorum queue that dead-letters at least once."""
    table = dead_letters_to(exchange, key, overflow="reject-publish", **arguments)
    table |= {"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once"}
    client.declare(name, durable=True, arguments=table)


def reject(client: Client, body: bytes = b"x", name: str = "q", **properties: Any) -> None:
    client.publish("", name, body, delivery_mode=2, **properties)
    got = client.get(name)
    assert got is not None
    client.send(1, m.BasicReject(got.method.delivery_tag, False))


@rule("rabbitmq.dead-letter.at-least-once", "A letter that a target refuses is kept and tried again every 5 s.")
def test_a_refused_letter_is_tried_again(client: Client, harness: Harness) -> None:
    client.declare("dead", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    quorum(client, "", "dead")
    client.publish("", "dead", b"in the way")
    for body in (b"1", b"2"):
        reject(client, body)
    queue = harness.queue("q")
    assert (queue.ready_count, queue.unacked_count, undelivered(queue)) == (0, 0, 2)
    harness.pass_time(2 * RETRY_S)
    assert bodies(client, "dead") == [b"in the way"]
    harness.pass_time(RETRY_S - 0.001)
    assert ready(harness, "dead") == 0
    harness.pass_time(0.001)
    assert (ready(harness, "dead"), undelivered(queue)) == (1, 1)
    assert bodies(client, "dead") == [b"1"]
    harness.pass_time(RETRY_S)
    assert (bodies(client, "dead"), undelivered(queue)) == ([b"2"], 0)
    harness.pass_time(10 * RETRY_S)
    assert ready(harness, "dead") == 0


@rule("rabbitmq.dead-letter.at-least-once", "So is one that has no target yet: no exchange, or no route.")
@pytest.mark.parametrize("missing", ["exchange", "route"])
def test_a_letter_without_a_target_is_tried_again(client: Client, harness: Harness, missing: str) -> None:
    quorum(client, "dlx", "k")
    client.declare("dead")
    if missing == "route":
        client.declare_exchange("dlx")
    reject(client)
    harness.pass_time(2 * RETRY_S)
    assert undelivered(harness.queue("q")) == 1
    if missing == "exchange":
        client.declare_exchange("dlx")
    client.bind("dead", "dlx", "k")
    harness.pass_time(RETRY_S)
    assert history(client.get("dead")) == [("q", "rejected", 1)]
    assert undelivered(harness.queue("q")) == 0


@rule("rabbitmq.dead-letter.at-least-once", "Of several targets only those get it again that have refused it.")
def test_only_those_that_refused_get_it_again(client: Client, harness: Harness) -> None:
    quorum(client, "amq.fanout")
    client.declare("taker", arguments={"x-message-ttl": 60_000})
    client.declare("refuser", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    for name in ("taker", "refuser"):
        client.bind(name, "amq.fanout")
    client.publish("", "refuser", b"in the way")
    reject(client, b"letter")
    harness.pass_time(4 * RETRY_S)
    assert ready(harness, "taker") == 1
    assert bodies(client, "refuser") == [b"in the way"]
    harness.pass_time(RETRY_S)
    assert (bodies(client, "refuser"), ready(harness, "taker")) == ([b"letter"], 1)


@rule("rabbitmq.dead-letter.at-least-once", "That it is kept for one target changes nothing for those that have it.")
def test_a_kept_letter_ages_where_it_was_taken(client: Client, harness: Harness) -> None:
    quorum(client, "amq.fanout")
    client.declare("at once", arguments={"x-message-ttl": 60_000})
    client.declare("later", arguments={"x-message-ttl": 60_000, "x-max-length": 1, "x-overflow": "reject-publish"})
    client.declare("never", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    for name in ("at once", "later", "never"):
        client.bind(name, "amq.fanout")
    client.publish("", "later", b"in the way")
    reject(client)
    assert bodies(client, "later") == [b"in the way"]
    left = []
    for seconds in (60 - 0.001, 0.001, RETRY_S - 0.001, 0.001):
        harness.pass_time(seconds)
        left.append((ready(harness, "at once"), ready(harness, "later")))
    assert left == [(1, 1), (0, 1), (0, 1), (0, 0)]
    assert undelivered(harness.queue("q")) == 1


@rule("rabbitmq.dead-letter.at-least-once", "A letter that is tried again goes by the same keys, CC and BCC included.")
def test_the_keys_of_a_letter_that_is_tried_again(client: Client, harness: Harness) -> None:
    quorum(client, "dlx")
    names = ("q", "cc", "bcc")
    reject(client, headers=encode_table({"CC": ["cc"], "BCC": ["bcc"]}))
    client.declare_exchange("dlx")
    for name in names:
        client.declare(f"dead-{name}")
        client.bind(f"dead-{name}", "dlx", name)
    harness.pass_time(RETRY_S)
    assert [ready(harness, f"dead-{name}") for name in names] == [1, 1, 1]


@rule("rabbitmq.dead-letter.at-least-once", "A circle stays cut when it is tried again.")
def test_a_circle_stays_cut(client: Client, harness: Harness) -> None:
    quorum(client, "amq.fanout", message_ttl=1000)
    client.declare("refuser", durable=True, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    for name in ("q", "refuser"):
        client.bind(name, "amq.fanout")
    client.publish("", "q", delivery_mode=2)
    harness.pass_time(1 + 3 * RETRY_S)
    queue = harness.queue("q")
    assert (int(queue.published), undelivered(queue)) == (1, 1)


@rule("rabbitmq.dead-letter.at-least-once", "A chain is gone through without waiting for another try.")
def test_a_long_chain_of_quorum_queues(client: Client, harness: Harness) -> None:
    length = 35
    for at in range(length):
        quorum(client, "", f"q{at + 1}", f"q{at}", message_ttl=0)
    client.declare(f"q{length}")
    client.publish("", "q0", delivery_mode=2)
    assert len(deaths_of(client.get(f"q{length}"))) == length
    assert sum(undelivered(harness.queue(f"q{at}")) for at in range(length)) == 0


@rule("rabbitmq.dead-letter.at-least-once", "Without reject-publish, and in classic queues, it is at most once.")
@pytest.mark.parametrize(
    "arguments",
    [
        {"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once"},
        {"x-queue-type": "quorum", "x-overflow": "reject-publish"},
        {"x-overflow": "reject-publish"},
    ],
)
def test_at_most_once(client: Client, harness: Harness, arguments: Table) -> None:
    client.declare("q", durable=True, arguments=dead_letters_to("missing") | arguments)
    reject(client)
    assert undelivered(harness.queue("q")) == 0


@rule("warren.dead-letter.at-least-once.restart", "A stored letter that waits for its target waits over restarts.")
@pytest.mark.parametrize("clean", [False, True])
def test_waiting_letters_survive(clean: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    quorum(client, "", "dead")
    for number in range(40):
        reject(client, b"%d" % number)
    harness.write()
    for _ in range(2):
        harness = harness.restart(clean=clean, memory_bytes=0)
        assert undelivered(harness.queue("q")) == 40
        harness.pass_time(RETRY_S)
    client = harness.channel()
    client.declare("dead", durable=True)
    harness.pass_time(RETRY_S)
    got = client.get("dead")
    assert history(got) == [("q", "rejected", 1)]
    assert got is not None and body_of(got) == b"0"
    assert len(bodies(client, "dead")) == 39
    harness.write()
    assert undelivered(harness.restart(clean=clean).queue("q")) == 0


@rule("warren.dead-letter.at-least-once.restart", "After a start with the clock set back a letter is tried in 5 s.")
@pytest.mark.parametrize("clean", [False, True])
def test_a_letter_of_a_clock_that_was_ahead_is_tried_again(clean: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    quorum(client, "", "dead")
    reject(client)
    harness.write()
    harness = harness.restart(clean=clean, down_s=-3600, memory_bytes=0)
    client = harness.channel()
    client.declare("dead", durable=True)
    harness.pass_time(RETRY_S)
    assert bodies(client, "dead") == [b"x"]


@rule("warren.dead-letter.at-least-once.memory", "Who has taken a letter does not get it again, wherever that waits.")
def test_a_letter_that_has_left_memory_knows_who_has_it() -> None:
    harness = DurableHarness(memory_bytes=0)
    client = harness.channel()
    quorum(client, "amq.fanout")
    client.declare("taker", durable=True)
    client.declare("refuser", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    for name in ("taker", "refuser"):
        client.bind(name, "amq.fanout")
    client.publish("", "refuser", b"in the way", delivery_mode=2)
    for number in range(3):
        reject(client, b"%d" % number)
    harness.write()
    lane = harness.queue("q").held(UNDELIVERED)
    assert lane is not None and lane.in_memory_count() == 0
    for _ in range(3):
        harness.pass_time(RETRY_S)
    assert (ready(harness, "taker"), undelivered(harness.queue("q"))) == (3, 3)
    assert bodies(client, "refuser") == [b"in the way"]
    harness.pass_time(RETRY_S)
    assert (bodies(client, "refuser"), ready(harness, "taker")) == ([b"0"], 3)
    assert undelivered(harness.queue("q")) == 2


@rule("warren.dead-letter.at-least-once.in-place", "A letter that is tried again in vain writes nothing to the log.")
@pytest.mark.parametrize("memory_bytes", [0, 1 << 30])
def test_a_try_in_vain_writes_nothing(memory_bytes: int) -> None:
    harness = DurableHarness(memory_bytes=memory_bytes)
    client = harness.channel()
    quorum(client, "", "dead")
    for number in range(3):
        reject(client, b"%d" % number)
    harness.write()
    written = harness.broker.log.next_lsn
    for _ in range(3):
        harness.pass_time(RETRY_S)
        harness.write()
    assert (harness.broker.log.next_lsn, undelivered(harness.queue("q"))) == (written, 3)
    client.declare("dead", durable=True)
    harness.pass_time(RETRY_S)
    assert (bodies(client, "dead"), undelivered(harness.queue("q"))) == ([b"0", b"1", b"2"], 0)


@rule("warren.dead-letter.at-least-once.deleted", "Letters that wait go with their queue.")
def test_waiting_letters_go_with_their_queue(client: Client, harness: Harness) -> None:
    quorum(client, "", "dead")
    reject(client)
    client.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    client.declare("dead")
    harness.pass_time(3 * RETRY_S)
    assert ready(harness, "dead") == 0


# --- on disk ----------------------------------------------------------------------------------------------------------


@rule(
    "warren.dead-letter.one-write",
    "Between durable queues a letter moves in one write: it is in one place after a crash.",
)
@pytest.mark.parametrize("crash", ["before", "after"])
@pytest.mark.parametrize("cause", ["rejected", "expired", "maxlen", "delivery_limit"])
def test_a_letter_moves_in_one_write(cause: str, crash: str) -> None:
    harness = DurableHarness()
    client = harness.channel()
    needs = CAUSES[cause] | ({"x-max-length": 1} if cause == "maxlen" else {})
    client.declare("q", durable=True, arguments=dead_letters_to("amq.fanout") | needs)
    for name in ("a", "b"):
        client.declare(name, durable=True)
        client.bind(name, "amq.fanout")
    client.publish("", "q", b"letter", delivery_mode=2)
    harness.write()
    if cause in ("rejected", "delivery_limit"):
        assert client.get("q") is not None
    if crash == "before":
        harness.store.hold = True
    commits = harness.store.commits
    if cause == "expired":
        harness.pass_time(1)
    elif cause == "maxlen":
        client.publish("", "q", delivery_mode=1)
    else:
        client.send(1, m.BasicReject(1, cause == "delivery_limit"))
    assert (ready(harness, "a"), ready(harness, "b")) == (1, 1)
    harness.write()
    assert harness.store.commits - commits == (0 if crash == "before" else 1)
    harness = harness.restart(clean=False)
    there = [name for name in ("q", "a", "b") if ready(harness, name)]
    if crash == "after":
        assert there == ["a", "b"]
        return
    assert there == (["a", "b"] if cause == "expired" else ["q"]), "what was too old then is too old now"


@rule("warren.dead-letter.one-write", "One that waits for its turn is where it was: a crash loses nothing.")
@pytest.mark.parametrize("cause", ["maxlen", "maxlen, refused"])
def test_a_letter_that_waits_for_its_turn_survives(cause: str) -> None:
    harness = DurableHarness()
    client = harness.channel()
    length = 240
    client.declare("q0", durable=True, arguments=dead_letters_to("", "q1", max_length=0))
    for at in range(1, length):
        client.declare(f"q{at}", durable=True, arguments=dead_letters_to("", f"q{at + 1}") | CAUSES[cause])
    client.declare(f"q{length}", durable=True)
    harness.write()
    client.connection.feed(publish_frames("", "q0", b"letter", properties={"delivery_mode": 2}))
    assert harness.broker.has_work(), "not all of the chain in one turn"
    assert ready(harness, f"q{length}") == 0
    log = harness.broker.log
    log.force()
    log.close_if_due()
    assert harness.store.run()
    harness = harness.restart(clean=False)
    assert [int(queue.message_count) for queue in harness.vhost.queues.values()] == [0] * length + [1]
    assert bodies(harness.channel(), f"q{length}") == [b"letter"]


@rule("warren.dead-letter.one-write", "It had died before its queue is deleted: it is sent all the same.")
def test_a_letter_outlives_its_queue(client: Client, harness: Harness) -> None:
    length = 240
    for at in range(length):
        client.declare(f"q{at}", durable=True, arguments=dead_letters_to("", f"q{at + 1}", max_length=0))
    client.declare(f"q{length}", durable=True)
    client.connection.feed(publish_frames("", "q0", b"letter", properties={"delivery_mode": 2}))
    reached = max(at for at in range(length) if harness.queue(f"q{at}").published)
    assert reached < length
    harness.broker.delete_queue(harness.vhost, harness.queue(f"q{reached}"))
    harness.settle()
    assert bodies(client, f"q{length}") == [b"letter"]


@rule("warren.dead-letter.one-write", "So does one that its target refuses, from its queue into those that wait.")
@pytest.mark.parametrize("crash", ["before", "after"])
def test_a_refused_letter_moves_in_one_write(crash: str) -> None:
    harness = DurableHarness()
    client = harness.channel()
    quorum(client, "", "dead")
    client.publish("", "q", delivery_mode=2)
    harness.write()
    assert client.get("q") is not None
    harness.store.hold = crash == "before"
    commits = harness.store.commits
    client.send(1, m.BasicReject(1, False))
    harness.write()
    assert harness.store.commits - commits == (0 if crash == "before" else 1)
    harness = harness.restart(clean=False)
    queue = harness.queue("q")
    assert (queue.ready_count, undelivered(queue)) == ((1, 0) if crash == "before" else (0, 1))


@rule("warren.dead-letter.stored", "A letter is stored where its message was persistent and its new queue is durable.")
@pytest.mark.parametrize("mode", [1, 2])
@pytest.mark.parametrize("durable", [False, True])
def test_what_is_stored(client: Client, harness: Harness, mode: int, durable: bool) -> None:
    client.declare("dead", durable=durable)
    client.declare("q", arguments=dead_letters_to("", "dead"))
    kill(client, harness, "rejected", delivery_mode=mode)
    harness.broker.log.force()
    harness.settle()
    index = harness.queue("dead").ready.index_of(0)
    stored = 0 if index is None else int(index.live_count)
    assert stored == (1 if durable and mode == 2 else 0)
