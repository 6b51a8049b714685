"""How a follower comes to its leader: it connects, has the leader prove itself, and says what it has.

1. Each step has `CONNECT_S`, so that a node which waits for a machine that is gone hears of the next leader in time.
2. Nothing is said of this node's store before the leader has proved that it knows the secret.
3. An answer that is not of the expected form is a refusal, like one that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import trio

from warren.replication.format_level import LEVEL_TOLD, told_level
from warren.replication.handshake import STORE_ID_BYTES, FollowerSide, Node, Refused
from warren.replication.identity import Identity
from warren.replication.passage import connect, meet_leader, some
from warren.replication.wire import Wire
from warren.server.setting_kinds import Endpoint

CONNECT_S: Final = 2.0  # less than the grace time of a member
PROBE_S: Final = 1.0
EPOCH_MAX: Final = (1 << 32) - 1
MIN_IN_SYNC_MAX: Final = 1 << 16


class StoreOfLeader:
    """A leader's answer about its store.

    Raises:
        Refused: it says something else.
    """

    def __init__(self, told: Mapping[str, Any]) -> None:
        try:
            self.store_id = bytes.fromhex(told["store"])
        except (KeyError, TypeError, ValueError):
            raise Refused("the leader does not say which store it has") from None
        if len(self.store_id) != STORE_ID_BYTES:
            raise Refused(f"the leader names a store by {len(self.store_id)} bytes: {STORE_ID_BYTES} were expected")
        self.epoch = _number(told, "epoch", EPOCH_MAX)
        self.min_in_sync = _number(told, "min_in_sync", MIN_IN_SYNC_MAX)
        self.level = told_level(told.get("level"))


def _number(told: Mapping[str, Any], name: str, greatest: int) -> int:
    value = told.get(name)
    if type(value) is not int or not 0 <= value <= greatest:
        raise Refused(f"the leader says {name} {value!r}: a number from 0 to {greatest} was expected")
    return value


class Introduction:
    """The beginning of each link of the node `me`."""

    def __init__(self, identity: Identity, me: Node) -> None:
        self._identity = identity
        self._me = me

    async def connect(self, endpoint: Endpoint) -> Wire:
        """Connect to a leader; raises OSError and TooSlowError."""
        with trio.fail_after(CONNECT_S):
            return await connect(endpoint, self._identity)

    async def meet(self, wire: Wire, about: Callable[[], dict[str, Any]]) -> tuple[FollowerSide, StoreOfLeader]:
        """Verify that the leader proves itself, and then send it `about` this node.

        Raises:
            Refused: it does not prove itself, or does not take this follower.
            TooSlowError: it says nothing.
        """
        with trio.fail_after(CONNECT_S):
            side = await meet_leader(wire, self._identity, self._me)
            wire.put([side.prove(about() | LEVEL_TOLD)])
            while (store := side.welcomed()) is None:
                side.feed(await some(wire))
            return side, StoreOfLeader(store)

    async def is_answered(self, endpoint: Endpoint) -> bool:
        """Tell whether there is a leader that proves itself."""
        try:
            with trio.fail_after(PROBE_S):
                wire = await connect(endpoint, self._identity)
        except (OSError, trio.TooSlowError):
            return False
        try:
            with trio.fail_after(PROBE_S):
                await meet_leader(wire, self._identity, self._me)
        except (Refused, trio.TooSlowError):
            return False
        finally:
            wire.close()
        return True
