"""Backups of a running broker with `warren ctl backup`, and what a start on a restored one has.

Numbers: ``warren/server/copies/backups.py`` and ``warren/ctl/backup.py``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_process import WarrenProcess, wait_until
from warren_command import run_warren

from ..staging import Stager, to_queue
from .client import Api, connect

SETTINGS = {"store.segment_bytes": 256 << 10}
STREAM_MESSAGES = 20_000


def url_of(broker: WarrenProcess) -> str:
    return f"http://127.0.0.1:{broker.http_port}"


def back_up(broker: WarrenProcess, to: Path, *options: str) -> dict[str, Any]:
    done = run_warren("ctl", "--url", url_of(broker), "backup", to, "--formatter", "json", *options)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def begin(broker: WarrenProcess, to: Path, *options: str) -> subprocess.Popen[str]:
    """Start a backup that takes long, and wait until it copies."""
    command = [sys.executable, "-P", "-m", "warren", "ctl", "--url", url_of(broker), "backup", str(to)]
    running = subprocess.Popen([*command, "--rate", "20KB", *options], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: any((to / "files").glob("*.part")), "the backup to copy")
    return running


def restore(source: Path, broker: WarrenProcess, *options: str) -> list[dict[str, Any]]:
    done = run_warren("store", "restore", source, "--data-dir", broker.data_directory, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def pins_of(broker: WarrenProcess) -> list[str]:
    pins = broker.data_directory / "messages" / "pins"
    return os.listdir(pins) if pins.exists() else []


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[WarrenProcess]:
    with WarrenProcess(tmp_path / "first", settings=SETTINGS) as process:
        yield process


@pytest.fixture
def api(broker: WarrenProcess) -> Iterator[Api]:
    guest = Api(broker.http_port)
    yield guest
    guest.close()


def fill(broker: WarrenProcess, count: int = 50, size: int = 20_000) -> None:
    """Publish so much that a slow backup of it takes long."""
    connection = connect(broker.amqp_port, "/")
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("filled", durable=True)
    for number in range(count):
        channel.basic_publish("", "filled", b"%d " % number + bytes(size), _persistent())
    connection.close()


def _persistent(**more: Any) -> Any:
    import pika

    return pika.BasicProperties(delivery_mode=2, **more)


def counts(api: Api, vhost: str = "%2F") -> dict[str, tuple[int, int]]:
    """Return how many messages each queue has, and how many are held."""
    rows = {row["name"]: api.get(f"/queues/{vhost}/{row['name']}") for row in api.get(f"/queues/{vhost}")}
    return {name: (row["messages"], row.get("messages_delayed", 0)) for name, row in rows.items()}


def test_everything_durable_comes_back(broker: WarrenProcess, api: Api, tmp_path: Path) -> None:
    api.put("/vhosts/shop", {"description": "what is sold"})
    api.put("/users/anna", {"password": "secret", "tags": "monitoring"})
    api.put("/permissions/shop/anna", {"configure": "", "write": "", "read": ".*"})
    api.put("/policies/shop/short", {"pattern": "^q", "definition": {"max-length": 100}})
    connection = connect(broker.amqp_port, "/")
    channel = connection.channel()
    channel.confirm_delivery()
    channel.exchange_declare("news", "topic", durable=True)
    channel.queue_declare("q", durable=True)
    channel.queue_bind("q", "news", "a.#")
    channel.queue_declare("once", durable=True, arguments={"x-message-deduplication": True})
    channel.queue_declare("later", durable=True)
    channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
    for number in range(30):
        channel.basic_publish("news", "a.b", b"%d" % number, _persistent())
    channel.basic_publish("", "later", b"held", _persistent(headers={"x-delay": 3_600_000}))
    channel.basic_publish("", "once", b"first", _persistent(headers={"x-deduplication-header": "key"}))
    # Each confirm takes a sync, and this number of syncs takes a minute beside others.
    unconfirmed = connection.channel()
    for number in range(STREAM_MESSAGES - 2):
        unconfirmed.basic_publish("", "s", b"%d" % number, _persistent())
    api.eventually("/queues/%2F/s", lambda it: it.get("messages") == STREAM_MESSAGES - 2)
    # The first confirm says that all of it is synced; synced messages are sealed with the next batch.
    for number in range(STREAM_MESSAGES - 2, STREAM_MESSAGES):
        channel.basic_publish("", "s", b"%d" % number, _persistent())
    connection.close()
    api.eventually("/queues/%2F/s", lambda it: it.get("messages") == STREAM_MESSAGES)
    stage = Stager(api, "/").stage(to_queue("q", [b"staged"]))
    sealed = broker.data_directory / "messages" / "streams"
    wait_until(lambda: any(sealed.iterdir()), "a part of the stream to be sealed")
    before = counts(api)

    found = back_up(broker, tmp_path / "backups")
    api.delete("/vhosts/shop")
    api.delete("/queues/%2F/s")
    broker.kill()
    second = WarrenProcess(tmp_path / "second", settings=SETTINGS)
    (summary,) = restore(tmp_path / "backups", second)
    assert (summary["type"], summary["lsn"]) == ("summary", found["lsn"])
    with second:
        other = Api(second.http_port)
        assert counts(other) == before
        assert other.get("/vhosts/shop")["description"] == "what is sold"
        assert other.get("/users/anna")["tags"] == ["monitoring"]
        assert other.get("/permissions/shop/anna")["read"] == ".*"
        assert other.get("/policies/shop/short")["definition"] == {"max-length": 100}
        assert Api(second.http_port, "anna", "secret").ask("GET", "/whoami").status == 200
        connection = connect(second.amqp_port, "/")
        channel = connection.channel()
        bodies = [channel.basic_get("q", auto_ack=True)[2] for _ in range(30)]
        assert bodies == [b"%d" % number for number in range(30)]
        channel.confirm_delivery()
        channel.basic_publish("", "once", b"second", _persistent(headers={"x-deduplication-header": "key"}))
        assert channel.queue_declare("once", passive=True).method.message_count == 1
        channel.basic_qos(prefetch_count=1000)
        got: list[bytes] = []
        for method, _, body in channel.consume("s", arguments={"x-stream-offset": "first"}, inactivity_timeout=30):
            assert method is not None, f"only {len(got)} messages of the stream"
            got.append(body or b"")
            assert method.delivery_tag is not None
            channel.basic_ack(method.delivery_tag)
            if len(got) == STREAM_MESSAGES:
                break
        assert got == [b"%d" % number for number in range(STREAM_MESSAGES)]
        connection.close()
        assert Stager(other, "/").commit("query", 0, stage).json["messages"] == 1
        other.close()


@pytest.mark.long
def test_what_a_backup_has_already_is_not_copied_again_and_only_the_newest_are_kept(
    broker: WarrenProcess, api: Api, tmp_path: Path
) -> None:
    """ctl (1)"""
    fill(broker)
    first = back_up(broker, tmp_path / "backups")
    fill(broker, 5)
    second = back_up(broker, tmp_path / "backups", "--incremental")
    assert second["backup"] == first["backup"] + 1
    assert second["bytes"] > first["bytes"]
    assert second["copied_bytes"] < first["copied_bytes"] // 2
    third = back_up(broker, tmp_path / "backups", "--incremental", "--keep", "1")
    assert third["removed"] == [1, 2]
    listed = run_warren("store", "backups", tmp_path / "backups", "--verify")
    assert listed.returncode == 0
    assert [json.loads(line)["backup"] for line in listed.stdout.splitlines()] == [3]
    restored = WarrenProcess(tmp_path / "second", settings=SETTINGS)
    restore(tmp_path / "backups", restored)
    with restored:
        assert counts(Api(restored.http_port))["filled"][0] == 55


@pytest.mark.long
def test_a_damaged_manifest_keeps_nobody_from_making_a_backup(broker: WarrenProcess, tmp_path: Path) -> None:
    back_up(broker, tmp_path / "backups")
    manifest = tmp_path / "backups" / "0000000001.json"
    manifest.write_bytes(manifest.read_bytes()[:-10])
    done = run_warren("ctl", "--url", url_of(broker), "backup", tmp_path / "backups", "--incremental")
    assert done.returncode == 0
    assert "backup 2 is whole, but no old files can be removed" in done.stderr
    assert "0000000001.json: the manifest is damaged" in done.stderr
    listed = run_warren("store", "backups", tmp_path / "backups", "--verify")
    assert listed.returncode == 1
    assert [json.loads(line)["type"] for line in listed.stdout.splitlines()] == ["problem", "backup"]
    assert back_up(broker, tmp_path / "backups", "--incremental", "--keep", "1")["removed"] == [1, 2]


@pytest.mark.long
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_second_backup_at_the_same_time_is_refused(
    broker: WarrenProcess, tmp_path: Path, stop: signal.Signals
) -> None:
    """backups (1)"""
    fill(broker)
    running = begin(broker, tmp_path / "backups")
    other = run_warren("ctl", "--url", url_of(broker), "backup", tmp_path / "others")
    assert other.returncode == 1
    assert "user 'guest' is making a backup" in other.stderr
    running.send_signal(stop)
    assert running.wait(30) == 130
    assert "stopped; there is no new backup" in (running.stderr.read() if running.stderr else "")
    wait_until(lambda: not pins_of(broker), "the broker to let go")
    assert back_up(broker, tmp_path / "backups")["backup"] == 1


@pytest.mark.long
def test_what_a_killed_client_has_left_can_be_ended(broker: WarrenProcess, api: Api, tmp_path: Path) -> None:
    """The lease that ends it by itself is tried in unit/server/copies/test_backups.py."""
    fill(broker)
    running = begin(broker, tmp_path / "backups")
    running.kill()
    running.wait()
    (left,) = api.get("/warren/backups")
    api.delete(f"/warren/backups/{left['backup']}")
    wait_until(lambda: not api.get("/warren/backups") and not pins_of(broker), "the broker to let go")
    assert back_up(broker, tmp_path / "backups")["backup"] == 1
    assert not list((tmp_path / "backups" / "files").glob("*.part"))


@pytest.mark.long
def test_a_broker_that_is_killed_meanwhile_starts_without_pins_and_with_everything(
    broker: WarrenProcess, tmp_path: Path
) -> None:
    fill(broker)
    running = begin(broker, tmp_path / "backups")
    assert pins_of(broker)
    broker.kill()
    assert running.wait(60) == 3
    broker.start()
    assert pins_of(broker) == []
    assert not (broker.data_directory / "images" / "backup").exists()
    assert counts(Api(broker.http_port))["filled"][0] == 50
    assert not list((tmp_path / "backups").glob("0*.json"))
    assert back_up(broker, tmp_path / "backups")["backup"] == 1


@pytest.mark.long
def test_publishers_and_consumers_go_on_and_segments_are_removed_meanwhile(
    broker: WarrenProcess, tmp_path: Path
) -> None:
    fill(broker)
    running = begin(broker, tmp_path / "backups")
    log = broker.data_directory / "messages" / "log"
    before = set(os.listdir(log))
    connection = connect(broker.amqp_port, "/")
    channel = connection.channel()
    channel.confirm_delivery()
    for _ in range(50):
        channel.basic_get("filled", auto_ack=True)
        channel.basic_publish("", "filled", bytes(20_000), _persistent())
    connection.close()
    wait_until(lambda: not before <= set(os.listdir(log)), "a segment to be removed", 60)
    assert running.poll() is None
    running.terminate()
    running.wait()


def test_only_administrators_may_and_each_backup_has_a_line_of_audit(
    broker: WarrenProcess, api: Api, tmp_path: Path
) -> None:
    api.put("/users/watcher", {"password": "x", "tags": "monitoring"})
    refused = run_warren("ctl", "--url", url_of(broker), "-u", "watcher", "--password", "x", "backup", tmp_path / "b")
    if refused.returncode == 2:
        refused = run_warren(
            "ctl", "--url", url_of(broker), "--username", "watcher", "--password", "x", "backup", tmp_path / "b"
        )
    assert refused.returncode == 4, refused.stderr
    back_up(broker, tmp_path / "b")
    lines = [line for line in broker.log().splitlines() if "audit" in line and "/api/warren/backups" in line]
    assert ["status=401" in line for line in lines][:1] == [True]
    assert any('did="POST /api/warren/backups"  user=guest' in line and "status=201" in line for line in lines)


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="a disk of its own can only be mounted by root")
def test_a_full_target_is_said_and_earlier_backups_stay(broker: WarrenProcess, tmp_path: Path) -> None:
    """ctl (4)"""
    fill(broker)
    small = tmp_path / "small"
    small.mkdir()
    # Mounted where only this command, and what it starts, sees it; gone with it.
    script = (
        f"mount -t tmpfs -o size=400k tmpfs {small} && "
        f"{sys.executable} -P -m warren ctl --url {url_of(broker)} backup {small}; echo code $?; ls {small}"
    )
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, timeout=120)
    if "code" not in done.stdout:
        pytest.skip(f"no mount namespace: {done.stderr}")
    assert "code 1" in done.stdout, done.stdout + done.stderr
    assert "No space left on device; the backups that were there before are whole" in done.stderr
    assert "000000000" not in done.stdout
    wait_until(lambda: not pins_of(broker), "the broker to let go")


def test_only_the_files_of_a_backup_can_be_read_and_only_in_pieces(broker: WarrenProcess, api: Api) -> None:
    """backups (4)"""
    begun = api.post("/warren/backups", {}).json
    assert api.get(f"/warren/backups/{begun['backup']}")["state"] == "ready"
    names = [row["name"] for row in api.get(f"/warren/backups/{begun['backup']}/files")]
    assert "catalogue.db" in names
    assert api.ask("GET", f"/warren/backups/{begun['backup']}/data?name=../x&offset=0&length=1").status == 404
    assert api.ask("GET", f"/warren/backups/{begun['backup']}/data?name=catalogue.db&offset=0&length=0").status == 400
    assert api.ask("GET", "/warren/backups/other").status == 404
    api.delete(f"/warren/backups/{begun['backup']}")
    wait_until(lambda: not api.get("/warren/backups"), "it to end")


@pytest.mark.long
def test_the_links_of_a_restored_broker_are_held_until_they_are_released(
    broker: WarrenProcess, api: Api, tmp_path: Path
) -> None:
    """A backup that is looked at beside production empties none of its queues."""
    api.put("/queues/%2F/orders", {"durable": True})
    api.put("/queues/%2F/taken", {"durable": True})
    uri = f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}"
    value = {"src-uri": uri, "src-queue": "orders", "dest-uri": "amqp://", "dest-queue": "taken"}
    api.put("/parameters/shovel/%2F/s", {"value": value | {"reconnect-delay": 1}})
    back_up(broker, tmp_path / "backups")
    api.delete("/parameters/shovel/%2F/s")
    with connect(broker.amqp_port, "/") as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "orders", b"of production", _persistent())

    second = WarrenProcess(tmp_path / "second", settings={**SETTINGS, "link_networks": "127.0.0.0/8"})
    (summary,) = restore(tmp_path / "backups", second)
    assert summary["links"] == "held"
    for _ in range(2):  # it is not forgotten by a restart
        with second:
            other = Api(second.http_port)
            (shovel,) = other.eventually("/shovels", lambda rows: len(rows) == 1)
            assert shovel["state"] == "held"
            assert shovel["reason"].startswith("restored from backup 1 of ")
            shown = other.get("//health")
            assert (shown["status"], shown["degraded"]) == ("ok", ["links"])
            assert shown["links"].startswith("held: restored from backup 1 of ")
            assert other.get("/overview")["links_held"]["reason"] == shovel["reason"]
            assert other.get("/warren/links")["held"] is True
            other.close()
        second.stop()
    assert api.get("/queues/%2F/orders")["messages"] == 1

    with second:
        done = run_warren("ctl", "--url", url_of(second), "release_links")
        assert (done.returncode, done.stdout) == (0, "Links are released\n"), done.stderr
        other = Api(second.http_port)
        other.eventually("/queues/%2F/taken", lambda row: row.get("messages") == 1)
        assert other.get("/warren/links") == {"held": False}
        second.kill()
        second.start()
        again = Api(second.http_port)
        again.eventually("/shovels", lambda rows: [row["state"] for row in rows] == ["running"])
        again.close()


@pytest.mark.long
def test_a_restore_or_a_start_with_links_holds_none(broker: WarrenProcess, api: Api, tmp_path: Path) -> None:
    api.put("/queues/%2F/orders", {"durable": True})
    back_up(broker, tmp_path / "backups")
    second = WarrenProcess(tmp_path / "second", settings=SETTINGS)
    (summary,) = restore(tmp_path / "backups", second, "--with-links")
    assert summary["links"] == "run"
    with second:
        assert Api(second.http_port).get("/warren/links") == {"held": False}
    third = WarrenProcess(tmp_path / "third", settings={**SETTINGS, "with_links": "true"})
    restore(tmp_path / "backups", third)
    with third:
        Api(third.http_port).eventually("/warren/links", lambda found: found == {"held": False})
