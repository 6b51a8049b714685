"""Topic aliases: what an alias stands for, and which aliases are refused."""

from __future__ import annotations

import pytest

from warren.mqtt.reason_codes import BAD_ALIAS, PROTOCOL_ERROR, MqttError
from warren.mqtt.topic_aliases import ALIASES, TopicAliases


def test_an_alias_stands_for_the_latest_topic_stated_with_it() -> None:
    aliases = TopicAliases()
    assert aliases.topic_of(1, b"a") == b"a"
    assert aliases.topic_of(ALIASES, b"b") == b"b"
    assert (aliases.topic_of(1, b""), aliases.topic_of(ALIASES, b"")) == (b"a", b"b")
    assert aliases.topic_of(1, b"c") == b"c"
    assert (aliases.topic_of(1, b""), aliases.topic_of(ALIASES, b"")) == (b"c", b"b")


@pytest.mark.parametrize(
    ("alias", "topic", "reason"),
    [(ALIASES + 1, b"a", BAD_ALIAS), (ALIASES + 1, b"", BAD_ALIAS), (2, b"", PROTOCOL_ERROR)],
)
def test_an_alias_that_cannot_be_is_refused_and_not_kept(alias: int, topic: bytes, reason: int) -> None:
    aliases = TopicAliases()
    aliases.topic_of(1, b"a")
    for _ in range(2):
        with pytest.raises(MqttError) as caught:
            aliases.topic_of(alias, topic)
        assert caught.value.reason == reason
    assert aliases.topic_of(1, b"") == b"a"
