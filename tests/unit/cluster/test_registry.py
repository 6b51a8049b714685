"""Where the nodes of a cluster are, and what is remembered of those that are gone, with an etcd in memory.

The numbers in parentheses are those in the header of ``warren/cluster/registry.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

import msgspec
import trio
import trio.testing

from warren.cluster.etcd import Etcd, EtcdError, KeyValue, LeaseGone
from warren.cluster.registry import LEASE_S, RENEW_S, SEEN_MAX, NodeEntry, Registry

ENTRY = NodeEntry("91ce", "broker1:25672", "0.1.0")
PREFIX = b"/warren/here/nodes/"


class Keys:
    """Keys with leases that expire when a test says so."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.leases: dict[int, set[bytes]] = {}
        self.is_away = False
        self.granted = 0

    async def _answer(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.is_away:
            raise EtcdError("etcd is away")

    async def grant(self, ttl_s: int) -> int:
        await self._answer()
        assert ttl_s == LEASE_S
        self.granted += 1
        self.leases[self.granted] = set()
        return self.granted

    async def put(self, key: bytes, value: bytes, lease: int) -> int:
        await self._answer()
        for keys in self.leases.values():
            keys.discard(key)
        self.values[key] = value
        self.leases[lease].add(key)
        return 1

    async def keep_alive(self, lease: int) -> int:
        await self._answer()
        if lease not in self.leases:
            raise LeaseGone("it has expired")
        return LEASE_S

    async def get(self, key: bytes) -> KeyValue | None:
        await self._answer()
        return KeyValue(key, self.values[key], 1) if key in self.values else None

    async def get_all(self, prefix: bytes) -> list[KeyValue]:
        await self._answer()
        return [KeyValue(key, value, 1) for key, value in self.values.items() if key.startswith(prefix)]

    def expire(self, lease: int) -> None:
        for key in self.leases.pop(lease):
            del self.values[key]


def run(test: Callable[[Keys, Registry, trio.Nursery], Awaitable[None]]) -> None:
    """Run a registry that looks, on a clock that jumps."""

    async def main() -> None:
        keys = Keys()
        registry = Registry(cast(Etcd, keys), "here", trio.current_time)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(registry.look)
            await test(keys, registry, nursery)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_node_is_remembered_with_the_time_when_it_was_seen_last() -> None:
    """(2)"""

    async def test(keys: Keys, registry: Registry, nursery: trio.Nursery) -> None:
        nursery.start_soon(registry.announce, "a", ENTRY)
        await trio.sleep(4 * RENEW_S + 0.1)
        seen = registry.seen["a"]
        assert seen.is_registered and seen.entry == ENTRY
        last_s = seen.seen_s
        assert last_s > 0
        keys.is_away = True
        await trio.sleep(10 * RENEW_S)
        assert registry.seen["a"] == seen, "what etcd does not answer changes nothing"
        assert registry.late_renewals == 10
        keys.values.clear()
        keys.is_away = False
        await trio.sleep(RENEW_S)
        assert registry.seen["a"] == seen._replace(is_registered=False)
        assert await registry.maybe_entry("a") == ENTRY

    run(test)


def test_a_node_whose_disk_gets_full_says_so_and_is_no_namesake_of_its_own() -> None:
    async def test(keys: Keys, registry: Registry, nursery: trio.Nursery) -> None:
        nursery.start_soon(registry.announce, "a", ENTRY)
        await trio.sleep(2 * RENEW_S)
        assert not registry.seen["a"].entry.disk_is_low
        for is_low in (True, False):
            registry.disk_is_low = is_low
            await trio.sleep(3 * RENEW_S)
            assert registry.seen["a"].entry == msgspec.structs.replace(ENTRY, disk_is_low=is_low)
            assert registry.namesake == ""

    run(test)


def test_a_lease_that_is_gone_is_late_and_the_node_is_registered_again() -> None:
    async def test(keys: Keys, registry: Registry, nursery: trio.Nursery) -> None:
        nursery.start_soon(registry.announce, "a", ENTRY)
        await trio.sleep(RENEW_S + 0.1)
        assert registry.late_renewals == 0
        keys.expire(lease=1)
        await trio.sleep(2 * RENEW_S)
        assert (registry.late_renewals, keys.granted) == (1, 2)
        assert registry.seen["a"].is_registered

    run(test)


def test_a_key_that_another_process_of_the_same_name_took_is_put_again_and_outlives_that_process() -> None:
    """(3)"""

    async def test(keys: Keys, registry: Registry, nursery: trio.Nursery) -> None:
        nursery.start_soon(registry.announce, "a", ENTRY)
        await trio.sleep(1.0)
        stranger = Registry(cast(Etcd, keys), "here", trio.current_time)
        with trio.move_on_after(1.0):
            await stranger.announce("a", NodeEntry("47d0", "broker4:25672", "0.1.0"))
        assert b"broker4" in keys.values[PREFIX + b"a"] and registry.namesake == ""
        await trio.sleep(RENEW_S)
        assert registry.namesake == "broker4:25672"
        keys.expire(lease=2)  # the stranger's
        await trio.sleep(RENEW_S)
        assert await registry.maybe_entry("a") == ENTRY and await registry.is_registered("a")
        assert (registry.namesake, registry.late_renewals, keys.granted) == ("", 0, 2)

    run(test)


def test_a_key_that_somebody_has_deleted_is_put_again() -> None:
    """(3)"""

    async def test(keys: Keys, registry: Registry, nursery: trio.Nursery) -> None:
        nursery.start_soon(registry.announce, "a", ENTRY)
        await trio.sleep(1.0)
        keys.values.clear()
        await trio.sleep(RENEW_S)
        assert await registry.is_registered("a") and registry.namesake == ""

    run(test)


def test_a_new_node_takes_the_place_of_the_one_that_has_been_gone_longest() -> None:
    """(4): nodes may be renamed all the time, and one that is not known could not be followed."""

    async def test(keys: Keys, registry: Registry, nursery: trio.Nursery) -> None:
        value = b'{"incarnation":"91ce","cluster":"broker1:25672","version":"0.1.0"}'
        keys.values = {PREFIX + b"gone": value}
        await trio.sleep(RENEW_S + 0.1)
        keys.values = {PREFIX + b"%d" % number: value for number in range(SEEN_MAX - 1)}
        await trio.sleep(RENEW_S)
        del keys.values[PREFIX + b"7"]
        await trio.sleep(RENEW_S)
        keys.values[PREFIX + b"a"] = value  # before the others, by its key
        await trio.sleep(RENEW_S)
        assert len(registry.seen) == SEEN_MAX
        assert registry.seen["a"].is_registered and "gone" not in registry.seen
        assert not registry.seen["7"].is_registered
        keys.values |= {PREFIX + b"b": value, PREFIX + b"c": value}
        await trio.sleep(RENEW_S)
        assert "7" not in registry.seen
        assert ("b" in registry.seen) is not ("c" in registry.seen), "all others are there"
        assert {await registry.maybe_entry(name) for name in "bc"} == {ENTRY}, "a node that was asked for is found"

    run(test)


def test_what_is_no_entry_is_passed_over_and_names_are_bounded() -> None:
    async def test(keys: Keys, registry: Registry, nursery: trio.Nursery) -> None:
        keys.values = {PREFIX + b"a": b"[]", PREFIX + b"\xff": b"{}"}
        value = b'{"incarnation":"91ce","cluster":"broker1:25672","version":"0.1.0"}'
        keys.values |= {PREFIX + b"%d" % number: value for number in range(2000)}
        await trio.sleep(RENEW_S)
        assert len(registry.seen) == 1000
        assert "a" not in registry.seen

    run(test)
