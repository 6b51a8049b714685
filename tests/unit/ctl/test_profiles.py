"""Address and user of the broker: flags before the environment before a profile; passwords stay out of sight."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from warren.ctl import config
from warren.ctl.client import Target
from warren.ctl.exit_codes import CtlError, ExitCode

PROFILES = """
default = "home"

[profiles.home]
url = "http://home:1"
username = "homer"
password = "doh"
vhost = "springfield"
timeout = 7

[profiles.work]
url = "https://work:2"
insecure = true
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "warren"
    path.mkdir()
    (path / "ctl.toml").write_text(PROFILES)
    return tmp_path


def target(flags: Mapping[str, Any], environment: Mapping[str, str]) -> Target:
    return config.target(config.gather(flags, {"XDG_CONFIG_HOME": "/nonexistent", **environment}))


def test_without_anything_it_is_the_fresh_broker_of_this_machine() -> None:
    assert target({}, {}) == Target("http://127.0.0.1:15672", "guest", "guest", None, False, 30.0)


def test_the_default_profile_applies(directory: Path) -> None:
    found = target({}, {"XDG_CONFIG_HOME": str(directory)})
    assert found == Target("http://home:1", "homer", "doh", None, False, 7.0)
    assert config.gather({}, {"XDG_CONFIG_HOME": str(directory)})["vhost"] == "springfield"


@pytest.mark.parametrize("how", ["flag", "environment"])
def test_another_profile_is_named(directory: Path, how: str) -> None:
    flags = {"profile": "work"} if how == "flag" else {}
    environment = {} if how == "flag" else {"WARREN_CTL_PROFILE": "work"}
    found = target(flags, {"XDG_CONFIG_HOME": str(directory), **environment})
    assert (found.url, found.insecure, found.username) == ("https://work:2", True, "guest")


def test_flags_win_over_the_environment_and_that_over_the_profile(directory: Path) -> None:
    environment = {
        "XDG_CONFIG_HOME": str(directory),
        "WARREN_CTL_URL": "http://env:3",
        "WARREN_CTL_TIMEOUT": "1.5",
        "WARREN_CTL_INSECURE": "yes",
    }
    found = target({"url": "http://flag:4"}, environment)
    assert found == Target("http://flag:4", "homer", "doh", None, True, 1.5)


@pytest.mark.parametrize("timeout_s", ["0", "-1", "86401", "1e12", "1e400", "inf", "nan"])
def test_a_timeout_that_none_can_be_is_wrong_usage_wherever_it_stands(directory: Path, timeout_s: str) -> None:
    (directory / "warren" / "ctl.toml").write_text(f'default = "p"\n[profiles.p]\ntimeout = {float(timeout_s)}\n')
    for flags, environment in (
        ({"timeout": float(timeout_s)}, {}),
        ({}, {"WARREN_CTL_TIMEOUT": timeout_s}),
        ({}, {"XDG_CONFIG_HOME": str(directory)}),
    ):
        with pytest.raises(CtlError, match=r"must be from 0\.001 to 86400 seconds") as caught:
            target(flags, environment)
        assert caught.value.exit_code is ExitCode.USAGE


def test_a_url_that_cannot_be_read_is_wrong_usage() -> None:
    with pytest.raises(CtlError, match="Invalid IPv6 URL") as caught:
        target({"url": "http://[::1"}, {})
    assert caught.value.exit_code is ExitCode.USAGE


def test_the_password_of_one_user_is_not_sent_for_another(directory: Path) -> None:
    with pytest.raises(CtlError) as caught:
        target({"username": "bart"}, {"XDG_CONFIG_HOME": str(directory)})
    assert "no password for user bart" in caught.value.reason


def test_a_password_of_the_environment_serves_the_user_of_a_flag() -> None:
    assert target({"username": "bart"}, {"WARREN_CTL_PASSWORD": "x"})[1:3] == ("bart", "x")


def test_a_password_file_is_read_to_the_end_of_its_first_line(directory: Path, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("s ecret\r\nsecond line\n")
    found = target({"password_file": str(file)}, {"XDG_CONFIG_HOME": str(directory)})
    assert found[1:3] == ("homer", "s ecret")


def test_credentials_of_the_url_are_taken_out_of_it() -> None:
    found = target({"url": "http://us%40er:p%3Aw@h:1/x"}, {})
    assert found[:3] == ("http://h:1/x", "us@er", "p:w")


def test_a_person_is_asked_for_a_missing_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("getpass.getpass", lambda prompt: f"typed for {prompt}")
    assert target({"username": "bart"}, {}).password == "typed for Password of bart: "


def test_a_script_is_told_about_a_missing_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(CtlError) as caught:
        target({"username": "bart"}, {})
    assert caught.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[profiles.p]\nurl = 1\n", "url must be of type str"),
        ("[profiles.p]\ntimeout = true\n", "timeout must be of type float"),
        ("[profiles.p]\nprot = 1\n", "unknown key 'prot'"),
        ("[profiles.p]\nuser_name = 'x'\n", "unknown key 'user_name'; did you mean username?"),
        ("[profiles.q]\n", "no profile 'p'"),
        ("profiles = 1\n", "no profile 'p'"),
        ("x x", "Expected '='"),
    ],
)
def test_mistakes_in_a_profile_are_named_with_the_file(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(CtlError) as caught:
        config.gather({"config": str(file), "profile": "p"}, {})
    assert caught.value.exit_code is ExitCode.USAGE
    assert caught.value.reason.startswith(f"{file}: ") and reason in caught.value.reason


def test_a_user_without_a_home_has_no_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one of a container, who is a number only."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert config.target(config.gather({}, {})) == Target("http://127.0.0.1:15672", "guest", "guest", None, False, 30.0)
    with pytest.raises(CtlError, match="no home directory") as caught:
        config.gather({"profile": "work"}, {})
    assert caught.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize(
    ("flags", "environment"),
    [
        ({"config": "/nonexistent/ctl.toml"}, {}),
        ({"profile": "work"}, {"XDG_CONFIG_HOME": "/nonexistent"}),
        ({"password_file": "/nonexistent/secret"}, {"XDG_CONFIG_HOME": "/nonexistent"}),
        ({}, {"XDG_CONFIG_HOME": "/nonexistent", "WARREN_CTL_TIMEOUT": "soon"}),
        ({}, {"XDG_CONFIG_HOME": "/nonexistent", "WARREN_CTL_INSECURE": "maybe"}),
    ],
)
def test_what_cannot_be_used_is_wrong_usage(flags: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    with pytest.raises(CtlError) as caught:
        config.target(config.gather(flags, environment))
    assert caught.value.exit_code is ExitCode.USAGE
