"""Check a name and a password off the reactor, and tell an attacker nothing.

1. Every refused check looks the same: unknown user, wrong password, missing password, guest from another machine, too
   many attempts. Only the log tells the reason (`Authenticator.why_refused`). A check that hashes costs exactly one
   scrypt, whichever hash the user has.
2. At most `KDF_THREADS` hashes run at a time, in threads of their own. Waiting checks do not take threads.
3. A verified pair of name and password is remembered for `CACHE_S` after its last use, under a key that only this
   process can compute. The stored hash is part of the key: a changed password, like a deleted user, is not remembered.
   Equal checks that arrive together share one hash.
4. The right password is never refused. Failures are paid from three budgets: of the peer's network, of the user, and of
   the user from that network. While one is empty guesses are slow: their hashes have the turns of suspects
   (``hash_turns.py``), one at a time with a pause, and refusals are told later. A remembered pair does not wait. A
   login from a network where this user has logged in before does not wait behind others from there, nor behind guesses
   at the user from elsewhere. A hash that is cancelled counts as a failure.
5. A user in `LOOPBACK_ONLY` logs in from this machine only. The address of the accepted socket decides.
6. When a password fits a RabbitMQ hash, it is hashed with scrypt, and the new record is announced, before the check
   returns.

Source: RabbitMQ, "Access control" (loopback users), "Passwords".
"""

from __future__ import annotations

import hmac
import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import trio

from warren.server.logins.hash_turns import HashTurns, Share
from warren.server.logins.passwords import DUMMY_HASH, SCRYPT, PasswordHash, check_hash, hash_password, verify_password
from warren.server.logs import get_logger
from warren.server.network.peer_address import is_loopback, origin_of
from warren.server.threads import LOGINS, in_thread
from warren.vhosts.metadata import UserPut

LOOPBACK_ONLY: Final = frozenset({"guest"})
KDF_THREADS: Final = 2
CACHE_S: Final = 600.0
FAILURE_DELAY_S: Final = 1.0
SLOW_FACTOR: Final = 5.0  # how much later a suspect's refusal is sent
SUSPECT_PAUSE_S: Final = 0.1

_CACHE_ENTRIES_MAX: Final = 8192
_BUDGET_ENTRIES_MAX: Final = 8192
_PEER_BURST: Final = 20.0
_PEER_REFILL_PER_S: Final = 1.0
_USER_BURST: Final = 50.0
_USER_REFILL_PER_S: Final = 2.0

log = get_logger("authenticator")


class Users(Protocol):
    """Looks up user records by name."""

    def get(self, name: str, /) -> UserPut | None:
        """Return the current record, or None."""


class FailureBudget:
    """Failures allowed per key: `burst` at once, and `refill_per_s` more with time.

    Forgets the longest unused keys.
    """

    def __init__(self, *, burst: float, refill_per_s: float) -> None:
        self._burst = burst
        self._refill_per_s = refill_per_s
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def is_spent(self, key: str, now: float) -> bool:
        """Tell whether `key` has used up its failures."""
        return self._left_at(key, now) < 1.0

    def spend(self, key: str, now: float) -> None:
        """Take one failure from `key`."""
        self._left[key] = (max(0.0, self._left_at(key, now) - 1.0), now)
        self._left.move_to_end(key)
        if len(self._left) > _BUDGET_ENTRIES_MAX:
            self._left.popitem(last=False)

    def _left_at(self, key: str, now: float) -> float:
        left, since = self._left.get(key, (self._burst, now))
        return min(self._burst, left + (now - since) * self._refill_per_s)


@dataclass(slots=True)
class _Flight:
    """One hash being computed, and its answer for the checks that wait.

    None: the waiting checks have to compute for themselves.
    """

    answer: bool | None = None
    slowly: bool = False
    landed: trio.Event = field(default_factory=trio.Event)


class Authenticator:
    """Check passwords against the records of `users`.

    `on_upgrade` is called, in the trio thread, with the record that carries the new hash (6).
    """

    def __init__(
        self,
        users: Users,
        on_upgrade: Callable[[UserPut], None],
        *,
        failure_delay_s: float = FAILURE_DELAY_S,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self._users = users
        self._on_upgrade = on_upgrade
        self._failure_delay_s = failure_delay_s
        self._clock = clock
        self._turns = HashTurns(KDF_THREADS, self._is_suspect)
        self._cache_secret = os.urandom(32)
        self._verified_until: OrderedDict[bytes, float] = OrderedDict()
        self._flights: dict[bytes, _Flight] = {}
        self._peer_failures = FailureBudget(burst=_PEER_BURST, refill_per_s=_PEER_REFILL_PER_S)
        self._user_failures = FailureBudget(burst=_USER_BURST, refill_per_s=_USER_REFILL_PER_S)
        self._pair_failures = FailureBudget(burst=_PEER_BURST, refill_per_s=_PEER_REFILL_PER_S)
        self._known_peers: OrderedDict[tuple[str, str], None] = OrderedDict()

    async def check(self, user: str, password: bytes, peer_address: str) -> bool:
        """Tell whether `password` opens `user` for a peer at `peer_address`; a refusal is delayed."""
        while True:
            record = self._login_record(user, password, peer_address)
            accepted, slowly = await self._check_record(user, record, password, origin_of(peer_address))
            # The record may have changed while its hash was computed. The answer holds only for the record it was
            # computed from. A record that this check upgraded itself verifies the same password.
            if not accepted:
                return await self.refuse(slowly=slowly)
            current = self._login_record(user, password, peer_address)
            if current == record or self._is_remembered(self._key(user, current, password)):
                return True

    def recalls(self, user: str, password: bytes, peer_address: str) -> bool:
        """Tell whether `check` would accept this immediately, because it was verified before (3)."""
        record = self._login_record(user, password, peer_address)
        if record is None or not self._is_remembered(self._key(user, record, password)):
            return False
        self._note_known_peer(user, origin_of(peer_address))
        return True

    async def refuse(self, *, slowly: bool = False) -> bool:
        """Return False after the usual delay (longer for suspects)."""
        await trio.sleep(self._failure_delay_s * (SLOW_FACTOR if slowly else 1.0))
        return False

    def why_refused(self, user: str, peer_address: str) -> str:
        """Return, only for the log, why a password did not open `user` for a peer."""
        reason = self.why_unwelcome(user, peer_address)
        if reason:
            return reason
        record = self._users.get(user)
        return "the user has no password" if record is None or not record.password_hash else "wrong password"

    def why_unwelcome(self, user: str, peer_address: str) -> str:
        """Return, for the log, why `user` cannot log in from `peer_address` with any mechanism; empty if it can."""
        if self._users.get(user) is None:
            return "unknown user"
        if not self.may_log_in_from(user, peer_address):
            return "this user may log in from the broker's own machine only"
        return ""

    def may_log_in_from(self, user: str, peer_address: str) -> bool:
        """Tell whether `user` may log in from `peer_address` at all (5), with any mechanism."""
        return user not in LOOPBACK_ONLY or is_loopback(peer_address)

    def _login_record(self, user: str, password: bytes, peer_address: str) -> UserPut | None:
        """Return the record to check against; None stands for all users that are refused without looking."""
        record = self._users.get(user)
        if record is None or not record.password_hash or not password:
            return None
        return record if self.may_log_in_from(user, peer_address) else None

    async def _check_record(self, user: str, record: UserPut | None, password: bytes, origin: str) -> tuple[bool, bool]:
        """Return whether the password fits, and whether a refusal should be slow."""
        key = self._key(user, record, password)
        while True:
            if self._is_remembered(key):
                self._note_known_peer(user, origin)
                return True, False
            flight = self._flights.get(key)
            if flight is None:
                break
            await flight.landed.wait()
            if flight.answer is not None:
                return flight.answer, flight.slowly
        flight = self._flights[key] = _Flight()
        has_begun = False
        try:
            async with self._turns.turn(*self._share_of(user, origin)) as flight.slowly:
                has_begun = True
                flight.answer = await self._hash_and_compare(user, record, password, key)
                if flight.slowly and not flight.answer:
                    await trio.sleep(SUSPECT_PAUSE_S)
        finally:
            del self._flights[key]
            flight.landed.set()
            if has_begun and not flight.answer:
                self._note_failure(user, origin)
        if flight.answer:
            self._note_known_peer(user, origin)
        return flight.answer, flight.slowly

    async def _hash_and_compare(self, user: str, record: UserPut | None, password: bytes, key: bytes) -> bool:
        fits, upgrade = await in_thread(LOGINS, _compare, record, password, abandon=True)
        if not fits or record is None:
            if record is not None:
                _warn_of_hash(record)
            return False
        self._remember(key)
        if upgrade is not None and self._users.get(user) == record:
            upgraded = replace(record, password_hash=upgrade.text, hashing_algorithm=upgrade.algorithm)
            self._remember(self._key(user, upgraded, password))
            self._on_upgrade(upgraded)
            log.info("password hash upgraded", user=user, was=record.hashing_algorithm)
        return True

    def _share_of(self, user: str, origin: str) -> tuple[Share, str]:
        """Return the share whose turns a check uses, and its name there."""
        if (user, origin) in self._known_peers:
            return (origin, user), ""
        if self._user_failures.is_spent(user, self._clock()):
            return ("", user), origin
        return (origin, ""), user

    def _is_suspect(self, share: Share) -> bool:
        origin, user = share
        if not origin:
            return True  # guesses at one user from many networks
        if user:
            return self._pair_failures.is_spent(f"{origin} {user}", self._clock())
        return self._peer_failures.is_spent(origin, self._clock())

    def _key(self, user: str, record: UserPut | None, password: bytes) -> bytes:
        stored = (record.hashing_algorithm, record.password_hash) if record is not None else ("", "")
        mac = hmac.new(self._cache_secret, digestmod="sha256")
        for part in (user.encode(), stored[0].encode(), stored[1].encode(), password):
            mac.update(len(part).to_bytes(4, "big") + part)
        return mac.digest()

    def _is_remembered(self, key: bytes) -> bool:
        until = self._verified_until.get(key)
        if until is None:
            return False
        if self._clock() >= until:
            del self._verified_until[key]
            return False
        self._remember(key)
        return True

    def _remember(self, key: bytes) -> None:
        self._verified_until[key] = self._clock() + CACHE_S
        self._verified_until.move_to_end(key)
        if len(self._verified_until) > _CACHE_ENTRIES_MAX:
            self._verified_until.popitem(last=False)

    def _note_failure(self, user: str, origin: str) -> None:
        now = self._clock()
        self._peer_failures.spend(origin, now)
        self._user_failures.spend(user, now)
        self._pair_failures.spend(f"{origin} {user}", now)

    def _note_known_peer(self, user: str, origin: str) -> None:
        self._known_peers[user, origin] = None
        self._known_peers.move_to_end((user, origin))
        if len(self._known_peers) > _CACHE_ENTRIES_MAX:
            self._known_peers.popitem(last=False)


def _problem_of(stored: PasswordHash) -> str:
    """Return why a stored hash cannot be verified; empty if it can."""
    try:
        check_hash(stored)
    except ValueError as error:
        return str(error)
    return ""


def _warn_of_hash(record: UserPut) -> None:
    """Warn that no password opens this user: such a record was stored by an older Warren."""
    problem = _problem_of(PasswordHash(record.password_hash, record.hashing_algorithm))
    if problem:
        log.warning("nobody can log in with a password", user=record.name, reason=problem)


def _compare(record: UserPut | None, password: bytes) -> tuple[bool, PasswordHash | None]:
    """Check the password in a worker thread; return whether it fits, and its new hash if the record needs one."""
    if record is None:
        return verify_password(password, DUMMY_HASH), None
    stored = PasswordHash(record.password_hash, record.hashing_algorithm)
    if stored.algorithm == SCRYPT and not _problem_of(stored):
        return verify_password(password, stored), None
    if verify_password(password, stored):
        return True, hash_password(password)
    verify_password(password, DUMMY_HASH)
    return False, None
