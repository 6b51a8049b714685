"""Sealed streams read from followers: a follower serves its copy, and readers miss nothing when one is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from broker_process import wait_until
from cluster.etcd_processes import running_etcd

from integration.management.client import EVERYTHING, Api
from warren import lake
from warren.spark_bridge import local_files
from warren.spark_bridge import nodes as reading_nodes
from warren.spark_bridge.bridge_errors import AnotherQueue, BrokerError
from warren.spark_bridge.control import BrokerClient, RangeCuts
from warren.spark_bridge.frames import encode_publishes
from warren.spark_bridge.options import read_options
from warren.spark_bridge.pieces import Piece, Range, cut, read
from warren.spark_bridge.properties import encode_properties
from warren.spark_bridge.schema import arrow_schema

from .nodes import Node
from .test_election import NAMES, ElectingNode, await_all, leader_of

STREAM = "events"
ROWS = 60_000
BODIES = [b"body %d" % number for number in range(ROWS)]


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Node]]:
    """A leader with a stream of `ROWS` messages, most of them sealed, and two followers in sync."""
    leader, one, two = found = [Node(tmp_path, name) for name in ("leader", "one", "two")]
    reading_nodes._resting.clear()
    monkeypatch.setattr(local_files, "_maybe_boot_id", lambda: None)  # as on a machine of its own
    try:
        leader.lead()
        for node in (one, two):
            node.follow(leader)
        leader.await_in_sync("one", "two")
        fill(leader)
        wait_until(lambda: plan_of(leader).sealed > ROWS // 2, "the stream to be sealed")
        for node in (one, two):
            await_served(node, plan_of(leader).sealed)
        yield found
    finally:
        reading_nodes._resting.clear()
        for node in found:
            node.process.kill()


def client_of(node: Node, user: str = "guest") -> BrokerClient:
    password = "guest" if user == "guest" else "x"
    return BrokerClient(f"http://127.0.0.1:{node.process.http_port}", user, password, retries=8)


def fill(leader: Node, query: str = "fill") -> None:
    api = Api(leader.process.http_port)
    api.put(f"/queues/%2F/{STREAM}", {"durable": True, "arguments": {"x-queue-type": "stream"}})
    api.close()
    with client_of(leader) as client:
        for first in range(0, ROWS, 10_000):
            properties = encode_properties({"message_id": pa.array([f"m{n % 7}" for n in range(10_000)])}, 10_000)
            frames = encode_publishes("", STREAM, properties, pa.array(BODIES[first : first + 10_000]))
            client.put_stage(f"s{first}", 0, b"".join(frames.to_pylist()))
            client.commit_stages(query, first // 10_000, [f"s{first}"])


def plan_of(node: Node) -> RangeCuts:
    with client_of(node) as client:
        found = client.describe(STREAM)
        return client.plan(STREAM, found.first, found.end, found.id)


def served_bytes(node: Node) -> int:
    return int(node.status()["served_bytes"])


def await_served(node: Node, end: int) -> None:
    """Wait until a follower serves the last message before `end` itself."""
    before = served_bytes(node)

    def is_served() -> bool:
        with client_of(node) as client:
            client.chunks(STREAM, end - 1, end, client.describe(STREAM).id)
        return served_bytes(node) > before

    wait_until(is_served, "a follower to have what is sealed")


def bodies_of(leader: Node, pieces: list[Piece]) -> list[bytes]:
    options = read_options({"subscribe": STREAM}, environment={})
    schema = arrow_schema(("body",))
    with client_of(leader) as client:
        return [
            body
            for piece in pieces
            for batch in read(client, options, piece.value, schema)
            for body in batch.column("body").to_pylist()
        ]


def pieces_of(leader: Node, **given: str) -> list[Piece]:
    options = read_options({"subscribe": STREAM, "minPartitions": "6", "localFiles": "never"} | given, environment={})
    with client_of(leader) as client:
        found = client.describe(STREAM)
        return cut(client, options, [Range(STREAM, 0, STREAM, found.id, found.first, found.end)])


@pytest.mark.long
def test_followers_serve_what_is_sealed_and_tasks_miss_nothing_whoever_is_gone(three: list[Node]) -> None:
    leader, one, two = three
    urls = {f"http://127.0.0.1:{node.process.http_port}" for node in (one, two)}
    assert set(plan_of(leader).nodes) == urls
    assert set(plan_of(one).nodes) == urls, "asked through a follower the leader says the same"
    pieces = pieces_of(leader)
    assert {url for piece in pieces for url in piece.value.nodes} == urls
    assert () in [piece.value.nodes for piece in pieces], "the leader has its share"
    assert all(not piece.value.nodes for piece in pieces_of(leader, nodes="never"))

    before = [served_bytes(node) for node in (one, two)]
    assert bodies_of(leader, pieces) == BODIES
    assert all(served_bytes(node) > was for node, was in zip((one, two), before, strict=True))

    # The same plan, carried out when one of its nodes is gone, and when the leader is another one.
    two.process.kill()
    assert bodies_of(leader, pieces) == BODIES
    wait_until(lambda: len(plan_of(leader).nodes) == 1, "the lost node to leave the plan")
    leader.process.kill()
    one.await_lost()
    one.promote()
    assert bodies_of(one, pieces) == BODIES
    assert plan_of(one).nodes == ()


def test_a_table_and_an_export_are_read_from_followers_too(three: list[Node], tmp_path: Path) -> None:
    leader, one, _ = three
    before = served_bytes(one) + served_bytes(three[2])
    url = f"http://127.0.0.1:{leader.process.http_port}"
    table = lake.read(STREAM, url=url, columns=["body"]).read_all()
    assert table.column("body").to_pylist() == BODIES
    assert served_bytes(one) + served_bytes(three[2]) > before


@pytest.mark.long
def test_what_is_deleted_and_made_again_is_another_stream_and_rights_are_those_of_the_leader(
    three: list[Node],
) -> None:
    leader, one, _ = three
    api = Api(leader.process.http_port)
    api.put("/users/ann", {"password": "x", "tags": ""})
    api.put("/users/bob", {"password": "x", "tags": ""})
    api.put("/permissions/%2F/ann", EVERYTHING)
    api.put("/permissions/%2F/bob", EVERYTHING | {"read": "^other"})
    identifier = plan_of(leader).id
    with client_of(one, "bob") as bob, pytest.raises(BrokerError, match="refused"):
        bob.chunks(STREAM, 0, 10, identifier)
    with client_of(one, "ann") as ann:
        before = served_bytes(one)
        ann.chunks(STREAM, 0, 10, identifier)
        assert served_bytes(one) > before
        api.put("/permissions/%2F/ann", EVERYTHING | {"read": "^other"})
        wait_until(lambda: refused(ann, identifier), "the right to be gone on the follower")
        api.put("/permissions/%2F/ann", EVERYTHING)

        api.delete(f"/queues/%2F/{STREAM}")
        fill(leader, "again")
        wait_until(lambda: plan_of(leader).sealed > 0, "the new stream to be sealed")
        again = plan_of(leader).id
        assert again != identifier
        wait_until(lambda: is_another(ann, identifier), "the follower to know of the new stream")
        data, _ = ann.chunks(STREAM, 0, 10, again)
        assert data.size > 0
    api.close()


@pytest.mark.long
def test_elected_nodes_serve_readers_and_the_next_leader_is_one_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_files, "_maybe_boot_id", lambda: None)
    reading_nodes._resting.clear()
    with running_etcd(tmp_path / "etcd") as etcd:
        elected = [ElectingNode(tmp_path, name, etcd) for name in NAMES]
        try:
            for node in elected:
                node.take_part()
            leader = leader_of(elected)
            await_all(leader, elected)
            fill(leader)
            others = [node for node in elected if node is not leader]
            wait_until(lambda: plan_of(leader).sealed > ROWS // 2, "the stream to be sealed")
            for node in others:
                await_served(node, plan_of(leader).sealed)
            pieces = pieces_of(leader)
            urls = {f"http://127.0.0.1:{node.process.http_port}" for node in others}
            assert set(plan_of(leader).nodes) == urls
            assert bodies_of(leader, pieces) == BODIES
            leader.process.kill()
            second = leader_of(others)
            reading_nodes._resting.clear()
            assert bodies_of(second, pieces) == BODIES, "the same plan, and one of its nodes leads by now"
        finally:
            reading_nodes._resting.clear()
            for node in elected:
                if node.process.is_running():
                    node.process.kill()


def refused(client: BrokerClient, identifier: str) -> bool:
    try:
        client.chunks(STREAM, 0, 10, identifier)
    except BrokerError:
        return True
    return False


def is_another(client: BrokerClient, identifier: str) -> bool:
    try:
        client.chunks(STREAM, 0, 10, identifier)
    except AnotherQueue:
        return True
    return False
