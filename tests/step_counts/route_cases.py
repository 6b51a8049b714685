"""A request for each route of the management API, and how its work may grow with the number n of objects.

`ONE`: about one object; neither one stretch nor the whole grows with the number of others. `SOUGHT`: the same, but each
other one costs a few steps for a comparison. `LISTED`: the whole grows with n, a stretch at most by a few steps for
each object: references are gathered at once, and described in pieces. `LINEAR`: a stretch grows with n, for the reason
that the case gives. Nothing grows faster.

The cases of one broker are asked in the order of the table, so that a case can show or delete the objects of an earlier
one. `{n}` in a target stands for the number of objects of each kind, `{snapshot}` and `"{epoch}"` for values from an
answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

ONE: Final = "one"
SOUGHT: Final = "sought"
LISTED: Final = "listed"
LINEAR: Final = "linear"
SIZE: Final = 150

Body = Callable[[int], Any]


class Case(NamedTuple):
    """`route`: method and template; `body`: the JSON for n objects."""

    growth: str
    route: str
    target: str
    body: Body
    reason: str
    raw: bytes | None
    policies: bool  # n policies, and nothing else

    @property
    def name(self) -> str:
        """Return the name of the case."""
        return f"{self.route.partition(' ')[0]} {self.target}"


CASES: list[Case] = []


def _nothing(n: int) -> Any:
    return None


def _as_body(body: Any) -> Body:
    return body if callable(body) else lambda n: body


def _add(growth: str, route: str, target: str, body: Any, reason: str = "", raw: bytes | None = None) -> None:
    CASES.append(Case(growth, route, target, _as_body(body), reason, raw, False))


def one(route: str, target: str, body: Any = None, raw: bytes | None = None) -> None:
    """Add a case about one object."""
    _add(ONE, route, target, body, raw=raw)


def sought(route: str, target: str, body: Any = None) -> None:
    """Add a case about one object that is looked for among all of its kind, or that all connections are asked about."""
    _add(SOUGHT, route, target, body)


def listed(route: str, target: str, body: Any = None) -> None:
    """Add a case about everything there is."""
    _add(LISTED, route, target, body)


def linear(reason: str, route: str, target: str, body: Any = None) -> None:
    """Add a case of which a stretch grows with what there is, and why it may."""
    _add(LINEAR, route, target, body, reason)


PAGE: Final = "page=1&page_size=10"
CONNECTION: Final = "127.0.0.1%3A10003%20-%3E%20127.0.0.1%3A5672"
CONSUMING: Final = "127.0.0.1%3A10002%20-%3E%20127.0.0.1%3A5672"
CLOSED: Final = "a connection that is closed tells its peer in the same turn, and ends what its channels have at once"
QUOTA: Final = "the drains of a vhost are counted for the quota, which they are bounded by"
SHORT: Final = "users, permissions, parameters and policies are described at once: administrators make them"
SUMS: Final = "sums over all queues, channels and connections are taken at once, to fit each other"
BYTES: Final = "the bytes of the request pay for it"

# --- what every broker has ----------------------------------------------------------------------------------------

for _route in (
    "GET /api/version", "GET /api/extensions", "GET /api/auth", "GET /api/feature-flags", "GET /api/whoami",
    "GET /api/deprecated-features", "GET /api/deprecated-features/used", "POST /api/rebalance/queues", "GET /health",
    "GET /api/healthchecks/node", "GET /api/health/checks/alarms", "GET /api/health/checks/local-alarms",
    "GET /api/health/checks/virtual-hosts", "GET /api/health/checks/node-is-quorum-critical",
    "GET /api/health/checks/node-is-mirror-sync-critical", "GET /api/health/checks/is-in-service",
    "GET /api/health/checks/ready-to-serve-clients", "GET /api/health/checks/below-node-connection-limit",
    "GET /api/health/checks/metadata-store/initialized",
    "GET /api/health/checks/metadata-store/initialized/with-data",
    "GET /api/health/checks/reached-target-cluster-size",
    "GET /api/health/checks/quorum-queues-without-elected-leaders/all-vhosts", "GET /api/config/effective",
    "GET /api/cluster-name", "GET /api/cluster/status", "GET /api/openapi.json", "GET /api/warren/reactor",
    "GET /health/leader", "GET /health/live", "GET /health/ready",
):  # fmt: skip
    one(_route, _route.partition(" ")[2])
one("PUT /api/feature-flags/{flag}/enable", "/api/feature-flags/quorum_queue/enable", {})
for _template in (
    "/api/nodes/{node}", "/api/nodes/{node}/memory", "/api/nodes/{node}/memory/relative",
):  # fmt: skip
    listed(f"GET {_template}", _template.replace("{node}", "rabbit@test"))
one("GET /api/healthchecks/node/{node}", "/api/healthchecks/node/rabbit@test")
one("GET /api/warren/logs", "/api/warren/logs?level=info&audit=true&q=x")
one("GET /api/warren/log-level", "/api/warren/log-level")
one("GET /api/warren/links", "/api/warren/links")
one("POST /api/warren/links/release", "/api/warren/links/release", {})
one("PUT /api/warren/log-level", "/api/warren/log-level", {"level": "info"})
one("GET /api/auth/attempts/{node}", "/api/auth/attempts/rabbit@test")
one("GET /api/health/checks/certificate-expiration/{within}/{unit}", "/api/health/checks/certificate-expiration/1/days")
one("GET /api/health/checks/port-listener/{port}", "/api/health/checks/port-listener/5672")
one("GET /api/health/checks/protocol-listener/{protocol}", "/api/health/checks/protocol-listener/amqp")
_LEADERS = "/api/health/checks/quorum-queues-without-elected-leaders"
one(f"GET {_LEADERS}/all-vhosts/pattern/{{pattern}}", f"{_LEADERS}/all-vhosts/pattern/x")
one(f"GET {_LEADERS}/vhost/{{vhost}}", f"{_LEADERS}/vhost/%2F")
one(f"GET {_LEADERS}/vhost/{{vhost}}/pattern/{{pattern}}", f"{_LEADERS}/vhost/%2F/pattern/x")
linear(SUMS, "GET /api/overview", "/api/overview")
listed("GET /api/nodes", "/api/nodes")
listed("GET /api/warren/attention", "/api/warren/attention")
listed("GET /api/warren/attention/{vhost}", "/api/warren/attention/%2F")
one("PUT /api/cluster-name", "/api/cluster-name", {"name": "here"})
one("POST /api/cluster/transfer", "/api/cluster/transfer", {})
for _ask in ("forget", "drain", "revive"):
    one(f"POST /api/cluster/{_ask}", f"/api/cluster/{_ask}", {"node": "rabbit@other"})

# --- connections and channels -------------------------------------------------------------------------------------

for _base in ("/api/connections", "/api/channels"):
    listed(f"GET {_base}", _base)
    listed(f"GET {_base}", f"{_base}?{PAGE}&sort=name&name=1")
    _kind = _base.rpartition("/")[2]
    listed(f"GET /api/vhosts/{{vhost}}/{_kind}", f"/api/vhosts/%2F/{_kind}?sort=idle_since")
sought("GET /api/connections/{connection}", f"/api/connections/{CONNECTION}")
sought("GET /api/connections/{connection}/channels", f"/api/connections/{CONNECTION}/channels")
sought("GET /api/connections/{connection}/subscriptions", f"/api/connections/{CONNECTION}/subscriptions")
sought("GET /api/connections/{connection}/sessions", f"/api/connections/{CONNECTION}/sessions")
sought("GET /api/channels/{channel}", f"/api/channels/{CONNECTION}%20%281%29")
listed("GET /api/connections/username/{user}", "/api/connections/username/guest")

# --- queues -------------------------------------------------------------------------------------------------------

listed("GET /api/queues", "/api/queues")
listed("GET /api/queues/detailed", f"/api/queues/detailed?{PAGE}&sort=messages&sort_reverse=true")
listed("GET /api/queues/{vhost}", f"/api/queues/%2F?{PAGE}&name=%5Eq.*1&use_regex=true")
listed("GET /api/queues/{vhost}", "/api/queues/%2F?disable_stats=true&columns=name")
listed("GET /api/consumers", "/api/consumers")
listed("GET /api/consumers/{vhost}", f"/api/consumers/%2F?{PAGE}&sort=oldest_unacknowledged_ms&name=1")
listed("GET /api/consumers/{vhost}", "/api/consumers/%2F?queue=many")
one("PUT /api/queues/{vhost}/{queue}", "/api/queues/%2F/new", {"durable": True})
one("GET /api/queues/{vhost}/{queue}", "/api/queues/%2F/new")
listed("GET /api/queues/{vhost}/{queue}", "/api/queues/%2F/many")
one("POST /api/queues/{vhost}/{queue}/actions", "/api/queues/%2F/new/actions", {"action": "sync"})
one("DELETE /api/queues/{vhost}/{queue}/contents", "/api/queues/%2F/new/contents")
one("DELETE /api/queues/{vhost}/{queue}", "/api/queues/%2F/new")

# --- MQTT ---------------------------------------------------------------------------------------------------------

_SESSIONS = "/api/warren/mqtt-sessions"
_RETAINED = "/api/warren/retained"
listed(f"GET {_SESSIONS}", _SESSIONS)
listed(f"GET {_SESSIONS}/{{vhost}}", f"{_SESSIONS}/%2F?{PAGE}&sort=messages")
listed(f"GET {_SESSIONS}/{{vhost}}/{{client}}", f"{_SESSIONS}/%2F/c0")
one(f"DELETE {_SESSIONS}/{{vhost}}/{{client}}", f"{_SESSIONS}/%2F/c1")
listed(f"GET {_RETAINED}", f"{_RETAINED}?filter=t/%2B")
listed(f"GET {_RETAINED}/{{vhost}}", f"{_RETAINED}/%2F?{PAGE}")
one(f"GET {_RETAINED}/{{vhost}}/{{topic}}", f"{_RETAINED}/%2F/t%2F0")
one(f"DELETE {_RETAINED}/{{vhost}}/{{topic}}", f"{_RETAINED}/%2F/t%2F0")
listed(f"DELETE {_RETAINED}/{{vhost}}", f"{_RETAINED}/%2F?filter=t/%23")

# --- exchanges and bindings ---------------------------------------------------------------------------------------

_X = "/api/exchanges/{vhost}/{exchange}"
_Q = "/api/bindings/{vhost}/e/{exchange}/q/{destination}"
_E = "/api/bindings/{vhost}/e/{exchange}/e/{destination}"
listed("GET /api/exchanges", "/api/exchanges")
listed("GET /api/exchanges/{vhost}", f"/api/exchanges/%2F?{PAGE}&sort=type")
one(f"PUT {_X}", "/api/exchanges/%2F/new", {"type": "topic"})
one(f"GET {_X}", "/api/exchanges/%2F/new")
one(f"POST {_Q}", "/api/bindings/%2F/e/e0/q/q1", {"routing_key": "fresh"})
one(f"GET {_Q}", "/api/bindings/%2F/e/e0/q/q1")
one(f"GET {_Q}/{{key}}", "/api/bindings/%2F/e/e0/q/q1/fresh")
one(f"DELETE {_Q}/{{key}}", "/api/bindings/%2F/e/e0/q/q1/fresh")
one(f"POST {_E}", "/api/bindings/%2F/e/e0/e/new", {"routing_key": "fresh"})
one(f"GET {_E}", "/api/bindings/%2F/e/e0/e/new")
one(f"GET {_E}/{{key}}", "/api/bindings/%2F/e/e0/e/new/fresh")
one(f"DELETE {_E}/{{key}}", "/api/bindings/%2F/e/e0/e/new/fresh")
listed(f"GET {_Q}", "/api/bindings/%2F/e/e0/q/q0")
one(f"GET {_X}/bindings/source", "/api/exchanges/%2F/new/bindings/source")
one(f"GET {_X}/bindings/destination", "/api/exchanges/%2F/new/bindings/destination")
one("GET /api/queues/{vhost}/{queue}/bindings", "/api/queues/%2F/q1/bindings")
listed(f"GET {_X}/bindings/source", "/api/exchanges/%2F/e0/bindings/source")
listed(f"GET {_X}/bindings/destination", "/api/exchanges/%2F/hub/bindings/destination")
listed("GET /api/queues/{vhost}/{queue}/bindings", "/api/queues/%2F/q0/bindings")
listed("GET /api/bindings", "/api/bindings")
listed("GET /api/bindings/{vhost}", f"/api/bindings/%2F?{PAGE}")
one(f"POST {_X}/publish", "/api/exchanges/%2F/new/publish",
    {"properties": {}, "routing_key": "x", "payload": "x", "payload_encoding": "string"})  # fmt: skip
linear(BYTES, f"POST {_X}/publish", "/api/exchanges/%2F/amq.headers/publish",
    lambda n: {"properties": {"headers": {f"h{at}": at for at in range(n)}}, "routing_key": "x", "payload": "x",
               "payload_encoding": "string"})  # fmt: skip
one(f"DELETE {_X}", "/api/exchanges/%2F/new")
listed(f"DELETE {_X}", "/api/exchanges/%2F/hub")
listed("POST /api/warren/route/{vhost}", "/api/warren/route/%2F", {"exchange": "e0", "routing_key": "k0"})
linear("routing one message to many queues is one step of the engine", "POST /api/warren/route/{vhost}",
    "/api/warren/route/%2F?all", {"exchange": "amq.fanout", "routing_key": "k0"})  # fmt: skip

# --- messages -----------------------------------------------------------------------------------------------------

_M = "/api/warren/queues/{vhost}/{queue}"
_GET = {"ackmode": "ack_requeue_true", "count": 1, "encoding": "auto"}
one("POST /api/queues/{vhost}/{queue}/get", "/api/queues/%2F/full/get", _GET)
listed("POST /api/queues/{vhost}/{queue}/get", "/api/queues/%2F/full/get?all", _GET | {"count": 10_000})
one("GET /api/aliveness-test/{vhost}", "/api/aliveness-test/%2F")
listed(f"GET {_M}/messages", "/api/warren/queues/%2F/full/messages?count=5")
listed(f"GET {_M}/messages", "/api/warren/queues/%2F/full/messages?body=nosuch")
listed(f"GET {_M}/messages", "/api/warren/queues/%2F/owed/messages?state=unacked&count=5")
listed(f"GET {_M}/messages", "/api/warren/queues/%2F/late/messages?state=delayed&count=500")
one(f"GET {_M}/held", "/api/warren/queues/%2F/late/held")
one(f"PUT {_M}/pause", "/api/warren/queues/%2F/full/pause", {})
one(f"DELETE {_M}/pause", "/api/warren/queues/%2F/full/pause")
one(f"POST {_M}/transfers", "/api/warren/queues/%2F/q1/transfers", {"destination": {"queue": "q2"}, "mode": "copy"})
one("GET /api/warren/transfers/{vhost}/{id}", "/api/warren/transfers/%2F/1")
one("DELETE /api/warren/transfers/{vhost}/{id}", "/api/warren/transfers/%2F/1")
listed(
    f"POST {_M}/transfers", "/api/warren/queues/%2F/full/transfers", {"destination": {"queue": "q2"}, "mode": "copy"}
)
listed("GET /api/warren/transfers", "/api/warren/transfers")
listed("GET /api/warren/transfers/{vhost}", "/api/warren/transfers/%2F")
one(f"GET {_M}/deduplication", "/api/warren/queues/%2F/unique/deduplication")
listed(f"DELETE {_M}/deduplication", "/api/warren/queues/%2F/unique/deduplication")
listed(f"POST {_M}/held/{{lane}}/release", "/api/warren/queues/%2F/late/held/delayed/release", {"count": 10})
listed(f"DELETE {_M}/held/{{lane}}", "/api/warren/queues/%2F/late/held/delayed")
listed("DELETE /api/queues/{vhost}/{queue}/contents", "/api/queues/%2F/q2/contents")

# --- search, store, metrics ---------------------------------------------------------------------------------------

listed("GET /api/warren/topology/{vhost}", "/api/warren/topology/%2F")
listed("GET /api/warren/search", "/api/warren/search?q=nosuch")
listed("GET /api/warren/store", "/api/warren/store")
listed("GET /api/warren/damage", "/api/warren/damage")
one("POST /api/warren/damage/give-up", "/api/warren/damage/give-up", {"vhost": "/", "queue": "nosuch"})
listed("GET /metrics", "/metrics")
listed("GET /metrics/per-object", "/metrics/per-object")
listed("GET /metrics/detailed", "/metrics/detailed?family=queue_metrics&family=channel_metrics")
listed("GET /metrics/memory-breakdown", "/metrics/memory-breakdown")

# --- streams ------------------------------------------------------------------------------------------------------

_S = "/api/warren/streams/{vhost}/{queue}"
_SS = "/api/stream/super-streams"
listed("GET /api/warren/stream-groups", "/api/warren/stream-groups")
listed("GET /api/warren/stream-groups/{vhost}", "/api/warren/stream-groups/%2F")
listed(f"GET {_S}/groups", "/api/warren/streams/%2F/s/groups")
sought(f"PUT {_S}/groups/{{group}}", "/api/warren/streams/%2F/s/groups/new", {"offset": "first"})
sought(f"GET {_S}/groups/{{group}}", "/api/warren/streams/%2F/s/groups/new")
sought(f"DELETE {_S}/groups/{{group}}", "/api/warren/streams/%2F/s/groups/new")
one(f"POST {_S}/offset", "/api/warren/streams/%2F/s/offset", {"offset": "last"})
one(f"PUT {_SS}/{{vhost}}/{{name}}", f"{_SS}/%2F/few", {"partitions": 2})
one(f"GET {_SS}/{{vhost}}/{{name}}", f"{_SS}/%2F/few")
listed(f"PUT {_SS}/{{vhost}}/{{name}}", f"{_SS}/%2F/wide", {"partitions": 20})
listed(f"GET {_SS}", _SS)
listed(f"GET {_SS}/{{vhost}}", f"{_SS}/%2F")
one(f"GET {_SS}/{{vhost}}/{{name}}", f"{_SS}/%2F/wide")
one(f"DELETE {_SS}/{{vhost}}/{{name}}", f"{_SS}/%2F/few")
listed(f"DELETE {_SS}/{{vhost}}/{{name}}", f"{_SS}/%2F/wide")
listed("GET /api/warren/data/{vhost}", "/api/warren/data/%2F")
one("GET /api/warren/data/{vhost}/{queue}", "/api/warren/data/%2F/s")
listed("POST /api/warren/data/{vhost}/{queue}/plan", "/api/warren/data/%2F/s/plan",
    lambda n: {"from": 0, "to": n, "piece_bytes": 100})  # fmt: skip
one("POST /api/warren/data/{vhost}/{queue}/token", "/api/warren/data/%2F/s/token", {"ttl_s": 60})
listed("GET /api/warren/data/{vhost}/{queue}/files", "/api/warren/data/%2F/s/files?from=0&to={n}")
listed("GET /api/warren/data/{vhost}/{queue}/chunks", "/api/warren/data/%2F/s/chunks?from=0&to={n}")

# --- snapshots, drains, stages ------------------------------------------------------------------------------------

_D = "/api/warren/drains"
_T = "/api/warren/stages"
listed("POST /api/warren/snapshots/{vhost}/{queue}", "/api/warren/snapshots/%2F/full", {})
listed("GET /api/warren/snapshots", "/api/warren/snapshots")
listed("GET /api/warren/snapshots/{vhost}", "/api/warren/snapshots/%2F")
one("GET /api/warren/snapshots/{vhost}/{queue}/{snapshot}", "/api/warren/snapshots/%2F/full/{snapshot}")
one("DELETE /api/warren/snapshots/{vhost}/{queue}/{snapshot}", "/api/warren/snapshots/%2F/full/{snapshot}")
linear(QUOTA, f"POST {_D}/{{vhost}}/{{queue}}/{{consumer}}/open", f"{_D}/%2F/full/new/open", {"owner": "x"})
one(f"GET {_D}/{{vhost}}/{{queue}}/{{consumer}}", f"{_D}/%2F/full/new")
one(f"POST {_D}/{{vhost}}/{{queue}}/{{consumer}}/mark", f"{_D}/%2F/full/new/mark", {"epoch": "{epoch}"})
one(f"POST {_D}/{{vhost}}/{{queue}}/{{consumer}}/claim", f"{_D}/%2F/full/new/claim",
    {"epoch": "{epoch}", "after": 0, "max_rows": 1})  # fmt: skip
one(f"POST {_D}/{{vhost}}/{{queue}}/{{consumer}}/settle", f"{_D}/%2F/full/new/settle",
    {"id": "{claims}", "ranges": [[0, 1]], "how": "requeue"})  # fmt: skip
one(f"POST {_D}/{{vhost}}/{{queue}}/{{consumer}}/fail", f"{_D}/%2F/full/new/fail",
    {"epoch": "{epoch}", "first": 0, "end": 1})  # fmt: skip
one(f"POST {_D}/{{vhost}}/{{queue}}/{{consumer}}/release", f"{_D}/%2F/full/new/release", {"epoch": "{epoch}"})
listed(f"GET {_D}", _D)
listed(f"GET {_D}/{{vhost}}", f"{_D}/%2F")
one(f"DELETE {_D}/{{vhost}}/{{queue}}/{{consumer}}", f"{_D}/%2F/full/new")
one(f"PUT {_T}/{{vhost}}/{{stage}}/{{part}}", f"{_T}/%2F/new/0", raw=b"")
listed(f"GET {_T}", _T)
listed(f"GET {_T}/{{vhost}}", f"{_T}/%2F")
one(f"POST {_T}/{{vhost}}/commit", f"{_T}/%2F/commit", {"query": "new", "batch": 0, "stages": []})
one(f"POST {_T}/{{vhost}}/replace", f"{_T}/%2F/replace",
    {"query": "new", "batch": 0, "stages": [], "purge": "full"})  # fmt: skip
listed(f"GET {_T}/{{vhost}}/commits", f"{_T}/%2F/commits")
one(f"DELETE {_T}/{{vhost}}/commits/{{query}}", f"{_T}/%2F/commits/new")
one(f"DELETE {_T}/{{vhost}}/{{stage}}", f"{_T}/%2F/new")

# --- backups ------------------------------------------------------------------------------------------------------

_K = "/api/warren/backups"
one(f"POST {_K}", _K)
one(f"GET {_K}", _K)
one(f"GET {_K}/{{backup}}", f"{_K}/{{backup}}")
listed(f"GET {_K}/{{backup}}/files", f"{_K}/{{backup}}/files")
one(f"GET {_K}/{{backup}}/data", f"{_K}/{{backup}}/data?name=messages/log/0000000000&offset=0&length=10")
one(f"DELETE {_K}/{{backup}}", f"{_K}/{{backup}}")

# --- vhosts -------------------------------------------------------------------------------------------------------

_V = "/api/vhosts/{vhost}"
listed("GET /api/vhosts", "/api/vhosts")
listed("GET /api/vhosts", f"/api/vhosts?{PAGE}")
listed(f"PUT {_V}", "/api/vhosts/new", {"description": "x"})
listed(f"GET {_V}", "/api/vhosts/new")
one(f"POST {_V}/deletion/protection", "/api/vhosts/new/deletion/protection")
one(f"DELETE {_V}/deletion/protection", "/api/vhosts/new/deletion/protection")
one(f"POST {_V}/start/{{node}}", "/api/vhosts/new/start/rabbit@test")
one("PUT /api/vhost-limits/{vhost}/{limit}", "/api/vhost-limits/new/max-queues", {"value": 5})
one("GET /api/vhost-limits/{vhost}", "/api/vhost-limits/new")
listed("GET /api/vhost-limits", "/api/vhost-limits")
one("DELETE /api/vhost-limits/{vhost}/{limit}", "/api/vhost-limits/new/max-queues")
listed(f"GET {_V}/permissions", "/api/vhosts/new/permissions")
listed(f"GET {_V}/topic-permissions", "/api/vhosts/new/topic-permissions")
listed(f"DELETE {_V}", "/api/vhosts/new")

# --- users --------------------------------------------------------------------------------------------------------

_U = "/api/users/{user}"
_P = "/api/permissions/{vhost}/{user}"
_TP = "/api/topic-permissions/{vhost}/{user}"
_RIGHTS = {"configure": ".*", "write": ".*", "read": ".*"}
listed("GET /api/users", "/api/users")
listed("GET /api/users/without-permissions", "/api/users/without-permissions")
one(f"PUT {_U}", "/api/users/new", {"tags": "", "password_hash": ""})
one(f"GET {_U}", "/api/users/new")
sought(f"PUT {_P}", "/api/permissions/%2F/new", _RIGHTS)
one(f"GET {_P}", "/api/permissions/%2F/new")
one(f"GET {_U}/permissions", "/api/users/new/permissions")
one(f"PUT {_TP}", "/api/topic-permissions/%2F/new", {"exchange": "e0", "write": ".*", "read": ".*"})
one(f"GET {_TP}", "/api/topic-permissions/%2F/new")
one(f"GET {_TP}/{{exchange}}", "/api/topic-permissions/%2F/new/e0")
one(f"GET {_U}/topic-permissions", "/api/users/new/topic-permissions")
one(f"DELETE {_TP}/{{exchange}}", "/api/topic-permissions/%2F/new/e0")
one(f"DELETE {_TP}", "/api/topic-permissions/%2F/u0")
sought(f"DELETE {_P}", "/api/permissions/%2F/new")
listed("GET /api/permissions", "/api/permissions")
listed("GET /api/topic-permissions", "/api/topic-permissions")
listed(f"GET {_V}/permissions", "/api/vhosts/%2F/permissions")
listed(f"GET {_V}/topic-permissions", "/api/vhosts/%2F/topic-permissions")
one("PUT /api/user-limits/{user}/{limit}", "/api/user-limits/new/max-channels", {"value": 5})
one("GET /api/user-limits/{user}", "/api/user-limits/new")
listed("GET /api/user-limits", "/api/user-limits")
one("DELETE /api/user-limits/{user}/{limit}", "/api/user-limits/new/max-channels")
sought(f"DELETE {_U}", "/api/users/new")

# --- parameters ----------------------------------------------------------------------------------------------------

_R = "/api/parameters/{component}/{vhost}/{name}"
listed("GET /api/parameters", "/api/parameters")
listed("GET /api/parameters/{component}", "/api/parameters/thing")
listed("GET /api/parameters/{component}/{vhost}", "/api/parameters/thing/%2F")
one(f"PUT {_R}", "/api/parameters/thing/%2F/new", {"value": 1})
one(f"GET {_R}", "/api/parameters/thing/%2F/new")
one(f"DELETE {_R}", "/api/parameters/thing/%2F/new")
listed("GET /api/global-parameters", "/api/global-parameters")
one("PUT /api/global-parameters/{name}", "/api/global-parameters/new", {"value": 1})
one("GET /api/global-parameters/{name}", "/api/global-parameters/new")
one("DELETE /api/global-parameters/{name}", "/api/global-parameters/new")

# --- links --------------------------------------------------------------------------------------------------------

_H = "/api/shovels/vhost/{vhost}/{name}"
_L = "/api/federation-links"
listed("GET /api/shovels", "/api/shovels")
listed("GET /api/shovels/{vhost}", "/api/shovels/%2F")
listed(f"GET {_H}", "/api/shovels/vhost/%2F/shovel0")
one(f"DELETE {_H}", "/api/shovels/vhost/%2F/shovel0")
one(f"DELETE {_H}/restart", "/api/shovels/vhost/%2F/shovel0/restart")
listed(f"GET {_L}", _L)
listed(f"GET {_L}/state/down", f"{_L}/state/down")
listed(f"GET {_L}/{{vhost}}", f"{_L}/%2F")
listed(f"GET {_L}/{{vhost}}/state/down", f"{_L}/%2F/state/down")
one(f"DELETE {_L}/vhost/{{vhost}}/{{id}}/{{node}}/restart", f"{_L}/vhost/%2F/x/rabbit@test/restart")
_T = "/api/lake/vhost/{vhost}/{name}"
listed("GET /api/lake", "/api/lake")
listed("GET /api/lake/state/down", "/api/lake/state/down")
listed("GET /api/lake/{vhost}", "/api/lake/%2F")
listed("GET /api/lake/{vhost}/state/down", "/api/lake/%2F/state/down")
listed(f"GET {_T}", "/api/lake/vhost/%2F/shovel0")
one(f"DELETE {_T}", "/api/lake/vhost/%2F/shovel0")
one(f"DELETE {_T}/restart", "/api/lake/vhost/%2F/shovel0/restart")

# --- definitions --------------------------------------------------------------------------------------------------


def _definitions(n: int, vhost: bool) -> dict[str, Any]:
    where = {} if vhost else {"vhost": "/"}
    queues = [{"name": f"d{at}", "durable": True, "auto_delete": False, "arguments": {}, **where} for at in range(n)]
    bindings = [
        {"source": "amq.topic", "destination": f"d{at}", "destination_type": "queue", "routing_key": "x",
         "arguments": {}, **where} for at in range(n)
    ]  # fmt: skip
    return {"queues": queues, "exchanges": [], "bindings": bindings}


_DRY = "/api/warren/definitions/dry-run"
linear(SHORT, "GET /api/definitions", "/api/definitions?download=x")
listed("GET /api/definitions/{vhost}", "/api/definitions/%2F")
listed(f"POST {_DRY}", _DRY, lambda n: _definitions(n, False))
listed(f"POST {_DRY}/{{vhost}}", f"{_DRY}/%2F", lambda n: _definitions(n, True))
listed("POST /api/definitions", "/api/definitions", lambda n: _definitions(n, False))
listed("POST /api/definitions/{vhost}", "/api/definitions/%2F", lambda n: _definitions(n, True))

# --- sessions -----------------------------------------------------------------------------------------------------

one("POST /api/login", "/api/login", {"username": "guest", "password": "x"})
one("POST /api/warren/session", "/api/warren/session", {"username": "guest", "password": "x"})
one("GET /api/warren/session", "/api/warren/session")
one("DELETE /api/warren/session", "/api/warren/session")

# --- what ends much -----------------------------------------------------------------------------------------------

listed("POST /api/users/bulk-delete", "/api/users/bulk-delete", {"users": ["u1", "u2", "u3"]})
listed("DELETE /api/queues/{vhost}/{queue}", "/api/queues/%2F/many")
sought("DELETE /api/consumers/{vhost}/{connection}/{number}/{consumer}", f"/api/consumers/%2F/{CONSUMING}/1/c")
sought("DELETE /api/connections/{connection}", f"/api/connections/{CONNECTION}")
linear(CLOSED, "DELETE /api/connections/username/{user}", "/api/connections/username/busy")
linear(CLOSED, f"DELETE {_V}", "/api/vhosts/%2F")

# --- policies -----------------------------------------------------------------------------------------------------

TRIED: Final = "each policy is tried until one applies"
_FIRST_OF_POLICIES = len(CASES)
for _base in ("/api/policies", "/api/operator-policies"):
    listed(f"GET {_base}", _base)
    listed(f"GET {_base}/{{vhost}}", f"{_base}/%2F")
    _one = f"{_base}/{{vhost}}/{{name}}"
    linear(TRIED, f"PUT {_one}", f"{_base}/%2F/new", {"pattern": "^q1$", "definition": {"max-length": 10}})
    one(f"GET {_one}", f"{_base}/%2F/new")
    linear(TRIED, f"DELETE {_one}", f"{_base}/%2F/new")
linear(TRIED, "PUT /api/queues/{vhost}/{queue}", "/api/queues/%2F/ruled", {"durable": True})
linear(TRIED, "GET /api/queues/{vhost}/{queue}", "/api/queues/%2F/ruled")
one("GET /api/exchanges/{vhost}", "/api/exchanges/%2F?sort=name")
one("PUT /api/vhosts/{vhost}", "/api/vhosts/other", {})
for _at in range(_FIRST_OF_POLICIES, len(CASES)):
    CASES[_at] = CASES[_at]._replace(policies=True)
