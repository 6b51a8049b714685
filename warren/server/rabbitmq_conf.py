"""Translates RabbitMQ's configuration file, ``rabbitmq.conf``, into settings of ours.

    listeners.tcp.default = 5672        ->  amqp = "0.0.0.0:5672"
    vm_memory_high_watermark.relative = 0.6   [limits]  memory_high_watermark = 0.6

1. Every line has its place in the result: as a setting, as a line that says why it needs none (`_NEEDLESS`), or as one
   that says that nothing here does what it asks for. Nothing is dropped in silence.
2. What comes out is a file that `warren serve --config` reads.

Source: RabbitMQ, "Configuration"; the keys of ``rabbitmq.conf.example`` of 3.13 and 4.0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from warren.server.settings import KEYS

_LINE: Final = re.compile(r"\s*([A-Za-z0-9_.$-]+)\s*=\s*(.*?)\s*")
_UNITS: Final = re.compile(r"([0-9]+)\s*([kKmMgGtT])?(i?[bB])?")
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

Values = list[tuple[str, object]]


class Untranslatable(ValueError):
    """The value of a key cannot be taken over; the text says why."""


@dataclass
class Translation:
    """What a file comes to. `values` are settings by their dotted keys; the others are pairs of a line and a remark."""

    values: dict[str, object] = field(default_factory=dict)
    needless: list[tuple[str, str]] = field(default_factory=list)
    missing: list[tuple[str, str]] = field(default_factory=list)

    def toml(self) -> str:
        """Return the settings as a file, with the remarks in front."""
        lines = ["# Made from rabbitmq.conf by `warren config import-rabbitmq`."]
        for title, remarks in (
            ("Without a counterpart; look at each", self.missing),
            ("Not needed", self.needless),
        ):
            if remarks:
                lines += ["#", f"# {title}:"]
                lines += [f"#   {line}    {remark}" for line, remark in remarks]
        lines.append("")
        tables: dict[str, list[str]] = {"": []}
        for key, value in self.values.items():
            table, _, name = key.rpartition(".")
            tables.setdefault(table, []).append(f"{name} = {json.dumps(value, ensure_ascii=False)}")
        for table, entries in tables.items():
            if table:
                lines += ["", f"[{table}]"]
            lines += entries
        return "\n".join(lines) + "\n"


def translate(text: str) -> Translation:
    """Translate the text of a ``rabbitmq.conf``."""
    found = Translation()
    for raw in text.splitlines():
        stripped = raw.strip()
        if not stripped or stripped.startswith("#"):
            continue
        line = _LINE.fullmatch(raw.partition(" #")[0])
        if line is None:
            found.missing.append((stripped, "is not of the form key = value"))
            continue
        _translate_line(found, line[1], line[2].strip("'\""), stripped)
    if found.values.get("default_user", "guest") != "guest" and "default_pass" not in found.values:
        remark = "needs default_pass as well: everybody knows the default"
        found.missing.append((f"default_user = {found.values.pop('default_user')}", remark))
    return found


def _translate_line(found: Translation, key: str, value: str, line: str) -> None:
    if re.search("pass|secret|token", key):
        line = f"{key} = ***"
    for pattern, take in _TAKEN:
        if re.fullmatch(pattern, key):
            try:
                for name, taken in take(value):
                    if key.startswith("listeners.") and name in found.values:
                        raise Untranslatable("there is one address for AMQP, and one with TLS")
                    KEYS[name].parse(taken)
                    found.values[name] = taken
            except ValueError as error:
                found.missing.append((line, str(error)))
            return
    for pattern, why in _NEEDLESS:
        if re.fullmatch(pattern, key):
            found.needless.append((line, why))
            return
    for pattern, why in _INSTEAD:
        if re.fullmatch(pattern, key):
            found.missing.append((line, why))
            return
    found.missing.append((line, "there is no such setting here"))


# --- values -----------------------------------------------------------------------------------------------------------


def _listener(name: str) -> Callable[[str], Values]:
    def take(value: str) -> Values:
        if value.lower() == "none":
            return [(name, "off")]
        if value.startswith(("unix:", "local:")):
            raise Untranslatable("there are no Unix sockets")
        host, _, port = value.rpartition(":")
        if ":" in host and not host.startswith("["):
            host = f"[{host}]"
        return [(name, f"{host or '0.0.0.0'}:{port}")]

    return take


def _port_of(name: str) -> Callable[[str], Values]:
    return lambda value: [(name, f"0.0.0.0:{value}")]


def _text(name: str) -> Callable[[str], Values]:
    return lambda value: [(name, value)]


def _whole(name: str) -> Callable[[str], Values]:
    def take(value: str) -> Values:
        if not re.fullmatch("[0-9]{1,18}", value):
            raise Untranslatable("must be a whole number")
        return [(name, int(value))]

    return take


def _milliseconds(name: str) -> Callable[[str], Values]:
    def take(value: str) -> Values:
        if value in ("undefined", "false"):
            return [(name, 0)]
        if not re.fullmatch("[0-9]{1,18}", value):
            raise Untranslatable("must be a number of milliseconds")
        return [(name, int(value) / 1000)]

    return take


def _bytes(name: str) -> Callable[[str], Values]:
    return lambda value: [(name, _size(value))]


def _size(value: str) -> int:
    units = _UNITS.fullmatch(value)
    if units is None:
        raise Untranslatable('must be a size, such as 1073741824 or "1GB"')
    # As RabbitMQ: kB, MB and GB are powers of ten, k, M, G, KiB, MiB and GiB of two.
    base = 1000 if (units[3] or "").lower() == "b" and units[2] else 1024
    return int(units[1]) * int(base ** _POWERS[(units[2] or "").lower()])


def _share(name: str) -> Callable[[str], Values]:
    def take(value: str) -> Values:
        try:
            return [(name, float(value))]
        except ValueError:
            raise Untranslatable("must be a share, such as 0.4") from None

    return take


def _verify(value: str) -> Values:
    return [("tls.client_certificates", "optional" if value == "verify_peer" else "none")]


def _required(value: str) -> Values:
    return [("tls.client_certificates", "required")] if value == "true" else []


def _login_from(value: str) -> Values:
    known = {"distinguished_name": "dn", "common_name": "cn", "subject_alternative_name": "san"}
    if value not in known:
        raise Untranslatable("must be distinguished_name, common_name or subject_alternative_name")
    return [("tls.cert_login_from", known[value])]


def _level(value: str) -> Values:
    known = {"critical": "error", "none": "error", "notice": "info"}
    return [("log_level", known.get(value, value))]


def _log_format(value: str) -> Values:
    return [("log_format", "json" if value == "json" else "console")]


def _definitions(value: str) -> Values:
    return [("load_definitions", value)]


_TAKEN: Final[tuple[tuple[str, Callable[[str], Values]], ...]] = (
    (r"listeners\.tcp(\.[^.]+)?", _listener("amqp")),
    (r"listeners\.ssl(\.[^.]+)?", _listener("amqps")),
    (r"mqtt\.listeners\.tcp(\.[^.]+)?", _listener("mqtt")),
    (r"mqtt\.listeners\.ssl(\.[^.]+)?", _listener("mqtts")),
    (r"stomp\.listeners\.tcp(\.[^.]+)?", _listener("stomp")),
    (r"stomp\.listeners\.ssl(\.[^.]+)?", _listener("stomps")),
    (r"web_mqtt\.tcp\.listener", _listener("mqtt_ws")),
    (r"web_mqtt\.tcp\.port", _port_of("mqtt_ws")),
    (r"web_mqtt\.ssl\.listener", _listener("mqtt_wss")),
    (r"web_mqtt\.ssl\.port", _port_of("mqtt_wss")),
    (r"web_stomp\.tcp\.listener", _listener("stomp_ws")),
    (r"web_stomp\.tcp\.port", _port_of("stomp_ws")),
    (r"web_stomp\.ssl\.listener", _listener("stomp_wss")),
    (r"web_stomp\.ssl\.port", _port_of("stomp_wss")),
    (r"management\.(tcp|listener)\.port", _port_of("http")),
    (r"management\.ssl\.port", _port_of("https")),
    (r"prometheus\.tcp\.port", _port_of("prometheus")),
    (r"ssl_options\.cacertfile", _text("tls.ca")),
    (r"ssl_options\.certfile", _text("tls.certificate")),
    (r"ssl_options\.keyfile", _text("tls.private_key")),
    (r"ssl_options\.password", _text("tls.private_key_password")),
    (r"ssl_options\.verify", _verify),
    (r"ssl_options\.fail_if_no_peer_cert", _required),
    (r"ssl_cert_login_from", _login_from),
    (r"heartbeat", _whole("limits.heartbeat_s")),
    (r"frame_max", _whole("limits.frame_max_bytes")),
    (r"channel_max|max_channels_per_connection", _whole("limits.channel_max")),
    (r"max_message_size", _whole("limits.max_message_bytes")),
    (r"connection_max|max_connections", _whole("limits.connections_max")),
    (r"handshake_timeout", _milliseconds("limits.handshake_timeout_s")),
    (r"ssl_handshake_timeout", _milliseconds("limits.tls_handshake_timeout_s")),
    (r"consumer_timeout", _milliseconds("limits.delivery_timeout_s")),
    (r"consumer_max_per_channel", _whole("limits.consumers_per_channel_max")),
    (r"vm_memory_high_watermark\.relative", _share("limits.memory_high_watermark")),
    (r"vm_memory_high_watermark\.absolute", _bytes("limits.memory_high_watermark")),
    (r"disk_free_limit\.absolute", _bytes("store.disk_free_min_bytes")),
    (r"default_user", _text("default_user")),
    (r"default_pass", _text("default_pass")),
    (r"(management\.)?load_definitions", _definitions),
    (r"definitions\.local\.path", _definitions),
    (r"definitions\.skip_if_unchanged", lambda value: [("definitions_skip_if_unchanged", value == "true")]),
    (r"log\.(console|file)\.level|log\.default\.level", _level),
    (r"log\.console\.formatter|log\.file\.formatter", _log_format),
)

_NEEDLESS: Final = (
    (r"num_acceptors\..*|(tcp|ssl)_listen_options\..*|.*\.backlog", "connections are accepted by one loop"),
    (r"collect_statistics(_interval)?|management_agent\..*|management\.rates_mode", "statistics cost next to nothing"),
    (r"management\.sample_retention_policies\..*", "samples are kept in rings of a fixed size"),
    (r"queue_index_embed_msgs_below|lazy_queue_.*|classic_queue\..*|msg_store_.*", "all queues share one log"),
    (r"vm_memory_high_watermark_paging_ratio|vm_memory_calculation_strategy", "see store.paging_watermark"),
    (r"total_memory_available_override_value", "give limits.memory_high_watermark a size instead of a share"),
    (r"mirroring_sync_batch_size|queue_master_locator|queue_leader_locator", "there are no mirrors"),
    (r"log\.(console|dir|file.*|connection.*|channel.*|queue.*|exchange.*|syslog.*)", "the log goes to stderr"),
    (r"net_ticktime|raft\..*|ra\..*|quorum_.*", "that is about nodes of Erlang"),
    (r"auth_mechanisms\..*", "PLAIN, AMQPLAIN and, with certificates, EXTERNAL are offered"),
    (r"reverse_dns_lookups", "addresses are never looked up"),
    (r"default_(vhost|permissions\..*|user_tags\..*)", "the first user, guest, has everything in the vhost /"),
    (r"password_hashing_module", "passwords are hashed with scrypt; RabbitMQ's hashes are understood"),
    (r"deprecated_features\..*|feature_flags\..*", "everything is permitted"),
    (r"initial_frame_max|socket_writer\..*|background_gc.*|hipe_compile|proxy_protocol = false", "has no meaning here"),
    (r"loopback_users\.guest", "guest logs in from the broker's own machine only; make a user instead"),
)

_INSTEAD: Final = (
    (r"loopback_users\..*|loopback_users", "only guest is bound to the broker's own machine"),
    (r"auth_backends\..*|auth_(ldap|oauth2|http|cache)\..*", "users are kept in the broker"),
    (
        r"cluster_formation\..*|cluster_(partition_handling|name|keepalive_interval)",
        "nodes form a cluster by the setting etcd",
    ),
    (r"disk_free_limit\.relative", "give store.disk_free_min_bytes a size"),
    (r"default_limits\..*|default_policies\..*|default_users\..*", "set limits, policies and users in definitions"),
    (r"credential_validator\..*", "passwords are not judged"),
    (r"mqtt\.mailbox_soft_limit", "limits.mqtt_qos0_outbox_bytes is that, in bytes instead of messages"),
    (
        r"(mqtt|stomp|web_mqtt|web_stomp|stream|amqp1_0)\..*",
        "not spoken, or not a setting here: AMQP 0-9-1, MQTT and STOMP have a listener each",
    ),
    (r"ssl_options\..*", "TLS 1.2 and later with the ciphers of OpenSSL's default"),
    (r"management\.ssl\..*", "https uses the certificate in [tls]"),
    (r"management\.(tcp|listener)\..*", "give http a host and a port"),
    (r"proxy_protocol", "addresses are those of the sockets"),
    (r"federation.*|shovel.*", "links are parameters; see docs/migrate-from-rabbitmq.md"),
)
