"""Commands for permissions: three patterns per user and vhost, two per topic exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import typer

from warren.ctl.completion import exchange_names
from warren.ctl.session import session
from warren.ctl.words import Exchange, User

_Configure = Annotated[str, typer.Argument(metavar="CONFIGURE", help="Names the user may declare and delete: a regex")]
_Write = Annotated[str, typer.Argument(metavar="WRITE", help="Names the user may publish or bind to: a regex")]
_Read = Annotated[str, typer.Argument(metavar="READ", help="Names the user may consume or bind from: a regex")]
_WriteKey = Annotated[str, typer.Argument(metavar="WRITE", help="Routing keys the user may publish with: a regex")]
_ReadKey = Annotated[str, typer.Argument(metavar="READ", help="Binding keys the user may bind with: a regex")]
_MaybeExchange = Annotated[
    str | None, typer.Argument(metavar="EXCHANGE", help="Default: of all exchanges", autocompletion=exchange_names)
]


def set_permissions(context: typer.Context, user: User, configure: _Configure, write: _Write, read: _Read) -> None:
    """Grant a user access to a vhost, with permissions."""
    current = session(context)
    body = {"configure": configure, "write": write, "read": read}
    current.client.put("permissions", current.vhost, user, body=body)
    current.out.say(f'Permissions of user "{user}" in vhost "{current.vhost}" are set')


def clear_permissions(context: typer.Context, user: User) -> None:
    """Remove a user's access to a vhost."""
    current = session(context)
    current.client.delete("permissions", current.vhost, user)
    current.out.say(f'Permissions of user "{user}" in vhost "{current.vhost}" are cleared')


def set_topic_permissions(
    context: typer.Context, user: User, exchange: Exchange, write: _WriteKey, read: _ReadKey
) -> None:
    """Restrict the routing keys that a user may use with a topic exchange."""
    current = session(context)
    body = {"exchange": exchange, "write": write, "read": read}
    current.client.put("topic-permissions", current.vhost, user, body=body)
    current.out.say(f'Topic permissions of user "{user}" for exchange "{exchange}" are set')


def clear_topic_permissions(context: typer.Context, user: User, exchange: _MaybeExchange = None) -> None:
    """Remove the restrictions on routing keys for a user."""
    current = session(context)
    which = () if exchange is None else (exchange,)
    current.client.delete("topic-permissions", current.vhost, user, *which)
    current.out.say(f'Topic permissions of user "{user}" are cleared')


COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "set_permissions": set_permissions,
    "clear_permissions": clear_permissions,
    "set_topic_permissions": set_topic_permissions,
    "clear_topic_permissions": clear_topic_permissions,
}
