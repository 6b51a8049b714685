"""Streams over HTTP: how they are described, what they refuse, offsets by time, and their consumer groups."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pika
import pytest
from broker_process import WarrenProcess, wait_until

from .client import DEADLINE_S, EVERYTHING, Api, Place, connect, q
from .conftest import Connect

STREAM = {"x-queue-type": "stream"}
GROUPS = "/warren/stream-groups"


@pytest.fixture
def stream(place: Place) -> str:
    """A stream without messages: the path of what only streams have."""
    assert place.api.put(f"/queues/{place.v}/s", {"arguments": STREAM}) == 201
    return f"/warren/streams/{place.v}/s"


def fill(channel: Any, count: int, queue: str = "s") -> None:
    """Publish numbers, and wait until the stream has them."""
    channel.confirm_delivery()
    for number in range(count):
        channel.basic_publish("", queue, b"%d" % number)


class Reader:
    """A consumer on a connection of its own."""

    def __init__(
        self, connection: pika.BlockingConnection, group: str = "", offset: object = "first", prefetch: int = 1000
    ) -> None:
        self.connection = connection
        self.channel: Any = connection.channel()
        self.channel.basic_qos(prefetch_count=prefetch)
        self.tags: list[int] = []
        self.offsets: list[int] = []
        arguments = {"x-stream-offset": offset} | ({"x-group": group} if group else {})
        self.tag = self.channel.basic_consume("s", self._got, arguments=arguments)

    def _got(self, _channel: Any, method: Any, properties: Any, _body: bytes) -> None:
        self.tags.append(method.delivery_tag)
        self.offsets.append(properties.headers["x-stream-offset"])

    def has(self, *offsets: int) -> None:
        """Wait until the reader has got all `offsets`, and compare them."""
        give_up_at = time.monotonic() + DEADLINE_S
        while len(self.offsets) < len(offsets) and time.monotonic() < give_up_at:
            self.connection.process_data_events(0.02)
        assert self.offsets == list(offsets)

    def ack(self, count: int) -> None:
        """Acknowledge the first messages."""
        self.channel.basic_ack(self.tags[count - 1], multiple=True)


def committed(place: Place, group: str, offset: int) -> Any:
    """Return a group as soon as it has committed `offset`."""
    path = f"/warren/streams/{place.v}/s/groups/{q(group)}"
    return place.api.eventually(path, lambda found: found["committed_offset"] == offset)


# --- streams as queues ------------------------------------------------------------------------------------------------


def test_a_stream_is_described_with_its_offsets_its_readers_and_where_it_is(
    place: Place, stream: str, amqp: Connect
) -> None:
    fill(amqp().channel(), 5)
    reader = Reader(amqp(), prefetch=3)
    reader.has(0, 1, 2)
    path = f"/queues/{place.v}/s"
    found = place.api.eventually(path, lambda found: found["messages_unacknowledged"] == 3)
    assert (found["type"], found["durable"], found["arguments"]) == ("stream", True, STREAM)
    assert (found["first_offset"], found["next_offset"], found["readers"], found["consumers"]) == (0, 5, 1, 1)
    assert found["members"] == found["online"] == [found["leader"]] == [found["node"]]
    # Unacked messages are still in the stream: they count once.
    assert (found["messages"], found["messages_ready"]) == (5, 5)
    (listed,) = place.api.get(f"/queues/{place.v}")
    assert {key: listed[key] for key in ("type", "messages", "first_offset", "next_offset", "readers")} == {
        "type": "stream",
        "messages": 5,
        "first_offset": 0,
        "next_offset": 5,
        "readers": 1,
    }
    reader.ack(3)
    reader.has(0, 1, 2, 3, 4)
    found = place.api.eventually(path, lambda found: found["messages_unacknowledged"] == 2)
    assert (found["messages"], found["messages_ready"]) == (5, 5)
    totals = {"messages": 5, "messages_ready": 5, "messages_unacknowledged": 2}
    for sums in (place.api.get("/overview")["queue_totals"], place.api.get(f"/vhosts/{place.v}")):
        assert {key: sums[key] for key in totals} == totals


def test_other_queues_say_nothing_of_offsets(place: Place) -> None:
    for kind in ("classic", "quorum"):
        place.api.put(f"/queues/{place.v}/{kind}", {"arguments": {"x-queue-type": kind}})
        assert not {"first_offset", "next_offset", "readers"} & place.api.get(f"/queues/{place.v}/{kind}").keys()


def test_a_consumer_of_a_stream_is_shown_with_its_next_offset(place: Place, stream: str, amqp: Connect) -> None:
    fill(amqp().channel(), 5)
    reader = Reader(amqp(), offset=1, prefetch=2)
    reader.has(1, 2)
    served = Reader(amqp(), "g", "next")
    waiting = Reader(amqp(), "g", "next")
    shown = {each["consumer_tag"]: each for each in place.api.get(f"/consumers/{place.v}")}
    assert [(shown[each.tag]["next_offset"], shown[each.tag]["active"]) for each in (reader, served, waiting)] == [
        (3, True),
        (5, True),
        (None, False),
    ]
    assert [shown[each.tag]["activity_status"] for each in (reader, served, waiting)] == ["up", "up", "waiting"]
    details = place.api.get(f"/queues/{place.v}/s")["consumer_details"]
    assert {each["consumer_tag"]: each["next_offset"] for each in details} == {
        reader.tag: 3,
        served.tag: 5,
        waiting.tag: None,
    }


def test_purge_and_get_are_refused_and_the_messages_stay(place: Place, stream: str, amqp: Connect) -> None:
    fill(amqp().channel(), 2)
    status, _, reason = place.api.ask("DELETE", f"/queues/{place.v}/s/contents").refusal
    assert status == 400 and "queue.purge not supported by stream queues queue 's'" in reason
    question = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    status, _, reason = place.api.ask("POST", f"/queues/{place.v}/s/get", question).refusal
    assert status == 400 and "basic.get not supported by stream queues queue 's'" in reason
    page = place.api.get(f"/warren/queues/{place.v}/s/messages")
    assert [item["payload"] for item in page["items"]] == ["0", "1"]
    assert place.api.get(f"/queues/{place.v}/s")["messages"] == 2


def test_messages_of_a_stream_are_copied_and_not_moved(place: Place, stream: str, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    fill(channel, 12)
    channel.queue_declare("to")
    transfers = f"/warren/queues/{place.v}/s/transfers"
    order = {"mode": "move", "destination": {"queue": "to"}}
    assert place.api.ask("POST", transfers, order).refusal == (
        400,
        "bad_request",
        "a stream keeps its messages: they can be copied, not moved",
    )
    begun = place.api.post(transfers, order | {"mode": "copy", "filter": {"body": "1"}}).json
    path = f"/warren/transfers/{place.v}/{begun['id']}"
    done = place.api.eventually(path, lambda found: found["state"] != "running")
    assert (done["state"], done["transferred"], done["error"]) == ("done", 3, None)
    page = place.api.get(f"/warren/queues/{place.v}/to/messages")
    assert [item["payload"] for item in page["items"]] == ["1", "10", "11"]
    assert place.api.get(f"/queues/{place.v}/s")["messages"] == 12


def test_messages_are_moved_and_copied_into_a_stream(place: Place, stream: str, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    channel.queue_declare("from", durable=True)
    fill(channel, 3, "from")
    for mode in ("copy", "move"):
        order = {"mode": mode, "destination": {"queue": "s"}}
        begun = place.api.post(f"/warren/queues/{place.v}/from/transfers", order).json
        path = f"/warren/transfers/{place.v}/{begun['id']}"
        assert place.api.eventually(path, lambda found: found["state"] != "running")["state"] == "done"
    page = place.api.get(f"/warren/queues/{place.v}/s/messages")
    assert [item["payload"] for item in page["items"]] == ["0", "1", "2"] * 2
    assert place.api.get(f"/queues/{place.v}/from")["messages"] == 0


def test_policies_for_streams_apply_to_streams_only(place: Place, stream: str) -> None:
    api, v = place.api, place.v
    api.put(f"/queues/{v}/classic")
    definition = {"max-age": "1h", "max-length-bytes": 1000}
    api.put(f"/policies/{v}/p", {"pattern": "", "apply-to": "streams", "definition": definition})
    found = {queue["name"]: queue for queue in api.get(f"/queues/{v}")}
    assert (found["s"]["policy"], found["s"]["effective_policy_definition"]) == ("p", definition)
    assert found["classic"]["policy"] is None
    api.put(f"/policies/{v}/p", {"pattern": "", "apply-to": "classic_queues", "definition": {"max-length": 5}})
    found = {queue["name"]: queue["policy"] for queue in api.get(f"/queues/{v}")}
    assert found == {"s": None, "classic": "p"}


def test_definitions_bring_streams_and_the_default_type_of_their_vhost(place: Place, stream: str) -> None:
    api = place.api
    queue = {"durable": True, "auto_delete": False, "arguments": STREAM | {"x-max-age": "7D"}}
    api.put(f"/queues/{place.v}/aged", queue)
    exported = api.get(f"/definitions/{place.v}")
    assert {each["name"]: each["arguments"]["x-queue-type"] for each in exported["queues"]} == {
        "s": "stream",
        "aged": "stream",
    }
    other = Place(api, f"{place.vhost}/other")
    everything = {"user": "guest", "vhost": other.vhost} | EVERYTHING
    vhosts = [{"name": other.vhost, "default_queue_type": "stream"}]
    api.post("/definitions", {"vhosts": vhosts, "permissions": [everything]})
    api.post(f"/definitions/{other.v}", exported)
    assert api.get(f"/definitions/{other.v}")["queues"] == exported["queues"]
    found = {each["name"]: (each["type"], each["arguments"]) for each in api.get(f"/queues/{other.v}")}
    assert found == {"s": ("stream", STREAM), "aged": ("stream", queue["arguments"])}
    assert api.put(f"/queues/{other.v}/untyped") == 201
    assert api.get(f"/queues/{other.v}/untyped")["type"] == "stream"
    (vhost,) = (each for each in api.get("/definitions")["vhosts"] if each["name"] == other.vhost)
    assert vhost["default_queue_type"] == "stream"
    api.delete(f"/vhosts/{other.v}")


@pytest.fixture
def process(tmp_path: Path) -> Iterator[WarrenProcess]:
    with WarrenProcess(tmp_path, {"prometheus": "127.0.0.1:0"}) as running:
        yield running


def test_deliveries_of_streams_have_a_label_of_their_own(process: WarrenProcess) -> None:
    api = Api(process.http_port)
    api.put("/queues/%2F/s", {"arguments": STREAM})
    connection = connect(process.amqp_port, "/")
    fill(connection.channel(), 3)
    reader = Reader(connection)
    reader.has(0, 1, 2)
    reader.ack(2)
    api.eventually("/queues/%2F/s", lambda found: found["messages_unacknowledged"] == 1)
    port = process.out().partition("prometheus://")[2].partition(":")[2].split()[0]
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    label = '{protocol="amqp091",queue_type="rabbit_stream_queue"}'
    for name, count in (("delivered", 3), ("delivered_consume_manual_ack", 3), ("acknowledged", 2)):
        assert f"rabbitmq_global_messages_{name}_total{label} {count}" in lines
    for name, count in (("", 3), ("_ready", 3), ("_unacked", 1), ("_ram", 3)):
        assert f"rabbitmq_queue_messages{name} {count}" in lines
    connection.close()
    api.close()


# --- consumer groups --------------------------------------------------------------------------------------------------


def test_groups_are_listed_and_shown(place: Place, stream: str, amqp: Connect) -> None:
    assert place.api.get(f"{stream}/groups") == []
    fill(amqp().channel(), 5)
    place.api.put(f"/queues/{place.v}/classic")
    readers = [Reader(amqp(), "g/1") for _ in range(2)]
    readers[0].has(0, 1, 2, 3, 4)
    readers[0].ack(2)
    found = committed(place, "g/1", 2)
    assert found.pop("committed_at") > 1_700_000_000_000
    assert found == {
        "vhost": place.vhost,
        "queue": "s",
        "name": "g/1",
        "committed_offset": 2,
        "lag": 3,
        "consumers": 2,
        "active_consumer_tag": readers[0].tag,
    }
    readers[0].connection.close()
    readers[1].has(2, 3, 4)
    readers[1].ack(3)
    found = committed(place, "g/1", 5)
    assert (found["lag"], found["consumers"], found["active_consumer_tag"]) == (0, 1, readers[1].tag)
    readers[1].connection.close()
    gone = place.api.eventually(f"{stream}/groups/g%2F1", lambda found: found["consumers"] == 0)
    assert (gone["committed_offset"], gone["active_consumer_tag"]) == (5, None)
    for path in (f"{GROUPS}/{place.v}", f"{stream}/groups"):
        assert place.api.get(path) == [gone]
    assert gone in place.api.get(GROUPS)


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ({"offset": 3}, 3),
        ({"offset": 0}, 0),
        ({"offset": "first"}, 0),
        ({"offset": "last"}, 4),
        ({"offset": "next"}, 5),
        ({"offset": "1h"}, 0),
        ({"time_ms": 0}, 0),
        ({"time_ms": -5}, 0),
        ({"time_ms": 2**62}, 5),
        ({"time_ms": 2**63 - 1}, 5),
        ({"time_ms": 2**64}, 5),
        ({"time_ms": -(2**63)}, 0),
    ],
)
def test_a_group_is_reset_and_a_position_found(
    place: Place, stream: str, amqp: Connect, position: dict[str, Any], expected: int
) -> None:
    fill(amqp().channel(), 5)
    assert place.api.post(f"{stream}/offset", position).json == {"offset": expected}
    assert place.api.put(f"{stream}/groups/g", position) == 201
    assert place.api.get(f"{stream}/groups/g")["committed_offset"] == expected
    assert place.api.put(f"{stream}/groups/g", {"offset": 2}) == 204
    assert place.api.get(f"{stream}/groups/g")["committed_offset"] == 2
    reader = Reader(amqp(), "g", "next")
    reader.has(2, 3, 4)
    assert place.api.put(f"{stream}/groups/g", position) == 204
    reader.has(2, 3, 4, *range(expected, 5))
    assert place.api.get(f"{stream}/groups/g")["committed_offset"] == expected


def test_an_offset_is_found_by_the_time_of_a_message(place: Place, stream: str, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    fill(channel, 3)
    between = time.time_ns() // 1_000_000 + 1
    wait_until(lambda: time.time_ns() // 1_000_000 > between, "a later millisecond")
    fill(channel, 2)
    assert place.api.post(f"{stream}/offset", {"time_ms": between}).json == {"offset": 3}
    assert place.api.put(f"{stream}/groups/g", {"time_ms": between}) == 201
    reader = Reader(amqp(), "g")
    reader.has(3, 4)


def test_offsets_and_groups_are_found_again_after_a_restart(process: WarrenProcess) -> None:
    api = Api(process.http_port)
    stream = "/warren/streams/%2F/s"
    api.put("/queues/%2F/s", {"arguments": STREAM})
    connection = connect(process.amqp_port, "/")
    fill(connection.channel(), 5)
    connection.close()
    api.put(f"{stream}/groups/g", {"offset": 3})
    before = api.get(f"{stream}/groups/g")
    process.stop()
    process.start()
    api = Api(process.http_port)
    assert api.get(f"{stream}/groups/g") == before
    assert api.post(f"{stream}/offset", {"time_ms": 0}).json == {"offset": 0}
    assert api.post(f"{stream}/offset", {"offset": "1h"}).json == {"offset": 0}
    for time_ms in (2**53, 10**16, 2**58, 2**62, 2**63 - 1, 2**64):
        assert api.post(f"{stream}/offset", {"time_ms": time_ms}).json == {"offset": 5}, time_ms
    connection = connect(process.amqp_port, "/")
    Reader(connection, "g").has(3, 4)
    connection.close()
    api.close()


def test_a_group_may_be_ahead_of_the_stream(place: Place, stream: str, amqp: Connect) -> None:
    channel: Any = amqp().channel()
    fill(channel, 2)
    assert place.api.put(f"{stream}/groups/g", {"offset": 4}) == 201
    found = place.api.get(f"{stream}/groups/g")
    assert (found["committed_offset"], found["lag"]) == (4, 0)
    reader = Reader(amqp(), "g")
    fill(channel, 4)
    reader.has(4, 5)


@pytest.mark.parametrize(
    "position",
    [
        {},
        {"offset": None},
        {"offset": 1, "time_ms": 1},
        {"offset": -1},
        {"offset": 1 << 62},
        {"offset": 1.5},
        {"offset": True},
        {"offset": "bogus"},
        {"offset": "5x"},
        {"offset": ""},
        {"offset": []},
        {"time_ms": "1h"},
        {"time_ms": 1.5},
        [],
    ],
)
def test_positions_that_make_no_sense_are_refused(place: Place, stream: str, position: object) -> None:
    for method, path in (("PUT", f"{stream}/groups/g"), ("POST", f"{stream}/offset")):
        assert place.api.ask(method, path, position).refusal[:2] == (400, "bad_request")
    assert place.api.get(f"{stream}/groups") == []


def test_a_group_that_nobody_consumes_is_forgotten(place: Place, stream: str, amqp: Connect) -> None:
    fill(amqp().channel(), 3)
    reader = Reader(amqp(), "g")
    reader.has(0, 1, 2)
    reader.ack(2)
    committed(place, "g", 2)
    path = f"{stream}/groups/g"
    assert place.api.ask("DELETE", path).refusal == (
        400,
        "bad_request",
        "a group with consumers cannot be forgotten",
    )
    reader.connection.close()
    place.api.eventually(path, lambda found: found["consumers"] == 0)
    assert place.api.delete(path) == 204
    assert place.api.get(f"{stream}/groups") == []
    assert place.api.ask("DELETE", path).status == place.api.ask("GET", path).status == 404
    Reader(amqp(), "g").has(0, 1, 2)


def test_what_is_not_there_or_is_no_stream_is_refused(place: Place, stream: str) -> None:
    place.api.put(f"/queues/{place.v}/classic")
    for queue, status in (("classic", 400), ("none", 404)):
        at = f"/warren/streams/{place.v}/{queue}"
        asked = [
            place.api.ask("GET", f"{at}/groups"),
            place.api.ask("GET", f"{at}/groups/g"),
            place.api.ask("PUT", f"{at}/groups/g", {"offset": 0}),
            place.api.ask("DELETE", f"{at}/groups/g"),
            place.api.ask("POST", f"{at}/offset", {"offset": 0}),
        ]
        assert [answer.status for answer in asked] == [status] * 5
    assert place.api.ask("GET", f"{stream}/groups/g").status == 404
    assert place.api.ask("DELETE", f"{stream}/groups/g").status == 404
    assert place.api.ask("GET", f"{GROUPS}/none").status == 404
    assert place.api.ask("PUT", f"{stream}/groups/{'g' * 256}", {"offset": 0}).status == 400
    assert place.api.put(f"{stream}/groups/{'g' * 255}", {"offset": 0}) == 201


def test_groups_need_the_permission_to_read(place: Place, stream: str) -> None:
    place.api.put(f"{stream}/groups/g", {"offset": 0})
    user = place.user("s-user", "management", {"configure": ".*", "write": ".*", "read": ""})
    asked = [
        user.ask("GET", f"{stream}/groups"),
        user.ask("GET", f"{stream}/groups/g"),
        user.ask("PUT", f"{stream}/groups/g", {"offset": 5}),
        user.ask("DELETE", f"{stream}/groups/g"),
        user.ask("POST", f"{stream}/offset", {"offset": "next"}),
    ]
    assert [answer.status for answer in asked] == [401] * 5
    assert place.api.get(f"{stream}/groups/g")["committed_offset"] == 0
    place.api.put(f"/permissions/{place.v}/s-user", {"configure": "", "write": "", "read": "^s$"})
    assert user.put(f"{stream}/groups/g", {"offset": "first"}) == 204
    user.close()
