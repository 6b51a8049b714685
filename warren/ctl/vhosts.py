"""Commands for vhosts, their tracing, and the limits of vhosts and users."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import typer

from warren.ctl.completion import vhost_names
from warren.ctl.exit_codes import CtlError, usage_error
from warren.ctl.session import CommandSession, session
from warren.ctl.words import User, Vhost, json_object

_Limits = Annotated[str, typer.Argument(metavar="JSON", help='{"max-connections": 100}; -1: no limit')]
_MaybeVhost = Annotated[
    str | None,
    typer.Argument(metavar="VHOST", help="Default: the vhost given by --vhost", autocompletion=vhost_names),
]


def add_vhost(
    context: typer.Context,
    vhost: Vhost,
    description: Annotated[str | None, typer.Option(metavar="TEXT")] = None,
    tags: Annotated[str | None, typer.Option(metavar="TAG,TAG")] = None,
    default_queue_type: Annotated[str | None, typer.Option(metavar="TYPE", help="classic, quorum or stream")] = None,
) -> None:
    """Create a vhost, or change its description."""
    current = session(context)
    given = {"description": description, "tags": tags, "default_queue_type": default_queue_type}
    current.client.put("vhosts", vhost, body={key: value for key, value in given.items() if value is not None})
    current.out.say(f'Added vhost "{vhost}"')


def delete_vhost(context: typer.Context, vhost: Vhost) -> None:
    """Delete a vhost with everything in it."""
    current = session(context)
    current.client.delete("vhosts", vhost)
    current.out.say(f'Deleted vhost "{vhost}"')


def trace_on(context: typer.Context, vhost: _MaybeVhost = None) -> None:
    """Copy every message of a vhost to amq.rabbitmq.trace."""
    _trace(session(context), vhost, wanted=True)


def trace_off(context: typer.Context, vhost: _MaybeVhost = None) -> None:
    """Stop copying messages to amq.rabbitmq.trace."""
    _trace(session(context), vhost, wanted=False)


def _trace(current: CommandSession, named: str | None, *, wanted: bool) -> None:
    vhost = named or current.vhost
    # A PUT would create a vhost that is not there.
    current.client.get_object("vhosts", vhost)
    current.client.put("vhosts", vhost, body={"tracing": wanted})
    current.out.say(f'Tracing of vhost "{vhost}" is {"on" if wanted else "off"}')


def set_vhost_limits(context: typer.Context, limits: _Limits) -> None:
    """Set limits of a vhost: max-connections, max-queues."""
    current = session(context)
    _set_limits(current, "vhost", current.vhost, limits)


def clear_vhost_limits(context: typer.Context) -> None:
    """Remove all limits of a vhost."""
    current = session(context)
    _clear_limits(current, "vhost", current.vhost, "all")


def set_user_limits(context: typer.Context, user: User, limits: _Limits) -> None:
    """Set limits of a user: max-connections, max-channels."""
    _set_limits(session(context), "user", user, limits)


def clear_user_limits(
    context: typer.Context,
    user: User,
    limit: Annotated[str, typer.Argument(metavar="LIMIT", help="One limit, or all")] = "all",
) -> None:
    """Remove one limit of a user, or all."""
    _clear_limits(session(context), "user", user, limit)


def _set_limits(current: CommandSession, kind: str, name: str, text: str) -> None:
    limits = json_object(text, "limits")
    for limit, value in limits.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise usage_error(f"limits: {limit} must be an integer")
    for limit, value in limits.items():
        current.client.put(f"{kind}-limits", name, limit, body={"value": value})
    current.out.say(f'Limits of {kind} "{name}" are set: {", ".join(limits)}')


def _clear_limits(current: CommandSession, kind: str, name: str, limit: str) -> None:
    found = current.client.get_list(f"{kind}-limits", name)
    set_now = [key for item in found if item.get(kind) == name for key in item.get("value", {})]
    if limit != "all" and limit not in set_now:
        raise CtlError(f'{kind} "{name}" has no limit {limit}')
    for key in set_now if limit == "all" else [limit]:
        current.client.delete(f"{kind}-limits", name, key)
    current.out.say(f'Limits of {kind} "{name}" are cleared')


COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "add_vhost": add_vhost,
    "delete_vhost": delete_vhost,
    "trace_on": trace_on,
    "trace_off": trace_off,
    "set_vhost_limits": set_vhost_limits,
    "clear_vhost_limits": clear_vhost_limits,
    "set_user_limits": set_user_limits,
    "clear_user_limits": clear_user_limits,
}
