"""The identity of a peer, its terms, and whether it may enter its vhost: the same for every protocol.

`LoginRequest` is taken by the shell, which verifies the credentials off the engine. Until it answers nothing more is
read. An unknown user and a wrong password are refused alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from warren.amqp.errors import NOT_ALLOWED, ConnectionException
from warren.amqp.field_table import Table
from warren.channels.access import Usage
from warren.vhosts.limits import MAX_CHANNELS, MAX_CONNECTIONS, is_reached
from warren.vhosts.topology_watcher import INTERNAL_USER

if TYPE_CHECKING:
    from warren.channels.peer import Peer


# For peers without any: never changed.
_NO_TABLE: Final[Table] = {}
# Every client names one of these: one text for all of them.
_NAMES: Final = {name: name for name in ("PLAIN", "AMQPLAIN", "EXTERNAL", "ANONYMOUS")}


def shared_name(mechanism: str) -> str:
    """Return the name of a SASL mechanism, as one text for all connections."""
    return _NAMES.get(mechanism, mechanism)


@mypyc_attr(acyclic=True)
class Login:
    """The statements of a peer about itself in its login, and its agreements with the broker."""

    def __init__(self, frame_max_bytes: int, channel_max: int) -> None:
        self.has_begun: bool = False
        self.mechanism = ""
        self.user_name = ""
        self.vhost_name = ""
        self.name = ""  # of the connection, as the client calls it
        self.stated_properties = _NO_TABLE
        self.frame_max_bytes = frame_max_bytes
        self.channel_max = channel_max
        self.channels_opened: int = 0  # ever
        self.usage: Usage | None = None  # of the user, while the connection is open

    def count_channel(self) -> None:
        """Count one more channel of the user.

        Raises:
            ConnectionException: 530, the user has as many as it may have.
        """
        usage = self.usage
        if usage is None:
            return
        if is_reached(usage.limits, MAX_CHANNELS, usage.channels):
            raise ConnectionException(
                NOT_ALLOWED,
                f"number of channels opened for user '{self.user_name}' has reached the maximum allowed user limit of "
                f"({usage.limits[MAX_CHANNELS]})",
            )
        usage.channels += 1


class ConnectionLimitReached(ConnectionException):
    """As many are connected as may be: 530, as in RabbitMQ; some protocols have a better word."""

    def __init__(self, explanation: str) -> None:
        super().__init__(NOT_ALLOWED, explanation)


class LoginRequest:
    """Credentials for the shell to verify, off the engine. ``certificate`` means that TLS has verified already.

    ``problem``: why they are missing, ``""``: they are not. Refuse such a request, as late as any other.
    """

    def __init__(
        self, peer: Peer, mechanism: str, user: str, password: bytes, certificate: bool, problem: str = ""
    ) -> None:
        self.peer = peer
        self.mechanism = mechanism
        self.user = user
        self.password = password
        self.certificate = certificate
        self.problem = problem

    def accept(self, user: str) -> None:
        """Accept the login: the shell says that the peer is `user`."""
        peer = self.peer
        if not peer.is_checking_login():
            return  # it has ended meanwhile
        broker = peer.broker
        known = broker.access.get(user)
        peer.login.user_name = user if known is None else known.name  # one text for all connections of a user
        broker.note_user(peer)
        broker.churn.logins_accepted += 1
        broker.events.authenticated(peer, user, True)
        peer.login_accepted()

    def refuse(self) -> None:
        """Refuse the login: the shell does not know the user."""
        peer = self.peer
        if not peer.is_checking_login():
            return
        broker = peer.broker
        broker.churn.logins_refused += 1
        broker.events.authenticated(peer, self.user, False)
        peer.login_refused(self)


def about_peer(peer: Peer) -> dict[str, object]:
    """Return the first fields of a log line about a peer."""
    login = peer.login
    return {"peer": peer.origin.peer, "user": login.user_name, "vhost": login.vhost_name}


def note_opened(peer: Peer) -> None:
    """Log that a peer works in its vhost, and notify the listeners; the peer has been told."""
    login = peer.login
    fields = about_peer(peer)
    if login.name:
        fields["name"] = login.name
    peer.broker.note("info", "connection.opened", fields)
    peer.broker.events.connection_created(peer)


def enter_vhost(peer: Peer, name: str) -> None:
    """Admit a peer whose user is known to the vhost called `name`.

    Raises:
        ConnectionException: 530, there is no such vhost, or the user may not enter it.
        ConnectionLimitReached: 530, too.
    """
    broker = peer.broker
    user = peer.login.user_name
    limit = broker.limits.connections_max
    if broker.open_connections >= limit:
        raise ConnectionLimitReached(f"connection refused: node connection limit ({limit}) is reached")
    vhost = broker.vhosts.get(name)
    if vhost is None:
        raise ConnectionException(NOT_ALLOWED, f"vhost {name} not found")
    if is_reached(vhost.limits, MAX_CONNECTIONS, vhost.open_connections):
        text = (
            f"access to vhost '{name}' refused for user '{user}': "
            f"connection limit ({vhost.limits[MAX_CONNECTIONS]}) is reached"
        )
        raise ConnectionLimitReached(text)
    usage = broker.access.usage(user)
    if is_reached(usage.limits, MAX_CONNECTIONS, usage.connections):
        text = (
            f"connection refused for user '{user}': user connection limit ({usage.limits[MAX_CONNECTIONS]}) is reached"
        )
        raise ConnectionLimitReached(text)
    if peer.origin.is_internal and user == INTERNAL_USER:
        principal = broker.access.internal_principal(name)
    else:
        principal = broker.access.maybe_principal(user, name)
    if principal is None:
        raise ConnectionException(NOT_ALLOWED, f"access to vhost '{name}' refused for user '{user}'")
    peer.opened(vhost, principal, usage)
