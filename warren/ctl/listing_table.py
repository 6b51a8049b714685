"""The listings as a table: which path, which columns, and what rabbitmqctl calls them.

Columns are named as rabbitmqctl names its info items, or as the API names its fields. A further listing is a further
row here and a name in `command_table`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, NamedTuple


class Scope(Enum):
    """Which vhosts a listing covers when none is named."""

    NO_VHOST = auto()
    ONE = auto()  # the default vhost, as in rabbitmqctl; all with --all-vhosts
    ALL = auto()


class Listing(NamedTuple):
    """One listing; ``{vhost}`` and ``{name}`` in a path are filled in."""

    command: str
    summary: str
    scope: Scope
    path: str  # of everything the user may see
    columns: tuple[str, ...]  # those shown when none are named
    more: str = ""  # others that are known
    vhost_path: str = ""  # of one vhost; empty: items are picked by their field ``vhost``
    aliases: Mapping[str, str] = {}
    paged: bool = False
    argument: str = ""  # what ``{name}`` in the path is

    @property
    def known(self) -> tuple[str, ...]:
        """All columns that need no dots."""
        return tuple(dict.fromkeys((*self.columns, *self.more.split(), *self.aliases)))


_RATES: Final = {
    f"{kind}_rate": f"message_stats.{field}_details.rate"
    for kind, field in (("publish", "publish"), ("deliver", "deliver_get"), ("ack", "ack"), ("redeliver", "redeliver"))
}
_PERMISSIONS: Final = ("configure", "write", "read")

LISTINGS: Final = (
    Listing(
        "list_queues",
        "List queues.",
        Scope.ONE,
        "queues",
        ("name", "messages"),
        "vhost type durable auto_delete exclusive arguments node state policy operator_policy "
        "effective_policy_definition owner_pid_details exclusive_consumer_tag single_active_consumer_tag "
        "messages_ready messages_unacknowledged messages_ram messages_persistent message_bytes message_bytes_ready "
        "message_bytes_unacknowledged message_bytes_ram message_bytes_persistent messages_delayed consumers "
        "consumer_capacity consumer_utilisation memory head_message_timestamp idle_since message_stats "
        "messages_details delivery_limit leader members online paused first_offset next_offset readers",
        "queues/{vhost}",
        {"pid": "name", "owner_pid": "owner_pid_details.name", "consumer_utilization": "consumer_utilisation"} | _RATES,
        paged=True,
    ),
    Listing(
        "list_exchanges",
        "List exchanges.",
        Scope.ONE,
        "exchanges",
        ("name", "type"),
        "vhost durable auto_delete internal arguments policy message_stats user_who_performed_action",
        "exchanges/{vhost}",
        {
            "publish_in_rate": "message_stats.publish_in_details.rate",
            "publish_out_rate": "message_stats.publish_out_details.rate",
        },
        paged=True,
    ),
    Listing(
        "list_bindings",
        "List bindings.",
        Scope.ONE,
        "bindings",
        ("source_name", "source_kind", "destination_name", "destination_kind", "routing_key", "arguments"),
        "vhost source destination destination_type properties_key",
        "bindings/{vhost}",
        {"source_name": "source", "destination_name": "destination", "destination_kind": "destination_type"},
    ),
    Listing(
        "list_connections",
        "List connections.",
        Scope.ALL,
        "connections",
        ("user", "peer_host", "peer_port", "state"),
        "name user_provided_name node vhost protocol type channels channel_max frame_max timeout host port ssl "
        "ssl_protocol ssl_key_exchange ssl_cipher ssl_hash peer_cert_subject peer_cert_issuer peer_cert_validity "
        "auth_mechanism connected_at client_properties recv_oct recv_cnt send_oct send_cnt send_pend",
        "vhosts/{vhost}/connections",
        {
            "pid": "name",
            "recv_rate": "recv_oct_details.rate",
            "send_rate": "send_oct_details.rate",
            "client_name": "client_properties.connection_name",
            "product": "client_properties.product",
        },
        paged=True,
    ),
    Listing(
        "list_channels",
        "List channels.",
        Scope.ALL,
        "channels",
        ("connection", "number", "user", "consumer_count", "messages_unacknowledged"),
        "name node vhost state transactional confirm prefetch_count global_prefetch_count messages_unconfirmed "
        "messages_uncommitted acks_uncommitted idle_since message_stats connection_details",
        "vhosts/{vhost}/channels",
        {"pid": "name", "connection": "connection_details.name"} | _RATES,
        paged=True,
    ),
    Listing(
        "list_consumers",
        "List consumers.",
        Scope.ONE,
        "consumers",
        ("queue_name", "channel_pid", "consumer_tag", "ack_required", "prefetch_count", "active", "arguments"),
        "queue channel_details exclusive activity_status consumer_timeout messages_unacknowledged "
        "oldest_unacknowledged_ms",
        "consumers/{vhost}",
        {
            "vhost": "queue.vhost",
            "queue_name": "queue.name",
            "channel_pid": "channel_details.name",
            "connection": "channel_details.connection_name",
            "number": "channel_details.number",
            "user": "channel_details.user",
            "idle_ms": "channel_stats.idle_ms",
        },
    ),
    Listing(
        "list_users",
        "List users and their tags.",
        Scope.NO_VHOST,
        "users",
        ("user", "tags"),
        "name hashing_algorithm limits",
        aliases={"user": "name"},
    ),
    Listing(
        "list_vhosts",
        "List vhosts.",
        Scope.NO_VHOST,
        "vhosts",
        ("name",),
        "description tags default_queue_type tracing cluster_state messages messages_ready messages_unacknowledged "
        "recv_oct send_oct message_stats metadata",
    ),
    Listing(
        "list_permissions",
        "List the permissions of users in a vhost.",
        Scope.ONE,
        "permissions",
        ("user", *_PERMISSIONS),
        "vhost",
        "vhosts/{vhost}/permissions",
    ),
    Listing(
        "list_user_permissions",
        "List the permissions of a user in each vhost.",
        Scope.NO_VHOST,
        "users/{name}/permissions",
        ("vhost", *_PERMISSIONS),
        "user",
        argument="USER",
    ),
    Listing(
        "list_topic_permissions",
        "List topic permissions in a vhost.",
        Scope.ONE,
        "topic-permissions",
        ("user", "exchange", "write", "read"),
        "vhost",
        "vhosts/{vhost}/topic-permissions",
    ),
    Listing(
        "list_user_topic_permissions",
        "List topic permissions of a user.",
        Scope.NO_VHOST,
        "users/{name}/topic-permissions",
        ("vhost", "exchange", "write", "read"),
        "user",
        argument="USER",
    ),
    *(
        Listing(
            f"list_{word}policies",
            f"List {word.replace('_', ' ')}policies.",
            Scope.ONE,
            path,
            ("vhost", "name", "pattern", "apply-to", "definition", "priority"),
            vhost_path=path + "/{vhost}",
        )
        for word, path in (("", "policies"), ("operator_", "operator-policies"))
    ),
    Listing(
        "list_parameters",
        "List runtime parameters of a vhost.",
        Scope.ONE,
        "parameters",
        ("component", "name", "value"),
        "vhost",
    ),
    Listing(
        "list_global_parameters", "List global parameters.", Scope.NO_VHOST, "global-parameters", ("name", "value")
    ),
    Listing(
        "list_vhost_limits",
        "List limits of vhosts.",
        Scope.ALL,
        "vhost-limits",
        ("vhost", "limits"),
        vhost_path="vhost-limits/{vhost}",
        aliases={"limits": "value"},
    ),
    Listing(
        "list_user_limits",
        "List limits of users.",
        Scope.NO_VHOST,
        "user-limits",
        ("user", "limits"),
        aliases={"limits": "value"},
    ),
    Listing(
        "list_nodes",
        "List nodes.",
        Scope.NO_VHOST,
        "nodes",
        ("name", "type", "running", "mem_used", "disk_free", "uptime"),
        "os_pid fd_used fd_total sockets_used sockets_total mem_limit mem_alarm disk_free_limit disk_free_alarm "
        "proc_used proc_total processors run_queue rates_mode enabled_plugins",
    ),
    Listing(
        "list_feature_flags",
        "List feature flags.",
        Scope.NO_VHOST,
        "feature-flags",
        ("name", "state"),
        "desc doc_url stability provided_by",
    ),
    Listing(
        "list_shovels",
        "List shovels and their states.",
        Scope.ALL,
        "shovels",
        ("vhost", "name", "type", "state"),
        "node timestamp reason src_uri src_protocol src_queue src_exchange src_exchange_key dest_uri dest_protocol "
        "dest_queue dest_exchange dest_exchange_key blocked_status",
        "shovels/{vhost}",
    ),
    Listing(
        "federation_status",
        "List federation links and their states.",
        Scope.ALL,
        "federation-links",
        ("vhost", "type", "exchange", "queue", "upstream", "status", "error"),
        "node id upstream_exchange upstream_queue uri timestamp local_channel consumer_tag",
        "federation-links/{vhost}",
    ),
    Listing(
        "list_lake_tables",
        "List tables that the broker keeps up to date, and their progress (Warren).",
        Scope.ALL,
        "lake",
        ("vhost", "name", "source", "table", "state", "waiting", "lag_s"),
        "node since os_pid reason source_type format catalog rows bytes refused lost commits failures files_rewritten "
        "committed_at step_s",
        "lake/{vhost}",
    ),
    Listing(
        "list_transfers",
        "List running and ended moves and copies of messages (Warren).",
        Scope.ALL,
        "warren/transfers",
        ("id", "vhost", "queue", "mode", "state", "transferred", "total"),
        "destination scanned error user started_at ended_at",
        "warren/transfers/{vhost}",
    ),
    Listing(
        "list_drains",
        "List drains of queues, and their claims (Warren).",
        Scope.ONE,
        "warren/drains",
        ("queue", "name", "claimed", "epoch", "owner"),
        "vhost claims claimed_bytes first end lease_s opened_at last_seen_at queue_exists",
        "warren/drains/{vhost}",
    ),
    Listing(
        "list_damage",
        "List data that cannot be read, or is damaged on disk (Warren).",
        Scope.NO_VHOST,
        "warren/damage",
        ("what", "vhost", "queue", "file", "first", "end", "messages", "since"),
        "lane reason failures",
    ),
    Listing(
        "list_mqtt_sessions",
        "List sessions of MQTT clients, connected or not (Warren).",
        Scope.ONE,
        "warren/mqtt-sessions",
        ("client_id", "connected", "expiry_s", "messages"),
        "vhost user protocol ends_at will_waits messages_ready messages_unacknowledged queues",
        "warren/mqtt-sessions/{vhost}",
        {"conn_name": "connection_details.name"},
        paged=True,
    ),
    Listing(
        "list_retained",
        "List retained messages (Warren).",
        Scope.ONE,
        "warren/retained",
        ("topic", "payload_bytes", "qos"),
        "vhost published_at expires_at properties",
        "warren/retained/{vhost}",
        paged=True,
    ),
    Listing(
        "list_super_streams",
        "List super streams (Warren).",
        Scope.ONE,
        "stream/super-streams",
        ("name", "type", "partition_count"),
        "vhost arguments partitions",
        "stream/super-streams/{vhost}",
    ),
    Listing(
        "list_stream_groups",
        "List the consumer groups of streams, and their offsets (Warren).",
        Scope.ONE,
        "warren/stream-groups",
        ("queue", "name", "committed_offset", "lag", "consumers"),
        "vhost active_consumer_tag committed_at",
        "warren/stream-groups/{vhost}",
    ),
)
