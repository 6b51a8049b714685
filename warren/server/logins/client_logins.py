"""The logins of clients: each is a task until its password is checked, or until its connection is closed.

1. A password that was verified before is accepted at once, in the turn in which it arrives.
2. A login ends with its connection: otherwise closed connections would have any number of logins wait.
3. A fault refuses the login that it meets, and no other one.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from warren.channels.broker import Broker
from warren.channels.login import LoginRequest
from warren.server.logins.authenticator import Authenticator
from warren.server.logs import get_logger
from warren.vhosts.topology_watcher import INTERNAL_USER

log = get_logger("server")


class ClientLogins:
    """Answers the login requests of `broker`.

    `start` runs a login as a task. `settle` and `wake` have the reactor send answers, now or in a turn of its own;
    `on_crash` gets our own faults.
    """

    def __init__(
        self,
        broker: Broker,
        authenticator: Authenticator,
        internal_password: bytes,
        *,
        start: Callable[[Callable[[], Awaitable[None]]], None],
        settle: Callable[[], None],
        wake: Callable[[], None],
        on_crash: Callable[[BaseException], None],
    ) -> None:
        self._broker = broker
        self._authenticator = authenticator
        self._internal_password = internal_password
        self._start = start
        self._settle = settle
        self._wake = wake
        self._on_crash = on_crash
        self._under_way: dict[int, trio.CancelScope] = {}  # by the keys of their connections

    def is_idle(self) -> bool:
        """Tell whether no login is under way."""
        return not self._under_way

    def begin(self) -> None:
        """Begin the logins that the engine has asked for since the last time."""
        broker = self._broker
        logins, broker.logins = broker.logins, []
        recalled = False
        for request in logins:
            if not request.peer.is_checking_login():
                continue  # it has hung up
            if self._recalls(request):
                recalled = True
                try:
                    request.accept(request.user)
                except Exception as error:
                    # A defect of ours: refuse this login only.
                    self._on_crash(error)
                    request.refuse()
                continue
            scope = self._under_way[request.peer.key] = trio.CancelScope()
            self._start(partial(self._login, request, scope))
        if recalled:
            self._wake()  # to send all the answers in one turn

    def hung_up(self, key: int) -> None:
        """Cancel the login of a connection that is closed (2)."""
        scope = self._under_way.get(key)
        if scope is not None:
            scope.cancel()

    async def _login(self, request: LoginRequest, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await self._check(request)
        except Exception:
            # A defect of ours, or no free thread: refuse this login only.
            request.refuse()
            self._settle()
            raise
        finally:
            del self._under_way[request.peer.key]

    def _recalls(self, request: LoginRequest) -> bool:
        """Tell whether a password has been verified before: such a login, even one of many, need not wait."""
        origin = request.peer.origin
        if request.certificate or request.problem or origin.is_internal:
            return False
        return self._authenticator.recalls(request.user, request.password, origin.address)

    async def _check(self, request: LoginRequest) -> None:
        origin = request.peer.origin
        reason = ""
        if origin.is_internal and request.user == INTERNAL_USER:
            accepted = hmac.compare_digest(request.password, self._internal_password)
        elif request.certificate:
            reason = self._authenticator.why_unwelcome(request.user, origin.address)
            accepted = not reason
            if not accepted:
                await self._authenticator.refuse()
        elif request.problem:
            accepted = await self._authenticator.refuse()
        else:
            accepted = await self._authenticator.check(request.user, request.password, origin.address)
        if accepted:
            request.accept(request.user)
        else:
            reason = reason or request.problem or self._authenticator.why_refused(request.user, origin.address)
            log.warning(
                "login refused",
                peer=origin.peer,
                user=request.user,
                over=origin.shown(request.peer.protocol),
                reason=reason,
            )
            request.refuse()
        self._settle()
