"""Commands for users: who may log in, with which password and tags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import typer

from warren.ctl.client import Client, Object
from warren.ctl.exit_codes import CtlError, ExitCode
from warren.ctl.session import session
from warren.ctl.words import NewPassword, User, new_password

_Tags = Annotated[list[str] | None, typer.Argument(metavar="TAG", help="administrator, monitoring, …")]
_TagsOption = Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="May be repeated")]


def add_user(context: typer.Context, user: User, password: NewPassword = None, tag: _TagsOption = None) -> None:
    """Create a user, which may log in but has no permissions yet."""
    current = session(context)
    if current.client.maybe_get("users", user) is not None:
        raise CtlError(f'user "{user}" already exists')
    body = {"password": new_password(password), "tags": ",".join(tag or [])}
    current.client.put("users", user, body=body)
    current.out.say(f'Added user "{user}"; give it permissions with set_permissions')


def delete_user(context: typer.Context, user: User) -> None:
    """Delete a user and its permissions."""
    current = session(context)
    current.client.delete("users", user)
    current.out.say(f'Deleted user "{user}"')


def change_password(context: typer.Context, user: User, password: NewPassword = None) -> None:
    """Change a user's password."""
    current = session(context)
    tags = _tags_of(current.client.get_object("users", user))
    current.client.put("users", user, body={"password": new_password(password), "tags": tags})
    current.out.say(f'Changed the password of user "{user}"')


def clear_password(context: typer.Context, user: User) -> None:
    """Remove a user's password: the user cannot log in with one."""
    current = session(context)
    tags = _tags_of(current.client.get_object("users", user))
    current.client.put("users", user, body={"password_hash": "", "tags": tags})
    current.out.say(f'Cleared the password of user "{user}"')


def set_user_tags(context: typer.Context, user: User, tags: _Tags = None) -> None:
    """Replace the tags of a user; without tags it can only use AMQP."""
    current = session(context)
    found = current.client.get_object("users", user)
    body = {
        "password_hash": found.get("password_hash", ""),
        "hashing_algorithm": found.get("hashing_algorithm", "rabbit_password_hashing_sha256"),
        "tags": ",".join(tags or []),
    }
    current.client.put("users", user, body=body)
    current.out.say(f'Tags of user "{user}": [{", ".join(tags or [])}]')


def authenticate_user(context: typer.Context, user: User, password: NewPassword = None) -> None:
    """Check a user name with a password; exit code 4 if refused."""
    current = session(context)
    with current.client_as(user, new_password(password)) as client:
        _log_in(client, user)
    current.out.say(f'User "{user}" is authenticated')


def _log_in(client: Client, user: str) -> None:
    try:
        client.get("whoami")
    except CtlError as error:
        # The password was right: only the API is not for this user.
        if error.exit_code is ExitCode.REFUSED and "not management user" in error.reason.lower():
            return
        if error.exit_code is ExitCode.REFUSED:
            raise CtlError(f'user "{user}": {error.reason}', ExitCode.REFUSED) from None
        raise


def whoami(context: typer.Context) -> None:
    """Show the user of this command."""
    current = session(context)
    current.out.record("", current.client.get_object("whoami"))


def _tags_of(user: Object) -> str:
    tags = user.get("tags", [])
    return tags if isinstance(tags, str) else ",".join(tags)


COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "add_user": add_user,
    "delete_user": delete_user,
    "change_password": change_password,
    "clear_password": clear_password,
    "set_user_tags": set_user_tags,
    "authenticate_user": authenticate_user,
    "whoami": whoami,
}
