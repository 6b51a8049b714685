"""The metadata that a node is sent, by the level that it has told."""

from __future__ import annotations

import json

import pytest

from warren.replication.format_level import DECLARED_BY_FROM, LEVEL, understood
from warren.vhosts.metadata import ExchangePut, QueuePut
from warren.vhosts.metadata_lane import decode_change, encode_change

EXCHANGE = ExchangePut("/", "x", "topic", auto_delete=False, internal=False, arguments=b"\0\0\0\0", declared_by="ann")


@pytest.mark.parametrize("level", range(1, DECLARED_BY_FROM))
def test_an_older_node_gets_no_field_that_it_would_refuse(level: int) -> None:
    sent = understood(encode_change(EXCHANGE), level)
    assert "declared_by" not in json.loads(sent)
    assert decode_change(sent) == ExchangePut("/", "x", "topic", False, False, b"\0\0\0\0")


def test_a_node_of_this_version_gets_changes_as_they_are() -> None:
    for change in (EXCHANGE, QueuePut("/", "declared_by", True, b"\0\0\0\0", 7)):
        record = encode_change(change)
        assert understood(record, LEVEL) is record
    assert understood(record, 1) is record
    assert understood(b"", 1) == b"", "a record that is lost"
