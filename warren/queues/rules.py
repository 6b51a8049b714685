"""The rules of a queue beyond first in, first out: the combined effect of its arguments and policies.

`QueueRules` are the effective values; a queue reads only these. ``effective_policy`` decides between an argument, an
operator policy and a policy for the same thing. Numbers that are not set are -1.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from warren.amqp.field_table import Table
from warren.amqp.numbers import TIME_MAX_MS
from warren.queues.arguments import (
    CLASSIC,
    QUORUM,
    QueueArguments,
    age_ms,
    backoff_delays,
)
from warren.queues.effective_policy import EffectivePolicy

# x-overflow
DROP_HEAD: Final = 0
REJECT_PUBLISH: Final = 1
REJECT_PUBLISH_DLX: Final = 2

# x-delayed-retry-type: which returns are delayed. A failed delivery counts towards the delivery limit, a returned one
# (basic.nack with requeue) does not.
RETRY_DISABLED: Final = 0
RETRY_ALL: Final = 1
RETRY_FAILED: Final = 2
RETRY_RETURNED: Final = 3

# The fate of a message whose delivery limit is reached.
LIMIT_DEAD_LETTERS: Final = 0
LIMIT_DROPS: Final = 1
LIMIT_PARKS: Final = 2

# A queue with only these settings stays plain: nothing has to be done for them when messages come and go. Some change
# how another setting works, and have no effect without it.
_PLAIN: Final = frozenset(
    (
        *("single-active-consumer", "consumer-timeout", "queue-mode", "queue-version", "queue-leader-locator"),
        *("overflow", "dead-letter-routing-key", "delivery-limit-action"),
        *("delayed-retry-min", "delayed-retry-max", "deduplication-header", "cache-size", "cache-ttl", "key-header"),
    )
)

QUORUM_DELIVERY_LIMIT: Final = 20  # where it is not set; RabbitMQ since 4.0
DEDUP_KEYS: Final = 128  # remembered without x-cache-size; LavinMQ's number


class QueueRules:
    """The effective rules of one queue. A new one has none: a plain queue."""

    def __init__(self) -> None:
        self.is_plain: bool = True  # publishing, delivering and settling can ignore them
        self.queue_type: str = CLASSIC
        self.is_quorum: bool = False  # of that type; read often
        self.single_active: bool = False
        self.message_ttl_ms: i64 = -1
        self.expires_ms: i64 = -1
        self.max_length: i64 = -1
        self.max_length_bytes: i64 = -1
        self.segment_bytes: i64 = -1  # of streams
        self.compacts: bool = False  # likewise
        self.overflow: i64 = DROP_HEAD
        self.dead_letter_exchange: str | None = None
        self.dead_letter_routing_key: str | None = None
        self.dead_letters_at_least_once: bool = False
        self.max_priority: i64 = -1  # 0 means one level, as 1 does
        self.delivery_limit: i64 = -1
        self.limit_action: i64 = LIMIT_DEAD_LETTERS
        self.consumer_timeout_ms: i64 = -1
        self.visibility_timeout_ms: i64 = -1
        self.retry_type: i64 = RETRY_DISABLED
        self.retry_delays_ms: list[int] = []  # of the first, second ... return; not empty when retries are delayed
        # After these each return adds a step, up to the maximum. A list of all delays could have millions of entries.
        self.retry_step_ms: i64 = 0
        self.retry_max_ms: i64 = -1
        self.dedup: bool = False
        self.dedup_header: str = "x-deduplication-header"
        self.dedup_size: i64 = -1  # how many keys are remembered
        self.dedup_ttl_ms: i64 = -1  # and how long
        self.key_shared: bool = False
        self.key_header: str = ""  # "": the routing key is the key
        self.memory_only: bool = False
        self.prefetch_max: i64 = -1
        self.max_unacked: i64 = -1
        self.read_committed: i64 = -1  # 1: only committed messages are delivered, 0: all are
        self.max_age_ms: i64 = -1  # of a stream

    def waits_for_commit(self, is_replicated: bool) -> bool:
        """Tell whether a delivery waits for the commit of its message; `is_replicated`: other nodes copy the log."""
        if self.read_committed >= 0:
            return self.read_committed == 1
        return self.is_quorum and is_replicated

    def retry_delay_ms(self, returns: i64) -> i64:
        """Return how long a message waits after its `returns`-th return, counted from 1."""
        delays = self.retry_delays_ms
        listed: i64 = len(delays)
        if returns <= listed:
            first: i64 = 1
            return delays[max(returns, first) - 1]
        delay_ms: i64 = delays[listed - 1]
        step_ms = self.retry_step_ms
        if step_ms == 0:
            return delay_ms
        steps: i64 = returns - listed
        if steps > (self.retry_max_ms - delay_ms) // step_ms:
            return self.retry_max_ms
        return delay_ms + steps * step_ms


# Shared by all queues without arguments and policies. Rules are never changed: others take their place.
PLAIN_RULES: Final = QueueRules()


def rules_of(arguments: QueueArguments, policies: EffectivePolicy) -> QueueRules:
    """Return the rules of a queue with these arguments, to which these policies apply."""
    values = policies.under_arguments(arguments.values)
    if not values and arguments.queue_type == CLASSIC:
        return PLAIN_RULES
    rules = QueueRules()
    rules.queue_type = arguments.queue_type
    rules.is_quorum = arguments.queue_type == QUORUM
    rules.is_plain = not rules.is_quorum and _PLAIN.issuperset(values)
    rules.single_active = values.get("single-active-consumer") is True
    rules.message_ttl_ms = _number(values, "message-ttl")
    rules.expires_ms = _number(values, "expires")
    rules.max_length = _number(values, "max-length")
    rules.max_length_bytes = _number(values, "max-length-bytes")
    rules.max_priority = _number(values, "max-priority")
    rules.consumer_timeout_ms = min(_number(values, "consumer-timeout"), TIME_MAX_MS)
    rules.visibility_timeout_ms = _number(values, "visibility-timeout")
    rules.prefetch_max = _number(values, "consumer-prefetch-max")
    rules.max_unacked = _number(values, "max-unacked")
    rules.segment_bytes = _number(values, "stream-max-segment-size-bytes")
    max_age = values.get("max-age")
    if isinstance(max_age, str):
        rules.max_age_ms = age_ms(max_age)
    if "read-committed" in values:
        rules.read_committed = 1 if values["read-committed"] is True else 0
    rules.memory_only = values.get("storage") == "memory"
    _set_overflow(rules, values)
    _set_dead_lettering(rules, values)
    _set_delivery_limit(rules, values)
    _set_retries(rules, values)
    if values.get("message-deduplication") is True:
        rules.dedup = True
        rules.dedup_header = _text(values, "deduplication-header") or rules.dedup_header
        rules.dedup_size = _number(values, "cache-size") if "cache-size" in values else DEDUP_KEYS
        rules.dedup_ttl_ms = _number(values, "cache-ttl")
    if values.get("key-shared") is True:
        rules.key_shared = True
    rules.compacts = values.get("cleanup") == "compact"
    if rules.key_shared or rules.compacts:
        rules.key_header = _text(values, "key-header") or ""
    return rules


def _number(values: Table, key: str) -> i64:
    value = values.get(key, -1)
    assert isinstance(value, int)
    return i64(value)


def _text(values: Table, key: str) -> str | None:
    value = values.get(key)
    assert value is None or isinstance(value, str)
    return value


def _set_overflow(rules: QueueRules, values: Table) -> None:
    overflow = values.get("overflow")
    if overflow == "reject-publish":
        rules.overflow = REJECT_PUBLISH
    elif overflow == "reject-publish-dlx" and not rules.is_quorum:  # quorum queues take it and drop the head
        rules.overflow = REJECT_PUBLISH_DLX


def _set_dead_lettering(rules: QueueRules, values: Table) -> None:
    rules.dead_letter_exchange = _text(values, "dead-letter-exchange")
    rules.dead_letter_routing_key = _text(values, "dead-letter-routing-key")
    # All but reject-publish would drop messages that must stay until they are confirmed; RabbitMQ falls back as well.
    rules.dead_letters_at_least_once = (
        rules.is_quorum
        and values.get("dead-letter-strategy") == "at-least-once"
        and rules.dead_letter_exchange is not None
        and rules.overflow == REJECT_PUBLISH
    )


def _set_delivery_limit(rules: QueueRules, values: Table) -> None:
    if "delivery-limit" in values:
        rules.delivery_limit = max(_number(values, "delivery-limit"), -1)
    elif rules.is_quorum:
        rules.delivery_limit = QUORUM_DELIVERY_LIMIT
    action = values.get("delivery-limit-action")
    if action == "drop":
        rules.limit_action = LIMIT_DROPS
    elif action == "park":
        rules.limit_action = LIMIT_PARKS


def _set_retries(rules: QueueRules, values: Table) -> None:
    delays = backoff_delays(values.get("retry-backoff"))
    retry_type = values.get("delayed-retry-type", "all" if delays else "disabled")
    if retry_type == "disabled":
        return
    if delays:
        rules.retry_delays_ms = delays
    elif "delayed-retry-min" in values:
        step_ms = _number(values, "delayed-retry-min")
        max_ms = _number(values, "delayed-retry-max") if "delayed-retry-max" in values else step_ms
        rules.retry_delays_ms = [min(step_ms, max_ms)]
        if step_ms < max_ms:
            rules.retry_step_ms = step_ms
            rules.retry_max_ms = max_ms
    else:
        return  # as in RabbitMQ: without a time nothing is delayed
    if retry_type == "all":
        rules.retry_type = RETRY_ALL
    elif retry_type == "failed":
        rules.retry_type = RETRY_FAILED
    else:
        rules.retry_type = RETRY_RETURNED
