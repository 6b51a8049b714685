"""The gateway of a node that does not lead: it listens for AMQP, and passes clients on to the leader."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import trio

from warren.gateway.clients import PASSED, SHAKING, WAITING, Client, Clients
from warren.server.beats import next_beat
from warren.server.descriptors import raise_limit
from warren.server.following import Following, NoLeader
from warren.server.management import Listening, Management
from warren.server.network.acceptor import Listener
from warren.server.network.admission import Admission
from warren.server.network.handshakes import Handshakes
from warren.server.network.listening import open_sockets
from warren.server.network.tls import maybe_user_of_certificate
from warren.server.supervision import ESSENTIAL

# Number of clients that connect to the leader at a time: it takes few of them (`replication.newcomers`).
CONNECTING_MAX: Final = 4
RETRY_S: Final = 0.2
# After this time without a leader, new clients are told at once: this node's side elects no leader.
ALONE_S: Final = 6.0


class GatewayPlugin:
    """Runs on a follower only."""

    def prepare(self, management: Management) -> None:
        """Do nothing."""

    async def run(self, management: Management, *, task_status: trio.TaskStatus[Sequence[Listening]]) -> None:
        """Do nothing: a leader serves its own clients."""
        task_status.started(())

    async def follow(self, following: Following, *, task_status: trio.TaskStatus[Sequence[Listening]]) -> None:
        """Pass on clients until cancelled; started with the ports.

        Raises:
            StartError: a port cannot be opened, or there are hardly any descriptors.
        """
        settings, tasks = following.settings, following.tasks
        descriptors, limits = raise_limit(), settings.limits
        at_once = trio.CapacityLimiter(CONNECTING_MAX)
        async with trio.open_nursery() as nursery:

            def begin(client: Client) -> None:
                nursery.start_soon(tasks.once, "gateway client", connect, client)

            async def connect(client: Client) -> None:
                await _connect(client, clients, following, at_once, limits.handshake_timeout_s)

            def user_of(certificate: dict[str, object]) -> str | None:
                assert following.tls is not None
                return maybe_user_of_certificate(certificate, following.tls.settings.cert_login_from)

            async def tick() -> None:
                while True:
                    await next_beat()
                    clients.tick(following.leader(), following.silent_s())

            clients = Clients(
                Admission(
                    min(limits.unauthenticated_connections_max, descriptors.clients_max() // 2),
                    limits.unauthenticated_per_network_max,
                    limits.accept_rate_per_s,
                    descriptors.clients_below,
                ),
                Handshakes(limits.tls_handshake_timeout_s),
                descriptors.clients_below,
                user_of,
                begin,
                keepalive=limits.keepalive(),
            )
            try:
                opened = _listen(following, clients)
                following.gauges["warren_gateway_clients"] = (
                    "clients that are passed on to the leader",
                    partial(clients.count, PASSED),
                )
                following.gauges["warren_gateway_waiting"] = (
                    "clients that wait to be connected to the leader",
                    partial(clients.count, SHAKING, WAITING),
                )
                nursery.start_soon(tasks.keep, "gateway", clients.run, ESSENTIAL)
                nursery.start_soon(tasks.keep, "gateway ticker", tick, ESSENTIAL)
                task_status.started(opened)
                await trio.sleep_forever()
            finally:
                clients.end_all("this node becomes the leader, or stops: connect again")


def _listen(following: Following, clients: Clients) -> list[Listening]:
    settings = following.settings
    opened: list[Listening] = []
    plain, with_tls = settings.endpoint("amqp"), settings.endpoint("amqps")
    if plain is not None:
        for sock in open_sockets("amqp", plain):
            clients.listen(Listener(sock, None))
            opened.append(Listening("amqp", *sock.getsockname()[:2]))
    if with_tls is not None:
        tls = following.tls
        assert tls is not None
        for sock in open_sockets("amqps", with_tls):
            clients.listen(Listener(sock, lambda: tls.context))
            opened.append(Listening("amqps", *sock.getsockname()[:2]))
    return opened


async def _connect(
    client: Client, clients: Clients, following: Following, at_once: trio.CapacityLimiter, patience_s: float
) -> None:
    """Connect a client to the leader, as soon as there is one; turn it away when that takes too long."""
    reason = "too many clients wait for it"
    try:
        with client.waits, trio.move_on_after(patience_s) as patience:
            async with at_once:
                while True:
                    try:
                        passage = await following.to_leader(client.facts)
                    except NoLeader as error:
                        reason = str(error)
                        if following.silent_s() >= ALONE_S:
                            patience.cancel()
                    else:
                        clients.connected(client, passage)
                        return
                    await trio.sleep(RETRY_S)
    except Exception:
        clients.turned_away(client, "an internal error, see the log of this node")
        raise
    if patience.cancelled_caught:
        clients.turned_away(client, f"the leader of this cluster could not be reached: {reason}")
