"""Users, their permissions and limits, and what a user may do in a vhost. Records are those of the metadata.

`Management.administer` changes them, as all metadata.
"""

from __future__ import annotations

from collections.abc import Callable

from warren.amqp.errors import ACCESS_REFUSED, ChannelException
from warren.channels.access import CONFIGURE as CONFIGURE
from warren.channels.access import READ as READ
from warren.channels.access import WRITE as WRITE
from warren.channels.access import AccessChange, AccessControl, Principal
from warren.vhosts.limits import USER_LIMITS, is_reached
from warren.vhosts.metadata import PermissionPut, TopicPermissionPut, UserPut
from warren.vhosts.topology_watcher import INTERNAL_USER as INTERNAL_USER


class Rights:
    """What a user may do in a vhost; it follows changes of the permissions.

    Its functions are those of `channels.access.Principal`, without a call in between: `may` and `may_some` tell whether
    an action is granted, `authorize` raises ChannelException 403 when it is not.
    """

    def __init__(self, principal: Principal) -> None:
        self.principal = principal  # for the view itself
        self.may: Callable[[int, str], bool] = principal.may
        self.may_some: Callable[[int], bool] = principal.may_some
        self.authorize: Callable[[int, str, str], None] = principal.authorize


class Permissions:
    """The users of one engine, or of a node without one (`of_records`)."""

    def __init__(self, access: AccessControl) -> None:
        self._access = access

    @classmethod
    def of_records(cls, *records: AccessChange) -> Permissions:
        """Return the users and permissions of these records, on their own."""
        access = AccessControl(lambda: None)
        for record in records:
            if isinstance(record, UserPut):
                access.users[record.name] = record  # the internal user may be one of them
            else:
                access.apply(record, stored=True)
        return cls(access)

    # --- users ------------------------------------------------------------------------------------------------------

    def get(self, name: str) -> UserPut | None:
        """Return the user called `name`."""
        return self._access.users.get(name)

    def known(self, name: str) -> tuple[UserPut, dict[str, int]]:
        """Return an existing user, and its limits by their names; not to be changed."""
        return self._access.users[name], self._access.usage(name).limits

    def is_unknown(self, name: str) -> bool:
        """Tell whether a user of this name does not exist."""
        return name not in self._access.users

    def users(self) -> list[UserPut]:
        """Return all users, in any order."""
        return list(self._access.users.values())

    def user_names(self) -> list[str]:
        """Return the names of all users, in order."""
        return sorted(self._access.users)

    def replace_users(self, users: dict[str, UserPut]) -> None:
        """Replace the known users: for the users of a node without an engine."""
        self._access.users = users

    def limits(self, user: str) -> dict[str, int]:
        """Return the limits of a user by their names; not to be changed."""
        return self._access.usage(user).limits

    # --- permissions ------------------------------------------------------------------------------------------------

    def may_enter(self, user: str, vhost: str) -> bool:
        """Tell whether a user has permissions in a vhost."""
        return (user, vhost) in self._access.permissions

    def entitled(self) -> set[str]:
        """Return the users with permissions in some vhost."""
        return {user for user, _ in self._access.permissions}

    def of(self, user: str | None) -> list[PermissionPut]:
        """Return the permissions of a user by vhost, None: of all by user and vhost."""
        found = self._access.permissions
        return [found[key] for key in sorted(found)] if user is None else self._access.permissions_of(user)

    def topics_of(self, user: str | None) -> list[TopicPermissionPut]:
        """Return the topic permissions of a user by vhost and exchange, None: of all by user, vhost and exchange."""
        found = self._access.topic_permissions
        return [found[key] for key in sorted(found)] if user is None else self._access.topic_permissions_of(user)

    def has_topic(self, user: str, vhost: str, exchange: str) -> bool:
        """Tell whether a user has a topic permission for an exchange."""
        return (user, vhost, exchange) in self._access.topic_permissions

    # --- rights -----------------------------------------------------------------------------------------------------

    def maybe_rights(self, user: str, vhost: str) -> Rights | None:
        """Return what a user may do in a vhost; None: the user may not enter it."""
        principal = self._access.maybe_principal(user, vhost)
        return None if principal is None else Rights(principal)

    def rights_now(self, user: str, vhost: str) -> Rights:
        """Return what a user may do in a vhost who need not be connected.

        Raises:
            ChannelException: 403, the user was deleted, may not enter the vhost, or may have no connections.
        """
        if user not in self._access.users:
            raise ChannelException(ACCESS_REFUSED, f"user '{user}' was deleted")
        rights = self.maybe_rights(user, vhost)
        if rights is None:
            raise ChannelException(ACCESS_REFUSED, f"access to vhost '{vhost}' refused for user '{user}'")
        for limit in USER_LIMITS:
            if is_reached(self.limits(user), limit, 0):
                raise ChannelException(ACCESS_REFUSED, f"user '{user}' may have no connections: {limit} is 0")
        return rights
