"""Schemas by number out of a registry with Confluent's API, and the bytes in front of a body that name its schema.

    body, integers big-endian
         0   1  magic 0
         1   4  number of the schema
         5      the value; of Protobuf before it which message of the schema: a count and as many numbers, as zigzag
                varints; a single 0 is the first one

1. An unknown number and a registry that cannot answer now are different: an unknown number is the fault of the message
   (None), everything else raises. So a message is not called corrupt because a server is away.
2. A publisher chooses the numbers. The memory for them is bounded, also for unknown ones, which are asked for again
   after a minute; an answer has at most `ANSWER_BYTES_MAX`, and a schema at most `REFERENCES_MAX` others below it.
3. A call is repeated as `control.BrokerClient` repeats its own. The password is not in any message or `repr`.
"""

from __future__ import annotations

import base64
import json
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from warren.spark_bridge.api_connection import ClientTls, connection_to
from warren.spark_bridge.bridge_errors import BrokerError, CorruptBody, NotAllowed, NotFound, Unreachable, UsageError

ANSWER_BYTES_MAX: Final = 4 << 20
REFERENCES_MAX: Final = 200
KEPT_MAX: Final = 1000  # answers
KEPT_BYTES_MAX: Final = 64 << 20
UNKNOWN_S: Final = 60.0
RETRIES: Final = 4
BACKOFF_S: Final = 0.2
TIMEOUT_S: Final = 10.0
_RETRIED: Final = (429, 500, 502, 503, 504)
_NO_SCHEMA: Final = (40401, 40402, 40403)  # no such subject, version, schema
_HEAD_BYTES: Final = 5


class Reference(NamedTuple):
    """A schema that another one needs, under `name`."""

    name: str
    subject: str
    version: int


class Schema(NamedTuple):
    """A schema as a registry has it. `kind`: AVRO, PROTOBUF or JSON. `text`: of Protobuf a descriptor in base64."""

    kind: str
    text: str
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True)
class SchemaRegistry:
    """The place of a registry and the login: `username` and `password`, which the URL may contain, or a bearer `token`.

    `cacert`: a file with the CAs to trust, which executors must have, too; None: those of the system, or of
    SSL_CERT_FILE. `insecure`: take any certificate.
    """

    url: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    cacert: str | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.username is not None:
            object.__setattr__(self, "username", self.username or unquote(parts.username))
            object.__setattr__(self, "password", self.password or unquote(parts.password or ""))
            object.__setattr__(self, "url", parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl())
        try:
            is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_url = False
        if not is_url:
            raise UsageError(f"{self.url!r}: a schema registry is http://HOST:PORT or https://HOST:PORT")

    def client(self) -> RegistryClient:
        """Return a client, which connects when it is used."""
        return RegistryClient(self)


class RegistryClient:
    """Asks a registry, over one connection, and remembers its answers. Not for use by several threads at once."""

    def __init__(self, registry: SchemaRegistry, *, retries: int = RETRIES, backoff_s: float = BACKOFF_S) -> None:
        self._registry = registry
        self._prefix = urlsplit(registry.url).path.rstrip("/")
        self._retries = retries
        self._backoff_s = backoff_s
        self._connection: HTTPConnection | None = None
        self._kept: OrderedDict[str, tuple[float, int, Any]] = OrderedDict()
        self._kept_bytes = 0

    def close(self) -> None:
        """Close the connection; the next call opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def maybe_schema(self, number: int, *, descriptor: bool = False) -> Schema | None:
        """Return the schema with a number; None: unknown number. `descriptor`: that of Protobuf in base64, not as text.

        Raises:
            BrokerError: the registry does not answer, or refuses us.
        """
        answer = self._get(f"/schemas/ids/{number}", descriptor)
        return None if answer is None else self._schema(answer)

    def newest(self, subject: str, *, descriptor: bool = False) -> Schema:
        """Return the newest version of a subject.

        Raises:
            UsageError: the subject does not exist. BrokerError: the registry does not answer.
        """
        return self._version(subject, "latest", descriptor)

    def below(self, schema: Schema, *, descriptor: bool = False) -> dict[str, Schema]:
        """Return the schemas that `schema` refers to, and those that these do, by name, each after those it needs.

        Raises:
            UsageError: they are too many, or missing. BrokerError: the registry does not answer.
        """
        found: dict[str, Schema] = {}
        self._collect(schema, found, set(), descriptor)
        return found

    def _collect(self, schema: Schema, found: dict[str, Schema], names: set[str], descriptor: bool) -> None:
        for reference in schema.references:
            if reference.name in names:
                continue
            names.add(reference.name)
            if len(names) > REFERENCES_MAX:
                raise UsageError(f"a schema that refers to more than {REFERENCES_MAX} others")
            each = self._version(reference.subject, str(reference.version), descriptor)
            self._collect(each, found, names, descriptor)
            found[reference.name] = each

    def _version(self, subject: str, version: str, descriptor: bool) -> Schema:
        answer = self._get(f"/subjects/{quote(subject, safe='')}/versions/{version}", descriptor)
        if answer is None:
            raise UsageError(f"{self._registry.url} has no version {version} of the subject {subject!r}")
        return self._schema(answer)

    def _schema(self, answer: Any) -> Schema:
        try:
            references = tuple(
                Reference(str(each["name"]), str(each["subject"]), int(each["version"]))
                for each in answer.get("references") or ()
            )
            return Schema(str(answer.get("schemaType") or "AVRO"), str(answer["schema"]), references)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise self._unlike() from None

    def _get(self, path: str, descriptor: bool) -> Any:
        """Return the answer of a path, or None if the registry does not have the schema."""
        path += "?format=serialized" if descriptor else ""
        now = time.monotonic()
        if path in self._kept:
            until, _, answer = self._kept[path]
            if now < until:
                self._kept.move_to_end(path)
                return answer
            self._forget(path)
        status, data = self._ask(path)
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError):
            answer = None
        if status == 404 and isinstance(answer, dict) and answer.get("error_code") in _NO_SCHEMA:
            answer = None
        elif status >= 300:
            raise self._refusal(status, answer)
        elif not isinstance(answer, dict):
            raise self._unlike()
        if not path.partition("?")[0].endswith("/latest"):
            until = now + UNKNOWN_S if answer is None else float("inf")
            self._kept[path] = (until, len(data), answer)
            self._kept_bytes += len(data)
        while len(self._kept) > KEPT_MAX or self._kept_bytes > KEPT_BYTES_MAX:
            self._forget(next(iter(self._kept)))
        return answer

    def _forget(self, path: str) -> None:
        self._kept_bytes -= self._kept.pop(path)[1]

    def _ask(self, path: str) -> tuple[int, bytes]:
        attempt = 0
        while True:
            fresh = self._connection is None
            pause_s = self._backoff_s * 2**attempt
            try:
                connection = self._connected()
                connection.request("GET", self._prefix + path, headers=self._headers())
                response = connection.getresponse()
                data = response.read(ANSWER_BYTES_MAX + 1)
                if len(data) > ANSWER_BYTES_MAX:
                    self.close()
                    raise self._unlike()
                if response.will_close:
                    self.close()
                if response.status not in _RETRIED or attempt >= self._retries:
                    return response.status, data
            except (OSError, HTTPException) as error:
                self.close()
                if attempt >= self._retries:
                    raise Unreachable(f"cannot reach {self._registry.url}: {error or type(error).__name__}") from None
                if not fresh and attempt == 0:
                    pause_s = 0.0  # a kept connection that had been closed meanwhile
            time.sleep(pause_s)
            attempt += 1

    def _headers(self) -> Mapping[str, str]:
        registry = self._registry
        found = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if registry.token is not None:
            found["Authorization"] = f"Bearer {registry.token}"
        elif registry.username is not None:
            login = base64.b64encode(f"{registry.username}:{registry.password or ''}".encode()).decode()
            found["Authorization"] = f"Basic {login}"
        return found

    def _connected(self) -> HTTPConnection:
        if self._connection is None:
            parts = urlsplit(self._registry.url)
            tls = ClientTls(self._registry.cacert, insecure=self._registry.insecure)
            secure = parts.scheme == "https"
            self._connection = connection_to(str(parts.hostname), parts.port, TIMEOUT_S, tls if secure else None)
        return self._connection

    def _refusal(self, status: int, answer: Any) -> BrokerError:
        said = answer.get("message") if isinstance(answer, dict) else None
        text = f"{self._registry.url}: {said if isinstance(said, str) else f'HTTP status {status}'}"
        kind = {401: NotAllowed, 403: NotAllowed, 404: NotFound}.get(status, Unreachable)
        return kind(text, status)

    def _unlike(self) -> Unreachable:
        return Unreachable(f"{self._registry.url} does not answer as a schema registry does")


def taken_apart(body: bytes) -> tuple[int, bytes]:
    """Return the number of the schema of a body, and the bytes after it.

    Raises:
        CorruptBody: it does not begin as a body with a number does.
    """
    if len(body) < _HEAD_BYTES or body[0] != 0:
        raise CorruptBody("it does not begin with the number of a schema")
    return int.from_bytes(body[1:_HEAD_BYTES], "big"), body[_HEAD_BYTES:]
