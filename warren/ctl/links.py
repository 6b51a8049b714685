"""Commands for shovels, federation links and tables that follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import typer

from warren.ctl.exit_codes import CtlError, ExitCode
from warren.ctl.session import session

_Name = Annotated[str, typer.Argument(metavar="NAME")]
_LinkId = Annotated[str, typer.Argument(metavar="ID", help="As in federation_status id")]


def delete_shovel(context: typer.Context, name: _Name) -> None:
    """Delete a shovel."""
    current = session(context)
    current.client.delete("parameters", "shovel", current.vhost, name)
    current.out.say(f'Deleted shovel "{name}" in vhost "{current.vhost}"')


def restart_shovel(context: typer.Context, name: _Name) -> None:
    """Restart a shovel."""
    current = session(context)
    current.client.delete("shovels", "vhost", current.vhost, name, "restart")
    current.out.say(f'Restarted shovel "{name}" in vhost "{current.vhost}"')


def delete_lake_table(context: typer.Context, name: _Name) -> None:
    """Stop a table from following its source; the table stays (Warren)."""
    current = session(context)
    current.client.delete("parameters", "lake", current.vhost, name)
    current.out.say(f'The table "{name}" in vhost "{current.vhost}" stopped following')


def restart_lake_table(context: typer.Context, name: _Name) -> None:
    """Restart a table that follows a source; it continues where it stopped (Warren)."""
    current = session(context)
    current.client.delete("lake", "vhost", current.vhost, name, "restart")
    current.out.say(f'Restarted the table "{name}" in vhost "{current.vhost}"')


def restart_federation_link(context: typer.Context, link: _LinkId) -> None:
    """Restart a federation link."""
    current = session(context)
    for found in current.client.get_list("federation-links", current.vhost):
        if found.get("id") == link:
            current.client.delete("federation-links", "vhost", current.vhost, link, found["node"], "restart")
            current.out.say(f"Restarted federation link {link}")
            return
    raise CtlError(f'not found: federation link "{link}" in vhost "{current.vhost}"', ExitCode.NOT_FOUND)


def release_links(context: typer.Context) -> None:
    """Start held shovels, federation links and tables: of a restored or copied broker (Warren)."""
    current = session(context)
    answer = current.client.post("warren", "links", "release", body={}).value
    was_held = isinstance(answer, dict) and answer.get("released")
    current.out.say("Links are released" if was_held else "Links were not held")


COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "delete_shovel": delete_shovel,
    "restart_shovel": restart_shovel,
    "release_links": release_links,
    "restart_federation_link": restart_federation_link,
    "delete_lake_table": delete_lake_table,
    "restart_lake_table": restart_lake_table,
}
