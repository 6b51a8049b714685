"""Define the settings: each with its default, the kind of its values, and its purpose.

The key ``limits.frame_max_bytes`` is ``frame_max_bytes`` in the TOML table ``[limits]`` and the environment
variable ``WARREN_LIMITS_FRAME_MAX_BYTES``. Defaults listen on this machine only. ``setting_kinds.py`` has the kinds of
values, ``settings_reader.py`` reads files, environment and flags.

Written with the standard library: pydantic-settings would cost 9 MB of the 60 MB an idle broker may take.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal

from warren.server.catalogue.sqlite_url import sqlite_url
from warren.server.logs import LEVELS, LogFormat
from warren.server.network.dead_peers import Keepalive
from warren.server.protocols import LISTENERS
from warren.server.setting_kinds import (
    CLUSTER_PORT,
    HTTP_PORT,
    PATH,
    SWITCH,
    TEXT,
    WATERMARK,
    Endpoint,
    Kind,
    MemoryWatermark,
    Parser,
    about,
    advertised_of,
    choice_by_name_kind,
    choice_kind,
    cluster_name_of,
    endpoint_kind,
    etcd_endpoints_of,
    host_names_of,
    http_advertised_of,
    http_url_of,
    integer_kind,
    metadata_url_of,
    name_of_user_of,
    networks_of,
    node_name_of,
    origins_of,
    password_of,
    places_of,
    seconds_kind,
    share_of,
    size_kind,
)

Confirm = Literal["durable", "os"]
ClientCertificates = Literal["none", "optional", "required"]
CertLoginFrom = Literal["cn", "dn", "san"]

DEFAULT_ORIGIN: Final = "default"
ENVIRONMENT_PREFIX: Final = "WARREN_"

_HTTPS_PORT: Final = 15671
_DATA_PORT: Final = 15680
_DATAS_PORT: Final = 15681
_PROMETHEUS_PORT: Final = 15692
# The settings of the listeners that speak TLS.
WITH_TLS: Final = (*(each.setting for each in LISTENERS.values() if each.is_tls), "https", "datas")


def default_data_dir() -> Path:
    """Return ``$XDG_DATA_HOME/warren``, by default ``~/.local/share/warren``.

    The place does not depend on the current directory: queues must not vanish with a ``cd``.
    """
    base = os.environ.get("XDG_DATA_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share") / "warren"


# Publishers that were blocked because the disk was short resume when this many times `store.disk_free_min_bytes` is
# free, so that the alarm does not flap.
DISK_FREE_RESUME_SHARE: Final = 1.5

_MILLION: Final = 1_000_000
_TERABYTE: Final = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """How the ``amqps`` listener proves its identity, and which clients it trusts."""

    certificate: Path | None = field(
        default=None, metadata=about(PATH, "PEM file: the certificate, then its chain", example="server.pem")
    )
    private_key: Path | None = field(
        default=None,
        metadata=about(PATH, "PEM file of the key, unless the certificate's file holds it", example="server.key"),
    )
    private_key_password: str = field(
        default="", metadata=about(TEXT, "password of an encrypted private key", secret=True)
    )
    ca: Path | None = field(
        default=None,
        metadata=about(PATH, "PEM file of the authorities client certificates are checked against", example="ca.pem"),
    )
    client_certificates: ClientCertificates = field(
        default="none",
        metadata=about(choice_kind("none", "optional", "required"), "whether clients present certificates"),
    )
    cert_login_from: CertLoginFrom = field(
        default="dn",
        metadata=about(
            choice_kind("cn", "dn", "san"), "part of a client certificate that is the user name for EXTERNAL"
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """What one client, and all clients together, may use."""

    frame_max_bytes: int = field(
        default=128 << 10, metadata=about(size_kind(4096, 16 << 20), "largest frame offered in tune")
    )
    channel_max: int = field(
        default=2047, metadata=about(integer_kind(1, 65535), "maximum channels per connection, offered in tune")
    )
    heartbeat_s: int = field(
        default=60, metadata=about(integer_kind(0, 65535), "heartbeat interval offered in tune; 0: no heartbeats")
    )
    max_message_bytes: int = field(default=128 << 20, metadata=about(size_kind(1, 512 << 20), "largest message body"))
    content_timeout_s: float = field(
        default=60.0,
        metadata=about(
            seconds_kind(0, 10**8),
            "longest pause within a message before its channel is closed; 0: no limit",
        ),
    )
    connections_max: int = field(default=65536, metadata=about(integer_kind(1, _MILLION), "maximum connections"))
    unauthenticated_connections_max: int = field(
        default=4096, metadata=about(integer_kind(1, _MILLION), "maximum connections that have not logged in yet")
    )
    unauthenticated_per_network_max: int = field(
        default=1024,
        metadata=about(integer_kind(1, _MILLION), "the same from one /24 (IPv4) or /64 (IPv6); this machine is exempt"),
    )
    accept_rate_per_s: int = field(
        default=10_000, metadata=about(integer_kind(1, _MILLION), "maximum connections accepted per second")
    )
    handshake_timeout_s: float = field(
        default=10.0, metadata=about(seconds_kind(0.1, 3600), "from accepting a connection to its open")
    )
    tls_handshake_timeout_s: float = field(
        default=5.0, metadata=about(seconds_kind(0.1, 3600), "from accepting to the end of the TLS handshake")
    )
    memory_high_watermark: MemoryWatermark = field(
        default=MemoryWatermark(fraction=0.4),
        metadata=about(WATERMARK, "memory above which publishers are not read"),
    )
    outbox_bytes: int = field(
        default=1 << 20,
        metadata=about(size_kind(64 << 10, 1 << 30), "unsent bytes of a connection above which its consumers wait"),
    )
    mqtt_qos0_outbox_bytes: int = field(
        default=4 << 20,
        metadata=about(
            size_kind(64 << 10, 1 << 30), "unsent bytes of an MQTT connection above which QoS 0 messages are dropped"
        ),
    )
    send_timeout_s: float = field(
        default=30.0,
        metadata=about(
            seconds_kind(0, 10**8), "longest time for which a client reads nothing although data waits; 0: no limit"
        ),
    )
    tcp_keepalives_idle_s: int = field(
        default=60,
        metadata=about(
            integer_kind(0, 32767),
            "silence of a client before the first TCP keepalive probe; 0: never",
        ),
    )
    tcp_keepalives_interval_s: int = field(
        default=15, metadata=about(integer_kind(1, 32767), "time between two keepalive probes")
    )
    tcp_keepalives_count: int = field(
        default=4, metadata=about(integer_kind(1, 127), "unanswered keepalive probes after which the connection ends")
    )
    consumers_per_channel_max: int = field(
        default=10_000, metadata=about(integer_kind(1, _MILLION), "maximum consumers per channel")
    )
    unacked_per_channel_max: int = field(
        default=500_000,
        metadata=about(integer_kind(1, 100 * _MILLION), "maximum unacked deliveries per channel"),
    )
    transaction_max_bytes: int = field(
        default=64 << 20,
        metadata=about(size_kind(1 << 20, 1 << 40), "maximum size of the publishes in a transaction"),
    )
    delivery_timeout_s: float = field(
        default=1800.0,
        metadata=about(
            seconds_kind(0, 10**8),
            "how long a quorum queue waits for an ack before it cancels the consumer; 0: no limit",
        ),
    )
    queues_per_vhost_max: int = field(
        default=200_000, metadata=about(integer_kind(1, 10 * _MILLION), "maximum queues per vhost")
    )
    exchanges_per_vhost_max: int = field(
        default=50_000, metadata=about(integer_kind(1, 10 * _MILLION), "maximum exchanges per vhost")
    )
    bindings_per_exchange_max: int = field(
        default=500_000, metadata=about(integer_kind(1, 10 * _MILLION), "maximum bindings per source exchange")
    )

    def keepalive(self) -> Keepalive:
        """Return when a client that does not answer is given up."""
        return Keepalive(self.tcp_keepalives_idle_s, self.tcp_keepalives_interval_s, self.tcp_keepalives_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """How messages are kept on disk. `vhosts` maps the names of vhosts to their value of `confirm`."""

    confirm: Confirm = field(
        default="durable",
        metadata=about(choice_kind("durable", "os"), "what a confirm promises: synced to the disk, or written"),
    )
    vhosts: Mapping[str, Confirm] = field(
        default_factory=dict, metadata=about(choice_by_name_kind("durable", "os"), "store.confirm of single vhosts")
    )
    segment_bytes: int = field(
        default=32 << 20, metadata=about(size_kind(64 << 10, 1 << 30), "size of the files of the log")
    )
    checkpoint_bytes: int = field(
        default=128 << 20,
        metadata=about(size_kind(64 << 10, _TERABYTE), "log written between two checkpoints; a start reads it all"),
    )
    memory_bytes: int = field(
        default=128 << 20,
        metadata=about(
            size_kind(0, _TERABYTE), "memory for copies of stored messages, for quick delivery, of all queues"
        ),
    )
    paging_watermark: MemoryWatermark = field(
        default=MemoryWatermark(fraction=0.2),
        metadata=about(WATERMARK, "memory above which transient messages go to disk"),
    )
    disk_free_min_bytes: int = field(
        default=1 << 30, metadata=about(size_kind(0, _TERABYTE), "free disk below which publishers are blocked")
    )
    scrub_bytes_per_s: int = field(
        default=5 << 20,
        metadata=about(size_kind(0, _TERABYTE), "rate of reading stored messages again to find corruption; 0: never"),
    )
    compaction_bytes_per_s: int = field(
        default=20 << 20,
        metadata=about(size_kind(64 << 10, _TERABYTE), "rate of moving live messages to free the files around them"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of `warren serve`. `origins` maps each dotted key to the origin of its value."""

    data_dir: Path = field(
        default_factory=default_data_dir,
        metadata=about(
            PATH,
            "directory of all persistent data",
            example="~/.local/share/warren",
            option="--data-dir DIR",
        ),
    )
    node_name: str = field(
        default="",
        metadata=about(
            Kind(node_name_of, "NAME@HOST"),
            "name of this node in the API, metrics and events; default: rabbit@ and the host",
            example="rabbit@broker1",
            option="--node NAME@HOST",
        ),
    )
    # The addresses of `LISTENERS`, each a setting of its own. Those that are not here have their defaults.
    listeners: Mapping[str, Endpoint | None] = field(default_factory=dict)
    amqp_1_0: bool = field(
        default=True,
        metadata=about(SWITCH, "whether AMQP 1.0 is accepted on the AMQP listeners"),
    )
    http: Endpoint | None = field(
        default=Endpoint("127.0.0.1", HTTP_PORT),
        metadata=about(
            endpoint_kind(HTTP_PORT), "address of the management API, or off", absent="off", option="--http HOST:PORT"
        ),
    )
    https: Endpoint | None = field(
        default=None,
        metadata=about(
            endpoint_kind(_HTTPS_PORT),
            "address of the management API with TLS, or off",
            absent="off",
            option="--https HOST:PORT",
        ),
    )
    http_hosts: str = field(
        default="",
        metadata=about(
            Kind(host_names_of, "names with commas"), "additional host names under which browsers reach the web UI"
        ),
    )
    ws_origins: str = field(
        default="",
        metadata=about(
            Kind(origins_of, "origins with commas, or *"),
            "origins whose web pages may connect over WebSocket, besides the host itself",
            example="https://app.example.com",
        ),
    )
    prometheus: Endpoint | None = field(
        default=Endpoint("127.0.0.1", _PROMETHEUS_PORT),
        metadata=about(
            endpoint_kind(_PROMETHEUS_PORT),
            "address of the metrics without a login, or off",
            absent="off",
            option="--prometheus HOST:PORT",
        ),
    )
    data: Endpoint | None = field(
        default=None,
        metadata=about(
            endpoint_kind(_DATA_PORT),
            "address for readers with a token, which get messages only, or off",
            absent="off",
            option="--data HOST:PORT",
        ),
    )
    datas: Endpoint | None = field(
        default=None,
        metadata=about(
            endpoint_kind(_DATAS_PORT),
            "the same with TLS, or off",
            absent="off",
            option="--datas HOST:PORT",
        ),
    )
    metadata_url: str = field(
        default="",
        metadata=about(
            Kind(metadata_url_of, "a URL: sqlite:///… or postgresql+psycopg://…"),
            "database of vhosts, users, queues …; default: catalogue.db in the data directory",
            example="postgresql+psycopg://warren:password@127.0.0.1:5432/warren",
            option="--metadata-url URL",
        ),
    )
    default_user: str = field(
        default="guest",
        metadata=about(
            Kind(name_of_user_of, "a name"), "the first user, an administrator; created in a new metadata store only"
        ),
    )
    default_pass: str = field(
        default="guest",
        metadata=about(
            Kind(password_of, "text"), "password of the first user; guest only logs in from this machine", secret=True
        ),
    )
    load_definitions: Path | None = field(
        default=None,
        metadata=about(
            PATH,
            "JSON file of definitions, imported at each start before clients can connect",
            example="definitions.json",
        ),
    )
    definitions_skip_if_unchanged: bool = field(
        default=False,
        metadata=about(SWITCH, "import load_definitions only if the file has changed since the last import"),
    )
    link_networks: str = field(
        default="",
        metadata=about(
            Kind(networks_of, "networks with commas"),
            "loopback and link-local networks that shovels and federation may connect to",
        ),
    )
    lake_places: str = field(
        default="",
        metadata=about(
            Kind(places_of, "directories, URLs and catalog:NAME with commas"),
            "places where the broker itself may keep tables of a lake",
            example="/srv/lake,s3://lake",
        ),
    )
    with_links: bool = field(
        default=False,
        metadata=about(
            SWITCH,
            "release the links of a restored or copied data directory, which are held otherwise",
            option="--with-links",
        ),
    )
    accept_loss: bool = field(
        default=False,
        metadata=about(
            SWITCH,
            "start once even if the message store is older than the metadata store, or missing",
            option="--accept-loss",
        ),
    )
    cluster_listen: Endpoint | None = field(
        default=None,
        metadata=about(
            endpoint_kind(CLUSTER_PORT),
            "address for followers that keep a copy of this node, or off",
            absent="off",
            option="--cluster-listen HOST:PORT",
        ),
    )
    follow: Endpoint | None = field(
        default=None,
        metadata=about(
            endpoint_kind(CLUSTER_PORT),
            "cluster port of the leader that this node copies until it is promoted, or off",
            absent="off",
            option="--follow HOST:PORT",
        ),
    )
    cluster_secret_file: Path | None = field(
        default=None,
        metadata=about(
            PATH,
            "file with the shared secret of leader and followers, at least 16 bytes",
            example="cluster.secret",
            option="--cluster-secret-file FILE",
        ),
    )
    min_in_sync: int = field(
        default=1,
        metadata=about(
            integer_kind(1, 8),
            "number of nodes, including the leader, that must have a message before it is confirmed",
            option="--min-in-sync N",
        ),
    )
    etcd: str = field(
        default="",
        metadata=about(
            Kind(etcd_endpoints_of, "http://HOST:PORT with commas"),
            "members of the etcd with which the cluster elects its leader",
            option="--etcd URL,URL,…",
        ),
    )
    etcd_ca: Path | None = field(
        default=None,
        metadata=about(
            PATH, "PEM file of the authorities etcd's certificates are checked against", example="etcd-ca.pem"
        ),
    )
    etcd_certificate: Path | None = field(
        default=None,
        metadata=about(PATH, "PEM file: the certificate of this node for etcd, then its chain", example="etcd.pem"),
    )
    etcd_key: Path | None = field(
        default=None,
        metadata=about(PATH, "PEM file of its key, unless the certificate's file holds it", example="etcd.key"),
    )
    etcd_user: str = field(default="", metadata=about(TEXT, "user of etcd, if it has users"))
    etcd_password_file: Path | None = field(
        default=None, metadata=about(PATH, "file with the password of etcd_user", example="etcd.password")
    )
    cluster_advertise: Endpoint | None = field(
        default=None,
        metadata=about(
            Kind(advertised_of, 'HOST:PORT or "off"'),
            "address of this cluster port for other nodes, or off: that of cluster_listen",
            absent="off",
            option="--cluster-advertise HOST:PORT",
        ),
    )
    http_advertise: Endpoint | None = field(
        default=None,
        metadata=about(
            Kind(http_advertised_of, 'HOST:PORT or "off"'),
            "address of this node's https, else http, for readers, or off: the listening address",
            absent="off",
        ),
    )
    cluster_name: str = field(
        default="warren",
        metadata=about(
            Kind(cluster_name_of, "a name"),
            "name of this node's cluster, below which its keys are in etcd",
            option="--cluster-name NAME",
        ),
    )
    cluster_first_node: str = field(
        default="",
        metadata=about(
            Kind(node_name_of, "NAME@HOST"),
            "the only node that may begin a cluster's store; default: the first to reach etcd",
            example="rabbit@broker1",
        ),
    )
    replicas: int = field(
        default=3,
        metadata=about(integer_kind(1, 9), "number of nodes that keep a full copy", option="--replicas N"),
    )
    cluster_certificate: Path | None = field(
        default=None,
        metadata=about(
            PATH, "PEM file: the certificate of this node for other nodes, then its chain", example="node.pem"
        ),
    )
    cluster_private_key: Path | None = field(
        default=None,
        metadata=about(PATH, "PEM file of its key, unless the certificate's file holds it", example="node.key"),
    )
    cluster_ca: Path | None = field(
        default=None,
        metadata=about(
            PATH, "PEM file of the authorities other nodes' certificates are checked against", example="nodes-ca.pem"
        ),
    )
    tracing_otlp_endpoint: str = field(
        default="",
        metadata=about(
            Kind(http_url_of, "a URL: http://… or https://…"),
            "OpenTelemetry collector for spans of messages with a sampled trace context; needs the extra otel",
            example="http://collector:4318",
        ),
    )
    tracing_sampling_ratio: float = field(
        default=1.0,
        metadata=about(Kind(share_of, "0 to 1"), "share of the sampled traces for which spans are sent"),
    )
    log_level: str = field(
        default="info",
        metadata=about(choice_kind(*LEVELS), "least level logged", option="--log-level debug|info|warning|error"),
    )
    log_format: LogFormat = field(
        default="console",
        metadata=about(
            choice_kind("console", "json"), "lines for a person or for a collector", option="--log-format console|json"
        ),
    )
    tls: TlsSettings = field(default_factory=TlsSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    origins: Mapping[str, str] = field(default_factory=dict)

    def endpoint(self, listener: str) -> Endpoint | None:
        """Return the address of a listener, such as ``mqtts`` or ``http``; None if it is off."""
        kind = LISTENERS.get(listener)
        if kind is None:
            found: Endpoint | None = getattr(self, listener)
            return found
        return self.listeners.get(listener, Endpoint("127.0.0.1", kind.port) if kind.is_on else None)

    def catalogue_url(self) -> str:
        """Return the URL of the metadata store: `metadata_url`, or the SQLite file in the data directory."""
        return self.metadata_url or sqlite_url(self.data_dir / "catalogue.db")


@dataclass(frozen=True, slots=True)
class SettingKey:
    """One setting as shown to a person.

    `values` says which it takes, `absent` how None is shown, `example` a possible value if the default is not fixed.
    `option` is the option of `warren serve`, if it has one, with the name of its value; a switch does not have a value.
    """

    key: str
    description: str
    parse: Parser
    values: str
    secret: bool
    absent: str
    example: str
    option: str

    @property
    def variable(self) -> str:
        """The environment variable."""
        return ENVIRONMENT_PREFIX + self.key.upper().replace(".", "_")


TABLES: Final[dict[str, type]] = {"tls": TlsSettings, "limits": LimitSettings, "store": StoreSettings}


def _keys_of(owner: type, prefix: str) -> Iterator[SettingKey]:
    entry: Field[Any]
    for entry in fields(owner):
        if entry.name == "listeners":
            for kind in LISTENERS.values():
                option = f"--{kind.setting.replace('_', '-')} HOST:PORT"
                kept = about(endpoint_kind(kind.port), kind.description, absent="off", option=option)
                yield SettingKey(kind.setting, **kept)
        elif "parse" in entry.metadata:
            yield SettingKey(prefix + entry.name, **entry.metadata)


KEYS: Final[dict[str, SettingKey]] = {
    key.key: key
    for owner, prefix in ((Settings, ""), *((table, f"{name}.") for name, table in TABLES.items()))
    for key in _keys_of(owner, prefix)
}

_OPTIONS: Final = [(key.option.split(), key.key) for key in KEYS.values() if key.option]
# Options of `warren serve`, and their settings.
SERVE_OPTIONS: Final = {words[0]: key for words, key in _OPTIONS}
# Those without a value on the command line: naming one means true.
SERVE_SWITCHES: Final = frozenset(words[0] for words, _ in _OPTIONS if len(words) == 1)
