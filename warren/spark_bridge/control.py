"""The broker's HTTP API for reading and writing many messages at a time, over one connection that is kept alive.

1. All calls may be repeated, as `api_connection` does it, except `make_snapshot`: doing them twice is the same as once,
   by the broker's rules (claims are adopted, a known commit is a duplicate).
2. A client can be pickled: its connection is left out, and another is opened when it is needed.
3. The password is not in any message or `repr`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from warren.spark_bridge.api_connection import ApiConnection, ClientTls, Object
from warren.spark_bridge.bridge_errors import (
    Ahead,
    AnotherQueue,
    BridgeError,
    BrokerError,
    DamagedChunk,
    DataLoss,
    Diverged,
    Fenced,
    Gone,
    NoDrain,
    NoSnapshot,
    NotAllowed,
    NotFound,
    Refused,
    Unreachable,
)
from warren.spark_bridge.columns import Chunk, let_go, read_chunks
from warren.spark_bridge.lives import Lives, id_at

__all__ = ["Ahead", "AnotherQueue", "BridgeError", "BrokerClient", "BrokerError", "Claim", "Committed", "DamagedChunk"]
__all__ += ["DataLoss", "Description", "Diverged", "Failed", "Fenced", "Gone", "NoDrain", "NoSnapshot", "NotAllowed"]
__all__ += ["DrainSession", "NotFound", "RangeCuts", "Refused", "Snapshot", "Unreachable"]
DEFAULT_URL: Final = "http://127.0.0.1:15672"
NO_DATA_LISTENER: Final = "no_data_listener"
NEXT_HEADER: Final = "X-Warren-Next"
PIECE_BYTES: Final = 64 << 20
SNAPSHOT_LINE_S: Final = 600.0
BUSY_PAUSE_S: Final = 2.0


class Description(NamedTuple):
    """A queue. `id`: another one when the queue was deleted and created again; [first, end): its offsets.

    Messages before `sealed` can also be read from `nodes`, which are URLs (``nodes.py``).
    `lives`: which lives of the broker have written which offsets; None: the broker does not say.
    `type`: stream, classic, quorum or super-stream; `partitions`: the names of the streams of a super stream.
    """

    vhost: str
    name: str
    type: str
    id: str
    first: int
    end: int
    bytes: int
    messages: int
    partitions: tuple[str, ...] | None = None
    sealed: int = 0
    nodes: tuple[str, ...] = ()
    lives: Lives | None = None

    def id_at(self, offset: int) -> str:
        """Return the id to ask by for a range that ends at `offset`."""
        return id_at(self.id, None if self.lives is None else self.lives.at(offset))


class RangeCuts(NamedTuple):
    """Where a range of offsets can be cut: piece n is [bounds[n], bounds[n + 1]) and has about bytes[n] bytes.

    Messages before `sealed` can also be read from `nodes`.
    """

    id: str
    first: int
    end: int
    bounds: tuple[int, ...]
    bytes: tuple[int, ...]
    sealed: int = 0
    nodes: tuple[str, ...] = ()


class DataToken(NamedTuple):
    """The credentials of a task for its queue, at the listener of data alone at `url`."""

    token: str
    url: str


class SealedChunk(NamedTuple):
    """A chunk of the offsets [first, end) in a file: `bytes` from `position` on."""

    first: int
    end: int
    file: str
    position: int
    bytes: int


class SealedFiles(NamedTuple):
    """Chunks that lie in files below `directory`. `boot`: of which run of which machine; `inodes`: device and inode."""

    boot: str
    directory: str
    inodes: Mapping[str, tuple[int, int]]
    chunks: tuple[SealedChunk, ...]


class Snapshot(NamedTuple):
    """A frozen copy of a queue, with the offsets [0, end), which may still be in the making.

    `end` is not below the number of its rows. Offsets that it does not have come as if compaction had removed them.
    `failure`: why it cannot be read; None: it can.
    """

    snapshot: str
    id: str
    first: int
    end: int
    bytes: int
    expires_at: Any
    failure: str | None = None


class DrainSession(NamedTuple):
    """An open drain: claimed and not acked are the offsets [first, end) of the queue `queue`.

    `lives`: which lives of the broker have claimed which offsets; None: the broker does not say. `acked`: up to where
    readers have acknowledged claims; those from there up to `first` were released. None: it is not known.
    `life`: of the broker, which gave the epoch; None: the broker does not say.
    """

    epoch: int
    queue: str
    id: str
    first: int
    end: int
    lives: Lives | None = None
    acked: int | None = None
    life: str | None = None

    def coming_again(self, base: int, end: int) -> int:
        """Return how many claims from `base` up to `end` were released, and so come again under other numbers."""
        acked = self.first if self.acked is None else self.acked
        return max(0, min(self.first, end) - max(acked, base))


class Claim(NamedTuple):
    """The claims: the offsets [first, end); nothing was ready when they are equal.

    `first` is larger than the requested one only when claims have been released: those offsets will never exist.
    `life`: the life of the broker that has claimed the last one; None: the broker does not say.
    """

    first: int
    end: int
    life: str | None = None


class Failed(NamedTuple):
    """How often a reader has failed with a batch of claims, and how often its queue allows it; None: without end."""

    times: int
    limit: int | None


class Committed(NamedTuple):
    """The result of a commit of stages."""

    committed: bool
    duplicate: bool
    messages: int
    unroutable: int


class BrokerClient(ApiConnection):
    """One user in one vhost of a broker. Not for use by several threads at once.

    `url`: of the management API, ``http://HOST:PORT`` or https; user and password may stand in it. `cacert`: a file
    with the CAs to trust, `certificate` and `key` files to prove who we are, `insecure`: take any certificate. `token`:
    instead of user and password, for the listener of data alone at `url`.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        username: str | None = None,
        password: str | None = None,
        *,
        vhost: str = "/",
        cacert: str | None = None,
        certificate: str | None = None,
        key: str | None = None,
        insecure: bool = False,
        token: str | None = None,
        connect_timeout_s: float = 10.0,
        timeout_s: float = 60.0,
        retries: int = 5,
        backoff_s: float = 0.2,
    ) -> None:
        super().__init__(
            url,
            username,
            password,
            token=token,
            tls=ClientTls(cacert, certificate, key, insecure),
            connect_timeout_s=connect_timeout_s,
            timeout_s=timeout_s,
            retries=retries,
            backoff_s=backoff_s,
        )
        self.vhost = vhost
        self._tokens: dict[str, tuple[float, DataToken]] = {}
        self._has_data_listener = True  # as far as is known

    def __repr__(self) -> str:
        return f"BrokerClient({self.url!r}, {self.username!r}, vhost={self.vhost!r})"

    def with_token(self, token: DataToken) -> BrokerClient:
        """Return a client of the listener of data alone, which knows neither user nor password."""
        return BrokerClient(
            token.url,
            "",
            "",
            vhost=self.vhost,
            **self._tls._asdict(),
            token=token.token,
            connect_timeout_s=self._connect_timeout_s,
            timeout_s=self._timeout_s,
            retries=self._retries,
            backoff_s=self._backoff_s,
        )

    # --- reading -------------------------------------------------------------------------------------------------

    def describe(self, queue: str) -> Description:
        """Return the type of `queue` and its offsets."""
        try:
            return self._description(self._object("GET", ("warren", "data", self.vhost, queue)))
        except NotFound as error:
            if error.status != 404:  # a broker that does not know the call
                raise
            raise NotFound(f"no queue {queue!r} in vhost {self.vhost!r}", error.status, error.error) from None

    def _description(self, found: Object) -> Description:
        return self._made(
            lambda: Description(
                vhost=str(found["vhost"]),
                name=str(found["name"]),
                type=str(found["type"]),
                id=str(found.get("id") or ""),
                first=int(found.get("first") or 0),
                end=int(found.get("end") or 0),
                bytes=int(found.get("bytes") or 0),
                messages=int(found.get("messages") or 0),
                partitions=None if found.get("partitions") is None else tuple(map(str, found["partitions"])),
                sealed=int(found.get("sealed") or 0),
                nodes=tuple(map(str, found.get("nodes") or ())),
                lives=_maybe_lives(found),
            )
        )

    def plan(
        self,
        queue: str,
        first: int,
        end: int,
        id: str,
        *,
        max_rows: int | None = None,
        max_bytes: int | None = None,
        piece_bytes: int = PIECE_BYTES,
        snapshot: str | None = None,
    ) -> RangeCuts:
        """Return where [first, end) of `queue` can be cut into pieces of about `piece_bytes`.

        With `max_rows` or `max_bytes` the plan may end before `end`, after one row at least.
        """
        body: Object = {"from": first, "to": end, "id": id, "max_rows": max_rows, "max_bytes": max_bytes}
        body["piece_bytes"] = piece_bytes
        if snapshot is not None:
            body["snapshot"] = snapshot
        found = self._object("POST", ("warren", "data", self.vhost, queue, "plan"), body)
        return self._made(
            lambda: RangeCuts(
                id=str(found["id"]),
                first=int(found["first"]),
                end=int(found["end"]),
                bounds=tuple(map(int, found["bounds"])),
                bytes=tuple(map(int, found["bytes"])),
                sealed=int(found.get("sealed") or 0),
                nodes=tuple(map(str, found.get("nodes") or ())),
            )
        )

    def chunks(
        self,
        queue: str,
        first: int,
        end: int,
        id: str,
        *,
        bodies: bool = True,
        properties: bool = True,
        snapshot: str | None = None,
    ) -> tuple[pa.Buffer, int]:
        """Return chunks that cover the offsets from `first` on, one after the other, and the offset where they end.

        The first chunk may begin before `first`, the last one reach beyond `end`. They may end at `first` itself, when
        retention is just removing that: the next call is answered with `Gone`.

        Raises:
            Gone: `first` is below the first offset. AnotherQueue: `id` is not that of the queue.
        """
        columns = ",".join(["bodies"] * bodies + ["properties"] * properties)
        query = {"from": str(first), "to": str(end), "id": id, "columns": columns}
        if snapshot is not None:
            query["snapshot"] = snapshot
        headers, data = self._send("GET", ("warren", "data", self.vhost, queue, "chunks"), query=query, binary=True)
        try:
            reached = int(headers[NEXT_HEADER.lower()])
        except (KeyError, ValueError):
            raise self._unlike(f"an answer with messages has no {NEXT_HEADER}") from None
        if reached < first:
            raise self._unlike(f"asked for the offsets from {first} to {end}, and they end at {reached}")
        return data, min(reached, end)

    def read(
        self,
        queue: str,
        first: int,
        end: int,
        id: str,
        *,
        bodies: bool = True,
        properties: bool = True,
        snapshot: str | None = None,
    ) -> Iterator[Chunk]:
        """Yield chunks that cover [first, end) without a gap; the outer ones may reach beyond it.

        An answer that came damaged is asked for again. Offsets that the broker itself does not have are missing within
        a chunk: it has fewer messages than offsets.

        Raises:
            DataLoss: the chunks leave out offsets. DamagedChunk: also when asked again.
        """
        pos = first
        while pos < end:
            attempt = 0
            while True:
                data, reached = self.chunks(
                    queue, pos, end, id, bodies=bodies, properties=properties, snapshot=snapshot
                )
                try:
                    found = list(read_chunks(data))
                except DamagedChunk:
                    if attempt >= self._retries:
                        raise
                else:
                    if reached > pos:
                        break
                    if snapshot is not None:
                        continue  # it is being made: the broker answers when there are more rows, or after a while
                    if attempt >= self._retries:
                        raise self._unlike(f"offset {pos} of {queue} does not come")
                self._pause(attempt, None)
                attempt += 1
            for chunk in let_go(found):
                if chunk.first > pos:
                    raise DataLoss(f"{queue}: the offsets from {pos} to {chunk.first} were left out")
                pos = max(pos, chunk.end)
                yield chunk
            if pos < reached:
                raise DataLoss(f"{queue}: the offsets from {pos} to {reached} were left out")

    def files(self, queue: str, first: int, end: int, id: str) -> SealedFiles:
        """Return where on the broker's machine the chunks of [first, end) lie that are in files; see `SealedFiles`."""
        query = {"from": str(first), "to": str(end), "id": id}
        found = self._json("GET", ("warren", "data", self.vhost, queue, "files"), query=query)
        return self._made(
            lambda: SealedFiles(
                boot=str(found.get("boot") or ""),
                directory=str(found["directory"]),
                inodes={str(name): (int(each[0]), int(each[1])) for name, each in found.get("files", {}).items()},
                chunks=tuple(
                    SealedChunk(int(first), int(end), str(file), int(position), int(size))
                    for first, end, file, position, size in found["chunks"]
                ),
            )
        )

    def maybe_token(self, queue: str, ttl_s: int, url: str | None = None) -> DataToken | None:
        """Return a token to read `queue` with, valid for half of `ttl_s` at least; None: without a listener for it.

        `url`: of the listener; None: its port on the host of this client, with TLS if this client has that.
        """
        if not self._has_data_listener:
            return None
        now = time.monotonic()
        ends, token = self._tokens.get(queue, (now, None))
        if token is not None and now < ends:
            return token
        try:
            found = self._object("POST", ("warren", "data", self.vhost, queue, "token"), {"ttl_s": ttl_s})
        except NotFound as error:  # also if the queue does not exist: the reader of the queue gets that error
            self._has_data_listener = error.error != NO_DATA_LISTENER
            return None
        ports = found.get("ports")
        if not isinstance(ports, dict):
            raise self._unlike("an answer with a token has no ports")
        if url is None:
            # A client with TLS uses the listener with TLS only.
            name = "datas" if self._secure or "data" not in ports else "data"
            if name not in ports:
                self._has_data_listener = False
                return None
            host = f"[{self._host}]" if ":" in self._host else self._host
            url = f"{'https' if name == 'datas' else 'http'}://{host}:{ports[name]}"
        made = self._made(lambda: DataToken(str(found["token"]), url))
        self._tokens[queue] = (now + ttl_s / 2, made)
        return made

    def resolve(self, queue: str, offset: int | str | None = None, *, time_ms: int | None = None) -> int:
        """Return the offset in a stream that a word (first, last, next, an age such as 1h) or a time stands for."""
        body: Object = {"offset": offset} if time_ms is None else {"time_ms": time_ms}
        found = self._object("POST", ("warren", "streams", self.vhost, queue, "offset"), body)
        return self._made(lambda: int(found["offset"]))

    def store_offset(self, queue: str, group: str, offset: int, life: str | None = None) -> None:
        """Report to the broker that the consumer group `group` of a stream has come to `offset`.

        `life`: the life of the broker that has written the last message below it.

        Raises:
            Diverged: the broker has another history than that.
        """
        raw = json.dumps({"offset": offset} if life is None else {"offset": offset, "life": life}).encode()
        self._send("PUT", ("warren", "streams", self.vhost, queue, "groups", group), raw=raw, is_json=True)

    def descriptions(self) -> list[Description]:
        """Return the descriptions of all queues of the vhost that the user may read, super streams among them."""
        found = self._list("GET", ("warren", "data", self.vhost))
        return [self._description(item) for item in found]

    def queue_names(self) -> list[str]:
        """Return the names of all queues of the vhost that the user may read, in order."""
        return sorted(found.name for found in self.descriptions())

    # --- snapshots -----------------------------------------------------------------------------------------------

    def make_snapshot(self, queue: str, *, ttl_s: int = 3600, unacked: bool = False) -> Snapshot:
        """Make a snapshot of the current messages of `queue` in the broker, and return it when it is begun.

        While others are being made it is waited for, as long as `SNAPSHOT_LINE_S`.

        Raises:
            Refused: the queue is a stream, or the disk is too full.
        """
        body = {"ttl_s": ttl_s, "unacked": unacked, "wait_s": 0}
        give_up_s = time.monotonic() + SNAPSHOT_LINE_S
        while True:
            try:
                # Not repeated when it is unknown whether it was begun: it could be made twice.
                found = self._object("POST", ("warren", "snapshots", self.vhost, queue), body, repeat=False)
                return self._snapshot(found)
            except Unreachable as error:
                if error.error != "busy" or time.monotonic() >= give_up_s:
                    raise
            self._pause(0, BUSY_PAUSE_S)

    def snapshot(self, queue: str, snapshot: str) -> Snapshot:
        """Return an existing snapshot."""
        return self._snapshot(self._object("GET", ("warren", "snapshots", self.vhost, queue, snapshot)))

    def snapshots(self) -> list[Object]:
        """Return the snapshots of the vhost, as the broker lists them."""
        return self._list("GET", ("warren", "snapshots", self.vhost))

    def delete_snapshot(self, queue: str, snapshot: str) -> None:
        """Delete a snapshot; it need not exist any longer."""
        try:
            self._send("DELETE", ("warren", "snapshots", self.vhost, queue, snapshot))
        except NotFound:
            pass

    def _snapshot(self, found: Object) -> Snapshot:
        return self._made(
            lambda: Snapshot(
                snapshot=str(found["snapshot"]),
                id=str(found["id"]),
                first=int(found["first"]),
                end=int(found["most"] if found["end"] is None else found["end"]),
                bytes=int(found["bytes"]),
                expires_at=found.get("expires_at"),
                failure=str(found.get("reason") or "it failed") if found.get("state") == "failed" else None,
            )
        )

    # --- drains --------------------------------------------------------------------------------------------------

    def open_drain(
        self,
        queue: str,
        name: str,
        owner: str = "",
        *,
        lease_s: int | None = None,
        before: tuple[int, str] | None = None,
    ) -> DrainSession:
        """Open the session `name` of `queue`, or take it over; its previous owner is `Fenced` from now on.

        `lease_s`: its claims go back if the session makes no call for that long; None: never. `before`: epoch and life
        of the last session with which the caller has drained the queue.

        Raises:
            Diverged: the session is new, and the broker does not know the one before.
        """
        body: Object = {"owner": owner, "lease_s": lease_s}
        if before is not None:
            body["before"] = dict(zip(("epoch", "life"), before, strict=True))
        found = self._object("POST", ("warren", "drains", self.vhost, queue, name, "open"), body)
        return self._made(
            lambda: DrainSession(
                epoch=int(found["epoch"]),
                queue=str(found["queue"]),
                id=str(found["id"]),
                first=int(found["first"]),
                end=int(found["end"]),
                lives=_maybe_lives(found),
                acked=None if found.get("acked") is None else int(found["acked"]),
                life=None if found.get("life") is None else str(found["life"]),
            )
        )

    def claim(
        self,
        queue: str,
        name: str,
        epoch: int,
        after: int,
        max_rows: int,
        *,
        max_bytes: int | None = None,
        until: int | None = None,
        life: str | None = None,
    ) -> Claim:
        """Ack the claims below `after` for good, claim the next messages, and return their range.

        `until`: a mark; messages that came into the queue after it are not claimed. `life`: the life of the broker that
        claimed the last offset below `after`.

        Raises:
            Fenced: another one has opened the session. Ahead: the broker does not know `after`. Diverged: it has
                claimed other messages there.
        """
        body: Object = {"epoch": epoch, "after": after, "max_rows": max_rows, "max_bytes": max_bytes, "until": until}
        if life is not None:
            body["life"] = life
        found = self._object("POST", ("warren", "drains", self.vhost, queue, name, "claim"), body)
        told = found.get("life")
        return self._made(
            lambda: Claim(int(found.get("first", after)), int(found["end"]), None if told is None else str(told))
        )

    def mark(self, queue: str, name: str, epoch: int) -> int:
        """Return a mark of where the queue ends now; it means nothing but to `claim`."""
        found = self._object("POST", ("warren", "drains", self.vhost, queue, name, "mark"), {"epoch": epoch})
        return self._made(lambda: int(found["mark"]))

    def settle(
        self,
        queue: str,
        name: str,
        id: str,
        ranges: Sequence[tuple[int, int]],
        how: str,
        *,
        delay_ms: int | None = None,
        epoch: int | None = None,
    ) -> None:
        """Decide how claims are settled once they are acknowledged: `how` is ack, dead_letter or requeue.

        `id`: of the queue of the claims. `delay_ms`: of requeue, None: the queue's own delay. `epoch` None: any.

        Raises:
            AnotherQueue: the session was deleted, and opened again. Fenced: another reader has opened it.
        """
        body: Object = {"id": id, "ranges": list(ranges), "how": how, "delay_ms": delay_ms}
        if epoch is not None:
            body["epoch"] = epoch
        self._object("POST", ("warren", "drains", self.vhost, queue, name, "settle"), body)

    def fail(self, queue: str, name: str, epoch: int, first: int, end: int) -> Failed:
        """Count a failure with a batch of claims, once in an epoch."""
        body = {"epoch": epoch, "first": first, "end": end}
        found = self._object("POST", ("warren", "drains", self.vhost, queue, name, "fail"), body)
        return self._made(
            lambda: Failed(int(found["times"]), None if found.get("limit") is None else int(found["limit"]))
        )

    def release(self, queue: str, name: str, epoch: int | None = None) -> int:
        """Give claims back to the queue, and return their number; without `epoch` as an operator."""
        found = self._object("POST", ("warren", "drains", self.vhost, queue, name, "release"), {"epoch": epoch})
        return self._made(lambda: int(found["released"]))

    def drains(self) -> list[Object]:
        """Return the sessions of the vhost, as the broker lists them."""
        return self._list("GET", ("warren", "drains", self.vhost))

    def drain(self, queue: str, name: str) -> Object:
        """Return one session, as the broker describes it."""
        return self._object("GET", ("warren", "drains", self.vhost, queue, name))

    def delete_drain(self, queue: str, name: str, epoch: int) -> None:
        """Forget a session without claims; it need not exist any longer.

        Raises:
            Fenced: another reader has opened it.
        """
        try:
            self._send("DELETE", ("warren", "drains", self.vhost, queue, name), query={"epoch": str(epoch)})
        except NotFound:
            pass

    # --- stages --------------------------------------------------------------------------------------------------

    def put_stage(self, stage: str, part: int, frames: bytes | bytearray | memoryview) -> None:
        """Store `frames`, messages as AMQP frames on channel 1, as a part of `stage`; the same part replaces it."""
        self._send("PUT", ("warren", "stages", self.vhost, stage, str(part)), raw=bytes(frames))

    def commit_stages(
        self,
        query: str,
        batch: int,
        stages: Sequence[str],
        *,
        mandatory: bool = True,
        kept_s: int | None = None,
        supersedes: str | None = None,
        compare: bool = False,
        follows: bool = False,
        purge: str | None = None,
    ) -> Committed:
        """Publish all of `stages` at once, unless batch `batch` of `query` was published before.

        `kept_s`: how long the broker has to remember that it was; None: as long as it can. `supersedes`: stages whose
        names begin with this are no longer needed. `compare`: the number of messages decides, too, whether the batch
        was published before. `follows`: the broker has to know an earlier batch of the query. `purge`: a queue whose
        waiting messages they replace.

        Raises:
            Refused: ``other_batch``: a batch of this number was published before with another number of messages.
                ``missing_batches``: earlier ones are not known.
            NotFound: the broker is too old to replace messages; nothing was done.
        """
        body: Object = {"query": query, "batch": batch, "stages": list(stages), "mandatory": mandatory}
        if supersedes is not None:
            body["supersedes"] = supersedes
        if compare:
            body["compare"] = True
        if follows:
            body["follows"] = True
        if kept_s is not None:
            body["kept_s"] = kept_s
        if purge is not None:
            body["purge"] = purge
        # Two routes: an older broker would commit, and ignore a field that it does not know.
        route = "commit" if purge is None else "replace"
        found = self._object("POST", ("warren", "stages", self.vhost, route), body)
        return self._made(
            lambda: Committed(
                committed=bool(found["committed"]),
                duplicate=bool(found.get("duplicate", False)),
                messages=int(found.get("messages", 0)),
                unroutable=int(found.get("unroutable", 0)),
            )
        )

    def delete_stage(self, stage: str) -> None:
        """Delete a stage; it need not exist any longer."""
        try:
            self._send("DELETE", ("warren", "stages", self.vhost, stage))
        except NotFound:
            pass

    def purge(self, queue: str) -> None:
        """Delete the waiting messages of `queue`."""
        self._send("DELETE", ("queues", self.vhost, queue, "contents"))


def _maybe_lives(found: Object) -> Lives | None:
    """Return the lives that a description has, if it has any."""
    lives = found.get("lives")
    if lives is None:
        return None
    return Lives([(str(life), int(first)) for life, first in lives], int(found.get("end") or 0))
