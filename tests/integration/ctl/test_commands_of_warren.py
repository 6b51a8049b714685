"""Warren's API beyond RabbitMQ's: looking without taking, moving, pausing, testing routes."""

from __future__ import annotations

import json
from urllib.parse import quote, urlsplit

import pytest

from ..management.client import Api
from .conftest import Ctl


def publish(ctl: Ctl, queue: str, *payloads: str) -> None:
    for payload in payloads:
        ctl.done("publish", "-k", queue, "-H", f"name={payload}", payload)


def payloads(ctl: Ctl, queue: str) -> list[str]:
    """Return what waits in a queue, in order, without touching it."""
    return [row["payload"] for row in ctl.rows("peek", queue, "-c", "100")]


def test_peeking_leaves_messages_as_they_are(ctl: Ctl) -> None:
    ctl.done("declare_queue", "q")
    publish(ctl, "q", "a", "b", "c")
    assert payloads(ctl, "q") == ["a", "b", "c"]
    assert [row["payload"] for row in ctl.rows("peek", "q", "--offset", "1", "-c", "1")] == ["b"]
    assert [row["payload"] for row in ctl.rows("peek", "q", "-H", "name=c")] == ["c"]
    assert [row["redelivered"] for row in ctl.rows("get", "q")] == [False]
    assert ctl("peek", "no such queue").exit_code == 5


def test_messages_are_moved_and_copied(ctl: Ctl) -> None:
    for queue in ("from", "to"):
        ctl.done("declare_queue", queue)
    publish(ctl, "from", "a", "b", "c")
    assert ctl.done("copy", "from", "--to-queue", "to", "-c", "1") == "1 message copied\n"
    assert (payloads(ctl, "from"), payloads(ctl, "to")) == (["a", "b", "c"], ["a"])
    assert ctl.done("move", "from", "--to-queue", "to", "-H", "name=b") == "1 message moved\n"
    assert (payloads(ctl, "from"), payloads(ctl, "to")) == (["a", "c"], ["a", "b"])
    assert ctl.done("move", "from", "--to-exchange", "", "--with-key", "to") == "2 messages moved\n"
    assert (payloads(ctl, "from"), payloads(ctl, "to")) == ([], ["a", "b", "a", "c"])
    ended = [(row["queue"], row["mode"], row["state"], row["transferred"]) for row in ctl.rows("list_transfers")]
    assert sorted(ended) == [("from", "copy", "done", 1), ("from", "move", "done", 1), ("from", "move", "done", 2)]


def test_dead_letters_go_back_where_they_came_from(ctl: Ctl) -> None:
    ctl.done("declare_queue", "dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    ctl.done("declare_queue", "work", "--arguments", json.dumps(arguments))
    publish(ctl, "work", "a", "b")
    ctl.done("get", "work", "-c", "2", "--ack-mode", "reject_requeue_false")
    assert (payloads(ctl, "work"), payloads(ctl, "dead")) == ([], ["a", "b"])
    assert ctl.done("redrive", "dead") == "2 messages moved\n"
    assert (payloads(ctl, "work"), payloads(ctl, "dead")) == (["a", "b"], [])


def test_a_queue_is_paused_and_resumed(ctl: Ctl) -> None:
    ctl.done("declare_queue", "q")
    ctl.done("pause_queue", "q")
    assert ctl.rows("list_queues", "name", "paused") == [{"name": "q", "paused": True}]
    ctl.done("resume_queue", "q")
    assert ctl.rows("list_queues", "name", "paused") == [{"name": "q", "paused": False}]
    assert ctl("pause_queue", "no such queue").exit_code == 5


def test_a_route_is_shown_with_its_steps(ctl: Ctl) -> None:
    ctl.done("declare_queue", "q")
    ctl.done("bind", "amq.topic", "amq.fanout", "-k", "a.#", "--destination-type", "exchange")
    ctl.done("bind", "amq.fanout", "q")
    assert ctl.rows("route", "amq.topic", "a.b") == [{"queue": "q"}]
    steps = [(row["exchange"], row["destination"]) for row in ctl.rows("route", "amq.topic", "a.b", "--path")]
    assert steps == [("amq.topic", "amq.fanout"), ("amq.fanout", "q")]
    assert ctl("route", "amq.topic", "b").exit_code == 1
    assert ctl("route", "no such exchange", "b").exit_code == 5


def test_names_are_found_by_a_part(ctl: Ctl) -> None:
    ctl.done("declare_queue", "incoming-orders")
    found = [(row["kind"], row["name"]) for row in ctl.rows("search", "ming-ord") if row["vhost"] == ctl.vhost]
    assert found == [("queue", "incoming-orders")]


def test_the_broker_shows_its_store_its_reactor_and_its_settings(ctl: Ctl) -> None:
    assert "durable_lsn" in ctl.done("store")
    assert isinstance(json.loads(ctl.done("store", "--formatter", "json"))["segments"], list)
    assert "turn_ms.p99" in ctl.done("reactor")
    assert "limits.channel_max" in ctl.done("environment")
    assert ctl.done("is_in_service") == "ok\n"


def test_the_level_of_the_log_is_set_live(ctl: Ctl) -> None:
    ctl.done("set_log_level", "debug")
    assert ctl("set_log_level", "loud").exit_code == 2
    ctl.done("set_log_level", "info")


def test_a_misspelt_key_of_a_policy_is_told_with_the_nearest(ctl: Ctl) -> None:
    said = 'warren ctl: policy "p": no such key: max-lenght; did you mean max-length instead of max-lenght?\n'
    assert ctl("set_policy", "p", ".*", '{"max-lenght": 5}') == (1, "", said)


def test_what_goes_on_is_printed_once_in_a_pipe(ctl: Ctl) -> None:
    ctl.done("declare_queue", "busy")
    publish(ctl, "busy", "a", "b")
    whole = json.loads(ctl.done("-p", ctl.vhost, "top", "--once", "--formatter", "json"))
    assert [queue["name"] for queue in whole["queues"]] == ["busy"]
    assert "\tbusy\t" in ctl.done("-p", ctl.vhost, "top", "--once")


def test_the_node_says_how_it_is_and_what_takes_its_memory(ctl: Ctl) -> None:
    found = json.loads(ctl.done("cluster_status", "--formatter", "json"))
    assert found["nodes"] == found["running_nodes"] == found["disk_nodes"] and len(found["nodes"]) == 1
    assert (found["alarms"], found["partitions"]) == ([], {})
    assert {listener["protocol"] for listener in found["listeners"]} >= {"amqp", "http"}
    rows = ctl.rows("memory_breakdown")
    assert "other_system" in {row["part"] for row in rows}
    assert abs(sum(row["percent"] for row in rows) - 100) < 1


def test_a_dry_run_of_an_import_changes_nothing(ctl: Ctl) -> None:
    queue = {"name": "q", "durable": True, "auto_delete": False, "arguments": {"x-max-length": 1}}
    file = json.dumps({"queues": [queue]})
    line = ("-p", ctl.vhost, "import_definitions", "--dry-run")
    changes = json.loads(ctl.done(*line, "--formatter", "json", stdin=file))
    assert [(change["action"], change["kind"], change["name"]) for change in changes] == [("create", "queue", "q")]
    assert ctl.rows("list_queues") == []
    ctl.done("declare_queue", "q")
    ended = ctl(*line, stdin=file)
    assert ended.exit_code == 6 and "conflict" in ended.out


def test_a_stream_is_declared_and_an_offset_in_it_found(ctl: Ctl) -> None:
    ctl.done("declare_queue", "s", "--type", "stream", "-a", "x-max-age=7D")
    publish(ctl, "s", "a", "b", "c")
    columns = ("name", "type", "arguments", "messages", "first_offset", "next_offset", "readers")
    assert ctl.rows("list_queues", *columns) == [
        {
            "name": "s",
            "type": "stream",
            "arguments": {"x-max-age": "7D", "x-queue-type": "stream"},
            "messages": 3,
            "first_offset": 0,
            "next_offset": 3,
            "readers": 0,
        }
    ]
    positions = {"first": 0, "last": 2, "next": 3, "1": 1, "1h": 0, "2020-01-31T08:00": 0, "2020-01-31": 0}
    assert {each: ctl.done("-q", "stream_offset", "s", each) for each in positions} == {
        each: f"{offset}\n" for each, offset in positions.items()
    }
    assert json.loads(ctl.done("stream_offset", "s", "9000-01-31T08:00+00:00", "--formatter", "json")) == {"offset": 3}
    for position in ("bogus", "5x", "1.5"):
        ended = ctl("stream_offset", "s", position)
        assert ended.exit_code == 1 and "offset must be a number, first, last, next or an age" in ended.err
    ended = ctl("stream_offset", "s", "2020-13-01")
    assert ended.exit_code == 2 and "POSITION" in ended.err
    assert ctl("stream_offset", "no such stream", "first").exit_code == 5
    ctl.done("declare_queue", "q")
    ended = ctl("stream_offset", "q", "first")
    assert ended.exit_code == 1 and "queue 'q' is not a stream" in ended.err


def test_consumer_groups_of_streams_are_listed_reset_and_deleted(ctl: Ctl) -> None:
    ctl.done("declare_queue", "s", "--type", "stream")
    publish(ctl, "s", "a", "b", "c")
    assert ctl.rows("list_stream_groups") == []
    for group, position in (("a", "1"), ("b/c", "next"), ("d", "2020-01-31T08:00")):
        done = ctl.done("reset_stream_group", "s", group, position)
        assert done == f'Reset group "{group}" of stream "s" in vhost "{ctl.vhost}"\n'
    listed = [tuple(row.values()) for row in ctl.rows("list_stream_groups", "queue", "name", "committed_offset", "lag")]
    assert listed == [("s", "a", 1, 2), ("s", "b/c", 3, 0), ("s", "d", 0, 3)]
    assert ctl.rows("list_stream_groups") == [
        {"queue": "s", "name": name, "committed_offset": offset, "lag": lag, "consumers": 0}
        for _, name, offset, lag in listed
    ]
    ctl.done("delete_stream_group", "s", "b/c")
    ctl.done("reset_stream_group", "s", "a", "last")
    assert [(row["name"], row["committed_offset"]) for row in ctl.rows("list_stream_groups")] == [("a", 2), ("d", 0)]
    assert ctl("delete_stream_group", "s", "b/c").exit_code == 5
    assert ctl("reset_stream_group", "no such stream", "a", "0").exit_code == 5
    assert ctl("reset_stream_group", "s", "a", "bogus").exit_code == 1


def test_drains_are_listed_released_and_deleted(ctl: Ctl, broker_url: str) -> None:
    api = Api(urlsplit(broker_url).port or 0)
    ctl.done("declare_queue", "q")
    publish(ctl, "q", "a", "b", "c")
    assert ctl.rows("list_drains") == []
    path = f"/warren/drains/{quote(ctl.vhost, safe='')}/q/spark%2F1"
    epoch = api.post(f"{path}/open", {"owner": "me"}).json["epoch"]
    api.post(f"{path}/claim", {"epoch": epoch, "after": 0, "max_rows": 2})
    claimed = {"queue": "q", "name": "spark/1", "claimed": 2, "epoch": epoch, "owner": "me"}
    assert ctl.rows("list_drains") == [claimed]
    ended = ctl("delete_drain", "q", "spark/1")
    assert ended.exit_code == 1 and "2 messages are claimed" in ended.err
    said = f'Released 2 messages of drain "spark/1" of queue "q" in vhost "{ctl.vhost}"\n'
    assert ctl.done("release_drain", "q", "spark/1") == said
    assert payloads(ctl, "q") == ["c", "a", "b"]
    assert json.loads(ctl.done("release_drain", "q", "spark/1", "--formatter", "json")) == {"released": 0}
    assert ctl.done("delete_drain", "q", "spark/1") == f'Deleted drain "spark/1" of queue "q" in vhost "{ctl.vhost}"\n'
    assert ctl.rows("list_drains") == []
    for command in ("release_drain", "delete_drain"):
        assert ctl(command, "q", "spark/1").exit_code == 5
    epoch = api.post(f"{path}/open", {"lease_s": 600}).json["epoch"]
    assert ctl.rows("list_drains", "name", "lease_s") == [{"name": "spark/1", "lease_s": 600}]
    api.post(f"{path}/claim", {"epoch": epoch, "after": 0, "max_rows": 2})
    ctl.done("delete_drain", "q", "spark/1", "--discard")
    assert payloads(ctl, "q") == ["b"]
    api.close()


def test_super_streams_are_added_listed_and_deleted(ctl: Ctl) -> None:
    done = ctl.done("add_super_stream", "orders", "--max-age", "P1DT1H", "--max-length-bytes", "20gb")
    assert done == f'Added super stream "orders" in vhost "{ctl.vhost}"\n'
    ctl.done("add_super_stream", "one", "--partitions", "1", "--type", "direct", "--max-age", "7D")
    ctl.done("add_super_stream", "keys", "--routing-keys", "emea,apac", "--stream-max-segment-size-bytes", "1mib")
    assert ctl.rows("list_super_streams") == [
        {"name": "keys", "type": "direct", "partition_count": 2},
        {"name": "one", "type": "direct", "partition_count": 1},
        {"name": "orders", "type": "x-super-stream", "partition_count": 3},
    ]
    stream = {"x-queue-type": "stream"}
    assert [row["arguments"] for row in ctl.rows("list_super_streams", "arguments")] == [
        stream | {"x-stream-max-segment-size-bytes": 1 << 20},
        stream | {"x-max-age": "7D"},
        stream | {"x-max-age": "90000s", "x-max-length-bytes": 20_000_000_000},
    ]
    queues = [row["name"] for row in ctl.rows("list_queues", "name")]
    assert queues == ["keys-apac", "keys-emea", "one-0", "orders-0", "orders-1", "orders-2"]
    ended = ctl("add_super_stream", "orders", "--partitions", "4")
    assert ended.exit_code == 1 and "received '4' but current is '3'" in ended.err
    for name in ("orders", "keys"):
        assert ctl.done("delete_super_stream", name) == f'Deleted super stream "{name}" in vhost "{ctl.vhost}"\n'
        assert ctl("delete_super_stream", name).exit_code == 5
    assert [row["name"] for row in ctl.rows("list_queues", "name")] == ["one-0"]


@pytest.mark.parametrize(
    "options",
    [
        ("--partitions", "2", "--binding-keys", "a,b"),
        ("--partitions", "many"),
        ("--max-age", "P"),
        ("--max-age", "P1DT"),
        ("--max-age", "soon"),
        ("--max-length-bytes", "20 quarts"),
        ("--stream-max-segment-size-bytes", "x"),
    ],
)
def test_a_super_stream_cannot_be_added_with_these_options(ctl: Ctl, options: tuple[str, ...]) -> None:
    assert ctl("add_super_stream", "orders", *options).exit_code == 2
    assert ctl.rows("list_super_streams") == []


@pytest.mark.parametrize(
    ("given", "seconds"), [("PT10M30S", 630), ("P5DT8H", 460_800), ("P1Y2M3W", 38_534_400), ("PT0S", 0)]
)
def test_ages_may_be_iso_durations(ctl: Ctl, given: str, seconds: int) -> None:
    ended = ctl("add_super_stream", "orders", "--partitions", "1", "--max-age", given)
    if seconds:
        (row,) = ctl.rows("list_super_streams", "arguments")
        assert row["arguments"]["x-max-age"] == f"{seconds}s"
    else:
        assert ended.exit_code == 1 and "invalid_max_age" in ended.err


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        (["publish", "-x", "nope", "-k", "k", "m"], "exchange 'nope' in vhost '{vhost}'"),
        (["set_permissions", "nobody", ".*", ".*", ".*"], 'user "nobody", or vhost "{vhost}"'),
        (["clear_permissions", "nobody"], 'permissions of user "nobody" in vhost "{vhost}"'),
        (["clear_parameter", "shovel", "nope"], 'parameter of shovel "nope" in vhost "{vhost}"'),
        (["-p", "nope", "set_permissions", "guest", ".*", ".*", ".*"], 'vhost "nope"'),
        (["move", "there", "--to-queue", "nope"], "queue 'nope' in vhost '{vhost}'"),
        (["route", "nope", "k"], "exchange 'nope' in vhost '{vhost}'"),
        (["get", "nope"], "queue 'nope' in vhost '{vhost}'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_a_command_names_and_is_not_there_is_told(ctl: Ctl, line: list[str], missing: str) -> None:
    ctl.done("declare_queue", "there")
    ended = ctl(*line)
    assert (ended.exit_code, ended.err) == (5, f"warren ctl: not found: {missing.format(vhost=ctl.vhost)}\n")


def test_what_is_no_management_api_is_told_from_what_is_not_there(ctl: Ctl, broker_url: str) -> None:
    ended = ctl("-u", f"{broker_url}/foo", "status")
    assert (ended.exit_code, ended.err) == (3, f"warren ctl: no management API at {broker_url}/foo/api/\n")
