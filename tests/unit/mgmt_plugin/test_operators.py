"""How a client gets in, how a browser stays in, and what other sites cannot have it do."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from warren.channels.access import AccessControl
from warren.engine_view.permissions import Permissions
from warren.mgmt_plugin import operators
from warren.mgmt_plugin.http.server import HttpError, Request
from warren.mgmt_plugin.operators import (
    COOKIE,
    CSRF_HEADER,
    REALM,
    SESSION_S,
    SESSIONS_PER_USER_MAX,
    Doorkeeper,
    Operator,
    cookie_header,
)
from warren.server.logins.authenticator import Authenticator
from warren.vhosts.metadata import PermissionPut, UserDelete, UserPut

PASSWORDS = {"alice": b"wonder:land", "bob": b"", "d\u00e9j\u00e0": "v\u00fc".encode()}


class FakeAuthenticator:
    """Knows passwords by heart."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bytes, str]] = []

    async def check(self, user: str, password: bytes, peer_address: str) -> bool:
        self.asked.append((user, password, peer_address))
        return bool(password) and PASSWORDS.get(user) == password

    def why_refused(self, user: str, peer_address: str) -> str:
        return "for the log"


class Door:
    """A doorkeeper with its users."""

    def __init__(self) -> None:
        self.access = AccessControl(lambda: None)
        for number, name in enumerate(PASSWORDS):
            self.access.apply(UserPut(name, f"hash {number}", "scrypt", ("management",)))
        self.authenticator = FakeAuthenticator()
        hosts = frozenset({"broker.example"})
        self.keeper = Doorkeeper(Permissions(self.access), cast(Authenticator, self.authenticator), hosts)

    def identify(self, method: str = "GET", **headers: str) -> Operator:
        """Return the operator of a request with these headers (underscores for hyphens)."""
        return trio.run(self.keeper.identify, request(method, False, **headers))

    def refused(self, method: str = "GET", **headers: str) -> HttpError:
        with pytest.raises(HttpError) as caught:
            self.identify(method, **headers)
        return caught.value

    def session(self, name: str = "alice") -> tuple[str, str]:
        """Begin a session; return its identifier and CSRF token."""
        identifier, session = self.keeper.sessions.begin(self.access.users[name])
        return identifier, session.csrf_token


def request(method: str = "GET", is_tls: bool = False, /, **headers: str) -> Request:
    async def nothing(limit_bytes: int, look: Callable[[bytes], None] | None = None) -> bytes:
        raise AssertionError("nobody may read a body before it is known who sends it")

    given = {"host": "127.0.0.1:15672"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(method, "/api/overview", "", given, "192.0.2.1", is_tls, nothing)


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


@pytest.fixture
def door() -> Door:
    return Door()


# --- Basic ------------------------------------------------------------------------------------------------------------


def test_a_name_and_its_password_open(door: Door) -> None:
    operator = door.identify(authorization=basic("alice", "wonder:land"))
    assert (operator.name, operator.tags) == ("alice", ("management",))
    assert door.authenticator.asked == [("alice", b"wonder:land", "192.0.2.1")]
    assert door.identify(authorization=basic("d\u00e9j\u00e0", "v\u00fc")).name == "d\u00e9j\u00e0"
    assert door.identify(authorization=basic("alice", "wonder:land").replace("Basic", "bAsIc")).name == "alice"
    assert (door.keeper.succeeded, door.keeper.failed) == (3, 0)


@pytest.mark.parametrize(
    ("name", "password"), [("alice", "wrong"), ("alice", ""), ("bob", ""), ("nobody", "x"), ("", "")]
)
def test_nothing_else_does_and_all_refusals_are_the_same(door: Door, name: str, password: str) -> None:
    refused = door.refused(authorization=basic(name, password))
    assert (refused.status, refused.error, refused.reason) == (401, "not_authorized", "Login failed")
    assert refused.headers == (("WWW-Authenticate", REALM),)
    assert door.keeper.failed == 1


def test_without_credentials_one_is_asked_for_them(door: Door) -> None:
    refused = door.refused()
    assert (refused.status, refused.headers) == (401, (("WWW-Authenticate", REALM),))
    assert REALM == 'Basic realm="RabbitMQ Management"'  # Nagios checks tie their credentials to it
    assert door.authenticator.asked == []


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Basic",
        "Basic ",
        "Basic !!!!",
        "Basic YWxpY2U=",  # no colon
        "Basic /zo=",  # not UTF-8
        "Basic YWxpY2U6d29uZGVyOmxhbmQ",  # no padding
        "Basic \xe9\xe9\xe9\xe9",
        "Digest username=alice",
        "Bearer",
        "Bearer \xff",
        "Bearer nosuch",
        "\xff",
    ],
)
def test_credentials_that_are_none_are_refused(door: Door, header: str) -> None:
    refused = door.refused(authorization=header)
    assert (refused.status, refused.error) == (401, "not_authorized")
    assert door.authenticator.asked == []


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_a_cookie_opens_and_a_change_needs_the_token_too(door: Door) -> None:
    identifier, token = door.session()
    cookie = f"theme=dark; {COOKIE}={identifier}; x=y"
    assert door.identify(cookie=cookie).name == "alice"
    assert door.identify("HEAD", cookie=cookie).name == "alice"
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        for wrong in ({}, {"x_csrf_token": ""}, {"x_csrf_token": token[:-1]}, {"x_csrf_token": "\xff\u1234"}):
            refused = door.refused(method, cookie=cookie, **wrong)
            assert (refused.status, refused.error) == (403, "forbidden")
        assert door.identify(method, cookie=cookie, x_csrf_token=token).name == "alice"
    _, other_token = door.session("bob")
    assert door.refused("PUT", cookie=cookie, x_csrf_token=other_token).status == 403
    assert CSRF_HEADER == "x-csrf-token"


@pytest.mark.parametrize(
    "cookie",
    [
        "{cookie}",
        "  {cookie}  ",
        "a=b;{cookie}",
        "a=b ; {cookie} ;c",
        '"\\";;==; ={cookie};{cookie}',
        "not{cookie}; {cookie}; {name}=later",
        'x="' + "\\073" * 3000 + '"; {cookie}',
    ],
)
def test_our_cookie_is_found_among_others(door: Door, cookie: str) -> None:
    identifier, _ = door.session()
    assert door.identify(cookie=cookie.format(cookie=f"{COOKIE}={identifier}", name=COOKIE)).name == "alice"


def test_cookies_are_not_read_with_the_parser_of_the_standard_library() -> None:
    """Its time is quadratic in the length of a header, which anybody may send."""
    root = Path(operators.__file__).parent.parent
    users = [path.name for path in root.rglob("*.py") if "http.cookies" in path.read_text()]
    assert users == []


def test_a_session_that_has_ended_is_told_so_without_a_browsers_dialog(door: Door) -> None:
    for cookie in (f"{COOKIE}=nosuch", f"{COOKIE}="):
        refused = door.refused(cookie=cookie)
        assert (refused.status, refused.headers) == (401, ())


@pytest.mark.parametrize("cookie", ["", "x", "=;=", "a=b", f"not{COOKIE}=x", f"{COOKIE}", '"', "\x00=\x01", ";" * 1000])
def test_cookies_that_are_none_are_no_session(door: Door, cookie: str) -> None:
    assert door.refused(cookie=cookie).status == 401


def test_the_identifier_is_a_bearer_token_too_that_needs_no_other(door: Door) -> None:
    identifier, _ = door.session()
    assert door.identify("DELETE", authorization=f"Bearer {identifier}").name == "alice"
    assert door.identify("DELETE", authorization=f"bearer  {identifier} ", origin="http://evil.example").name == "alice"


def test_credentials_are_looked_at_before_a_cookie(door: Door) -> None:
    identifier, _ = door.session()
    assert door.refused(cookie=f"{COOKIE}={identifier}", authorization=basic("alice", "wrong")).status == 401


def test_a_session_ends_when_the_password_changes_but_not_with_the_tags(door: Door) -> None:
    identifier, _ = door.session()
    cookie = f"{COOKIE}={identifier}"
    door.access.apply(UserPut("alice", "hash 0", "scrypt", ("administrator",)))
    assert door.identify(cookie=cookie).is_administrator
    door.access.apply(UserPut("alice", "hash 0", "scrypt", ()))
    assert not door.identify(cookie=cookie).is_manager
    door.access.apply(UserPut("alice", "another", "scrypt", ("administrator",)))
    assert door.refused(cookie=cookie).status == 401
    door.access.apply(UserPut("alice", "hash 0", "scrypt", ("administrator",)))
    assert door.refused(cookie=cookie).status == 401  # it is over


def test_a_session_ends_with_its_user(door: Door) -> None:
    identifier, _ = door.session()
    door.access.apply(UserDelete("alice"))
    assert door.refused(cookie=f"{COOKIE}={identifier}").status == 401
    assert door.refused(authorization=f"Bearer {identifier}").status == 401


def test_a_session_ends_after_its_time_and_goes_on_while_it_is_used(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [1000.0]
    monkeypatch.setattr("warren.mgmt_plugin.operators.time.monotonic", lambda: now_s[0])
    identifier, _ = door.session()
    for _ in range(3):
        now_s[0] += SESSION_S - 1
        assert door.identify(cookie=f"{COOKIE}={identifier}").name == "alice"
    now_s[0] += SESSION_S
    assert door.refused(cookie=f"{COOKIE}={identifier}").status == 401


def test_a_session_ends_when_it_is_ended(door: Door) -> None:
    identifier, _ = door.session()
    other, _ = door.session()
    door.keeper.sessions.end(identifier)
    door.keeper.sessions.end("nosuch")
    assert door.refused(cookie=f"{COOKIE}={identifier}").status == 401
    assert door.identify(cookie=f"{COOKIE}={other}").name == "alice"


def test_a_user_has_so_many_sessions_and_no_more_the_least_used_ends(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SESSIONS_PER_USER_MAX >= 50
    monkeypatch.setattr(operators, "SESSIONS_PER_USER_MAX", 3)
    first, second, third = (door.session()[0] for _ in range(3))
    door.identify(cookie=f"{COOKIE}={first}")
    door.session()
    assert door.identify(cookie=f"{COOKIE}={first}").name == "alice"
    assert door.refused(cookie=f"{COOKIE}={second}").status == 401
    assert door.identify(cookie=f"{COOKIE}={third}").name == "alice"


def test_sessions_of_one_user_end_none_of_another(door: Door) -> None:
    """Logging in again and again is possible for everybody, and must not log an administrator out."""
    administrators, _ = door.session("bob")
    latest = [door.session("alice")[0] for _ in range(20_000)][-1]
    assert door.identify(cookie=f"{COOKIE}={administrators}").name == "bob"
    assert door.identify(cookie=f"{COOKIE}={latest}").name == "alice"
    assert len(door.keeper.sessions._sessions) == SESSIONS_PER_USER_MAX + 1


def test_sessions_that_are_over_are_not_kept(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [1000.0]
    monkeypatch.setattr("warren.mgmt_plugin.operators.time.monotonic", lambda: now_s[0])
    for _ in range(5):
        door.session("alice")
    now_s[0] += SESSION_S
    identifier, _ = door.session("bob")
    assert set(door.keeper.sessions._of_user) == {"bob"}
    door.keeper.sessions.end(identifier)
    assert not door.keeper.sessions._sessions and not door.keeper.sessions._of_user


def test_neither_a_password_nor_an_identifier_is_kept(door: Door) -> None:
    identifier, token = door.session()
    door.identify(authorization=basic("alice", "wonder:land"))
    kept = repr(reachable(door.keeper.sessions)) + repr(reachable(door.keeper.__dict__))
    assert "alice" in kept and token in kept
    assert "wonder:land" not in kept and identifier not in kept


def reachable(value: Any) -> Any:
    """Return what an object holds, as far as it is data."""
    if isinstance(value, dict):
        return {reachable(key): reachable(each) for key, each in value.items()}
    if isinstance(value, operators.Sessions):
        return reachable(value.__dict__)
    if isinstance(value, operators.OperatorSession):
        return [value.user, value.password_hash, value.csrf_token]
    return value if isinstance(value, str | bytes | int | float) else str(type(value))


def test_identifiers_and_tokens_cannot_be_guessed(door: Door) -> None:
    pairs = [door.session() for _ in range(100)]
    texts = {text for pair in pairs for text in pair}
    assert len(texts) == 200
    assert all(len(text) >= 32 for text in texts)


# --- other sites ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["127.0.0.1:15672", "localhost:1", "[::1]:15672", "10.1.2.3", "Broker.Example", "LOCALHOST"]
)
def test_a_browser_may_ask_under_our_names(door: Door, host: str) -> None:
    identifier, token = door.session()
    origin = f"http://{host.lower()}"
    cookie = f"{COOKIE}={identifier}"
    operator = door.identify(
        "PUT", host=host, origin=origin, cookie=cookie, x_csrf_token=token, sec_fetch_site="same-origin"
    )
    assert operator.name == "alice"
    assert door.identify(host=host, cookie=cookie, sec_fetch_site="none").name == "alice"


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},  # a name that somebody had resolve to this machine
        {"host": "127.0.0.1.evil.example"},
        {"host": "localhost.evil.example:15672"},
        {"host": "evil.example@127.0.0.1"},
        {"host": ""},
        {"host": "["},
        {"host": "[::1"},
        {"host": "127.0.0.1:x:y"},
        {"host": "\xff"},
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://["},
        {"origin": "127.0.0.1:15672"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": ""},
    ],
)
def test_a_browser_that_was_led_here_is_refused_even_with_the_token(door: Door, headers: dict[str, str]) -> None:
    identifier, token = door.session()
    for method in ("GET", "POST"):
        refused = door.refused(method, cookie=f"{COOKIE}={identifier}", x_csrf_token=token, **headers)
        assert (refused.status, refused.error) == (403, "forbidden")


ELSEWHERE = (
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1:1"},
    {"sec_fetch_site": "cross-site"},
    {"sec_fetch_site": "same-site"},
)


@pytest.mark.parametrize("headers", ELSEWHERE)
def test_a_password_that_a_browser_sends_by_itself_changes_nothing_for_another_site(
    door: Door, headers: dict[str, str]
) -> None:
    credentials = basic("alice", "wonder:land")
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        refused = door.refused(method, authorization=credentials, **headers)
        assert (refused.status, refused.error) == (403, "forbidden")
    assert door.authenticator.asked == []
    # A page of another site cannot read the answer to a GET.
    assert door.identify("GET", authorization=credentials, **headers).name == "alice"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "any.name.at.all:15672"},
        {"host": "broker:80", "origin": "http://broker:80", "sec_fetch_site": "same-origin"},
        {"sec_fetch_site": "none"},
    ],
)
def test_a_password_from_a_program_or_from_our_own_page_changes_things(door: Door, headers: dict[str, str]) -> None:
    assert door.identify("POST", authorization=basic("alice", "wonder:land"), **headers).name == "alice"


def test_a_cookie_is_for_this_site_and_no_script() -> None:
    name, value = cookie_header("secret", request())
    assert name == "Set-Cookie"
    assert value.split("; ") == [f"{COOKIE}=secret", "Path=/", "HttpOnly", "SameSite=Strict"]
    assert cookie_header("secret", request("GET", True))[1].endswith("; Secure")
    assert "Max-Age=0" in cookie_header("", request(), ends=True)[1]


# --- tags -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tags", "manager", "policymaker", "monitor", "administrator"),
    [
        ((), False, False, False, False),
        (("impersonator", "custom"), False, False, False, False),
        (("management",), True, False, False, False),
        (("policymaker",), True, True, False, False),
        (("monitoring",), True, False, True, False),
        (("administrator",), True, True, True, True),
        (("Administrator", "admin"), False, False, False, False),
    ],
)
def test_tags_say_what_one_is(
    tags: tuple[str, ...], manager: bool, policymaker: bool, monitor: bool, administrator: bool
) -> None:
    access = AccessControl(lambda: None)
    access.apply(PermissionPut("alice", "mine", "", "", ""))
    operator = Operator("alice", tags, Permissions(access))
    assert (operator.is_manager, operator.is_policymaker) == (manager, policymaker)
    assert (operator.is_monitor, operator.is_administrator) == (monitor, administrator)
    assert operator.may_enter("mine") and operator.may_see("mine")
    assert not operator.may_enter("other")
    assert operator.may_see("other") is monitor


def test_nobody_is_nothing(door: Door) -> None:
    nobody = door.keeper.nobody()
    assert not nobody.is_manager and not nobody.may_see("/")
