"""A client for etcd, over HTTP and the JSON of its gateway (version 3.4 and later), as far as a cluster needs one.

1. A write is sent once. When its answer does not come, or cannot be understood, it raises `OutcomeUnknown`: the write
   may have been done, may still be done, or may never be done. The caller must read before it tries again. Only
   connecting is tried with one endpoint after the other, since nothing has been sent then. A swap of a key that exists
   is the exception: it may be sent to several endpoints, since it names the revision that it replaces. So at most one
   of these requests is carried out. If an endpoint then says that the revision is another one, the outcome is unknown:
   another endpoint may have carried the swap out.
2. Reads are linearizable. The next endpoint is asked when one has failed, or has not answered for `HEDGE_S`. The first
   answer counts, and later requests begin with that endpoint.
3. An answer from an outdated member is rejected: it has another cluster's id, or a smaller raft term or revision than
   any answer had before the request was sent. Such an answer to a write is an unknown outcome.
4. The texts of errors hold no credentials.
5. Each request is counted once, with its time (`Traffic`). It failed if etcd did not answer, or answered with an error.
   A request that another endpoint answered earlier is not counted.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import h11
import msgspec
import trio

from warren.cluster.etcd_wire import (
    BROKEN,
    OK,
    Answer,
    EtcdConnection,
    Header,
    LeaseAnswer,
    Nonsense,
    RangeAnswer,
    Stream,
    Token,
    TxnAnswer,
    decoded,
    end_of_prefix,
    error_text,
    text,
)

ATTEMPT_S: Final = 1.0
HEDGE_S: Final = 0.3  # after this time without an answer, the next endpoint is asked as well
IDLE_CONNECTIONS_MAX: Final = 4
SHOWN_CHARACTERS: Final = 200
_UNAUTHENTICATED: Final = 401
_SERVER_FAULT: Final = 500
# Messages of etcd for a token that has expired, or that was given before the users changed.
_OLD_TOKENS: Final = ("invalid auth token", "revision of auth store is old", "revision in header is old")

T = TypeVar("T")


class EtcdError(Exception):
    """A request failed, and changed nothing. The text says which endpoint, and how."""


# Texts for operators that replace errors of etcd, by a part of their text, and errors of TLS, by OpenSSL's number.
_PLAIN: Final = (
    ("authentication failed", "it refuses this user and password: etcd_user or etcd_password_file is wrong"),
    ("user name is empty", "it requires a login: set etcd_user and etcd_password_file"),
    ("authentication is not enabled", "it has no users: remove etcd_user and etcd_password_file"),
    ("permission denied", "permission denied: its user needs a role that reads and writes the keys of the cluster"),
    ("HTTP request to an HTTPS server", "it speaks TLS: write https:// in the setting etcd"),
)
_UNVERIFIED: Final = {
    9: "its certificate is not valid yet: compare the clocks",
    10: "its certificate has expired",
    **dict.fromkeys((18, 19, 20, 21), "its certificate is not from an authority of etcd_ca"),
    **dict.fromkeys((62, 64), "its certificate is for another name than this one"),
}


class Refused(EtcdError):
    """etcd has answered with an error of its own. `status` is that of HTTP."""

    def __init__(self, endpoint: str, status: int, text: str) -> None:
        plain = next((words for error, words in _PLAIN if error in text), text[:SHOWN_CHARACTERS] or status)
        super().__init__(f"{endpoint}: {plain}")
        self.status = status
        self.is_old_token = status == _UNAUTHENTICATED or any(old in text for old in _OLD_TOKENS)


class StaleMember(EtcdError):
    """A member is older than an earlier answer, or belongs to another cluster."""


class LeaseGone(EtcdError):
    """The lease has expired or was revoked."""


class OutcomeUnknown(Exception):
    """A write may have been done, may still be done, or never will be."""


@dataclass(frozen=True)
class EtcdSettings:
    """Where etcd is, ``http://host:port`` or ``https://``, and how to log in."""

    endpoints: Sequence[str]
    user: str = ""
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    attempt_s: float = ATTEMPT_S


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key as it is; `revision` is that of its last change."""

    key: bytes
    value: bytes
    revision: int


@dataclass(slots=True)
class Traffic:
    """The outcomes of the requests so far. `failure`: the error of the last request; empty if it succeeded.

    `watched_s`: when a watch last had a valid answer, by the monotonic clock. Its value was current at that time.
    """

    requests: int = 0
    failures: int = 0
    in_row: int = 0  # failures since a request succeeded
    seconds: float = 0.0
    failure: str = ""
    watched_s: float | None = None

    def ended(self, seconds: float, failure: str) -> None:
        """Count a request."""
        self.requests += 1
        self.seconds += seconds
        self.failures += bool(failure)
        self.in_row = self.in_row + 1 if failure else 0
        self.failure = failure


class Etcd:
    """A client of one etcd cluster."""

    def __init__(self, settings: EtcdSettings) -> None:
        self.traffic = Traffic()
        if not settings.endpoints:
            raise ValueError("the setting etcd names no endpoint")
        self._settings = settings
        self._endpoints = [_checked(endpoint) for endpoint in settings.endpoints]
        self._at = 0
        self._idle: list[EtcdConnection] = []
        self._token = ""
        self._cluster_id: int | None = None
        self._raft_term = 0
        self._revision = 0

    async def close(self) -> None:
        """Close all connections that are not in use."""
        while self._idle:
            await self._idle.pop().close()

    # --- reads ------------------------------------------------------------------------------------------------------

    async def get(self, key: bytes) -> KeyValue | None:
        """Read a key, linearizably.

        Raises:
            EtcdError: no endpoint answers as it should.
        """
        return (await self.get_at(key))[0]

    async def get_all(self, prefix: bytes) -> list[KeyValue]:
        """Read all keys that begin with `prefix`, linearizably; together they have to fit into one answer.

        Raises:
            EtcdError: no endpoint answers as it should.
        """
        body = {"key": text(prefix), "range_end": text(end_of_prefix(prefix))}
        answer = await self._read("kv/range", body, RangeAnswer)
        return [KeyValue(pair.key, pair.value, pair.mod_revision) for pair in answer.kvs]

    async def get_at(self, key: bytes) -> tuple[KeyValue | None, int]:
        """Return a key, and the revision of all of etcd at which it was read."""
        answer = await self._read("kv/range", {"key": text(key)}, RangeAnswer)
        for pair in answer.kvs:
            if pair.key != key:
                raise EtcdError("etcd answered with a key that was not requested")
            return KeyValue(pair.key, pair.value, pair.mod_revision), answer.header.revision
        return None, answer.header.revision

    async def get_from(self, endpoint: str, key: bytes) -> KeyValue | None:
        """Read a key at this endpoint, linearizably: a member that is cut off from the others does not answer.

        Raises:
            EtcdError: it does not answer as it should.
        """
        answer = await self._ask(endpoint, "kv/range", {"key": text(key)}, RangeAnswer)
        return next((KeyValue(pair.key, pair.value, pair.mod_revision) for pair in answer.kvs if pair.key == key), None)

    async def _read(self, path: str, body: dict[str, Any], kind: type[T]) -> T:
        answers, problems = await self._hedged(lambda endpoint: self._ask(endpoint, path, body, kind))
        if answers:
            return answers[0]
        refused = next((problem for problem in problems if _is_final(problem)), None)
        raise refused or EtcdError("; ".join(map(str, problems)))

    async def _hedged(self, attempt: Callable[[str], Awaitable[T]]) -> tuple[list[T], list[Exception]]:
        """Try one endpoint after the other, from the current one on, until one answers: see `HEDGE_S`.

        Returns the answers in the order in which they came, and the failures. The first answer cancels all attempts
        that are still under way.
        """
        answers: list[T] = []
        problems: list[Exception] = []
        begins = self._at
        async with trio.open_nursery() as nursery:

            async def try_it(at: int, ended: trio.Event) -> None:
                try:
                    answers.append(await attempt(self._endpoints[at]))
                except (EtcdError, OutcomeUnknown) as error:
                    problems.append(error)
                    if _is_final(error):
                        nursery.cancel_scope.cancel()
                else:
                    if len(answers) == 1:
                        self._at = at
                    nursery.cancel_scope.cancel()
                ended.set()

            for number in range(len(self._endpoints)):
                ended = trio.Event()
                nursery.start_soon(try_it, (begins + number) % len(self._endpoints), ended)
                with trio.move_on_after(HEDGE_S):
                    await ended.wait()
        if not answers and self._at == begins:
            self._turn_to_next()
        return answers, problems

    async def _ask(self, endpoint: str, path: str, body: dict[str, Any], kind: type[T]) -> T:
        """Ask an endpoint; if it refuses the token, log in again and ask once more."""
        connection = await self._connect(endpoint)
        try:
            return await self._exchange(connection, path, body, kind)
        except Refused as refused:
            if not refused.is_old_token or not self._settings.user:
                raise
        except BROKEN as error:
            raise _failed(endpoint, error) from None
        self._token = ""
        connection = await self._connect(endpoint)
        try:
            return await self._exchange(connection, path, body, kind)
        except BROKEN as error:
            raise _failed(endpoint, error) from None

    # --- writes -----------------------------------------------------------------------------------------------------

    async def put(self, key: bytes, value: bytes, lease: int = 0) -> int:
        """Write a key, whatever it was; return the revision.

        Raises:
            EtcdError: nothing was sent.
            OutcomeUnknown: the answer did not come.
        """
        body = {"key": text(key), "value": text(value), "lease": str(lease)}
        return (await self._write("kv/put", body, Answer)).header.revision

    async def swap(self, key: bytes, revision: int, value: bytes) -> int | None:
        """Write a key if its last change was at `revision`; 0: if it does not exist.

        Returns the new revision, None if the key has another one.

        Raises:
            EtcdError: nothing was sent.
            OutcomeUnknown: the answer did not come.
        """
        compare = {"key": text(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}
        success = {"request_put": {"key": text(key), "value": text(value)}}
        answer = await self._swapped({"compare": [compare], "success": [success]}, once=revision == 0)
        if not answer.succeeded:
            return None
        if answer.header.revision <= revision:
            raise OutcomeUnknown(f"etcd says that it has made a change at revision {answer.header.revision}")
        return answer.header.revision

    async def grant(self, ttl_s: int) -> int:
        """Return the number of a new lease.

        Raises:
            EtcdError: nothing was sent.
            OutcomeUnknown: the answer did not come; such a lease expires by itself.
        """
        answer = await self._write("lease/grant", {"TTL": str(ttl_s)}, LeaseAnswer)
        if answer.ID == 0:
            raise OutcomeUnknown("etcd has granted a lease without a number")
        return answer.ID

    async def keep_alive(self, lease: int) -> int:
        """Renew a lease; return its time to live in seconds.

        Raises:
            LeaseGone: the lease no longer exists.
            EtcdError: no endpoint answers as it should.
        """
        stream = await self._read("lease/keepalive", {"ID": str(lease)}, Stream)
        try:
            answer = decoded(bytes(stream.result), LeaseAnswer)
        except Nonsense as error:
            raise EtcdError(f"lease {lease} was not renewed: {stream.error or error}") from None
        if answer.TTL <= 0:
            raise LeaseGone(f"lease {lease} has expired")
        return answer.TTL

    async def _swapped(self, body: dict[str, Any], *, once: bool) -> TxnAnswer:
        """Send a swap, to one endpoint or to several; return its answer. Raises as `swap`."""
        if once:  # the key must not exist: if it is made and deleted meanwhile, a late request would make it again
            return await self._write("kv/txn", body, TxnAnswer)
        sent: list[str] = []

        async def attempt(endpoint: str) -> TxnAnswer:
            connection = await self._connect(endpoint)
            sent.append(endpoint)
            return await self._send(connection, "kv/txn", body, TxnAnswer)

        answers, problems = await self._hedged(attempt)
        for answer in answers:
            if answer.succeeded or len(sent) == 1:
                return answer
        if not sent:
            raise EtcdError("; ".join(map(str, problems)))
        refusals = [f"{endpoint} says, or may say, that the key has another revision" for endpoint in sent if answers]
        unknown = next((problem for problem in problems if isinstance(problem, OutcomeUnknown)), None)
        raise OutcomeUnknown("; ".join([*map(str, problems), *refusals])) from (unknown and unknown.__cause__)

    async def _write(self, path: str, body: dict[str, Any], kind: type[T]) -> T:
        return await self._send(await self._connect_to_any(), path, body, kind)

    async def _send(self, connection: EtcdConnection, path: str, body: dict[str, Any], kind: type[T]) -> T:
        """Send a write, and return its answer.

        Raises:
            OutcomeUnknown: the answer did not come.
        """
        try:
            return await self._exchange(connection, path, body, kind)
        except Refused as refused:
            # Some errors of etcd come after the change was proposed, and their texts do not tell which these are.
            if refused.is_old_token:
                self._token = ""
            raise OutcomeUnknown(str(refused)) from refused
        except (StaleMember, *BROKEN) as error:
            if self._endpoints[self._at] == connection.endpoint:
                self._turn_to_next()
            raise OutcomeUnknown(str(_failed(connection.endpoint, error))) from error

    # --- connections ------------------------------------------------------------------------------------------------

    def _turn_to_next(self) -> None:
        self._at = (self._at + 1) % len(self._endpoints)

    async def _connect_to_any(self) -> EtcdConnection:
        connections, problems = await self._hedged(self._connect)
        for unused in connections[1:]:
            await unused.close()
        if not connections:
            raise EtcdError("; ".join(map(str, problems)))
        return connections[0]

    async def _connect(self, endpoint: str) -> EtcdConnection:
        """Return a connection to an endpoint, after logging in if a token is needed."""
        if self._settings.user and not self._token:
            await self._log_in(endpoint)
        for connection in self._idle:
            if connection.endpoint == endpoint:
                self._idle.remove(connection)
                if connection.is_usable:
                    return connection
                await connection.close()
                break
        return await self.open(endpoint)

    async def open(self, endpoint: str) -> EtcdConnection:
        """Return a new connection.

        Raises:
            EtcdError: that is not possible.
        """
        began_s = trio.current_time()
        try:
            with trio.fail_after(self._settings.attempt_s):
                return await EtcdConnection.open(endpoint, self._settings.tls)
        except BROKEN as error:
            failed = _failed(endpoint, error)
            self.traffic.ended(trio.current_time() - began_s, str(failed))
            raise failed from None

    async def _log_in(self, endpoint: str) -> None:
        connection = await self.open(endpoint)
        login = {"name": self._settings.user, "password": self._settings.password}
        try:
            status, answer = await self._converse(connection, "auth/authenticate", login, "")
            if status != OK:
                raise Refused(endpoint, status, error_text(answer))
            self._token = decoded(answer, Token).token
        except BROKEN as error:
            raise _failed(endpoint, error) from None

    async def _exchange(self, connection: EtcdConnection, path: str, body: dict[str, Any], kind: type[T]) -> T:
        """Send a request and return its answer, from a member that is not older than an earlier answer."""
        term, revision = self._raft_term, self._revision
        status, data = await self._converse(connection, path, body, self._token)
        if status != OK:
            raise Refused(connection.endpoint, status, error_text(data))
        answer = decoded(data, kind)
        if isinstance(answer, Answer):
            self._guard(connection.endpoint, answer.header, term, revision)
        return answer

    async def _converse(
        self, connection: EtcdConnection, path: str, body: dict[str, Any], token: str
    ) -> tuple[int, bytes]:
        began_s = trio.current_time()
        try:
            with trio.fail_after(self._settings.attempt_s):
                await connection.send(path, msgspec.json.encode(body), token)
                status, data = await connection.receive()
        except BaseException as error:
            if isinstance(error, BROKEN):
                self.traffic.ended(trio.current_time() - began_s, str(_failed(connection.endpoint, error)))
            await connection.close()
            raise
        failure = "" if status == OK else str(Refused(connection.endpoint, status, error_text(data)))
        self.traffic.ended(trio.current_time() - began_s, failure)
        if connection.is_usable and len(self._idle) < IDLE_CONNECTIONS_MAX:
            self._idle.append(connection)
        else:
            await connection.close()
        return status, data

    def _guard(self, endpoint: str, header: Header, term: int, revision: int) -> None:
        """Reject a member that is older than an answer before the request; remember its term and revision."""
        self.check_cluster(endpoint, header)
        if header.raft_term < term or header.revision < revision:
            raise StaleMember(
                f"{endpoint} shows revision {header.revision} in term {header.raft_term}, and revision {revision} in "
                f"term {term} was there before: it is cut off, or has old data"
            )
        self._raft_term = max(self._raft_term, header.raft_term)
        self._revision = max(self._revision, header.revision)

    def check_cluster(self, endpoint: str, header: Header) -> None:
        """Reject a member that belongs to another cluster than the member that answered first."""
        if self._cluster_id is None:
            self._cluster_id = header.cluster_id
        elif self._cluster_id != header.cluster_id:
            raise StaleMember(
                f"{endpoint} belongs to the cluster {header.cluster_id:x}, and not to {self._cluster_id:x} as before"
            )

    # --- for watches ------------------------------------------------------------------------------------------------

    @property
    def endpoints(self) -> Sequence[str]:
        """All endpoints."""
        return self._endpoints

    async def token(self, endpoint: str) -> str:
        """Return the token for a request, empty when none is needed."""
        if self._settings.user and not self._token:
            await self._log_in(endpoint)
        return self._token

    def forget_token(self) -> None:
        """Log in again before the next request."""
        self._token = ""

    @property
    def attempt_s(self) -> float:
        """How long one endpoint has for one answer."""
        return self._settings.attempt_s


def _checked(endpoint: str) -> str:
    """Return an endpoint if it is valid; the error does not quote an invalid one, since it may hold a password."""
    url = urlsplit(endpoint)
    try:
        port = url.port
    except ValueError:
        port = 0
    if url.scheme not in ("http", "https") or not url.hostname or "@" in url.netloc or port == 0:
        raise ValueError("an endpoint of etcd is http://HOST:PORT or https://HOST:PORT")
    return f"{url.scheme}://{url.netloc}"


def _is_final(error: Exception) -> bool:
    """Tell whether every member would refuse a read in this way."""
    return isinstance(error, Refused) and error.status < _SERVER_FAULT and not error.is_old_token


def _failed(endpoint: str, error: BaseException) -> EtcdError:
    if isinstance(error, EtcdError):
        return error
    return EtcdError(f"{endpoint}: {_words(error)[:SHOWN_CHARACTERS]}")


def _words(error: BaseException) -> str:
    """Return a description of the error, for an operator."""
    if isinstance(error, trio.TooSlowError):
        return "no answer in time"
    if isinstance(error, h11.ProtocolError):
        return "it hangs up, or does not speak HTTP; with TLS write https:// in the setting etcd"
    cause = error if isinstance(error, ssl.SSLError) else error.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return _UNVERIFIED.get(cause.verify_code, f"its certificate cannot be verified: {cause.verify_message}")
    if isinstance(cause, ssl.SSLError):
        reason = (cause.reason or str(cause)).lower().replace("_", " ")
        if "alert" in reason:
            return f"it does not take the certificate of this node, or wants one (etcd_certificate): {reason}"
        if reason in ("wrong version number", "record layer failure"):
            return "it does not use TLS: write http:// in the setting etcd"
        return f"TLS fails: {reason}"
    if isinstance(cause, BaseExceptionGroup):  # the host has several addresses, and each has failed
        cause = cause.exceptions[0]
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(error) or type(error).__name__
