"""Commands about the nodes that have a copy of a broker: how far they are, and making one of them the leader."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Final

import typer

from warren.ctl.client import Object
from warren.ctl.errors import CtlError, usage_error
from warren.ctl.session import Session, session
from warren.ctl.words import size_text


class ClusterAction(StrEnum):
    """What can be done with ``cluster``."""

    STATUS = "status"
    PROMOTE = "promote"


_FOLLOWER_COLUMNS: Final = ("node", "state", "in_sync", "lag", "lag_s", "synced_lsn", "address")


def cluster(
    context: typer.Context,
    action: Annotated[
        ClusterAction,
        typer.Argument(
            metavar="status|promote", help="status: the leader and its followers; promote: have this follower lead"
        ),
    ],
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="promote: though confirmed messages may be missing on this follower"),
    ] = False,
) -> None:
    """Show a leader and its followers, or promote the follower that --url names (Warren)."""
    current = session(context)
    if action is ClusterAction.PROMOTE:
        _promote(current, accept_loss=accept_loss)
    elif accept_loss:
        raise usage_error("--accept-loss belongs to promote")
    else:
        _show(current)


def _promote(current: Session, *, accept_loss: bool) -> None:
    found = current.client.get_object("cluster", "status")
    if found.get("role") != "follower":
        raise CtlError(f"{found.get('node')} leads already: name a follower with --url")
    answer = current.client.post("cluster", "promote", body={"accept_loss": accept_loss}).value
    note = answer.get("note") if isinstance(answer, dict) else ""
    current.out.say("Promoted: this node is the leader from now on")
    if note:
        current.out.say(str(note))


def _show(current: Session) -> None:
    found = current.client.get_object("cluster", "status")
    if current.out.is_json:
        current.out.document(found)
        return
    if found.get("role") == "follower":
        current.out.record("Follower", _follower(found))
        return
    in_sync = found.get("in_sync", [])
    current.out.record(
        "Leader" if found.get("role") == "leader" else "Broker without followers",
        {
            "node": found.get("node"),
            "epoch": found.get("epoch"),
            "in sync": ", ".join(str(name) for name in in_sync),
            "min_in_sync": found.get("min_in_sync"),
            "committed": found.get("committed_lsn"),
            "trouble": found.get("trouble") or "none",
        },
    )
    current.out.rows(
        _FOLLOWER_COLUMNS, ([_cell(row, name) for name in _FOLLOWER_COLUMNS] for row in found["followers"])
    )


def _follower(found: Object) -> dict[str, object]:
    return {
        "node": found.get("node"),
        "leader": f"{found.get('leader') or 'unknown'} at {found.get('leader_address')}",
        "connected": "yes" if found.get("connected") else f"no: {found.get('trouble')}",
        "in sync": _yes(found.get("in_sync")),
        "epoch": found.get("epoch"),
        "synced": found.get("synced_lsn"),
        "lag": size_text(int(found.get("lag_bytes") or 0)),
    }


def _cell(row: Object, name: str) -> object:
    if name == "state":
        if not row.get("connected"):
            return "gone"
        return "catching up" if row.get("catching_up") else "following"
    if name == "in_sync":
        return _yes(row.get("in_sync"))
    if name == "lag":
        lag = row.get("lag_bytes")
        return size_text(lag) if isinstance(lag, int) else None
    return row.get(name)


def _yes(value: object) -> str:
    return "yes" if value else "no"


COMMANDS: Final[dict[str, Callable[..., None]]] = {"cluster": cluster}
