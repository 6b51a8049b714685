"""The memory of a queue or an exchange of accepted messages: keys, producers, expiry, and restarts."""

from __future__ import annotations

from unittest import mock

import pytest
from durable_harness import DurableHarness
from engine_harness import content_frames, exchange_declare
from mypy_extensions import i64
from seen_keys_view import maybe_sequence, maybe_until_ms, producers
from stored_log import StoredLog, entries

from warren.amqp.declarations import ExchangeDeclaration
from warren.amqp.errors import ChannelException
from warren.amqp.field_table import Table, Timestamp, encode_table
from warren.msgstore.log.message import Envelope, Message
from warren.msgstore.log.message_log import MessageLog
from warren.queues import record_lane, seen_keys
from warren.queues.lanes import DELAYED, PRODUCERS, SEEN_KEYS
from warren.queues.rules import QueueRules
from warren.queues.seen_keys import SeenKeys, exchange_rules, key_bytes
from warren.queues.timers import NEVER, WORKED_MAX, Timer, TimerQueue

interpreted = pytest.mark.skipif(seen_keys.__file__.endswith(".so"), reason="a compiled constant cannot be replaced")


def rules(size: int = 100, ttl_ms: int = -1, header: str = "id") -> QueueRules:
    made = QueueRules()
    made.dedup = True
    made.dedup_header = header
    made.dedup_size = size
    made.dedup_ttl_ms = ttl_ms
    return made


def message(headers: Table, *, persistent: bool = True, body: bytes = b"") -> Message:
    """Return a message with these headers, as it comes from a channel."""
    content = content_frames(1, body, {"headers": encode_table(headers)} if headers else {})
    return Message(Envelope("", "q"), content, 1, len(body), len(content), persistent)


class Remembered:
    """The seen keys of a durable queue, in a log of small pages."""

    def __init__(self, size: int = 100, ttl_ms: int = -1, stored: StoredLog | None = None) -> None:
        self.stored = stored or StoredLog()
        self.timers = TimerQueue()
        self.rules = rules(size, ttl_ms)
        self.seen = self._new(self.stored.log)

    def _new(self, log: MessageLog) -> SeenKeys:
        return SeenKeys(log, self.timers, "/", "q", True, self.rules, SEEN_KEYS, PRODUCERS)

    def publish(self, headers: Table, *, persistent: bool = True) -> bool:
        """Tell whether such a message is let in."""
        published = message(headers, persistent=persistent)
        keys = self.seen.keys_of(published)
        if keys is None:
            return True
        if self.seen.drops(keys, published):
            return False
        self.seen.add(keys, published, published.persistent)
        return True

    def key(self, key: object, *, persistent: bool = True) -> bool:
        return self.publish({"id": key}, persistent=persistent)

    def number(self, producer: str, sequence: int, *, persistent: bool = True) -> bool:
        return self.publish({"x-producer": producer, "x-seq": sequence}, persistent=persistent)

    def keys(self) -> list[str]:
        return [key for key, _ in self.seen.oldest(1000)]

    def pass_time(self, ms: int) -> None:
        self.stored.log.now_ms += ms
        self.timers.run_due(self.stored.log.now_ms)

    def restart(self, *, checkpoint: bool = False) -> MessageLog:
        """Write everything and restart from the disk, with the log that recovery made."""
        self.stored.rest()
        log = self.stored.restarted(self.stored.checkpoint() if checkpoint else None)
        log.now_ms = self.stored.log.now_ms
        log.written_lsn = log.next_lsn = self.stored.log.next_lsn
        self.timers = TimerQueue()
        self.seen = self._new(log)
        for index in log.indexes.values():
            assert self.seen.lacks(index.lane)
            self.seen.restore(index)
            assert not self.seen.lacks(index.lane)
        while self.seen.is_restoring():
            jobs, log.read_jobs = log.read_jobs, []
            assert jobs, "nothing is read, and it waits"
            for job in jobs:
                job.carry_out(self.stored.disk.files)
                job.finished()
        self.seen.check_invariants()
        return log

    def records(self) -> int:
        """Return how many records are live in the log."""
        self.stored.rest()
        return sum(len(live) for live in entries(self.stored.log, self.stored.disk).values())


# --- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("a", b"a", True),
        ("a", "b", False),
        ("1", 1, False),
        (1, 1 << 40, False),
        ("", b"", True),
        ("é" * 200, ("é" * 200).encode(), True),
        ("x" * 300, "x" * 301, False),
        ("x" * 254, "x" * 255, False),
        (-1, 1, False),
    ],
)
def test_texts_bytes_and_integers_are_keys(one: object, other: object, same: bool) -> None:
    assert key_bytes(one)
    assert (key_bytes(one) == key_bytes(other)) == same
    assert len(key_bytes(one)) <= seen_keys.KEY_MAX_BYTES


@pytest.mark.parametrize("value", [None, True, False, 1.5, Timestamp(5), ["a"], {"a": 1}])
def test_other_values_are_no_keys(value: object) -> None:
    assert key_bytes(value) == b""
    remembered = Remembered()
    assert remembered.key(value)
    assert remembered.key(value)


def test_the_width_of_an_integer_does_not_matter() -> None:
    seen = Remembered().seen
    found = []
    for encoded in (b"b\x05", b"s\x00\x05", b"I\0\0\0\x05", b"l" + bytes(7) + b"\x05"):
        table = b"\x02id" + encoded
        content = content_frames(1, b"", {"headers": len(table).to_bytes(4, "big") + table})
        keys = seen.keys_of(Message(Envelope("", ""), content, 1, 0, len(content), True))
        assert keys is not None
        found.append(keys.key)
    assert found == [key_bytes(5)] * 4


def test_a_key_is_looked_for_in_the_header_frame_of_a_message_in_pieces() -> None:
    whole = message({"id": "a"}, body=b"x" * 100)
    whole.pieces = [whole.content[:-108], whole.content[-108:]]
    whole.content = b""
    keys = Remembered().seen.keys_of(whole)
    assert keys is not None
    assert keys.key == key_bytes("a")
    assert whole.pieces is not None, "joined for nothing"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"other": "id"},
        {"x-producer": "p"},
        {"x-seq": 1},
        {"x-producer": "p", "x-seq": "1"},
        {"x-producer": 1, "x-seq": 1},
        {"x-producer": "p", "x-seq": True},
        {"x-producer": "p", "x-seq": Timestamp(1)},
    ],
)
def test_a_message_without_key_and_number_is_nobodys_repetition(headers: Table) -> None:
    remembered = Remembered()
    assert remembered.seen.keys_of(message(headers)) is None
    assert remembered.publish(headers)
    assert remembered.publish(headers)


def test_what_was_seen_is_dropped_and_counted() -> None:
    remembered = Remembered()
    assert [remembered.key(key) for key in ("a", "b", "a", 7, "b", 7, "7")] == [1, 1, 0, 1, 0, 0, 1]
    assert remembered.seen.dropped == 3
    assert remembered.keys() == ["a", "b", "7", "7"]
    remembered.seen.check_invariants()


def test_the_oldest_key_goes_first_and_a_repetition_does_not_prolong_it() -> None:
    remembered = Remembered(size=3)
    for key in "abc":
        remembered.key(key)
    assert not remembered.key("a")
    assert remembered.key("d")
    assert remembered.keys() == ["b", "c", "d"]
    assert remembered.key("a")
    assert remembered.keys() == ["c", "d", "a"]
    remembered.seen.check_invariants()
    assert remembered.records() == 3


def test_a_key_is_remembered_for_its_time_from_acceptance_on() -> None:
    remembered = Remembered(ttl_ms=1000)
    assert remembered.key("a")
    assert maybe_until_ms(remembered.seen, "a") == 1000
    remembered.pass_time(999)
    assert not remembered.key("a")
    remembered.pass_time(1)
    assert maybe_until_ms(remembered.seen, "a") is None
    assert remembered.key("a")
    assert remembered.seen.count() == 1
    assert maybe_until_ms(remembered.seen, "a") == 2000
    remembered.seen.check_invariants()


def test_expired_keys_leave_memory_and_log_although_nobody_publishes() -> None:
    remembered = Remembered(ttl_ms=1000)
    for key in range(10):
        remembered.key(key)
        remembered.pass_time(10)
    assert remembered.records() == 10
    assert remembered.timers.next_ms() == 1000 + seen_keys.EXPIRE_EVERY_MS
    remembered.pass_time(1000 + seen_keys.EXPIRE_EVERY_MS)
    assert remembered.seen.count() == 0
    assert remembered.records() == 0
    assert remembered.timers.next_ms() == NEVER


@interpreted
def test_many_expired_keys_go_a_part_at_a_time() -> None:
    remembered = Remembered(ttl_ms=10)
    for key in range(10):
        remembered.key(key)
    with mock.patch.object(seen_keys, "EXPIRE_MAX", 4):
        remembered.pass_time(5000)
        assert remembered.seen.count() == 6
        assert remembered.timers.next_ms() <= remembered.stored.log.now_ms
        remembered.pass_time(0)
        remembered.pass_time(0)
    assert remembered.seen.count() == 0


def test_a_clock_that_goes_back_prolongs_and_one_that_jumps_ahead_ends() -> None:
    remembered = Remembered(ttl_ms=1000)
    remembered.stored.log.now_ms = 100_000
    remembered.key("a")
    remembered.pass_time(-50_000)
    assert not remembered.key("a")
    assert remembered.key("b")
    remembered.pass_time(2000)
    assert remembered.key("b"), "its time is over although one before it is not"
    assert not remembered.key("a")
    remembered.pass_time(1 << 40)
    assert remembered.key("a")
    remembered.seen.check_invariants()


# --- producers --------------------------------------------------------------------------------------------------------


def test_a_number_that_is_not_larger_than_the_highest_comes_again() -> None:
    remembered = Remembered()
    numbers = [5, 5, 4, 6, 9, 8, 9, 10, -1]
    assert [remembered.number("p", number) for number in numbers] == [1, 0, 0, 1, 1, 0, 0, 1, 0]
    assert remembered.number("other", -1)
    assert maybe_sequence(remembered.seen, "p") == 10
    assert maybe_sequence(remembered.seen, b"other") == -1
    assert maybe_sequence(remembered.seen, "nobody") is None
    assert remembered.seen.producer_count() == 2


@pytest.mark.parametrize("sequence", [-(1 << 63), -1, 0, (1 << 63) - 1])
def test_all_numbers_that_a_header_can_have_are_kept(sequence: int) -> None:
    remembered = Remembered()
    assert remembered.number("p", sequence)
    assert not remembered.number("p", sequence)
    remembered.restart()
    assert maybe_sequence(remembered.seen, "p") == sequence


def test_a_producer_has_one_record_however_much_it_publishes() -> None:
    remembered = Remembered()
    for number in range(50):
        assert remembered.number("p", number)
    remembered.stored.rest()
    assert remembered.stored.disk.written_bytes < 500, "what was replaced in the same batch is not written"
    for number in range(50, 100):
        assert remembered.number("p", number)
        remembered.stored.rest()
    assert remembered.records() == 1
    (index,) = remembered.stored.log.indexes.values()
    assert index.next_number == 1
    remembered.seen.check_invariants()


def test_the_producer_that_published_longest_ago_is_forgotten() -> None:
    remembered = Remembered(size=3)
    for producer in "abc":
        remembered.number(producer, 1)
    remembered.number("a", 2)
    assert not remembered.number("b", 1), "it has published, in vain"
    assert remembered.number("d", 1)
    assert maybe_sequence(remembered.seen, "c") is None
    assert remembered.seen.producer_count() == 3
    remembered.seen.check_invariants()
    assert remembered.records() == 3


def test_the_record_of_a_forgotten_producer_is_another_ones() -> None:
    remembered = Remembered(size=3)
    for turn in range(4):
        for number, producer in enumerate("abcdef"):
            remembered.number(f"{producer}{turn}", number, persistent=number != 2)
            remembered.seen.check_invariants()
        remembered.stored.rest()
    for producer in "xy":
        assert remembered.number(producer, 1)
        remembered.seen.check_invariants()
    (index,) = remembered.stored.log.indexes.values()
    assert index.next_number <= 4, "three, and the one that goes when the fourth comes"
    remembered.restart()
    assert producers(remembered.seen) == [("f3", 5), ("x", 1), ("y", 1)]


def test_the_order_of_producers_survives_restarts() -> None:
    remembered = Remembered(size=3)
    for producer in "abca":
        remembered.number(producer, 1 if maybe_sequence(remembered.seen, producer) is None else 2)
    remembered.restart()
    assert producers(remembered.seen) == [("b", 1), ("c", 1), ("a", 2)]
    assert remembered.seen._producers._serial == 4, "what is stored from now on is later"


def test_what_is_written_is_not_kept() -> None:
    remembered = Remembered()
    remembered.key("a")
    remembered.number("p", 1)
    remembered.stored.rest()
    assert not remembered.seen._keys._in_batch
    assert not remembered.seen._producers._in_batch


def test_key_and_number_are_looked_at_both() -> None:
    remembered = Remembered()
    both: Table = {"id": "a", "x-producer": "p", "x-seq": 5}
    assert remembered.publish(both)
    assert not remembered.publish(both | {"x-seq": 6})
    assert maybe_sequence(remembered.seen, "p") == 5, "of a repetition nothing is remembered"
    assert not remembered.publish(both | {"id": "b"})
    assert remembered.keys() == ["a"]
    assert remembered.publish({"id": "b", "x-producer": "p", "x-seq": 6})


# --- what is stored ---------------------------------------------------------------------------------------------------


def test_confirms_wait_for_what_is_stored() -> None:
    remembered = Remembered()
    transient, stored, repetition = (message({"id": key}) for key in ("a", "b", "b"))
    transient.persistent = False
    for each in (transient, stored, repetition):
        keys = remembered.seen.keys_of(each)
        assert keys is not None
        if not remembered.seen.drops(keys, each):
            remembered.seen.add(keys, each, each.persistent)
    assert [each.awaits_batch for each in (transient, stored, repetition)] == [False, True, True]
    assert remembered.records() == 1


def test_nothing_is_stored_for_what_does_not_survive_a_restart() -> None:
    log = StoredLog()
    seen = SeenKeys(log.log, TimerQueue(), "/", "q", False, rules(), SEEN_KEYS, PRODUCERS)
    for _ in range(2):
        published = message({"id": "a", "x-producer": "p", "x-seq": 1})
        keys = seen.keys_of(published)
        assert keys is not None
        if not seen.drops(keys, published):
            seen.add(keys, published, published.persistent)
        assert not published.awaits_batch
    assert seen.dropped == 1
    assert log.log.indexes == {}


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_restart_brings_everything_back_in_order(checkpoint: bool) -> None:
    remembered = Remembered(size=30)
    for key in range(50):
        assert remembered.key(f"key {key}")
        if key % 7 == 0:
            remembered.stored.rest()
    for producer in range(40):
        remembered.number(f"p{producer}", producer)
    remembered.number("p20", 99)
    assert remembered.seen._keys.forget(key_bytes("key 33"))
    expected = [f"key {key}" for key in range(20, 50) if key != 33]
    log = remembered.restart(checkpoint=checkpoint)
    assert remembered.keys() == expected
    assert remembered.seen.producer_count() == 30
    assert maybe_sequence(remembered.seen, "p20") == 99
    assert not remembered.number("p39", 39)
    assert remembered.key("key 33")
    assert remembered.key("new")
    assert remembered.keys() == [*expected[1:], "key 33", "new"], "the oldest has to go"
    for producer in range(29):
        assert remembered.number(f"new {producer}", 1)
    assert maybe_sequence(remembered.seen, "p39") == 39, "it had published last"
    assert maybe_sequence(remembered.seen, "p20") is None
    remembered.seen.check_invariants()
    log.check_invariants()


@interpreted
def test_keys_on_pages_that_the_log_has_are_restored_and_go_one_by_one() -> None:
    remembered = Remembered(size=40)
    with mock.patch.object(seen_keys, "PAGED_FROM", 0), mock.patch.object(record_lane, "RESTORE_MAX", 10):
        for key in range(60):
            remembered.key(key)
            if key % 3 == 0:
                remembered.stored.rest()
        remembered.stored.rest()
        (index,) = remembered.stored.log.indexes.values()
        assert sum(page is not None and not page.dirty for page in index.pages) > 5
        log = remembered.restart(checkpoint=True)
        (index,) = log.indexes.values()
        assert remembered.keys() == [str(key) for key in range(20, 60)]
        for key in range(100, 140):
            assert remembered.key(key)
        remembered.seen.check_invariants()
        log.check_invariants()


def test_what_expired_meanwhile_does_not_come_back() -> None:
    remembered = Remembered(ttl_ms=1000)
    remembered.key("a")
    remembered.pass_time(500)
    remembered.key("b")
    remembered.stored.log.now_ms += 600
    log = remembered.restart()
    assert remembered.keys() == ["b"]
    assert maybe_until_ms(remembered.seen, "b") == 1500
    assert sum(int(index.live_count) for index in log.indexes.values()) == 1
    log.now_ms = 1499
    assert not remembered.key("b")
    log.now_ms = 1500
    assert remembered.key("b")


def test_what_came_back_expires_although_nobody_publishes() -> None:
    remembered = Remembered(ttl_ms=1000)
    remembered.key("a")
    log = remembered.restart()
    log.now_ms = remembered.timers.next_ms()
    for _ in range(2):
        remembered.timers.run_due(log.now_ms)
        log.now_ms += 1000 + seen_keys.EXPIRE_EVERY_MS
    assert remembered.seen.count() == 0


def test_transient_messages_leave_nothing_for_the_next_process() -> None:
    remembered = Remembered()
    for persistent in (True, False):
        assert remembered.key("stored" if persistent else "not stored", persistent=persistent)
        assert remembered.number("p", 1 if persistent else 2, persistent=persistent)
        assert remembered.number("q" if persistent else "r", 1, persistent=persistent)
    assert maybe_sequence(remembered.seen, "p") == 2
    remembered.restart()
    assert remembered.keys() == ["stored"]
    assert maybe_sequence(remembered.seen, "p") == 1
    assert maybe_sequence(remembered.seen, "r") is None


def test_a_damaged_record_is_reported_and_its_key_is_not_known() -> None:
    remembered = Remembered()
    for key in "abc":
        remembered.key(key)
        remembered.number(key, 1)
    remembered.stored.rest()
    live = entries(remembered.stored.log, remembered.stored.disk)
    assert len(live) == 2
    for records in live.values():
        lsn = records[1][0]
        base = max(base for base in remembered.stored.disk.segments if base <= lsn)
        remembered.stored.disk.segments[base][lsn - base + 20] ^= 1
    log = remembered.restart(checkpoint=True)
    assert remembered.keys() == ["a", "c"]
    assert [damage.queue for damage in log.damage.reports] == ["q", "q"]
    assert remembered.key("b")
    assert maybe_sequence(remembered.seen, "b") is None
    assert remembered.number("b", 1)
    remembered.seen.check_invariants()


@pytest.mark.parametrize("size", [100, 3], ids=["with room", "with too many"])
def test_of_producers_that_damage_has_brought_back_the_latest_records_count_and_the_others_go(size: int) -> None:
    remembered = Remembered(size)
    for producer in "abc":
        remembered.number(producer, 5)
    lane = remembered.seen._producers
    for name in ("a", "forgotten long ago") if size == 3 else ("a",):
        earlier = (4).to_bytes(8, "big") + (0).to_bytes(8, "big")
        lane.put(lane.next_number, earlier + key_bytes(name), 0)
        lane.next_number += 1
    log = remembered.restart()
    assert producers(remembered.seen) == [("a", 5), ("b", 5), ("c", 5)]
    assert [int(index.live_count) for index in log.indexes.values()] == [3]


def test_a_deleted_queue_leaves_no_keys() -> None:
    remembered = Remembered(ttl_ms=1000)
    remembered.key("a")
    remembered.number("p", 1)
    remembered.stored.rest()
    remembered.key("b")
    remembered.seen.close()
    assert remembered.records() == 0
    assert remembered.stored.restarted().indexes == {}
    assert remembered.timers.next_ms() == NEVER


def test_an_operator_can_look_up_and_forget() -> None:
    remembered = Remembered()
    long = "x" * 1000
    for key in ("a", 5, long):
        remembered.key(key)
    remembered.number("p", 3)
    seen = remembered.seen
    assert seen.count() == 3
    assert maybe_until_ms(seen, 5) == maybe_until_ms(seen, long) == NEVER
    assert maybe_until_ms(seen, "5") is None
    assert [key for key, _ in seen.oldest(2)] == ["a", "5"]
    assert remembered.keys()[2].startswith("sha256:")
    remembered.stored.rest()
    remembered.key("unwritten")
    assert seen.clear() == 5
    assert (seen.count(), seen.producer_count()) == (0, 0)
    seen.check_invariants()
    remembered.restart()
    assert (remembered.seen.count(), remembered.seen.producer_count()) == (0, 0)
    assert remembered.key("a")
    assert remembered.number("p", 1)


@pytest.mark.parametrize("kind", ["key", "number"])
def test_what_is_forgotten_at_once_is_taken_apart_in_later_turns(kind: str) -> None:
    remembered = Remembered(size=1000)
    for number in range(1000):
        if kind == "key":
            remembered.key(number, persistent=False)
        else:
            remembered.number(f"p{number}", 1, persistent=False)
    reclamation = remembered.stored.log.reclamation
    assert reclamation.is_empty()
    assert remembered.seen.clear() == 1000
    reclamation.take_apart(1)
    assert not reclamation.is_empty()
    reclamation.take_apart(1 << 40)
    assert reclamation.is_empty()
    assert remembered.number("p1", 1) and remembered.key(1)
    remembered.seen.check_invariants()


@pytest.mark.parametrize("finished", [0, 1, 2, 3])
def test_what_is_forgotten_while_it_is_read_after_a_restart_does_not_come_back(finished: int) -> None:
    remembered = Remembered(size=1000)
    for number in range(10):
        remembered.key(number)
        remembered.number(f"p{number}", 1)
    stored = remembered.stored
    stored.rest()
    log = stored.restarted(stored.checkpoint())
    log.now_ms = stored.log.now_ms
    log.written_lsn = log.next_lsn = stored.log.next_lsn
    seen = remembered._new(log)
    for index in log.indexes.values():
        seen.restore(index)
    assert seen.is_restoring()
    for number in range(10):
        if number == finished:
            seen.clear()
        if log.read_jobs:
            job = log.read_jobs.pop(0)
            job.carry_out(stored.disk.files)
            job.finished()
    assert not seen.is_restoring()
    assert (seen.count(), seen.producer_count()) == (0, 0)
    assert sum(int(index.live_count) for index in log.indexes.values()) == 0
    seen.check_invariants()


# --- arguments of exchanges -------------------------------------------------------------------------------------------


def rules_of_exchange(arguments: bytes, *, stored: bool = False) -> QueueRules | None:
    return exchange_rules(ExchangeDeclaration("e", "direct", durable=True, arguments=arguments), "/", stored=stored)


def test_an_exchange_has_the_arguments_of_queues() -> None:
    arguments: Table = {"x-message-deduplication": True}
    found = rules_of_exchange(encode_table(arguments))
    assert found is not None
    assert (found.dedup_header, found.dedup_size, found.dedup_ttl_ms) == ("x-deduplication-header", 128, -1)
    arguments |= {"x-deduplication-header": "id", "x-cache-size": 5, "x-cache-ttl": 6}
    found = rules_of_exchange(encode_table(arguments))
    assert found is not None
    assert (found.dedup_header, found.dedup_size, found.dedup_ttl_ms) == ("id", 5, 6)
    for without in ({}, {"x-cache-size": 5}, {"x-message-deduplication": False}):
        assert rules_of_exchange(encode_table(dict(without))) is None


@pytest.mark.parametrize(
    ("arguments", "name", "reason"),
    [
        ({"x-message-deduplication": "true"}, "x-message-deduplication", "{unacceptable_type,longstr}"),
        ({"x-deduplication-header": 5}, "x-deduplication-header", "{unacceptable_type,signedint}"),
        ({"x-cache-size": 0}, "x-cache-size", "{value_zero,0}"),
        ({"x-cache-size": -1}, "x-cache-size", "{value_negative,-1}"),
        ({"x-cache-size": 10_000_001}, "x-cache-size", "{value_too_large,10000001}"),
        ({"x-cache-ttl": "5"}, "x-cache-ttl", '"expected integer, got longstr"'),
    ],
)
def test_an_exchange_refuses_what_a_queue_refuses(arguments: Table, name: str, reason: str) -> None:
    encoded = encode_table({"x-message-deduplication": True} | arguments)
    with pytest.raises(ChannelException) as refusal:
        rules_of_exchange(encoded)
    assert refusal.value.explanation == f"invalid arg '{name}' for exchange 'e' in vhost '/': {reason}"
    rules_of_exchange(encoded, stored=True)


def test_timers_count_the_keys_that_expire() -> None:
    """Otherwise 512 queues would forget 4,096 keys each, in one call."""
    remembered = Remembered(size=2 * WORKED_MAX, ttl_ms=1000)
    for number in range(WORKED_MAX):
        assert remembered.key(f"k{number}", persistent=False)
    called: list[bool] = []

    class Other(Timer):
        def due(self, now_ms: i64) -> None:
            called.append(True)

    at_ms = int(remembered.stored.log.now_ms) + 1000 + seen_keys.EXPIRE_EVERY_MS
    remembered.timers.at(at_ms, Other())
    remembered.pass_time(1000 + seen_keys.EXPIRE_EVERY_MS)
    assert remembered.keys() == [] and not called
    remembered.pass_time(0)
    assert called


@pytest.mark.parametrize("kind", ["quorum", "stream"])
@pytest.mark.parametrize("of", ["queue", "exchange"])
def test_the_key_of_a_transient_message_is_stored_where_the_message_is(kind: str, of: str) -> None:
    harness = DurableHarness()
    client = harness.channel()
    drops: Table = {"x-message-deduplication": True}
    client.declare("q", durable=True, arguments={"x-queue-type": kind} | (drops if of == "queue" else {}))
    arguments = drops if of == "exchange" else {}
    client.call(1, exchange_declare("x", "fanout", durable=True, arguments=arguments))
    client.bind("q", "x")
    header = encode_table({"x-deduplication-header": "k"})
    client.publish("x", "", b"m", headers=header)
    harness.write()
    harness = harness.restart(clean=False)
    harness.channel().publish("x", "", b"again", headers=header)
    harness.settle()
    assert harness.queue("q").ready_count == 1


def test_the_key_of_a_delayed_transient_message_is_stored_where_the_message_is() -> None:
    harness = DurableHarness()
    client = harness.channel()
    client.declare("q", durable=True, arguments={"x-queue-type": "quorum", "x-message-deduplication": True})
    client.publish("", "q", b"m", headers=encode_table({"x-deduplication-header": "k", "x-delay": 60_000}))
    harness.write()
    harness = harness.restart(clean=False)
    harness.channel().publish("", "q", b"again", headers=encode_table({"x-deduplication-header": "k"}))
    harness.settle()
    held = harness.plain_queue("q").held(DELAYED)
    assert held is not None and (held.count, harness.queue("q").ready_count) == (1, 0)
