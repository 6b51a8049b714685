"""Drains over HTTP: sessions, epochs and claims, who may do what, what operators see, what clients may not do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
import pytest
from broker_process import WarrenProcess
from column_rows import Row, rows_of
from pika.exceptions import ChannelClosedByBroker

from .client import Api, Place, connect, q
from .conftest import Connect

PERSISTENT = pika.BasicProperties(delivery_mode=2)


class Session:
    """A session that is open: calls of it, and what it has claimed."""

    def __init__(
        self, place: Place, queue: str, name: str = "reader", api: Api | None = None, lease_s: int | None = None
    ) -> None:
        self.api = api or place.api
        self.v = place.v
        self.path = f"/warren/drains/{place.v}/{q(queue)}/{q(name)}"
        self.opened: Any = self.api.post(f"{self.path}/open", {"owner": "a test", "lease_s": lease_s}).json
        self.epoch: int = self.opened["epoch"]

    def ask(self, call: str, **body: Any) -> Any:
        return self.api.ask("POST", f"{self.path}/{call}", {"epoch": self.epoch} | body)

    def claim(self, after: int, max_rows: int = 1000, **more: Any) -> tuple[int, int]:
        answer = self.ask("claim", after=after, max_rows=max_rows, **more)
        assert answer.status == 200, answer
        return answer.json["first"], answer.json["end"]

    def rows(self, first: int, end: int) -> list[Row]:
        return read(self.api, self.v, self.opened["queue"], self.opened["id"], first, end)


def read(
    api: Api, v: str, queue: str, identifier: str, first: int, end: int, snapshot: str = "", *, missing: int = 0
) -> list[Row]:
    """Read a range from the data port; `missing`: how many rows at its end do not exist."""
    rows: list[Row] = []
    at = first
    while at < end:
        more = f"&snapshot={snapshot}" if snapshot else ""
        path = f"/warren/data/{v}/{q(queue)}/chunks?from={at}&to={end}&id={q(identifier)}{more}"
        answer = api.ask("GET", path)
        assert answer.status == 200, answer
        rows += [row for row in rows_of(answer.body) if at <= row.offset < end]
        at = int(answer.headers["x-warren-next"])
    assert [row.offset for row in rows] == list(range(first, end - missing))
    return rows


def fill(channel: Any, queue: str, count: int, **arguments: Any) -> list[bytes]:
    """Declare a queue, and publish messages that it has confirmed."""
    bodies = [b"%d" % number for number in range(count)]
    channel.queue_declare(queue, durable=True, arguments=arguments)
    channel.confirm_delivery()
    for body in bodies:
        channel.basic_publish("", queue, body, PERSISTENT)
    return bodies


def drained(channel: Any, queue: str) -> list[tuple[bytes, bool]]:
    """Take everything out of a queue: bodies, and whether they were redelivered."""
    found: list[tuple[bytes, bool]] = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return found
        found.append((body, method.redelivered))


def test_a_queue_is_drained_in_claims_that_can_be_read_until_they_are_acknowledged(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    bodies = fill(channel, "q", 250)
    session = Session(place, "q")
    assert (session.opened["first"], session.opened["end"]) == (0, 0)
    assert session.claim(0, 100) == (0, 100)
    for _ in range(2):
        assert [row.body for row in session.rows(0, 100)] == bodies[:100]
    assert [row.body for row in session.rows(40, 60)] == bodies[40:60]
    assert session.claim(100, 1000) == (100, 250)
    below = f"/warren/data/{place.v}/{q(session.opened['queue'])}/chunks?from=99&to=250&id={session.opened['id']}"
    assert place.api.ask("GET", below).refusal[:2] == (410, "gone")
    assert [row.body for row in session.rows(100, 250)] == bodies[100:]
    assert session.claim(250) == (250, 250)
    assert drained(channel, "q") == []


def test_a_claimed_message_keeps_what_came_with_it(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    channel.queue_declare("q", durable=True)
    channel.exchange_declare("e", "topic")
    channel.queue_bind("q", "e", "#")
    given = pika.BasicProperties("text/plain", message_id="m", headers={"n": 1}, delivery_mode=1, timestamp=7)
    channel.confirm_delivery()
    channel.basic_publish("e", "a.key", b"x" * 300_000, given)
    channel.basic_publish("", "q", b"", PERSISTENT)
    method, _, _ = channel.basic_get("q")
    channel.basic_nack(method.delivery_tag, requeue=True)
    place.api.eventually(f"/queues/{place.v}/q", lambda found: found["messages_ready"] == 2)
    session = Session(place, "q")
    assert session.claim(0) == (0, 2)
    large, empty = session.rows(0, 2)
    assert (large.exchange, large.routing_key, large.body, large.redelivered) == ("e", "a.key", b"x" * 300_000, True)
    assert (empty.exchange, empty.routing_key, empty.body, empty.redelivered) == ("", "q", b"", False)
    assert large.time_ms > 1_600_000_000_000
    assert session.ask("release").json == {"released": 2}
    method, properties, body = channel.basic_get("q")
    assert (method.exchange, method.routing_key, method.redelivered, body) == ("e", "a.key", True, b"x" * 300_000)
    assert (properties.message_id, properties.headers, properties.delivery_mode) == ("m", {"n": 1}, 1)
    assert (properties.content_type, properties.timestamp) == ("text/plain", 7)


def test_who_comes_later_has_the_session_and_finds_what_is_claimed(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    bodies = fill(channel, "q", 50)
    first = Session(place, "q")
    assert first.claim(0, 20) == (0, 20)
    second = Session(place, "q")
    assert second.epoch > first.epoch
    assert (second.opened["first"], second.opened["end"]) == (0, 20)
    for call, body in (("claim", {"after": 0, "max_rows": 1}), ("mark", {}), ("release", {})):
        assert first.ask(call, **body).refusal[:2] == (409, "fenced")
    assert second.claim(0, 1) == (0, 20)
    assert [row.body for row in second.rows(0, 20)] == bodies[:20]
    other = Session(place, "q", "somebody else")
    assert other.claim(0, 1000) == (0, 30)
    assert [row.body for row in other.rows(0, 30)] == bodies[20:]


@pytest.mark.long
def test_a_consumer_and_a_drain_share_a_queue_and_nobody_has_a_message_of_the_other(
    place: Place, amqp: Connect
) -> None:
    channel: Any = amqp().channel()
    bodies = fill(channel, "q", 300)
    session = Session(place, "q")
    mine: list[bytes] = []
    theirs: list[bytes] = []
    at = 0
    while len(mine) + len(theirs) < len(bodies):
        method, _, body = channel.basic_get("q", auto_ack=True)
        if method is not None:
            theirs.append(body)
        first, end = session.claim(at, 7)
        mine += [row.body for row in session.rows(first, end)]
        at = end
    assert sorted(mine + theirs) == sorted(bodies) and theirs
    assert session.claim(at) == (at, at)


def test_claims_until_a_mark_end_while_publishers_go_on(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    fill(channel, "q", 30, **{"x-max-priority": 5})
    session = Session(place, "q")
    mark = session.ask("mark").json["mark"]
    for number in range(20):
        channel.basic_publish("", "q", b"late", pika.BasicProperties(delivery_mode=2, priority=number % 6))
    assert session.claim(0, 10, until=mark) == (0, 10)
    assert session.claim(10, 1000, until=mark) == (10, 30)
    assert session.claim(30, 1000, until=mark) == (30, 30)
    assert session.claim(30, 1000) == (30, 50)
    assert {row.body for row in session.rows(30, 50)} == {b"late"}


def test_operators_see_sessions_and_release_and_delete_them(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    bodies = fill(channel, "q/1", 10)
    session = Session(place, "q/1", "a/b ü")
    session.claim(0, 4)
    (listed,) = place.api.get(f"/warren/drains/{place.v}")
    assert listed == place.api.get(session.path)
    assert listed in place.api.get("/warren/drains")
    expected = {"vhost": place.vhost, "queue": "q/1", "name": "a/b ü", "claimed": 4, "claimed_bytes": 4, "first": 0}
    expected |= {"end": 4, "epoch": session.epoch, "owner": "a test", "lease_s": None, "queue_exists": True}
    assert {key: listed[key] for key in expected} == expected
    assert listed["opened_at"] <= listed["last_seen_at"]
    claims = place.api.get(f"/queues/{place.v}/{q(listed['claims'])}")
    assert (claims["messages"], claims["type"], claims["durable"]) == (4, "classic", True)
    assert claims["arguments"] == {"x-drain-queue": "q/1", "x-drain-consumer": "a/b ü"}
    items = place.api.get(f"/warren/queues/{place.v}/{q(listed['claims'])}/messages")["items"]
    assert [item["payload"] for item in items] == ["0", "1", "2", "3"]
    assert place.api.ask("DELETE", session.path).refusal[:2] == (409, "claimed")
    assert place.api.post(f"{session.path}/release", {}).json == {"released": 4}
    assert session.ask("claim", after=4, max_rows=1).refusal[:2] == (409, "fenced")
    assert drained(channel, "q/1") == [(body, False) for body in bodies[4:]] + [(body, True) for body in bodies[:4]]
    assert place.api.ask("DELETE", f"{session.path}?epoch={session.epoch}").refusal[:2] == (409, "fenced")
    assert place.api.ask("DELETE", f"{session.path}?epoch=x").status == 400
    assert place.api.delete(f"{session.path}?epoch={session.epoch + 1}") == 204
    assert place.api.ask("GET", session.path).refusal[:2] == (404, "no_drain")
    assert session.ask("claim", after=4, max_rows=1).refusal[:2] == (404, "no_drain")
    assert place.api.get(f"/warren/drains/{place.v}") == []


def test_claims_of_a_deleted_queue_are_read_and_thrown_away_when_that_is_said(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    bodies = fill(channel, "q", 10)
    session = Session(place, "q")
    session.claim(0, 4)
    channel.queue_delete("q")
    assert not place.api.get(session.path)["queue_exists"]
    assert [row.body for row in session.rows(0, 4)] == bodies[:4]
    assert session.claim(2) == (2, 4)
    assert session.ask("release").refusal[:2] == (404, "no_queue")
    assert place.api.delete(f"{session.path}?discard=true") == 204
    missing = place.api.ask("POST", f"{session.path}/open", {})
    assert missing.status == 404


def test_what_a_reader_with_a_lease_leaves_behind_goes_back(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    bodies = fill(channel, "q", 10)
    session = Session(place, "q", lease_s=3)  # as long as the test may take for its claim
    assert session.claim(0, 4) == (0, 4)
    listed = place.api.eventually(session.path, lambda found: found["claimed"] == 0)
    assert (listed["lease_s"], listed["first"], listed["end"]) == (3, 4, 4) and listed["epoch"] > session.epoch
    assert session.ask("claim", after=4, max_rows=1).refusal[:2] == (409, "fenced")
    assert drained(channel, "q") == [(body, False) for body in bodies[4:]] + [(body, True) for body in bodies[:4]]


@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_no_policy_holds_for_claims(place: Place, amqp: Connect, kind: str) -> None:
    channel: Any = amqp().channel()
    fill(channel, "q", 20, **{"x-queue-type": kind})
    session = Session(place, "q")
    definition = {"message-ttl": 1, "max-length": 1, "expires": 1}
    session.claim(0, 10)
    place.api.put(f"/policies/{place.v}/all", {"pattern": ".*", "definition": definition, "apply-to": "all"})
    place.api.put(
        f"/operator-policies/{place.v}/all", {"pattern": "drain", "definition": {"max-length": 1}, "apply-to": "queues"}
    )
    place.api.eventually(f"/queues/{place.v}", lambda found: len(found) == 1)
    claims = place.api.get(f"/queues/{place.v}/{q(session.opened['queue'])}")
    assert (claims["messages"], claims["policy"], claims["operator_policy"]) == (10, None, None)
    assert len(session.rows(0, 10)) == 10


def test_clients_can_do_nothing_with_claims(place: Place, amqp: Connect) -> None:
    connection = amqp()
    channel: Any = connection.channel()
    fill(channel, "q", 5)
    session = Session(place, "q")
    session.claim(0)
    claims = session.opened["queue"]
    attempts: tuple[Callable[[Any], Any], ...] = (
        lambda each: each.basic_get(claims),
        lambda each: each.basic_consume(claims, lambda *_: None),
        lambda each: each.queue_purge(claims),
        lambda each: each.queue_delete(claims),
        lambda each: each.queue_bind(claims, "amq.topic", "#"),
        lambda each: each.queue_declare(claims, durable=True),
        lambda each: each.queue_declare("amq.drain/q/another", durable=True),
    )
    for attempt in attempts:
        with pytest.raises(ChannelClosedByBroker) as refused:
            attempt(connection.channel())
        assert refused.value.reply_code == 403
    confirming: Any = connection.channel()
    confirming.confirm_delivery()
    for properties in (PERSISTENT, pika.BasicProperties(expiration="1"), pika.BasicProperties(headers={"x-delay": 1})):
        with pytest.raises(pika.exceptions.NackError):
            confirming.basic_publish("", claims, b"no", properties)
    order = {"destination": {"queue": "q"}, "mode": "move"}
    assert place.api.ask("POST", f"/warren/queues/{place.v}/{q(claims)}/transfers", order).status == 400
    assert place.api.ask("POST", f"/warren/drains/{place.v}/{q(claims)}/c/open", {}).status == 400
    assert [row.body for row in session.rows(0, 5)] == [b"0", b"1", b"2", b"3", b"4"]
    names = [each["name"] for each in place.api.get(f"/definitions/{place.v}")["queues"]]
    assert names == ["q"], "claims are not part of what is exported"


def test_a_user_who_may_read_the_queue_and_has_no_tag_may_drain_it(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    bodies = fill(channel, "orders", 10)
    reader = place.user("reader", "", {"configure": "^$", "write": "^$", "read": "^orders$"})
    session = Session(place, "orders", api=reader)
    assert session.claim(0) == (0, 10)
    assert [row.body for row in session.rows(0, 10)] == bodies
    assert reader.ask("GET", session.path).status == 200
    assert session.ask("mark").status == 200
    # An operator's ways are not for it.
    assert reader.ask("POST", f"{session.path}/release", {}).status == 401
    assert reader.ask("DELETE", f"{session.path}?discard=true").status == 401
    assert reader.ask("GET", f"/warren/drains/{place.v}").status == 401
    assert session.ask("release").json == {"released": 10}
    assert reader.ask("DELETE", session.path).status == 204
    other = place.user("other", "", {"configure": ".*", "write": ".*", "read": "^amq|^else$"})
    session = Session(place, "orders")
    session.claim(0)
    for method, path, body in (
        ("POST", f"{session.path}/open", {}),
        ("POST", f"{session.path}/claim", {"epoch": session.epoch, "after": 0, "max_rows": 1}),
        ("POST", f"{session.path}/mark", {"epoch": session.epoch}),
        ("POST", f"{session.path}/release", {"epoch": session.epoch}),
        ("GET", session.path, None),
        ("DELETE", session.path, None),
        ("GET", f"/warren/data/{place.v}/{q(session.opened['queue'])}/chunks?from=0&to=1", None),
    ):
        assert other.ask(method, path, body).status == 401, (method, path)
    stranger = place.user("stranger", "administrator", None)
    assert stranger.ask("POST", f"{session.path}/open", {}).status == 401


@pytest.mark.parametrize(
    ("call", "body", "status"),
    [
        ("claim", {}, 400),
        ("claim", {"epoch": 1}, 400),
        ("claim", {"after": -1, "max_rows": 1}, 400),
        ("claim", {"after": 1 << 70, "max_rows": 1}, 400),
        ("claim", {"after": 0, "max_rows": 0}, 400),
        ("claim", {"after": 0, "max_rows": 1, "max_bytes": 0}, 400),
        ("claim", {"after": 0, "max_rows": 1, "until": -1}, 400),
        ("claim", {"after": 0, "max_rows": 1, "until": "x"}, 400),
        ("claim", {"after": 1, "max_rows": 1}, 409),
        ("mark", {"epoch": "x"}, 400),
        ("release", {"epoch": []}, 400),
        ("open", {"owner": "x" * 2000}, 400),
        ("open", {"owner": 5}, 400),
        ("open", {"lease_s": 0}, 400),
        ("open", {"lease_s": 2592001}, 400),
        ("open", {"lease_s": "1m"}, 400),
    ],
)
def test_calls_that_make_no_sense_are_refused(
    place: Place, amqp: Connect, call: str, body: dict[str, Any], status: int
) -> None:
    channel: Any = amqp().channel()
    channel.queue_declare("q", durable=True)
    session = Session(place, "q")
    given = body if "epoch" in body or not body else {"epoch": session.epoch} | body
    assert place.api.ask("POST", f"{session.path}/{call}", given).status == status


def test_what_cannot_be_drained_is_refused(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
    channel.queue_declare("own", exclusive=True)
    for queue, name, status in (
        ("s", "c", 400),
        ("own", "c", 400),
        ("none", "c", 404),
        ("s", "", 404),
        ("s", "\n", 400),
        ("s", "x" * 256, 400),
    ):
        answer = place.api.ask("POST", f"/warren/drains/{place.v}/{queue}/{q(name)}/open", {})
        assert answer.status == status, (queue, name, answer)


def test_names_that_are_long_or_alike_have_claims_of_their_own(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    names = [("a/b", "c"), ("a", "b/c"), ("a%2Fb", "c"), ("x" * 255, "y" * 255), ("x" * 255, "y" * 254 + "z")]
    claims = set()
    for queue, consumer in names:
        channel.queue_declare(queue, durable=True)
        channel.basic_publish("", queue, f"{queue} {consumer}".encode(), PERSISTENT)
        place.api.eventually(f"/queues/{place.v}/{q(queue)}", lambda found: found["messages_ready"] > 0)
        session = Session(place, queue, consumer)
        assert session.claim(0) == (0, 1)
        assert session.rows(0, 1)[0].body == f"{queue} {consumer}".encode()
        claims.add(session.opened["queue"])
    assert len(claims) == len(names)
    listed = {(each["queue"], each["name"]) for each in place.api.get(f"/warren/drains/{place.v}")}
    assert listed == set(names)


@pytest.mark.long
def test_sessions_claims_and_epochs_are_there_after_a_restart(tmp_path: Any) -> None:
    with WarrenProcess(tmp_path) as process:
        api = Api(process.http_port)
        place = Place(api, "/")
        channel: Any = connect(process.amqp_port, "/").channel()
        bodies = fill(channel, "q", 1000)
        session = Session(place, "q", lease_s=3600)
        assert session.claim(0, 600) == (0, 600)
        assert session.claim(333, 100) == (333, 600)
        process.kill()
        process.start()
        api = Api(process.http_port)
        place = Place(api, "/")
        (listed,) = api.get("/warren/drains")
        assert (listed["claimed"], listed["epoch"], listed["end"]) == (267, session.epoch, 600)
        assert (listed["last_seen_at"], listed["lease_s"]) == (None, 3600)
        shown = api.get(session.path)
        assert (shown["first"], shown["end"], shown["last_seen_at"]) == (333, 600, None)
        read(api, place.v, session.opened["queue"], session.opened["id"], 333, 334)
        assert api.get("/warren/drains")[0]["last_seen_at"], "who reads claims is there"
        stale = Session.__new__(Session)
        stale.__dict__ |= session.__dict__ | {"api": api}
        assert stale.claim(333, 1) == (333, 600), "the session goes on"
        again = Session(place, "q")
        assert again.epoch > session.epoch
        assert (again.opened["first"], again.opened["end"], again.opened["id"]) == (333, 600, session.opened["id"])
        assert [row.body for row in again.rows(333, 600)] == bodies[333:600]
        assert stale.ask("mark").refusal[:2] == (409, "fenced")
        assert again.claim(600, 1000) == (600, 1000)
        assert again.claim(1000, 1000) == (1000, 1000)
        process.stop()
        process.start()
        again.api = Api(process.http_port)
        assert again.claim(1000, 1000) == (1000, 1000), "no number is given twice"
        channel = connect(process.amqp_port, "/").channel()
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"new", PERSISTENT)
        assert again.claim(1000, 1000) == (1000, 1001)
        assert again.rows(1000, 1001)[0].body == b"new"


# --- single claims ----------------------------------------------------------------------------------------------------


def settle(session: Session, how: str, *ranges: tuple[int, int], **more: Any) -> Any:
    body = {"id": session.opened["id"], "how": how, "ranges": ranges} | more
    return session.api.ask("POST", f"{session.path}/settle", body)


def with_dead_letters(channel: Any, count: int, **arguments: Any) -> list[bytes]:
    channel.queue_declare("dead", durable=True)
    dead_letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    return fill(channel, "q", count, **dead_letters, **arguments)


def test_single_claims_are_settled_otherwise_when_they_are_acknowledged(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    bodies = with_dead_letters(channel, 10)
    session = Session(place, "q")
    assert session.claim(0) == (0, 10)
    assert settle(session, "dead_letter", (2, 4), (6, 7)).json == {"settled": 3}
    assert settle(session, "requeue", (8, 9)).json == {"settled": 4}
    assert settle(session, "ack", (3, 4)).json == {"settled": 3}  # decided again
    assert drained(channel, "dead") == [] and drained(channel, "q") == []  # not before it is acknowledged
    assert [row.body for row in session.rows(0, 10)] == bodies
    assert session.claim(10, until=0) == (10, 10)
    assert drained(channel, "dead") == [(bodies[2], False), (bodies[6], False)]
    assert drained(channel, "q") == [(bodies[8], True)]
    assert settle(session, "dead_letter", (9, 10)).json == {"settled": 0}  # it has gone
    assert settle(session, "dead_letter", (10, 11)).refusal[:2] == (409, "not_claimed")


def test_dead_letters_of_a_drain_say_why_they_died(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    with_dead_letters(channel, 1)
    session = Session(place, "q")
    session.claim(0)
    settle(session, "dead_letter", (0, 1))
    session.claim(1)
    _, properties, _ = channel.basic_get("dead", auto_ack=True)
    (death,) = properties.headers["x-death"]
    assert (death["queue"], death["reason"], death["count"]) == ("q", "rejected", 1)


def test_a_queue_without_dead_letter_exchange_says_so_before_anything_is_lost(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    fill(channel, "q", 1)
    session = Session(place, "q")
    session.claim(0)
    assert settle(session, "dead_letter", (0, 1)).refusal[:2] == (409, "no_dead_letter_exchange")
    assert settle(session, "burn", (0, 1)).status == 400
    assert settle(session, "ack", (1, 0)).status == 400
    assert settle(session, "ack", (0, 1), delay_ms=1).status == 400
    assert settle(session, "ack", (0, 1), id="another").refusal[:2] == (409, "another_queue")
    assert settle(session, "ack", (0, 1), epoch=session.epoch - 1).refusal[:2] == (409, "fenced")
    assert settle(session, "ack", (0, 1), epoch=session.epoch).json == {"settled": 0}


def test_what_a_reader_puts_back_is_counted_delayed_and_given_up(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    (body,) = with_dead_letters(channel, 1, **{"x-queue-type": "quorum", "x-delivery-limit": 1})
    session = Session(place, "q")
    session.claim(0)
    settle(session, "requeue", (0, 1), delay_ms=1)
    first, end = session.claim(1)
    while end == first:  # it is held for a moment
        first, end = session.claim(1)
    assert (first, end) == (1, 2)
    settle(session, "requeue", (1, 2))
    session.claim(2)
    assert drained(channel, "dead") == [(body, False)]
    assert session.claim(2) == (2, 2)


def test_a_batch_that_fails_too_often_is_given_up(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    bodies = with_dead_letters(channel, 4, **{"x-delivery-limit": 1})
    session = Session(place, "q")
    session.claim(0, 3)
    batch = {"first": 0, "end": 3}
    for times in (1, 2):
        session = Session(place, "q")
        for _ in range(2):  # once in an epoch
            assert session.ask("fail", **batch).json == {"times": times, "limit": 1}
    settle(session, "requeue", (1, 2))
    assert session.claim(3, 1) == (3, 4)
    assert drained(channel, "dead") == [(bodies[0], False), (bodies[2], False)]
    assert session.ask("fail", first=2, end=4).refusal[:2] == (409, "not_claimed")
    assert session.claim(4) == (4, 5)
    assert [(row.body, row.redelivered) for row in session.rows(4, 5)] == [(bodies[1], True)]


def test_a_release_forgets_what_was_decided(place: Place, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    bodies = with_dead_letters(channel, 2)
    session = Session(place, "q")
    session.claim(0)
    settle(session, "dead_letter", (0, 1))
    assert session.ask("release").json == {"released": 2}
    assert drained(channel, "dead") == []
    first, end = session.claim(2)
    assert [row.body for row in session.rows(first, end)] == bodies
    session.claim(end)
    assert drained(channel, "dead") == []


def test_a_session_tells_up_to_where_claims_were_acknowledged_and_not_what_was_released(
    place: Place, amqp: Connect
) -> None:
    channel: Any = amqp().channel()
    fill(channel, "q", 10)
    session = Session(place, "q")
    assert session.opened["acked"] == 0
    session.claim(0, 3)
    session.claim(3, 3)
    assert Session(place, "q").opened["acked"] == 3
    assert place.api.post(f"{session.path}/release", {}).json == {"released": 3}
    after = Session(place, "q")
    assert (after.opened["acked"], after.opened["first"]) == (3, 6)
    after.claim(6, 2)
    assert Session(place, "q").opened["acked"] == 3, "what was released was not acknowledged"
    Session(place, "q").claim(8, 1)
    assert Session(place, "q").opened["acked"] == 8
