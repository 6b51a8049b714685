"""Bodies of requests over HTTP: how they come, their limits, and the budget that they have together."""

from __future__ import annotations

import contextlib
import json
import tracemalloc

import pytest
import trio
import trio.testing
from unit.mgmt_plugin.http_peers import (
    LAST,
    MemoryStream,
    Server,
    conversation,
    converse,
    memory_pair,
    parsed,
    received,
    run,
)

from warren.mgmt_plugin.http import server as http_module
from warren.mgmt_plugin.http.scheduler import give_way
from warren.mgmt_plugin.http.server import (
    BodyBudget,
    HttpError,
    Request,
    Response,
)


def test_a_body_may_come_in_pieces_or_chunks() -> None:
    async def test(server: Server) -> None:
        stream = await trio.open_tcp_stream(*server.address)
        await stream.send_all(b"POST /any HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 10\r\n\r\nhello")
        await trio.testing.wait_all_tasks_blocked()
        await stream.send_all(b"world")
        assert b'"body_bytes": 10' in b"".join([chunk async for chunk in stream])
        chunked = b"POST /any HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert b'"body_bytes": 7' in await server.exchange(chunked + b"3\r\nabc\r\n4\r\nabcd\r\n0\r\n\r\n")

    run(test)


@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_a_body_over_the_limit_is_refused_while_it_comes(framing: str) -> None:
    """Before it has come whole: the rest is never sent."""

    async def test(server: Server) -> None:
        stream = await trio.open_tcp_stream(*server.address)
        if framing == "length":
            await stream.send_all(b"POST /any HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
            await stream.send_all(b"x" * 100_001)
        else:
            await stream.send_all(b"POST /any HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            await stream.send_all(b"30d41\r\n" + b"x" * 100_001)
        status, _, body = parsed(bytes(await stream.receive_some()))
        assert status == 413
        assert json.loads(body) == {
            "error": "payload_too_large",
            "reason": "a request body may have at most 100000 bytes",
        }

    run(test)


def test_no_body_is_read_for_somebody_who_is_refused() -> None:
    async def test(server: Server) -> None:
        stream = await trio.open_tcp_stream(*server.address)
        await stream.send_all(
            b"POST /refuse HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n"
        )
        assert bytes(await stream.receive_some()).startswith(b"HTTP/1.1 401 ")  # and no 100 before it

    run(test)


def test_a_small_body_that_nobody_wanted_is_thrown_away_and_the_connection_goes_on() -> None:
    async def test(server: Server) -> None:
        head = b"POST /refuse HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
        answer = await server.exchange(head % 5 + b"hello" + LAST)
        assert answer.count(b"HTTP/1.1 ") == 2

    run(test)


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"])
def test_a_client_that_sends_a_large_body_first_gets_its_refusal_then(more: bytes) -> None:
    """Most libraries do that: a connection that is reset says nothing about the password."""

    async def test(server: Server) -> None:
        size = 24 << 20  # more than the kernel takes from a sender at a time
        stream = await trio.open_tcp_stream(*server.address)
        await stream.send_all(b"POST /refuse HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n" % (more, size))
        await stream.send_all(bytes(size))
        assert bytes(await stream.receive_some()).startswith(b"HTTP/1.1 401 ")

    run(test)


def test_a_client_that_waits_for_100_continue_gets_it_when_its_body_is_wanted() -> None:
    async def test(server: Server) -> None:
        stream = await trio.open_tcp_stream(*server.address)
        await stream.send_all(
            b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        )
        assert b" 100 " in await stream.receive_some()
        await stream.send_all(b"hi")
        assert b'"body_bytes": 2' in b"".join([chunk async for chunk in stream])

    run(test)


def test_a_body_that_does_not_come_is_not_waited_for_for_ever() -> None:
    async def read(request: Request) -> Response:
        await request.read_body(100)
        raise AssertionError("there was none")

    answers: list[bytes] = []

    async def slow(stream: MemoryStream) -> None:
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf")
        answers.append(await received(stream))

    took = converse(read, slow)
    assert answers[0].startswith(b"HTTP/1.1 408 ")
    assert took <= http_module.HANDLER_TIMEOUT_S + http_module.REQUEST_TIMEOUT_S


def test_a_body_that_is_cut_short_is_malformed() -> None:
    async def read(request: Request) -> Response:
        await request.read_body(100)
        raise AssertionError("there was none")

    answers: list[bytes] = []

    async def short(stream: MemoryStream) -> None:
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf")
        await stream.send_eof()
        answers.append(await received(stream))

    converse(read, short)
    assert answers[0].startswith(b"HTTP/1.1 400 ")


def test_a_body_has_to_go_on_coming() -> None:
    """A byte now and then holds no place and no memory for long."""

    async def read(request: Request) -> Response:
        await request.read_body(1000)
        raise AssertionError("it has not ended")

    answers: list[bytes] = []

    async def trickle(stream: MemoryStream) -> None:
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            for _ in range(1000):
                await trio.sleep(0.1)
                await stream.send_all(b"x")
        answers.append(await received(stream))

    took = converse(read, trickle)
    assert answers[0].startswith(b"HTTP/1.1 408 ")
    assert took <= 3 * http_module.PROGRESS_TIMEOUT_S


def test_a_body_that_comes_slowly_but_steadily_is_read() -> None:
    size = 20 * http_module.PROGRESS_BYTES
    piece = size // 20
    answers: list[bytes] = []

    async def read(request: Request) -> Response:
        return Response(200, b"%d" % len(await request.read_body(size)))

    async def send(stream: MemoryStream) -> None:
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(20):
            await trio.sleep(0.25 * http_module.PROGRESS_TIMEOUT_S)
            await stream.send_all(b"x" * piece)
        answers.append(await received(stream))

    converse(read, send)
    assert answers[0].endswith(b"%d" % size)


def chunked(body: bytes, size: int) -> bytes:
    """Return a request whose body is in chunks of `size` bytes."""
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    head = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def test_others_have_their_turn_between_the_chunks_of_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warren.mgmt_plugin.http.scheduler.SLICE_S", -1.0)  # every chunk is long work
    chunks = 5000
    turns = 0

    async def main() -> None:
        async def read(request: Request) -> Response:
            before = turns
            await request.read_body(chunks)
            return Response(200, b"%d" % (turns - before))

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        client_end, server_end = memory_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            await client_end.send_all(chunked(b"x" * chunks, 1))
            await conversation(server_end, read, BodyBudget()).run()
            await server_end.aclose()
            assert int((await received(client_end)).rpartition(b"\r\n")[2]) >= chunks
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_the_long_work_of_one_user_delays_the_work_of_another_by_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warren.mgmt_plugin.http.scheduler.SLICE_S", -1.0)  # whatever gives way is long work
    crowd, turns = 50, 40

    async def test(server: Server) -> None:
        pieces = 0

        async def work(request: Request) -> Response:
            nonlocal pieces
            user = request.path[1:]
            request.identified(user)
            if user == "modest":
                before = pieces
                for _ in range(turns):
                    await give_way()
                return Response(200, b"%d" % (pieces - before))
            while True:
                pieces += 1
                await give_way()

        server.respond = work
        async with trio.open_nursery() as nursery:
            for _ in range(crowd):
                nursery.start_soon(server.get, "/greedy")
            while len(server.requests) < crowd:
                await trio.sleep(0)
            _, _, body = await server.get("/modest")
            nursery.cancel_scope.cancel()
        # All fifty would have had a turn for each of ours. A round has two, and we may miss every other one.
        assert turns // 4 <= int(body) <= 5 * turns

    run(test)


def test_a_body_in_tiny_chunks_takes_its_own_size_in_memory() -> None:
    body = bytes(range(256)) * 200

    async def main() -> None:
        peak = 0

        async def read(request: Request) -> Response:
            nonlocal peak
            tracemalloc.start()
            try:
                assert await request.read_body(len(body)) == body
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            return Response(200)

        client_end, server_end = memory_pair()
        await client_end.send_all(chunked(body, 3))
        await conversation(server_end, read, BodyBudget()).run()
        # The body, and what has come of its chunks and is not taken apart yet.
        assert peak < 2 * len(body) + 6 * http_module._READ_BYTES

    trio.run(main)


def test_all_bodies_together_have_a_budget_and_give_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "BODIES_BYTES_MAX", 300)
    head = b"POST /any HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 100\r\n\r\n"

    async def main() -> None:
        budget = BodyBudget()
        nursery_of_server: trio.Nursery

        async def read(request: Request) -> Response:
            return Response(200, str(len(await request.read_body(1000))).encode())

        async def begin(data: bytes) -> MemoryStream:
            stream, server_end = memory_pair()
            nursery_of_server.start_soon(conversation(server_end, read, budget).run)
            await stream.send_all(data)
            await trio.testing.wait_all_tasks_blocked()
            return stream

        async with trio.open_nursery() as nursery_of_server:
            first = await begin(head + b"x" * 99)
            assert bytes(await (await begin(head + b"x" * 100)).receive_some()).startswith(b"HTTP/1.1 503 ")
            await first.send_all(b"x")
            assert bytes(await first.receive_some()).startswith(b"HTTP/1.1 200 ")
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(3):
                assert bytes(await (await begin(head + b"x" * 100)).receive_some()).startswith(b"HTTP/1.1 200 ")

    trio.run(main)


def test_an_account_has_at_most_what_is_left_for_all_others() -> None:
    budget = BodyBudget()
    unit = http_module.BODIES_BYTES_MAX // 16

    def taken(account: str) -> int:
        count = 0
        with contextlib.suppress(HttpError):
            while True:
                budget.take(account, unit)
                count += 1
        return count

    assert taken("user a") == 8
    assert taken("user b") == 4
    assert taken("user c") == 2
    with pytest.raises(HttpError) as caught:
        budget.take("user a", unit)
    assert (caught.value.status, caught.value.headers) == (503, (("Retry-After", "1"),))
    for account, count in (("user a", 8), ("user b", 4), ("user c", 2)):
        budget.give_back(account, count * unit)
    assert not budget._of_account and budget._taken == 0


def test_the_largest_answer_there_can_be_has_room_when_nobody_else_has_any() -> None:
    largest = http_module.BODIES_BYTES_MAX
    budget = BodyBudget(largest)
    budget.take("user a", largest)
    with pytest.raises(HttpError):
        budget.take("user a", 1)
    budget.give_back("user a", largest)


def test_the_account_of_a_request_is_its_user_and_everything_is_given_back() -> None:
    budget = BodyBudget()

    async def read(request: Request) -> Response:
        if request.path == "/known":
            request.identified("alice")
        await request.read_body(100)
        account = "user alice" if request.path == "/known" else "127.0.0.1"
        assert budget._of_account == {account: 5}
        raise HttpError(400, "bad_request", "no")

    async def ask(stream: MemoryStream) -> None:
        post = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
        await stream.send_all(post % b"/known" + post % b"/other")
        await stream.send_eof()
        assert (await received(stream)).count(b"HTTP/1.1 400 ") == 2

    async def main() -> None:
        client_end, server_end = memory_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, client_end)
            await conversation(server_end, read, budget).run()
            await server_end.aclose()

    trio.run(main)
    assert not budget._of_account and budget._taken == 0
