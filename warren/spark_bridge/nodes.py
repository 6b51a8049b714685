"""Sealed messages of a stream read from several nodes of a broker: its followers serve what they hold themselves.

1. If a node does not answer a request, for whatever reason, the next node is asked for the rest, from the next offset
   on. The last one is the broker that the client was made for: its answer counts. So nothing is left out or read twice,
   and the errors are those of a single node.
2. A node that could not be reached is not asked for `REST_S` by this process.
3. User and password are sent to nodes that the broker has named, and with TLS if the broker itself is asked with TLS.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

from warren.spark_bridge.bridge_errors import BridgeError, Unreachable
from warren.spark_bridge.columns import Chunk
from warren.spark_bridge.control import BrokerClient, Description

REST_S: Final = 30.0
_resting: dict[str, float] = {}  # URLs of nodes that could not be reached, and until when


def in_turn(nodes: Sequence[str], turn: int) -> tuple[str, ...]:
    """Return the nodes to ask for a turn, the first one first; the broker itself has a turn, too."""
    at = turn % (len(nodes) + 1)
    return (*nodes[at - 1 :], *nodes[: at - 1]) if at else ()


def nodes_of(found: Description, first: int, turn: int = 0) -> tuple[str, ...]:
    """Return the nodes to ask, for a turn among others, for the messages of a stream from `first` on."""
    return in_turn(found.nodes, turn + 1) if found.nodes and first < found.sealed else ()


def read(
    client: BrokerClient,
    nodes: Sequence[str],
    queue: str,
    first: int,
    end: int,
    id: str,
    *,
    bodies: bool = True,
    properties: bool = True,
    snapshot: str | None = None,
) -> Iterator[Chunk]:
    """Yield chunks as `BrokerClient.read` does, from `nodes` as far as that goes. A snapshot is on no other node."""
    at = first
    for url in nodes:
        if at >= end:
            return
        if _resting.get(url, 0.0) > time.monotonic() or (node := client.at(url)) is None:
            continue
        with node:
            chunks = node.read(queue, at, end, id, bodies=bodies, properties=properties)
            while True:
                try:
                    chunk = next(chunks, None)
                except Unreachable:
                    _resting[url] = time.monotonic() + REST_S
                    break
                except BridgeError:
                    break
                if chunk is None:
                    break
                yield chunk
                at = max(at, chunk.end)
    if at < end:
        yield from client.read(queue, at, end, id, bodies=bodies, properties=properties, snapshot=snapshot)
