"""Hints for options that users of other sources know: Kafka's, RabbitMQ's clients', Pulsar's.

1. A hint names options of this source only, and only such as mean the same.
2. Names are compared without case, and by the longest beginning that is known: ``kafka.ssl.`` before ``kafka.``.
"""

from __future__ import annotations

from typing import Final

_BROKER: Final = "uri and managementUrl say where the broker is"
_PROGRESS: Final = "Spark keeps how far a query is in its checkpoint, and consumerName has the broker show it"
_NAMES: Final = {
    "topic": "subscribe names what to read, exchange and routingKey, or queue, where to write",
    "topics": "subscribe names what to read, with commas between",
    "topicspattern": "subscribePattern is the regular expression",
    "includetimestamp": "the column timestamp is always there",
    "groupidprefix": _PROGRESS,
    "fetchoffset.numretries": "fetch.retries",
    "fetchoffset.retryintervalms": "fetch.backoffMs",
    "kafkaconsumer.polltimeoutms": "poll.timeoutMs",
    "maxfilespertrigger": "maxOffsetsPerTrigger",
    "maxrecordspertrigger": "maxOffsetsPerTrigger",
    "bootstrap.servers": _BROKER,
    "brokers": _BROKER,
    "servers": _BROKER,
    "hosts": _BROKER,
    "addresses": _BROKER,
    "endpoint": _BROKER,
    "url": _BROKER,
    "port": _BROKER,
    "service.url": _BROKER,
    "admin.url": _BROKER,
    "user": "username",
    "virtualhost": "vhost",
    "virtual_host": "vhost",
    "queuename": "queue",
    "queue_name": "queue",
    "stream": "subscribe",
    "streams": "subscribe",
    "prefetch": "maxOffsetsPerTrigger says how much a batch may have",
    "prefetch_count": "maxOffsetsPerTrigger says how much a batch may have",
    "auto_ack": "mode drain acknowledges what Spark has committed",
    "autoack": "mode drain acknowledges what Spark has committed",
}
_BEGINNINGS: Final = {
    "kafka.bootstrap.": _BROKER,
    "kafka.group.": _PROGRESS,
    "kafka.ssl.": "a uri that begins with amqps://, and tls.caFile, tls.certFile, tls.keyFile",
    "kafka.security.": "a uri that begins with amqps://, and tls.caFile",
    "kafka.sasl.": "username with password or passwordFile",
    "kafka.schema.registry.": "with_avro and with_protobuf of warren.spark_bridge take a registry",
    "kafka.": "options of a Kafka client mean nothing here, and " + _BROKER,
    "rabbitmq.queue": "queue",
    "rabbitmq.virtual": "vhost",
    "rabbitmq.user": "username",
    "rabbitmq.password": "password",
    "rabbitmq.": _BROKER,
    "pulsar.": _BROKER,
}
# The words that Spark passes on for a table of CREATE TABLE, instead of its options.
_OF_TABLES: Final = frozenset(("owner", "provider", "location", "comment", "external", "collation"))
NO_TABLES: Final = (
    "to a table that CREATE TABLE makes Spark passes no options. Make a view instead: "
    "CREATE TEMPORARY VIEW name USING warren OPTIONS (subscribe 'orders')"
)


def maybe_hint(name: str) -> str | None:
    """Return what to use here instead of the option `name`; None: the option is unknown."""
    lower = name.lower()
    if lower in _OF_TABLES:
        return NO_TABLES
    found = _NAMES.get(lower)
    if found is None:
        known = [beginning for beginning in _BEGINNINGS if lower.startswith(beginning)]
        found = _BEGINNINGS[max(known, key=len)] if known else None
    if found is None or " " in found:
        return found
    return f"here it is {found}"
