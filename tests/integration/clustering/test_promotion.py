"""A follower whose leader is gone has all confirmed messages and their metadata."""

from __future__ import annotations

import signal
from pathlib import Path

import pika
import pyarrow as pa
import pytest
from broker_process import wait_until

from warren.server.links_mark import hold, maybe_mark
from warren.spark_bridge.bridge_errors import NotFound
from warren.spark_bridge.control import BrokerClient
from warren.spark_bridge.frames import encode_publishes
from warren.spark_bridge.properties import encode_properties

from .nodes import PERSISTENT, Node, drained


def bodies(first: int, count: int) -> list[bytes]:
    return [f"message {number}".encode() for number in range(first, first + count)]


def test_confirmed_messages_survive_the_leader_and_its_disk(tmp_path: Path) -> None:
    leader, follower = Node(tmp_path, "one"), Node(tmp_path, "two")
    leader.lead()
    follower.follow(leader)
    leader.await_in_sync("two")
    leader.publish("orders", bodies(0, 20))
    leader.lose()
    follower.await_lost()
    follower.promote()
    assert follower.drain("orders") == bodies(0, 20)
    follower.publish("orders", bodies(20, 5))
    assert follower.drain("orders") == bodies(20, 5)
    assert follower.status()["role"] == "leader"
    follower.process.stop()


def test_what_is_declared_and_who_may_log_in_is_there_as_well(tmp_path: Path) -> None:
    leader, follower = Node(tmp_path, "one"), Node(tmp_path, "two")
    leader.lead()
    # The first of it is there before the follower is, and reaches its metadata store as a copy.
    assert leader.ask("PUT", "/api/users/anna", {"password": "secret", "tags": "administrator"})[0] == 201
    follower.follow(leader)
    leader.await_in_sync("two")
    assert leader.ask("PUT", "/api/vhosts/shop")[0] == 201
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    assert leader.ask("PUT", "/api/permissions/shop/anna", everything)[0] == 201
    assert leader.ask("PUT", "/api/policies/shop/short", {"pattern": "^q", "definition": {"max-length": 3}})[0] == 201
    anna = pika.PlainCredentials("anna", "secret")
    with leader.connect(virtual_host="shop", credentials=anna) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare("letters", "topic", durable=True)
        channel.queue_declare("q", durable=True)
        channel.queue_bind("q", "letters", "a.#")
        channel.queue_declare("events", durable=True, arguments={"x-queue-type": "stream"})
        for number in range(5):
            channel.basic_publish("letters", "a.b", b"%d" % number, PERSISTENT)
            channel.basic_publish("", "events", b"%d" % number, PERSISTENT)
        channel.queue_declare("gone", durable=True)
        channel.queue_delete("gone")
    leader.lose()
    follower.await_lost()
    follower.promote()
    with follower.connect(virtual_host="shop", credentials=anna) as connection:
        channel = connection.channel()
        assert drained(channel, "q") == [b"2", b"3", b"4"]
        channel.confirm_delivery()
        channel.basic_publish("letters", "a.c", b"again", PERSISTENT)
        assert drained(channel, "q") == [b"again"]
        channel.basic_qos(prefetch_count=10)
        read = []
        for method, _, body in channel.consume("events", arguments={"x-stream-offset": "first"}):
            assert method is not None
            assert method.delivery_tag is not None
            read.append(body)
            channel.basic_ack(method.delivery_tag)
            if len(read) == 5:
                break
        channel.cancel()
        assert read == [b"0", b"1", b"2", b"3", b"4"]
    _, queues = follower.ask("GET", "/api/queues/shop")
    assert sorted(queue["name"] for queue in queues) == ["events", "q"]
    follower.process.stop()


def test_nobody_is_promoted_while_the_leader_answers(tmp_path: Path) -> None:
    leader, follower = Node(tmp_path, "one"), Node(tmp_path, "two")
    leader.lead()
    follower.follow(leader)
    leader.await_in_sync("two")
    status, refusal = follower.ask("POST", "/api/cluster/promote", {"accept_loss": True})
    assert status == 409
    assert "stop it first" in refusal["reason"]
    assert leader.ask("POST", "/api/cluster/promote")[0] == 404
    follower.process.stop()
    leader.process.stop()


def test_who_was_not_in_sync_is_promoted_only_when_loss_is_accepted(tmp_path: Path) -> None:
    leader, follower = Node(tmp_path, "one"), Node(tmp_path, "two")
    leader.lead()
    follower.follow(leader)
    leader.await_in_sync("two")
    leader.publish("orders", bodies(0, 3))
    follower.process.signal(signal.SIGSTOP)
    leader.await_in_sync()
    leader.publish("orders", bodies(3, 3))
    # It wakes up and learns that the leader continued without it. In this test it may not rejoin.
    follower.process.signal(signal.SIGCONT)
    wait_until(lambda: "it has left the in-sync set" in follower.process.log(), "the follower to be told")
    leader.process.kill()
    follower.await_lost()
    status, refusal = follower.ask("POST", "/api/cluster/promote", {"accept_loss": False})
    if status == 409:
        assert "not in sync" in refusal["reason"]
        follower.promote(accept_loss=True)
        assert follower.drain("orders") in (bodies(0, 3), bodies(0, 6))
    else:
        # It had caught up in the meantime.
        assert status == 200
    follower.process.kill()


@pytest.mark.long
def test_a_standby_that_was_away_is_promoted_only_when_loss_is_accepted(tmp_path: Path) -> None:
    """It was in sync before it was stopped, and its leader has confirmed more since: 500 of 600 were lost so."""
    leader, follower = Node(tmp_path, "one"), Node(tmp_path, "two")
    leader.lead()
    follower.follow(leader)
    leader.await_in_sync("two")
    leader.publish("orders", bodies(0, 10))
    wait_until(lambda: follower.status()["in_sync_since_start"], "the follower to be in sync")
    follower.process.stop()
    leader.publish("orders", bodies(10, 50))
    leader.lose()
    follower.follow(leader)
    status = follower.status()
    assert (status["connected"], status["in_sync"], status["in_sync_since_start"]) == (False, False, False)
    assert status["last_in_sync_ms"] > 0
    refused, refusal = follower.ask("POST", "/api/cluster/promote", {"accept_loss": False})
    assert refused == 409
    told = ("since it was started", "it was in sync with rabbit@one up to LSN", "before this start", "--accept-loss")
    for text in told:
        assert text in refusal["reason"]
    answer = follower.promote(accept_loss=True)
    assert answer["note"].startswith("Confirmed messages may be missing here")
    assert follower.drain("orders") == bodies(0, 10)
    assert not (follower.process.data_directory / "last-contact.json").exists()
    follower.process.stop()


@pytest.mark.long
def test_a_leader_that_was_replaced_follows_and_gives_up_what_it_alone_had(tmp_path: Path) -> None:
    one, two = Node(tmp_path, "one"), Node(tmp_path, "two")
    one.lead()
    two.follow(one)
    one.await_in_sync("two")
    one.publish("orders", bodies(0, 5))
    two.process.kill()
    one.await_in_sync()
    # Confirmed by one alone, which its min_in_sync allows, and lost when two is promoted.
    one.publish("orders", bodies(100, 5))
    with one.connect() as connection:
        connection.channel().queue_declare("of one alone", durable=True)
    one.process.kill()
    two.follow(one)
    two.await_lost()
    two.promote(accept_loss=True)
    two.publish("orders", bodies(5, 5))
    one.follow(two)
    two.await_in_sync("one")
    two.publish("orders", bodies(10, 5))
    two.lose()
    one.await_lost()
    one.promote()
    assert one.drain("orders") == bodies(0, 15)
    _, queues = one.ask("GET", "/api/queues")
    assert [queue["name"] for queue in queues] == ["orders"]
    one.process.stop()


def test_whoever_commits_a_stage_that_stayed_on_the_lost_leader_is_told_what_to_do(tmp_path: Path) -> None:
    leader, follower = Node(tmp_path, "one"), Node(tmp_path, "two")
    leader.lead()
    follower.follow(leader)
    leader.await_in_sync("two")
    leader.publish("orders", [])
    frames = b"".join(encode_publishes("", "orders", encode_properties({}, 1), pa.array([b"staged"])).to_pylist())
    with BrokerClient(f"http://127.0.0.1:{leader.process.http_port}") as client:
        client.put_stage("s", 0, frames)
    leader.process.kill()
    follower.await_lost()
    follower.promote()
    with BrokerClient(f"http://127.0.0.1:{follower.process.http_port}") as client:
        with pytest.raises(NotFound, match=r"no stage .s. .* another node was the leader .* write it again"):
            client.commit_stages("query", 1, ["s"])
        client.put_stage("s", 0, frames)
        assert client.commit_stages("query", 1, ["s"]).committed
    assert follower.drain("orders") == [b"staged"]
    follower.process.kill()


@pytest.mark.long
def test_what_was_staged_before_another_node_led_is_not_committed(tmp_path: Path) -> None:
    """The stage was written again at the other node. That node is lost, and the new leader still has the old stage."""
    one, two = Node(tmp_path, "one"), Node(tmp_path, "two")

    def stage(node: Node, body: bytes) -> None:
        frames = encode_publishes("", "orders", encode_properties({}, 1), pa.array([body])).to_pylist()
        with BrokerClient(f"http://127.0.0.1:{node.process.http_port}") as client:
            client.put_stage("s", 0, b"".join(frames))

    one.lead()
    two.follow(one)
    one.await_in_sync("two")
    one.publish("orders", [])
    stage(one, b"old")
    one.process.kill()
    two.await_lost()
    two.promote()
    stage(two, b"new")
    one.follow(two)
    two.await_in_sync("one")
    two.process.kill()
    one.await_lost()
    one.promote()
    client = BrokerClient(f"http://127.0.0.1:{one.process.http_port}")
    with client, pytest.raises(NotFound, match=r"no stage 's' .* write it again"):
        client.commit_stages("query", 1, ["s"])
    assert one.drain("orders") == []
    one.process.kill()


def test_links_that_are_held_stay_held_when_a_follower_is_promoted(tmp_path: Path) -> None:
    """The directory of the leader was restored; that of the follower is a copy of some other one."""
    leader, follower = Node(tmp_path, "one"), Node(tmp_path, "two")
    for node in (leader, follower):
        node.process.data_directory.mkdir(mode=0o700)
        hold(node.process.data_directory, f"restored at {node.name}")
    leader.lead()
    value = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b"}
    assert leader.ask("PUT", "/api/parameters/shovel/%2F/s", {"value": value})[0] == 201
    follower.follow(leader)
    leader.await_in_sync("two")
    assert maybe_mark(leader.process.data_directory) is maybe_mark(follower.process.data_directory) is None
    leader.lose()
    follower.await_lost()
    follower.promote()
    assert follower.ask("GET", "/api/warren/links")[1]["reason"] == "restored at rabbit@one"
    wait_until(lambda: bool(follower.ask("GET", "/api/shovels")[1]), "the shovel to be known")
    assert follower.ask("GET", "/api/shovels")[1][0]["state"] == "held"
    assert follower.ask("POST", "/api/warren/links/release", {}) == (200, {"released": True})
    wait_until(lambda: follower.ask("GET", "/api/shovels")[1][0]["state"] != "held", "the shovel to begin")
    follower.process.stop()
