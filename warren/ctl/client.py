"""The management API as a client sees it: JSON over one connection that is kept alive.

1. Paths are given as segments and quoted here, so a vhost ``/`` or a queue ``a/b`` needs no thought elsewhere.
2. A connection that the broker closed while it was idle is opened again, and the request repeated, for methods that
   may be repeated. A POST never goes out twice.
3. Every failure is a `CtlError` with the broker's reason and the exit code of its kind.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import unescape
from http.client import BadStatusLine, HTTPConnection, HTTPException, HTTPMessage, HTTPSConnection
from pathlib import Path
from typing import Any, Final, NamedTuple, Self
from urllib.parse import SplitResult, quote, unquote, urlencode, urlsplit

from warren.ctl.exit_codes import CtlError, ExitCode, usage_error

PAGE_SIZE: Final = 500  # the most that RabbitMQ serves at once
_PROBE: Final = ("whoami",)  # what every management API has, for everybody who may use it
_SINGULAR: Final = {
    "connections": "connection",
    "global-parameters": "global parameter",
    "nodes": "node",
    "users": "user",
    "vhosts": "vhost",
}
# Paths of these begin with a vhost.
_IN_VHOST: Final = {
    "drains": "drained queue",
    "exchanges": "exchange",
    "federation-links": "federation link",
    "lake": "table",
    "mqtt-sessions": "MQTT session",
    "operator-policies": "operator policy",
    "permissions": "permissions of user",
    "policies": "policy",
    "queues": "queue",
    "retained": "retained messages",
    "route": "route",
    "shovels": "shovel",
    "streams": "stream",
    "super-streams": "super stream",
    "topic-permissions": "topic permissions of user",
    "transfers": "transfer",
}
# What AMQP and RabbitMQ say of what is missing where the status is another one.
_MISSING: Final = ("404 NOT_FOUND - ", "NOT_FOUND - ", "no ")
_NO_USER_OR_VHOST: Final = "vhost_or_user_not_found"
_AMQP: Final = "AMQP\0"  # how the port of AMQP answers what it does not understand
_AMQP_PORTS: Final = (5671, 5672)
_REPEATABLE: Final = ("GET", "PUT", "DELETE")
# By OpenSSL's number of what is wrong with a certificate.
UNVERIFIED: Final = {
    9: "its certificate is not valid yet: compare the clocks",
    10: "its certificate has expired",
    **dict.fromkeys(
        (18, 19, 20, 21),
        "its certificate is from an unknown authority: name the file with that CA's certificate by --cacert FILE",
    ),
    **dict.fromkeys((62, 64), "its certificate is for another host name than the one in --url"),
}

Object = dict[str, Any]


class Target(NamedTuple):
    """The URL of the API and the user of the requests."""

    url: str
    username: str
    password: str
    cacert: Path | None = None
    insecure: bool = False
    timeout_s: float = 30.0


class Answer(NamedTuple):
    """What came back; `value` is the parsed body, None when that was empty."""

    status: int
    value: Any
    location: str | None


class Client:
    """One keep-alive connection to a management API."""

    def __init__(self, target: Target) -> None:
        self.target = target
        parts = url_parts(target.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            amqp = " (that is for AMQP clients)" if parts.scheme in ("amqp", "amqps") else ""
            raise usage_error(f"--url {target.url}: not of the form http://HOST:PORT or https://HOST:PORT{amqp}")
        self.host = parts.hostname
        self._secure = parts.scheme == "https"
        self._port = parts.port or (15671 if self._secure else 15672)
        self._prefix = parts.path.rstrip("/").removesuffix("/api") + "/api/"
        with _sent_as_utf_8():
            credentials = f"{target.username}:{target.password}".encode()
        self._authorization = "Basic " + base64.b64encode(credentials).decode()
        self._connection: HTTPConnection | None = None
        self._is_api = False  # whether it has answered as one

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # --- requests ------------------------------------------------------------------------------------------------

    def get(self, *segments: str, query: Mapping[str, str] | None = None) -> Any:
        """Return the parsed answer to a GET."""
        return self.request("GET", segments, query=query).value

    def get_object(self, *segments: str, query: Mapping[str, str] | None = None) -> Object:
        """Return the answer to a GET of one thing."""
        value = self.get(*segments, query=query)
        if not isinstance(value, dict):
            raise self._not_an_api(segments)
        return value

    def get_list(self, *segments: str, query: Mapping[str, str] | None = None) -> list[Object]:
        """Return the answer to a GET of many things."""
        value = self.get(*segments, query=query)
        if not isinstance(value, list):
            raise self._not_an_api(segments)
        return value

    def maybe_get(self, *segments: str) -> Any:
        """Return the parsed answer to a GET; None when there is no such thing."""
        try:
            return self.get(*segments)
        except CtlError as error:
            if error.exit_code is not ExitCode.NOT_FOUND:
                raise
            return None

    def put(self, *segments: str, body: Mapping[str, object] | None = None) -> None:
        """PUT an object; without a body an empty one."""
        self.request("PUT", segments, body=body or {})

    def post(self, *segments: str, body: object, query: Mapping[str, str] | None = None) -> Answer:
        """POST an object and return the answer."""
        return self.request("POST", segments, body=body, query=query)

    def delete(
        self,
        *segments: str,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """DELETE one thing."""
        self.request("DELETE", segments, query=query, headers=headers)

    def pages(
        self, *segments: str, query: Mapping[str, str] | None = None, page_size: int = PAGE_SIZE
    ) -> Iterator[list[Object]]:
        """Yield the items of a listing page by page; one page when the broker does not cut this listing up.

        Things that come or go meanwhile may be missed or seen twice, as with any paging.
        """
        page = 1
        while True:
            asked = {**(query or {}), "page": str(page), "page_size": str(page_size)}
            try:
                value = self.get(*segments, query=asked)
            except CtlError as error:
                if page > 1 and "page_out_of_range" in error.reason:
                    return  # the last page emptied while we read the others
                raise
            if isinstance(value, list):
                yield value
                return
            if not isinstance(value, dict) or not isinstance(value.get("items"), list):
                raise self._not_an_api(segments)
            yield value["items"]
            if page >= int(value.get("page_count", 1)):
                return
            page += 1

    def request(
        self,
        method: str,
        segments: tuple[str, ...],
        *,
        body: object = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request below ``/api/`` and return the answer.

        Raises:
            CtlError: no connection, no JSON, or a status that is not 2xx.
        """
        path = self._path(segments, query)
        # No Accept: asked for JSON only, RabbitMQ answers 406 for what it does not know.
        sent = {"Authorization": self._authorization, **(headers or {})}
        payload = None
        if body is not None:
            with _sent_as_utf_8():
                payload = json.dumps(body, ensure_ascii=False).encode()
            sent["Content-Type"] = "application/json"
        status, received, data = self._exchange(method, path, payload, sent)
        try:
            value = json.loads(data) if data.strip() else None
        except (ValueError, RecursionError):
            value = None
            if status < 300:
                raise self._not_an_api(segments) from None
        self._check_status(method, status, value, segments)
        return Answer(status, value, received.get("Location"))

    def _path(self, segments: tuple[str, ...], query: Mapping[str, str] | None) -> str:
        if "" in segments:
            # It would be the path of something else: without the name of a user, that of all users.
            raise usage_error("a name is empty")
        with _sent_as_utf_8():
            path = self._prefix + "/".join(quote(segment, safe="") for segment in segments)
            return f"{path}?{urlencode(query)}" if query else path

    def get_bytes(self, *segments: str, query: Mapping[str, str]) -> tuple[bytes, HTTPMessage]:
        """Return the answer to a GET as it came, and its headers, which compare without case.

        Raises:
            CtlError: as `request`.
        """
        path = self._path(segments, query)
        status, received, data = self._exchange("GET", path, None, {"Authorization": self._authorization})
        if status >= 300:
            try:
                value = json.loads(data)
            except (ValueError, RecursionError):
                value = None
            self._check_status("GET", status, value, segments)
        return data, received

    def _check_status(self, method: str, status: int, value: Any, segments: tuple[str, ...]) -> None:
        """Raise what an answer means that is not 2xx.

        A server without a management API answers 404 as well. So before the first such answer is believed, another
        path is tried.
        """
        if status in (404, 405) and not self._is_api:
            status_of_probe, _, _ = self._exchange(
                "GET", self._path(_PROBE, None), None, {"Authorization": self._authorization}
            )
            if status_of_probe in (404, 405):
                raise CtlError(f"no management API at {self.shown_url}{self._prefix}", ExitCode.UNREACHABLE)
        self._is_api = True
        if status >= 300:
            raise _refusal(method, status, value, segments)

    # --- the wire ------------------------------------------------------------------------------------------------

    def _exchange(
        self, method: str, path: str, payload: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, HTTPMessage, bytes]:
        """Send and receive once, or twice when a kept connection turns out to be dead.

        The headers compare without case: a follower or a proxy may have written them in small letters.
        """
        while True:
            kept = self._connection is not None
            try:
                connection = self._connected()
                connection.request(method, path, payload, dict(headers))
                response = connection.getresponse()
                return response.status, response.headers, response.read()
            except TimeoutError:
                self.close()
                raise self._unreachable(f"no answer in {self.target.timeout_s:g} s") from None
            except (ConnectionError, HTTPException) as error:
                self.close()
                if isinstance(error, BadStatusLine) and str(error).startswith(_AMQP):
                    raise self._unreachable("that is an AMQP port, not a management API") from None
                if kept and method in _REPEATABLE:
                    continue
                raise self._unreachable(_words(error)) from None
            except OSError as error:
                self.close()
                raise self._unreachable(_words(error)) from None

    def _connected(self) -> HTTPConnection:
        if self._connection is None:
            if self._secure:
                self._connection = HTTPSConnection(
                    self.host, self._port, timeout=self.target.timeout_s, context=self._tls_context()
                )
            else:
                self._connection = HTTPConnection(self.host, self._port, timeout=self.target.timeout_s)
            self._connection.connect()
        return self._connection

    def _tls_context(self) -> Any:
        import ssl

        try:
            context = ssl.create_default_context(cafile=self.target.cacert)
        except OSError as error:
            raise usage_error(f"--cacert {self.target.cacert}: {error.strerror or error}") from None
        if self.target.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def _unreachable(self, reason: str) -> CtlError:
        if self._port in _AMQP_PORTS:
            usual = f"{'https' if self._secure else 'http'}://{self._shown_host}:{15671 if self._secure else 15672}"
            reason += f"; {self._port} is AMQP's usual port, the management API is at {usual} unless it was moved"
        return CtlError(f"cannot reach {self.shown_url}: {reason}", ExitCode.UNREACHABLE)

    def _not_an_api(self, segments: tuple[str, ...]) -> CtlError:
        return CtlError(
            f"{self.shown_url}: the answer for {'/'.join(segments)} is not that of a management API",
            ExitCode.UNREACHABLE,
        )

    @property
    def shown_url(self) -> str:
        """The URL without credentials."""
        return f"{'https' if self._secure else 'http'}://{self._shown_host}:{self._port}"

    @property
    def _shown_host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


def url_parts(url: str) -> SplitResult:
    """Return the parts of a URL.

    Raises:
        CtlError: it is not a URL, or its host or port is not valid.
    """
    try:
        parts = urlsplit(url)
        (parts.hostname or "").encode("idna")
        _ = parts.port
    except ValueError as error:
        reason = "a port is a number from 0 to 65535" if "ort " in str(error) else str(error)
        raise usage_error(f"--url {url}: {reason}") from None
    return parts


@contextmanager
def _sent_as_utf_8() -> Iterator[None]:
    """Make wrong usage of text that is no UTF-8: Python keeps such bytes of a command line, and they cannot be sent."""
    try:
        yield
    except UnicodeEncodeError as error:
        near = error.object[max(0, error.start - 20) : error.end + 20]
        raise usage_error(f"{near!a} is not UTF-8") from None


def last_segment(location: str) -> str:
    """Return the last part of a Location header: the name of what was made."""
    return unquote(urlsplit(location).path.rpartition("/")[2])


def _refusal(method: str, status: int, value: Any, segments: tuple[str, ...]) -> CtlError:
    """Return the error of an answer that is not 2xx, with the reason the broker gave."""
    reason = value.get("reason") or value.get("error") if isinstance(value, dict) else None
    kind = value.get("error") if isinstance(value, dict) else None
    text = reason if isinstance(reason, str) else json.dumps(reason) if reason else f"HTTP status {status}"
    # RabbitMQ escapes some reasons for its pages.
    text = " ".join(unescape(text).split())
    if status in (401, 403):
        return CtlError(f"refused: {text}", ExitCode.REFUSED)
    if status == 405:
        return CtlError(f"not supported by this broker's API: {'/'.join(segments)}", ExitCode.NOT_FOUND)
    if status == 404:
        # RabbitMQ's reasons are one word, or its generic one: the path says more.
        if " " in text and isinstance(reason, str) and text != "Not Found":
            return _not_found(text)
        if segments[0] == "warren":
            return CtlError(f"not found, or not a Warren broker: {_thing(method, segments)}", ExitCode.NOT_FOUND)
        return _not_found(_thing(method, segments))
    if status == 400 and text == _NO_USER_OR_VHOST:
        return _not_found(f'user "{segments[-1]}", or vhost "{segments[-2]}"')
    if status == 400 and text.startswith(_MISSING[0]):
        return _not_found(text)
    if status == 503:
        more = {key: item for key, item in value.items() if key not in ("status", "reason")} if value else {}
        detail = ", ".join(f"{key}: {json.dumps(item)}" for key, item in more.items())
        return CtlError(f"{text} ({detail})" if detail else text, ExitCode.CHECK_FAILED)
    return CtlError(f"{kind}: {text}" if kind == "page_out_of_range" else text)


def _words(error: Exception) -> str:
    """Return what went wrong on the wire, without the number."""
    if (code := getattr(error, "verify_code", None)) is not None:
        return UNVERIFIED.get(code, f"its certificate cannot be verified: {getattr(error, 'verify_message', '')}")
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _not_found(what: str) -> CtlError:
    for before in _MISSING:
        what = what.removeprefix(before)
    return CtlError(f"not found: {what}", ExitCode.NOT_FOUND)


def _thing(method: str, segments: tuple[str, ...]) -> str:
    """Return what a path names, ``queue "q" in vhost "/"``; of a PUT, the vhost for the new object."""
    kind, *names = segments[1:] if segments[0] in ("warren", "stream") else segments
    match kind, names:
        case "bindings", [vhost, _, source, _, destination, *_]:
            return f'binding from "{source}" to "{destination}" in vhost "{vhost}"'
        case "consumers", [vhost, connection, channel, tag]:
            return f'consumer "{tag}" on channel {channel} of connection "{connection}" in vhost "{vhost}"'
        case "parameters", [component, vhost, *name]:
            what, names = f"parameter of {component}", [vhost, *name]
        case (("federation-links" | "lake" | "shovels"), ["vhost", *rest]):
            what, names = _IN_VHOST[kind], rest
        case _:
            what = _IN_VHOST.get(kind, "")
    if what and names:
        is_made = method == "PUT" and len(names) == 2
        return f'vhost "{names[0]}"' if is_made or len(names) == 1 else f'{what} "{names[1]}" in vhost "{names[0]}"'
    if kind in _SINGULAR and names:
        return f'{_SINGULAR[kind]} "{names[0]}"'
    return "/".join(segments)
