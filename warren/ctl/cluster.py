"""Commands about the nodes that have a copy of a broker: how far they are, and making one of them the leader.

1. A transfer ends the life of the leader as such, also where it answers: from then on a node is asked again and again,
   until one leads a later epoch, and then until the old leader follows that one: it restarts, and answers nobody
   meanwhile.
2. The table of nodes is the leader's, also where a follower is asked: it forwards the request. It is left out while
   nobody leads, and when a follower of an older version is asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from warren.ctl.exit_codes import CtlError, ExitCode, usage_error
from warren.ctl.session import CommandSession, session
from warren.ctl.words import size_text

if TYPE_CHECKING:
    from warren.ctl.client import Client, Object

_POLL_S: Final = 0.1
_SKEW_MS: Final = 500  # above it clocks count as different
_HAND_OVER_S: Final = 30.0  # for another node to lead
_RETURN_S: Final = 15.0  # for a leader that has handed over to follow the next one
# The node may restart, does not know the users yet as a follower, or has no leader that answers.
_PASSING: Final = (ExitCode.UNREACHABLE, ExitCode.REFUSED, ExitCode.FAILED, ExitCode.CHECK_FAILED)
_OF_LEADER: Final = {"of": "leader"}
_FOLLOWING: Final = ("following", "catching up")


class ClusterAction(StrEnum):
    """What can be done with ``cluster``."""

    STATUS = "status"
    TRANSFER = "transfer"
    FORGET = "forget"
    DRAIN = "drain"
    REVIVE = "revive"
    RECOVER = "recover"
    PROMOTE = "promote"


_FOLLOWER_COLUMNS: Final = ("node", "state", "in_sync", "lag", "lag_s", "synced_lsn", "address", "version")


def cluster(
    context: typer.Context,
    action: Annotated[
        ClusterAction,
        typer.Argument(
            metavar="status|transfer|forget|drain|revive|recover|promote",
            help="status: leader and followers; transfer: move leadership to NODE, or to any node; forget: remove a "
            "dead NODE; drain: bar NODE from leading; revive: undo drain; recover: no leader can be elected, so use "
            "the data of this node; promote: make this follower the leader, where nodes do not elect one",
        ),
    ],
    node: Annotated[str, typer.Argument(metavar="[NODE]", help="Node name; need not be the node at --url")] = "",
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="promote, recover: even if confirmed messages may be missing on this node"),
    ] = False,
    within: Annotated[
        float, typer.Option("--within", metavar="SECONDS", min=0, help="transfer, recover: time for the new leader")
    ] = _HAND_OVER_S,
) -> None:
    """Show the nodes of a cluster; change the leader and the members (Warren)."""
    current = session(context)
    if accept_loss and action not in (ClusterAction.PROMOTE, ClusterAction.RECOVER):
        raise usage_error("--accept-loss belongs to promote and recover")
    if node and action in (ClusterAction.STATUS, ClusterAction.PROMOTE, ClusterAction.RECOVER):
        raise usage_error(f"{action} takes no node: --url names the node that is asked")
    match action:
        case ClusterAction.STATUS:
            _show(current)
        case ClusterAction.TRANSFER:
            _transfer(current, node, within)
        case ClusterAction.FORGET:
            _forget(current, node)
        case ClusterAction.DRAIN:
            _drain(current, node)
        case ClusterAction.REVIVE:
            _revive(current, node)
        case ClusterAction.RECOVER:
            _recover(current, within, accept_loss=accept_loss)
        case ClusterAction.PROMOTE:
            _promote(current, accept_loss=accept_loss)


def _transfer(current: CommandSession, node: str, within_s: float) -> None:
    client = current.client
    epoch = int(client.get_object("cluster", "status").get("epoch") or 0)
    answer = client.post("cluster", "transfer", body={"node": node} if node else {}).value
    wanted = str(answer["node"])
    current.out.say(f"{answer['from']} hands over to {wanted}")
    _watch_hand_over(current, str(answer["from"]), wanted, epoch, within_s)


def _watch_hand_over(current: CommandSession, before: str, wanted: str, epoch: int, within_s: float) -> None:
    """Wait until another node leads, `wanted` if a name is given, and until the node that led before follows it."""
    client = current.client
    began_s = time.monotonic()
    leader = _later_leader(client, epoch, began_s + within_s)
    if wanted and leader != wanted:
        raise CtlError(f"{leader} leads: {wanted} has not taken over. The log of {wanted} says why")
    current.out.say(f"{leader} leads, after {time.monotonic() - began_s:.1f} s")
    if _follows_in_time(client, before, time.monotonic() + _RETURN_S):
        current.out.say(f"{before} follows, after {time.monotonic() - began_s:.1f} s")
    else:
        current.out.say(
            f"{before} does not follow yet: it restarts, and refuses connections meanwhile. Its log says more"
        )


def _follows_in_time(client: Client, node: str, give_up_s: float) -> bool:
    """Wait until the leader has the node as a follower; False: it has not in time, or nobody says so."""
    while True:
        row = next((row for row in _nodes(client) if row.get("name") == node), {})
        if row.get("state") in _FOLLOWING:
            return True
        if time.monotonic() >= give_up_s:
            return False
        time.sleep(_POLL_S)


def forget_cluster_node(
    context: typer.Context, node: Annotated[str, typer.Argument(help="The name of the node")]
) -> None:
    """Remove a dead node from the member count."""
    _forget(session(context), node)


def drain(
    context: typer.Context, node: Annotated[str, typer.Argument(metavar="[NODE]", help="Default: the one asked")] = ""
) -> None:
    """Bar a node from leading until it is revived: maintenance mode. A leader hands over."""
    _drain(session(context), node)


def revive(
    context: typer.Context, node: Annotated[str, typer.Argument(metavar="[NODE]", help="Default: the one asked")] = ""
) -> None:
    """Allow a drained node to lead again."""
    _revive(session(context), node)


def await_online_nodes(
    context: typer.Context,
    count: Annotated[int, typer.Argument(min=1, help="Number of nodes, including the leader")],
    within: Annotated[float, typer.Option("--within", metavar="SECONDS", min=0, help="Give up after so long")] = 300.0,
) -> None:
    """Wait until this number of cluster nodes run."""
    current = session(context)
    give_up_s = time.monotonic() + within
    while (found := _online(current.client)) < count:
        if time.monotonic() >= give_up_s:
            raise CtlError(f"{found} nodes run after {within:g} s, not {count}", ExitCode.CHECK_FAILED)
        time.sleep(_POLL_S)
    current.out.say(f"Running nodes: {found}")


def _online(client: Client) -> int:
    """Return how many nodes run, as the leader knows it; 0 while nobody says so."""
    return sum(bool(node.get("running")) for node in _nodes(client))


def _nodes(client: Client) -> list[Object]:
    """Return the rows of the nodes, as the leader knows them; nothing while nobody says so."""
    try:
        return client.get_list("nodes")
    except CtlError as error:
        if error.exit_code not in _PASSING:
            raise
        return []


def _forget(current: CommandSession, node: str) -> None:
    if not node:
        raise usage_error("forget needs the name of a node")
    current.client.post("cluster", "forget", body={"node": node})
    current.out.say(f"{node} is forgotten: it no longer counts, and can join again only with an empty directory")


def _drain(current: CommandSession, node: str) -> None:
    found = current.client.get_object("cluster", "status")
    asked = str(found["node"])
    node = node or asked
    leads = node == (found.get("leader") if found.get("role") == "follower" else asked)
    current.client.post("cluster", "drain", body={"node": node})
    current.out.say(f"{node} is drained: it does not lead until it is revived")
    if leads:
        _watch_hand_over(current, node, "", int(found.get("epoch") or 0), _HAND_OVER_S)


def _revive(current: CommandSession, node: str) -> None:
    node = node or _asked_node(current)
    current.client.post("cluster", "revive", body={"node": node})
    current.out.say(f"{node} is revived: it may lead again")


def _asked_node(current: CommandSession) -> str:
    return str(current.client.get_object("cluster", "status")["node"])


def _recover(current: CommandSession, within_s: float, *, accept_loss: bool) -> None:
    client = current.client
    found = client.get_object("cluster", "status")
    if found.get("role") != "follower":
        raise CtlError(f"{found.get('node')} leads: nothing has to be recovered")
    answer = client.post("cluster", "recover", body={"accept_loss": accept_loss}).value
    epoch = int(answer["epoch"])
    current.out.say(f"{answer['node']} is recovered, from its log up to {answer['synced_lsn']} of epoch {epoch}")
    leader = _later_leader(client, epoch, time.monotonic() + within_s)
    if leader != answer["node"]:
        raise CtlError(f"{leader} leads: {answer['node']} was not recovered")
    current.out.say(f"{leader} leads. Other nodes follow it, and drop what it does not have")


def _later_leader(client: Client, epoch: int, give_up_s: float) -> str:
    """Wait until a node leads an epoch after this one, and return its name."""
    while True:
        try:
            found = client.get_object("cluster", "status")
        except CtlError as error:
            if error.exit_code not in _PASSING:
                raise
            found = {}
        if int(found.get("epoch") or 0) > epoch:
            if found.get("role") == "leader":
                return str(found["node"])
            if found.get("connected"):
                return str(found["leader"])
        if time.monotonic() >= give_up_s:
            raise CtlError(
                "nobody is known to lead yet: see `warren ctl cluster status`, at each node", ExitCode.FAILED
            )
        time.sleep(_POLL_S)


def _promote(current: CommandSession, *, accept_loss: bool) -> None:
    found = current.client.get_object("cluster", "status")
    if found.get("role") != "follower":
        raise CtlError(f"{found.get('node')} leads already: name a follower with --url")
    answer = current.client.post("cluster", "promote", body={"accept_loss": accept_loss}).value
    note = answer.get("note") if isinstance(answer, dict) else ""
    current.out.say("Promoted: this node is the leader from now on")
    if note:
        current.out.say(str(note))


def _show(current: CommandSession) -> None:
    found = current.client.get_object("cluster", "status")
    if current.out.is_json:
        current.out.document(found)
        return
    if found.get("role") == "follower":
        leader = _maybe_leader(current.client) if found.get("connected") else None
        current.out.record("Follower", _follower(found, leader))
        if leader is None:
            return
        found = leader
        current.out.say("")
    _show_leader(current, found)


def _maybe_leader(client: Client) -> Object | None:
    """Return the status of the leader of the follower that is asked; None: it does not answer, or is not asked."""
    try:
        found = client.get_object("cluster", "status", query=_OF_LEADER)
    except CtlError:
        return None
    return found if found.get("role") == "leader" else None


def _show_leader(current: CommandSession, found: Object) -> None:
    in_sync = found.get("in_sync", [])
    current.out.record(
        "Leader" if found.get("role") == "leader" else "Broker without followers",
        {
            "node": found.get("node"),
            **({"management": ", ".join(map(str, found["http"]))} if found.get("http") else {}),
            "epoch": found.get("epoch"),
            "in sync": ", ".join(str(name) for name in in_sync),
            "min_in_sync": found.get("min_in_sync"),
            "committed": found.get("committed_lsn"),
            "format": found.get("format_level"),
            "trouble": found.get("trouble") or "none",
            **_etcd(found),
            **{name: ", ".join(map(str, found[name])) for name in ("drained", "forgotten") if found.get(name)},
        },
    )
    current.out.rows(_FOLLOWER_COLUMNS, ([_cell(row, name) for name in _FOLLOWER_COLUMNS] for row in _others(found)))


def _others(found: Object) -> list[Object]:
    """Return the other nodes: those that the leader has a connection of, then members that it only knows of."""
    rows: list[Object] = list(found["followers"])
    there = {found.get("node"), *(row["node"] for row in rows)}
    return rows + [row for row in found.get("members", ()) if row["node"] not in there]


def _etcd(found: Object) -> dict[str, object]:
    trouble = found.get("election", {}).get("etcd", {}).get("trouble")
    return {"etcd": trouble} if trouble else {}


def _follower(found: Object, leader: Object | None) -> dict[str, object]:
    return {
        "node": found.get("node"),
        "leader": _where(found, leader),
        "connected": "yes" if found.get("connected") else f"no: {found.get('trouble')}",
        "in sync": _yes(found.get("in_sync")),
        **_last_in_sync(found),
        "epoch": found.get("epoch"),
        "synced": found.get("synced_lsn"),
        "lag": size_text(int(found.get("lag_bytes") or 0)),
        **_by_record(found),
        **_etcd(found),
    }


def _where(found: Object, leader: Object | None) -> str:
    """Return the name of the leader of a follower, and where to ask it; else where the follower connects."""
    name = found.get("leader") or "unknown"
    urls = [] if leader is None or leader.get("node") != name else leader.get("http") or []
    return f"{name} at {urls[0]}" if urls else f"{name}, cluster port {found.get('leader_address')}"


def _by_record(found: Object) -> dict[str, object]:
    """Return what a follower knows of the cluster, and what is wrong with itself."""
    shown: dict[str, object] = {}
    if nodes := found.get("in_sync_nodes"):
        names = ", ".join(map(str, nodes))
        age_s = found.get("election", {}).get("record_age_s")
        shown["nodes in sync"] = names if age_s is None else f"{names}, as etcd said {age_s:.1f} s ago"
        shown["min_in_sync"] = found.get("min_in_sync")
    if abs(skew_ms := int(found.get("clock_skew_ms") or 0)) > _SKEW_MS:
        shown["clock"] = f"{abs(skew_ms) / 1000:.0f} s {'ahead of' if skew_ms > 0 else 'behind'} the leader's"
    if found.get("connected") and found.get("trouble"):
        shown["trouble"] = found["trouble"]
    return shown


def _last_in_sync(found: Object) -> dict[str, object]:
    """Return when a standby was in sync, unless it is."""
    at_ms = found.get("last_in_sync_ms")
    if found.get("connected") or "in_sync_since_start" not in found:
        return {}
    if not isinstance(at_ms, int):
        return {"last in sync": "not known"}
    before = "" if found["in_sync_since_start"] else ", before this start"
    return {"last in sync": f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC{before}"}


def _cell(row: Object, name: str) -> object:
    if name == "state":
        if waits_s := row.get("waits_s"):
            return f"given up, again in {waits_s:.0f} s: {row.get('trouble')}"
        if "state" in row:
            return row["state"]
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


COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "cluster": cluster,
    "forget_cluster_node": forget_cluster_node,
    "await_online_nodes": await_online_nodes,
    "drain": drain,
    "revive": revive,
}
