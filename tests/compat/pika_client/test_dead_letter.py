"""Dead lettering: causes, target and contents of a dead letter, repeated deaths, cycles, order.

1. A message is dead-lettered when it is rejected, expires or is one too many; never on ack, purge or delete.
2. A letter goes to the dead-letter exchange like a message published there, with its history and no expiration.
3. The publisher does not learn when no queue takes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel
from pika.compat import long
from pika.exceptions import NackError

from ..broker import Broker
from ..conftest import Names
from .dialogue import (
    Connect,
    Inbox,
    collect,
    drain,
    emptied,
    hold,
    outlast,
    publish_in_flight,
    ready,
    round_trip,
    tag_of,
    wait_for_ready,
)

Letter = tuple[str, str, BasicProperties, bytes]

# The arguments of a queue for each cause of death; all but the first cause act by themselves.
CAUSES: dict[str, dict[str, Any]] = {
    "rejected": {},
    "expired": {"x-message-ttl": 1},
    "maxlen": {"x-max-length": 0},
    "maxlen on refusal": {"x-max-length": 0, "x-overflow": "reject-publish-dlx"},
}
every_cause = pytest.mark.parametrize("cause", CAUSES)


def declare(channel: BlockingChannel, names: Names, dlx: str, key: str | None = None, **arguments: Any) -> str:
    """Declare a queue that dead-letters to the exchange `dlx`, with `key` when it is given."""
    queue = names.queue()
    by_key = {} if key is None else {"x-dead-letter-routing-key": key}
    more = {"x-" + name.replace("_", "-"): value for name, value in arguments.items()}
    channel.queue_declare(queue, arguments={"x-dead-letter-exchange": dlx} | by_key | more)
    return queue


def graveyard(channel: BlockingChannel, names: Names) -> tuple[str, str]:
    """Declare a fanout exchange with one queue; return both names."""
    dlx, letters = names.exchange("dlx"), names.queue("letters")
    channel.exchange_declare(dlx, "fanout")
    channel.queue_declare(letters)
    channel.queue_bind(letters, dlx)
    return dlx, letters


def mortal_queue(channel: BlockingChannel, names: Names, cause: str, dlx: str, key: str | None = None) -> str:
    """Declare a queue whose messages die of `cause`."""
    arguments = {name.removeprefix("x-").replace("-", "_"): value for name, value in CAUSES[cause].items()}
    return declare(channel, names, dlx, key, **arguments)


def kill(
    channel: BlockingChannel,
    queue: str,
    cause: str,
    body: bytes = b"x",
    properties: BasicProperties | None = None,
    exchange: str = "",
    key: str | None = None,
) -> None:
    """Publish to a queue from `mortal_queue` and see to it that the message dies."""
    channel.basic_publish(exchange, queue if key is None else key, body, properties)
    if cause == "rejected":
        channel.basic_reject(hold(channel, queue), requeue=False)


def letters_of(channel: BlockingChannel, queue: str, count: int = 1) -> list[Letter]:
    """Wait for `count` letters; return exchange, routing key, properties and body of each."""
    return [
        (method.exchange or "", method.routing_key or "", properties, body)
        for method, properties, body in collect(channel, queue, count)
    ]


def written(properties: BasicProperties) -> dict[str, Any]:
    """Return the headers, which every letter has."""
    headers: Any = properties.headers
    assert headers is not None
    return dict(headers)


def headers_of(channel: BlockingChannel, queue: str) -> dict[str, Any]:
    """Wait for a letter; return its headers."""
    return written(letters_of(channel, queue)[0][2])


def deaths(channel: BlockingChannel, queue: str) -> list[tuple[str, str, int]]:
    """Wait for a letter; return queue, reason and count of each entry of its history."""
    return [(entry["queue"], entry["reason"], entry["count"]) for entry in headers_of(channel, queue)["x-death"]]


# messages that die


@every_cause
def test_a_message_that_dies_goes_to_the_dead_letter_exchange(
    channel: BlockingChannel, names: Names, cause: str
) -> None:
    dlx, letters = graveyard(channel, names)
    queue = mortal_queue(channel, names, cause, dlx)
    kill(channel, queue, cause, b"a body")
    exchange, key, _, body = letters_of(channel, letters)[0]
    assert (exchange, key, body) == (dlx, queue, b"a body")
    assert drain(channel, queue) == drain(channel, letters) == []


@pytest.mark.parametrize(
    "refuse",
    [
        lambda channel, tag: channel.basic_reject(tag, requeue=False),
        lambda channel, tag: channel.basic_nack(tag, requeue=False),
        lambda channel, tag: channel.basic_nack(tag, multiple=True, requeue=False),
        lambda channel, tag: channel.basic_nack(0, multiple=True, requeue=False),
    ],
    ids=["reject", "nack", "nack-multiple", "nack-all"],
)
def test_every_way_of_refusing_is_a_rejection(
    channel: BlockingChannel, names: Names, refuse: Callable[[BlockingChannel, int], object]
) -> None:
    dlx, letters = graveyard(channel, names)
    queue = declare(channel, names, dlx)
    channel.basic_publish("", queue, b"x")
    refuse(channel, hold(channel, queue))
    assert deaths(channel, letters) == [(queue, "rejected", 1)]


def test_a_rejection_by_a_consumer_dead_letters(channel: BlockingChannel, names: Names) -> None:
    dlx, letters = graveyard(channel, names)
    queue = declare(channel, names, dlx)
    inbox = Inbox(channel)
    inbox.consume(queue)
    channel.basic_publish("", queue, b"x")
    inbox.wait_for(1)
    channel.basic_reject(inbox.tags[0], requeue=False)
    assert deaths(channel, letters) == [(queue, "rejected", 1)]


def test_a_message_expires_of_its_own_time_to_live(channel: BlockingChannel, names: Names) -> None:
    dlx, letters = graveyard(channel, names)
    queue = declare(channel, names, dlx)
    channel.basic_publish("", queue, b"x", BasicProperties(expiration="20"))
    assert deaths(channel, letters) == [(queue, "expired", 1)]


def test_a_message_that_expires_at_once_is_dead_lettered(channel: BlockingChannel, names: Names) -> None:
    dlx, letters = graveyard(channel, names)
    queue = declare(channel, names, dlx)
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"x", BasicProperties(expiration="0"), mandatory=True)
    assert deaths(channel, letters) == [(queue, "expired", 1)]


def test_a_message_that_was_requeued_too_late_is_dead_lettered(channel: BlockingChannel, names: Names) -> None:
    dlx, letters = graveyard(channel, names)
    queue = declare(channel, names, dlx)
    inbox = Inbox(channel)
    tag = inbox.consume(queue)
    channel.basic_publish("", queue, b"x", BasicProperties(expiration="50"))
    inbox.wait_for(1)
    channel.basic_cancel(tag)
    outlast(channel, 50)
    channel.basic_reject(inbox.tags[0], requeue=True)
    assert deaths(channel, letters) == [(queue, "expired", 1)]


def test_what_a_full_queue_drops_from_its_head_is_dead_lettered(channel: BlockingChannel, names: Names) -> None:
    dlx, letters = graveyard(channel, names)
    queue = declare(channel, names, dlx, max_length=2)
    for number in range(5):
        channel.basic_publish("", queue, b"%d" % number)
    found = letters_of(channel, letters, 3)
    assert [body for *_, body in found] == [b"0", b"1", b"2"]
    assert drain(channel, queue) == [b"3", b"4"]


def test_what_is_too_much_in_octets_is_dead_lettered(channel: BlockingChannel, names: Names) -> None:
    dlx, letters = graveyard(channel, names)
    queue = declare(channel, names, dlx, max_length_bytes=10)
    channel.basic_publish("", queue, b"x" * 11)
    assert deaths(channel, letters) == [(queue, "maxlen", 1)]


def test_what_requeueing_pushes_out_is_dead_lettered(channel: BlockingChannel, names: Names) -> None:
    dlx, letters = graveyard(channel, names)
    queue = declare(channel, names, dlx, max_length=1)
    channel.basic_publish("", queue, b"old")
    tag = hold(channel, queue)
    channel.basic_publish("", queue, b"new")
    channel.basic_reject(tag, requeue=True)
    assert deaths(channel, letters) == [(queue, "maxlen", 1)]
    assert drain(channel, queue) == [b"new"]


def test_reject_publish_dlx_nacks_what_it_dead_letters(channel: BlockingChannel, names: Names) -> None:
    dlx, letters = graveyard(channel, names)
    queue = declare(channel, names, dlx, max_length=1, overflow="reject-publish-dlx")
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"first")
    with pytest.raises(NackError):
        channel.basic_publish("", queue, b"second")
    exchange, key, properties, body = letters_of(channel, letters)[0]
    assert (exchange, key, body) == (dlx, queue, b"second")
    assert written(properties)["x-first-death-reason"] == "maxlen"
    assert drain(channel, queue) == [b"first"]


def test_dead_lettering_does_not_disturb_the_confirm(channel: BlockingChannel, names: Names) -> None:
    dlx, letters = graveyard(channel, names)
    queue = declare(channel, names, dlx, max_length=0)
    acked, nacked = publish_in_flight(channel, [queue] * 100, b"x")
    assert (acked, nacked) == (set(range(1, 101)), set())
    letters_of(channel, letters, 100)


# messages that do not


@pytest.mark.parametrize("end", ["ack", "requeue", "purge", "delete", "reject-publish", "channel close", "recover"])
def test_no_other_end_of_a_message_dead_letters(connect: Connect, names: Names, end: str) -> None:
    connection = connect()
    watcher, channel = connection.channel(), connection.channel()
    dlx, letters = graveyard(watcher, names)
    full: dict[str, Any] = {"max_length": 1, "overflow": "reject-publish"} if end == "reject-publish" else {}
    queue = declare(watcher, names, dlx, **full)
    watcher.basic_publish("", queue, b"spared")
    wait_for_ready(watcher, queue, 1)
    if end == "ack":
        channel.basic_ack(hold(channel, queue))
    elif end == "requeue":
        channel.basic_nack(hold(channel, queue), requeue=True)
    elif end == "purge":
        channel.queue_purge(queue)
    elif end == "delete":
        channel.queue_delete(queue)
    elif end == "reject-publish":
        watcher.basic_publish("", queue, b"refused")
    elif end == "channel close":
        hold(channel, queue)
        channel.close()
    else:
        hold(channel, queue)
        channel.basic_recover(requeue=True)
    # a letter that follows on the same way finds none before it
    sent = declare(watcher, names, dlx)
    kill(watcher, sent, "rejected", b"the only letter")
    assert [body for *_, body in letters_of(watcher, letters)] == [b"the only letter"]
    if end in {"requeue", "channel close", "recover"}:
        assert drain(watcher, queue) == [b"spared"]
    assert drain(watcher, letters) == []


def test_a_queue_without_dead_letter_exchange_buries_nothing(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    kill(channel, queue, "rejected")
    assert emptied(channel, queue) == 0


# where to


@every_cause
def test_a_dead_letter_routing_key_replaces_the_old_one(channel: BlockingChannel, names: Names, cause: str) -> None:
    dlx, letters = graveyard(channel, names)
    kill(channel, mortal_queue(channel, names, cause, dlx, "to.the.dead"), cause)
    assert letters_of(channel, letters)[0][:2] == (dlx, "to.the.dead")


def test_an_empty_dead_letter_routing_key_is_a_key(channel: BlockingChannel, names: Names) -> None:
    dlx, letters = graveyard(channel, names)
    kill(channel, mortal_queue(channel, names, "rejected", dlx, ""), "rejected")
    assert letters_of(channel, letters)[0][:2] == (dlx, "")


def test_the_default_exchange_brings_letters_to_the_queue_of_that_name(channel: BlockingChannel, names: Names) -> None:
    letters = names.queue("letters")
    channel.queue_declare(letters)
    kill(channel, declare(channel, names, "", letters), "rejected")
    assert letters_of(channel, letters)[0][:2] == ("", letters)


def test_letters_are_routed_by_the_type_of_the_exchange(channel: BlockingChannel, names: Names) -> None:
    dlx, wanted, unwanted = names.exchange("dlx"), names.queue("wanted"), names.queue("unwanted")
    channel.exchange_declare(dlx, "topic")
    channel.queue_declare(wanted)
    channel.queue_declare(unwanted)
    channel.queue_bind(wanted, dlx, "dead.#")
    channel.queue_bind(unwanted, dlx, "alive.#")
    kill(channel, declare(channel, names, dlx, "dead.for.good"), "rejected")
    letters_of(channel, wanted)
    assert drain(channel, unwanted) == []


def test_the_headers_written_at_death_can_be_routed_by(channel: BlockingChannel, names: Names) -> None:
    dlx, letters = names.exchange("dlx"), names.queue("letters")
    channel.exchange_declare(dlx, "headers")
    channel.queue_declare(letters)
    # "all" leaves out what begins with x-
    channel.queue_bind(letters, dlx, "", {"x-match": "all-with-x", "x-first-death-reason": "expired"})
    kill(channel, mortal_queue(channel, names, "rejected", dlx), "rejected", b"rejected")
    kill(channel, mortal_queue(channel, names, "expired", dlx), "expired", b"expired")
    assert [body for *_, body in letters_of(channel, letters)] == [b"expired"]
    assert drain(channel, letters) == []


def test_a_letter_goes_to_every_queue_bound(channel: BlockingChannel, names: Names) -> None:
    dlx, letters = graveyard(channel, names)
    others = [names.queue() for _ in range(3)]
    for other in others:
        channel.queue_declare(other)
        channel.queue_bind(other, dlx)
    kill(channel, declare(channel, names, dlx), "rejected")
    for queue in (letters, *others):
        letters_of(channel, queue)


def test_an_internal_exchange_may_be_the_dead_letter_exchange(channel: BlockingChannel, names: Names) -> None:
    dlx, letters = names.exchange("dlx"), names.queue("letters")
    channel.exchange_declare(dlx, "fanout", internal=True)
    channel.queue_declare(letters)
    channel.queue_bind(letters, dlx)
    kill(channel, declare(channel, names, dlx), "rejected")
    letters_of(channel, letters)


def test_letters_without_a_route_go_to_the_alternate_exchange(channel: BlockingChannel, names: Names) -> None:
    alternate, letters = graveyard(channel, names)
    dlx = names.exchange("dlx")
    channel.exchange_declare(dlx, "direct", arguments={"alternate-exchange": alternate})
    queue = declare(channel, names, dlx)
    kill(channel, queue, "rejected")
    # the exchange of a message is the one it was published to
    assert letters_of(channel, letters)[0][:2] == (dlx, queue)


def test_a_consumer_waiting_for_letters_gets_them_as_new_messages(channel: BlockingChannel, names: Names) -> None:
    dlx, letters = graveyard(channel, names)
    inbox = Inbox(channel)
    inbox.consume(letters)
    queue = declare(channel, names, dlx)
    channel.basic_publish("", queue, b"x")
    channel.basic_reject(hold(channel, queue), requeue=True)
    channel.basic_reject(hold(channel, queue), requeue=False)
    assert inbox.wait_for(1)[0].method.redelivered is False


# where nobody takes them


@every_cause
def test_a_missing_dead_letter_exchange_loses_letters_quietly(
    channel: BlockingChannel, names: Names, cause: str
) -> None:
    queue = mortal_queue(channel, names, cause, names.unused("dlx"))
    kill(channel, queue, cause)
    round_trip(channel)
    wait_for_ready(channel, queue, 0)


@pytest.mark.parametrize("mandatory", [False, True])
def test_letters_without_a_route_are_lost_quietly(channel: BlockingChannel, names: Names, mandatory: bool) -> None:
    queue = declare(channel, names, "amq.direct", names.unused("key"))
    returned: list[bytes] = []
    channel.add_on_return_callback(lambda *message: returned.append(message[-1]))
    channel.basic_publish("", queue, b"x", mandatory=mandatory)
    channel.basic_reject(hold(channel, queue), requeue=False)
    for _ in range(3):
        round_trip(channel)
    channel.connection.process_data_events(time_limit=0)
    assert (returned, emptied(channel, queue)) == ([], 0)


def test_a_dead_letter_exchange_declared_later_or_anew_serves(channel: BlockingChannel, names: Names) -> None:
    dlx, letters = names.exchange("dlx"), names.queue("letters")
    queue = declare(channel, names, dlx)
    channel.queue_declare(letters)
    for body in (b"first", b"second"):
        kill(channel, queue, "rejected", b"lost")
        round_trip(channel)
        channel.exchange_declare(dlx, "fanout")
        channel.queue_bind(letters, dlx)
        kill(channel, queue, "rejected", body)
        assert [body for *_, body in letters_of(channel, letters)] == [body]
        channel.exchange_delete(dlx)
    assert drain(channel, letters) == []


@pytest.mark.parametrize(
    ("overflow", "kept"), [("drop-head", b"second"), ("reject-publish", b"first"), ("reject-publish-dlx", b"first")]
)
def test_a_full_queue_for_letters_keeps_to_its_own_rule(
    channel: BlockingChannel, names: Names, overflow: str, kept: bytes
) -> None:
    dlx, letters = names.exchange("dlx"), names.queue("letters")
    channel.exchange_declare(dlx, "fanout")
    channel.queue_declare(letters, arguments={"x-max-length": 1, "x-overflow": overflow})
    channel.queue_bind(letters, dlx)
    last = names.queue("last")
    channel.queue_declare(last)
    channel.queue_bind(last, dlx)
    queue = declare(channel, names, dlx)
    for body in (b"first", b"second"):
        kill(channel, queue, "rejected", body)
    letters_of(channel, last, 2)
    assert drain(channel, letters) == [kept]


def test_what_the_queue_for_letters_drops_dies_a_second_time(channel: BlockingChannel, names: Names) -> None:
    dlx, letters = graveyard(channel, names)
    small = declare(channel, names, dlx, max_length=0)
    queue = declare(channel, names, "", small)
    kill(channel, queue, "rejected")
    assert deaths(channel, letters) == [(small, "maxlen", 1), (queue, "rejected", 1)]


# CC and BCC


def direct_graveyard(channel: BlockingChannel, names: Names, *keys: str) -> tuple[str, list[str]]:
    """Declare a direct exchange and a queue for each key."""
    dlx = names.exchange("dlx")
    channel.exchange_declare(dlx, "direct")
    queues = [names.queue(key) for key in keys]
    for queue, key in zip(queues, keys, strict=True):
        channel.queue_declare(queue)
        channel.queue_bind(queue, dlx, key)
    return dlx, queues


def fed_by(channel: BlockingChannel, names: Names, queue: str, key: str) -> str:
    """Declare a direct exchange with `queue` bound by `key`."""
    exchange = names.exchange("source")
    channel.exchange_declare(exchange, "direct")
    channel.queue_bind(queue, exchange, key)
    return exchange


@every_cause
def test_letters_go_by_all_keys_of_the_message_carbon_copies_included(
    channel: BlockingChannel, names: Names, cause: str
) -> None:
    dlx, queues = direct_graveyard(channel, names, "key", "cc-1", "cc-2", "bcc", "other")
    queue = mortal_queue(channel, names, cause, dlx)
    exchange = fed_by(channel, names, queue, "key")
    properties = BasicProperties(headers={"CC": ["cc-1", "cc-2"], "BCC": ["bcc"]})
    kill(channel, queue, cause, b"x", properties, exchange, "key")
    for letters in queues[:4]:
        got_exchange, key, got, _ = letters_of(channel, letters)[0]
        assert (got_exchange, key) == (dlx, "key")
        headers = written(got)
        assert (headers["CC"], "BCC" in headers) == (["cc-1", "cc-2"], False)
        assert headers["x-death"][0]["routing-keys"] == ["key", "cc-1", "cc-2"]
    assert drain(channel, queues[4]) == []


def test_a_dead_letter_routing_key_replaces_carbon_copies_too(channel: BlockingChannel, names: Names) -> None:
    dlx, (letters, copies, blind) = direct_graveyard(channel, names, "dead", "cc", "bcc")
    queue = declare(channel, names, dlx, "dead")
    exchange = fed_by(channel, names, queue, "key")
    properties = BasicProperties(headers={"CC": ["cc"], "BCC": ["bcc"], "mine": 1})
    kill(channel, queue, "rejected", b"x", properties, exchange, "key")
    headers = headers_of(channel, letters)
    assert (headers["mine"], "CC" in headers, "BCC" in headers) == (1, False, False)
    assert headers["x-death"][0]["routing-keys"] == ["key", "cc"]
    assert drain(channel, copies) == drain(channel, blind) == []


# what is written


@every_cause
def test_the_first_entry_of_the_history_says_what_when_and_where(
    channel: BlockingChannel, names: Names, cause: str
) -> None:
    dlx, letters = graveyard(channel, names)
    queue = mortal_queue(channel, names, cause, dlx, "other.key")
    exchange = fed_by(channel, names, queue, "key")
    before = int(time.time())
    kill(channel, queue, cause, b"x", BasicProperties(headers={"mine": [1, "two"]}), exchange, "key")
    headers = headers_of(channel, letters)
    after = time.time()
    assert headers["mine"] == [1, "two"]
    (entry,) = headers["x-death"]
    at = entry.pop("time")
    assert isinstance(at, datetime)
    assert before <= at.replace(tzinfo=UTC).timestamp() <= after
    assert entry == {
        "count": 1,
        "reason": cause.split()[0],
        "queue": queue,
        "exchange": exchange,
        "routing-keys": ["key"],
    }
    # clients written in typed languages take it as a 64-bit integer
    assert type(entry["count"]) is long


@every_cause
def test_the_first_death_has_headers_of_its_own_and_later_versions_note_the_last_one(
    channel: BlockingChannel, names: Names, broker: Broker, cause: str
) -> None:
    dlx, letters = graveyard(channel, names)
    queue = mortal_queue(channel, names, cause, dlx)
    kill(channel, queue, cause)
    headers = headers_of(channel, letters)
    del headers["x-death"]
    which = ["first", "last"] if broker.behaves_like(3, 13) else ["first"]
    assert headers == {
        f"x-{one}-death-{what}": value
        for one in which
        for what, value in [("reason", cause.split()[0]), ("queue", queue), ("exchange", "")]
    }


@every_cause
def test_the_expiration_moves_from_the_properties_into_the_history(
    channel: BlockingChannel, names: Names, cause: str
) -> None:
    dlx, letters = graveyard(channel, names)
    queue = mortal_queue(channel, names, cause, dlx)
    kill(channel, queue, cause, b"x", BasicProperties(expiration="60000"))
    _, _, properties, _ = letters_of(channel, letters)[0]
    assert properties.expiration is None
    assert written(properties)["x-death"][0]["original-expiration"] == "60000"


def test_a_letter_does_not_expire_again_in_the_queue_for_letters(channel: BlockingChannel, names: Names) -> None:
    dlx, letters = graveyard(channel, names)
    queue = declare(channel, names, dlx)
    channel.basic_publish("", queue, b"x", BasicProperties(expiration="30"))
    wait_for_ready(channel, letters, 1)
    outlast(channel, 60)
    assert ready(channel, letters) == 1


@every_cause
def test_everything_else_of_a_message_stays(channel: BlockingChannel, names: Names, broker: Broker, cause: str) -> None:
    dlx, letters = graveyard(channel, names)
    queue = mortal_queue(channel, names, cause, dlx)
    values: dict[str, Any] = {
        "content_type": "text/plain",
        "content_encoding": "utf-8",
        "delivery_mode": 2,
        "priority": 7,
        "correlation_id": "c",
        "reply_to": "r",
        "message_id": "m",
        "timestamp": 1_600_000_000,
        "type": "t",
        "user_id": broker.username,
        "app_id": "a",
    }
    body = bytes(range(256)) * 1000
    kill(channel, queue, cause, body, BasicProperties(**values))
    _, _, properties, got = letters_of(channel, letters)[0]
    assert got == body
    assert {name: getattr(properties, name) for name in values} == values


def test_an_empty_message_dies_like_any_other(channel: BlockingChannel, names: Names) -> None:
    dlx, letters = graveyard(channel, names)
    kill(channel, declare(channel, names, dlx), "rejected", b"")
    assert letters_of(channel, letters)[0][3] == b""


# repeated deaths


def reject_again(channel: BlockingChannel, queue: str, times: int) -> None:
    """Reject the message that comes back to `queue` as often as asked."""
    for _ in range(times):
        inbox = Inbox(channel)
        consumer_tag = inbox.consume(queue)
        inbox.wait_for(1)
        channel.basic_cancel(consumer_tag)
        channel.basic_reject(inbox.tags[0], requeue=False)


def test_a_rejected_message_may_come_back_to_its_queue_and_is_counted(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue})
    channel.basic_publish("", queue, b"x")
    reject_again(channel, queue, 5)
    headers = headers_of(channel, queue)
    assert [(entry["queue"], entry["reason"], entry["count"]) for entry in headers["x-death"]] == [
        (queue, "rejected", 5)
    ]
    assert headers["x-first-death-reason"] == "rejected"


def test_two_causes_in_one_queue_are_two_entries(channel: BlockingChannel, names: Names) -> None:
    dlx, letters = graveyard(channel, names)
    queue = declare(channel, names, dlx, max_length=1)
    channel.queue_bind(queue, dlx)
    kill(channel, queue, "rejected")
    letters_of(channel, letters)
    wait_for_ready(channel, queue, 1)
    channel.queue_unbind(queue, dlx)
    channel.basic_publish("", queue, b"pushes it out")
    assert deaths(channel, letters) == [(queue, "maxlen", 1), (queue, "rejected", 1)]


def retry_pair(channel: BlockingChannel, names: Names, delay_ms: int) -> tuple[str, str]:
    """Declare a queue whose rejected messages come back after `delay_ms` in a second queue; return both."""
    work, delay = names.queue("work"), names.queue("delay")
    for queue, other, more in ((work, delay, {}), (delay, work, {"x-message-ttl": delay_ms})):
        channel.queue_declare(
            queue, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": other} | more
        )
    return work, delay


def test_the_retry_circle_of_two_queues_turns_and_counts_both(channel: BlockingChannel, names: Names) -> None:
    work, delay = retry_pair(channel, names, 20)
    channel.basic_publish("", work, b"x")
    reject_again(channel, work, 3)
    assert deaths(channel, work) == [(delay, "expired", 3), (work, "rejected", 3)]


def test_the_newest_death_comes_first_and_the_first_one_stays_noted(
    channel: BlockingChannel, names: Names, broker: Broker
) -> None:
    dlx, letters = graveyard(channel, names)
    third = declare(channel, names, dlx, message_ttl=1)
    second = declare(channel, names, "", third, max_length=0)
    first = declare(channel, names, "", second)
    kill(channel, first, "rejected")
    headers = headers_of(channel, letters)
    history = [(third, "expired"), (second, "maxlen"), (first, "rejected")]
    if not broker.behaves_like(3, 13):
        # RabbitMQ 3.10 turns all but the newest around
        history[1:] = reversed(history[1:])
    assert [(entry["queue"], entry["reason"]) for entry in headers["x-death"]] == history
    for entry in headers["x-death"]:
        assert (entry["exchange"], entry["routing-keys"]) == ("", [entry["queue"]])
    assert (headers["x-first-death-queue"], headers["x-first-death-reason"]) == (first, "rejected")
    if broker.behaves_like(3, 13):
        assert (headers["x-last-death-queue"], headers["x-last-death-reason"]) == (third, "expired")


def test_a_repeated_death_moves_its_entry_to_the_front(channel: BlockingChannel, names: Names) -> None:
    work, delay = retry_pair(channel, names, 20)
    channel.basic_publish("", work, b"x")
    inbox = Inbox(channel)
    inbox.consume(work)
    histories: list[list[str]] = []
    for round_number in range(1, 4):
        delivery = inbox.wait_for(round_number)[-1]
        headers: Any = delivery.properties.headers or {}
        histories.append([entry["queue"] for entry in headers.get("x-death", [])])
        channel.basic_reject(tag_of(delivery.method), requeue=False)
    assert histories == [[], [delay, work], [delay, work]]


def test_the_time_of_an_entry_is_that_of_its_first_death(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue})
    channel.basic_publish("", queue, b"x")
    reject_again(channel, queue, 1)
    inbox = Inbox(channel)
    consumer_tag = inbox.consume(queue)
    first = written(inbox.wait_for(1)[0].properties)["x-death"][0]["time"]
    channel.basic_cancel(consumer_tag)
    # the time is in seconds
    outlast(channel, 1000)
    channel.basic_reject(inbox.tags[0], requeue=False)
    entry = headers_of(channel, queue)["x-death"][0]
    assert (entry["count"], entry["time"]) == (2, first)


def test_a_history_that_a_client_publishes_again_goes_on_up_to_the_third_series(
    channel: BlockingChannel, names: Names, broker: Broker
) -> None:
    dlx, letters = graveyard(channel, names)
    queue = declare(channel, names, dlx)
    kill(channel, queue, "rejected")
    _, _, properties, body = letters_of(channel, letters)[0]
    kill(channel, queue, "rejected", body, properties)
    expected = 2 if broker.older_than(4, 0) else 1
    assert deaths(channel, letters) == [(queue, "rejected", expected)]


@pytest.mark.parametrize("nonsense", ["text", 5, True, {"a": 1}, None, [], ["text", 5]])
def test_a_history_that_makes_no_sense_does_no_harm(
    channel: BlockingChannel, names: Names, broker: Broker, nonsense: Any
) -> None:
    if nonsense == ["text", 5] and not broker.behaves_like(4, 0):
        pytest.skip("the queue of RabbitMQ 3.10 crashes and loses the message")
    dlx, letters = graveyard(channel, names)
    queue = declare(channel, names, dlx)
    kill(channel, queue, "rejected", b"x", BasicProperties(headers={"x-death": nonsense}))
    entry = headers_of(channel, letters)["x-death"][0]
    assert (entry["queue"], entry["reason"], entry["count"]) == (queue, "rejected", 1)


# cycles


def test_a_circle_that_turns_by_itself_is_broken_where_it_closes(channel: BlockingChannel, names: Names) -> None:
    dlx, letters = graveyard(channel, names)
    first, second = names.queue("first"), names.queue("second")
    channel.queue_declare(
        first,
        arguments={"x-message-ttl": 10, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": second},
    )
    # the letter of the second queue goes back to the first, which is skipped, and to the queue for letters
    channel.queue_bind(first, dlx)
    channel.queue_declare(second, arguments={"x-message-ttl": 10, "x-dead-letter-exchange": dlx})
    channel.basic_publish("", first, b"x")
    assert deaths(channel, letters) == [(second, "expired", 1), (first, "expired", 1)]
    outlast(channel, 100)
    assert [ready(channel, queue) for queue in (first, second, letters)] == [0, 0, 0]


@pytest.mark.parametrize("cause", ["expired", "maxlen", "maxlen on refusal"])
def test_a_queue_whose_letters_come_back_by_themselves_drops_them(
    channel: BlockingChannel, names: Names, cause: str
) -> None:
    queue = names.queue()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
    channel.queue_declare(queue, arguments=arguments | CAUSES[cause])
    kill(channel, queue, cause)
    outlast(channel, 50)
    wait_for_ready(channel, queue, 0)
    inbox = Inbox(channel)
    inbox.consume(queue)
    outlast(channel, 50)
    assert inbox.bodies == []


def test_a_rejection_before_the_circle_began_does_not_keep_it_turning(channel: BlockingChannel, names: Names) -> None:
    dlx, letters = graveyard(channel, names)
    queue = declare(channel, names, dlx, message_ttl=20)
    channel.queue_bind(queue, dlx)
    inbox = Inbox(channel)
    consumer_tag = inbox.consume(queue)
    channel.basic_publish("", queue, b"x")
    inbox.wait_for(1)
    channel.basic_cancel(consumer_tag)
    channel.basic_reject(inbox.tags[0], requeue=False)
    histories = [
        [(entry["reason"], entry["count"]) for entry in written(properties)["x-death"]]
        for _, _, properties, _ in letters_of(channel, letters, 2)
    ]
    assert histories == [[("rejected", 1)], [("expired", 1), ("rejected", 1)]]
    outlast(channel, 100)
    assert (drain(channel, letters), ready(channel, queue)) == ([], 0)


def test_a_rejection_anywhere_in_the_circle_keeps_it_turning(channel: BlockingChannel, names: Names) -> None:
    work, delay = retry_pair(channel, names, 1)
    channel.basic_publish("", work, b"x")
    reject_again(channel, work, 20)
    assert deaths(channel, work) == [(delay, "expired", 20), (work, "rejected", 20)]


# order and transactions


@pytest.mark.parametrize("how", ["nack multiple", "one by one"])
def test_rejected_messages_are_dead_lettered_in_the_order_of_the_rejections(
    channel: BlockingChannel, names: Names, how: str
) -> None:
    dlx, letters = graveyard(channel, names)
    queue = declare(channel, names, dlx)
    for number in range(50):
        channel.basic_publish("", queue, b"%d" % number)
    tags = [hold(channel, queue) for _ in range(50)]
    if how == "nack multiple":
        channel.basic_nack(tags[-1], multiple=True, requeue=False)
    else:
        for tag in tags:
            channel.basic_reject(tag, requeue=False)
    assert [body for *_, body in letters_of(channel, letters, 50)] == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize("limit", [{"message_ttl": 50}, {"max_length": 0}, {"max_length_bytes": 0}])
def test_messages_that_die_by_themselves_are_dead_lettered_in_the_order_of_the_queue(
    channel: BlockingChannel, names: Names, limit: dict[str, Any]
) -> None:
    dlx, letters = graveyard(channel, names)
    queue = declare(channel, names, dlx, **limit)
    for number in range(200):
        channel.basic_publish("", queue, b"%d" % number)
    assert [body for *_, body in letters_of(channel, letters, 200)] == [b"%d" % number for number in range(200)]


def test_a_rejection_in_a_transaction_dead_letters_at_the_commit(channel: BlockingChannel, names: Names) -> None:
    dlx, letters = graveyard(channel, names)
    queue = declare(channel, names, dlx)
    for body in (b"rolled back", b"rejected"):
        channel.basic_publish("", queue, body)
    channel.tx_select()
    tags = [hold(channel, queue) for _ in range(2)]
    channel.basic_reject(tags[0], requeue=False)
    channel.tx_rollback()
    channel.basic_reject(tags[1], requeue=False)
    assert ready(channel, letters) == 0
    channel.tx_commit()
    assert [body for *_, body in letters_of(channel, letters)] == [b"rejected"]
    assert drain(channel, letters) == []


def test_a_message_is_dead_lettered_once_for_each_queue_it_died_in(channel: BlockingChannel, names: Names) -> None:
    dlx, letters = graveyard(channel, names)
    exchange = names.exchange("source")
    channel.exchange_declare(exchange, "fanout")
    queues = [mortal_queue(channel, names, cause, dlx) for cause in ("expired", "maxlen")]
    for queue in queues:
        channel.queue_bind(queue, exchange)
    channel.basic_publish(exchange, "", b"x")
    found = {written(properties)["x-first-death-queue"] for _, _, properties, _ in letters_of(channel, letters, 2)}
    assert found == set(queues)


def test_durable_queues_dead_letter_persistent_messages(channel: BlockingChannel, names: Names) -> None:
    letters, queue = names.queue("letters"), names.queue()
    channel.queue_declare(letters, durable=True)
    channel.queue_declare(
        queue,
        durable=True,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": letters, "x-max-length": 0},
    )
    channel.confirm_delivery()
    for number in range(20):
        channel.basic_publish("", queue, b"%d" % number, BasicProperties(delivery_mode=2))
    found = letters_of(channel, letters, 20)
    assert [body for *_, body in found] == [b"%d" % number for number in range(20)]
    assert {properties.delivery_mode for _, _, properties, _ in found} == {2}
