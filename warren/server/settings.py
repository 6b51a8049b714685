"""What can be set, where it came from, and what it must look like.

    flag  >  WARREN_* environment  >  TOML file  >  default

The key ``limits.frame_max_bytes`` is ``frame_max_bytes`` in the TOML table ``[limits]`` and the environment
variable ``WARREN_LIMITS_FRAME_MAX_BYTES``. Defaults listen on this machine only.

1. Every value knows its origin, and a value that cannot be used is refused naming key, value and origin.
2. A key that does not exist is an error naming the nearest one, in the file and in the environment. Exempt
   are the variables that Kubernetes sets for a service called "warren", ``WARREN_CONFIG`` (the file),
   ``WARREN_CTL_*`` of `warren ctl`, ``WARREN_SELECTOR`` (`network/readiness.py`), and ``WARREN_COMPILE`` and
   ``WARREN_TEST_*`` for building and testing.
3. A value of the file has the type of its key; text is accepted for numbers only from flags and environment,
   and a table is JSON there.
4. Paths in the file are relative to the file; others to the working directory.
5. A variable with ``_FILE`` behind its name names a file whose first line is the value, as secrets are mounted.

Written with the standard library: pydantic-settings would cost 9 MB of the 60 MB an idle broker may take.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote

from warren.amqp.numbers import is_long
from warren.server.errors import SettingsError
from warren.server.logs import LEVELS, REDACTED, LogFormat, redact_url
from warren.server.regular_files import read_regular

Confirm = Literal["durable", "os"]
ClientCertificates = Literal["none", "optional", "required"]
CertLoginFrom = Literal["cn", "dn", "san"]

DEFAULT_ORIGIN: Final = "default"
_ENVIRONMENT_PREFIX: Final = "WARREN_"
_CONFIG_VARIABLE: Final = "WARREN_CONFIG"
_FILE_SUFFIX: Final = "_FILE"
_NOT_OURS: Final = re.compile(
    r"WARREN_(TEST_.*|CTL_.*|COMPILE|CONFIG|SELECTOR|SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)

_AMQP_PORT: Final = 5672
_AMQPS_PORT: Final = 5671
_MQTT_PORT: Final = 1883
_MQTTS_PORT: Final = 8883
_STOMP_PORT: Final = 61613
_STOMPS_PORT: Final = 61614
_AMQP_WS_PORT: Final = 15678
_AMQP_WSS_PORT: Final = 15677
_MQTT_WS_PORT: Final = 15675
_MQTT_WSS_PORT: Final = 15676
_STOMP_WS_PORT: Final = 15674
_STOMP_WSS_PORT: Final = 15673
_HTTP_PORT: Final = 15672
_HTTPS_PORT: Final = 15671
_DATA_PORT: Final = 15680
_DATAS_PORT: Final = 15681
_PROMETHEUS_PORT: Final = 15692
_CLUSTER_PORT: Final = 25672
# How clients of a protocol come: what is behind its name in the name of the setting, and whether that is with TLS.
WAYS: Final = {"": False, "s": True, "_ws": False, "_wss": True}
LISTENERS: Final = tuple(f"{name}{way}" for name in ("amqp", "mqtt", "stomp") for way in WAYS)
WITH_TLS: Final = (*(f"{name}{way}" for name in ("amqp", "mqtt", "stomp") for way in ("s", "_wss")), "https", "datas")
_SIZE: Final = re.compile(r"([0-9]+)\s*(B|kB|MB|GB|KiB|MiB|GiB)?")
_SIZE_UNITS: Final = {
    None: 1,
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host name or address, and a TCP port; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class MemoryWatermark:
    """A share of the memory this process may use, or a number of bytes; exactly one is set."""

    fraction: float | None = None
    size_bytes: int | None = None

    def limit_bytes(self, total_bytes: int) -> int:
        """Return the watermark in bytes when `total_bytes` may be used in all."""
        if self.size_bytes is not None:
            return self.size_bytes
        assert self.fraction is not None
        return int(total_bytes * self.fraction)

    def __str__(self) -> str:
        return str(self.size_bytes if self.size_bytes is not None else self.fraction)


class _Text(str):
    """A value that can only be text because it was a flag or an environment variable."""

    __slots__ = ()


_Parser = Callable[[object], Any]


class _Kind(NamedTuple):
    """What values a setting takes: how one is read, and which they are, for a person."""

    parse: _Parser
    values: str


def _about(
    kind: _Kind, description: str, *, secret: bool = False, absent: str = "", example: str = ""
) -> dict[str, Any]:
    about: dict[str, Any] = {"description": description, "secret": secret, "absent": absent, "example": example}
    return about | kind._asdict()


def _integer(minimum: int, maximum: int) -> _Kind:
    def parse(value: object) -> int:
        if isinstance(value, _Text):
            if not re.fullmatch(r"-?[0-9]{1,18}", value):
                raise ValueError("must be a whole number")
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError("must be a whole number")
        return _in_range(value, minimum, maximum)

    return _Kind(parse, f"{minimum} to {maximum}")


def _size(minimum: int, maximum: int) -> _Kind:
    def parse(value: object) -> int:
        if isinstance(value, str):
            value = _bytes_of(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError('must be a number of bytes, such as 65536 or "64 KiB"')
        return _in_range(value, minimum, maximum)

    return _Kind(parse, f"{shown_size(minimum)} to {shown_size(maximum)}")


def _seconds(minimum: float, maximum: float) -> _Kind:
    def parse(value: object) -> float:
        if isinstance(value, _Text):
            if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value):
                raise ValueError("must be a number of seconds")
            value = float(value)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise ValueError("must be a number of seconds")
        if not minimum <= value <= maximum:
            raise ValueError(f"must be from {minimum:g} to {maximum:g}")
        return float(value)

    return _Kind(parse, f"{minimum:g} to {maximum:.0f} seconds")


def _flag(value: object) -> bool:
    if isinstance(value, _Text):
        value = {"true": True, "false": False}.get(value)
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _host_names(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9.,\s-]*", value):
        raise ValueError("must be a comma-separated list of host names without ports")
    return value


def _origins(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be origins with commas between them, such as https://app.example.com, or *")
    for origin in value.split(",") if value.strip() else ():
        if not re.fullmatch(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s]+", origin.strip(), re.IGNORECASE):
            raise ValueError(f"{_shown(origin.strip())} is not an origin such as https://app.example.com, nor *")
    return value


def _node_name(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}@[A-Za-z0-9._-]{1,190}", value):
        raise ValueError("must be a name such as rabbit@host")
    return str(value)


def _cluster_name(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", value):
        raise ValueError("must be a name of letters, digits, dots, hyphens and underscores")
    return value


def _etcd_endpoints(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be URLs with commas between them, such as http://etcd1:2379,http://etcd2:2379")
    endpoints = [text.strip() for text in value.split(",")] if value.strip() else []
    for endpoint in endpoints:
        # Not shown: somebody may have put a password into it.
        if not re.fullmatch(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[1-9][0-9]{0,4}", endpoint):
            raise ValueError("must be URLs with commas between them, such as http://etcd1:2379,http://etcd2:2379")
    return ",".join(endpoints)


def _advertised(value: object) -> Endpoint | None:
    endpoint: Endpoint | None = _endpoint(_CLUSTER_PORT).parse(value)
    if endpoint is not None and (not endpoint.port or endpoint.host in ("0.0.0.0", "::")):
        raise ValueError("must be an address that other nodes reach, with a port")
    return endpoint


def _http_advertised(value: object) -> Endpoint | None:
    endpoint: Endpoint | None = _endpoint(_HTTP_PORT).parse(value)
    if endpoint is not None and (not endpoint.port or endpoint.host in ("0.0.0.0", "::")):
        raise ValueError("must be an address that clients reach, with a port")
    return endpoint


def _http_url(value: object) -> str:
    # Not shown: somebody may have put a password into it.
    if not isinstance(value, str) or not re.fullmatch(_HTTP_URL, value):
        raise ValueError("must be a URL without a user or password, such as http://collector:4318")
    return value


_HTTP_URL: Final = r"(https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[1-9][0-9]{0,4})?(/[!-~]*)?)?"  # or nothing


def _share(value: object) -> float:
    if isinstance(value, _Text):
        if not re.fullmatch(r"[01](\.[0-9]{1,9})?|\.[0-9]{1,9}", value):
            raise ValueError("must be from 0 to 1")
        value = float(value)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= 1:
        raise ValueError("must be from 0 to 1")
    return float(value)


def _networks(value: object) -> str:
    import ipaddress

    if not isinstance(value, str):
        raise ValueError("must be a comma-separated list of networks, such as 127.0.0.0/8")
    for text in value.split(",") if value.strip() else ():
        try:
            ipaddress.ip_network(text.strip())
        except ValueError:
            raise ValueError(f"{_shown(text.strip())} is not a network such as 127.0.0.0/8") from None
    return value


def _places(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a comma-separated list of directories and URLs, such as /srv/lake")
    for text in value.split(",") if value.strip() else ():
        place = text.strip()
        is_path = place.startswith("/") and ".." not in place.split("/")
        is_url = all(place.partition("://")) and not {"?", "#"} & set(place)
        is_catalog = place.startswith("catalog:") and place != "catalog:"
        if not (is_path or is_url or is_catalog) or not place.isprintable():
            raise ValueError(
                f"{_shown(place)} is not an absolute path such as /srv/lake, a URL such as s3://lake, or catalog:NAME"
            )
    return value


def _choice(*words: str) -> _Kind:
    def parse(value: object) -> str:
        if value not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return str(value)

    return _Kind(parse, _either(*words))


def _choice_by_name(*words: str) -> _Kind:
    def parse(value: object) -> dict[str, str]:
        if isinstance(value, _Text):
            try:
                value = json.loads(value)
            except ValueError:
                value = None
        if not isinstance(value, dict):
            raise ValueError(f'must be a table, or JSON in the environment, such as {{"name": "{words[0]}"}}')
        for name, word in value.items():
            if word not in words:
                raise ValueError(f"{name!r} must be one of {', '.join(words)}")
        return value

    return _Kind(parse, f"a table of names, each {_either(*words)}")


def _endpoint(default_port: int) -> _Kind:
    def parse(value: object) -> Endpoint | None:
        if value == "off":
            return None
        match = (
            re.fullmatch(r"(?:\[([^][]+)\]|([^][:\s]+))(?::([0-9]{1,5}))?", value) if isinstance(value, str) else None
        )
        if match is None or int(match[3] or 0) > 65535:
            raise ValueError('must be HOST:PORT (an IPv6 address in brackets) or "off"')
        port = default_port if match[3] is None else int(match[3])
        return Endpoint(match[1] or match[2], port)

    return _Kind(parse, 'HOST:PORT or "off"')


def _path(value: object) -> Path:
    if not isinstance(value, str) or not value or "\x00" in value:
        raise ValueError("must be a path")
    return Path(value).expanduser()


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be text")
    return str(value)


def _name_of_user(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value.encode("utf-8", "replace")) <= 255 or not value.isprintable():
        raise ValueError("must be a name of at most 255 bytes")
    return str(value)


def _password(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be text, and not empty")
    return str(value)


def _metadata_url(value: object) -> str:
    if not isinstance(value, str) or not re.match(r"(sqlite|postgresql|postgresql\+psycopg)://", value):
        raise ValueError("must be an sqlite:///… or postgresql+psycopg://… URL")
    return str(value)


def _watermark(value: object) -> MemoryWatermark:
    if isinstance(value, str):
        percent = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,9})?)\s*%", value)
        if percent is not None:
            value = float(percent[1]) / 100
        elif re.fullmatch(r"[01]?\.[0-9]{1,9}", value):
            value = float(value)
        else:
            value = _bytes_of(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError('must be a share such as 0.4 or "40%", or a size such as "2 GiB"')
    if 0 < value <= 1:
        return MemoryWatermark(fraction=float(value))
    if not isinstance(value, int) or not is_long(value) or value < _WATERMARK_MIN_BYTES:
        raise ValueError("must be a share above 0 and up to 1, or at least 64 MiB")
    return MemoryWatermark(size_bytes=value)


_WATERMARK_MIN_BYTES: Final = 64 << 20


def _either(*words: str) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def shown_size(size_bytes: int) -> str:
    """Return a size with the largest binary unit that divides it; text that settings understand."""
    for unit in ("GiB", "MiB", "KiB"):
        if size_bytes and size_bytes % _SIZE_UNITS[unit] == 0:
            return f"{size_bytes // _SIZE_UNITS[unit]} {unit}"
    return str(size_bytes)


def _bytes_of(text: str) -> int | None:
    match = _SIZE.fullmatch(text.strip())
    return None if match is None or len(match[1]) > 18 else int(match[1]) * _SIZE_UNITS[match[2]]


def _in_range(value: int, minimum: int, maximum: int) -> int:
    if not minimum <= value <= maximum:
        raise ValueError(f"must be from {minimum} to {maximum}")
    return value


def default_data_dir() -> Path:
    """Return ``$XDG_DATA_HOME/warren``, by default ``~/.local/share/warren``.

    A place that does not depend on where the command is started from: queues must not vanish with a ``cd``.
    """
    base = os.environ.get("XDG_DATA_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share") / "warren"


# Publishers that were blocked for want of disk go on when this many times `store.disk_free_min_bytes` is free, so
# that the alarm does not flap.
DISK_FREE_RESUME_SHARE: Final = 1.5

_PATH: Final = _Kind(_path, "a path")
_TEXT: Final = _Kind(_text, "text")
_SWITCH: Final = _Kind(_flag, "true or false")
_WATERMARK: Final = _Kind(_watermark, 'a share such as 0.4 or "40%", or a size such as "2 GiB"')

_MILLION: Final = 1_000_000
_TERABYTE: Final = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """How the ``amqps`` listener proves who it is, and whom it believes."""

    certificate: Path | None = field(
        default=None, metadata=_about(_PATH, "PEM file: the certificate, then its chain", example="server.pem")
    )
    private_key: Path | None = field(
        default=None,
        metadata=_about(_PATH, "PEM file of the key, unless the certificate's file holds it", example="server.key"),
    )
    private_key_password: str = field(
        default="", metadata=_about(_TEXT, "password of an encrypted private key", secret=True)
    )
    ca: Path | None = field(
        default=None,
        metadata=_about(_PATH, "PEM file of the authorities client certificates are checked against", example="ca.pem"),
    )
    client_certificates: ClientCertificates = field(
        default="none",
        metadata=_about(_choice("none", "optional", "required"), "whether clients present certificates"),
    )
    cert_login_from: CertLoginFrom = field(
        default="dn",
        metadata=_about(_choice("cn", "dn", "san"), "what of a client certificate is the user name of EXTERNAL"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """What one client, and all of them together, may use."""

    frame_max_bytes: int = field(
        default=128 << 10, metadata=_about(_size(4096, 16 << 20), "largest frame offered in tune")
    )
    channel_max: int = field(
        default=2047, metadata=_about(_integer(1, 65535), "most channels of a connection, offered in tune")
    )
    heartbeat_s: int = field(
        default=60, metadata=_about(_integer(0, 65535), "heartbeat interval offered in tune; 0 is none")
    )
    max_message_bytes: int = field(default=128 << 20, metadata=_about(_size(1, 512 << 20), "largest message body"))
    content_timeout_s: float = field(
        default=60.0,
        metadata=_about(
            _seconds(0, 10**8),
            "how long a message may halt halfway before its channel is closed; 0 is for ever",
        ),
    )
    connections_max: int = field(default=65536, metadata=_about(_integer(1, _MILLION), "most connections"))
    unauthenticated_connections_max: int = field(
        default=4096, metadata=_about(_integer(1, _MILLION), "most connections that have not logged in yet")
    )
    unauthenticated_per_network_max: int = field(
        default=1024,
        metadata=_about(_integer(1, _MILLION), "the same from one /24 (IPv4) or /64 (IPv6); this machine is exempt"),
    )
    accept_rate_per_s: int = field(
        default=10_000, metadata=_about(_integer(1, _MILLION), "most connections accepted in a second")
    )
    handshake_timeout_s: float = field(
        default=10.0, metadata=_about(_seconds(0.1, 3600), "from accepting a connection to its open")
    )
    tls_handshake_timeout_s: float = field(
        default=5.0, metadata=_about(_seconds(0.1, 3600), "from accepting to the end of the TLS handshake")
    )
    memory_high_watermark: MemoryWatermark = field(
        default=MemoryWatermark(fraction=0.4),
        metadata=_about(_WATERMARK, "memory above which publishers are not read"),
    )
    outbox_bytes: int = field(
        default=1 << 20,
        metadata=_about(_size(64 << 10, 1 << 30), "unsent bytes of a connection above which its consumers wait"),
    )
    mqtt_qos0_outbox_bytes: int = field(
        default=4 << 20,
        metadata=_about(
            _size(64 << 10, 1 << 30), "unsent bytes of an MQTT connection above which it gets no more of QoS 0"
        ),
    )
    send_timeout_s: float = field(
        default=30.0,
        metadata=_about(
            _seconds(0, 10**8), "how long a client may take nothing of what waits to be sent to it; 0 is for ever"
        ),
    )
    consumers_per_channel_max: int = field(
        default=10_000, metadata=_about(_integer(1, _MILLION), "most consumers of a channel")
    )
    unacked_per_channel_max: int = field(
        default=500_000,
        metadata=_about(_integer(1, 100 * _MILLION), "most deliveries of a channel waiting for their ack"),
    )
    delivery_timeout_s: float = field(
        default=1800.0,
        metadata=_about(
            _seconds(0, 10**8), "how long a delivery may wait for its ack before its channel is closed; 0 is for ever"
        ),
    )
    queues_per_vhost_max: int = field(
        default=200_000, metadata=_about(_integer(1, 10 * _MILLION), "most queues of a vhost")
    )
    exchanges_per_vhost_max: int = field(
        default=50_000, metadata=_about(_integer(1, 10 * _MILLION), "most exchanges of a vhost")
    )
    bindings_per_exchange_max: int = field(
        default=500_000, metadata=_about(_integer(1, 10 * _MILLION), "most bindings from an exchange")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """How messages are kept on disk. `vhosts` maps the names of vhosts to what `confirm` is for them."""

    confirm: Confirm = field(
        default="durable",
        metadata=_about(_choice("durable", "os"), "what a confirm promises: synced to the disk, or written"),
    )
    vhosts: Mapping[str, Confirm] = field(
        default_factory=dict, metadata=_about(_choice_by_name("durable", "os"), "store.confirm of single vhosts")
    )
    segment_bytes: int = field(
        default=32 << 20, metadata=_about(_size(64 << 10, 1 << 30), "size of the files of the log")
    )
    checkpoint_bytes: int = field(
        default=128 << 20,
        metadata=_about(_size(64 << 10, _TERABYTE), "log written between two checkpoints, all of which a start reads"),
    )
    memory_bytes: int = field(
        default=128 << 20,
        metadata=_about(_size(0, _TERABYTE), "stored messages also kept in memory for quick delivery, over all queues"),
    )
    paging_watermark: MemoryWatermark = field(
        default=MemoryWatermark(fraction=0.2),
        metadata=_about(_WATERMARK, "memory above which transient messages go to disk"),
    )
    disk_free_min_bytes: int = field(
        default=1 << 30, metadata=_about(_size(0, _TERABYTE), "free disk below which publishers are blocked")
    )
    scrub_bytes_per_s: int = field(
        default=5 << 20,
        metadata=_about(_size(0, _TERABYTE), "how fast stored messages are read again to find corruption; 0 is never"),
    )
    compaction_bytes_per_s: int = field(
        default=20 << 20,
        metadata=_about(_size(64 << 10, _TERABYTE), "how fast live messages are moved to free the files around them"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything `warren serve` goes by. `origins` maps each dotted key to where its value came from."""

    data_dir: Path = field(
        default_factory=default_data_dir,
        metadata=_about(_PATH, "directory of everything that outlives the broker", example="~/.local/share/warren"),
    )
    node_name: str = field(
        default="",
        metadata=_about(
            _Kind(_node_name, "NAME@HOST"),
            "what this node is called in the API, metrics and events; rabbit@ and the host",
            example="rabbit@broker1",
        ),
    )
    amqp: Endpoint | None = field(
        default=Endpoint("127.0.0.1", _AMQP_PORT),
        metadata=_about(_endpoint(_AMQP_PORT), "where AMQP clients connect, or off", absent="off"),
    )
    amqps: Endpoint | None = field(
        default=None,
        metadata=_about(_endpoint(_AMQPS_PORT), "where AMQP clients connect with TLS, or off", absent="off"),
    )
    amqp_1_0: bool = field(
        default=True,
        metadata=_about(_SWITCH, "whether AMQP 1.0 is spoken, too, where AMQP clients connect"),
    )
    amqp_ws: Endpoint | None = field(
        default=None,
        metadata=_about(_endpoint(_AMQP_WS_PORT), "where AMQP clients connect over WebSocket, or off", absent="off"),
    )
    amqp_wss: Endpoint | None = field(
        default=None,
        metadata=_about(
            _endpoint(_AMQP_WSS_PORT),
            "where AMQP clients connect over WebSocket with TLS, or off",
            absent="off",
        ),
    )
    mqtt: Endpoint | None = field(
        default=None,
        metadata=_about(_endpoint(_MQTT_PORT), "where MQTT clients connect, or off", absent="off"),
    )
    mqtts: Endpoint | None = field(
        default=None,
        metadata=_about(_endpoint(_MQTTS_PORT), "where MQTT clients connect with TLS, or off", absent="off"),
    )
    mqtt_ws: Endpoint | None = field(
        default=None,
        metadata=_about(_endpoint(_MQTT_WS_PORT), "where MQTT clients connect over WebSocket, or off", absent="off"),
    )
    mqtt_wss: Endpoint | None = field(
        default=None,
        metadata=_about(
            _endpoint(_MQTT_WSS_PORT),
            "where MQTT clients connect over WebSocket with TLS, or off",
            absent="off",
        ),
    )
    stomp: Endpoint | None = field(
        default=None,
        metadata=_about(_endpoint(_STOMP_PORT), "where STOMP clients connect, or off", absent="off"),
    )
    stomps: Endpoint | None = field(
        default=None,
        metadata=_about(_endpoint(_STOMPS_PORT), "where STOMP clients connect with TLS, or off", absent="off"),
    )
    stomp_ws: Endpoint | None = field(
        default=None,
        metadata=_about(_endpoint(_STOMP_WS_PORT), "where STOMP clients connect over WebSocket, or off", absent="off"),
    )
    stomp_wss: Endpoint | None = field(
        default=None,
        metadata=_about(
            _endpoint(_STOMP_WSS_PORT),
            "where STOMP clients connect over WebSocket with TLS, or off",
            absent="off",
        ),
    )
    http: Endpoint | None = field(
        default=Endpoint("127.0.0.1", _HTTP_PORT),
        metadata=_about(_endpoint(_HTTP_PORT), "where the management API is, or off", absent="off"),
    )
    https: Endpoint | None = field(
        default=None,
        metadata=_about(_endpoint(_HTTPS_PORT), "where the management API is with TLS, or off", absent="off"),
    )
    http_hosts: str = field(
        default="",
        metadata=_about(
            _Kind(_host_names, "names with commas"), "names, besides its own, under which browsers reach the web UI"
        ),
    )
    ws_origins: str = field(
        default="",
        metadata=_about(
            _Kind(_origins, "origins with commas, or *"),
            "whose web pages may connect over WebSocket, besides those of the host that they connect to",
            example="https://app.example.com",
        ),
    )
    prometheus: Endpoint | None = field(
        default=Endpoint("127.0.0.1", _PROMETHEUS_PORT),
        metadata=_about(_endpoint(_PROMETHEUS_PORT), "where metrics are without a login, or off", absent="off"),
    )
    data: Endpoint | None = field(
        default=None,
        metadata=_about(_endpoint(_DATA_PORT), "where readers with a token get messages alone, or off", absent="off"),
    )
    datas: Endpoint | None = field(
        default=None,
        metadata=_about(
            _endpoint(_DATAS_PORT), "where readers with a token get messages alone with TLS, or off", absent="off"
        ),
    )
    metadata_url: str = field(
        default="",
        metadata=_about(
            _Kind(_metadata_url, "a URL: sqlite:///… or postgresql+psycopg://…"),
            "where vhosts, users, queues … are kept; catalogue.db in the data directory",
            example="postgresql+psycopg://warren:password@127.0.0.1:5432/warren",
        ),
    )
    default_user: str = field(
        default="guest",
        metadata=_about(
            _Kind(_name_of_user, "a name"), "the first user, an administrator, made in a new metadata store only"
        ),
    )
    default_pass: str = field(
        default="guest",
        metadata=_about(
            _Kind(_password, "text"), "password of the first user; guest only logs in from this machine", secret=True
        ),
    )
    load_definitions: Path | None = field(
        default=None,
        metadata=_about(
            _PATH,
            "JSON file of definitions that is imported at each start, before anybody can connect",
            example="definitions.json",
        ),
    )
    definitions_skip_if_unchanged: bool = field(
        default=False,
        metadata=_about(_SWITCH, "import load_definitions only when the file is not the one imported last"),
    )
    link_networks: str = field(
        default="",
        metadata=_about(
            _Kind(_networks, "networks with commas"),
            "loopback and link-local networks that shovels and federation may connect to",
        ),
    )
    lake_places: str = field(
        default="",
        metadata=_about(
            _Kind(_places, "directories, URLs and catalog:NAME with commas"),
            "below which the broker may keep tables of a lake by itself",
            example="/srv/lake,s3://lake",
        ),
    )
    cluster_listen: Endpoint | None = field(
        default=None,
        metadata=_about(
            _endpoint(_CLUSTER_PORT), "where followers connect that keep a copy of this node, or off", absent="off"
        ),
    )
    follow: Endpoint | None = field(
        default=None,
        metadata=_about(
            _endpoint(_CLUSTER_PORT),
            "cluster port of the leader of which this node keeps a copy until it is promoted, or off",
            absent="off",
        ),
    )
    cluster_secret_file: Path | None = field(
        default=None,
        metadata=_about(
            _PATH, "file with the secret that leader and followers share, 16 bytes or more", example="cluster.secret"
        ),
    )
    min_in_sync: int = field(
        default=1,
        metadata=_about(
            _integer(1, 8), "how many nodes must have a message before it is confirmed, the leader being one of them"
        ),
    )
    etcd: str = field(
        default="",
        metadata=_about(
            _Kind(_etcd_endpoints, "http://HOST:PORT with commas"),
            "members of the etcd by which the nodes of a cluster elect their leader",
        ),
    )
    etcd_ca: Path | None = field(
        default=None,
        metadata=_about(
            _PATH, "PEM file of the authorities etcd's certificates are checked against", example="etcd-ca.pem"
        ),
    )
    etcd_certificate: Path | None = field(
        default=None,
        metadata=_about(_PATH, "PEM file: the certificate of this node for etcd, then its chain", example="etcd.pem"),
    )
    etcd_key: Path | None = field(
        default=None,
        metadata=_about(_PATH, "PEM file of its key, unless the certificate's file holds it", example="etcd.key"),
    )
    etcd_user: str = field(default="", metadata=_about(_TEXT, "user of etcd, where it has users"))
    etcd_password_file: Path | None = field(
        default=None, metadata=_about(_PATH, "file with the password of etcd_user", example="etcd.password")
    )
    cluster_advertise: Endpoint | None = field(
        default=None,
        metadata=_about(
            _Kind(_advertised, 'HOST:PORT or "off"'),
            "where other nodes reach this one's cluster port, or off: where cluster_listen says",
            absent="off",
        ),
    )
    http_advertise: Endpoint | None = field(
        default=None,
        metadata=_about(
            _Kind(_http_advertised, 'HOST:PORT or "off"'),
            "where readers reach this node's https, else http, or off: where that says",
            absent="off",
        ),
    )
    cluster_name: str = field(
        default="warren",
        metadata=_about(
            _Kind(_cluster_name, "a name"), "name of this node's cluster, below which its keys are in etcd"
        ),
    )
    replicas: int = field(
        default=3, metadata=_about(_integer(1, 9), "how many nodes of a cluster are to have everything")
    )
    cluster_certificate: Path | None = field(
        default=None,
        metadata=_about(
            _PATH, "PEM file: the certificate of this node for other nodes, then its chain", example="node.pem"
        ),
    )
    cluster_private_key: Path | None = field(
        default=None,
        metadata=_about(_PATH, "PEM file of its key, unless the certificate's file holds it", example="node.key"),
    )
    cluster_ca: Path | None = field(
        default=None,
        metadata=_about(
            _PATH, "PEM file of the authorities other nodes' certificates are checked against", example="nodes-ca.pem"
        ),
    )
    tracing_otlp_endpoint: str = field(
        default="",
        metadata=_about(
            _Kind(_http_url, "a URL: http://… or https://…"),
            "OpenTelemetry collector that gets spans of messages with a sampled trace context; needs the extra otel",
            example="http://collector:4318",
        ),
    )
    tracing_sampling_ratio: float = field(
        default=1.0,
        metadata=_about(_Kind(_share, "0 to 1"), "share of the sampled traces that spans are sent of"),
    )
    log_level: str = field(default="info", metadata=_about(_choice(*LEVELS), "least level logged"))
    log_format: LogFormat = field(
        default="console",
        metadata=_about(_choice("console", "json"), "lines for a person or for a collector"),
    )
    tls: TlsSettings = field(default_factory=TlsSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    origins: Mapping[str, str] = field(default_factory=dict)

    def catalogue_url(self) -> str:
        """Return the URL of the metadata store: `metadata_url`, or the SQLite file in the data directory."""
        return self.metadata_url or f"sqlite:///{quote(str(self.data_dir.absolute() / 'catalogue.db'))}"


@dataclass(frozen=True, slots=True)
class SettingKey:
    """One setting as a person meets it.

    `values` says which it takes, `absent` how None is shown, `example` what it could be where no default is fixed.
    """

    key: str
    description: str
    parse: _Parser
    values: str
    secret: bool
    absent: str
    example: str

    @property
    def variable(self) -> str:
        """The environment variable."""
        return _ENVIRONMENT_PREFIX + self.key.upper().replace(".", "_")


_TABLES: Final[dict[str, type]] = {"tls": TlsSettings, "limits": LimitSettings, "store": StoreSettings}


def _keys_of(owner: type, prefix: str) -> Iterator[SettingKey]:
    entry: Field[Any]
    for entry in fields(owner):
        if "parse" in entry.metadata:
            yield SettingKey(prefix + entry.name, **entry.metadata)


KEYS: Final[dict[str, SettingKey]] = {
    key.key: key
    for owner, prefix in ((Settings, ""), *((table, f"{name}.") for name, table in _TABLES.items()))
    for key in _keys_of(owner, prefix)
}
_BY_VARIABLE: Final = {key.variable: key for key in KEYS.values()}


def load_settings(
    flags: Mapping[str, str | None], environment: Mapping[str, str], config: Path | None = None, *, again: bool = False
) -> Settings:
    """Merge flags (dotted key to text; None is not given), environment and the file, and check the result.

    `again`: a broker runs already. A file that may block whoever reads it, such as a pipe, is refused then.

    Raises SettingsError, with a line for each mistake.
    """
    values: dict[str, Any] = {}
    origins = dict.fromkeys(KEYS, DEFAULT_ORIGIN)
    mistakes: list[str] = []

    def take(key: str, value: object, origin: str) -> None:
        try:
            values[key] = KEYS[key].parse(value)
        except ValueError as error:
            shown = REDACTED if KEYS[key].secret else redact_url(_shown(value))
            mistakes.append(f"{key} ({origin}): {error}, not {shown}")
        else:
            origins[key] = origin

    if config is None and environment.get(_CONFIG_VARIABLE):
        config = Path(environment[_CONFIG_VARIABLE])
    if config is not None:
        for key, value in _flatten(_read_toml(config, regular=again), config, mistakes):
            take(key, value, f"file {config}")
            if isinstance(values.get(key), Path):
                values[key] = config.parent / values[key]
    for variable, text in environment.items():
        if variable.startswith(_ENVIRONMENT_PREFIX) and not _NOT_OURS.fullmatch(variable):
            known = _BY_VARIABLE.get(variable)
            by_file = None if known else _BY_VARIABLE.get(variable.removesuffix(_FILE_SUFFIX))
            if known is not None:
                take(known.key, _Text(text), f"environment {variable}")
            elif by_file is None:
                mistakes.append(f"environment {variable}: no such setting{_nearest(variable, _BY_VARIABLE)}")
            elif by_file.variable in environment:
                mistakes.append(f"environment {variable}: {by_file.variable} is set, too")
            else:
                try:
                    take(by_file.key, _Text(_first_line(text)), f"environment {variable}")
                except OSError as error:
                    mistakes.append(f"environment {variable}: file {text}: {error.strerror or error}")
                except ValueError:
                    mistakes.append(f"environment {variable}: file {text}: is not UTF-8")
    for key, flag in flags.items():
        if flag is not None:
            take(key, _Text(flag), f"flag --{key.replace('_', '-')}")
    settings = _build(values, origins)
    mistakes = mistakes or list(_contradictions(settings))
    if mistakes:
        raise SettingsError("\n".join(mistakes))
    return settings


def values_of(settings: Settings) -> dict[str, Any]:
    """Return the value of every setting by its dotted key."""
    return {key: value_of(settings, key) for key in KEYS}


def shown_values(settings: Settings) -> Iterator[tuple[str, str, str]]:
    """Yield key, value and origin of every setting as text, without secrets."""
    for key, value in (values_of(settings) | {"metadata_url": settings.catalogue_url()}).items():
        yield key, _shown_setting(KEYS[key], value), settings.origins.get(key, DEFAULT_ORIGIN)


def value_of(settings: Settings, key: str) -> Any:
    """Return the value of the setting with this dotted key."""
    owner: object = settings
    for name in key.split("."):
        owner = getattr(owner, name)
    return owner


def _shown_setting(key: SettingKey, value: object) -> str:
    if value is None:
        return key.absent
    if isinstance(value, bool | Mapping):
        return redact_url(json.dumps(value, ensure_ascii=False))
    return REDACTED if key.secret and value else redact_url(str(value))


def _build(values: Mapping[str, Any], origins: Mapping[str, str]) -> Settings:
    top = {key: value for key, value in values.items() if "." not in key}
    tables: dict[str, Any] = {}
    for table, owner in _TABLES.items():
        prefix = f"{table}."
        given = {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}
        tables[table] = owner(**given)
    return Settings(**top, **tables, origins=origins)


def _contradictions(settings: Settings) -> Iterator[str]:
    """Yield what is wrong with settings that are right one by one."""

    def wrong(key: str, problem: str) -> str:
        return f"{key} ({settings.origins[key]}): {problem}"

    if settings.amqp is None and settings.amqps is None:
        yield wrong("amqp", "neither amqp nor amqps has an address to listen on")
    if settings.default_user != "guest" and settings.origins["default_pass"] == DEFAULT_ORIGIN:
        yield wrong("default_user", "needs default_pass, which everybody knows otherwise")
    for key in WITH_TLS:
        if getattr(settings, key) is not None and settings.tls.certificate is None:
            yield wrong(key, "needs tls.certificate")
    if settings.tls.client_certificates != "none" and settings.tls.ca is None:
        yield wrong("tls.client_certificates", "needs tls.ca")
    yield from _cluster_contradictions(settings, wrong)
    taken: dict[Endpoint, str] = {}
    for key in (*LISTENERS, "http", "https", "prometheus", "data", "datas", "cluster_listen"):
        endpoint: Endpoint | None = getattr(settings, key)
        if endpoint is not None and endpoint.port and taken.setdefault(endpoint, key) != key:
            yield wrong(key, f"{endpoint} is also the address of {taken[endpoint]}")


def _etcd_contradictions(settings: Settings, wrong: Callable[[str, str], str]) -> Iterator[str]:
    if not settings.etcd:
        for key in ("etcd_user", "cluster_advertise"):
            if getattr(settings, key):
                yield wrong(key, "needs etcd")
        return
    of_tls = [key for key in ("etcd_ca", "etcd_certificate", "etcd_key") if getattr(settings, key) is not None]
    schemes = {endpoint.partition(":")[0] for endpoint in settings.etcd.split(",")}
    if len(schemes) > 1:
        yield wrong("etcd", "all members are reached by https:// or all by http://")
    elif of_tls and schemes != {"https"}:
        yield wrong(of_tls[0], "needs members of etcd with https://")
    if settings.etcd_key is not None and settings.etcd_certificate is None:
        yield wrong("etcd_key", "needs etcd_certificate")
    if settings.etcd_user and settings.etcd_password_file is None:
        yield wrong("etcd_user", "needs etcd_password_file")
    if settings.etcd_password_file is not None and not settings.etcd_user:
        yield wrong("etcd_password_file", "needs etcd_user")


def _cluster_contradictions(settings: Settings, wrong: Callable[[str, str], str]) -> Iterator[str]:
    yield from _etcd_contradictions(settings, wrong)
    replicated = [key for key in ("cluster_listen", "follow") if getattr(settings, key) is not None]
    if settings.etcd:
        if settings.cluster_listen is None or not settings.cluster_listen.port:
            yield wrong("etcd", "needs cluster_listen with a port, where the other nodes reach this one")
        if settings.follow is not None:
            yield wrong("follow", "cannot be used with etcd: the nodes elect whom they follow")
        if settings.min_in_sync > settings.replicas:
            yield wrong("min_in_sync", f"{settings.min_in_sync} of {settings.replicas} replicas can never be in sync")
    if not replicated:
        if settings.min_in_sync > 1:
            yield wrong("min_in_sync", "needs cluster_listen: no follower could ever connect")
        return
    if settings.cluster_secret_file is None:
        # Not on loopback either, where all users of the machine can connect: a follower gets every message there is.
        yield wrong(replicated[0], "needs cluster_secret_file")
    if settings.metadata_url:
        yield wrong(
            "metadata_url", f"cannot be used with {replicated[0]}: a follower keeps its own copy of the metadata"
        )
    if settings.min_in_sync > 1 and settings.cluster_listen is None:
        yield wrong("min_in_sync", "needs cluster_listen: no follower could ever connect")
    if (settings.cluster_certificate is None) != (settings.cluster_ca is None):
        yield wrong("cluster_certificate", "cluster_certificate and cluster_ca go together")


def _first_line(path: str) -> str:
    return read_regular(path).decode().partition("\n")[0].removesuffix("\r")


def _read_toml(path: Path, *, regular: bool) -> dict[str, Any]:
    import tomllib

    try:
        data = read_regular(path) if regular else path.read_bytes()
        return tomllib.loads(data.decode())
    except OSError as error:
        raise SettingsError(f"config file {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"config file {path}: {error}") from None


def _flatten(document: Mapping[str, Any], path: Path, mistakes: list[str]) -> Iterator[tuple[str, object]]:
    """Yield the settings of a file by their dotted keys, and add what is none to `mistakes`."""
    for name, value in document.items():
        if name not in _TABLES:
            found = {name: value}
        elif isinstance(value, dict):
            found = {f"{name}.{inner}": inner_value for inner, inner_value in value.items()}
        else:
            mistakes.append(f"{name} (file {path}): must be a table, not {_shown(value)}")
            continue
        for key, inner_value in found.items():
            if key in KEYS:
                yield key, inner_value
            else:
                mistakes.append(f"file {path}: no setting {key!r}{_nearest(key, KEYS)}")


def _nearest(key: str, known: Mapping[str, object]) -> str:
    """Return a hint at what was probably meant: a table, a key begun, a key alike, a key of another table."""
    import difflib

    tables = difflib.get_close_matches(key, _TABLES, n=1, cutoff=0.7)
    by_leaf = {name.rpartition(".")[2]: name for name in known}
    elsewhere = difflib.get_close_matches(key.rpartition(".")[2], by_leaf, n=1)
    hints = [
        *(f"the table [{table}]" for table in tables),
        *(name for name in known if name.startswith(key)),
        *difflib.get_close_matches(key, known, n=1),
        *(by_leaf[leaf] for leaf in elsewhere),
    ]
    return f"; did you mean {hints[0]}?" if hints else ""


def _shown(value: object) -> str:
    text = repr(str(value)) if isinstance(value, str) else str(value)
    return text if len(text) <= 100 else text[:99] + "…"
