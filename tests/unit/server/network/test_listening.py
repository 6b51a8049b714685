"""Listening on a name that has several addresses, of which this machine has some."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest
import trio

from warren.mgmt_plugin.http.server import serve_http
from warren.replication.cluster_port import bound, close
from warren.server.network.listening import open_sockets
from warren.server.setting_kinds import Endpoint
from warren.server.start_errors import StartError

HERE = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))
ELSEWHERE = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("203.0.113.7", 0))
NO_FAMILY = (socket.AF_APPLETALK, socket.SOCK_STREAM, 6, "", ("::1", 0))
NAME = Endpoint("a-name", 0)


def of_amqp() -> int:
    sockets = open_sockets("amqp", NAME)
    for sock in sockets:
        sock.close()
    return len(sockets)


def of_http() -> int:
    async def main() -> int:
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_http, "http", NAME.host, 0, None, None)
            nursery.cancel_scope.cancel()
        return 1

    return trio.run(main)


def of_cluster() -> int:
    async def main() -> int:
        sockets = await bound(NAME)
        close(sockets)
        return len(sockets)

    return trio.run(main)


@pytest.mark.parametrize("listen", [of_amqp, of_http, of_cluster])
@pytest.mark.parametrize("absent", [ELSEWHERE, NO_FAMILY])
def test_a_name_is_listened_on_where_this_machine_has_its_address(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, listen: Callable[[], int], absent: Any
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [absent, HERE])
    assert listen() == 1
    (line,) = caplog.records
    assert line.getMessage() == "an address of the host is not used for listening"
    fields: Any = line.__dict__["fields"]
    assert (fields["host"], fields["address"]) == (NAME.host, absent[4][0])


@pytest.mark.parametrize("listen", [of_amqp, of_http, of_cluster])
def test_a_name_without_an_address_of_this_machine_is_refused(
    monkeypatch: pytest.MonkeyPatch, listen: Callable[[], int]
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [ELSEWHERE, NO_FAMILY])
    with pytest.raises((StartError, ExceptionGroup)) as refused:
        listen()
    assert "this machine does not have that address" in repr(refused.value)


def test_a_port_that_another_program_has_is_refused_though_another_address_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients would reach the other program, or not, as they choose an address."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = (*HERE[:4], other.getsockname())
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(*HERE[:4], ("127.0.0.2", 0)), taken])
        with pytest.raises(StartError, match="the port is in use"):
            open_sockets("amqp", NAME)
