"""Checks before a broker starts: files that settings name, settings without an effect, and deprecated ones."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import typer.testing

from warren.server.commands import app
from warren.server.setting_checks import DEPRECATED, NEEDS, check, deprecated, unreadable, without_effect
from warren.server.settings import DEFAULT_ORIGIN, KEYS
from warren.server.settings_reader import load_settings
from warren.server.start_errors import StartError


def test_all_files_that_cannot_be_read_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    flags = {
        "amqps": "127.0.0.1:0",
        "tls.certificate": str(tmp_path / "absent.pem"),
        "tls.private_key": str(tmp_path / "folder"),
        "tls.ca": str(tmp_path / "absent.ca"),
        "cluster_listen": "127.0.0.1:1",
        "cluster_secret_file": str(tmp_path / "absent.secret"),
    }
    with pytest.raises(StartError) as failure:
        check(load_settings(flags, {}))
    assert str(failure.value).splitlines() == [
        f"tls.certificate {tmp_path}/absent.pem: No such file or directory",
        f"tls.private_key {tmp_path}/folder: not a regular file",
        f"tls.ca {tmp_path}/absent.ca: No such file or directory",
        f"cluster_secret_file {tmp_path}/absent.secret: No such file or directory",
    ]
    assert failure.value.exit_code == 1


def test_a_file_that_is_not_going_to_be_read_may_be_absent(tmp_path: Path) -> None:
    settings = load_settings({"tls.certificate": str(tmp_path / "absent.pem")}, {})
    assert list(unreadable(settings)) == []
    check(settings)


@pytest.mark.parametrize(
    ("flags", "in_vain"),
    [
        ({}, []),
        ({"tls.certificate": "a.pem", "tls.private_key": "a.key"}, ["tls.certificate", "tls.private_key"]),
        ({"tls.certificate": "a.pem", "mqtts": "127.0.0.1:0"}, []),
        ({"ws_origins": "https://example.com"}, ["ws_origins"]),
        ({"ws_origins": "https://example.com", "stomp_ws": "127.0.0.1:0"}, []),
        ({"ws_origins": "https://example.com", "stomp": "127.0.0.1:0"}, ["ws_origins"]),
        ({"http_hosts": "a.example", "http": "off", "prometheus": "off"}, ["http_hosts"]),
        ({"http_hosts": "a.example", "http": "off", "prometheus": "off", "mqtt_ws": "127.0.0.1:0"}, []),
        ({"tracing_sampling_ratio": "0.5"}, ["tracing_sampling_ratio"]),
        ({"replicas": "3", "cluster_name": "one"}, ["cluster_name", "replicas"]),
    ],
)
def test_what_has_no_effect_is_told(flags: dict[str, str], in_vain: list[str]) -> None:
    assert [key for key, _ in without_effect(load_settings(flags, {}))] == in_vain


def test_nothing_is_said_of_defaults_and_only_settings_that_exist_are_listed() -> None:
    settings = load_settings({}, {})
    assert set(settings.origins.values()) == {DEFAULT_ORIGIN}
    assert list(without_effect(settings)) == []
    assert set(NEEDS) | {key for needs in NEEDS.values() for key in needs} <= set(KEYS)


def test_a_deprecated_setting_that_is_given_is_told_with_what_replaces_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DEPRECATED, "limits.heartbeat_s", "use limits.pulse_s")
    assert list(deprecated(load_settings({}, {}))) == []
    given = load_settings({}, {"WARREN_LIMITS_HEARTBEAT_S": "30"})
    assert list(deprecated(given)) == [
        ("limits.heartbeat_s", "environment WARREN_LIMITS_HEARTBEAT_S", "use limits.pulse_s")
    ]


def test_a_start_and_warren_config_tell_deprecated_settings(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(DEPRECATED, "http", "use nothing")
    with caplog.at_level(logging.WARNING, logger="warren"):
        check(load_settings({"http": "off"}, {}))
    assert [record.getMessage() for record in caplog.records] == ["a setting is deprecated"]
    told = typer.testing.CliRunner().invoke(app, ["config", "--json", "--http", "off"])
    assert told.exit_code == 0 and '"origin": "flag --http"' in told.stdout
    assert told.stderr == "warren config: http (flag --http) is deprecated: use nothing\n"


def test_only_settings_that_exist_are_deprecated() -> None:
    assert set(DEPRECATED) <= set(KEYS)
