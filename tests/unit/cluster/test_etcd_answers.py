"""The etcd client with answers that no etcd should give, without an answer, and on broken connections (etcd.py)."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Awaitable, Callable
from typing import Any, Final

import h11
import pytest
import trio
import trio.testing

from warren.cluster.etcd import Etcd, EtcdError, EtcdSettings, OutcomeUnknown, Refused
from warren.cluster.etcd_watch import Change, Watch
from warren.cluster.etcd_wire import ANSWER_BYTES_MAX, end_of_prefix

TIMEOUT_S: Final = 30.0
KEY: Final = b"k"


def text(raw: bytes) -> str:
    return b64encode(raw).decode()


def header(revision: int = 9, term: int = 2, cluster: int = 1 << 63) -> dict[str, str]:
    return {"cluster_id": str(cluster), "member_id": "1", "revision": str(revision), "raft_term": str(term)}


def pair(value: bytes, revision: int, key: bytes = KEY) -> dict[str, str]:
    return {"key": text(key), "value": text(value), "mod_revision": str(revision), "create_revision": "1"}


def found(value: bytes = b"v", *, revision: int = 9, **changed: int) -> dict[str, Any]:
    return {"header": header(revision, **changed), "kvs": [pair(value, 5)], "count": "1"}


def swapped(revision: int = 9, **changed: int) -> dict[str, Any]:
    return {"header": header(revision, **changed), "succeeded": True}


def answer(body: bytes | dict[str, Any], status: int = 200) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(data), data)


def chunked(*parts: bytes, ends: bool = True) -> bytes:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + (b"0\r\n\r\n" if ends else b"")


class Server:
    """Answers requests with what a test has written down; at the end of its answers it repeats the last one.

    An answer is sent as it is; the connection is closed after one that says so, and a silent one leaves it open.
    """

    SILENCE: Final = b""

    def __init__(self, *answers: bytes, closes: bool = False) -> None:
        self.answers = list(answers)
        self.closes = closes
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.tokens: list[str] = []
        self.endpoint = ""

    async def start(self, nursery: trio.Nursery) -> None:
        (listener,) = await nursery.start(
            lambda task_status: trio.serve_tcp(self.serve, 0, host="127.0.0.1", task_status=task_status)
        )
        self.endpoint = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"

    async def serve(self, stream: trio.SocketStream) -> None:
        http = h11.Connection(h11.SERVER)
        body = b""
        try:
            while True:
                event = http.next_event()
                if event is h11.NEED_DATA:
                    data = await stream.receive_some(65536)
                    http.receive_data(bytes(data))
                elif isinstance(event, h11.Request):
                    path, body = event.target.decode(), b""
                    self.tokens += [value.decode() for name, value in event.headers if name == b"authorization"]
                elif isinstance(event, h11.Data):
                    body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    self.requests.append((path, json.loads(body)))
                    reply = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                    await stream.send_all(reply)
                    if self.closes:
                        return
                    http = h11.Connection(h11.SERVER)
                else:
                    return
        except (trio.BrokenResourceError, h11.RemoteProtocolError):
            return
        finally:
            await trio.aclose_forcefully(stream)


def run(work: Callable[[Etcd], Awaitable[None]], *servers: Server, attempt_s: float = 5.0, user: str = "") -> None:
    async def main() -> None:
        with trio.fail_after(TIMEOUT_S):
            async with trio.open_nursery() as nursery:
                for server in servers:
                    await server.start(nursery)
                endpoints = [server.endpoint for server in servers]
                etcd = Etcd(EtcdSettings(endpoints, attempt_s=attempt_s, user=user, password=user))
                await work(etcd)
                await etcd.close()
                nursery.cancel_scope.cancel()

    trio.run(main)


ABSURD: Final = {
    "nothing": (b"", True),
    "another protocol": (b"SSH-2.0-OpenSSH\r\n", True),
    "a head that breaks off": (b"HTTP/1.1 200 OK\r\nContent-Le", True),
    "a head without end": (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, False),
    "a body that breaks off": (answer(swapped())[:-5], True),
    "chunks that break off": (chunked(json.dumps(swapped()).encode(), ends=False), True),
    "too many bytes": (answer(json.dumps(swapped()).encode() + b" " * ANSWER_BYTES_MAX), False),
    "too many bytes announced": (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n{}", True),
    "no body": (answer(b""), False),
    "no JSON": (answer(b"<html>proxy</html>"), False),
    "bytes that are no text": (answer(b'{"header":"\xff\xfe"}'), False),
    "JSON without end": (answer(b"[" * 100_000), False),
    "a list": (answer(b"[]"), False),
    "null": (answer(b"null"), False),
    "no header": (answer({"succeeded": True, "kvs": []}), False),
    "a header that is a text": (answer({"header": "x", "succeeded": True}), False),
    "a revision that is no number": (answer({"header": header() | {"revision": "x"}, "succeeded": True}), False),
    "200 with an error": (answer({"error": "etcdserver: request timed out", "code": 14}), False),
    "an error of etcd": (answer({"error": "etcdserver: leader changed", "code": 14}, 503), False),
    "an error of a proxy": (answer(b"Bad Gateway", 502), False),
    "only an interim answer": (b"HTTP/1.1 100 Continue\r\n\r\n", True),
}


@pytest.mark.parametrize("name", ABSURD)
def test_a_write_without_a_right_answer_is_unknown_and_sent_once(name: str) -> None:
    reply, closes = ABSURD[name]
    servers = [Server(reply, closes=closes), Server(reply, closes=closes)]

    async def work(etcd: Etcd) -> None:
        with pytest.raises(OutcomeUnknown):
            await etcd.put(KEY, b"v")
        assert sum(len(server.requests) for server in servers) == 1
        with pytest.raises(OutcomeUnknown):
            await etcd.swap(KEY, 0, b"v")
        assert sum(len(server.requests) for server in servers) == 2

    run(work, *servers)


@pytest.mark.parametrize("name", ABSURD)
def test_a_swap_without_a_right_answer_is_sent_to_each_endpoint_and_is_unknown(name: str) -> None:
    reply, closes = ABSURD[name]
    servers = [Server(reply, closes=closes), Server(reply, closes=closes)]

    async def work(etcd: Etcd) -> None:
        with pytest.raises(OutcomeUnknown):
            await etcd.swap(KEY, 8, b"v")
        assert [len(server.requests) for server in servers] == [1, 1]

    run(work, *servers)


def test_a_swap_that_one_endpoint_does_not_answer_is_done_by_the_next() -> None:
    async def work(etcd: Etcd) -> None:
        assert await etcd.swap(KEY, 8, b"v") == 9

    silent = Server(Server.SILENCE)
    run(work, silent, Server(answer(swapped())), attempt_s=TIMEOUT_S * 2)
    assert len(silent.requests) == 1


def test_a_swap_that_was_sent_twice_is_not_refused_by_one_answer() -> None:
    """The one that nobody answered may be what gave the key its other revision."""

    async def work(etcd: Etcd) -> None:
        with pytest.raises(OutcomeUnknown, match="another revision"):
            await etcd.swap(KEY, 8, b"v")

    run(work, Server(Server.SILENCE), Server(answer({"header": header()})), attempt_s=TIMEOUT_S * 2)


def test_an_endpoint_that_does_not_answer_is_asked_last_from_then_on() -> None:
    silent = Server(Server.SILENCE)

    async def work(etcd: Etcd) -> None:
        for _ in range(3):
            assert await etcd.get(KEY) is not None

    run(work, silent, Server(answer(found())), attempt_s=TIMEOUT_S * 2)
    assert len(silent.requests) == 1


@pytest.mark.parametrize("name", ABSURD)
def test_a_read_without_a_right_answer_is_asked_of_the_next_endpoint(name: str) -> None:
    reply, closes = ABSURD[name]

    async def work(etcd: Etcd) -> None:
        got = await etcd.get(KEY)
        assert got is not None and (got.value, got.revision) == (b"v", 5)

    run(work, Server(reply, closes=closes), Server(answer(found())))

    async def fails(etcd: Etcd) -> None:
        with pytest.raises(EtcdError):
            await etcd.get(KEY)

    run(fails, Server(reply, closes=closes), Server(reply, closes=closes))


def test_silence_ends_a_write_as_unknown_and_sends_a_read_on() -> None:
    silent = Server(Server.SILENCE)

    async def work(etcd: Etcd) -> None:
        with pytest.raises(OutcomeUnknown, match="no answer in time"):
            await etcd.swap(KEY, 8, b"v")
        assert await etcd.get(KEY) is not None

    run(work, silent, Server(answer(found())), attempt_s=0.2)
    assert len(silent.requests) == 1


def test_nothing_is_sent_where_nobody_listens() -> None:
    async def work(etcd: Etcd) -> None:
        gone = Etcd(EtcdSettings(["http://127.0.0.1:1"]))
        for ask in (gone.get(KEY), gone.swap(KEY, 1, b"v"), gone.put(KEY, b"v"), gone.grant(5), gone.keep_alive(7)):
            with pytest.raises(EtcdError):
                await ask
        both = Etcd(EtcdSettings(["http://127.0.0.1:1", *etcd.endpoints]))
        assert await both.swap(KEY, 8, b"v") == 9
        await both.close()

    run(work, Server(answer(swapped())))


def test_a_swap_that_was_refused_is_none_and_one_at_no_later_revision_is_unknown() -> None:
    async def work(etcd: Etcd) -> None:
        assert await etcd.swap(KEY, 8, b"v") is None
        with pytest.raises(OutcomeUnknown, match="at revision 9"):
            await etcd.swap(KEY, 9, b"v")

    run(work, Server(answer({"header": header()}), answer(swapped())))


@pytest.mark.parametrize("endpoint", ["127.0.0.1:2379", "ftp://h:1", "http://", "http://u:p@h:1", "http://h:x"])
def test_an_endpoint_that_is_none_is_refused_and_not_shown(endpoint: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT") as caught:
        Etcd(EtcdSettings([endpoint]))
    assert "u:p" not in str(caught.value)
    with pytest.raises(ValueError, match="no endpoint"):
        Etcd(EtcdSettings([]))


@pytest.mark.parametrize("old", [{"revision": 8}, {"term": 1}, {"cluster": 7}])
def test_a_member_that_is_behind_is_not_believed(old: dict[str, int]) -> None:
    async def work(etcd: Etcd) -> None:
        assert await etcd.get(KEY) is not None
        with pytest.raises(EtcdError, match="before"):
            await etcd.get(KEY)
        with pytest.raises(OutcomeUnknown, match="before"):
            await etcd.swap(KEY, 5, b"v")

    run(work, Server(answer(found()), answer(found(b"v", **old)), answer(swapped(**old))))

    async def goes_on(etcd: Etcd) -> None:
        for _ in range(3):
            got = await etcd.get(KEY)
            assert got is not None and got.value == b"new"

    run(goes_on, Server(answer(found(b"new")), answer(found(b"old", **old))), Server(answer(found(b"new"))))


def test_an_answer_is_compared_with_what_was_seen_before_its_request_was_sent() -> None:
    """Not with what came while it was on its way: etcd answers two requests in any order."""

    values: list[bytes] = []

    async def read(etcd: Etcd) -> None:
        got = await etcd.get(KEY)
        assert got is not None
        values.append(got.value)

    async def work(etcd: Etcd) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, etcd)
            while not slow.requests:
                await trio.sleep(0.005)
            etcd._turn_to_next()
            await read(etcd)
            slow.release.set()

    class Slow(Server):
        def __init__(self) -> None:
            super().__init__(answer(found(b"slow", revision=8)))
            self.release = trio.Event()

        async def serve(self, stream: trio.SocketStream) -> None:
            await stream.receive_some(65536)
            self.requests.append(("", {}))
            await self.release.wait()
            await stream.send_all(self.answers[0])
            await stream.aclose()

    slow = Slow()
    run(work, slow, Server(answer(found(b"quick", revision=9))))
    assert values == [b"quick", b"slow"]


def test_an_answer_about_another_key_is_an_error() -> None:
    async def work(etcd: Etcd) -> None:
        with pytest.raises(EtcdError, match="not requested"):
            await etcd.get(KEY)

    run(work, Server(answer({"header": header(), "kvs": [pair(b"v", 5, b"other")]})))


def test_a_connection_that_the_server_has_closed_costs_no_write() -> None:
    server = Server(answer(swapped(20)), closes=True)

    async def work(etcd: Etcd) -> None:
        for revision in range(5):
            assert await etcd.swap(KEY, revision, b"v") == 20
            await trio.testing.wait_all_tasks_blocked()

    run(work, server)
    assert len(server.requests) == 5


def test_a_refusal_is_not_asked_of_everybody_and_names_no_password() -> None:
    servers = [Server(answer({"error": "etcdserver: permission denied", "code": 7}, 403)) for _ in range(2)]

    async def work(etcd: Etcd) -> None:
        with pytest.raises(Refused, match="permission denied"):
            await etcd.get(KEY)

    run(work, *servers)
    assert sum(len(server.requests) for server in servers) == 1


def test_an_old_token_is_replaced_for_a_read_and_leaves_a_write_unknown() -> None:
    token = answer({"header": header(), "token": "t1"})
    old = answer({"error": "etcdserver: invalid auth token", "code": 16}, 401)
    new = answer({"header": header(), "token": "t2"})
    server = Server(token, old, new, answer(found()), old, new, answer(swapped()))

    async def work(etcd: Etcd) -> None:
        assert await etcd.get(KEY) is not None
        with pytest.raises(OutcomeUnknown, match="invalid auth token"):
            await etcd.swap(KEY, 5, b"v")
        assert await etcd.swap(KEY, 5, b"v") == 9

    run(work, server, user="u")
    assert server.tokens == ["t1", "t2", "t2", "t2"]
    assert [path for path, _ in server.requests].count("/v3/kv/txn") == 2


# --- watches ---


def line(**result: Any) -> bytes:
    return json.dumps({"result": {"header": header()} | result}).encode() + b"\n"


def put(value: bytes, revision: int, key: bytes = KEY) -> dict[str, Any]:
    return {"kv": pair(value, revision, key)}


CREATED: Final = line(created=True)


def test_a_watch_tells_what_is_new_of_its_key_in_order_however_it_is_cut() -> None:
    news = (
        CREATED + line(events=[put(b"old", 4), put(b"one", 5), put(b"x", 6, b"other")]) + line(events=[put(b"two", 7)])
    )
    cut = chunked(*[news[at : at + 7] for at in range(0, len(news), 7)], ends=False)

    async def work(etcd: Etcd) -> None:
        watch = Watch(etcd, KEY, 5)
        assert await watch.next() == [Change(KEY, b"one", 5)]
        assert await watch.next() == [Change(KEY, b"two", 7)]
        await watch.close()

    run(work, Server(cut))


@pytest.mark.parametrize(
    "broken",
    [
        *(pytest.param(reply, id=name) for name, (reply, closes) in ABSURD.items() if closes),
        pytest.param(chunked(CREATED), id="an end"),
        pytest.param(chunked(CREATED, b"nonsense\n", ends=False), id="nonsense"),
        pytest.param(chunked(CREATED, b" " * (ANSWER_BYTES_MAX + 1), ends=False), id="too long"),
        pytest.param(chunked(line(canceled=True), ends=False), id="cancelled"),
        pytest.param(chunked(b'{"error":{"message":"etcdserver: no leader"}}\n', ends=False), id="an error"),
        pytest.param(answer({"error": "etcdserver: not capable"}, 503), id="a status"),
        pytest.param(chunked(line(header=header(cluster=3)), ends=False), id="another cluster"),
    ],
)
def test_a_watch_that_breaks_goes_on_at_the_next_endpoint(broken: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warren.cluster.etcd_watch.WATCH_RETRY_S", 0.0)
    good = Server(answer(found()), chunked(CREATED, line(events=[put(b"one", 5)]), ends=False))

    async def work(etcd: Etcd) -> None:
        etcd._turn_to_next()
        assert await etcd.get(KEY) is not None  # which cluster it is
        watch = Watch(etcd, KEY, 5)
        assert await watch.next() == [Change(KEY, b"one", 5)]
        await watch.close()

    run(work, Server(broken, closes=True), good)
    assert good.requests[-1][1]["create_request"]["start_revision"] == "5"


def test_a_watch_of_a_member_that_falls_silent_goes_on_at_the_next_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warren.cluster.etcd_watch.IDLE_S", 0.05)
    silent = Server(chunked(CREATED, ends=False), Server.SILENCE)
    good = Server(chunked(CREATED, line(events=[put(b"one", 5)]), ends=False))

    async def work(etcd: Etcd) -> None:
        watch = Watch(etcd, KEY, 5)
        assert await watch.next() == [Change(KEY, b"one", 5)]
        await watch.close()

    run(work, silent, good, attempt_s=0.2)
    assert [path for path, _ in silent.requests] == ["/v3/watch", "/v3/kv/range"]


class SilentWatch(Server):
    """Creates the watch, and tells nothing; each read is answered."""

    async def serve(self, stream: trio.SocketStream) -> None:
        if self.requests:
            await super().serve(stream)
            return
        await stream.receive_some(65536)
        self.requests.append(("", {}))
        await stream.send_all(chunked(CREATED, ends=False))
        await self.serve_watch(stream)

    async def serve_watch(self, stream: trio.SocketStream) -> None:
        await trio.sleep_forever()


def test_a_watch_that_tells_nothing_is_asked_and_what_it_says_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warren.cluster.etcd_watch.IDLE_S", 0.05)

    class Late(SilentWatch):
        """Tells the watch what a read has shown before."""

        async def serve_watch(self, stream: trio.SocketStream) -> None:
            await self.was_read.wait()
            late = line(events=[put(b"v", 5), put(b"next", 6)])
            await stream.send_all(b"%x\r\n%b\r\n" % (len(late), late))
            await trio.sleep_forever()

        was_read = trio.Event()

    server = Late(answer(found()))

    async def work(etcd: Etcd) -> None:
        watch = Watch(etcd, KEY, 3)
        assert await watch.next() == [Change(KEY, b"v", 5)]
        server.was_read.set()
        assert await watch.next() == [Change(KEY, b"next", 6)]
        await watch.close()

    run(work, server)


def test_a_watch_counts_the_time_since_its_key_was_known_also_when_nothing_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("warren.cluster.etcd_watch.IDLE_S", 0.05)

    async def work(etcd: Etcd) -> None:
        watch = Watch(etcd, KEY, 6)
        assert etcd.traffic.watched_s is None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.next)
            seen: set[float | None] = {None}
            while len(seen) < 4:
                await trio.sleep(0.01)
                seen.add(etcd.traffic.watched_s)
            nursery.cancel_scope.cancel()
        await watch.close()

    run(work, SilentWatch(answer(found())))


def test_a_watch_that_was_compacted_reads_and_goes_on_behind_that() -> None:
    compacted = chunked(line(canceled=True, compact_revision="8"), ends=False)
    server = Server(compacted, answer(found()), chunked(CREATED, line(events=[put(b"new", 12)]), ends=False))

    async def work(etcd: Etcd) -> None:
        watch = Watch(etcd, KEY, 3)
        assert await watch.next() == [Change(KEY, b"v", 5)]
        assert await watch.next() == [Change(KEY, b"new", 12)]
        await watch.close()

    run(work, server)
    assert server.requests[-1][1]["create_request"]["start_revision"] == "10"


def test_a_prefix_ends_where_its_last_byte_can_be_raised() -> None:
    assert [end_of_prefix(prefix) for prefix in (b"a/", b"a\xff", b"\xff\xff")] == [b"a0", b"b", b"\x00"]
