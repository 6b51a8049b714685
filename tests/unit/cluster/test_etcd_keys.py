"""The keys of a cluster in etcd (etcd_record.py, registry.py), with an etcd that is a dict."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
import trio.testing

from warren.cluster.etcd import EtcdError, KeyValue, LeaseGone
from warren.cluster.etcd_record import EtcdRecord
from warren.cluster.record import RecordError, Replica, Versioned, encode, first
from warren.cluster.registry import NodeEntry, Registry

A = Replica("a", "a1")
ENTRY = NodeEntry("a1", "host:25672", "0.1.0")


class Etcd:
    """Keys, each with a revision and a lease."""

    def __init__(self) -> None:
        self.keys: dict[bytes, KeyValue] = {}
        self.leases: list[int] = []
        self.is_away = False
        self.renewed = 0

    async def get(self, key: bytes) -> KeyValue | None:
        self._ask()
        return self.keys.get(key)

    async def put(self, key: bytes, value: bytes, lease: int = 0) -> int:
        self._ask()
        assert lease in self.leases
        self.keys[key] = KeyValue(key, value, len(self.keys) + 1)
        return 1

    async def grant(self, ttl_s: int) -> int:
        self._ask()
        self.leases.append(len(self.leases) + 1)
        return self.leases[-1]

    async def keep_alive(self, lease: int) -> int:
        self._ask()
        if not self.keys:
            raise LeaseGone("expired")
        self.renewed += 1
        return 10

    def _ask(self) -> None:
        if self.is_away:
            raise EtcdError("away")


def record_of(etcd: Etcd, store: str) -> EtcdRecord:
    return EtcdRecord(etcd, "orders", lambda: store)  # type: ignore[arg-type]


def test_a_record_has_a_key_of_its_cluster() -> None:
    etcd = Etcd()
    written = first("5f", A, 2)
    etcd.keys[b"/warren/orders/cells/0"] = KeyValue(b"", encode(written), 9)

    async def main() -> None:
        assert await record_of(etcd, "").read() == Versioned(9, written)
        assert await record_of(etcd, "5f").read() == Versioned(9, written)

    trio.run(main)


def test_the_record_of_another_store_is_none() -> None:
    etcd = Etcd()
    etcd.keys[b"/warren/orders/cells/0"] = KeyValue(b"", encode(first("5f", A, 2)), 9)

    async def main() -> None:
        with pytest.raises(RecordError, match="cluster_name"):
            await record_of(etcd, "77").read()

    trio.run(main)


def announced(test: Callable[[Etcd, Registry], None], for_s: float = 20.0) -> None:
    etcd = Etcd()

    async def main() -> None:
        registry = Registry(etcd, "orders")  # type: ignore[arg-type]
        with trio.move_on_after(for_s):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(registry.announce, "a", ENTRY)
                await trio.sleep(1.0)
                test(etcd, registry)
        assert await registry.maybe_entry("a") == ENTRY

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert list(etcd.keys) == [b"/warren/orders/nodes/a"]
    assert etcd.renewed > 3


def test_a_node_is_registered_as_long_as_it_lives() -> None:
    announced(lambda etcd, registry: None)


def test_a_node_whose_lease_has_expired_is_registered_again() -> None:
    announced(lambda etcd, registry: etcd.keys.clear())


def test_a_node_is_found_where_it_was_while_etcd_is_away() -> None:
    etcd = Etcd()
    etcd.leases.append(1)

    async def main() -> None:
        registry = Registry(etcd, "orders")  # type: ignore[arg-type]
        assert await registry.maybe_entry("a") is None
        etcd.keys[b"/warren/orders/nodes/a"] = KeyValue(
            b"", b'{"incarnation": "a1", "cluster": "host:25672", "version": "0.1.0"}', 1
        )
        assert await registry.maybe_entry("a") == ENTRY
        etcd.is_away = True
        assert await registry.maybe_entry("a") == ENTRY
        etcd.is_away = False
        etcd.keys[b"/warren/orders/nodes/a"] = KeyValue(b"", b"nonsense", 2)
        assert await registry.maybe_entry("a") == ENTRY

    trio.run(main)
