"""Options of the reader: defaults, aliases, and what is refused; options.py (1), (2), (3)."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from warren.spark_bridge.options import (
    CONNECTION_OPTIONS,
    FIRST,
    NEXT,
    READ_OPTIONS,
    OptionError,
    Place,
    ReadOptions,
    connection_of,
    read_options,
)
from warren.spark_bridge.schema import COLUMN_NAMES


def parsed(**given: Any) -> ReadOptions:
    """Return options with a subscription; `streaming`: the purpose."""
    streaming = given.pop("streaming", None)
    texts = {"subscribe": "orders"} | {name.replace("_", "."): str(value) for name, value in given.items()}
    return read_options(texts, streaming=streaming, environment={})


def test_a_queue_is_all_that_has_to_be_named() -> None:
    options = parsed()
    assert options.queues == ("orders",)
    assert options.mode is None and options.start is None and options.end is None
    assert options.max_rows == 1_000_000 and options.max_bytes is None and options.min_rows is None
    assert options.max_delay_s == 900 and options.partition_bytes == 64 << 20 and options.min_partitions is None
    assert options.columns == COLUMN_NAMES and options.headers_format == "map" and options.body_as == "binary"
    assert options.fail_on_data_loss and options.store_offsets and options.pushdown is None
    assert options.connection.url == "http://localhost:15672"
    assert (options.connection.username, options.connection.password) == ("guest", "guest")
    assert options.connection.vhost == "/"


@pytest.mark.parametrize("name", [*CONNECTION_OPTIONS, *READ_OPTIONS])
def test_an_option_with_a_letter_missing_is_refused_and_the_right_one_is_named(name: str) -> None:
    with pytest.raises(OptionError) as caught:
        parsed(**{name[:-1] + "_" if len(name) < 5 else name[:-1]: "1"})
    assert "unknown option" in str(caught.value)
    if len(name) > 5:
        assert f"did you mean {name}?" in str(caught.value)


def test_an_option_like_none_gets_no_hint() -> None:
    with pytest.raises(OptionError, match=r"^unknown option zzz$"):
        read_options({"subscribe": "q", "zzz": "x"}, environment={})


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("kafka.bootstrap.servers", "uri and managementUrl"),
        ("kafka.group.id", "consumerName"),
        ("kafka.ssl.truststore.location", "tls.caFile"),
        ("kafka.sasl.jaas.config", "username"),
        ("kafka.max.poll.records", "options of a Kafka client mean nothing here"),
        ("Topic", "subscribe"),
        ("kafkaConsumer.pollTimeoutMs", "here it is poll.timeoutMs"),
        ("maxFilesPerTrigger", "here it is maxOffsetsPerTrigger"),
        ("port", "uri and managementUrl"),
        ("virtualHost", "here it is vhost"),
        ("queueName", "here it is queue"),
        ("rabbitmq.queue.name", "here it is queue"),
        ("owner", "CREATE TEMPORARY VIEW"),
    ],
)
def test_options_of_other_sources_are_answered_with_what_they_are_here(name: str, instead: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_options({"subscribe": "q", name: "x"}, environment={})
    assert str(caught.value).startswith(f"unknown option {name}: ") and instead in str(caught.value)


def test_whoever_names_no_queue_is_told_of_tables_too() -> None:
    with pytest.raises(
        OptionError, match="subscribePattern and assign; to a table that CREATE TABLE makes Spark passes no options"
    ):
        read_options({}, environment={})


def test_a_path_is_refused_with_what_to_say_instead() -> None:
    with pytest.raises(OptionError, match="name the queue"):
        parsed(path="orders")


def test_names_and_words_are_compared_without_case() -> None:
    options = read_options({"SUBSCRIBE": "a", "STARTINGOFFSETS": "Earliest", "Mode": "LOG"}, environment={})
    assert options.queues == ("a",) and options.mode == "log"
    assert options.start is not None and options.start.everywhere == FIRST


def test_queue_is_another_word_for_subscribe_and_a_list_is_taken_apart() -> None:
    options = read_options({"queue": "a, b,a ,,c"}, environment={})
    assert options.queues == ("a", "b", "c")


@pytest.mark.parametrize(
    "given",
    [{}, {"subscribe": "a", "queue": "b"}, {"subscribe": "a", "subscribePattern": "b"}, {"subscribe": " , "}],
)
def test_what_to_read_is_said_once(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=r"subscribe|no queue"):
        read_options(given, environment={})


def test_a_pattern_has_to_be_a_regular_expression() -> None:
    assert read_options({"subscribePattern": "a.*"}, environment={}).pattern == "a.*"
    with pytest.raises(OptionError, match="subscribePattern"):
        read_options({"subscribePattern": "a("}, environment={})


def test_partitions_are_assigned_by_number() -> None:
    options = read_options({"assign": '{"orders": [1, 0, 1]}'}, environment={})
    assert options.assigned == {"orders": (0, 1)} and options.queues == ("orders",)


@pytest.mark.parametrize("text", ["orders", "[]", "{}", '{"a": 1}', '{"a": []}', '{"a": [-1]}', '{"a": [true]}'])
def test_an_assignment_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="assign"):
        read_options({"assign": text}, environment={})


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", FIRST),
        ("first", FIRST),
        ("latest", NEXT),
        ("next", NEXT),
        ("last", Place(word="last")),
        ("23", Place(offset=23)),
        ("1h", Place(word="1h")),
    ],
)
def test_a_place_for_all_queues(text: str, place: Place) -> None:
    options = parsed(startingOffsets=text)
    assert options.start is not None and options.start.of("any", 7) == place


def test_a_place_for_each_queue_and_partition() -> None:
    options = parsed(
        subscribe="a,b,c,d,s,w", startingOffsets='{"a": 23, "b": -2, "c": -1, "s": {"0": 5, "1": -2}, "w": "last"}'
    )
    start = options.start
    assert start is not None
    assert start.of("a", 0) == Place(offset=23)
    assert start.of("b", 0) == FIRST and start.of("c", 0) == NEXT
    assert start.of("s", 0) == Place(offset=5) and start.of("s", 1) == FIRST
    assert start.of("w", 0) == Place(word="last")
    with pytest.raises(OptionError, match="says nothing of queue 'd'"):
        start.of("d", 0)
    with pytest.raises(OptionError, match="says nothing of partition 2"):
        start.of("s", 2)


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1700000000000", 1_700_000_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
        ("2023-11-15T00:13:20.5+02:00", 1_700_000_000_500),
    ],
)
def test_a_time_is_a_number_or_iso_8601(text: str, time_ms: int) -> None:
    options = parsed(startingTimestamp=text)
    assert options.start is not None and options.start.of("q", 0) == Place(time_ms=time_ms)
    options = parsed(endingOffsetsByTimestamp=json.dumps({"orders": text}))
    assert options.end is not None and options.end.of("orders", 0) == Place(time_ms=time_ms)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("startingOffsets", "newest"),
        ("startingOffsets", "-1"),
        ("startingOffsets", "{"),
        ("startingOffsets", "{}"),
        ("startingOffsets", '{"a": -3}'),
        ("startingOffsets", '{"a": 1.5}'),
        ("startingOffsets", '{"a": true}'),
        ("startingOffsets", '{"a": {}}'),
        ("startingOffsets", '{"a": {"x": 1}}'),
        ("startingTimestamp", "yesterday"),
        ("startingOffsetsByTimestamp", '{"a": "x"}'),
        ("mode", "tail"),
        ("maxOffsetsPerTrigger", "0"),
        ("maxOffsetsPerTrigger", "many"),
        ("minPartitions", "-1"),
        ("maxBytesPerTrigger", "0"),
        ("targetPartitionBytes", "64x"),
        ("maxTriggerDelay", "soon"),
        ("includeHeaders", "yes"),
        ("headersFormat", "list"),
        ("bodyAs", "text"),
        ("columns", "offset,bodi"),
        ("columns", ","),
        ("pushdown", "maybe"),
        ("failOnDataLoss", "0"),
        ("consumerName", "a\nb"),
        ("snapshotTtl", "x"),
        ("claimTtl", "x"),
        ("failedBatches", "never"),
        ("fetch.retries", "-1"),
        ("managementUrl", "localhost:15672"),
        ("uri", "http://localhost"),
        ("uri", "amqp://localhost:port"),
    ],
)
def test_a_value_that_is_none_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(OptionError, match=name.replace(".", r"\.")):
        read_options({"subscribe": "orders", name: text}, environment={})


@pytest.mark.parametrize(
    ("text", "size"), [("5", 5), ("64m", 64 << 20), ("1 GB", 1 << 30), ("3k", 3072), ("7b", 7), ("2MB", 2 << 20)]
)
def test_sizes_have_units(text: str, size: int) -> None:
    assert parsed(maxBytesPerTrigger=text).max_bytes == size


@pytest.mark.parametrize(("text", "s"), [("500", 0.5), ("500ms", 0.5), ("30s", 30), ("15m", 900), ("2 h", 7200)])
def test_times_have_units(text: str, s: float) -> None:
    assert parsed(maxTriggerDelay=text, minOffsetsPerTrigger=1).max_delay_s == s


def test_columns_are_named_or_left_out() -> None:
    assert parsed(columns="offset, body,offset").columns == ("offset", "body")
    without = parsed(includeHeaders="false").columns
    assert set(COLUMN_NAMES) - set(without) == {"headers"}
    assert parsed(includeProperties="false").columns[-1] == "body"
    with pytest.raises(OptionError, match="columns and includeHeaders"):
        parsed(columns="body", includeHeaders="true")


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"mode": "drain"}, "consumerName"),
        ({"mode": "drain", "consumerName": "c", "startingOffsets": "earliest"}, "startingOffsets"),
        ({"mode": "drain", "consumerName": "c", "minOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger"),
        ({"mode": "drain", "consumerName": "c", "snapshotTtl": "5s"}, "snapshotTtl"),
        ({"mode": "log", "consumerName": "c", "claimTtl": "5s"}, "claimTtl"),
        ({"claimTtl": "5s"}, "claimTtl"),
        ({"mode": "snapshot", "endingTimestamp": "5"}, "endingTimestamp"),
        ({"mode": "log", "snapshotUnacked": "true"}, "snapshotUnacked"),
        ({"startingOffsets": "earliest", "startingTimestamp": "5"}, "only one of them"),
        ({"startingOffsets": "9", "endingOffsets": "8"}, "the end is before the beginning"),
        ({"startingTimestamp": "9", "endingTimestamp": "8"}, "the end is before the beginning"),
        ({"startingOffsetsByTimestampStrategy": "latest"}, "no starting time"),
        ({"minOffsetsPerTrigger": "11", "maxOffsetsPerTrigger": "10"}, "more than maxOffsetsPerTrigger"),
        ({"endingOffsets": "earliest"}, "has no rows"),
        ({"maxTriggerDelay": "5s"}, "maxTriggerDelay: needs minOffsetsPerTrigger"),
        ({"startingOffsets": '{"orders": 5, "other": 5}'}, "startingOffsets: queue 'other' is not read"),
        ({"endingOffsetsByTimestamp": '{"other": 5}'}, "endingOffsetsByTimestamp: queue 'other' is not read"),
        ({"password": "x", "passwordFile": "/x"}, "passwordFile"),
    ],
)
def test_options_that_mean_nothing_together_are_refused(given: dict[str, str], word: str) -> None:
    with pytest.raises(OptionError, match=word):
        read_options({"subscribe": "orders"} | given, environment={})


def test_a_pattern_cannot_be_drained() -> None:
    with pytest.raises(OptionError, match="subscribePattern"):
        read_options({"subscribePattern": ".*", "mode": "drain", "consumerName": "c"}, environment={})


@pytest.mark.parametrize(
    ("streaming", "given", "word"),
    [
        (False, {"mode": "drain", "consumerName": "c"}, "availableNow"),
        (False, {"startingOffsets": "latest"}, "cannot begin at the latest"),
        (False, {"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger: is for streaming queries only"),
        (False, {"maxBytesPerTrigger": "5"}, "maxBytesPerTrigger: is for streaming queries only"),
        (False, {"storeOffsets": "true"}, "storeOffsets: is for streaming queries only"),
        (True, {"snapshotTtl": "5s"}, "snapshotTtl: is for batches only"),
        (False, {"startingOffsets": '{"orders": -1}'}, "cannot begin at the latest"),
        (True, {"mode": "snapshot"}, "batch"),
        (True, {"endingOffsets": "latest"}, "for batches only"),
        (True, {"endingTimestamp": "5"}, "for batches only"),
    ],
)
def test_what_only_a_batch_or_only_a_stream_can_do(streaming: bool, given: dict[str, str], word: str) -> None:
    with pytest.raises(OptionError, match=word):
        parsed(streaming=streaming, **given)
    parsed(streaming=not streaming, **given)


def test_a_drain_takes_no_more_than_256_mb_at_once() -> None:
    assert parsed(mode="drain", consumerName="c").max_bytes == 256 << 20
    assert parsed(mode="drain", consumerName="c", maxBytesPerTrigger="1g").max_bytes == 1 << 30


@pytest.mark.parametrize(("given", "seconds"), [("10m", 600), ("1500", 2), ("30d", 2592000), ("", None)])
def test_claims_are_kept_for_so_long_without_a_sign_of_the_query(given: str, seconds: int | None) -> None:
    assert parsed(mode="drain", consumerName="c", claimTtl=given).claim_ttl_s == seconds


@pytest.mark.parametrize("given", ["0", "0s", "31d", "2592001s"])
def test_claims_are_kept_for_a_second_at_least_and_a_month_at_most(given: str) -> None:
    with pytest.raises(OptionError, match="claimTtl: must be a time from 1s to 30d"):
        parsed(mode="drain", consumerName="c", claimTtl=given)


def test_the_uri_is_read_as_rabbitmq_reads_it() -> None:
    connection = connection_of({"uri": "amqp://ann:p%40ss@broker.example:5673/%2Fsales"}, {})
    assert connection.url == "http://broker.example:15672"
    assert (connection.username, connection.password, connection.vhost) == ("ann", "p@ss", "/sales")
    assert connection_of({"uri": "amqp://h"}, {}).vhost == "/"
    assert connection_of({"uri": "amqp://h/a"}, {}).vhost == "a"
    secure = connection_of({"uri": "amqps://[::1]/?cacertfile=/ca.pem&verify=verify_none"}, {})
    assert secure.url == "https://[::1]:15671" and secure.ca_file == "/ca.pem" and secure.insecure


def test_options_stand_above_the_uri() -> None:
    given = {"uri": "amqp://a:b@h/v", "username": "u", "password": "p", "vhost": "w", "host": "i"}
    connection = connection_of(given, {})
    assert (connection.username, connection.password, connection.vhost) == ("u", "p", "w")
    assert connection.url == "http://i:15672"
    assert connection_of(given | {"managementUrl": "https://m:1"}, {}).url == "https://m:1"


def test_the_environment_is_used_where_nothing_is_given() -> None:
    environment = {"AMQP_URI": "amqp://e:f@env/v", "WARREN_MANAGEMENT_URL": "http://env:1234"}
    connection = connection_of({}, environment)
    assert connection.url == "http://env:1234" and connection.username == "e" and connection.vhost == "v"
    assert connection_of({"uri": "amqp://given"}, environment).url == "http://given:15672"
    assert connection_of({"host": "given"}, environment).url == "http://given:15672"


def test_a_wrong_uri_of_the_environment_is_named_and_not_shown() -> None:
    with pytest.raises(OptionError, match="AMQP_URI") as caught:
        connection_of({}, {"AMQP_URI": "ampq://u:secret@h"})
    assert "secret" not in str(caught.value)


def test_the_password_is_read_from_its_file_and_shown_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("s3cret\n")
    options = parsed(passwordFile=str(file))
    assert options.connection.password is None
    read = options.with_password()
    assert read.connection.password == "s3cret"
    assert "s3cret" not in repr(read)
    file.unlink()
    assert pickle.loads(pickle.dumps(read)).connection.client().username == "guest"
    with pytest.raises(OptionError, match="passwordFile"):
        options.with_password()
