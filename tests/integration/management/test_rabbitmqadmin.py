"""RabbitMQ's own rabbitmqadmin, in Python, works unchanged.

It is one file of Debian's rabbitmq-server; `make setup-test` takes it out of the package where that is not installed.
WARREN_TEST_RABBITMQADMIN names another.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import shutil
import sys
import warnings
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple
from unittest import mock

import pika.exceptions
import pytest
from broker_process import WarrenProcess
from kept_process import kept_process

from .client import Place
from .conftest import Connect

DOWNLOADED = Path(__file__).parents[3] / ".cache" / "rabbitmqadmin" / "rabbitmqadmin"
TOOL = os.environ.get("WARREN_TEST_RABBITMQADMIN") or shutil.which("rabbitmqadmin") or str(DOWNLOADED)
pytestmark = pytest.mark.skipif(not Path(TOOL).is_file(), reason="rabbitmqadmin is not installed")

LISTINGS = (
    *("users", "vhosts", "connections", "exchanges", "bindings", "permissions", "channels", "parameters", "consumers"),
    *("queues", "policies", "operator_policies", "nodes", "vhost_limits"),
)
FORMATS = ("tsv", "long", "raw_json", "pretty_json", "kvp", "table", "bash")


class Ended(NamedTuple):
    """How a run ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


@cache
def program() -> CodeType:
    return compile(Path(TOOL).read_bytes(), TOOL, "exec")


class Admin:
    """Runs the tool in one vhost, as it is, in this process: to start one costs more than what most runs do."""

    def __init__(self, port: int, vhost: str) -> None:
        self._port = port
        self.vhost = vhost

    def run(self, *arguments: str, user: str = "guest", password: str = "guest", stdin: str = "") -> Ended:
        options = ["-H", "127.0.0.1", "-P", str(self._port), "-u", user, "-p", password, "-V", self.vhost]
        out, err = io.StringIO(), io.StringIO()
        with (
            kept_process(),
            mock.patch.object(sys, "argv", [TOOL, *options, *arguments]),
            mock.patch.object(sys, "stdin", io.StringIO(stdin)),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(action="ignore"),
        ):
            os.environ["HOME"] = "/nonexistent"
            try:
                exec(program(), {"__name__": "__main__"})
                code = 0
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        return Ended(code, out.getvalue(), err.getvalue())

    def __call__(self, *arguments: str, **more: Any) -> str:
        done = self.run(*arguments, **more)
        assert done.returncode == 0, (arguments, done)
        return done.stdout

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self("-f", "raw_json", *arguments))
        return found

    def names(self, *arguments: str) -> list[str]:
        """Return the first column of a listing."""
        return [row[0] for row in csv.reader(io.StringIO(self("-f", "tsv", "-q", *arguments)), delimiter="\t")]


@pytest.fixture
def admin(broker: WarrenProcess, place: Place) -> Admin:
    return Admin(broker.http_port, place.vhost)


def test_everything_is_declared_shown_and_deleted(admin: Admin) -> None:
    admin("declare", "exchange", "name=x", "type=topic", "durable=false")
    admin("declare", "queue", "name=q", 'arguments={"x-max-length": 100}')
    admin("declare", "binding", "source=x", "destination=q", "routing_key=a.*", 'arguments={"k": 1}')
    admin("declare", "policy", "name=p", "pattern=^q", 'definition={"message-ttl":60000}', "apply-to=queues")
    admin("declare", "operator_policy", "name=op", "pattern=^q", 'definition={"max-length":5}', "apply-to=queues")
    admin("declare", "vhost_limit", f"vhost={admin.vhost}", "name=max-queues", "value=10")
    admin("declare", "user", "name=someone", "password=x", "tags=management")
    admin("declare", "permission", f"vhost={admin.vhost}", "user=someone", "configure=.*", "write=.*", "read=.*")
    admin("declare", "vhost", "name=another")
    (queue,) = admin.rows("list", "queues")
    assert (queue["name"], queue["arguments"], queue["policy"]) == ("q", {"x-max-length": 100}, "p")
    assert {"source": "x", "routing_key": "a.*"}.items() <= admin.rows("list", "bindings")[-1].items()
    assert admin.rows("list", "policies")[0]["apply-to"] == "queues"
    assert [row["name"] for row in admin.rows("list", "operator_policies")] == ["op"]
    assert admin.rows("list", "vhost_limits")[0]["value"] == {"max-queues": 10}
    assert "another" in admin.names("list", "vhosts", "name")
    assert "someone" in admin.names("list", "users", "name")
    assert "someone" in admin("list", "permissions")
    admin("delete", "vhost", "name=another")
    admin("delete", "permission", f"vhost={admin.vhost}", "user=someone")
    admin("delete", "user", "name=someone")
    admin("delete", "vhost_limit", f"vhost={admin.vhost}", "name=max-queues")
    admin("delete", "operator_policy", "name=op")
    admin("delete", "policy", "name=p")
    key = admin.rows("list", "bindings")[-1]["properties_key"]
    admin("delete", "binding", "source=x", "destination_type=queue", "destination=q", f"properties_key={key}")
    admin("delete", "queue", "name=q")
    admin("delete", "exchange", "name=x")
    for kind in ("queues", "policies", "operator_policies", "vhost_limits", "bindings"):
        assert admin.rows("list", kind) == []


def test_every_listing_has_every_format(admin: Admin, amqp: Connect) -> None:
    channel = amqp().channel()
    channel.queue_declare("q")
    channel.basic_consume("q", lambda *arguments: None)
    for kind in LISTINGS:
        for form in (
            ("tsv", "long", "raw_json", "pretty_json", "kvp", "table", "bash") if kind == "queues" else ("tsv",)
        ):
            done = admin.run("-f", form, "list", kind)
            assert (done.returncode, done.stderr) == (0, ""), (kind, form, done)
    assert "cluster_name" in admin("-f", "long", "show", "overview")
    assert "rabbitmq_version" in admin("show", "overview")


def test_lists_are_sorted_and_cut_and_as_deep_as_asked_for(admin: Admin) -> None:
    for name, length in (("b", 1), ("c", 3), ("a", 2)):
        admin("declare", "queue", f"name={name}", f'arguments={{"x-max-length":{length}}}')
    assert admin.names("--sort", "name", "list", "queues", "name") == ["a", "b", "c"]
    assert admin.names("--sort", "name", "--sort-reverse", "list", "queues", "name") == ["c", "b", "a"]
    assert admin.names("--sort", "arguments.x-max-length", "list", "queues", "name") == ["b", "a", "c"]
    head, *rows = admin("-f", "tsv", "list", "queues", "name", "vhost", "messages").splitlines()
    assert head.split("\t") == ["name", "vhost", "messages"]
    assert [row.split("\t") for row in rows] == [[name, admin.vhost, "0"] for name in ("a", "b", "c")]
    assert "messages_details.rate" in admin("-f", "tsv", "-d", "2", "list", "queues", "name", "messages_details.rate")


def test_messages_are_published_got_and_purged(admin: Admin, tmp_path: Path) -> None:
    admin("declare", "queue", "name=q")
    assert "Message published" in admin("publish", "routing_key=q", "payload=hello", "exchange=amq.default")
    assert "NOT routed" in admin("publish", "routing_key=nowhere", "payload=hello")
    admin("publish", "routing_key=q", 'properties={"delivery_mode":2,"headers":{"a":1}}', stdin="from a pipe")
    admin("publish", "routing_key=q", "payload=aGk=", "payload_encoding=base64")
    got = admin.rows("get", "queue=q", "count=5")
    assert [each["payload"] for each in got] == ["hello", "from a pipe", "hi"]
    assert got[1]["properties"] == {"delivery_mode": 2, "headers": {"a": 1}}
    assert [each["redelivered"] for each in admin.rows("get", "queue=q", "count=5")] == [True, True, True]
    body = tmp_path / "body"
    admin("get", "queue=q", "ackmode=ack_requeue_false", f"payload_file={body}")
    assert body.read_text() == "hello"
    assert [queue["messages"] for queue in admin.rows("list", "queues")] == [2]
    admin("purge", "queue", "name=q")
    assert [queue["messages"] for queue in admin.rows("list", "queues")] == [0]


def test_a_connection_is_closed(admin: Admin, amqp: Connect) -> None:
    connection = amqp()
    (name,) = admin.names("list", "connections", "name")
    admin("close", "connection", f"name={name}")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="320"):
        connection.process_data_events(20)


def test_refusals_are_told(admin: Admin, place: Place) -> None:
    wrong = admin.run("list", "queues", password="wrong")
    assert (wrong.returncode, wrong.stdout) == (1, "") and "Access refused" in wrong.stderr
    missing = admin.run("delete", "queue", "name=nosuch")
    assert missing.returncode == 1 and "Not found" in missing.stderr
    bad = admin.run("declare", "queue", "name=q", 'arguments={"x-message-ttl":"soon"}')
    assert bad.returncode == 1 and "x-message-ttl" in bad.stderr
    place.user("someone", "management", None)
    refused = admin.run("list", "users", user="someone", password="x")
    assert refused.returncode == 1 and "Access refused" in refused.stderr


def test_definitions_are_exported_and_imported(admin: Admin, place: Place, tmp_path: Path) -> None:
    admin("declare", "queue", "name=q", 'arguments={"x-max-length": 100}')
    admin("declare", "binding", "source=amq.topic", "destination=q", "routing_key=k")
    admin("export", str(tmp_path / "whole.json"))
    exported = json.loads((tmp_path / "whole.json").read_text())
    assert [queue["name"] for queue in exported["queues"]] == ["q"]
    admin("delete", "queue", "name=q")
    admin("import", str(tmp_path / "whole.json"))
    assert [queue["arguments"] for queue in admin.rows("list", "queues")] == [{"x-max-length": 100}]
    assert any(row["source"] == "amq.topic" for row in admin.rows("list", "bindings"))
