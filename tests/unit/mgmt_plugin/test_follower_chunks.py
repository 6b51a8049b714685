"""Reads that a follower answers itself, and others that it leaves to its leader; follower_chunks.py (1), (2)."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio

from warren.mgmt_plugin.follower_chunks import is_for_chunks, maybe_chunks
from warren.mgmt_plugin.http.server import HttpError, Request, Response
from warren.mgmt_plugin.resources.ranges import incarnation
from warren.msgstore.log.columns import BODIES, ColumnsWriter, maybe_head
from warren.msgstore.log.message import Envelope, build_message
from warren.server.following import Following, ReadableCopy

STORE = bytes(range(16))
ID = incarnation(STORE, 7)
PATH = "/api/warren/data/%2F/events/chunks"


def chunk(first: int, end: int) -> bytes:
    writer = ColumnsWriter()
    for offset in range(first, end):
        writer.add(offset, build_message(Envelope("", "q"), b"\0\0", b"body", 0, True), False)
    return b"".join(writer.finish(first, end).encode())


class Copy:
    """Of stream 7 the offsets from 0 to 20, in chunks of 10; ann may read it."""

    store_id = STORE
    served_bytes = 0
    fails = False

    def maybe_stream(self, vhost: str, name: str) -> int | None:
        return {("/", "events"): 7}.get((vhost, name))

    def maybe_pattern(self, user: str, vhost: str) -> str | None:
        return {("ann", "/"): "^ev", ("bob", "/"): "^orders"}.get((user, vhost))

    def read(self, stream_id: int, first: int, end: int, most_bytes: int) -> tuple[list[bytes], int]:
        assert stream_id == 7
        if self.fails:
            raise OSError
        found = [chunk(at, at + 10) for at in (0, 10) if at + 10 > first and at < end] if first < 20 else []
        return found, max(first, min(20, -(-end // 10) * 10))


class Follower:
    def __init__(self) -> None:
        self.copy: Copy | None = Copy()

    def readable(self) -> ReadableCopy | None:
        return self.copy


def request(path: str = PATH, query: str = f"from=5&to=20&id={ID}", method: str = "GET") -> Request:
    return Request(method, path, query, {}, "127.0.0.1", False, cast(Any, None))


def asked(follower: Follower, asked_for: Request, user: str = "ann") -> Response | None:
    return trio.run(maybe_chunks, cast(Following, follower), asked_for, user)


def test_a_sealed_range_is_answered_and_says_where_it_ends() -> None:
    follower = Follower()
    answer = asked(follower, request())
    assert answer is not None and answer.status == 200
    assert answer.headers == (("X-Warren-Next", "20"),)
    assert b"".join(answer.blocks) == chunk(0, 10) + chunk(10, 20)
    assert follower.copy is not None and follower.copy.served_bytes == len(chunk(0, 10) + chunk(10, 20))
    more = asked(follower, request(query=f"from=5&to=30&id={ID}"))
    assert more is not None and more.headers == (("X-Warren-Next", "20"),), "the leader goes on from there"


def test_columns_that_nobody_wants_are_left_out() -> None:
    answer = asked(Follower(), request(query=f"from=0&to=10&id={ID}&columns=properties"))
    assert answer is not None
    head = maybe_head(b"".join(answer.blocks))
    assert head is not None and int(head.stored[BODIES]) == 0 and int(head.count) == 10


@pytest.mark.parametrize(
    "query",
    [
        "from=5&to=20",
        "from=5&to=20&id=",
        f"from=5&to=20&id={incarnation(STORE, 8)}",
        f"from=5&to=20&id={incarnation(bytes(16), 7)}",
        f"from=20&to=30&id={ID}",
        f"from=-1&to=20&id={ID}",
        f"from=5&to=5&id={ID}",
        f"from=20&to=5&id={ID}",
        f"from=x&to=20&id={ID}",
        f"from=5&to=99999999999999999999999&id={ID}",
        f"to=20&id={ID}",
        f"from=5&to=20&id={ID}&columns=bodies,x",
        f"from=5&to=20&id={ID}&snapshot=1",
        "%ff=%ff&from=5",
        "&".join(["a=1"] * 2000),
    ],
)
def test_what_is_not_plain_or_of_another_stream_is_the_leaders(query: str) -> None:
    assert asked(Follower(), request(query=query)) is None


@pytest.mark.parametrize(
    "path",
    [
        "/api/warren/data/%2F/orders/chunks",
        "/api/warren/data/other/events/chunks",
        "/api/warren/data/%2F/a/events/chunks",
        "/api/warren/data/%ff/events/chunks",
        "/api/warren/data/chunks",
    ],
)
def test_other_queues_are_the_leaders(path: str) -> None:
    assert asked(Follower(), request(path)) is None


def test_who_may_not_read_it_is_for_the_leader_to_refuse() -> None:
    assert asked(Follower(), request(), "bob") is None
    assert asked(Follower(), request(), "eve") is None


def test_a_follower_that_is_not_in_sync_or_cannot_read_its_disk_answers_nothing() -> None:
    follower = Follower()
    assert follower.copy is not None
    follower.copy.fails = True
    assert asked(follower, request()) is None
    follower.copy = None
    assert asked(follower, request()) is None


def test_too_much_at_once_is_refused() -> None:
    def hold(_: int) -> None:
        raise HttpError(503, "overloaded", "too many large requests at once")

    held = request()
    held.hold = hold
    with pytest.raises(HttpError):
        asked(Follower(), held)


def test_only_chunks_are_looked_at() -> None:
    assert is_for_chunks(request())
    assert not is_for_chunks(request(method="POST"))
    assert not is_for_chunks(request("/api/warren/data/%2F/events/plan"))
    assert not is_for_chunks(request("/api/queues/%2F/chunks"))
