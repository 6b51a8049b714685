"""Users, their permissions, topic permissions and limits."""

from __future__ import annotations

import binascii
import json
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import msgspec

from warren.engine_view.permissions import Permissions
from warren.mgmt_plugin.http.server import Response
from warren.mgmt_plugin.listing import QUERY, Described, answer_list
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, bad_request, created, not_authorised, not_found
from warren.server.definitions import schema
from warren.server.logins import passwords
from warren.server.logins.passwords import SCRYPT, PasswordHash, hash_password
from warren.server.threads import LOGINS, in_thread
from warren.vhosts.metadata import (
    PermissionDelete,
    PermissionPut,
    TopicPermissionDelete,
    TopicPermissionPut,
    UserDelete,
    UserLimitsDelete,
    UserLimitsPut,
    UserPut,
)

SHA256: Final = "rabbit_password_hashing_sha256"


class UserBody(msgspec.Struct):
    """A user: either a password or a hash, or neither for a user that cannot log in by password."""

    tags: Any = None
    password: str | None = None
    password_hash: str | None = None
    hashing_algorithm: str = SHA256


class PermissionBody(msgspec.Struct):
    """Three regular expressions."""

    configure: str
    write: str
    read: str


class TopicPermissionBody(msgspec.Struct):
    """Two regular expressions for the routing keys of a topic exchange."""

    exchange: str
    write: str
    read: str


class Names(msgspec.Struct):
    """Names of users."""

    users: list[str]


class LimitBody(msgspec.Struct):
    """The value of a limit; negative for none."""

    value: Any


def describe_user(record: UserPut, limits: dict[str, int]) -> Described:
    """Return a user."""
    return {
        "name": record.name,
        "password_hash": record.password_hash,
        "hashing_algorithm": record.hashing_algorithm,
        "tags": list(record.tags),
        "limits": limits,
    }


def tags_of(given: object) -> tuple[str, ...]:
    """Return tags given as a list, or as a text with commas, as a file of definitions would be understood.

    Raises:
        HttpError: 400.
    """
    if isinstance(given, str) or (isinstance(given, list) and all(isinstance(tag, str) for tag in given)):
        return schema.tags_of(given)
    raise bad_request("tags must be a list of strings, or a comma-separated string")


def check_hash(password_hash: str, algorithm: str) -> None:
    """Make sure that a password hash can be one.

    Raises:
        HttpError: 400.
    """
    try:
        passwords.check_hash(PasswordHash(password_hash, algorithm))
    except binascii.Error:
        raise bad_request(["not_base64", password_hash]) from None
    except ValueError as error:
        raise bad_request(str(error)) from None


async def user_from(name: str, body: UserBody) -> UserPut:
    """Return the record of a user; a password is hashed in a thread.

    Raises:
        HttpError: 400.
    """
    if body.tags is None:
        raise bad_request("tags_not_present")
    tags = tags_of(body.tags)
    if body.password is not None and body.password_hash is not None:
        raise bad_request("both_password_and_password_hash_are_provided")
    if body.password_hash is not None:
        check_hash(body.password_hash, body.hashing_algorithm)
        return UserPut(name, body.password_hash, body.hashing_algorithm, tags)
    if not body.password:
        return UserPut(name, "", SCRYPT, tags)
    hashed = await in_thread(LOGINS, hash_password, body.password.encode("utf-8", "surrogatepass"), abandon=True)
    return UserPut(name, hashed.text, hashed.algorithm, tags)


def describe_permission(put: PermissionPut) -> Described:
    """Return a permission."""
    return {"user": put.user, "vhost": put.vhost, "configure": put.configure, "write": put.write, "read": put.read}


def describe_topic_permission(put: TopicPermissionPut) -> Described:
    """Return a topic permission."""
    return {"user": put.user, "vhost": put.vhost, "exchange": put.exchange, "write": put.write, "read": put.read}


_ADMIN: Final = Access.ADMINISTRATOR
_U: Final = "/api/users/{user}"
_P: Final = "/api/permissions/{vhost}/{user}"
_T: Final = "/api/topic-permissions/{vhost}/{user}"


class UserHandlers(Handlers):
    """Handlers of users, their permissions and limits."""

    def __init__(self, access: Permissions) -> None:
        self._access = access

    # --- users --------------------------------------------------------------------------------------------------------

    def the_user(self, call: Call) -> UserPut:
        """Return the user of the path.

        Raises:
            HttpError: 404.
        """
        record = self._access.get(call.params["user"])
        if record is None:
            raise not_found()
        return record

    async def _answer_users(self, call: Call, names: Sequence[str]) -> Response:
        access = self._access
        return await answer_list(
            call,
            names,
            lambda name: describe_user(*access.known(name)),
            {"name": lambda name: name},
            access.is_unknown,
        )

    async def list_users(self, call: Call) -> Response:
        return await self._answer_users(call, self._access.user_names())

    async def list_without_permissions(self, call: Call) -> Response:
        access = self._access
        return await self._answer_users(call, sorted(set(access.user_names()) - access.entitled()))

    async def show_user(self, call: Call) -> Described:
        return describe_user(*self._access.known(self.the_user(call).name))

    async def put_user(self, call: Call) -> Response:
        name = call.params["user"]
        body = await call.body(UserBody)
        new = self._access.get(name) is None
        await call.administer(await user_from(name, body))
        return created(new=new)

    async def delete_user(self, call: Call) -> None:
        record = self.the_user(call)
        await call.administer(UserDelete(record.name))

    async def delete_users(self, call: Call) -> None:
        for name in (await call.body(Names)).users:
            if self._access.get(name) is not None:
                await call.administer(UserDelete(name))

    # --- permissions --------------------------------------------------------------------------------------------------

    def _permissions(self, call: Call) -> Sequence[PermissionPut]:
        vhost, user = call.params.get("vhost"), call.params.get("user")
        return [put for put in self._access.of(user) if vhost in (None, put.vhost)]

    def _topic_permissions(self, call: Call) -> Sequence[TopicPermissionPut]:
        vhost, user, exchange = (call.params.get(name) for name in ("vhost", "user", "exchange"))
        of_user = self._access.topics_of(user)
        return [put for put in of_user if vhost in (None, put.vhost) and exchange in (None, put.exchange)]

    async def list_permissions(self, call: Call) -> Response:
        if "user" in call.params:
            self.the_user(call)
        return await answer_list(call, self._permissions(call), describe_permission, {})

    async def show_permission(self, call: Call) -> Described:
        for put in self._permissions(call):
            return describe_permission(put)
        raise not_found()

    async def put_permission(self, call: Call) -> Response:
        body = await call.body(PermissionBody)
        user, vhost = call.params["user"], call.params["vhost"]
        access = self._access
        if access.get(user) is None:
            raise bad_request("vhost_or_user_not_found")
        new = not access.may_enter(user, vhost)
        await call.administer(PermissionPut(user, vhost, body.configure, body.write, body.read))
        return created(new=new)

    async def delete_permission(self, call: Call) -> None:
        user, vhost = call.params["user"], call.params["vhost"]
        if not self._access.may_enter(user, vhost):
            raise not_found()
        await call.administer(PermissionDelete(user, vhost))

    async def list_topic_permissions(self, call: Call) -> Response:
        if "user" in call.params:
            self.the_user(call)
        return await answer_list(call, self._topic_permissions(call), describe_topic_permission, {})

    async def show_topic_permissions(self, call: Call) -> Response:
        if not self._topic_permissions(call):
            raise not_found()
        return await self.list_topic_permissions(call)

    async def put_topic_permission(self, call: Call) -> Response:
        body = await call.body(TopicPermissionBody)
        user, vhost = call.params["user"], call.params["vhost"]
        access = self._access
        if access.get(user) is None:
            raise bad_request("vhost_or_user_not_found")
        new = not access.has_topic(user, vhost, body.exchange)
        await call.administer(TopicPermissionPut(user, vhost, body.exchange, body.write, body.read))
        return created(new=new)

    async def delete_topic_permission(self, call: Call) -> None:
        if not self._topic_permissions(call):
            raise not_found()
        await call.administer(
            TopicPermissionDelete(call.params["user"], call.params["vhost"], call.params.get("exchange", ""))
        )

    # --- limits -------------------------------------------------------------------------------------------------------

    async def list_user_limits(self, call: Call) -> list[Described]:
        access = self._access
        only = call.params.get("user")
        if only is not None:
            self.the_user(call)
        found = []
        for name in access.user_names() if only is None else [only]:
            limits = access.limits(name)
            if limits:
                found.append({"user": name, "value": limits})
        return found

    async def put_user_limit(self, call: Call) -> None:
        body = await call.body(LimitBody)
        record = self.the_user(call)
        limits: dict[str, Any] = dict(self._access.limits(record.name))
        limits[call.params["limit"]] = body.value
        await call.administer(UserLimitsPut(record.name, json.dumps(limits)), validates=True)

    async def delete_user_limit(self, call: Call) -> None:
        record = self.the_user(call)
        limits = dict(self._access.limits(record.name))
        if limits.pop(call.params["limit"], None) is None:
            raise not_found()
        change = UserLimitsPut(record.name, json.dumps(limits)) if limits else UserLimitsDelete(record.name)
        await call.administer(change)

    # --- oneself ------------------------------------------------------------------------------------------------------

    async def whoami(self, call: Call) -> Described:
        return {"name": call.operator.name, "tags": list(call.operator.tags), "is_internal_user": True}

    async def list_own_permissions(self, call: Call) -> Response:
        if not call.operator.is_administrator and call.operator.name != call.params["user"]:
            raise not_authorised(Access.ADMINISTRATOR.value)
        return await self.list_permissions(call)

    ROUTES: ClassVar = (
        Route("GET", "/api/whoami", Access.USER, whoami, "The current user"),
        Route("GET", "/api/users", _ADMIN, list_users, "Users", query=QUERY),
        Route(
            "GET",
            "/api/users/without-permissions",
            _ADMIN,
            list_without_permissions,
            "Users without any vhost",
            query=QUERY,
        ),
        Route("POST", "/api/users/bulk-delete", _ADMIN, delete_users, "Delete several users", Names),
        Route("GET", _U, _ADMIN, show_user, "A user"),
        Route("PUT", _U, _ADMIN, put_user, "Create or change a user", UserBody),
        Route("DELETE", _U, _ADMIN, delete_user, "Delete a user, and close its connections"),
        Route("GET", f"{_U}/permissions", Access.USER, list_own_permissions, "Permissions of a user"),
        Route("GET", f"{_U}/topic-permissions", _ADMIN, list_topic_permissions, "Topic permissions of a user"),
        Route("GET", "/api/permissions", _ADMIN, list_permissions, "Permissions", query=QUERY),
        Route("GET", _P, _ADMIN, show_permission, "Permissions of a user in a vhost"),
        Route("PUT", _P, _ADMIN, put_permission, "Set the permissions of a user in a vhost", PermissionBody),
        Route("DELETE", _P, _ADMIN, delete_permission, "Remove a user's access to a vhost"),
        Route("GET", "/api/topic-permissions", _ADMIN, list_topic_permissions, "Topic permissions", query=QUERY),
        Route("GET", _T, _ADMIN, show_topic_permissions, "Topic permissions of a user in a vhost"),
        Route("PUT", _T, _ADMIN, put_topic_permission, "Set a topic permission", TopicPermissionBody),
        Route("DELETE", _T, _ADMIN, delete_topic_permission, "Remove all topic permissions of a user in a vhost"),
        Route("GET", f"{_T}/{{exchange}}", _ADMIN, show_topic_permissions, "Topic permission for an exchange"),
        Route("DELETE", f"{_T}/{{exchange}}", _ADMIN, delete_topic_permission, "Remove a topic permission"),
        Route("GET", "/api/vhosts/{vhost}/permissions", _ADMIN, list_permissions, "Permissions in a vhost"),
        Route(
            "GET",
            "/api/vhosts/{vhost}/topic-permissions",
            _ADMIN,
            list_topic_permissions,
            "Topic permissions in a vhost",
        ),
        Route("GET", "/api/user-limits", _ADMIN, list_user_limits, "Limits of users"),
        Route("GET", "/api/user-limits/{user}", _ADMIN, list_user_limits, "Limits of a user"),
        Route("PUT", "/api/user-limits/{user}/{limit}", _ADMIN, put_user_limit, "Set a limit of a user", LimitBody),
        Route("DELETE", "/api/user-limits/{user}/{limit}", _ADMIN, delete_user_limit, "Remove a limit of a user"),
    )
