"""The client of the API: one connection, repeated where that is safe, and errors with the broker's reason."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from warren.ctl.client import Client, Target, last_segment
from warren.ctl.exit_codes import CtlError, ExitCode

from .fake_api import FakeApi


def client_of(api: FakeApi, **changes: object) -> Client:
    return Client(Target(api.url, "guest", "guest")._replace(**changes))  # type: ignore[arg-type]


def test_many_requests_share_one_connection(api: FakeApi) -> None:
    api.answer("GET", "whoami", {"name": "guest"})
    with client_of(api) as client:
        for _ in range(3):
            client.get("whoami")
    assert len({asked.connection for asked in api.asked}) == 1


def test_segments_are_quoted_whole(api: FakeApi) -> None:
    api.answer("GET", "queues/%2F/a%2Fb%20%C3%A9%3F", {})
    with client_of(api) as client:
        client.get("queues", "/", "a/b é?")
    assert [asked.path for asked in api.asked] == ["/api/queues/%2F/a%2Fb%20%C3%A9%3F"]


def test_credentials_are_sent_as_utf_8(api: FakeApi) -> None:
    api.answer("GET", "whoami", {})
    with client_of(api, username="jö", password="p:w") as client:
        client.get("whoami")
    assert api.asked[0].headers["Authorization"] == "Basic asO2OnA6dw=="


@pytest.mark.parametrize("path", ["/broker", "/broker/", "/broker/api", "/broker/api/"])
def test_a_path_of_the_url_comes_before_the_api(api: FakeApi, path: str) -> None:
    with client_of(api, url=api.url + path) as client, pytest.raises(CtlError):
        client.get("whoami")
    assert api.asked[0].path == "/broker/api/whoami"


def test_a_connection_closed_while_idle_is_opened_again(api: FakeApi) -> None:
    api.answer("GET", "whoami", {"n": 1}, hang_up=True)
    with client_of(api) as client:
        assert [client.get("whoami") for _ in range(3)] == [{"n": 1}] * 3
    assert len({asked.connection for asked in api.asked}) == 3


def test_a_post_on_a_dead_connection_is_not_repeated(api: FakeApi) -> None:
    api.answer("GET", "whoami", {})
    api.answer("POST", "login", silence=True)
    with client_of(api) as client:
        client.get("whoami")
        with pytest.raises(CtlError) as caught:
            client.post("login", body={})
    assert caught.value.exit_code is ExitCode.UNREACHABLE
    assert [asked.method for asked in api.asked] == ["GET", "POST"]


def test_a_new_connection_that_dies_is_not_tried_for_ever(api: FakeApi) -> None:
    api.answer("GET", "whoami", silence=True)
    with client_of(api) as client, pytest.raises(CtlError) as caught:
        client.get("whoami")
    assert caught.value.exit_code is ExitCode.UNREACHABLE
    assert len(api.asked) == 1


@pytest.mark.parametrize(
    ("status", "value", "exit_code", "reason"),
    [
        (401, {"error": "not_authorized", "reason": "Login failed"}, ExitCode.REFUSED, "refused: Login failed"),
        (403, {"error": "forbidden", "reason": "no"}, ExitCode.REFUSED, "refused: no"),
        (404, {"error": "not_found", "reason": "x"}, ExitCode.NOT_FOUND, 'not found: queue "q" in vhost "/"'),
        (405, None, ExitCode.NOT_FOUND, "not supported by this broker's API: queues///q"),
        (400, {"error": "bad_request", "reason": "a\n\n b &lt;1&gt;"}, ExitCode.FAILED, "a b <1>"),
        (400, {"error": "bad_request", "reason": ["a", 1]}, ExitCode.FAILED, '["a", 1]'),
        (400, {"error": "bad_request"}, ExitCode.FAILED, "bad_request"),
        (500, b"<h1>oh</h1>", ExitCode.FAILED, "HTTP status 500"),
        (503, {"status": "failed", "reason": "down"}, ExitCode.CHECK_FAILED, "down"),
        (503, {"status": "failed", "reason": "no", "ports": [1]}, ExitCode.CHECK_FAILED, "no (ports: [1])"),
    ],
)
def test_a_refusal_has_the_reason_of_the_broker_and_its_own_exit_code(
    api: FakeApi, status: int, value: object, exit_code: ExitCode, reason: str
) -> None:
    api.answer("GET", "queues/%2F/q", value, status)
    with client_of(api) as client, pytest.raises(CtlError) as caught:
        client.get("queues", "/", "q")
    assert (caught.value.exit_code, caught.value.reason) == (exit_code, reason)


@pytest.mark.parametrize(
    ("segments", "thing"),
    [
        (("queues", "v"), 'vhost "v"'),
        (("policies", "v", "p"), 'policy "p" in vhost "v"'),
        (("users", "u", "permissions"), 'user "u"'),
        (("parameters", "shovel", "v", "s"), 'parameter of shovel "s" in vhost "v"'),
        (("shovels", "vhost", "v", "s"), 'shovel "s" in vhost "v"'),
        (("permissions", "v", "u"), 'permissions of user "u" in vhost "v"'),
        (("stream", "super-streams", "v", "s"), 'super stream "s" in vhost "v"'),
        (("bindings", "v", "e", "x", "q", "y", "~"), 'binding from "x" to "y" in vhost "v"'),
        (("queues", "vhost", "q"), 'queue "q" in vhost "vhost"'),
        (("nosuch", "v"), "nosuch/v"),
    ],
)
def test_what_is_not_found_is_named(api: FakeApi, segments: tuple[str, ...], thing: str) -> None:
    with client_of(api) as client, pytest.raises(CtlError) as caught:
        client.get(*segments)
    assert caught.value.reason == f"not found: {thing}"


@pytest.mark.parametrize(
    "segments",
    [("queues", "v", "q"), ("permissions", "v", "u"), ("parameters", "shovel", "v", "s"), ("policies", "v", "p")],
)
def test_what_cannot_be_made_for_want_of_a_vhost_names_that(api: FakeApi, segments: tuple[str, ...]) -> None:
    with client_of(api) as client, pytest.raises(CtlError) as caught:
        client.put(*segments)
    assert caught.value.reason == 'not found: vhost "v"'


@pytest.mark.parametrize(
    ("status", "reason", "shown"),
    [
        (404, "no queue 'nope' in vhost '/'", "queue 'nope' in vhost '/'"),
        (404, "NOT_FOUND - no queue 'nope' in vhost '/'", "queue 'nope' in vhost '/'"),
        (400, "404 NOT_FOUND - no exchange 'nope' in vhost '/'", "exchange 'nope' in vhost '/'"),
        (400, "vhost_or_user_not_found", 'user "u", or vhost "v"'),
        (404, "queue_not_found", 'permissions of user "u" in vhost "v"'),
    ],
)
def test_what_is_missing_is_told_as_the_broker_has_it(api: FakeApi, status: int, reason: str, shown: str) -> None:
    api.answer("POST", "permissions/v/u", {"error": "not_found", "reason": reason}, status)
    with client_of(api) as client, pytest.raises(CtlError) as caught:
        client.post("permissions", "v", "u", body={})
    assert (caught.value.exit_code, caught.value.reason) == (ExitCode.NOT_FOUND, f"not found: {shown}")


@pytest.mark.parametrize("body", [{"error": "not_found", "reason": "only /metrics is here"}, b"404 page not found"])
@pytest.mark.parametrize("status", [404, 405])
def test_a_server_that_has_nothing_of_an_api_is_none(api: FakeApi, body: object, status: int) -> None:
    for method, path in (("GET", "overview"), ("GET", "whoami"), ("DELETE", "queues/%2F/q")):
        api.answer(method, path, body, status)
    with client_of(api) as client:
        for ask in (lambda: client.get("overview"), lambda: client.delete("queues", "/", "q")):
            with pytest.raises(CtlError) as caught:
                ask()
            assert caught.value.exit_code is ExitCode.UNREACHABLE
            assert caught.value.reason == f"no management API at {api.url}/api/"


def test_an_api_is_asked_only_once_whether_it_is_one(api: FakeApi) -> None:
    with client_of(api) as client:
        assert client.maybe_get("users", "u") is client.maybe_get("users", "v") is None
    assert [asked.path for asked in api.asked] == ["/api/users/u", "/api/whoami", "/api/users/v"]


def test_without_extensions_the_broker_is_no_warren(api: FakeApi) -> None:
    with client_of(api) as client, pytest.raises(CtlError) as caught:
        client.get("warren", "store")
    assert caught.value.reason == "not found, or not a Warren broker: warren/store"


@pytest.mark.parametrize("value", [b"<html>", [1], b"", b"[" * 100_000])
def test_what_is_no_management_api_is_said_to_be_none(api: FakeApi, value: object) -> None:
    api.answer("GET", "overview", value)
    with client_of(api) as client, pytest.raises(CtlError) as caught:
        client.get_object("overview")
    assert caught.value.exit_code is ExitCode.UNREACHABLE
    assert "not that of a management API" in caught.value.reason


def test_nobody_listening_is_unreachable_in_words() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        with Client(Target(url, "a", "b")) as client, pytest.raises(CtlError) as caught:
            client.get("whoami")
    assert caught.value.exit_code is ExitCode.UNREACHABLE
    assert caught.value.reason == f"cannot reach {url}: Connection refused"


def test_silence_ends_with_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        target = Target(f"http://127.0.0.1:{mute.getsockname()[1]}", "a", "b", timeout_s=0.05)
        with Client(target) as client, pytest.raises(CtlError) as caught:
            client.get("whoami")
    assert caught.value.exit_code is ExitCode.UNREACHABLE
    assert caught.value.reason.endswith("no answer in 0.05 s")


def test_pages_follow_each_other_until_the_last(api: FakeApi) -> None:
    for page in (1, 2, 3):
        api.answer("GET", "queues", {"items": [{"name": f"q{page}"}], "page": page, "page_count": 3})
    with client_of(api) as client:
        assert list(client.pages("queues", query={"name": "x"})) == [[{"name": f"q{page}"}] for page in (1, 2, 3)]
    assert [asked.path for asked in api.asked] == [
        f"/api/queues?name=x&page={page}&page_size=500" for page in (1, 2, 3)
    ]


def test_a_listing_without_pages_is_one_page(api: FakeApi) -> None:
    api.answer("GET", "channels", [{"name": "c"}])
    with client_of(api) as client:
        assert list(client.pages("channels")) == [[{"name": "c"}]]


def test_a_page_that_emptied_meanwhile_is_the_end(api: FakeApi) -> None:
    api.answer("GET", "queues", {"items": [{}], "page_count": 2})
    api.answer("GET", "queues", {"error": "page_out_of_range", "reason": "Page out of range"}, 400)
    with client_of(api) as client:
        assert list(client.pages("queues")) == [[{}]]


def test_a_first_page_that_is_refused_is_an_error(api: FakeApi) -> None:
    api.answer("GET", "queues", {"error": "page_out_of_range", "reason": "Page out of range"}, 400)
    with client_of(api) as client, pytest.raises(CtlError) as caught:
        list(client.pages("queues"))
    assert caught.value.exit_code is ExitCode.FAILED


NO_HOSTS = ["http://[::1", "http://[x]", "http://a..b", "http://\udcff"]


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1", "http://", "http://x:y", "http://x:70000", *NO_HOSTS])
def test_a_url_that_is_none_is_wrong_usage(url: str) -> None:
    with pytest.raises(CtlError) as caught:
        Client(Target(url, "a", "b"))
    assert caught.value.exit_code is ExitCode.USAGE


def test_text_that_is_no_utf_8_is_wrong_usage(api: FakeApi) -> None:
    with client_of(api) as client:
        for ask in (
            lambda: client.put("queues", "/", "\udcff\udcfe"),
            lambda: client.put("users", "u", body={"password": "\udcff"}),
            lambda: client.get("queues", query={"name": "\udcff"}),
            lambda: client_of(api, password="\udcff"),
        ):
            with pytest.raises(CtlError, match="is not UTF-8") as caught:
                ask()
            assert caught.value.exit_code is ExitCode.USAGE
    assert api.asked == []


def test_a_ca_file_that_is_missing_is_wrong_usage(tmp_path: Path) -> None:
    target = Target("https://127.0.0.1:1", "a", "b", cacert=tmp_path / "none.pem")
    with Client(target) as client, pytest.raises(CtlError) as caught:
        client.get("whoami")
    assert caught.value.exit_code is ExitCode.USAGE


def test_the_url_is_shown_without_credentials() -> None:
    assert Client(Target("https://[::1]", "a", "b")).shown_url == "https://[::1]:15671"


@pytest.mark.parametrize("location", ["/api/warren/transfers/%2F/t%201", "t%201", "http://h:1/x/t%201?a=b"])
def test_a_location_ends_with_the_name_of_what_was_made(location: str) -> None:
    assert last_segment(location) == "t 1"


def test_the_port_of_amqp_is_named_as_such() -> None:
    with socket.socket() as amqp:
        amqp.bind(("127.0.0.1", 0))
        amqp.listen()
        url = f"http://127.0.0.1:{amqp.getsockname()[1]}"

        def answer_as_a_broker() -> None:
            peer, _ = amqp.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(b"AMQP\0\0\x09\x01")

        broker = threading.Thread(target=answer_as_a_broker)
        broker.start()
        with Client(Target(url, "guest", "guest")) as client, pytest.raises(CtlError) as caught:
            client.get("whoami")
        broker.join()
    assert caught.value.reason == f"cannot reach {url}: that is an AMQP port, not a management API"
    assert caught.value.exit_code is ExitCode.UNREACHABLE


@pytest.mark.parametrize(("scheme", "port", "usual"), [("http", 5672, 15672), ("https", 5671, 15671)])
def test_where_amqp_usually_is_the_port_of_the_api_is_named(
    scheme: str, port: int, usual: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(socket, "create_connection", refuse)
    with Client(Target(f"{scheme}://[::1]:{port}", "guest", "guest")) as client, pytest.raises(CtlError) as caught:
        client.get("whoami")
    assert caught.value.reason == (
        f"cannot reach {scheme}://[::1]:{port}: Connection refused; {port} is AMQP's usual port, the management API is "
        f"at {scheme}://[::1]:{usual} unless it was moved"
    )


def test_a_url_of_amqp_is_wrong_usage() -> None:
    with pytest.raises(CtlError, match="that is for AMQP clients") as caught:
        Client(Target("amqp://127.0.0.1", "guest", "guest"))
    assert caught.value.exit_code is ExitCode.USAGE
