"""The rules that the tests show, by id, and the page Conformance that `make docs` makes of them.

Ids, by where a rule comes from:

    basic.qos.prefetch-count.01    the XML specification: class, method, field and the rule's own name
    4.2.3                          the section of the specification's text
    rabbitmq.basic.get             RabbitMQ's extension or the reading of the specification that its clients rely on
    warren.queue.arguments         what only we have
    abuse.pre-auth                 what a hostile peer must not achieve

`SPECIFICATION` lists every rule of the XML that binds the server; each is shown by a test or stands in `NOT_SHOWN`.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

AREAS = (
    "connection",
    "channel",
    "exchange",
    "queue",
    "queue_arguments",
    "basic",
    "delivery_timeouts",
    "confirm",
    "tx",
    "framing",
    "limits",
    "content_limits",
    "output_limits",
    "routing_limits",
    "access",
    "policies",
    "parameters",
    "vhosts",
    "tracing",
    "events",
    "events_administration",
    "retry",
    "delay",
    "dedup",
    "expiry",
    "length",
    "dead_letter",
    "dead_letter_circles",
    "dead_letter_published_deaths",
    "dead_letter_tries",
    "dead_letter_storage",
    "priority",
    "quorum",
    "read_committed",
    "stream_declaring",
    "streams",
    "stream_keeping",
    "stream_duplicates",
    "stream_groups",
    "group_commits",
    "group_resets",
    "group_restarts",
    "super_stream_declarations",
    "super_stream_routing",
    "super_stream_groups",
    "key_shared",
    "large_messages",
    "turns",
)

TestFunction = TypeVar("TestFunction", bound=Callable[..., Any])


class Rule(NamedTuple):
    """One rule, shown by one test. ``deviation``: what we do instead, and why; empty when we do as the rule says."""

    id: str
    sentence: str
    area: str
    test: str
    deviation: str


RULES: list[Rule] = []


def rule(identifier: str, sentence: str, *, deviation: str = "") -> Callable[[TestFunction], TestFunction]:
    """Say that the test shows the rule called `identifier`, which is `sentence` in our own words."""

    def register(test: TestFunction) -> TestFunction:
        area = test.__module__.rpartition("test_")[2]
        RULES.append(Rule(identifier, sentence, area, test.__name__, deviation))
        return test

    return register


SPECIFICATION = (
    "delivery-tag.channel-local",
    "delivery-tag.non-zero",
    "redelivered.implementation",
    "connection.start.protocol-name",
    "connection.start.server-support",
    "connection.start.server-properties.required-fields",
    "connection.start.locales.required-support",
    "connection.start-ok.mechanism.validity",
    "connection.tune.frame-max.minimum",
    "connection.tune-ok.channel-max.upper-limit",
    "connection.tune-ok.frame-max.minimum",
    "connection.tune-ok.frame-max.upper-limit",
    "connection.open.virtual-host.separation",
    "connection.open.virtual-host.security",
    "connection.close.stability",
    "connection.close-ok.reporting",
    "channel.open.state",
    "channel.flow.initial-state",
    "channel.flow.bidirectional",
    "channel.flow.throttling",
    "channel.flow.expected-behaviour",
    "channel.close.stability",
    "channel.close-ok.reporting",
    "exchange.required-types",
    "exchange.recommended-types",
    "exchange.required-instances",
    "exchange.default-exchange",
    "exchange.default-access",
    "exchange.extensions",
    "exchange.declare.minimum",
    "exchange.declare.exchange.reserved",
    "exchange.declare.exchange.syntax",
    "exchange.declare.type.typed",
    "exchange.declare.type.support",
    "exchange.declare.passive.not-found",
    "exchange.declare.passive.equivalent",
    "exchange.declare.durable.support",
    "exchange.delete.exchange.exists",
    "exchange.delete.if-unused.in-use",
    "queue.declare.default-binding",
    "queue.declare.minimum-queues",
    "queue.declare.queue.default-name",
    "queue.declare.queue.reserved",
    "queue.declare.queue.syntax",
    "queue.declare.passive.passive",
    "queue.declare.passive.equivalent",
    "queue.declare.durable.persistence",
    "queue.declare.durable.types",
    "queue.declare.exclusive.types",
    "queue.declare.exclusive.exclusive",
    "queue.declare.auto-delete.pre-existence",
    "queue.bind.duplicates",
    "queue.bind.unique",
    "queue.bind.transient-exchange",
    "queue.bind.durable-exchange",
    "queue.bind.binding-count",
    "queue.bind.queue.queue-known",
    "queue.bind.queue.must-exist",
    "queue.bind.exchange.exchange-existence",
    "queue.bind.exchange.default-exchange",
    "queue.bind.routing-key.direct-exchange-key-matching",
    "queue.unbind.01",
    "queue.unbind.queue.queue-known",
    "queue.unbind.queue.must-exist",
    "queue.unbind.exchange.must-exist",
    "queue.unbind.exchange.default-exchange",
    "queue.purge.02",
    "queue.purge.03",
    "queue.purge.queue.queue-known",
    "queue.purge.queue.must-exist",
    "queue.delete.01",
    "queue.delete.queue.queue-known",
    "queue.delete.queue.must-exist",
    "queue.delete.if-unused.in-use",
    "queue.delete.if-empty.not-empty",
    "basic.01",
    "basic.02",
    "basic.03",
    "basic.04",
    "basic.05",
    "basic.06",
    "basic.07",
    "basic.08",
    "basic.09",
    "basic.10",
    "basic.qos.prefetch-size.01",
    "basic.qos.prefetch-count.01",
    "basic.consume.01",
    "basic.consume.consumer-tag.01",
    "basic.consume.consumer-tag.02",
    "basic.consume.exclusive.01",
    "basic.cancel.01",
    "basic.publish.exchange.must-exist",
    "basic.publish.exchange.default-exchange",
    "basic.publish.exchange.02",
    "basic.publish.exchange.03",
    "basic.publish.mandatory.01",
    "basic.publish.immediate.01",
    "basic.deliver.01",
    "basic.ack.multiple.exists",
    "basic.reject.01",
    "basic.reject.02",
    "basic.reject.requeue.01",
    "basic.recover-async.01",
    "basic.recover.01",
    "tx.commit.transacted",
    "tx.rollback.transacted",
)

NOT_SHOWN = {
    "channel.flow.throttling": "A permission that is not used: publishers are slowed by not reading their sockets.",
    "channel.flow.expected-behaviour": "A permission that is not used: the broker never sends channel.flow.",
    "queue.purge.03": "A permission that is not used: purged messages are gone.",
    "queue.delete.01": "RabbitMQ's rule holds instead: the messages of a deleted queue are gone.",
    "basic.03": "A permission that is not used: publishers are slowed by not reading their sockets.",
    "basic.05": "A permission that is not used.",
    "basic.publish.exchange.03": "A permission that is not used: every exchange takes content.",
    "basic.reject.01": "Partly sent content is never cancelled: frames of one content leave in one piece.",
}


def load() -> list[Rule]:
    """Import all tests of this package and return their rules."""
    package = sys.modules[__package__]
    for module in pkgutil.iter_modules(package.__path__):
        if module.name.startswith("test_") and module.name != "test_document":
            importlib.import_module(f"{__package__}.{module.name}")
    return RULES


def document() -> str:
    """Return the page, in Markdown."""
    lines = [
        "# Conformance",
        "",
        "Each rule with the test that shows it, generated from `tests/conformance`.",
        "",
        "Ids such as `basic.ack.multiple.exists` are rules of the AMQP 0-9-1 XML specification (class, method, field,",
        "rule), numbers are sections of its text, `rabbitmq.` is what RabbitMQ documents or its clients rely on,",
        "`warren.` what only Warren has, `abuse.` what a hostile peer must not achieve. A rule says where we follow",
        "RabbitMQ against the specification.",
    ]
    rules = load()
    for area in AREAS:
        lines += ["", f"## {area}", "", "| Rule | What holds | Test |", "| --- | --- | --- |"]
        for each in sorted((each for each in rules if each.area == area), key=_order):
            sentence = each.sentence if not each.deviation else f"{each.sentence} **Deviation:** {each.deviation}"
            sentence = sentence.replace("|", "\\|")
            lines.append(f"| `{each.id}` | {sentence} | `test_{area}.py::{each.test}` |")
    lines += ["", "## Rules without a test", "", "| Rule | Why |", "| --- | --- |"]
    lines += [f"| `{identifier}` | {why} |" for identifier, why in sorted(NOT_SHOWN.items())]
    return "\n".join(lines) + "\n"


def _order(each: Rule) -> tuple[int, str, str]:
    prefix = each.id.partition(".")[0]
    source = {"rabbitmq": 2, "warren": 3, "abuse": 4}.get(prefix, 1 if prefix.isdigit() else 0)
    return source, each.id, each.test
