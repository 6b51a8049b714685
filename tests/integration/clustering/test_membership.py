"""Which nodes a leader waits for, no longer waits for, or refuses; and what publishers notice of it."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from broker_process import wait_until
from crash.small_disk import SmallDisk

from .nodes import PERSISTENT, Node
from .test_promotion import bodies


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_follower_that_is_gone_costs_one_wait_and_comes_back(number: signal.Signals, tmp_path: Path) -> None:
    leader, follower = Node(tmp_path, "one"), Node(tmp_path, "two")
    leader.lead()
    follower.follow(leader)
    leader.await_in_sync("two")
    leader.publish("orders", bodies(0, 3))
    follower.process.signal(number)
    leader.publish("orders", bodies(3, 3))
    assert leader.status()["in_sync"] == ["rabbit@one"]
    wait_until(lambda: "a follower has left the in-sync set" in leader.process.log(), "the line of the log")
    if number == signal.SIGKILL:
        follower.process.wait()
        follower.follow(leader)
    else:
        follower.process.signal(signal.SIGCONT)
    leader.await_in_sync("two")
    leader.publish("orders", bodies(6, 3))
    leader.lose()
    follower.await_lost()
    follower.promote()
    assert follower.drain("orders") == bodies(0, 9)
    follower.process.stop()


def test_below_min_in_sync_nothing_is_confirmed_until_a_follower_is_there(tmp_path: Path) -> None:
    leader, follower = Node(tmp_path, "one", {"min_in_sync": 2}), Node(tmp_path, "two")
    leader.lead(is_enough=False)
    blocked: list[str] = []
    with leader.connect() as connection:
        connection.add_on_connection_blocked_callback(lambda _, frame: blocked.append(frame.method.reason))
        channel = connection.channel()
        channel.queue_declare("transient", exclusive=True)
        channel.basic_publish("", "transient", b"a message that tells the broker of a publisher")

        def is_blocked() -> bool:
            connection.process_data_events(0)
            return bool(blocked)

        wait_until(is_blocked, "the publisher to be blocked")
        assert blocked == ["low on replicas"]
        status, health = leader.ask("GET", "/health")
        assert status == 503
        assert "min_in_sync" in health["reason"]
        follower.follow(leader)
        leader.await_in_sync("two")
        channel.queue_declare("orders", durable=True)
        channel.confirm_delivery()
        for body in bodies(0, 3):
            channel.basic_publish("", "orders", body, PERSISTENT)
        # The leader waits for a member that is gone, as long as there is no other one.
        follower.process.signal(signal.SIGSTOP)
        wait_until(lambda: leader.ask("GET", "/health")[0] == 503, "the leader to miss its follower")
        assert leader.status()["in_sync"] == ["rabbit@one", "rabbit@two"]
        follower.process.signal(signal.SIGCONT)
        for body in bodies(3, 3):
            channel.basic_publish("", "orders", body, PERSISTENT)
    assert leader.drain("orders") == bodies(0, 6)
    follower.process.kill()
    leader.process.kill()


def test_a_node_with_another_secret_is_refused_and_both_say_so(tmp_path: Path) -> None:
    leader, follower = Node(tmp_path, "one"), Node(tmp_path, "two", secret="the secret of something else")
    leader.lead()
    follower.follow(leader)
    for node in (leader, follower):
        node.await_log("same secret (cluster_secret_file)")
    assert leader.status()["followers"] == []
    leader.publish("orders", bodies(0, 1))
    follower.process.stop()
    leader.process.stop()


def test_the_directory_of_another_store_is_refused_and_both_say_so(tmp_path: Path) -> None:
    leader, other = Node(tmp_path, "one"), Node(tmp_path, "two")
    other.lead()
    other.process.stop()
    leader.lead()
    other.follow(leader)
    for node in (leader, other):
        node.await_log("another store")
    other.process.stop()
    leader.process.stop()


def test_two_nodes_of_one_name_are_told_so(tmp_path: Path) -> None:
    leader = Node(tmp_path, "one")
    first, second = Node(tmp_path / "a", "two"), Node(tmp_path / "b", "two")
    leader.lead()
    first.follow(leader)
    leader.await_in_sync("two")
    second.follow(leader)
    for node in (leader, second):
        node.await_log("with the name rabbit@two")
    assert first.status()["connected"]
    for node in (second, first, leader):
        node.process.stop()


@pytest.mark.long
def test_a_follower_whose_disk_is_full_leaves_and_comes_back_when_there_is_space(tmp_path: Path) -> None:
    leader, follower = Node(tmp_path, "one", {"store.segment_bytes": 1 << 20}), Node(tmp_path, "two")
    with SmallDisk(follower.process.data_directory, 24 << 20) as disk:
        follower.wrapper = disk.wrapper
        leader.lead()
        follower.follow(leader)
        leader.await_in_sync("two")
        filler = disk.view / "filler"
        filler.write_bytes(bytes(max(0, disk.free_bytes() - (256 << 10))))
        leader.publish("orders", [bytes(100_000) for _ in range(20)])
        assert leader.status()["in_sync"] == ["rabbit@one"]
        follower.await_log("the disk is full")
        filler.unlink()
        leader.await_in_sync("two")
        leader.publish("orders", [b"behind it"])
        leader.lose()
        follower.await_lost()
        follower.promote()
        assert follower.drain("orders") == [bytes(100_000) for _ in range(20)] + [b"behind it"]
        follower.process.stop()


@pytest.mark.long
def test_a_new_follower_of_a_leader_that_has_let_go_of_the_beginning_of_its_log_gets_everything(tmp_path: Path) -> None:
    leader, follower = Node(tmp_path, "one", {"store.segment_bytes": 1 << 20}), Node(tmp_path, "two")
    leader.lead()
    first = leader.process.data_directory / "messages" / "log" / "0000000001"
    assert first.exists()
    leader.publish("orders", bodies(0, 3))
    leader.publish("others", [bytes(100_000) for _ in range(40)])
    leader.drain("others")
    leader.publish("others", [b"something to write"])
    wait_until(lambda: not first.exists(), "the first segment to be removed")
    follower.follow(leader)
    leader.await_in_sync("two")
    wait_until(lambda: "a follower gets a copy of everything" in leader.process.log(), "the line of the log")
    leader.publish("orders", bodies(3, 3))
    leader.lose()
    follower.await_lost()
    follower.promote()
    assert follower.drain("orders") == bodies(0, 6)
    assert follower.drain("others") == [b"something to write"]
    follower.process.stop()


def test_a_publisher_waits_for_about_a_second_when_a_follower_stops(tmp_path: Path) -> None:
    leader, follower = Node(tmp_path, "one"), Node(tmp_path, "two")
    leader.lead()
    follower.follow(leader)
    leader.await_in_sync("two")
    with leader.connect() as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        channel.confirm_delivery()
        follower.process.signal(signal.SIGSTOP)
        began_s = time.monotonic()
        channel.basic_publish("", "orders", b"one", PERSISTENT)
        waited_s = time.monotonic() - began_s
    # Not sooner: one that is slow for a moment stays. The exact delay depends on the machine.
    assert waited_s >= 0.5
    follower.process.kill()
    leader.process.stop()
