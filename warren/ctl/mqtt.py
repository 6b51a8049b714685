"""Commands for MQTT: sessions of clients ended, retained messages cleared (Warren)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import typer

from warren.ctl.session import session
from warren.ctl.words import counted

_ClientId = Annotated[str, typer.Argument(metavar="CLIENT_ID", show_default=False)]
_Filter = Annotated[str, typer.Argument(metavar="FILTER", help="sensors/+/t, or # for all", show_default=False)]


def end_mqtt_session(context: typer.Context, client_id: _ClientId) -> None:
    """End the session of an MQTT client and drop its messages; a connected client is disconnected (Warren)."""
    current = session(context)
    current.client.delete("warren", "mqtt-sessions", current.vhost, client_id)
    current.out.say(f'Ended the MQTT session of "{client_id}" in vhost "{current.vhost}"')


def clear_retained(context: typer.Context, topics: _Filter) -> None:
    """Clear the retained messages of the topics that a filter matches (Warren)."""
    current = session(context)
    found = current.client.request("DELETE", ("warren", "retained", current.vhost), query={"filter": topics}).value
    if current.out.is_json:
        current.out.document(found)
        return
    cleared = counted(found["cleared"], "retained message")
    refused = f"; {counted(found['refused'], 'other')} may not be cleared" if found["refused"] else ""
    current.out.say(f'Cleared {cleared} in vhost "{current.vhost}"{refused}')


COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "end_mqtt_session": end_mqtt_session,
    "clear_retained": clear_retained,
}
