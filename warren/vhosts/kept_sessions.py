"""Sessions of clients that outlive their connections: which exist, how long, and their messages under way.

A protocol whose clients resume sessions derives from `KeptSessions`. The subscriptions are queues and their bindings.
The rest is here, in records of the vhost (`vhosts.records`). Each record is in one frame of the log with the change it
was stored with.

    record                     value
    "session:" NAME            expiry in s (4), notes of the protocol
    "session-will:" NAME       due, in ms since the epoch (8), will as the protocol writes it
    "session-in:" ID NAME      crc of the message (4), or nothing    ID: a packet id of the client, 4 hex digits
    "session-out:" ID NAME     (nothing)    ID: a packet id of ours

1. A session that ends with its connection has no record. It is here as long as its client is connected.
2. ``received`` has the packet ids of messages that the broker has taken over, and that the client may send again: for
   exactly once they must not be taken over again. ``released`` has the packet ids of messages that the client has, and
   that must not be sent to it again. Packet ids received in an earlier life of the broker are in ``earlier`` as well.
   If a backup was restored, the client may have progressed beyond it, and use such a packet id for another message.
   That message has another crc, and is taken over. The client's own statement that it sends a message again does not
   help: paho-mqtt leaves it out after two failed tries to reconnect.
3. If its client does not resume a session, the session ends when its expiry is over. The expiry counts from the end of
   the connection, or from the start of the broker, whichever is later. A waiting will is published at its time, or at
   the end of the session, whichever is earlier. If the broker is not running at that time, it is published at the next
   start.
4. Sessions, packet ids and wills of a vhost are bounded (`SESSIONS_MAX`, `IDS_MAX`, `WILL_BYTES_MAX`), and one user
   cannot take all of them (`vhosts.user_shares`). A session belongs to the user who has connected last.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mypy_extensions import i64

from warren.msgstore.log.message_log import MessageLog
from warren.queues.long_work import Steps
from warren.queues.timers import NEVER, Timer, TimerQueue
from warren.vhosts.records import VhostRecords
from warren.vhosts.user_shares import UserShares

SESSIONS_MAX: Final = 150_000
IDS_MAX: Final = 350_000
WILL_BYTES_MAX: Final = 96 << 20
_SESSION: Final = "session:"
_WILL: Final = "session-will:"
_IN: Final = "session-in:"
_OUT: Final = "session-out:"
_OF_SESSIONS: Final = (_WILL, _IN, _OUT)
_ID_DIGITS: Final = 4
READ_AT_ONCE: Final = 500


class KeptSession(Timer):
    """One session, whether its client is connected or not. `name`: that of the client."""

    def __init__(self, owner: KeptSessions, name: str) -> None:
        super().__init__()
        self.name = name
        self.user = ""
        self.expiry_s: int = 0  # how long it outlives its connection
        self.notes = b""  # written by the protocol
        self.is_connected: bool = False
        self.received: dict[int, None] = _NONE
        self.earlier: dict[int, int] = _NO_CRCS  # received in an earlier life: the crc of each message; -1: not known
        self.released: dict[int, None] = _NONE
        self.will = b""  # b"": no will waits
        self.will_ms: i64 = NEVER
        self.ends_ms: i64 = NEVER
        self.stored: bytes | None = None  # the value of its record
        self.owner: KeptSessions | None = owner  # None: it has ended

    def due(self, now_ms: i64) -> None:
        owner = self.owner
        if owner is not None:
            owner.time_has_come(self, now_ms)


_NONE: Final[dict[int, None]] = {}  # shared by all sessions without packet ids: never changed
_NO_CRCS: Final[dict[int, int]] = {}  # shared by all sessions without earlier ids: never changed


class KeptSessions:
    """The sessions of one vhost, by name. Make it after the vhost's records are read, and call `read` first."""

    def __init__(self, records: VhostRecords, log: MessageLog, timers: TimerQueue) -> None:
        self.sessions: dict[str, KeptSession] = {}
        self.session_shares = UserShares(SESSIONS_MAX)
        self.id_shares = UserShares(IDS_MAX)  # for received and released packet ids
        self.will_shares = UserShares(WILL_BYTES_MAX)
        self._records = records
        self._log = log
        self._timers = timers

    @property
    def ids(self) -> int:
        """The number of packet ids that are remembered."""
        return self.id_shares.total

    @property
    def will_bytes(self) -> int:
        """The size of the wills that wait."""
        return self.will_shares.total

    # --- what a protocol overrides ----------------------------------------------------------------------------------

    def user_of(self, notes: bytes) -> str:
        """Return the user of the session that has these notes."""
        return ""

    def session_found(self, session: KeptSession) -> None:
        """Restore the protocol's own state from the notes of a session that an earlier process has left."""

    def publish_will(self, session: KeptSession, will: bytes) -> None:
        """Publish a will whose time has come."""
        raise AssertionError("overridden")

    def session_over(self, session: KeptSession) -> None:
        """Release the protocol's own objects of a session that its client did not resume. It is removed afterwards."""
        raise AssertionError("overridden")

    # --- life -------------------------------------------------------------------------------------------------------

    def read(self) -> Iterator[None]:
        """Restore the sessions from their records; yield None after each piece. `set_timers` follows."""
        records = self._records
        assert not records.is_restoring
        names = records.names()
        rest: list[str] = []
        for at, name in enumerate(names):
            if at % READ_AT_ONCE == READ_AT_ONCE - 1:
                yield
            if not name.startswith(_SESSION):
                if name.startswith(_OF_SESSIONS):
                    rest.append(name)
                continue
            value = records.maybe_value(name)
            if value is not None:
                self._session_found(name[len(_SESSION) :], value)
        for at, name in enumerate(rest):
            if at % READ_AT_ONCE == READ_AT_ONCE - 1:
                yield
            value = records.maybe_value(name)
            if value is not None:
                self._part_found(name, value)

    def _session_found(self, name: str, value: bytes) -> None:
        session = KeptSession(self, name)
        session.expiry_s = int.from_bytes(value[:4], "big")
        session.notes = value[4:]
        session.user = self.user_of(session.notes)
        self.session_shares.add(session.user, 1)
        session.stored = value
        session.ends_ms = self._log.now_ms + session.expiry_s * 1000
        self.sessions[name] = session
        self.session_found(session)

    def _part_found(self, name: str, value: bytes) -> None:
        """Restore a will, or a packet id."""
        if name.startswith(_WILL):
            found = self.sessions.get(name[len(_WILL) :])
            if found is not None:
                found.will = value[8:]
                found.will_ms = int.from_bytes(value[:8], "big")
                self.will_shares.add(found.user, len(found.will))
            return
        prefix = _IN if name.startswith(_IN) else _OUT
        at = len(prefix) + _ID_DIGITS
        found = self.sessions.get(name[at:])
        if found is None:
            return
        packet_id = int(name[len(prefix) : at], 16)
        self._add(found, prefix, packet_id)
        if prefix == _IN:
            if found.earlier is _NO_CRCS:
                found.earlier = {}
            found.earlier[packet_id] = int.from_bytes(value, "big") if value else -1

    def set_timers(self) -> Iterator[None]:
        """Set the timers of the sessions that were read; yield None after each piece."""
        for at, session in enumerate(list(self.sessions.values())):
            if at % READ_AT_ONCE == READ_AT_ONCE - 1:
                yield
            if session.owner is not None:
                self._set_timer(session)

    def has_room(self, name: str, user: str) -> bool:
        """Tell whether `user` may have a session called `name`."""
        return name in self.sessions or self.session_shares.allows(user, 1)

    def take_up(self, name: str, user: str) -> KeptSession:
        """Return the session called `name`, an existing one or a new one; its client is connected from now on."""
        session = self.sessions.get(name)
        if session is None:
            session = KeptSession(self, name)
            session.user = user
            self.sessions[name] = session
            self.session_shares.add(user, 1)
        elif session.user != user:
            self._hand_over(session, user)
        session.is_connected = True
        session.ends_ms = NEVER
        self._set_timer(session)
        return session

    def _hand_over(self, session: KeptSession, user: str) -> None:
        """Count a session for `user`, who has connected to it, and no longer for the previous user."""
        ids = len(session.received) + len(session.released)
        for shares, amount in (
            (self.session_shares, 1),
            (self.id_shares, ids),
            (self.will_shares, len(session.will)),
        ):
            shares.add(session.user, -amount)
            shares.add(user, amount)
        session.user = user

    def keep(self, session: KeptSession, expiry_s: int, notes: bytes) -> bool:
        """Keep the session `expiry_s` past its connection, with `notes`; True if something was stored for it."""
        session.expiry_s = expiry_s
        session.notes = notes
        if expiry_s == 0:
            if session.stored is not None:
                self._forget_records(session)
            return False
        value = expiry_s.to_bytes(4, "big") + notes
        if value == session.stored:
            return False
        if session.stored is None:
            for packet_id in session.received:
                self._records.store(_record(_IN, packet_id, session.name), b"")
            for packet_id in session.released:
                self._records.store(_record(_OUT, packet_id, session.name), b"")
        self._records.store(_SESSION + session.name, value)
        session.stored = value
        return True

    def leave(self, session: KeptSession) -> None:
        """Note that the client has gone. From now on its session expires."""
        if session.owner is None:
            return
        session.is_connected = False
        session.ends_ms = self._log.now_ms + session.expiry_s * 1000
        self._set_timer(session)

    def end(self, session: KeptSession) -> None:
        """Remove the session and all of its records. A waiting will is published."""
        if session.owner is None:
            return
        will = self.take_will(session)
        if session.stored is not None:
            self._forget_records(session)
        self.id_shares.add(session.user, -len(session.received) - len(session.released))
        self.session_shares.add(session.user, -1)
        session.received = _NONE
        session.earlier = _NO_CRCS
        session.released = _NONE
        del self.sessions[session.name]
        self._timers.cancel(session)
        session.owner = None
        if will:
            self.publish_will(session, will)

    def _forget_records(self, session: KeptSession) -> None:
        records = self._records
        for packet_id in session.received:
            records.forget(_record(_IN, packet_id, session.name))
        for packet_id in session.released:
            records.forget(_record(_OUT, packet_id, session.name))
        records.forget(_SESSION + session.name)
        session.stored = None

    def forget(self, steps: Steps) -> bool:
        """Release the sessions of a deleted vhost until no steps are left; True when all are released."""
        while self.sessions:
            if steps.left <= 0:
                return False
            steps.left -= 1
            _, session = self.sessions.popitem()
            self._timers.cancel(session)
            session.owner = None
        return True

    def close(self) -> None:
        """Release everything else: the vhost is deleted."""

    # --- time -------------------------------------------------------------------------------------------------------

    def _set_timer(self, session: KeptSession) -> None:
        self._timers.cancel(session)
        at_ms: i64 = session.ends_ms
        if session.will_ms < at_ms:
            at_ms = session.will_ms
        if at_ms < NEVER:
            self._timers.at(at_ms, session)

    def time_has_come(self, session: KeptSession, now_ms: i64) -> None:
        """Do everything that is due for a session."""
        if session.ends_ms <= now_ms:
            self.session_over(session)
            self.end(session)
            return
        if session.will_ms <= now_ms:
            self.publish_will(session, self.take_will(session))
        self._set_timer(session)

    def delay_will(self, session: KeptSession, will: bytes, due_ms: i64) -> bool:
        """Keep a will for later; False when too many bytes wait already, or the session ends with its connection."""
        if session.stored is None or not self.will_shares.allows(session.user, len(will)):
            return False
        self.will_shares.add(session.user, len(will))
        session.will = will
        session.will_ms = due_ms
        self._records.store(_WILL + session.name, int(due_ms).to_bytes(8, "big") + will)
        self._set_timer(session)
        return True

    def take_will(self, session: KeptSession) -> bytes:
        """Take the waiting will out and return it; b"": no will waits."""
        will = session.will
        if will:
            session.will = b""
            session.will_ms = NEVER
            self.will_shares.add(session.user, -len(will))
            self._records.forget(_WILL + session.name)
            self._set_timer(session)
        return will

    # --- packet ids -------------------------------------------------------------------------------------------------

    def _add(self, session: KeptSession, kind: str, packet_id: int) -> None:
        self.id_shares.add(session.user, 1)
        if kind == _IN:
            if session.received is _NONE:
                session.received = {}
            session.received[packet_id] = None
        else:
            if session.released is _NONE:
                session.released = {}
            session.released[packet_id] = None

    def has_room_for_ids(self, session: KeptSession) -> bool:
        """Tell whether the user of the session may have one more packet id."""
        return self.id_shares.allows(session.user, 1)

    def receive(self, session: KeptSession, packet_id: int, crc: int) -> bool:
        """Remember that a message with this crc was taken over; True when that is stored."""
        self._add(session, _IN, packet_id)
        if session.stored is None:
            return False
        self._records.store(_record(_IN, packet_id, session.name), crc.to_bytes(4, "big"))
        return True

    def is_of_another(self, session: KeptSession, packet_id: int, crc: int) -> bool:
        """Tell whether a packet id was received in an earlier life, with a message that has another crc."""
        return session.earlier.get(packet_id, -1) not in (-1, crc)

    def forget_received(self, session: KeptSession, packet_id: int) -> bool:
        """Forget a received id: the client does not send it again. False when it was not received."""
        if packet_id not in session.received:
            return False
        if packet_id in session.earlier:
            del session.earlier[packet_id]
        del session.received[packet_id]
        if not session.received:
            session.received = _NONE
        self.id_shares.add(session.user, -1)
        if session.stored is not None:
            self._records.forget(_record(_IN, packet_id, session.name))
        return True

    def release(self, session: KeptSession, packet_id: int) -> None:
        """Remember that the client has a message."""
        self._add(session, _OUT, packet_id)
        if session.stored is not None:
            self._records.store(_record(_OUT, packet_id, session.name), b"")

    def complete(self, session: KeptSession, packet_id: int) -> bool:
        """Forget a released id: the client has forgotten it, too. False when it was not released."""
        if packet_id not in session.released:
            return False
        del session.released[packet_id]
        if not session.released:
            session.released = _NONE
        self.id_shares.add(session.user, -1)
        if session.stored is not None:
            self._records.forget(_record(_OUT, packet_id, session.name))
        return True

    def check_invariants(self) -> None:
        """Assert that memory and records agree. For tests."""
        stored = {name: each for name, each in self.sessions.items() if each.stored is not None}
        records = {name[len(_SESSION) :]: value for name, value in self._records.values(_SESSION)}
        assert records == {name: each.stored for name, each in stored.items()}
        wills = {name[len(_WILL) :]: value[8:] for name, value in self._records.values(_WILL)}
        assert wills == {name: each.will for name, each in stored.items() if each.will}
        ids_in = {name for name, _ in self._records.values(_IN)}
        assert ids_in == {_record(_IN, at, name) for name, each in stored.items() for at in each.received}
        ids_out = {name for name, _ in self._records.values(_OUT)}
        assert ids_out == {_record(_OUT, at, name) for name, each in stored.items() for at in each.released}
        assert self.ids == sum(len(each.received) + len(each.released) for each in self.sessions.values())
        assert self.will_bytes == sum(len(each.will) for each in self.sessions.values())
        assert self.session_shares.total == len(self.sessions)
        for shares in (self.session_shares, self.id_shares, self.will_shares):
            shares.check_invariants()
        assert not _NONE


def _record(kind: str, packet_id: int, name: str) -> str:
    return f"{kind}{packet_id:04x}{name}"
