"""What becomes of a ``rabbitmq.conf``. Numbers in parentheses: ``rabbitmq_conf.py``."""

from __future__ import annotations

from pathlib import Path

import pytest

from warren.server.rabbitmq_conf import translate
from warren.server.setting_kinds import Endpoint, MemoryWatermark
from warren.server.settings_reader import load_settings

WHOLE = """
## A broker as people have it.
listeners.tcp.default = 5672
listeners.ssl.default = 0.0.0.0:5671
management.tcp.port = 15672
ssl_options.cacertfile = /etc/rabbitmq/ca.pem   # ours
ssl_options.certfile = /etc/rabbitmq/server.pem
ssl_options.keyfile = '/etc/rabbitmq/server.key'
ssl_options.password = hunter2
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = true
ssl_cert_login_from = common_name
heartbeat = 30
frame_max = 65536
channel_max = 128
max_message_size = 134217728
consumer_timeout = 900000
vm_memory_high_watermark.relative = 0.6
disk_free_limit.absolute = 2GB
log.console.level = warning
log.console.formatter = json
load_definitions = /etc/rabbitmq/definitions.json
"""


def test_what_comes_out_is_a_file_for_the_broker(tmp_path: Path) -> None:
    """(2)"""
    found = translate(WHOLE)
    assert not found.missing and not found.needless
    file = tmp_path / "warren.toml"
    file.write_text(found.toml())
    settings = load_settings({}, {}, file)
    assert (settings.amqp, settings.amqps) == (Endpoint("0.0.0.0", 5672), Endpoint("0.0.0.0", 5671))
    assert settings.http == Endpoint("0.0.0.0", 15672)
    tls = settings.tls
    assert str(tls.ca) == "/etc/rabbitmq/ca.pem" and str(tls.private_key) == "/etc/rabbitmq/server.key"
    assert tls.private_key_password == "hunter2"
    assert (tls.client_certificates, tls.cert_login_from) == ("required", "cn")
    limits = settings.limits
    assert (limits.heartbeat_s, limits.frame_max_bytes, limits.channel_max) == (30, 65536, 128)
    assert (limits.max_message_bytes, limits.delivery_timeout_s) == (128 << 20, 900.0)
    assert limits.memory_high_watermark == MemoryWatermark(fraction=0.6)
    assert settings.store.disk_free_min_bytes == 2_000_000_000
    assert (settings.log_level, settings.log_format) == ("warning", "json")
    assert str(settings.load_definitions) == "/etc/rabbitmq/definitions.json"


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("mqtt.listeners.tcp.1 = 127.0.0.1:1883", "mqtt", "127.0.0.1:1883"),
        ("mqtt.listeners.ssl.default = 127.0.0.1:8883", "mqtts", "127.0.0.1:8883"),
        ("stomp.listeners.tcp.1 = 127.0.0.1:61613", "stomp", "127.0.0.1:61613"),
        ("stomp.listeners.ssl.default = 127.0.0.1:61614", "stomps", "127.0.0.1:61614"),
        ("web_mqtt.tcp.port = 15675", "mqtt_ws", "0.0.0.0:15675"),
        ("web_mqtt.ssl.port = 15676", "mqtt_wss", "0.0.0.0:15676"),
        ("web_stomp.tcp.listener = 127.0.0.1:15674", "stomp_ws", "127.0.0.1:15674"),
        ("web_stomp.ssl.port = 15673", "stomp_wss", "0.0.0.0:15673"),
        ("listeners.tcp.local = 127.0.0.1:5672", "amqp", "127.0.0.1:5672"),
        ("listeners.tcp.local_v6 = ::1:5672", "amqp", "[::1]:5672"),
        ("listeners.tcp = none", "amqp", "off"),
        ("disk_free_limit.absolute = 50MiB", "store.disk_free_min_bytes", 50 << 20),
        ("disk_free_limit.absolute = 50M", "store.disk_free_min_bytes", 50 << 20),
        ("disk_free_limit.absolute = 50MB", "store.disk_free_min_bytes", 50_000_000),
        ("vm_memory_high_watermark.absolute = 4GB", "limits.memory_high_watermark", 4_000_000_000),
        ("max_connections = 5000", "limits.connections_max", 5000),
        ("consumer_timeout = undefined", "limits.delivery_timeout_s", 0),
        ("log.console.level = critical", "log_level", "error"),
    ],
)
def test_values_are_taken_over(line: str, key: str, value: object) -> None:
    assert translate(line).values == {key: value}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("frame_max = 0", "must be from 4096"),
        ("heartbeat = often", "must be a whole number"),
        ("vm_memory_high_watermark.relative = much", "must be a share"),
        ("disk_free_limit.absolute = 1 furlong", "must be a size"),
        ("listeners.tcp.1 = unix:/run/rabbitmq.sock:0", "Unix sockets"),
        ("auth_backends.1 = ldap", "users are kept in the broker"),
        ("cluster_formation.peer_discovery_backend = dns", "by the setting etcd"),
        ("amqp1_0.default_user = guest", "not spoken"),
        ("quite.unheard.of = 1", "no such setting"),
        ("this is not a setting", "key = value"),
    ],
)
def test_what_has_no_counterpart_is_said(text: str, why: str) -> None:
    """(1)"""
    found = translate(text)
    assert not found.values
    ((line, remark),) = found.missing
    assert line == text
    assert why in remark
    assert f"#   {text}    {remark}" in found.toml()


def test_a_second_listener_has_no_place() -> None:
    found = translate("listeners.tcp.1 = 127.0.0.1:5672\nlisteners.tcp.2 = 10.0.0.1:5672")
    assert found.values == {"amqp": "127.0.0.1:5672"}
    assert [line for line, _ in found.missing] == ["listeners.tcp.2 = 10.0.0.1:5672"]


def test_what_is_not_needed_is_no_reason_to_worry() -> None:
    """(1)"""
    found = translate("num_acceptors.tcp = 10\ncollect_statistics_interval = 5000\npassword_hashing_module = x")
    assert not found.values and not found.missing
    assert len(found.needless) == 3


def test_the_first_user_is_taken_over_with_the_password_and_not_without() -> None:
    assert translate("default_user = ann\ndefault_pass = hunter2").values == {
        "default_user": "ann",
        "default_pass": "hunter2",
    }
    alone = translate("default_user = ann")
    assert not alone.values
    assert alone.missing == [("default_user = ann", "needs default_pass as well: everybody knows the default")]


def test_no_password_is_among_the_remarks() -> None:
    found = translate("default_pass = hunter2\nssl_options.password = hunter2\nauth_ldap.password = hunter2")
    assert found.values == {"default_pass": "hunter2", "tls.private_key_password": "hunter2"}
    assert "hunter2" not in str(found.missing)
