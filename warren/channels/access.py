"""Access control: users, their permissions and limits, and the one place that decides.

1. Every operation on an exchange or queue asks `Principal.authorize` (or `authorize_topic`) first; the operations and
   their permissions are those of RabbitMQ's access control page.
2. A change of permissions holds for open connections from the next operation on: principals are refreshed in place
   and cached publish routes, which embed a granted permission, are forgotten.
3. Patterns (`vhosts.pattern`) are compiled once, those for topics at the first check; answers are cached per name, up
   to a number of bytes. A search is counted in steps, and the connection that asks pays for them.
4. `Usage` counts the open connections of each user and the channels on them, over all vhosts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from warren.amqp.errors import ACCESS_REFUSED, ChannelException
from warren.channels.route_cache import RouteCache, RouteMemory
from warren.exchanges.exchange import Exchange
from warren.exchanges.topic_exchange import TopicExchange
from warren.vhosts.limits import USER_LIMITS, parse_limits
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
from warren.vhosts.pattern import NOTHING, Pattern
from warren.vhosts.topology_watcher import INTERNAL_USER
from warren.vhosts.virtual_host import VirtualHost

CONFIGURE: Final = 0
WRITE: Final = 1
READ: Final = 2
ACTIONS: Final = ("configure", "write", "read")
# Limits for the remembered answers of one principal, and for one of them besides the name.
ANSWERS_BYTES_MAX: Final = 1 << 20
ANSWER_BYTES: Final = 250
IMPERSONATOR: Final = "impersonator"

AccessChange = UserPut | UserDelete | PermissionPut | PermissionDelete | TopicPermissionPut | TopicPermissionDelete


class Principal:
    """A user in a vhost, shared by all connections that logged in so. `memory` counts what its ``routes`` take.

    ``searched``: the steps that its patterns have taken so far; the connection that asks pays for the difference.
    """

    def __init__(self, user: UserPut, vhost: str, memory: RouteMemory) -> None:
        self.user = user
        self.vhost = vhost
        self.allowed: bool = False  # may use the vhost at all
        self.routes = RouteCache(memory)
        self.searched: i64 = 0
        self._patterns: list[Pattern] = []
        self._topics: dict[str, TopicPermissionPut] = {}
        self._topic_patterns: dict[tuple[int, str], Pattern] = {}
        self._answers: dict[tuple[int, str], bool] = {}
        self._answers_bytes: i64 = 0

    def grant(self, permission: PermissionPut | None, topics: list[TopicPermissionPut], user: UserPut) -> None:
        """Set the current values of the catalogue."""
        self.user = user
        self.allowed = permission is not None
        self._patterns = []
        if permission is not None:
            for text in (permission.configure, permission.write, permission.read):
                self._patterns.append(Pattern(text, stored=True))
        self._topics = {topic.exchange: topic for topic in topics}
        self._topic_patterns = {}
        self._answers = {}
        self._answers_bytes = 0
        self.routes.drop()

    def may(self, action: int, name: str) -> bool:
        """Tell whether `action` on the exchange or queue called `name` is granted."""
        if not self.allowed:
            return False
        question = (action, name)
        answer = self._answers.get(question)
        if answer is None:
            pattern = self._patterns[action]
            self.searched += pattern.steps(name)
            answer = pattern.matches(name)
            cost: i64 = ANSWER_BYTES + len(name)
            if self._answers_bytes + cost > ANSWERS_BYTES_MAX:
                self._answers = {}
                self._answers_bytes = 0
            self._answers[question] = answer
            self._answers_bytes += cost
        return answer

    def may_some(self, action: int) -> bool:
        """Tell whether `action` is granted on some names; the pattern may match none that exist."""
        return self.allowed and self._patterns[action].text not in NOTHING

    def authorize(self, action: int, kind: str, name: str) -> None:
        """Make sure that `action` on the `kind` (exchange or queue) called `name` is granted.

        Raises:
            ChannelException: 403.
        """
        asked = "amq.default" if name == "" and kind == "exchange" else name
        if not self.may(action, asked):
            raise ChannelException(
                ACCESS_REFUSED,
                f"{ACTIONS[action]} access to {kind} '{asked}' in vhost '{self.vhost}' refused for user "
                f"'{self.user.name}'",
            )

    def authorize_topic(self, action: int, exchange: str, routing_key: str) -> None:
        """Make sure that the topic permission, if there is one for `exchange`, covers `routing_key`.

        Raises:
            ChannelException: 403.
        """
        topic = self._topics.get(exchange)
        if topic is None:
            return
        key = (action, exchange)
        pattern = self._topic_patterns.get(key)
        if pattern is None:
            pattern = _topic_pattern(topic.write if action == WRITE else topic.read, topic, stored=True)
            self._topic_patterns[key] = pattern
        self.searched += pattern.steps(routing_key)
        if not pattern.matches(routing_key):
            raise ChannelException(
                ACCESS_REFUSED,
                f"{ACTIONS[action]} access to topic '{routing_key}' in exchange '{exchange}' in vhost "
                f"'{self.vhost}' refused for user '{self.user.name}'",
            )

    def publishable(self, vhost: VirtualHost, exchange: str, routing_key: str) -> Exchange:
        """Return the exchange called `exchange`, to which messages with `routing_key` may be published.

        Raises:
            ChannelException: 403, that is not granted, or it is internal; 404, it is not there.
        """
        self.authorize(WRITE, "exchange", exchange)
        found = vhost.exchange(exchange)
        if found.internal:
            raise ChannelException(
                ACCESS_REFUSED, f"cannot publish to internal exchange '{found.name}' in vhost '{vhost.name}'"
            )
        if isinstance(found, TopicExchange):
            self.authorize_topic(WRITE, found.name, routing_key)
        return found


class Usage:
    """The open connections and channels of a user, and their limits."""

    def __init__(self) -> None:
        self.connections: int = 0
        self.channels: int = 0
        self.limits: dict[str, int] = {}


class Rights:
    """The entries of one user: `vhosts` with a permission, topic permissions by key, principals by vhost."""

    def __init__(self) -> None:
        self.vhosts: dict[str, None] = {}
        self.topics: dict[tuple[str, str, str], TopicPermissionPut] = {}
        self.principals: dict[str, Principal] = {}


class AccessControl:
    """All users and permissions, and the principals that are logged in with them.

    Changes for a user are looked up by the user: the number of other users does not matter.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.users: dict[str, UserPut] = {}
        self.permissions: dict[tuple[str, str], PermissionPut] = {}
        self.topic_permissions: dict[tuple[str, str, str], TopicPermissionPut] = {}
        self.routes = RouteMemory()
        self._rights: dict[str, Rights] = {}
        self._usages: dict[str, Usage] = {}
        self._on_change = on_change

    def get(self, name: str) -> UserPut | None:
        """Return the user called `name`."""
        return self.users.get(name)

    def maybe_principal(self, user: str, vhost: str) -> Principal | None:
        """Return the principal of `user` in `vhost`; None when the user may not enter it."""
        if user not in self.users or (user, vhost) not in self.permissions:
            return None
        principals = self._rights_of(user).principals
        principal = principals.get(vhost)
        if principal is None:
            principal = Principal(self.users[user], vhost, self.routes)
            self._refresh(principal)
            principals[vhost] = principal
        return principal

    def permissions_of(self, user: str) -> list[PermissionPut]:
        """Return the permissions of `user`, by vhost."""
        rights = self._rights.get(user)
        return [] if rights is None else [self.permissions[(user, vhost)] for vhost in sorted(rights.vhosts)]

    def topic_permissions_of(self, user: str) -> list[TopicPermissionPut]:
        """Return the topic permissions of `user`, by vhost and exchange."""
        rights = self._rights.get(user)
        return [] if rights is None else [rights.topics[key] for key in sorted(rights.topics)]

    def internal_principal(self, vhost: str) -> Principal | None:
        """Return the broker itself in `vhost`, for connections of its own: it may do everything."""
        principal = Principal(UserPut(INTERNAL_USER, "", "", (IMPERSONATOR,)), vhost, self.routes)
        principal.grant(PermissionPut(INTERNAL_USER, vhost, ".*", ".*", ".*"), [], principal.user)
        return principal

    def usage(self, user: str) -> Usage:
        """Return the counts and limits of `user`. Those of a user that does not exist are not kept."""
        usage = self._usages.get(user)
        if usage is None:
            usage = Usage()
            if user in self.users:
                self._usages[user] = usage
        return usage

    def limit(self, change: UserLimitsPut | UserLimitsDelete, *, stored: bool = False) -> None:
        """Set the limits of a user, or take them away. `stored`: they come from the catalogue.

        Raises:
            ValueError: there is no such user, or the limits are not valid. Nothing is changed.
        """
        if change.user not in self.users:
            raise ValueError(f"user '{change.user}' does not exist")
        limits: dict[str, int] = {}
        if isinstance(change, UserLimitsPut):
            limits = parse_limits(change.definition, USER_LIMITS, "user-limits", stored=stored)
        self.usage(change.user).limits = limits

    def apply(self, change: AccessChange, *, stored: bool = False) -> None:
        """Apply a change to all logged-in users. `stored`: it comes from the catalogue.

        Raises:
            ValueError: a pattern is not a regular expression. Nothing is changed.
        """
        if isinstance(change, UserPut):
            if change.name == INTERNAL_USER:
                raise ValueError(f"the name '{INTERNAL_USER}' is the broker's own")
            self.users[change.name] = change
        elif isinstance(change, UserDelete):
            self._forget_user(change.name)
        elif isinstance(change, PermissionPut):
            check_patterns(change, stored=stored)
            self.permissions[(change.user, change.vhost)] = change
            self._rights_of(change.user).vhosts[change.vhost] = None
        elif isinstance(change, PermissionDelete):
            self.permissions.pop((change.user, change.vhost), None)
            rights = self._rights.get(change.user)
            if rights is not None:
                rights.vhosts.pop(change.vhost, None)
        elif isinstance(change, TopicPermissionPut):
            check_patterns(change, stored=stored)
            topic_key = (change.user, change.vhost, change.exchange)
            self.topic_permissions[topic_key] = change
            self._rights_of(change.user).topics[topic_key] = change
        else:
            rights = self._rights.get(change.user)
            for topic_key in [] if rights is None else list(rights.topics):
                if topic_key[1] == change.vhost and change.exchange in ("", topic_key[2]):
                    self._forget_topic(topic_key)
        if not isinstance(change, UserDelete):
            affected = self._rights.get(change.name if isinstance(change, UserPut) else change.user)
            if affected is not None:
                for principal in affected.principals.values():
                    self._refresh(principal)
        self._on_change()

    def forget_vhost(self, vhost: str) -> list[PermissionDelete | TopicPermissionDelete]:
        """Drop the permissions of a deleted vhost and return the list of them."""
        gone: list[PermissionDelete | TopicPermissionDelete] = []
        for key in [key for key in self.permissions if key[1] == vhost]:
            del self.permissions[key]
            del self._rights[key[0]].vhosts[vhost]
            gone.append(PermissionDelete(key[0], vhost))
        topic_users: dict[str, None] = {}
        for topic_key in [key for key in self.topic_permissions if key[1] == vhost]:
            self._forget_topic(topic_key)
            topic_users[topic_key[0]] = None
        gone += [TopicPermissionDelete(user, vhost, "") for user in topic_users]
        for rights in self._rights.values():
            principal = rights.principals.pop(vhost, None)
            if principal is not None:
                principal.grant(None, [], principal.user)
        self._on_change()
        return gone

    def _forget_user(self, name: str) -> None:
        """Drop everything of a deleted user. The caller closes the connections, which hold their principals."""
        self.users.pop(name, None)
        self._usages.pop(name, None)
        rights = self._rights.pop(name, None)
        if rights is None:
            return
        for vhost in rights.vhosts:
            del self.permissions[(name, vhost)]
        for topic_key in rights.topics:
            del self.topic_permissions[topic_key]
        for principal in rights.principals.values():
            principal.grant(None, [], principal.user)

    def _rights_of(self, user: str) -> Rights:
        rights = self._rights.get(user)
        if rights is None:
            rights = Rights()
            self._rights[user] = rights
        return rights

    def _forget_topic(self, key: tuple[str, str, str]) -> None:
        del self.topic_permissions[key]
        del self._rights[key[0]].topics[key]

    def _refresh(self, principal: Principal) -> None:
        user = self.users.get(principal.user.name, principal.user)
        key = (principal.user.name, principal.vhost)
        topics = [put for put in self._rights_of(user.name).topics.values() if put.vhost == principal.vhost]
        principal.grant(self.permissions.get(key), topics, user)


def check_patterns(change: PermissionPut | TopicPermissionPut, *, stored: bool = False) -> None:
    """Make sure that the patterns of `change` are such. `stored`: it comes from the catalogue.

    Raises:
        ValueError: one is not a regular expression, or too large.
    """
    if isinstance(change, PermissionPut):
        for text in (change.configure, change.write, change.read):
            Pattern(text, stored=stored)
        return
    for text in (change.write, change.read):
        _topic_pattern(text, change, stored=stored)


def _topic_pattern(text: str, topic: TopicPermissionPut, *, stored: bool) -> Pattern:
    """Compile a pattern of `topic` as it is meant for its user and vhost.

    Raises:
        ValueError: the pattern is not valid.
    """
    # Substituted values are escaped: a user called ".*" must not widen a pattern.
    text = text.replace("{username}", _escaped(topic.user)).replace("{vhost}", _escaped(topic.vhost))
    return Pattern(text, stored=stored)


def _escaped(text: str) -> str:
    """Quote everything that could mean something in a pattern."""
    return "".join(c if c.isalnum() or ord(c) > 127 else f"\\x{{{ord(c):x}}}" for c in text)
