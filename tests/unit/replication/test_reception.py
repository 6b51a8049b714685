"""What connects to the cluster port of a leader, and what is left of it when it has gone."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from warren.replication.reception import Reception


class Link:
    """The link of a follower, which meets a defect of ours."""

    def __init__(self) -> None:
        self.did: list[str] = []

    async def serve(self) -> None:
        self.did.append("served")
        raise RuntimeError("a defect")

    async def forget(self) -> None:
        await trio.lowlevel.checkpoint()
        self.did.append("forgotten")


class MetBefore(Reception):
    """Everything that connects is the follower of `link`."""

    def __init__(self, link: Link) -> None:
        leader = SimpleNamespace(left=lambda gone: link.did.append("left"))
        super().__init__(cast(Any, None), cast(Any, None), cast(Any, leader))
        self._link = link

    async def _meet(self, sock: socket.socket, address: str, newcomer: Any) -> Any:
        return self._link


def test_the_files_of_a_follower_are_released_if_we_fail_while_it_is_served() -> None:
    link = Link()
    with pytest.raises(RuntimeError, match="a defect"):
        trio.run(MetBefore(link)._serve, socket.socket(), "127.0.0.1")
    assert link.did == ["served", "left", "forgotten"]
