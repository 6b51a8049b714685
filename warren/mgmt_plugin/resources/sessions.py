"""Logging in and out of the web UI."""

from __future__ import annotations

from typing import ClassVar, Final
from urllib.parse import parse_qs

import msgspec

from warren.mgmt_plugin.http.json_bodies import BodyLimits
from warren.mgmt_plugin.http.server import HttpError, Response
from warren.mgmt_plugin.operators import SESSION_S, Doorkeeper, OperatorSession, cookie_header, session_identifier
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, convert, decode_json, measure, not_authorised
from warren.server.logins.authenticator import Users

LIMITS: Final = BodyLimits(16 << 10, 100)


class Login(msgspec.Struct):
    """The credentials of a login. `bearer` asks for a token instead of a cookie."""

    username: str
    password: str
    bearer: bool = False


def _describe(session: OperatorSession, tags: tuple[str, ...]) -> dict[str, object]:
    return {
        "name": session.user,
        "tags": list(tags),
        "csrf_token": session.csrf_token,
        "expires_in_s": int(SESSION_S),
    }


class SessionHandlers(Handlers):
    """Handlers of the sessions of browsers."""

    def __init__(self, doorkeeper: Doorkeeper, users: Users) -> None:
        self._doorkeeper = doorkeeper
        self._users = users

    async def begin_session(self, call: Call) -> Response:
        """Log in: the answer names the user and the token that every change has to carry."""
        doorkeeper = self._doorkeeper
        doorkeeper.check_origin(call.request)
        data = await call.request.read_body(LIMITS.size)
        if call.request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
            fields = parse_qs(data.decode("utf-8", "replace"))
            login = Login(fields.get("username", [""])[0], fields.get("password", [""])[0])
        else:
            await measure(data, LIMITS)
            login = convert(decode_json(data), Login)
        try:
            record = await doorkeeper.check_password(
                login.username, login.password.encode("utf-8", "replace"), call.request
            )
        except HttpError as error:
            raise HttpError(401, error.error, error.reason) from None  # no browser's own dialog
        operator = doorkeeper.operator(record)
        if not operator.is_manager:
            raise not_authorised(Access.USER.value)
        identifier, session = doorkeeper.sessions.begin(record)
        shown = _describe(session, operator.tags)
        if login.bearer:
            shown["token"] = identifier
            return Response(200, msgspec.json.encode(shown))
        return Response(200, msgspec.json.encode(shown), headers=(cookie_header(identifier, call.request),))

    def _the_session(self, call: Call) -> tuple[str, OperatorSession]:
        identifier = session_identifier(call.request)
        doorkeeper = self._doorkeeper
        session = None
        if identifier is not None:
            doorkeeper.check_origin(call.request)
            session = doorkeeper.sessions.maybe_find(identifier, self._users)
        if identifier is None or session is None:
            raise HttpError(401, "not_authorized", "no session")
        return identifier, session

    async def show_session(self, call: Call) -> dict[str, object]:
        _, session = self._the_session(call)
        operator = self._doorkeeper.operator_called(session.user)
        if not operator.is_manager:
            raise not_authorised(Access.USER.value)
        return _describe(session, operator.tags)

    async def end_session(self, call: Call) -> Response:
        identifier, session = self._the_session(call)
        self._doorkeeper.check_token(call.request, session)
        self._doorkeeper.sessions.end(identifier)
        return Response(204, headers=(cookie_header("", call.request, ends=True),))

    ROUTES: ClassVar = (
        Route("POST", "/api/warren/session", Access.PUBLIC, begin_session, "Log in", Login),
        Route("GET", "/api/warren/session", Access.PUBLIC, show_session, "The session of a browser"),
        Route("DELETE", "/api/warren/session", Access.PUBLIC, end_session, "Log out"),
        Route("POST", "/api/login", Access.PUBLIC, begin_session, "Log in", Login),
    )
