"""The proxy that stands for services which die: it passes on what it is given, and loses what it is told to."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from .lossy_proxy import LossyProxy

BODY = b"x" * 300_000


class Service:
    """Says what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, bytes]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                service.asked.append((self.command, self.path, body))
                self.send_response(200)
                self.send_header("ETag", "mark")
                self.send_header("Content-Length", str(len(body) + 5))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(b"said:" + body)

            do_GET = do_PUT = do_HEAD = _answer

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def proxy(service: Service) -> Iterator[LossyProxy]:
    with LossyProxy("127.0.0.1", service.server.server_address[1]) as made:
        yield made


def connect(proxy: LossyProxy) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(proxy.url.removeprefix("http://"), timeout=30)


def ask(proxy: LossyProxy, method: str, path: str, body: bytes | Iterator[bytes] = b"") -> bytes | None:
    """Return what is answered; None: nothing is."""
    connection = connect(proxy)
    try:
        connection.request(method, path, body, encode_chunked=not isinstance(body, bytes))
        return connection.getresponse().read()
    except (http.client.HTTPException, OSError):
        return None
    finally:
        connection.close()


def test_requests_and_answers_pass_as_they_are(proxy: LossyProxy, service: Service) -> None:
    connection = connect(proxy)
    for method, body, answer in (("PUT", BODY, b"said:" + BODY), ("HEAD", b"", b""), ("GET", b"", b"said:")):
        connection.request(method, "/a?b=c", body)
        found = connection.getresponse()
        assert (found.read(), found.getheader("ETag")) == (answer, "mark")
    connection.close()
    assert service.asked == [("PUT", "/a?b=c", BODY), ("HEAD", "/a?b=c", b""), ("GET", "/a?b=c", b"")]
    assert ask(proxy, "PUT", "/chunks", iter([b"one", BODY])) == b"said:one" + BODY


@pytest.mark.parametrize("is_carried_out", [False, True])
def test_a_request_is_lost_or_its_answer_is(proxy: LossyProxy, service: Service, is_carried_out: bool) -> None:
    trap = proxy.arm("^PUT /table/", skip=1, is_carried_out=is_carried_out, away=2)
    trap.released.set()
    assert ask(proxy, "GET", "/table/0") is not None
    assert ask(proxy, "PUT", "/table/1") is not None
    assert not trap.sprung.is_set()
    assert ask(proxy, "PUT", "/table/2") is None
    assert trap.sprung.is_set()
    assert [ask(proxy, "GET", "/") for _ in range(3)] == [None, None, b"said:"]
    assert ("PUT", "/table/2", b"") in service.asked or not is_carried_out
    assert len(service.asked) == 3 + is_carried_out


def test_a_request_is_held_until_it_is_released_and_cuts_the_others_then(proxy: LossyProxy) -> None:
    other = connect(proxy)
    other.request("GET", "/")
    assert other.getresponse().read() == b"said:"
    trap = proxy.arm("^PUT", is_carried_out=True)
    answers: list[bytes | None] = []
    asking = threading.Thread(target=lambda: answers.append(ask(proxy, "PUT", "/")))
    asking.start()
    assert trap.sprung.wait(30) and answers == []
    trap.released.set()
    asking.join()
    assert answers == [None]
    other.request("GET", "/")
    with pytest.raises((http.client.HTTPException, OSError)):
        other.getresponse()
    assert ask(proxy, "GET", "/") == b"said:"
