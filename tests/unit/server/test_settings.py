"""Flag over environment over file over default; every value knows its origin; mistakes are named."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from warren.server.setting_kinds import Endpoint, MemoryWatermark
from warren.server.settings import (
    KEYS,
    SERVE_OPTIONS,
    LimitSettings,
    Settings,
    StoreSettings,
    TlsSettings,
    default_data_dir,
)
from warren.server.settings_reader import load_settings, shown_values
from warren.server.start_errors import SettingsError


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "warren.toml"


def load(environment: dict[str, str] | None = None, config: Path | None = None, **flags: str) -> Settings:
    return load_settings(flags, environment or {}, config)


def refusal(environment: dict[str, str] | None = None, config: Path | None = None, **flags: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load(environment, config, **flags)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_nothing_given_is_the_defaults_listening_on_this_machine_only() -> None:
    settings = load()
    assert settings == Settings(origins=settings.origins)
    assert settings.endpoint("amqp") == Endpoint("127.0.0.1", 5672)
    assert settings.endpoint("amqps") is None
    assert settings.http == Endpoint("127.0.0.1", 15672)
    assert set(settings.origins.values()) == {"default"}
    assert settings.origins.keys() == KEYS.keys()


def test_the_defaults_pass_their_own_checks(config: Path) -> None:
    for key, value, _ in shown_values(load()):
        if value and key not in ("tls.private_key_password",):
            environment = {KEYS[key].variable: value}
            assert (key, value) in [(k, v) for k, v, _ in shown_values(load(environment))]


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(config: Path) -> None:
    config.write_text('amqp = "127.0.0.1:1"\nhttp = "127.0.0.1:2"\nlog_level = "error"\n')
    environment = {"WARREN_AMQP": "127.0.0.1:3", "WARREN_HTTP": "127.0.0.1:4"}
    settings = load(environment, config, amqp="127.0.0.1:5")
    assert settings.endpoint("amqp") == Endpoint("127.0.0.1", 5)
    assert settings.http == Endpoint("127.0.0.1", 4)
    assert settings.log_level == "error"
    assert settings.log_format == "console"
    assert settings.origins["amqp"] == "flag --amqp"
    assert settings.origins["http"] == "environment WARREN_HTTP"
    assert settings.origins["log_level"] == f"file {config}"
    assert settings.origins["log_format"] == "default"


def test_a_text_is_the_same_text_however_it_was_given() -> None:
    """It goes into answers in JSON, which know no other kinds of text."""
    settings = load_settings(
        {"cluster_name": "orders"}, {"WARREN_TRACING_OTLP_ENDPOINT": "http://a:1", "WARREN_HTTP_HOSTS": "a,b"}
    )
    for text in (settings.cluster_name, settings.tracing_otlp_endpoint, settings.http_hosts):
        assert type(text) is str


def test_tables_of_the_file_and_their_variables_reach_their_keys(config: Path) -> None:
    config.write_text("[limits]\nframe_max_bytes = 8192\nhandshake_timeout_s = 3\n")
    settings = load({"WARREN_LIMITS_CHANNEL_MAX": "12"}, config)
    assert settings.limits == LimitSettings(frame_max_bytes=8192, handshake_timeout_s=3.0, channel_max=12)


def test_the_file_can_be_named_by_the_environment(config: Path) -> None:
    config.write_text('log_level = "debug"\n')
    assert load({"WARREN_CONFIG": str(config)}).log_level == "debug"


def test_no_two_keys_share_a_variable() -> None:
    assert len({key.variable for key in KEYS.values()}) == len(KEYS)


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("data_dri = 'x'", "data_dir"),
        ("frame_max_bytes = 1", "limits.frame_max_bytes"),
        ("[limits]\nframe_max = 1", "limits.frame_max_bytes"),
        ("[limits]\nchanel_max = 1", "limits.channel_max"),
        ("[tls]\ncertfile = 'x'", "tls.certificate"),
        ("[limit]\nchannel_max = 1", "the table [limits]"),
        ("[vhosts]\na = 'os'", "store.vhosts"),
        ("metadata-url = 'x'", "metadata_url"),
    ],
)
def test_an_unknown_key_of_the_file_names_the_nearest(config: Path, text: str, nearest: str) -> None:
    config.write_text(text)
    assert refusal(config=config).endswith(f"; did you mean {nearest}?")


def test_an_unknown_key_near_nothing_is_just_unknown(config: Path) -> None:
    config.write_text("zzz = 1")
    assert refusal(config=config) == f"file {config}: no setting 'zzz'"


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("WARREN_AMPQ", "WARREN_AMQP"),
        ("WARREN_FRAME_MAX_BYTES", "WARREN_LIMITS_FRAME_MAX_BYTES"),
        ("WARREN_TLS_CERT", "WARREN_TLS_CERTIFICATE"),
    ],
)
def test_an_unknown_variable_names_the_nearest(variable: str, nearest: str) -> None:
    assert refusal({variable: "x"}) == f"environment {variable}: no such setting; did you mean {nearest}?"


@pytest.mark.parametrize("name", ["rabbit@host", "Rabbit-1_a@host.example", "a@b"])
def test_a_node_has_a_name_and_a_host(name: str) -> None:
    assert load({"WARREN_NODE_NAME": name}).node_name == name


@pytest.mark.parametrize(
    "name", ["", "rabbit", "@host", "rabbit@", "a b@h", "a@b@c", 'a"@b', "r@h\n", "a@" + "b" * 191]
)
def test_what_is_no_name_of_a_node_is_refused(name: str) -> None:
    assert "rabbit@host" in refusal({"WARREN_NODE_NAME": name})


def test_variables_of_kubernetes_of_tests_and_of_others_are_not_ours() -> None:
    variables = [
        "WARREN_SERVICE_HOST",
        "WARREN_SERVICE_PORT",
        "WARREN_SERVICE_PORT_AMQP",
        "WARREN_PORT",
        "WARREN_PORT_5672_TCP",
        "WARREN_PORT_5672_TCP_PROTO",
        "WARREN_PORT_5672_TCP_PORT",
        "WARREN_PORT_5672_TCP_ADDR",
        "WARREN_TEST_METADATA",
        "WARREN_COMPILE",
        "WARREN_CTL_URL",
        "WARREN_CTL_PASSWORD_FILE",
        "WARRENS",
        "PATH",
    ]
    assert load(dict.fromkeys(variables, "tcp://10.0.0.1:5672")) == load()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("log_level = 3", "log_level (file {}): must be one of debug, info, warning, error, not 3"),
        ("[limits]\nchannel_max = '7'", "limits.channel_max (file {}): must be a whole number, not '7'"),
        ("[limits]\nchannel_max = true", "limits.channel_max (file {}): must be a whole number, not True"),
        ("[limits]\nchannel_max = 0", "limits.channel_max (file {}): must be from 1 to 65535, not 0"),
        ("[limits]\nheartbeat_s = 1.5", "limits.heartbeat_s (file {}): must be a whole number, not 1.5"),
        ("tls = 3", "tls (file {}): must be a table, not 3"),
        ("data_dir = ''", "data_dir (file {}): must be a path, not ''"),
        ("data_dir = ['a']", "data_dir (file {}): must be a path, not ['a']"),
        ("metadata_url = 'mysql://h'", "must be an sqlite:///… or postgresql+psycopg://… URL"),
        ("[store]\nconfirm = 'sync'", "store.confirm (file {}): must be one of durable, os, not 'sync'"),
        ("[store]\nsegment_bytes = 4096", "store.segment_bytes (file {}): must be from 65536 to 1073741824, not 4096"),
        ("[store]\ncheckpoint_bytes = 1", "store.checkpoint_bytes (file {}): must be from 65536 to "),
        ("[store]\nscrub_bytes_per_s = -1", "store.scrub_bytes_per_s (file {}): must be from 0 to "),
        ("[store]\ncompaction_bytes_per_s = 0", "store.compaction_bytes_per_s (file {}): must be from 65536 to "),
        ("[store]\npaging_watermark = 2.0", "store.paging_watermark (file {}): must be a share above 0 and"),
        ("[store]\nvhosts = 'os'", "store.vhosts (file {}): must be a table, or JSON in the environment, such as "),
        ("[store.vhosts]\na = 'os'\nb = 'no'", "store.vhosts (file {}): 'b' must be one of durable, os, not {{'a'"),
        ("[store.vhosts]\na = ['os']", "store.vhosts (file {}): 'a' must be one of durable, os, not {{'a': ['os']}}"),
        ("a = ", "config file {}: Invalid value"),
    ],
)
def test_a_value_that_cannot_be_used_is_named_with_its_key_and_origin(config: Path, text: str, message: str) -> None:
    config.write_text(text)
    assert message.format(config) in refusal(config=config)


def test_a_file_that_is_missing_or_not_utf8_is_named(config: Path) -> None:
    assert refusal(config=config) == f"config file {config}: No such file or directory"
    config.write_bytes(b"\xff")
    assert str(config) in refusal(config=config)


@pytest.mark.parametrize("text", ["", "x", "1e3", "0x10", "1_000", " 1", "99999999999999999999", "1.0", "-1", "٣"])
def test_text_that_is_no_number_is_refused(text: str) -> None:
    message = refusal({"WARREN_LIMITS_CHANNEL_MAX": text})
    assert message.startswith("limits.channel_max (environment WARREN_LIMITS_CHANNEL_MAX): must be ")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("65536", 65536),
        ("64KiB", 65536),
        ("64 KiB", 65536),
        ("64kB", 64000),
        ("1 MiB", 1 << 20),
        ("9000 B", 9000),
    ],
)
def test_sizes_have_units_in_the_file_and_in_the_environment(config: Path, text: str, size: int) -> None:
    config.write_text(f'[limits]\nframe_max_bytes = "{text}"\n')
    assert load(config=config).limits.frame_max_bytes == size
    assert load({"WARREN_LIMITS_FRAME_MAX_BYTES": text}).limits.frame_max_bytes == size


@pytest.mark.parametrize("text", ["64 kib", "64 X", "-1", "1.5 MiB", "", "KiB"])
def test_a_size_in_another_unit_is_refused(text: str) -> None:
    assert "must be a number of bytes" in refusal({"WARREN_LIMITS_FRAME_MAX_BYTES": text})


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("127.0.0.1:5672", Endpoint("127.0.0.1", 5672)),
        ("0.0.0.0:1", Endpoint("0.0.0.0", 1)),
        ("[::1]:5672", Endpoint("::1", 5672)),
        ("[::]:0", Endpoint("::", 0)),
        ("[fe80::1%eth0]:1", Endpoint("fe80::1%eth0", 1)),
        ("broker.example:65535", Endpoint("broker.example", 65535)),
        ("localhost", Endpoint("localhost", 5672)),
        ("[::1]", Endpoint("::1", 5672)),
    ],
)
def test_an_endpoint_is_a_host_and_a_port(text: str, endpoint: Endpoint) -> None:
    assert load(amqp=text).endpoint("amqp") == endpoint
    assert load(amqp=str(endpoint)).endpoint("amqp") == endpoint


@pytest.mark.parametrize("text", ["", ":5672", "::1:5672", "h:", "h:x", "h:-1", "[::1", "h h:1", "a:1:2"])
def test_anything_else_is_no_endpoint(text: str) -> None:
    assert "must be HOST:PORT" in refusal(amqp=text)


@pytest.mark.parametrize("host", ["a..b", ".a", "b" * 64, f"a.{'b' * 64}.c", "ä" * 64])
def test_a_host_with_a_label_that_cannot_be_one_is_refused(host: str) -> None:
    assert "an empty part, or one of more than 63 characters" in refusal(amqp=f"{host}:5672")
    for right in ("a.b.", "b" * 63, "ä.example", "::1"):
        assert load(amqp=str(Endpoint(right, 5672))).endpoint("amqp") == Endpoint(right, 5672)


@pytest.mark.parametrize("port", ["65536", "70000", "123456"])
def test_a_port_that_is_too_large_is_refused_with_the_largest(port: str) -> None:
    assert "must be from 0 to 65535" in refusal(amqp=f"h:{port}")


def test_listeners_can_be_off_and_have_their_own_default_ports(tmp_path: Path) -> None:
    settings = load({"WARREN_TLS_CERTIFICATE": "c.pem"}, amqp="off", amqps="127.0.0.1", http="off")
    assert (settings.endpoint("amqp"), settings.endpoint("amqps"), settings.http) == (
        None,
        Endpoint("127.0.0.1", 5671),
        None,
    )
    settings = load({"WARREN_TLS_CERTIFICATE": "c.pem"}, https="127.0.0.1", prometheus="[::1]")
    assert settings.https == Endpoint("127.0.0.1", 15671)
    assert settings.prometheus == Endpoint("::1", 15692)
    assert load().https is None
    assert load(prometheus="off").prometheus is None


@pytest.mark.parametrize(
    ("text", "watermark"),
    [
        ("0.4", MemoryWatermark(fraction=0.4)),
        (".5", MemoryWatermark(fraction=0.5)),
        ("40%", MemoryWatermark(fraction=0.4)),
        ("100 %", MemoryWatermark(fraction=1.0)),
        ("2 GiB", MemoryWatermark(size_bytes=2 << 30)),
        ("100000000", MemoryWatermark(size_bytes=100_000_000)),
    ],
)
def test_the_watermark_is_a_share_or_a_size(text: str, watermark: MemoryWatermark) -> None:
    assert load({"WARREN_LIMITS_MEMORY_HIGH_WATERMARK": text}).limits.memory_high_watermark == watermark


def test_the_watermark_is_a_number_in_the_file(config: Path) -> None:
    for text, watermark in (
        ("0.25", MemoryWatermark(0.25)),
        ("1", MemoryWatermark(1.0)),
        ("1000000000", None),
    ):
        config.write_text(f"[limits]\nmemory_high_watermark = {text}\n")
        expected = watermark or MemoryWatermark(size_bytes=1_000_000_000)
        assert load(config=config).limits.memory_high_watermark == expected


@pytest.mark.parametrize("text", ["0", "0.0", "1.5", "101%", "-1", "1 MiB", "half", "nan"])
def test_a_watermark_without_sense_is_refused(text: str) -> None:
    assert "limits.memory_high_watermark" in refusal({"WARREN_LIMITS_MEMORY_HIGH_WATERMARK": text})


def test_a_watermark_in_bytes_follows_the_memory_or_not() -> None:
    assert MemoryWatermark(fraction=0.4).limit_bytes(1000) == 400
    assert MemoryWatermark(size_bytes=5000).limit_bytes(1000) == 5000


def test_the_store_syncs_before_it_confirms_unless_told_otherwise(config: Path) -> None:
    assert load().store == StoreSettings(
        confirm="durable",
        vhosts={},
        segment_bytes=33_554_432,
        checkpoint_bytes=134_217_728,
        memory_bytes=134_217_728,
        paging_watermark=MemoryWatermark(fraction=0.2),
        disk_free_min_bytes=1 << 30,
        scrub_bytes_per_s=5 << 20,
        compaction_bytes_per_s=20 << 20,
    )
    config.write_text('[store]\nconfirm = "os"\nsegment_bytes = "64 KiB"\npaging_watermark = "30%"\n')
    settings = load({"WARREN_STORE_MEMORY_BYTES": "0", "WARREN_STORE_DISK_FREE_MIN_BYTES": "2 GiB"}, config)
    assert settings.store == StoreSettings(
        confirm="os",
        segment_bytes=65536,
        paging_watermark=MemoryWatermark(fraction=0.3),
        memory_bytes=0,
        disk_free_min_bytes=2 << 30,
    )


def test_single_vhosts_confirm_differently_by_a_table_of_the_file_or_json_of_the_environment(config: Path) -> None:
    config.write_text('[store.vhosts]\n"/" = "os"\n"a.b \u00e9" = "durable"\n')
    assert load(config=config).store.vhosts == {"/": "os", "a.b \u00e9": "durable"}
    settings = load({"WARREN_STORE_VHOSTS": '{"\u00fc": "os"}'}, config)
    assert settings.store.vhosts == {"\u00fc": "os"}
    shown = {key: (value, origin) for key, value, origin in shown_values(settings)}
    assert shown["store.vhosts"] == ('{"\u00fc": "os"}', "environment WARREN_STORE_VHOSTS")


@pytest.mark.parametrize("text", ["", "os", "{", "[]", "null", '"os"', '[["/", "os"]]'])
def test_text_that_is_no_table_is_refused(text: str) -> None:
    message = 'must be a table, or JSON in the environment, such as {"name": "durable"}, not '
    assert refusal({"WARREN_STORE_VHOSTS": text}).startswith(
        f"store.vhosts (environment WARREN_STORE_VHOSTS): {message}"
    )


def test_paths_in_the_file_are_relative_to_the_file(config: Path) -> None:
    config.write_text('data_dir = "data"\n[tls]\ncertificate = "tls/server.pem"\nca = "/etc/ca.pem"\n')
    settings = load(config=config)
    assert settings.data_dir == config.parent / "data"
    assert settings.tls.certificate == config.parent / "tls" / "server.pem"
    assert settings.tls.ca == Path("/etc/ca.pem")
    assert load(data_dir="data").data_dir == Path("data")


def test_the_default_data_directory_does_not_depend_on_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_data_dir() == tmp_path / "warren"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_data_dir() == Path("/home/someone/.local/share/warren")


def test_the_metadata_is_in_the_data_directory_unless_told_otherwise() -> None:
    assert load(data_dir="/var/lib/w").catalogue_url() == "sqlite:////var/lib/w/catalogue.db"
    url = "postgresql+psycopg://u:p@h/d"
    assert load(data_dir="/var/lib/w", metadata_url=url).catalogue_url() == url


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        ({"amqp": "off"}, {}, "amqp (flag --amqp): neither amqp nor amqps has an address to listen on"),
        ({"amqps": "h:1"}, {}, "amqps (flag --amqps): needs tls.certificate"),
        ({"https": "h:1"}, {}, "https (flag --https): needs tls.certificate"),
        ({"prometheus": "127.0.0.1:15672"}, {}, "127.0.0.1:15672 is also the address of http"),
        ({}, {"WARREN_TLS_CLIENT_CERTIFICATES": "required"}, "needs tls.ca"),
        ({"http": "127.0.0.1:5672"}, {}, "127.0.0.1:5672 is also the address of amqp"),
        ({"etcd": "http://h:2379"}, {}, "etcd (flag --etcd): needs cluster_listen with a port"),
        (
            {"etcd": "http://h:2379", "cluster_listen": "h:0"},
            {},
            "etcd (flag --etcd): needs cluster_listen with a port",
        ),
        ({"etcd": "http://h:2379", "follow": "h:1"}, {}, "follow (flag --follow): cannot be used with etcd"),
        ({"etcd": "http://h:2379", "min_in_sync": "3", "replicas": "2"}, {}, "3 of 2 replicas can never be in sync"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    flags: dict[str, str], environment: dict[str, str], message: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(flags, environment)
    assert message in str(caught.value)


@pytest.mark.parametrize(("option", "key"), SERVE_OPTIONS.items())
def test_a_setting_of_an_option_is_told_by_the_name_of_that(option: str, key: str) -> None:
    try:
        told = load_settings({key: "\x00 " * 100}, {}).origins[key]
    except SettingsError as mistake:
        told = str(mistake)
    assert f"flag {option}" in re.split(r"[()]|$", told)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    config = tmp_path / "warren.toml"
    config.write_text('amqp = "no:where"\nhtpp = "off"\nstore = 1\n[limits]\nheartbeat_s = -1\nheartbeats = 1\n')
    with pytest.raises(SettingsError) as caught:
        load_settings({"http": "off:x"}, {"WARREN_LOG_LEVEL": "loud", "WARREN_UNHEARD_OF": "1"}, config)
    told = str(caught.value).splitlines()
    places = (
        "amqp (",
        "'htpp'",
        "store (",
        "limits.heartbeat_s (",
        "'limits.heartbeats'",
        "log_level",
        "UNHEARD",
        "http (",
    )
    assert [sum(place in line for line in told) for place in places] == [1] * len(told)


def test_members_of_etcd_are_urls_and_none_is_shown_that_is_not() -> None:
    assert (
        load(etcd="http://a:1, http://[::1]:2379", cluster_listen="h:1", cluster_secret_file="s").etcd
        == "http://a:1,http://[::1]:2379"
    )
    for wrong in ("a:1", "http://a", "http://user:secret@a:1", "http://a:1,", "ftp://a:1"):
        with pytest.raises(SettingsError) as caught:
            load(etcd=wrong)
        assert "must be URLs" in str(caught.value)
        assert "secret" not in str(caught.value)


def test_all_contradictions_are_told_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"amqps": "127.0.0.1:1", "https": "127.0.0.1:2"}, {})
    assert len(str(caught.value).splitlines()) == 2


def test_two_listeners_may_both_let_the_system_choose() -> None:
    assert load(amqp="127.0.0.1:0", http="127.0.0.1:0").http == Endpoint("127.0.0.1", 0)


def test_what_is_shown_holds_no_secret() -> None:
    environment = {
        "WARREN_TLS_PRIVATE_KEY_PASSWORD": "hunter2",
        "WARREN_METADATA_URL": "postgresql+psycopg://bob:hunter2@db/warren",
    }
    shown = {key: (value, origin) for key, value, origin in shown_values(load(environment))}
    assert shown["tls.private_key_password"] == ("***", "environment WARREN_TLS_PRIVATE_KEY_PASSWORD")
    assert shown["metadata_url"][0] == "postgresql+psycopg://bob:***@db/warren"
    assert shown["amqps"] == ("off", "default")
    assert shown.keys() == KEYS.keys()


def test_a_refused_secret_is_not_repeated(config: Path) -> None:
    config.write_text("[tls]\nprivate_key_password = 42424242")
    assert "42424242" not in refusal(config=config)
    assert "hunter2" not in refusal(metadata_url="mysql://bob:hunter2@db/x")


def test_a_certificate_of_clients_is_asked_for_with_an_authority() -> None:
    environment = {"WARREN_TLS_CLIENT_CERTIFICATES": "optional", "WARREN_TLS_CA": "ca.pem"}
    settings = load({**environment, "WARREN_TLS_CERT_LOGIN_FROM": "cn"})
    assert settings.tls == TlsSettings(ca=Path("ca.pem"), client_certificates="optional", cert_login_from="cn")


@pytest.mark.parametrize(("text", "flag"), [("true", True), ("false", False)])
def test_a_switch_is_true_or_false(config: Path, text: str, flag: bool) -> None:
    config.write_text(f"definitions_skip_if_unchanged = {text}")
    assert load(config=config).definitions_skip_if_unchanged is flag
    settings = load({"WARREN_DEFINITIONS_SKIP_IF_UNCHANGED": text})
    assert settings.definitions_skip_if_unchanged is flag
    assert ("definitions_skip_if_unchanged", text, "environment WARREN_DEFINITIONS_SKIP_IF_UNCHANGED") in list(
        shown_values(settings)
    )


@pytest.mark.parametrize("text", ["1", "yes", "True", ""])
def test_text_that_is_no_switch_is_refused(text: str) -> None:
    assert "must be true or false" in refusal({"WARREN_DEFINITIONS_SKIP_IF_UNCHANGED": text})


def test_a_file_of_definitions_is_relative_to_the_file_that_names_it(config: Path) -> None:
    assert load().load_definitions is None
    config.write_text('load_definitions = "all.json"')
    assert load(config=config).load_definitions == config.parent / "all.json"


def test_the_first_user_is_guest_unless_another_is_named() -> None:
    settings = load({"WARREN_DEFAULT_USER": "admin", "WARREN_DEFAULT_PASS": "hunter2"})
    assert (load().default_user, load().default_pass) == ("guest", "guest")
    assert (settings.default_user, settings.default_pass) == ("admin", "hunter2")
    assert {value for key, value, _ in shown_values(settings) if key == "default_pass"} == {"***"}


def test_no_first_user_but_guest_has_a_password_that_everybody_knows() -> None:
    assert refusal({"WARREN_DEFAULT_USER": "admin"}).startswith(
        "default_user (environment WARREN_DEFAULT_USER): set default_pass"
    )
    assert load({"WARREN_DEFAULT_USER": "guest"}).default_pass == "guest"
    assert load({"WARREN_DEFAULT_PASS": "hunter2"}).default_user == "guest"


@pytest.mark.parametrize("name", ["", "a\nb", "é" * 128])
def test_what_is_no_name_of_a_user_is_refused(name: str) -> None:
    assert "must be a name" in refusal({"WARREN_DEFAULT_USER": name, "WARREN_DEFAULT_PASS": "x"})


def test_an_empty_password_is_refused() -> None:
    assert "not empty" in refusal({"WARREN_DEFAULT_PASS": ""})


@pytest.mark.parametrize("text", ["hunter2", "hunter2\n", "hunter2\r\nsecond line\n"])
def test_a_value_may_be_the_first_line_of_a_file(tmp_path: Path, text: str) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(text.encode())
    settings = load({"WARREN_DEFAULT_PASS_FILE": str(secret)})
    assert settings.default_pass == "hunter2"
    assert settings.origins["default_pass"] == "environment WARREN_DEFAULT_PASS_FILE"


def test_any_setting_may_be_in_a_file(tmp_path: Path) -> None:
    number = tmp_path / "number"
    number.write_text("12\n")
    assert load({"WARREN_LIMITS_CHANNEL_MAX_FILE": str(number)}).limits.channel_max == 12


def test_a_file_that_cannot_be_read_or_is_one_too_many_is_told(tmp_path: Path) -> None:
    missing, binary = tmp_path / "missing", tmp_path / "binary"
    binary.write_bytes(b"\xff")
    assert refusal({"WARREN_DEFAULT_PASS_FILE": str(missing)}) == (
        f"environment WARREN_DEFAULT_PASS_FILE: file {missing}: No such file or directory"
    )
    assert refusal({"WARREN_DEFAULT_PASS_FILE": str(binary)}).endswith("is not UTF-8")
    # A pipe that nobody writes to would keep the start waiting.
    os.mkfifo(tmp_path / "pipe")
    assert refusal({"WARREN_DEFAULT_PASS_FILE": str(tmp_path / "pipe")}).endswith("not a regular file")
    both = {"WARREN_DEFAULT_PASS_FILE": str(binary), "WARREN_DEFAULT_PASS": "x"}
    assert refusal(both) == "environment WARREN_DEFAULT_PASS_FILE: WARREN_DEFAULT_PASS is set, too"
    assert "did you mean WARREN_DEFAULT_PASS" in refusal({"WARREN_DEFAULT_PAS_FILE": "x"})
