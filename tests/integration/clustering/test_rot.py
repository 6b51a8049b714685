"""Bits that flip on the disk of one node are put right from another one, and no message is missed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from broker_process import wait_until

from warren.spark_bridge.control import BrokerClient
from warren.spark_bridge.frames import encode_publishes
from warren.spark_bridge.properties import encode_properties

from .nodes import Node

# A segment is looked at every ten seconds, so that there is time to damage one before its turn.
SETTINGS = {"store.segment_bytes": "1048576", "store.scrub_bytes_per_s": "104858"}
BODIES = [b"%06d" % number + bytes(1000) for number in range(4000)]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    """A leader with messages in several segments, and a follower in sync."""
    leader, follower = Node(tmp_path, "one", SETTINGS), Node(tmp_path, "two", SETTINGS)
    try:
        leader.lead()
        leader.publish("orders", BODIES)
        follower.follow(leader)
        leader.await_in_sync("two")
        yield leader, follower
    finally:
        for node in (follower, leader):
            node.process.kill()


def segments(node: Node) -> list[Path]:
    return sorted(path for path in (node.process.data_directory / "messages" / "log").iterdir() if path.name.isdigit())


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def position_of(path: Path, body: bytes) -> int:
    found = path.read_bytes().find(body[:6])
    assert found > 0
    return found


def mended(node: Node) -> int:
    return int(node.status()["mended"])


@pytest.mark.long
def test_a_follower_mends_its_log_from_its_leader(pair: tuple[Node, Node]) -> None:
    leader, follower = pair
    theirs, ours = segments(leader)[2], segments(follower)[2]
    assert theirs.read_bytes() == ours.read_bytes()
    for position in (200_000, 700_000):
        flip(ours, position)
    wait_until(lambda: mended(follower) == 2, "the follower to mend its log")
    assert theirs.read_bytes() == ours.read_bytes()
    follower.await_log("damage on disk was mended from another node")
    assert "warren_follower_mended 2\n" in follower.ask_text("/metrics")
    kept = (follower.process.data_directory / "messages" / "quarantine").iterdir()
    assert len([path for path in kept if path.name.startswith("mended-")]) == 2


@pytest.mark.long
def test_a_leader_serves_what_was_damaged_on_its_disk_only(pair: tuple[Node, Node]) -> None:
    leader, _ = pair
    leader.process.stop()
    leader.settings["store.scrub_bytes_per_s"] = "0"  # the first to find it are readers
    leader.lead()
    leader.await_in_sync("two")
    path = segments(leader)[1]
    right = path.read_bytes()
    for body in (BODIES[1200], BODIES[1500]):
        flip(path, position_of(path, body))
    assert path.read_bytes() != right
    assert leader.drain("orders") == BODIES
    assert mended(leader) == 2
    assert "not served" not in leader.process.log()
    assert "\nwarren_replication_mended 2\n" in leader.ask_text("/metrics")


@pytest.mark.long
def test_a_damaged_chunk_of_a_stream_is_mended_on_either_node(pair: tuple[Node, Node]) -> None:
    leader, follower = pair
    leader.ask("PUT", "/api/queues/%2F/events", {"durable": True, "arguments": {"x-queue-type": "stream"}})
    with BrokerClient(f"http://127.0.0.1:{leader.process.http_port}") as client:
        for first in range(0, 40_000, 10_000):
            bodies = pa.array([b"body %d" % number for number in range(first, first + 10_000)])
            frames = encode_publishes("", "events", encode_properties({}, 10_000), bodies)
            client.put_stage("s", 0, b"".join(frames.to_pylist()))
            client.commit_stages("fill", first // 10_000, ["s"])
        wait_until(lambda: client.describe("events").sealed > 10_000, "the stream to be sealed")
        found = client.describe("events")
        names = [next((node.process.data_directory / "messages" / "streams").iterdir()) for node in (leader, follower)]
        wait_until(lambda: names[0].read_bytes() == names[1].read_bytes(), "the follower to have the same")
        right = names[0].read_bytes()  # later messages may be sealed as well

        flip(names[0], 64 + 192 + 50)
        assert sum(chunk.count for chunk in client.read("events", 0, found.sealed, found.id)) == found.sealed
        assert names[0].read_bytes().startswith(right)

        flip(names[1], 64 + 20)  # in the head of a chunk
        with BrokerClient(f"http://127.0.0.1:{follower.process.http_port}") as other:
            other.chunks("events", 0, 10, found.id)  # has the leader answer, and the follower look at its file
        wait_until(lambda: names[1].read_bytes().startswith(right), "the follower to mend its chunk")
