"""The reactor observes each of its turns once."""

from __future__ import annotations

import trio
from engine_harness import Harness

from warren.server.network.admission import Admission
from warren.server.network.reactor import Reactor


def test_each_turn_is_observed() -> None:
    broker = Harness().broker
    crashes: list[BaseException] = []
    woken = trio.Event()
    counts: list[int] = []

    def on_wake() -> None:
        woken.set()

    def nothing() -> None:
        pass

    async def main() -> None:
        nonlocal woken
        admission = Admission(10, 10, 10)
        reactor = Reactor(
            broker,
            admission,
            certificate_user=lambda _: None,
            on_crash=crashes.append,
            on_settled=nothing,
            is_alone=lambda: False,
            dispatch=nothing,
            on_wake=on_wake,
            tls_handshake_timeout_s=10.0,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reactor.run)
            for _ in range(3):
                woken = trio.Event()
                reactor.poller.wake()
                await woken.wait()
                # The turn that woke us is over: nothing in it waits.
                counts.append(int(reactor.turn_times.count))
            reactor.stop()
        reactor.close()
        assert reactor.turn_times.buckets()[-1] == reactor.turn_times.count
        assert reactor.turn_times.sum_s > 0

    trio.run(main)
    assert counts == [1, 2, 3]
    assert crashes == []
