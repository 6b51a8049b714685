"""The cluster port of a node that may be elected."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import trio
from free_ports import free_port

from warren.replication import node
from warren.replication.cluster_port import bound, close, listen
from warren.replication.identity import Identity
from warren.server.setting_kinds import Endpoint
from warren.server.settings_reader import load_settings
from warren.server.start_errors import StartError


def test_connections_are_refused_until_it_is_listened_on() -> None:
    endpoint = Endpoint("127.0.0.1", free_port())

    async def main() -> None:
        sockets = await bound(endpoint)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((endpoint.host, endpoint.port), timeout=10)
        listen(endpoint, sockets)
        socket.create_connection((endpoint.host, endpoint.port), timeout=10).close()
        close(sockets)

    trio.run(main)


def test_a_node_whose_port_is_taken_does_not_begin_to_take_part(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        flags = {
            "data_dir": str(tmp_path),
            "amqp": "127.0.0.1:0",
            "http": "off",
            "prometheus": "off",
            "cluster_listen": f"127.0.0.1:{port}",
            "cluster_secret_file": "secret",
            "etcd": "http://127.0.0.1:1",
            "node_name": "rabbit@one",
        }
        settings = load_settings(flags, {})

        async def main() -> None:
            with trio.fail_after(10):
                await node._take_part(settings, Identity(b"what nodes share"), (), None)

        with pytest.raises(StartError, match=rf"cannot listen on 127\.0\.0\.1:{port} \(cluster_listen\)"):
            trio.run(main)
