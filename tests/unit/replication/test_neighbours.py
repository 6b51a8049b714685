"""Where other nodes are, and how far their logs go (neighbours.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import trio
import trio.testing

from warren.cluster.events import Position, Standing
from warren.cluster.record import Replica
from warren.cluster.registry import NodeEntry, Seen
from warren.replication.format_level import POSITION_FROM
from warren.replication.handshake import Node, Refused
from warren.replication.neighbours import SEEN_S, Directory, Neighbours
from warren.replication.pre_vote import Told
from warren.server.setting_kinds import Endpoint

STANDING = Standing(Position(5, 60), Position(5, 40))


class Registry(SimpleNamespace):
    """Nodes by name; etcd answers with `current`, or not at all."""

    seen: dict[str, Seen]
    current: dict[str, NodeEntry] | None

    async def maybe_entry(self, name: str) -> NodeEntry | None:
        if self.current is None:
            await trio.sleep_forever()
        assert self.current is not None
        return self.current.get(name)

    async def is_registered(self, name: str) -> bool:
        return self.current is not None and name in self.current


def entry(cluster: str, level: int = POSITION_FROM) -> NodeEntry:
    return NodeEntry("91ce", cluster, "0.1.0", level=level)


def neighbours(current: dict[str, NodeEntry] | None, **seen: NodeEntry) -> Neighbours:
    known = {name: Seen(each, 0.0, True) for name, each in seen.items()}
    return Neighbours(cast(Directory, Registry(seen=known, current=current)))


@pytest.mark.parametrize(
    ("told", "endpoint"),
    [
        ("broker1:25672", Endpoint("broker1", 25672)),
        ("[::1]:25672", Endpoint("::1", 25672)),
        ("broker1", None),
        (":25672", None),
        ("broker1:0", None),
        ("broker1:70000", None),
        ("broker1:²", None),
    ],
)
def test_an_address_that_makes_no_sense_counts_as_none(told: str, endpoint: Endpoint | None) -> None:
    """(2)"""
    assert trio.run(neighbours({"b": entry(told)}).address, "b") == endpoint


def test_a_node_is_where_it_was_seen_last_while_etcd_does_not_answer() -> None:
    """(1)"""
    place = neighbours(None, b=entry("broker2:25672"))

    async def main() -> None:
        began_s = trio.current_time()
        assert await place.address("b") == Endpoint("broker2", 25672)
        assert trio.current_time() - began_s == pytest.approx(SEEN_S)
        assert await place.address("c") is None

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert trio.run(neighbours({"b": entry("moved:1")}, b=entry("broker2:25672")).address, "b") == Endpoint("moved", 1)


def test_each_node_is_asked_and_what_it_cannot_tell_is_not_told() -> None:
    """(2), (3)"""
    current = {
        "a": entry("a:1"),
        "b": entry("b:1"),
        "c": entry("c:1"),
        "renamed": entry("d:1"),
        "old": entry("e:1", level=POSITION_FROM - 1),
        "nowhere": entry("nonsense"),
    }
    gone = entry("f:1", level=POSITION_FROM - 1)
    told: list[tuple[str, Replica | None, Standing | None]] = []

    async def position_of(endpoint: Endpoint) -> Told:
        if endpoint.host == "b":
            raise OSError("nothing listens there")
        if endpoint.host == "c":
            raise Refused("it does not know the secret")
        return Told(Node(endpoint.host, b"\x01"), STANDING)

    async def main() -> None:
        place = neighbours(current, gone=gone)
        await place.ask_positions(
            frozenset({*current, "gone", "unknown"}), lambda *answer: told.append(answer), position_of
        )

    trio.run(main)
    assert sorted(told, key=lambda answer: answer[0]) == [("a", Replica("a", "01"), STANDING), ("old", None, None)]
