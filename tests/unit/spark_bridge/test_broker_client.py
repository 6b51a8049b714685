"""The client of the data port: its requests, its use of the answers, and its retries."""

from __future__ import annotations

import base64
import json
import pickle
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from integration.certificates import Authority

from warren.spark_bridge.bridge_errors import (
    Ahead,
    AnotherQueue,
    BrokerError,
    DamagedChunk,
    DataLoss,
    Fenced,
    Gone,
    NoDrain,
    NoSnapshot,
    NotAllowed,
    NotFound,
    Refused,
    Unreachable,
)
from warren.spark_bridge.control import BrokerClient, Claim, Committed, Description, DrainSession, RangeCuts, Snapshot

from .chunks import Sent, chunk_of
from .fake_broker import FakeBroker, Reply

STREAM = {"vhost": "/", "name": "q", "type": "stream", "id": "i1", "first": 3, "end": 9, "bytes": 60, "messages": 6}


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        yield running


@pytest.fixture
def client(broker: FakeBroker) -> Iterator[BrokerClient]:
    with BrokerClient(broker.url, "ann", "secret", vhost="a/b", backoff_s=0.0, retries=2) as made:
        yield made


def chunks(first: int, end: int) -> Reply:
    data = chunk_of([Sent(offset) for offset in range(first, end)])
    return Reply(data, headers=(("X-Warren-Next", str(end)),))


# --- what is asked -----------------------------------------------------------------------------------------------


def test_paths_are_quoted_and_the_user_is_named(broker: FakeBroker, client: BrokerClient) -> None:
    broker.replies = [Reply(STREAM | {"name": "q?/1"})]
    assert client.describe("q?/1") == Description("/", "q?/1", "stream", "i1", 3, 9, 60, 6, None)
    (asked,) = broker.asked
    assert (asked.method, asked.path) == ("GET", "/api/warren/data/a%2Fb/q%3F%2F1")
    assert asked.headers["Authorization"] == "Basic " + base64.b64encode(b"ann:secret").decode()


def test_queues_without_offsets_and_super_streams_are_described(broker: FakeBroker, client: BrokerClient) -> None:
    classic = STREAM | {"type": "classic", "first": None, "end": None}
    above = STREAM | {"type": "super-stream", "id": None, "partitions": ["q-0", "q-1"]}
    broker.replies = [Reply([classic, above])]
    first, second = client.descriptions()
    assert (first.type, first.first, first.end, first.partitions) == ("classic", 0, 0, None)
    assert (second.type, second.id, second.partitions) == ("super-stream", "", ("q-0", "q-1"))


def test_a_plan_is_asked_with_its_limits(broker: FakeBroker, client: BrokerClient) -> None:
    broker.replies = [Reply({"id": "i1", "first": 3, "end": 9, "bounds": [3, 5, 8], "bytes": [20, 30]})]
    plan = client.plan("q", 3, 9, "i1", max_rows=5, piece_bytes=25, snapshot="s")
    assert plan == RangeCuts("i1", 3, 9, (3, 5, 8), (20, 30))
    wanted = {"from": 3, "to": 9, "id": "i1", "max_rows": 5, "max_bytes": None, "piece_bytes": 25, "snapshot": "s"}
    assert broker.asked[0].json == wanted


def test_positions_are_resolved(broker: FakeBroker, client: BrokerClient) -> None:
    broker.replies = [Reply({"offset": 7})]
    assert client.resolve("q", "1h") == 7
    assert client.resolve("q", time_ms=5) == 7
    assert [asked.json for asked in broker.asked] == [{"offset": "1h"}, {"time_ms": 5}]


def test_chunks_come_into_memory_of_arrows(broker: FakeBroker, client: BrokerClient) -> None:
    broker.replies = [chunks(3, 7)]
    data, reached = client.chunks("q", 3, 9, "i1", properties=False, snapshot="s")
    assert isinstance(data, pa.Buffer)
    assert data.address % 64 == 0
    assert (bytes(data), reached) == (broker.replies[0].value, 7)
    assert broker.asked[0].path.endswith("/q/chunks?from=3&to=9&id=i1&columns=bodies&snapshot=s")


def test_drains_are_opened_claimed_marked_and_released(broker: FakeBroker, client: BrokerClient) -> None:
    broker.replies = [
        Reply({"epoch": 2, "queue": "amq.drain/q/c", "id": "i9", "first": 4, "end": 6}),
        Reply({"first": 4, "end": 8}),
        Reply({"mark": 1 << 70}),
        Reply({"released": 2}),
        Reply([{"name": "c"}]),
        Reply({"name": "c"}),
        Reply(None, 204),
        Reply({"error": "no_drain"}, 404),
    ]
    assert client.open_drain("q", "c", "me", lease_s=60) == DrainSession(2, "amq.drain/q/c", "i9", 4, 6)
    assert client.claim("q", "c", 2, 4, 100, until=1 << 70) == Claim(4, 8)
    assert client.mark("q", "c", 2) == 1 << 70
    assert client.release("q", "c", 2) == 2
    assert client.drains() == [{"name": "c"}]
    assert client.drain("q", "c") == {"name": "c"}
    client.delete_drain("q", "c", 2)
    client.delete_drain("q", "c", 2)
    assert [asked.path.removeprefix("/api/warren/drains/a%2Fb") for asked in broker.asked[:6]] == [
        "/q/c/open",
        "/q/c/claim",
        "/q/c/mark",
        "/q/c/release",
        "",
        "/q/c",
    ]
    assert broker.asked[0].json == {"owner": "me", "lease_s": 60}
    assert broker.asked[1].json == {"epoch": 2, "after": 4, "max_rows": 100, "max_bytes": None, "until": 1 << 70}


def test_a_broker_that_is_too_old_to_replace_messages_appends_none(broker: FakeBroker, client: BrokerClient) -> None:
    """It would ignore a field of a commit that it does not know: so that is another route, which it does not have."""
    broker.replies = [Reply({"error": "method_not_allowed", "reason": "POST is not allowed here"}, 405)]
    with pytest.raises(NotFound):
        client.commit_stages("query", 0, ["s-1"], purge="q")
    (asked,) = broker.asked
    assert (asked.method, asked.path, asked.json["purge"]) == ("POST", "/api/warren/stages/a%2Fb/replace", "q")


def test_stages_are_put_committed_and_deleted(broker: FakeBroker, client: BrokerClient) -> None:
    broker.replies = [
        Reply(None, 204),
        Reply({"committed": True, "messages": 5, "unroutable": 1}),
        Reply({"committed": False, "duplicate": True}),
        Reply(None, 204),
    ]
    client.put_stage("s-1", 4, memoryview(b"frames"))
    assert client.commit_stages("query", 7, ["s-1"]) == Committed(True, False, 5, 1)
    assert client.commit_stages("query", 7, ["s-1"]) == Committed(False, True, 0, 0)
    client.delete_stage("s-1")
    assert [(asked.method, asked.path) for asked in broker.asked] == [
        ("PUT", "/api/warren/stages/a%2Fb/s-1/4"),
        ("POST", "/api/warren/stages/a%2Fb/commit"),
        ("POST", "/api/warren/stages/a%2Fb/commit"),
        ("DELETE", "/api/warren/stages/a%2Fb/s-1"),
    ]
    assert broker.asked[0].body == b"frames"


def test_a_snapshot_is_not_waited_for(broker: FakeBroker, client: BrokerClient) -> None:
    making = {"snapshot": "s", "id": "i", "first": 0, "end": None, "most": 9, "bytes": 0, "state": "making"}
    ready = making | {"end": 5, "bytes": 50, "state": "ready", "expires_at": 1}
    broker.replies = [Reply(making, 202), Reply(ready), Reply(making | {"state": "failed", "reason": "disk"})]
    assert client.make_snapshot("q", ttl_s=60) == Snapshot("s", "i", 0, 9, 0, None)
    assert json.loads(broker.asked[0].body) == {"ttl_s": 60, "unacked": False, "wait_s": 0}
    assert client.snapshot("q", "s") == Snapshot("s", "i", 0, 5, 50, 1)
    assert client.snapshot("q", "s").failure == "disk"


def test_the_rows_of_a_snapshot_in_the_making_are_waited_for(broker: FakeBroker, client: BrokerClient) -> None:
    nothing = Reply(b"", headers=(("X-Warren-Next", "4"),))
    rest = Reply(chunk_of([], 6, 9, compacted=True), headers=(("X-Warren-Next", "9"),))
    broker.replies = [chunks(0, 4), *[nothing] * 8, chunks(4, 6), rest]  # more often than a request is repeated
    found = list(client.read("q", 0, 9, "i1", snapshot="s"))
    assert [(each.first, each.end, each.count) for each in found] == [(0, 4, 4), (4, 6, 2), (6, 9, 0)]


def test_a_snapshot_waits_in_line_while_others_are_made(
    broker: FakeBroker, client: BrokerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warren.spark_bridge.control.BUSY_PAUSE_S", 0.0)
    ready = {"snapshot": "s", "id": "i", "first": 0, "end": 2, "bytes": 0}
    broker.replies = [*[Reply({"error": "busy"}, 503)] * 9, Reply(ready, 201)]
    assert client.make_snapshot("q").end == 2


# --- answers that are refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (401, "not_authorised", NotAllowed),
        (403, "not_authorised", NotAllowed),
        (404, "not_found", NotFound),
        (404, "no_snapshot", NoSnapshot),
        (404, "no_drain", NoDrain),
        (405, "method_not_allowed", NotFound),
        (409, "another_queue", AnotherQueue),
        (409, "fenced", Fenced),
        (409, "ahead", Ahead),
        (409, "whatever", Refused),
        (410, "gone", Gone),
        (400, "bad_request", Refused),
        (507, "disk_low", Refused),
        (503, "busy", Unreachable),
    ],
)
def test_every_refusal_has_its_class(
    broker: FakeBroker, client: BrokerClient, status: int, error: str, kind: type[BrokerError]
) -> None:
    broker.replies = [Reply({"error": error, "reason": "because"}, status)]
    with pytest.raises(BrokerError, match="because") as caught:
        client.drain("q", "c")
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.error) == (status, error)
    assert "secret" not in str(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again), again.status) == (kind, str(caught.value), status)


def test_a_queue_that_is_not_there_is_named(broker: FakeBroker, client: BrokerClient) -> None:
    broker.replies = [Reply({"error": "Object Not Found", "reason": "Not Found"}, 404)]
    with pytest.raises(NotFound, match="no queue 'q' in vhost 'a/b'"):
        client.describe("q")


def test_what_is_lost_is_data_loss_whatever_the_reason() -> None:
    assert all(issubclass(kind, DataLoss) for kind in (Gone, AnotherQueue, Ahead))


@pytest.mark.parametrize("value", [b"<html>", b"[]", b'{"vhost": "/"}', b"", b"[" * 100_000])
def test_an_answer_that_no_broker_gives_is_told_so(broker: FakeBroker, client: BrokerClient, value: bytes) -> None:
    broker.replies = [Reply(value)]
    with pytest.raises(Unreachable, match="does not answer as a Warren broker"):
        client.describe("q")


@pytest.mark.parametrize("following", [None, "x", "2"])
def test_an_answer_that_ends_nowhere_is_told_so(
    broker: FakeBroker, client: BrokerClient, following: str | None
) -> None:
    headers = () if following is None else (("X-Warren-Next", following),)
    broker.replies = [Reply(b"", headers=headers)]
    with pytest.raises(Unreachable, match="does not answer"):
        client.chunks("q", 3, 9, "i1")


# --- again -------------------------------------------------------------------------------------------------------


def test_one_connection_serves_all_calls(broker: FakeBroker, client: BrokerClient) -> None:
    broker.replies = [Reply(STREAM), chunks(3, 9), Reply({"error": "gone"}, 410), Reply(STREAM)]
    client.describe("q")
    client.chunks("q", 3, 9, "i1")
    with pytest.raises(Gone):
        client.describe("q")
    client.describe("q")
    assert len({asked.connection for asked in broker.asked}) == 1


@pytest.mark.parametrize("trouble", [Reply(silence=True), Reply({}, 503), Reply({}, 500), Reply(b"x" * 99, cut=5)])
def test_trouble_is_asked_again_and_for_good_only_so_often(
    broker: FakeBroker, client: BrokerClient, trouble: Reply
) -> None:
    broker.replies = [trouble, trouble, Reply(STREAM)]
    assert client.describe("q").end == 9
    broker.replies = [trouble]
    broker.asked.clear()
    with pytest.raises(Unreachable):
        client.describe("q")
    assert len(broker.asked) == 3


def test_the_pause_doubles_or_is_what_the_broker_asks_for(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    busy = Reply({}, 503)
    broker.replies = [busy, busy, Reply({}, 429, (("Retry-After", "3"),)), busy, Reply(STREAM)]
    with BrokerClient(broker.url, backoff_s=1.0) as client:
        client.describe("q")
    assert pauses == [1.0, 2.0, 3.0, 8.0]


def test_a_snapshot_is_not_begun_twice_when_the_answer_was_lost(broker: FakeBroker, client: BrokerClient) -> None:
    broker.replies = [Reply(silence=True)]
    with pytest.raises(Unreachable):
        client.make_snapshot("q")
    assert len(broker.asked) == 1
    ready = {"snapshot": "s", "id": "i", "first": 0, "end": 0, "bytes": 0}
    broker.replies = [Reply({"error": "busy"}, 503), Reply(ready, 201)]
    assert client.make_snapshot("q").end == 0


def test_nobody_there_is_unreachable() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        with pytest.raises(Unreachable, match="refused"):
            BrokerClient(url, retries=1, backoff_s=0.0).describe("q")


# --- reading -----------------------------------------------------------------------------------------------------


def test_a_range_is_read_answer_by_answer(broker: FakeBroker, client: BrokerClient) -> None:
    two = chunk_of([Sent(3)]) + chunk_of([Sent(4), Sent(5)])
    broker.replies = [Reply(two, headers=(("X-Warren-Next", "6"),)), chunks(6, 9)]
    found = list(client.read("q", 3, 9, "i1"))
    assert [(chunk.first, chunk.end) for chunk in found] == [(3, 4), (4, 6), (6, 9)]
    assert ["from=3&to=9" in broker.asked[0].path, "from=6&to=9" in broker.asked[1].path] == [True, True]


def test_chunks_may_stick_out_of_the_range(broker: FakeBroker, client: BrokerClient) -> None:
    data = chunk_of([Sent(offset) for offset in range(20)])
    broker.replies = [Reply(data, headers=(("X-Warren-Next", "20"),))]
    assert [(chunk.first, chunk.end) for chunk in client.read("q", 3, 9, "i1")] == [(0, 20)]
    assert len(broker.asked) == 1


def test_a_gap_between_chunks_is_data_loss(broker: FakeBroker, client: BrokerClient) -> None:
    broker.replies = [Reply(chunk_of([Sent(3)]) + chunk_of([Sent(5)]), headers=(("X-Warren-Next", "6"),))]
    with pytest.raises(DataLoss, match="from 4 to 5"):
        list(client.read("q", 3, 6, "i1"))
    broker.replies = [Reply(chunk_of([Sent(3)]), headers=(("X-Warren-Next", "6"),))]
    with pytest.raises(DataLoss, match="from 4 to 6"):
        list(client.read("q", 3, 6, "i1"))


def test_a_damaged_answer_is_asked_for_again(broker: FakeBroker, client: BrokerClient) -> None:
    good = chunks(3, 9)
    assert isinstance(good.value, bytes)
    bad = good._replace(value=good.value[:-1] + b"\x01")
    broker.replies = [bad, good]
    assert [chunk.count for chunk in client.read("q", 3, 9, "i1")] == [6]
    broker.replies = [bad]
    with pytest.raises(DamagedChunk):
        list(client.read("q", 3, 9, "i1"))


def test_what_retention_is_removing_is_asked_for_until_it_is_gone(broker: FakeBroker, client: BrokerClient) -> None:
    broker.replies = [Reply(b"", headers=(("X-Warren-Next", "3"),)), Reply({"error": "gone"}, 410)]
    with pytest.raises(Gone):
        list(client.read("q", 3, 9, "i1"))


# --- the client itself -------------------------------------------------------------------------------------------


def test_a_client_is_pickled_without_its_connection(broker: FakeBroker, client: BrokerClient) -> None:
    broker.replies = [Reply(STREAM)]
    client.describe("q")
    with pickle.loads(pickle.dumps(client)) as again:
        assert again.describe("q") == client.describe("q")
    assert len({asked.connection for asked in broker.asked}) == 2


def test_user_and_password_may_stand_in_the_url_and_are_never_shown() -> None:
    client = BrokerClient("https://ann:s%20t@[::1]:99/api/")
    assert (client.url, client.username) == ("https://[::1]:99", "ann")
    assert "s%20t" not in repr(client)
    with pytest.raises(ValueError, match="not of the form") as caught:
        BrokerClient("ftp://ann:secret@host")
    assert "secret" not in str(caught.value)


def test_tls_is_verified_unless_told_otherwise(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "test")
    mine = authority.issue("/CN=localhost", "DNS:localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(mine.certificate, mine.key)
    with FakeBroker(context) as broker:
        broker.replies = [Reply(STREAM)]
        for client in (
            BrokerClient(broker.url, cacert=str(authority.certificate)),
            BrokerClient(broker.url, insecure=True),
        ):
            with client:
                assert client.describe("q").name == "q"
        with pytest.raises(Unreachable, match="certificate"):
            BrokerClient(broker.url, retries=0).describe("q")
