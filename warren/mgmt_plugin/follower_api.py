"""The HTTP interface of a follower: its state, and its promotion. All other requests are forwarded to its leader.

    GET   /health                 200 while clients are passed on to a leader, else 503 and why
    GET   /health/leader          503: this node does not lead
    GET   /health/follower        200 while it is in sync with its leader, else 503 and why
    GET   /health/ready           200 while it is in sync, and passes clients on, else 503 and why
    GET   /health/live            200: the loop of this process turns
    GET   /metrics                for Prometheus
    GET   /api/cluster/status     where it is, and which node leads; users with the tag monitoring. With of=leader
                                  the leader answers, while there is one
    GET   /api/nodes, …/NAME      the nodes by what is known here, while it follows nobody; likewise
    POST  /api/cluster/promote    become the leader; administrators, with an audit line
    POST  /api/cluster/recover    make the data of this node the truth for all nodes; the same
    GET   …/data/…/chunks         sealed chunks of streams, while it is in sync (``follower_chunks.py``)
    all other requests            as the leader answers them (``http/forwarding.py``); 503 without a leader

1. Users are those of its leader, as far as they have come here. An empty follower has no users and refuses all logins.
2. On the port for Prometheus nobody logs in, as on a broker. Nothing is forwarded there.
3. The leader checks a forwarded request: it has the users, and is told the address of the client.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from warren.engine_view.permissions import Permissions
from warren.mgmt_plugin import audit
from warren.mgmt_plugin.follower_chunks import is_for_chunks, maybe_chunks
from warren.mgmt_plugin.http.forwarding import forward
from warren.mgmt_plugin.http.server import HttpError, Request, Response
from warren.mgmt_plugin.metrics.election import election_metrics
from warren.mgmt_plugin.metrics.exposition import TEXT
from warren.mgmt_plugin.operators import Doorkeeper, Operator
from warren.mgmt_plugin.resources.cluster import LEADER, OF, member_row
from warren.mgmt_plugin.routes import Access, not_authorised, not_found, parse_query
from warren.server.client_of_node import HTTP, ClientOfNode
from warren.server.following import Following, NoLeader, NotPromoted
from warren.server.logins.authenticator import Authenticator
from warren.server.management import Health
from warren.vhosts.metadata import UserPut

BODY_BYTES_MAX: Final = 4096
NODE: Final = "/api/nodes/"
HEALTH: Final = ("/health", "/health/leader", "/health/follower", "/health/ready", "/health/live")
_GAUGES: Final = (
    ("connected", "whether the follower is connected to its leader"),
    ("in_sync", "whether the follower is in sync, or a standby was when its link ended"),
    ("received_lsn", "up to where the log is written"),
    ("synced_lsn", "up to where the log is synced"),
    ("committed_lsn", "up to where the leader has said that the log is committed"),
    ("lag_bytes", "what is committed and not synced here"),
    ("epoch", "of the leader that is followed"),
    ("mended", "places on disk that were damaged, and mended from the leader"),
    ("damaged", "places on disk that are damaged, and could not be mended"),
    ("quarantine_files", "copies in the quarantine of the store"),
    ("quarantine_bytes", "how many bytes these have"),
    ("served_bytes", "of sealed chunks of streams, which this follower has answered readers itself"),
)


class FollowerApi:
    """Answers every request to a follower."""

    def __init__(self, following: Following) -> None:
        self._following = following
        self._access = Permissions.of_records()
        settings = following.settings
        hosts = {name.strip().lower() for name in settings.http_hosts.split(",") if name.strip()}
        hosts |= {endpoint.host for endpoint in (settings.http, settings.https) if endpoint is not None}
        # A stored hash stays as it is: changes of the metadata come from the leader.
        self._doorkeeper = Doorkeeper(self._access, Authenticator(self._access, _keep), frozenset(hosts))

    async def respond(self, request: Request) -> Response:
        """Answer one request.

        Raises:
            HttpError: it is refused.
        """
        path = request.path.rstrip("/")
        match request.method, path:
            case ("GET" | "HEAD", _) if path in HEALTH:
                return self._health(path)
            case ("GET" | "HEAD", "/metrics"):
                _need((await self._identify(request)).is_monitor, Access.MONITORING)
                return self._metrics()
            case ("GET" | "HEAD", "/api/cluster/status") if not self._is_of_leader(request):
                _need((await self._identify(request)).is_monitor, Access.MONITORING)
                return _json(self._following.status())
            case ("GET" | "HEAD", "/api/nodes") if self._following.leader() is None:
                return await self._nodes(request, "")
            case ("GET" | "HEAD", node) if node.startswith(NODE) and self._following.leader() is None:
                return await self._nodes(request, unquote(node.removeprefix(NODE)))
            case ("POST", "/api/cluster/promote" | "/api/cluster/recover"):
                operator = await self._identify(request)
                request.concluded = audit.line_of(request, operator.name)
                _need(operator.is_administrator, Access.ADMINISTRATOR)
                is_recovery = path.endswith("/recover")
                return await self._promote(request, self._following.recover if is_recovery else self._following.promote)
        if is_for_chunks(request) and (found := await self._maybe_chunks(request)) is not None:
            return found
        return await self._forwarded(request)

    async def respond_to_anybody(self, request: Request) -> Response:
        """Answer one request on the port without logins.

        Raises:
            HttpError: it is refused.
        """
        path = request.path.rstrip("/")
        if request.method in ("GET", "HEAD") and path in HEALTH:
            return self._health(path)
        if request.method in ("GET", "HEAD") and path == "/metrics":
            return self._metrics()
        raise HttpError(404, "not_found", "only /metrics and /health exist here")

    def _is_of_leader(self, request: Request) -> bool:
        """Tell whether the leader should describe the cluster, and there is one."""
        return self._following.leader() is not None and parse_query(request.query).get(OF) == LEADER

    async def _nodes(self, request: Request, name: str) -> Response:
        """Return a row for each node, or that of the one called `name`."""
        _need((await self._identify(request)).is_monitor, Access.MONITORING)
        rows = [member_row(row) for row in self._following.status()["members"]]
        if not name:
            return Response(200, msgspec.json.encode(rows))
        for row in rows:
            if row["name"] == name:
                return _json(row)
        raise not_found()

    async def _maybe_chunks(self, request: Request) -> Response | None:
        """Serve chunks that this node has to users that it knows; None: the leader answers, or refuses."""
        if self._following.readable() is None:
            return None
        try:
            operator = await self._identify(request)
        except HttpError:
            return None
        return await maybe_chunks(self._following, request, operator.name)

    async def _forwarded(self, request: Request) -> Response:
        """Forward the request to the leader, and return its answer.

        Raises:
            HttpError: there is no leader, or it does not answer.
        """
        settings = self._following.settings
        own = settings.https if request.is_tls else settings.http
        host = f"[{request.peer}]" if ":" in request.peer else request.peer
        client = ClientOfNode(f"{host}:0", str(own), is_tls=request.is_tls, protocol=HTTP)
        try:
            passage = await self._following.to_leader(client)
        except NoLeader as reason:
            text = f"the leader of this cluster could not be reached: {reason}"
            raise HttpError(503, "unavailable", text, (("Retry-After", "1"),)) from None
        return await forward(request, passage.sock)

    async def _identify(self, request: Request) -> Operator:
        self._access.replace_users(self._following.users())
        operator = await self._doorkeeper.identify(request)
        request.identified(operator.name)
        return operator

    def _health(self, path: str) -> Response:
        follows = self._following.health()
        match path:
            case "/health/follower":
                health = follows
            case "/health/leader":
                health = Health(False, "this node is a follower")
            case "/health/live":
                health = Health(True)
            case "/health/ready" if follows.ok and not self._following.status()["in_sync"]:
                health = Health(False, "not in sync")
            case "/health/ready":
                health = follows
            case _:
                health = Health(True) if self._following.leader() is not None else follows
        document = health.document() | {"role": "follower"}
        return Response(200 if health.ok else 503, msgspec.json.encode(document))

    def _metrics(self) -> Response:
        status = self._following.status()
        lines = []
        for name, text in _GAUGES:
            full = f"warren_follower_{name}"
            lines += [f"# HELP {full} {text}", f"# TYPE {full} gauge", f"{full} {int(status[name] or 0)}"]
        for full, (text, read) in self._following.gauges.items():
            lines += [f"# HELP {full} {text}", f"# TYPE {full} gauge", f"{full} {read()}"]
        for metric, value in election_metrics(status):
            full = f"warren_{metric.name}"
            lines += [f"# HELP {full} {metric.help}", f"# TYPE {full} {metric.kind}", f"{full} {value}"]
        return Response(200, ("\n".join(lines) + "\n").encode(), content_type=TEXT)

    async def _promote(self, request: Request, promote: Callable[[bool], Awaitable[dict[str, Any]]]) -> Response:
        body = await request.read_body(BODY_BYTES_MAX)
        try:
            wanted: Any = msgspec.json.decode(body) if body.strip() else {}
        except msgspec.DecodeError:
            wanted = None
        accept_loss = wanted.get("accept_loss", False) if isinstance(wanted, dict) else None
        if not isinstance(accept_loss, bool):
            raise HttpError(400, "bad_request", 'the body must be a JSON object, with "accept_loss" true or false')
        try:
            return _json(await promote(accept_loss))
        except NotPromoted as refusal:
            raise HttpError(409, "conflict", str(refusal)) from None


def _need(allowed: bool, access: Access) -> None:
    if not allowed:
        raise not_authorised(access.value)


def _json(document: dict[str, Any]) -> Response:
    return Response(200, msgspec.json.encode(document))


def _keep(_record: UserPut) -> None:
    """Leave the hash as it is."""
