"""Settings that SIGHUP applies, and settings that wait for the next start. Numbers: ``server/reloading.py``."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trustme

from warren.server import logs
from warren.server.network.tls import ServerTls
from warren.server.reloading import reloaded
from warren.server.settings import Settings
from warren.server.settings_reader import load_settings


@pytest.fixture(autouse=True)
def _level() -> Iterator[None]:
    ours = logging.getLogger("warren")
    before = ours.level
    ours.setLevel("INFO")
    yield
    ours.setLevel(before)


class Place:
    """A configuration file and two certificates."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = directory / "warren.toml"
        authority = trustme.CA()
        for name in ("first", "second"):
            issued = authority.issue_cert(f"{name}.example")
            pem = issued.private_key_pem.bytes() + b"".join(blob.bytes() for blob in issued.cert_chain_pems)
            (directory / f"{name}.pem").write_bytes(pem)
        self.write()

    def write(self, more: str = "", tls: str = 'certificate = "first.pem"') -> None:
        self.config.write_text(f'amqps = "127.0.0.1:0"\n{more}\n[tls]\n{tls}\n')

    def reader(self, **flags: str) -> Callable[..., Settings]:
        return partial(load_settings, flags, {}, self.config)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def told(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    records = [record for record in caplog.records if record.getMessage() == event]
    return [vars(record)["fields"] for record in records]


def test_the_level_of_the_log_follows_the_file(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """(1)"""
    read = place.reader()
    settings = read()
    place.write('log_level = "debug"')
    settings = reloaded(settings, partial(read, again=True), None)
    assert (settings.log_level, logs.level()) == ("debug", "debug")
    assert settings.origins["log_level"] == f"file {place.config}"
    assert told(caplog, "log level changed") == [{"level": "debug", "was": "info", "by": "SIGHUP"}]
    reloaded(settings, partial(read, again=True), None)
    assert len(told(caplog, "log level changed")) == 1
    assert len(told(caplog, "the settings were read again")) == 2, "who sends a signal sees that it has arrived"


def test_a_level_that_was_set_live_ends_with_the_next_reload(place: Place) -> None:
    """(1) What is read is in force afterwards."""
    read = place.reader()
    logs.set_level("error", "user bob")
    reloaded(read(), partial(read, again=True), None)
    assert logs.level() == "info"


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        ("log_level = 'loud'\namqp = 5", ["log_level", "amqp"]),
        ("log_levle = 'debug'", ["did you mean log_level?"]),
        ("log_level = ", ["config file"]),
        ("\xff", ["config file"]),
        (None, ["No such file"]),
    ],
)
def test_a_mistake_keeps_everything_and_says_what_is_wrong(
    place: Place, caplog: pytest.LogCaptureFixture, text: str | None, reasons: list[str]
) -> None:
    """(1)"""
    read = place.reader()
    settings = read()
    if text is None:
        place.config.unlink()
    else:
        place.config.write_bytes(text.encode("latin-1"))
    assert reloaded(settings, partial(read, again=True), None) == settings
    assert logs.level() == "info"
    ((line),) = told(caplog, "the settings cannot be read again; those in use are kept")
    assert all(reason in line["reason"] for reason in reasons) and "\n" not in line["reason"]


def test_a_file_that_has_become_a_pipe_does_not_stop_the_broker(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """(1) Opening a pipe blocks until another process writes."""
    read = place.reader()
    settings = read()
    place.config.unlink()
    os.mkfifo(place.config)
    assert reloaded(settings, partial(read, again=True), None) == settings
    assert "not a regular file" in told(caplog, "the settings cannot be read again; those in use are kept")[0]["reason"]


def test_another_certificate_and_other_rules_are_taken(place: Place) -> None:
    """(2)"""
    read = place.reader()
    settings = read()
    tls = ServerTls(settings.tls)
    before = tls.context
    place.write(tls='certificate = "second.pem"\ncert_login_from = "cn"')
    settings = reloaded(settings, partial(read, again=True), tls)
    assert tls.context is not before
    assert settings.tls == tls.settings
    assert settings.tls.certificate == place.directory / "second.pem"
    assert settings.tls.cert_login_from == "cn"
    assert settings.origins["tls.cert_login_from"] == f"file {place.config}"


def test_a_certificate_that_cannot_be_used_keeps_the_context_and_its_settings(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """(2) And the rest of the file counts all the same."""
    read = place.reader()
    settings = read()
    tls = ServerTls(settings.tls)
    before = tls.context
    place.write('log_level = "warning"', tls='certificate = "absent.pem"')
    found = reloaded(settings, partial(read, again=True), tls)
    assert (tls.context, tls.settings, found.tls) == (before, settings.tls, settings.tls)
    assert found.origins["tls.certificate"] == settings.origins["tls.certificate"]
    assert found.log_level == "warning"
    (line,) = told(caplog, "TLS reload failed; the certificate in use is kept")
    assert "absent.pem: No such file" in line["reason"]


def test_a_faulty_file_of_settings_does_not_keep_a_new_certificate_out(place: Place) -> None:
    """(2)"""
    read = place.reader()
    settings = read()
    tls = ServerTls(settings.tls)
    before = tls.context
    place.config.write_text("faulty")
    reloaded(settings, partial(read, again=True), tls)
    assert tls.context is not before


def test_what_only_a_start_reads_is_named_at_each_reload(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """(3)"""
    read = place.reader(data_dir="elsewhere")
    settings = read()
    event = "settings have changed that take effect at the next start"
    reloaded(settings, partial(read, again=True), None)
    assert told(caplog, event) == []
    place.write('log_format = "json"\nlog_level = "debug"\n[limits]\nheartbeat_s = 5')
    for count in (1, 2):
        settings = reloaded(settings, partial(read, again=True), None)
        assert told(caplog, event) == [{"settings": "log_format, limits.heartbeat_s"}] * count
    assert (settings.log_format, settings.limits.heartbeat_s) == ("console", 60)


def test_a_secret_that_has_changed_is_named_and_not_shown(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """(3)"""
    read = place.reader()
    settings = read()
    place.write('metadata_url = "postgresql+psycopg://bob:hunter2@db/warren"')
    reloaded(settings, partial(read, again=True), None)
    assert told(caplog, "settings have changed that take effect at the next start") == [{"settings": "metadata_url"}]
    assert "hunter2" not in caplog.text
