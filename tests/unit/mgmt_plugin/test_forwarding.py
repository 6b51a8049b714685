"""A request that another node answers: it goes there part by part, and so does the answer come back.

The numbers in parentheses are those in the header of ``warren/mgmt_plugin/http/forwarding.py``.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

import h11
import pytest
import trio

from warren.mgmt_plugin.http.forwarding import forward
from warren.mgmt_plugin.http.server import HttpError, Load, Port, Request, Response, converse_through_node


def request(method: str = "GET", path: str = "/api/queues", query: str = "", **headers: str) -> Request:
    async def unread(limit_bytes: int, look: object = None) -> bytes:
        raise AssertionError("it is read part by part")

    named = {name.replace("_", "-"): value for name, value in {"host": "broker2:15672", **headers}.items()}
    return Request(method, path, query, named, "192.0.2.7", False, unread)


def parts(*given: bytes) -> Callable[[], Awaitable[bytes]]:
    left = list(given)

    async def part() -> bytes:
        await trio.lowlevel.checkpoint()
        return left.pop(0) if left else b""

    return part


class Node:
    """The other end of a connection, with the bytes that it has received."""

    def __init__(self) -> None:
        self.ours, self._theirs = socket.socketpair()
        self.stream = trio.SocketStream(trio.socket.from_stdlib_socket(self._theirs))
        self.received = b""

    async def hears(self, end: bytes) -> None:
        while not self.received.endswith(end):
            data = await self.stream.receive_some()
            assert data, self.received
            self.received += data


def in_trio(test: Callable[[Node], Awaitable[None]]) -> None:
    async def main() -> None:
        with trio.fail_after(30):
            await test(Node())

    trio.run(main)


async def answered(node: Node, asked: Request) -> tuple[Response, bytes]:
    response = await forward(asked, node.ours)
    assert response.source is not None
    body = b""
    try:
        while part := await response.source.part():
            body += part
    finally:
        response.source.close()
    return response, body


def test_head_and_answer_go_on_as_they_are_but_for_those_of_the_connection() -> None:
    """(4)"""

    async def test(node: Node) -> None:
        async def work() -> None:
            await node.hears(b"\r\n\r\n")
            await node.stream.send_all(
                b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nSet-Cookie: a=b\r\n"
                b"X-Own: yes\r\nConnection: close\r\n\r\nhello"
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            asked = request(query="page=2", authorization="Basic x", connection="keep-alive, x-hop", x_hop="1")
            response, body = await answered(node, asked)
        assert node.received.startswith(b"GET /api/queues?page=2 HTTP/1.1\r\n")
        assert b"authorization: Basic x\r\n" in node.received.lower().replace(b"basic", b"Basic")
        assert b"x-hop" not in node.received
        assert b"keep-alive" not in node.received
        assert (response.status, body) == (200, b"hello")
        assert dict(response.headers) == {"content-length": "5", "set-cookie": "a=b", "x-own": "yes"}

    in_trio(test)


def test_a_body_goes_on_part_by_part() -> None:
    """(1)"""

    async def test(node: Node) -> None:
        async def work() -> None:
            await node.hears(b"0\r\n\r\n")
            await node.stream.send_all(b"HTTP/1.1 204 \r\n\r\n")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            asked = request("PUT", transfer_encoding="chunked")
            asked.body_part = parts(b"first", b"second")
            response, body = await answered(node, asked)
        assert node.received.endswith(b"5\r\nfirst\r\n6\r\nsecond\r\n0\r\n\r\n")
        assert (response.status, body) == (204, b"")

    in_trio(test)


def test_an_answer_may_come_before_the_body_is_there() -> None:
    """(2)"""

    async def test(node: Node) -> None:
        async def work() -> None:
            await node.hears(b"part")
            await node.stream.send_all(b"HTTP/1.1 413 \r\nContent-Length: 0\r\n\r\n")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            asked = request("POST", content_length="100")
            given = iter([b"part"])

            async def part() -> bytes:
                for one in given:
                    return one
                await trio.sleep_forever()
                raise AssertionError

            asked.body_part = part
            response, _ = await answered(node, asked)
        assert response.status == 413

    in_trio(test)


def test_a_body_that_does_not_come_is_the_fault_of_who_asked() -> None:
    async def test(node: Node) -> None:
        async def part() -> bytes:
            raise HttpError(408, "timeout", "the body did not arrive in time")

        asked = request("POST", content_length="100")
        asked.body_part = part
        with pytest.raises(HttpError) as refusal:
            await forward(asked, node.ours)
        assert refusal.value.status == 408
        assert node.ours.fileno() == -1

    in_trio(test)


def test_a_body_that_breaks_off_or_is_malformed_is_the_fault_of_who_asked() -> None:
    """Not ours: nothing is logged as an internal error when a client leaves."""

    async def test(node: Node) -> None:
        async def part() -> bytes:
            raise h11.RemoteProtocolError("peer closed connection without sending complete message body")

        asked = request("POST", content_length="100")
        asked.body_part = part
        with pytest.raises(HttpError) as refusal:
            await forward(asked, node.ours)
        assert refusal.value.status == 400
        assert node.ours.fileno() == -1

    in_trio(test)


@pytest.mark.parametrize(
    "headers", [{"x-reason": "gr\u00f6\u00dfer"}, {"x-reason": "gr\u00c3\u00b6\u00c3\u009fer"}, {}]
)
def test_any_head_that_was_understood_here_goes_on(headers: dict[str, str]) -> None:
    """(4) Values of Latin-1, as the pages send them, of UTF-8, as programs do, and no host, as of HTTP/1.0."""

    async def test(node: Node) -> None:
        async def work() -> None:
            await node.hears(b"\r\n\r\n")
            await node.stream.send_all(b"HTTP/1.1 204 \r\n\r\n")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            asked = request("DELETE")
            asked.headers.pop("host")
            asked.headers.update(headers)
            response, _ = await answered(node, asked)
        assert response.status == 204
        for name, value in headers.items():
            assert f"{name}: {value}\r\n".encode("latin-1") in node.received

    in_trio(test)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200", b"no answer at all\r\n\r\n"])
def test_a_node_that_does_not_answer_is_a_bad_gateway(said: bytes) -> None:
    async def test(node: Node) -> None:
        async def work() -> None:
            await node.hears(b"\r\n\r\n")
            await node.stream.send_all(said)
            await node.stream.aclose()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            with pytest.raises(HttpError, match="repeat the request") as refusal:
                await forward(request(), node.ours)
        assert refusal.value.status == 502

    in_trio(test)


def test_an_answer_that_breaks_off_is_not_mistaken_for_a_whole_one() -> None:
    """(3)"""

    async def test(node: Node) -> None:
        async def work() -> None:
            await node.hears(b"\r\n\r\n")
            await node.stream.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
            await node.stream.aclose()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            with pytest.raises(trio.BrokenResourceError):
                await answered(node, request())

    in_trio(test)


def test_both_ends_together_carry_a_large_body_and_a_large_answer() -> None:
    async def respond(asked: Request) -> Response:
        body = await asked.read_body(1 << 24)
        return Response(200, f"{asked.peer} {len(body)}".encode(), pieces=iter([bytes(1 << 16)] * 20))

    async def test(node: Node) -> None:
        async with trio.open_nursery() as nursery:
            port = Port(respond, Load())
            nursery.start_soon(_serve, node, port)
            asked = request("POST", content_length=str(1 << 20))
            asked.body_part = parts(*[bytes(1 << 16)] * 16)
            response, body = await answered(node, asked)
            assert response.status == 200
            assert body == b"192.0.2.7 1048576" + bytes(20 << 16)
            nursery.cancel_scope.cancel()

    async def _serve(node: Node, port: Port) -> None:
        sock = node.stream.socket
        await converse_through_node(socket.socket(fileno=sock.detach()), "192.0.2.7", port, is_tls=False)

    in_trio(test)
