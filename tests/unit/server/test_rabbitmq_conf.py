"""The import of a ``rabbitmq.conf``. Numbers in parentheses: ``rabbitmq_conf.py``."""

from __future__ import annotations

from pathlib import Path

import pytest

from warren.server.rabbitmq_conf import Translation, translate
from warren.server.setting_kinds import Endpoint, MemoryWatermark
from warren.server.settings_reader import load_settings

EVERYWHERE = {"amqp": "0.0.0.0:5672"}
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


def said(text: str) -> dict[str, object]:
    """Return what a file sets that is understood as a whole, apart from where AMQP clients connect."""
    found = translate(text)
    assert not found.missing
    return {key: value for key, value in found.values.items() if (key, value) not in EVERYWHERE.items()}


def why_not(text: str) -> list[tuple[str, str]]:
    """Return what is missing."""
    return [(line.shown, remark) for line, remark in translate(text).missing]


def counted(found: Translation) -> int:
    return len(found.carried) + len(found.needless) + len(found.missing)


def test_what_comes_out_is_a_file_for_the_broker(tmp_path: Path) -> None:
    """(2)"""
    found = translate(WHOLE)
    assert not found.missing and not found.needless
    file = tmp_path / "warren.toml"
    file.write_text(found.toml())
    settings = load_settings({}, {}, file)
    assert settings.endpoint("amqp") == Endpoint("0.0.0.0", 5672)
    assert settings.endpoint("amqps") == Endpoint("0.0.0.0", 5671)
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
    assert translate(line).values == EVERYWHERE | {key: value}


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
        ("amqp1_0.default_user = guest", "users are kept in the broker"),
        ("quite.unheard.of = 1", "unknown key"),
        ("this is not a setting", "not key = value"),
        ("include conf.d/*.conf", "lines of other files"),
        ("default_vhost = prod", "the first vhost is /"),
        ("default_permissions.write = ^mine$", "all permissions in the vhost /"),
        ("default_user_tags.monitoring = true", "is an administrator"),
        ("loopback_users.ann = true", "only guest is bound"),
        ("loopback_users.guest = false", "own machine only"),
        ("loopback_users = none", "own machine"),
        ("auth_mechanisms.1 = EXTERNAL", "are offered always"),
        ("auth_mechanisms.1 = PLAIN", "are offered always"),
        ("ssl_options.versions.1 = tlsv1.3", "always on, and no others"),
        ("ssl_options.ciphers.1 = TLS_AES_256_GCM_SHA384", "OpenSSL"),
        ("ssl_options.crl_check = true", "not checked"),
        ("ssl_options.depth = 1", "OpenSSL"),
        ("stomp.ssl_cert_login = false", "the certificate names the user"),
        ("mqtt.allow_anonymous = true", "need a user"),
        ("prometheus.authentication.enabled = true", "asks for no password"),
        ("management.disable_basic_auth = true", "log in with a password"),
        ("management.restrictions.operator_policy_changes.disabled = true", "tags decide"),
        ("deprecated_features.permit.transient_nonexcl_queues = false", "everything is permitted"),
        ("load_definitions = /etc/rabbitmq/definitions/", "is a directory"),
        ("definitions.import_backend = https", "definitions are a file"),
        ("default_user = $(SEED_USER)", "in RabbitMQ's environment"),
        ("cluster_name = dev-$(NUMBER)", "in RabbitMQ's environment"),
        ("heartbeat = '60", "quote does not end"),
        ("log.exchange = true", "goes to stderr"),
        ("log.console.level = loud", "must be one of"),
    ],
)
def test_what_has_no_counterpart_is_said(text: str, why: str) -> None:
    """(1)"""
    found = translate(text)
    assert found.values == EVERYWHERE
    ((line, remark),) = found.missing
    assert line.shown == text and line.number == 1
    assert why in remark
    assert f"#   {text}    {remark}" in found.toml()


def test_a_value_is_what_rabbitmq_takes_it_for() -> None:
    assert said("default_user = ann\ndefault_pass = 'a#b \"c\"'  # mine")["default_pass"] == 'a#b "c"'
    assert said("default_user = ann\ndefault_pass = ab#c")["default_pass"] == "ab"
    assert said('default_user = ann\ndefault_pass = "abc"')["default_pass"] == '"abc"'
    assert said("heartbeat = 5\r\nheartbeat = 7") == {"limits.heartbeat_s": 7}


@pytest.mark.parametrize("value", ["''", "'''x'''", "encrypted:x=", "'x' y", "$(SECRET)"])
def test_a_password_that_cannot_be_known_is_not_guessed(value: str) -> None:
    assert [line for line, _ in why_not(f"default_pass = {value}")] == ["default_pass = ***"]


@pytest.mark.parametrize("plain", ["listeners.tcp", "mqtt.listeners.tcp", "stomp.listeners.ssl"])
def test_a_second_listener_has_no_place(plain: str) -> None:
    found = translate(f"{plain}.1 = 127.0.0.1:5672\n{plain}.2 = 10.0.0.1:5672")
    assert list((EVERYWHERE | found.values).values()).count("127.0.0.1:5672") == 1
    assert [line.shown for line, _ in found.missing] == [f"{plain}.2 = 10.0.0.1:5672"]


@pytest.mark.parametrize(
    ("verify", "required", "wanted"),
    [
        ("verify_peer", "true", "required"),
        ("verify_peer", "false", "optional"),
        ("verify_peer", "", "optional"),
        ("verify_none", "true", "required"),
        ("", "true", "required"),
        ("verify_none", "false", None),
    ],
)
def test_client_certificates_are_required_in_whatever_order_it_is_said(
    verify: str, required: str, wanted: str | None
) -> None:
    """(3)"""
    lines = [f"ssl_options.verify = {verify}"] * bool(verify)
    lines += [f"ssl_options.fail_if_no_peer_cert = {required}"] * bool(required)
    for text in ("\n".join(lines), "\n".join(reversed(lines))):
        assert said(text).get("tls.client_certificates") == wanted


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", {}),
        ("management.tcp.ip = 127.0.0.1", {"http": "127.0.0.1:15672"}),
        ("management.tcp.ip = ::1\nmanagement.tcp.port = 80", {"http": "[::1]:80"}),
        ("management.tcp.idle_timeout = 1", {"http": "0.0.0.0:15672"}),
        ("management.ssl.port = 443", {"https": "0.0.0.0:443", "http": "off"}),
        ("management.ssl.certfile = /c", {"https": "0.0.0.0:15671", "http": "off", "tls.certificate": "/c"}),
        ("management.listener.port = 443\nmanagement.listener.ssl = true", {"https": "0.0.0.0:443", "http": "off"}),
        (
            "management.listener.ssl = true\n"
            "management.listener.ip = 10.0.0.1\nmanagement.listener.ssl_opts.certfile = /c",
            {"https": "10.0.0.1:15671", "http": "off", "tls.certificate": "/c"},
        ),
        ("management.listener.port = 80\nmanagement.listener.ssl = false", {"http": "0.0.0.0:80"}),
        (
            "management.tcp.port = 80\nmanagement.ssl.port = 443\nmanagement.listener.port = 81",
            {"http": "0.0.0.0:80", "https": "0.0.0.0:443"},
        ),
        ("prometheus.tcp.ip = 127.0.0.1", {"prometheus": "127.0.0.1:15692"}),
        ("prometheus.tcp.ip = 10.0.0.1\nprometheus.tcp.port = 1", {"prometheus": "10.0.0.1:1"}),
        ("web_mqtt.tcp.ip = 127.0.0.1\nweb_mqtt.tcp.port = 1", {"mqtt_ws": "127.0.0.1:1"}),
        ("listeners.tcp = none\nlisteners.ssl.1 = 5671", {"amqp": "off", "amqps": "0.0.0.0:5671"}),
    ],
)
def test_a_listener_keeps_its_address_and_its_tls(text: str, values: dict[str, object]) -> None:
    """(2) (3)"""
    assert said(text) == values
    lines = text.splitlines()
    assert said("\n".join(reversed(lines))) == values


def test_a_listener_with_tls_never_becomes_one_without() -> None:
    """(2)"""
    found = translate("prometheus.ssl.port = 15691")
    assert found.values["prometheus"] == "off" and len(found.missing) == 1
    found = translate("management.listener.ssl = true\nmanagement.ssl.port = 1\nmanagement.listener.port = 2")
    assert (found.values["https"], found.values["http"], len(found.missing)) == ("0.0.0.0:1", "off", 2)


def test_another_certificate_or_rule_of_one_listener_has_no_place() -> None:
    """(2)"""
    ours = "ssl_options.certfile = /ours\n"
    assert said(f"{ours}management.ssl.certfile = /ours")["https"] == "0.0.0.0:15671"
    assert "another one" in why_not(f"{ours}management.ssl.certfile = /theirs")[0][1]
    assert "all listeners" in why_not(f"{ours}web_mqtt.ssl.verify = verify_peer")[0][1]
    assert why_not(f"{ours}ssl_options.verify = verify_peer\nweb_mqtt.ssl.verify = verify_peer") == []
    assert "all listeners" in why_not("management.ssl.fail_if_no_peer_cert = true")[0][1]


def test_the_watermark_is_what_rabbitmq_makes_of_its_lines() -> None:
    name = "limits.memory_high_watermark"
    assert said("vm_memory_high_watermark.absolute = 1GB\nvm_memory_high_watermark.relative = 0.5") == {name: 0.5}
    assert said("total_memory_available_override_value = 2GB\nvm_memory_high_watermark.relative = 0.5") == {
        name: 1_000_000_000
    }


def test_the_log_is_as_talkative_as_the_most_talkative_was() -> None:
    assert said("log.console.level = error\nlog.file.level = debug\nlog.console.formatter = json") == {
        "log_level": "debug",
        "log_format": "json",
    }


def test_what_is_not_needed_is_no_reason_to_worry() -> None:
    """(1)"""
    found = translate("num_acceptors.tcp = 10\ncollect_statistics_interval = 5000\npassword_hashing_module = x")
    assert found.values == EVERYWHERE and not found.missing
    assert len(found.needless) == 3
    assert said("auth_mechanisms.1 = PLAIN\nauth_mechanisms.2 = AMQPLAIN\ndefault_vhost = /") == {}


def test_a_directory_of_definitions_is_found_out(tmp_path: Path) -> None:
    ((_, remark),) = why_not(f"load_definitions = {tmp_path}")
    assert "is a directory" in remark


def test_the_first_user_is_taken_over_with_the_password_and_not_without() -> None:
    assert said("default_user = ann\ndefault_pass = hunter2") == {"default_user": "ann", "default_pass": "hunter2"}
    assert translate("default_user = ann").values == EVERYWHERE
    assert why_not("default_user = ann") == [
        ("default_user = ann", "set default_pass too: the default password is public")
    ]


def test_no_password_is_among_the_remarks() -> None:
    text = "default_pass = hunter2\nssl_options.password = hunter2\nauth_ldap.password = hunter2\nldap_pass hunter2"
    found = translate(text)
    assert found.values == EVERYWHERE | {"default_pass": "hunter2", "tls.private_key_password": "hunter2"}
    assert "hunter2" not in str(why_not(text))


def test_two_names_of_one_setting_are_told() -> None:
    ((line, remark),) = why_not("channel_max = 100\nmax_channels_per_connection = 50")
    assert line == "max_channels_per_connection = 50" and "line 1" in remark


def test_every_line_has_one_place() -> None:
    """(1)"""
    lines = [line for line in WHOLE.splitlines() if line and not line.startswith("#")]
    assert counted(translate(WHOLE)) == len(lines)
    for number in range(len(lines)):
        text = "\n".join([*lines[number:], "unknown = 1", "management.listener.ssl = true", "mqtt.prefetch = 1"])
        assert counted(translate(text)) == len(lines) - number + 3
