"""Starting on metadata and files that are there already: what serves, and what is refused in one line."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from broker_process import WarrenProcess, wait_until
from pika import PlainCredentials
from pika.exceptions import (
    ChannelClosedByBroker,
    NackError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from warren.server.catalogue.catalogue import Catalogue
from warren.vhosts.metadata import PolicyPut, QueuePut, UserLimitsPut, VhostLimitsPut

from .metadata_urls import FreshUrl
from .peers import connect


def refusal(process: WarrenProcess) -> tuple[int, str]:
    """Start a broker that must not start; return its exit code and what it said."""
    process.spawn()
    code = process.wait()
    assert process.out() == ""
    return code, process.log()


def test_a_broker_starts_again_on_the_metadata_of_a_killed_one(tmp_path: Path, fresh_metadata_url: FreshUrl) -> None:
    process = WarrenProcess(tmp_path, {"metadata-url": fresh_metadata_url()})
    process.start()
    process.kill()
    process.start()
    assert process.health() == 200
    process.stop()


def test_the_first_user_that_settings_name_is_the_only_one_and_stays_as_it_was_made(
    tmp_path: Path, fresh_metadata_url: FreshUrl
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2\n")
    flags = {"metadata-url": fresh_metadata_url()}
    process = WarrenProcess(tmp_path, flags, {"default_user": "admin", "default_pass_file": secret})
    hunter2 = PlainCredentials("admin", "hunter2")
    with process:
        connect(process, credentials=hunter2).close()
        with pytest.raises(ProbableAuthenticationError):
            connect(process)
        process.stop()
        secret.write_text("another\n")
        process.start()
        connect(process, credentials=hunter2).close()
        with pytest.raises(ProbableAuthenticationError):
            connect(process, credentials=PlainCredentials("admin", "another"))
    assert "hunter2" not in process.log() + process.out()


def test_policies_and_limits_in_the_metadata_hold_from_the_start(tmp_path: Path, fresh_metadata_url: FreshUrl) -> None:
    url = fresh_metadata_url()
    catalogue = Catalogue.open(url)
    catalogue.commit(
        [
            QueuePut("/", "of old", False, bytes(4), 1),
            PolicyPut("/", "p", "^of", "queues", 0, '{"max-length":2,"overflow":"reject-publish"}'),
            VhostLimitsPut("/", '{"max-queues":1}'),
            UserLimitsPut("guest", '{"max-connections":1}'),
        ]
    )
    catalogue.close()
    with WarrenProcess(tmp_path, {"metadata-url": url}, {"accept_loss": "true"}) as process:  # it has no messages
        channel = connect(process).channel()
        channel.confirm_delivery()
        channel.basic_publish("", "of old", b"1")
        channel.basic_publish("", "of old", b"2")
        with pytest.raises(NackError):
            channel.basic_publish("", "of old", b"3")
        with pytest.raises(ProbableAccessDeniedError, match="user connection limit \\(1\\) is reached"):
            connect(process)
        with pytest.raises(ChannelClosedByBroker, match="queue limit in vhost '/' \\(1\\) is reached"):
            channel.queue_declare("another")


def test_a_policy_that_is_not_valid_any_more_is_logged(tmp_path: Path, fresh_metadata_url: FreshUrl) -> None:
    url = fresh_metadata_url()
    catalogue = Catalogue.open(url)
    catalogue.commit([PolicyPut("/", "by hand", "", "all", 0, '{"expires":0}')])
    catalogue.close()
    with WarrenProcess(tmp_path, {"metadata-url": url}) as process:
        wait_until(lambda: "policy.invalid" in process.log(), "the log to say so")
        assert "0 is not a valid queue expiry" in process.log()


def test_metadata_of_a_newer_version_is_one_line(tmp_path: Path) -> None:
    with WarrenProcess(tmp_path) as process:
        catalogue = process.data_directory / "catalogue.db"
    with closing(sqlite3.connect(catalogue)) as database:
        database.execute("UPDATE warren_schema SET version = 999")
        database.commit()
    before = catalogue.read_bytes()
    again = tmp_path / "again"
    again.mkdir()
    (again / "data").symlink_to(process.data_directory)
    code, said = refusal(WarrenProcess(again))
    assert code == 1
    assert said.startswith("warren: metadata store sqlite:///")
    assert "written by a newer Warren (schema version 999" in said
    assert said.count("\n") == 1
    assert catalogue.read_bytes() == before


def test_a_metadata_server_that_is_not_there_is_one_line_without_the_password(tmp_path: Path) -> None:
    url = "postgresql+psycopg://bob:hunter2@127.0.0.1:1/warren"
    code, said = refusal(WarrenProcess(tmp_path, {"metadata-url": url}))
    assert code == 1
    assert said.startswith("warren: metadata store postgresql+psycopg://bob:***@127.0.0.1:1/warren: ")
    assert "hunter2" not in said
    assert said.count("\n") == 1


def test_a_data_directory_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    code, said = refusal(WarrenProcess(tmp_path))
    assert code == 1
    assert said == f"warren: data directory {tmp_path / 'data'}: a file of that name is in the way\n"


def test_a_certificate_that_is_missing_is_one_line(tmp_path: Path) -> None:
    config = tmp_path / "warren.toml"
    config.write_text('amqps = "127.0.0.1:0"\n[tls]\ncertificate = "absent.pem"\n')
    code, said = refusal(WarrenProcess(tmp_path, {"config": str(config)}))
    assert code == 1
    assert said == f"warren: tls.certificate {tmp_path / 'absent.pem'}: No such file or directory\n"
