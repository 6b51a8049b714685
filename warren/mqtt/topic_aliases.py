"""Topic aliases: numbers that stand for topics in the PUBLISH packets of one connection.

    topic and alias     from now on the alias stands for the topic
    alias alone         the message has the topic that the alias stands for

1. Aliases go from 1 to `ALIASES`, which CONNACK states. They end with the connection.
2. The broker sends no aliases, so the Topic Alias Maximum of the client does not matter.

Source: MQTT 5, sections 3.2.2.3.8 and 3.3.2.3.4.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from warren.mqtt.reason_codes import BAD_ALIAS, PROTOCOL_ERROR, MqttError

ALIASES: Final = 16


@mypyc_attr(acyclic=True)
class TopicAliases:
    """The aliases of one connection. It is made when the first one comes: most clients use none."""

    def __init__(self) -> None:
        self._topics: dict[int, bytes] = {}

    def topic_of(self, alias: int, topic: bytes) -> bytes:
        """Return the topic of a PUBLISH with `alias`, and note it if it is stated.

        Raises:
            MqttError: the alias is too high, or stands for nothing.
        """
        if alias > ALIASES:
            raise MqttError(BAD_ALIAS, f"the maximum topic alias is {ALIASES}")
        if topic:
            self._topics[alias] = topic
            return topic
        topic = self._topics.get(alias, b"")
        if topic == b"":
            raise MqttError(PROTOCOL_ERROR, f"the topic alias {alias} is not set")
        return topic
