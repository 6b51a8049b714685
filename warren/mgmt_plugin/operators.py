"""The identity of a client: users of the management API, their tags, and the sessions of browsers.

    tag              may
    management       see and use its own vhosts, as far as its permissions go
    policymaker      that, and policies and parameters in them
    monitoring       see everything of every vhost, and of the node
    administrator    everything; but to use a vhost it needs permissions there, as everybody does

1. A name and a password are checked by the broker's authenticator, which slows guessing down.
2. A session does not contain a password. It ends with its user, with a change of the user's password, `SESSION_S` after
   it was last used, or when the broker stops; its tags are the user's at the moment of each request. A user has at most
   `SESSIONS_PER_USER_MAX`: one more ends the least recently used of the same user, never that of another user.
3. A browser has a session's identifier in an HttpOnly, SameSite=Strict cookie. A request with it that changes
   something must also carry the session's CSRF token in a header; an Origin must be the host asked.
4. The identifier is also a bearer token, for clients without cookies.
5. A browser sends a password that it remembers (Basic) by itself, whichever page asks. A request with one that changes
   something is refused when the browser says that it comes from another site; other programs do not send that header.
6. The cost of a Cookie header is linear in its length.

Source: RabbitMQ, "Management plugin", permissions.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import re
import secrets
import socket
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from warren.engine_view.permissions import Permissions
from warren.mgmt_plugin.http.server import HttpError, Request
from warren.server.logins.authenticator import Authenticator, Users
from warren.server.logs import get_logger
from warren.vhosts.metadata import UserPut

SESSION_S: Final = 8 * 3600.0
SESSIONS_PER_USER_MAX: Final = 100
COOKIE: Final = "warren_session"
CSRF_HEADER: Final = "x-csrf-token"
REALM: Final = 'Basic realm="RabbitMQ Management"'  # RabbitMQ's: programs tie credentials to it
# Begins at a semicolon only, so its time is linear; that of the standard library's parser is quadratic.
_OUR_COOKIE: Final = re.compile(rf"(?:^|;)[ \t]*{COOKIE}[ \t]*=([^;]*)")
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]+)?")  # a Host header
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


log = get_logger("operators")


@dataclass(frozen=True, slots=True)
class Operator:
    """A user who has logged in, with the rights of the tags."""

    name: str
    tags: tuple[str, ...]
    access: Permissions

    @property
    def is_administrator(self) -> bool:
        return "administrator" in self.tags

    @property
    def is_monitor(self) -> bool:
        return self.is_administrator or "monitoring" in self.tags

    @property
    def is_policymaker(self) -> bool:
        return self.is_administrator or "policymaker" in self.tags

    @property
    def is_manager(self) -> bool:
        return self.is_policymaker or self.is_monitor or "management" in self.tags

    def may_enter(self, vhost: str) -> bool:
        """Tell whether the user has permissions in `vhost`."""
        return self.access.may_enter(self.name, vhost)

    def may_see(self, vhost: str) -> bool:
        """Tell whether the user may see the content of `vhost`."""
        return self.is_monitor or self.may_enter(vhost)


NOBODY_TAGS: Final = ()


@dataclass(slots=True)
class OperatorSession:
    """A browser that has logged in. `secret` is kept as its hash only."""

    user: str
    password_hash: str
    csrf_token: str
    ends_s: float


class Sessions:
    """The sessions of this process, the least recently used first; `_of_user` has the same for each user."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[bytes, OperatorSession] = OrderedDict()
        self._of_user: dict[str, OrderedDict[bytes, None]] = {}

    def begin(self, record: UserPut) -> tuple[str, OperatorSession]:
        """Begin a session of a user whose password was right; return its secret identifier."""
        identifier = secrets.token_urlsafe(32)
        now_s = time.monotonic()
        session = OperatorSession(record.name, record.password_hash, secrets.token_urlsafe(32), now_s + SESSION_S)
        key = _digest(identifier)
        self._sessions[key] = session
        own = self._of_user.setdefault(record.name, OrderedDict())
        own[key] = None
        if len(own) > SESSIONS_PER_USER_MAX:
            self._forget(next(iter(own)))
        while self._sessions:
            oldest = next(iter(self._sessions))
            if now_s < self._sessions[oldest].ends_s:
                break
            self._forget(oldest)
        return identifier, session

    def maybe_find(self, identifier: str, users: Users) -> OperatorSession | None:
        """Return the session, if it has not ended, and renew it."""
        key = _digest(identifier)
        session = self._sessions.get(key)
        if session is None:
            return None
        record = users.get(session.user)
        now_s = time.monotonic()
        if record is None or record.password_hash != session.password_hash or now_s >= session.ends_s:
            self._forget(key)
            return None
        session.ends_s = now_s + SESSION_S
        self._sessions.move_to_end(key)
        self._of_user[session.user].move_to_end(key)
        return session

    def end(self, identifier: str) -> None:
        """Forget a session."""
        self._forget(_digest(identifier))

    def _forget(self, key: bytes) -> None:
        session = self._sessions.pop(key, None)
        if session is None:
            return
        own = self._of_user[session.user]
        del own[key]
        if not own:
            del self._of_user[session.user]


class Doorkeeper:
    """Identifies the user of a request."""

    def __init__(self, access: Permissions, authenticator: Authenticator, hosts: frozenset[str]) -> None:
        self._access = access
        self._authenticator = authenticator
        self._hosts = hosts | {"localhost", socket.gethostname().lower()}
        self.sessions = Sessions()
        self.succeeded = 0
        self.failed = 0

    async def identify(self, request: Request) -> Operator:
        """Return the user of a request.

        Raises:
            HttpError: 401, the credentials are missing or wrong; 403, a browser was led here by another site.
        """
        header = request.headers.get("authorization")
        if header is None:
            identifier = session_identifier(request)
            if identifier is None and CSRF_HEADER in request.headers:
                # A page whose session was ended elsewhere: a challenge would make the browser ask, over the page.
                raise HttpError(401, "not_authorized", "the session has ended")
            if identifier is None:
                raise _unauthorized("")
            return self._by_cookie(request, identifier)
        scheme, _, credentials = header.partition(" ")
        if scheme.lower() == "basic":
            name, password = _basic(credentials)
            if request.method not in SAFE_METHODS:
                check_same_site(request)
            return self.operator(await self.check_password(name, password, request))
        if scheme.lower() == "bearer":
            session = self.sessions.maybe_find(credentials.strip(), self._access)
            if session is None:
                self.failed += 1
                raise _unauthorized("Login failed")
            return self.operator_called(session.user)
        raise _unauthorized("Login failed")

    async def check_password(self, name: str, password: bytes, request: Request) -> UserPut:
        """Return the record of a user whose password is right.

        Raises:
            HttpError: 401.
        """
        with request.watched():  # the login of a client that has hung up would keep others waiting
            accepted = await self._authenticator.check(name, password, request.peer)
        record = self._access.get(name)
        if not accepted or record is None:
            self.failed += 1
            reason = self._authenticator.why_refused(name, request.peer)
            log.warning("login refused", peer=request.peer, user=name, over="HTTP", reason=reason)
            raise _unauthorized("Login failed")
        self.succeeded += 1
        return record

    def operator(self, record: UserPut) -> Operator:
        return Operator(record.name, record.tags, self._access)

    def operator_called(self, name: str) -> Operator:
        record = self._access.get(name)
        return Operator(name, NOBODY_TAGS if record is None else record.tags, self._access)

    def nobody(self) -> Operator:
        """Return the user without a login."""
        return Operator("", NOBODY_TAGS, self._access)

    def _by_cookie(self, request: Request, identifier: str) -> Operator:
        session = self.sessions.maybe_find(identifier, self._access)
        if session is None:
            raise HttpError(401, "not_authorized", "the session has ended")
        self.check_origin(request)
        if request.method not in SAFE_METHODS:
            self.check_token(request, session)
        return self.operator_called(session.user)

    def check_token(self, request: Request, session: OperatorSession) -> None:
        """Make sure that a request was made by a page that knows the session's CSRF token.

        Raises:
            HttpError: 403.
        """
        token = request.headers.get(CSRF_HEADER, "")
        if not hmac.compare_digest(token.encode("utf-8", "replace"), session.csrf_token.encode()):
            raise HttpError(403, "forbidden", f"the header {CSRF_HEADER} is missing or wrong")

    def check_origin(self, request: Request) -> None:
        """Make sure that a browser's request comes from a page of this host, under a name that is ours.

        Raises:
            HttpError: 403. Somebody else's page, or a name that an attacker had resolve to this machine.
        """
        host = request.headers.get("host", "")
        parts = _HOST.fullmatch(host)
        name = "" if parts is None else (parts[1] or parts[2]).lower()
        if not (name in self._hosts or _is_address(name)):
            raise HttpError(403, "forbidden", "the host name is not one of this broker; see the setting http_hosts")
        check_same_site(request)


def check_same_site(request: Request) -> None:
    """Make sure that a browser does not say that another site led it here. Other programs say nothing of it.

    Raises:
        HttpError: 403.
    """
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != request.headers.get("host", "").lower():
        raise HttpError(403, "forbidden", "the request comes from another site")
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise HttpError(403, "forbidden", "the request comes from another site")


def session_identifier(request: Request) -> str | None:
    """Return the session identifier in the request's cookie, the first if there are several."""
    found = _OUR_COOKIE.search(request.headers.get("cookie", ""))
    return None if found is None else found[1].strip()


def cookie_header(identifier: str, request: Request, *, ends: bool = False) -> tuple[str, str]:
    """Return the header that sets the session's cookie, or takes it away."""
    text = f"{COOKIE}={identifier}; Path=/; HttpOnly; SameSite=Strict"
    if ends:
        text += "; Max-Age=0"
    if request.is_tls:
        text += "; Secure"
    return "Set-Cookie", text


def _digest(identifier: str) -> bytes:
    return hashlib.sha256(identifier.encode()).digest()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def own_password(request: Request) -> bytes:
    """Return the password that a request has been authorized with, empty when it has none: in a session of the UI."""
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return b""
    return _basic(credentials)[1]


def _basic(credentials: str) -> tuple[str, bytes]:
    try:
        decoded = base64.b64decode(credentials.strip(), validate=True)
        name, colon, password = decoded.partition(b":")
        if colon:
            return name.decode(), password
    except ValueError:
        pass  # neither base64 nor UTF-8
    raise _unauthorized("Login failed")


def _unauthorized(reason: str) -> HttpError:
    return HttpError(401, "not_authorized", reason or "Login required", (("WWW-Authenticate", REALM),))
