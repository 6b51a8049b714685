"""The data port: ranges of streams, wherever they lie, as chunks of columns; of claims and snapshots what is theirs.

A chunk of a stream is sealed when it has 4 MiB: here 64 messages of 64 KiB.
"""

from __future__ import annotations

import os
import threading
import time
from itertools import pairwise
from random import Random
from typing import Any

import pika
import pytest
from broker_process import WarrenProcess, wait_until
from column_rows import Chunk, Row, chunks_of

from .client import Answer, Api, Place, connect, q
from .conftest import Connect

STREAM = {"x-queue-type": "stream"}
ONE_CHUNK_EACH = STREAM | {"x-stream-max-segment-size-bytes": 1}
LARGE = 65536
CHUNK = 64
MIB = 1 << 20


class Data:
    """The data port as somebody sees it, and a stream or queue of which `bodies` were published."""

    def __init__(self, place: Place, queue: str = "s", api: Api | None = None) -> None:
        self.api = api or place.api
        self.queue = queue
        self.path = f"/warren/data/{place.v}/{q(queue)}"
        self.bodies: list[bytes] = []
        self.id: str | None = None

    def publish(
        self, channel: Any, count: int, *, size: int = 0, random: Random | None = None, **properties: Any
    ) -> None:
        """Publish messages of about `size` bytes that begin with their offsets; `random`: that do not get smaller."""
        for _ in range(count):
            body = b"%d " % len(self.bodies)
            body += bytes(size) if random is None else random.randbytes(size)
            self.bodies.append(body)
            channel.basic_publish("", self.queue, body, pika.BasicProperties(**properties))

    def describe(self) -> Any:
        found = self.api.get(self.path)
        self.id = found["id"]
        return found

    def until_sealed(self, end: int) -> None:
        """Wait until what is before an offset is sealed: each chunk lies in a file."""
        path = f"{self.path}/files?from=0&to={len(self.bodies)}"

        def sealed() -> bool:
            chunks = self.api.get(path)["chunks"]
            return bool(chunks) and chunks[-1][1] >= end

        wait_until(sealed, f"everything before {end} to be sealed")

    def plan(self, first: int, end: int, **more: Any) -> Any:
        return self.api.post(f"{self.path}/plan", {"from": first, "to": end, "id": self.id} | more).json

    def ask(self, first: object, end: object, **more: object) -> Answer:
        query = {"from": first, "to": end, "id": self.id} | more
        text = "&".join(f"{name}={q(str(value))}" for name, value in query.items() if value is not None)
        return self.api.ask("GET", f"{self.path}/chunks?{text}")

    def chunks(self, first: int, end: int, **more: object) -> list[Chunk]:
        """Read a range, as many answers as that takes."""
        found: list[Chunk] = []
        at = first
        while at < end:
            answer = self.ask(at, end, **more)
            assert answer.status == 200, answer
            assert answer.headers["content-type"] == "application/octet-stream"
            following = int(answer.headers["x-warren-next"])
            assert at < following <= end
            chunks = chunks_of(answer.body)
            assert all(chunk.end > at and chunk.first < following for chunk in chunks)
            found += chunks
            at = following
        return found

    def rows(self, first: int, end: int, **more: object) -> list[Row]:
        """Return the rows of a range: each once, in order.

        A sealed chunk may begin before the offset that was asked for: what was read of it before is passed over.
        """
        rows: list[Row] = []
        at = first
        for chunk in self.chunks(first, end, **more):
            rows += [row for row in chunk.rows if at <= row.offset < end]
            at = max(at, chunk.end)
        assert [row.offset for row in rows] == sorted({row.offset for row in rows})
        return rows

    def check(self, first: int, end: int, **more: object) -> None:
        """Check that a range has what was published there."""
        rows = self.rows(first, end, **more)
        assert [row.offset for row in rows] == list(range(first, end))
        assert [row.body for row in rows] == self.bodies[first:end]


@pytest.fixture
def channel(amqp: Connect) -> Any:
    opened: Any = amqp().channel()
    opened.confirm_delivery()
    return opened


@pytest.fixture
def data(place: Place) -> Data:
    """A stream."""
    assert place.api.put(f"/queues/{place.v}/s", {"arguments": ONE_CHUNK_EACH}) == 201
    return Data(place)


def large(data: Data, channel: Any, count: int) -> None:
    """Publish many bytes, quickly: nobody waits for each of them."""
    data.publish(channel, count, size=LARGE)


# --- what there is ----------------------------------------------------------------------------------------------------


def test_a_stream_is_described_and_listed(place: Place, data: Data, channel: Any) -> None:
    found = data.describe()
    assert found == {
        "vhost": place.vhost,
        "name": "s",
        "type": "stream",
        "id": found["id"],
        "first": 0,
        "end": 0,
        "lives": [],
        "messages": 0,
        "bytes": 0,
        "partitions": None,
        "sealed": 0,
        "nodes": [],
    }
    data.publish(channel, 5, size=10)
    channel.queue_declare("classic", durable=True)
    found = data.describe()
    assert (found["first"], found["end"], found["messages"], found["bytes"]) == (0, 5, 5, 5 * 12)
    ((life, first),) = found["lives"]
    assert (len(bytes.fromhex(life)), first) == (16, 0)
    classic = data.api.get(f"/warren/data/{place.v}/classic")
    assert (classic["type"], classic["first"], classic["end"]) == ("classic", None, None)
    assert data.api.get(f"/warren/data/{place.v}") == [classic, found]
    assert place.api.ask("GET", f"/warren/data/{place.v}/nothing").status == 404
    assert place.api.ask("GET", "/warren/data/nowhere/s").status == 404


def test_what_is_not_synced_is_not_told(place: Place, data: Data, amqp: Connect) -> None:
    plain: Any = amqp().channel()  # without confirms
    for number in range(3):
        plain.basic_publish("", "s", b"%d " % number)
        data.bodies.append(b"%d " % number)
    ends = [place.api.eventually(data.path, lambda found: found["end"] > 0)["end"]]
    ends.append(place.api.eventually(data.path, lambda found: found["end"] == 3)["end"])
    assert ends[-1] == 3
    data.check(0, 3)


def test_rows_have_everything_that_was_published(data: Data, channel: Any) -> None:
    channel.exchange_declare("e", "topic")
    channel.queue_bind("s", "e", "#")
    before_ms = time.time_ns() // 1_000_000
    properties = pika.BasicProperties(content_type="text/plain", headers={"a": 1}, delivery_mode=1)
    channel.basic_publish("e", "k.ü", b"one", properties)
    channel.basic_publish("", "s", b"")
    one, two = data.rows(0, 2)
    assert (one.exchange, one.routing_key, one.body, one.redelivered) == ("e", "k.ü", b"one", False)
    assert (two.exchange, two.routing_key, two.body, two.redelivered) == ("", "s", b"", False)
    assert before_ms - 1000 <= one.time_ms <= two.time_ms <= time.time_ns() // 1_000_000
    assert one.properties == b"\xb0\x00\x0atext/plain\x00\x00\x00\x07\x01aI\x00\x00\x00\x01\x01"
    assert two.properties[:2] == b"\x00\x00"


@pytest.mark.parametrize("columns", ["bodies", "properties", "", "bodies,properties"])
@pytest.mark.parametrize("count", [5, CHUNK + 5])
def test_columns_that_are_not_wanted_are_left_out(data: Data, channel: Any, columns: str, count: int) -> None:
    data.publish(channel, count, size=LARGE if count > CHUNK else 10, message_id="x")
    if count > CHUNK:
        data.until_sealed(CHUNK)
    rows = data.rows(0, count, columns=columns)
    assert len(rows) == count
    assert [row.body for row in rows] == (data.bodies if "bodies" in columns else [b""] * count)
    assert all((b"x" in row.properties) == ("properties" in columns) for row in rows)
    assert {(row.exchange, row.routing_key) for row in rows} == {("", "s")}


# --- sealed, in the log, in memory ------------------------------------------------------------------------------------


@pytest.mark.long
def test_ranges_are_told_wherever_they_lie(broker: WarrenProcess, place: Place, data: Data, channel: Any) -> None:
    large(data, channel, 2 * CHUNK + 9)
    data.until_sealed(2 * CHUNK)
    channel.connection.close()
    broker.stop()
    broker.start()
    again: Any = connect(broker.amqp_port, place.vhost)
    channel = again.channel()
    channel.confirm_delivery()
    data.publish(channel, 11, size=100)
    end = data.describe()["end"]
    assert end == len(data.bodies) == 2 * CHUNK + 20
    # Sealed are two chunks, nine messages are in the log, and the rest in memory as well.
    borders = (0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1, 2 * CHUNK, 2 * CHUNK + 8, 2 * CHUNK + 9, end - 1, end)
    for first in borders:
        for stop in borders:
            if first < stop:
                data.check(first, stop)
    assert data.ask(7, 7).headers["x-warren-next"] == "7" and data.ask(7, 7).body == b""
    inner = data.chunks(5, CHUNK + 5)
    assert [(chunk.first, chunk.end) for chunk in inner] == [(0, CHUNK), (CHUNK, 2 * CHUNK)], "as they lie in files"
    again.close()


def test_a_range_is_the_same_when_it_is_asked_for_again_and_after_it_was_sealed(data: Data, channel: Any) -> None:
    large(data, channel, CHUNK - 1)
    before = data.rows(0, CHUNK - 1)
    assert data.ask(0, CHUNK - 1).body == data.ask(0, CHUNK - 1).body
    large(data, channel, 2)
    data.until_sealed(CHUNK)
    assert data.rows(0, CHUNK - 1) == before


def test_reading_changes_nothing(place: Place, data: Data, channel: Any) -> None:
    data.publish(channel, 30)
    watched = ("messages", "messages_ready", "messages_unacknowledged", "consumers")

    def state() -> list[Any]:
        found = place.api.get(f"/queues/{place.v}/s")
        return [found[each] for each in watched] + [found.get("message_stats", {}).get("deliver_get", 0)]

    before = state()
    for _ in range(3):
        data.check(0, 30)
    assert state() == before


@pytest.mark.long
def test_an_answer_is_bounded_and_a_large_message_has_one_of_its_own(data: Data, channel: Any) -> None:
    random = Random(3)
    data.publish(channel, 200, size=LARGE, random=random)
    data.publish(channel, 1, size=15 * MIB, random=random)
    data.publish(channel, 1, size=9 * MIB, random=random)
    data.publish(channel, 20, size=LARGE, random=random)
    data.until_sealed(200)
    at, answers = 0, 0
    while at < len(data.bodies):
        answer = data.ask(at, len(data.bodies))
        following = int(answer.headers["x-warren-next"])
        rows = [row for chunk in chunks_of(answer.body) for row in chunk.rows]
        largest = max(len(row.body) for row in rows)
        assert len(answer.body) <= 8 * MIB + max(largest, 5 * MIB) + MIB
        assert [row.body for row in rows if at <= row.offset < following] == data.bodies[at:following]
        at = following
        answers += 1
    assert answers >= 4


# --- plans ------------------------------------------------------------------------------------------------------------


def test_a_plan_cuts_a_range_into_pieces_that_can_be_read(data: Data, channel: Any) -> None:
    data.publish(channel, 3 * CHUNK + 20, size=LARGE, random=Random(1))
    data.until_sealed(3 * CHUNK)
    end = data.describe()["end"]
    for first, stop in ((0, end), (5, end - 5), (CHUNK, 2 * CHUNK), (3 * CHUNK + 1, end), (70, 71)):
        for piece_bytes in (1, 5 * MIB, 1 << 40):
            plan = data.plan(first, stop, piece_bytes=piece_bytes)
            assert (plan["id"], plan["first"], plan["end"]) == (data.id, 0, end)
            bounds, sizes = plan["bounds"], plan["bytes"]
            assert (bounds[0], bounds[-1]) == (first, stop)
            assert all(one < other for one, other in pairwise(bounds))
            assert len(sizes) == len(bounds) - 1 and all(size > 0 for size in sizes)
            if piece_bytes == 1:
                assert set(bounds[1:-1]) >= {at for at in (CHUNK, 2 * CHUNK, 3 * CHUNK) if first < at < stop}
            if piece_bytes == 1 << 40:
                assert len(bounds) <= 3, "what is sealed, and what is not"
    bounds = data.plan(5, end - 5, piece_bytes=1)["bounds"]
    for one, other in pairwise(bounds):
        data.check(one, other)


def test_a_plan_ends_where_it_has_enough(data: Data, channel: Any) -> None:
    data.publish(channel, CHUNK + 30, size=LARGE, random=Random(1))
    data.until_sealed(CHUNK)
    data.describe()
    for rows in (1, 10, CHUNK, CHUNK + 7, 1000):
        assert data.plan(0, CHUNK + 30, max_rows=rows)["bounds"][-1] == min(rows, CHUNK + 30)
    assert data.plan(3, CHUNK + 30, max_rows=0)["bounds"] == [3, 4], "at least one"
    for most in (1, LARGE, 10 * LARGE, 2 * MIB, 5 * MIB):
        plan = data.plan(0, CHUNK + 30, max_bytes=most)
        rows = plan["bounds"][-1]
        assert max(1, most // LARGE - 2) <= rows <= most // LARGE + 2
        assert sum(plan["bytes"]) <= most
    assert data.plan(4, 4)["bounds"] == [4] and data.plan(4, 4)["bytes"] == []


@pytest.mark.long
def test_a_plan_of_small_messages_in_memory_has_few_pieces(data: Data, channel: Any) -> None:
    data.publish(channel, 1000)
    data.describe()
    assert data.plan(0, 1000)["bounds"] == [0, 1000]
    assert data.plan(0, 1000, piece_bytes=1)["bounds"] == [0, 1000], "none is smaller than what is read at a time"


# --- what is refused --------------------------------------------------------------------------------------------------


def test_ranges_that_make_no_sense_are_refused(data: Data, channel: Any) -> None:
    data.publish(channel, 10)
    data.describe()
    for first, end in ((5, 3), (0, 11), (11, 12)):
        assert data.ask(first, end).refusal[:2] == (400, "bad_request")
        assert data.api.ask("POST", f"{data.path}/plan", {"from": first, "to": end}).status == 400
    wrong: list[tuple[object, object]] = [("x", 3), (-1, 3), ("", 3), (None, 3), (0, None), ("1.5", 3), ("9" * 30, 3)]
    for begin, stop in wrong:
        assert data.ask(begin, stop).status == 400, (begin, stop)
    assert data.ask(0, 5, columns="bodies,keys").status == 400
    assert data.api.ask("POST", f"{data.path}/plan", {"from": 0}).status == 400
    assert data.api.ask("POST", f"{data.path}/plan", {"from": -1, "to": 5}).status == 400


def test_of_a_queue_that_was_made_anew_nothing_is_told(place: Place, data: Data, channel: Any) -> None:
    data.publish(channel, 10)
    old = data.describe()["id"]
    data.check(0, 10)
    channel.queue_delete("s")
    assert data.ask(0, 10).status == 404
    place.api.put(f"/queues/{place.v}/s", {"arguments": STREAM})
    data.bodies.clear()
    data.publish(channel, 10)
    assert data.ask(0, 10).refusal[:2] == (409, "another_queue")
    assert data.api.ask("POST", f"{data.path}/plan", {"from": 0, "to": 10, "id": old}).status == 409
    assert data.describe()["id"] != old
    data.check(0, 10)
    data.id = None
    data.check(0, 10)


def test_the_id_stays_over_restarts_and_tells_nothing_of_the_store(
    broker: WarrenProcess, data: Data, channel: Any
) -> None:
    data.publish(channel, 3)
    before = data.describe()["id"]
    channel.connection.close()
    broker.kill()
    broker.start()
    assert data.describe()["id"] == before
    segment = next((broker.data_directory / "messages" / "log").glob("0*"))
    store_id = segment.read_bytes()[16:32]
    assert store_id not in (bytes(16), b"")
    assert store_id.hex()[:16] not in before


def test_what_retention_has_removed_is_gone_and_said_to_be(place: Place, data: Data, channel: Any) -> None:
    large(data, channel, 4 * CHUNK + 1)
    data.until_sealed(4 * CHUNK)
    data.describe()
    place.api.put(f"/policies/{place.v}/p", {"pattern": "s", "definition": {"max-length-bytes": CHUNK * LARGE}})
    first = place.api.eventually(data.path, lambda found: found["first"] > 0)["first"]
    assert first % CHUNK == 0
    refused = data.ask(first - 1, 4 * CHUNK)
    assert refused.refusal == (410, "gone", f"the oldest offset is {first}")
    assert data.api.ask("POST", f"{data.path}/plan", {"from": 0, "to": 4 * CHUNK}).refusal[:2] == (410, "gone")
    data.check(first, len(data.bodies))


def test_who_may_read_a_queue_may_read_it_here_and_needs_no_tag(place: Place, data: Data, channel: Any) -> None:
    data.publish(channel, 5)
    reads = {"configure": "", "write": "", "read": "^s$"}
    users = {
        "reader": (place.user("reader", "", reads), 200),
        "writer": (place.user("writer", "", {"configure": ".*", "write": ".*", "read": "^other$"}), 401),
        "stranger": (place.user("stranger", "", None), 401),
        "monitor": (place.user("monitor", "monitoring", None), 401),
        "nobody": (place.api.as_user("nobody"), 401),
        "anonymous": (Api(place.api.port, None), 401),
    }
    for name, (api, status) in users.items():
        asked = [
            api.ask("GET", data.path),
            api.ask("POST", f"{data.path}/plan", {"from": 0, "to": 5}),
            api.ask("GET", f"{data.path}/chunks?from=0&to=5"),
            api.ask("GET", f"{data.path}/files?from=0&to=5"),
        ]
        assert [answer.status for answer in asked] == [status] * 4, name
        if status == 401:  # as RabbitMQ's API says that somebody may not
            assert {answer.json["error"] for answer in asked} <= {"not_authorised", "not_authorized"}
            api.close()
    listed = place.user("reader", "", reads).get(f"/warren/data/{place.v}")
    assert [each["name"] for each in listed] == ["s"]
    assert len(Data(place, api=users["reader"][0]).rows(0, 5)) == 5
    for name in ("reader", "writer", "stranger", "monitor"):
        place.api.delete(f"/users/{name}")


def test_a_classic_queue_is_not_read_as_it_is(place: Place, channel: Any) -> None:
    channel.queue_declare("c", durable=True)
    refused = Data(place, "c").ask(0, 0)
    assert refused.status == 400 and "snapshot" in refused.json["reason"]


# --- while something happens ------------------------------------------------------------------------------------------


def test_a_stream_that_is_deleted_while_it_is_read_is_gone(place: Place, data: Data, channel: Any) -> None:
    data.publish(channel, 3 * CHUNK, size=LARGE, random=Random(2))
    data.until_sealed(2 * CHUNK)
    data.describe()
    statuses: list[int] = []
    begun = threading.Event()

    def read() -> None:
        reader = Data(place, api=place.api.as_user("guest", "guest"))
        reader.id = data.id
        while not statuses or statuses[-1] == 200:
            statuses.append(reader.ask(0, 3 * CHUNK).status)
            begun.set()
        reader.api.close()

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert begun.wait(20)
    channel.queue_delete("s")
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert set(statuses) == {200, 404}


@pytest.mark.long
def test_a_stream_is_read_while_it_is_written_and_sealed_and_nothing_is_missing(data: Data, channel: Any) -> None:
    data.describe()
    at = 0
    for _ in range(12):
        data.publish(channel, 25, size=LARGE)
        end = data.describe()["end"]
        data.check(at, end)
        at = max(at, end - 40)
    data.check(0, end)


def test_a_chunk_that_is_damaged_on_disk_is_left_out_and_reported_once(
    broker: WarrenProcess, data: Data, channel: Any
) -> None:
    large(data, channel, 3 * CHUNK + 1)
    data.until_sealed(3 * CHUNK)
    data.describe()
    files = data.api.get(f"{data.path}/files?from={CHUNK}&to={CHUNK + 1}")
    ((first, end, name, position, size),) = files["chunks"]
    path = broker.data_directory / "messages" / name
    assert (first, end) == (CHUNK, 2 * CHUNK) and path.stat().st_ino == files["files"][name][1]
    handle = os.open(path, os.O_WRONLY)
    os.pwrite(handle, b"rot", position + size - 100)
    os.close(handle)
    left = [*range(CHUNK), *range(2 * CHUNK, 3 * CHUNK + 1)]
    for _ in range(3):
        assert [row.offset for row in data.rows(0, 3 * CHUNK + 1)] == left
        assert data.rows(CHUNK, 2 * CHUNK) == []
    data.publish(channel, 1)
    data.rows(0, CHUNK)  # the read finds the damage
    wait_until(lambda: "is damaged on disk and not served" in broker.log_path.read_text(), "the damage to be reported")
    reports = [line for line in broker.log_path.read_text().splitlines() if "is damaged on disk and not served" in line]
    assert len(reports) == 1


# --- claims and snapshots ---------------------------------------------------------------------------------------------


def test_claims_are_read_as_ranges_of_their_queue(place: Place, channel: Any) -> None:
    source = Data(place, "c")
    channel.queue_declare("c", durable=True)
    source.publish(channel, 40, delivery_mode=2)
    session = place.api.post(f"/warren/drains/{place.v}/c/reader/open", {"owner": "a test"}).json
    path = f"/warren/drains/{place.v}/c/reader/claim"
    claimed = place.api.post(path, {"epoch": session["epoch"], "after": 0, "max_rows": 30}).json
    assert claimed["end"] == 30
    claims = Data(place, session["queue"])
    claims.bodies = source.bodies
    claims.id = session["id"]
    for _ in range(2):
        claims.check(0, 30)
        claims.check(7, 21)
    assert claims.describe()["end"] == 30
    assert claims.plan(0, 30)["bounds"][-1] == 30
    assert claims.ask(0, 31).status == 400
    place.api.post(path, {"epoch": session["epoch"], "after": 10, "max_rows": 1})
    assert claims.ask(9, 30).refusal[:2] == (410, "gone")
    claims.check(10, 30)
    reader = place.user("claimer", "", {"configure": "", "write": "", "read": "^c$"})
    Data(place, session["queue"], reader).rows(10, 30)
    assert (
        place.user("other", "", {"configure": "", "write": "", "read": "^amq.*"}).ask("GET", claims.path).status == 401
    )
    for name in ("claimer", "other"):
        place.api.delete(f"/users/{name}")


def test_a_snapshot_is_read_by_its_rows(place: Place, channel: Any) -> None:
    source = Data(place, "c")
    channel.queue_declare("c", durable=True)
    source.publish(channel, 50, delivery_mode=2, size=LARGE)
    made = place.api.post(f"/warren/snapshots/{place.v}/c", {}).json
    source.id = made["id"]
    for first, end in ((0, 50), (13, 14), (0, 0), (49, 50)):
        source.check(first, end, snapshot=made["snapshot"])
    plan = source.plan(5, 45, snapshot=made["snapshot"], piece_bytes=1)
    assert (plan["bounds"][0], plan["bounds"][-1]) == (5, 45)
    assert source.ask(0, 51, snapshot=made["snapshot"]).status == 400
    assert source.ask(0, 50, snapshot="nothing").refusal[:2] == (404, "no_snapshot")
    source.id = "another"
    assert source.ask(0, 50, snapshot=made["snapshot"]).status == 409


def test_a_reader_says_which_history_it_knows_and_is_told_of_another(place: Place, data: Data, channel: Any) -> None:
    """(2)"""
    data.publish(channel, 5)
    found = data.describe()
    ((life, _),) = found["lives"]
    plain, other = found["id"], "ab" * 16
    for known in (f"@{life}", f"@{life}:5", f"@{life}:0", f"@{other}:0"):
        data.id = plain + known
        assert data.plan(2, 5)["bounds"] == [2, 5]
        assert data.ask(2, 5).status == 200
    for known in (f"@{other}", f"@{other}:2", f"@{'00' * 16}:1"):
        data.id = plain + known
        for answer in (data.ask(2, 5), place.api.ask("GET", f"{data.path}/files?from=2&to=5&id={q(data.id)}")):
            assert answer.refusal[:2] == (409, "diverged")
            assert "restored from a backup" in answer.refusal[2]
    for wrong in ("@", "@12", "@" + "x" * 32, f"@{life}:", f"@{life}:-1", f"@{life}:x"):
        data.id = plain + wrong
        assert data.ask(2, 5).refusal[:2] == (400, "bad_request")
    data.id = f"another@{life}"
    assert data.ask(2, 5).refusal[:2] == (409, "another_queue")
