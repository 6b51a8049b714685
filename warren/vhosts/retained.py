"""Retained messages: the last of each topic of a vhost, for later subscribers (MQTT 5.0, section 3.3.1.3).

1. A retained message is a record of the vhost (`vhosts.records`). It is in one frame of the log with the copies of the
   message that queues get, and survives like them.
2. A vhost has at most `TOPICS_MAX` of them. Their topics, properties and bodies have at most `BYTES_MAX` together. One
   user cannot take all of that (`vhosts.user_shares`); a retained message counts for the user who published it.
3. An expired message is not found. It is removed when it is looked up. In addition, each message that is retained
   removes up to `EXPIRED_AT_ONCE` expired ones first, so these do not take the room of others.

    record "retained:" TOPIC
         0   8  published, in ms since the epoch
         8   8  expires then; 0: never
        16   4  property bytes | 0x80000000: a user follows
        20      user bytes (1), user; neither in what earlier versions have stored
                properties as in a content header, body
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final

from mypy_extensions import i64

from warren.vhosts.records import VhostRecords
from warren.vhosts.topic_levels import TopicLevel
from warren.vhosts.user_shares import UserShares

TOPICS_MAX: Final = 150_000
BYTES_MAX: Final = 96 << 20
EXPIRED_AT_ONCE: Final = 16
READ_AT_ONCE: Final = 500
# Up to this number, stale entries are not tidied up. More are tidied up little by little.
STALE_MIN: Final = 1024
TIDIED_AT_ONCE: Final = 8
_PREFIX: Final = "retained:"
_HEAD_BYTES: Final = 20
_HAS_USER: Final = 0x80000000
_NO_WORDS: Final[list[str]] = []  # shared by all searches that have not begun: never changed


class Retained:
    """The retained message of a topic. `user`: its publisher."""

    def __init__(self, user: str, published_ms: int, expires_ms: int, properties: bytes, body: bytes) -> None:
        self.user = user
        self.published_ms = published_ms
        self.expires_ms = expires_ms
        self.properties = properties
        self.body = body


class RetainedMessages:
    """The retained messages of one vhost. Make it after the vhost's records are read, and call `read` first."""

    def __init__(self, records: VhostRecords) -> None:
        self._records = records
        self.root = TopicLevel()
        self.topic_shares = UserShares(TOPICS_MAX)
        self.byte_shares = UserShares(BYTES_MAX)
        self._expiring: list[tuple[int, str]] = []  # a heap of expiry times and topics, with stale entries
        self._tidied: list[tuple[int, str]] = []  # a heap that is being tidied up: current entries go back to the other

    def read(self) -> Iterator[None]:
        """Restore the messages from their records; yield None after each piece. Until it ends, change nothing here."""
        records = self._records
        assert not records.is_restoring
        for at, name in enumerate(records.names()):
            if at % READ_AT_ONCE == READ_AT_ONCE - 1:
                yield
            value = records.maybe_value(name) if name.startswith(_PREFIX) else None
            if value is None:
                continue
            topic = name[len(_PREFIX) :]
            self._count(_user_of(value), 1, len(name) + len(value))
            self.root.put(topic)
            expires_ms = _expiry_of(value)
            if expires_ms:
                heappush(self._expiring, (expires_ms, topic))

    @property
    def count(self) -> int:
        """The number of topics with a retained message."""
        return self.topic_shares.total

    @property
    def bytes(self) -> int:
        """The size of all retained messages."""
        return self.byte_shares.total

    def _count(self, user: str, topics: int, size: int) -> None:
        self.topic_shares.add(user, topics)
        self.byte_shares.add(user, size)

    def put(self, topic: str, retained: Retained) -> bool:
        """Retain a message for `topic`, in place of an earlier one; False: there is too much already."""
        self._remove_expired(retained.published_ms)
        name = _PREFIX + topic
        user = retained.user.encode()[:255]
        value = (
            retained.published_ms.to_bytes(8, "big")
            + retained.expires_ms.to_bytes(8, "big")
            + (_HAS_USER | len(retained.properties)).to_bytes(4, "big")
            + bytes([len(user)])
            + user
            + retained.properties
            + retained.body
        )
        size = len(name) + len(value)
        old = self._records.maybe_value(name)
        if old is None:
            if not (self.topic_shares.allows(retained.user, 1) and self.byte_shares.allows(retained.user, size)):
                return False
            self.root.put(topic)
        else:
            earlier = _user_of(old)
            old_size = len(name) + len(old)
            is_own = earlier == retained.user
            self._count(earlier, -1, -old_size)
            has_topic = is_own or self.topic_shares.allows(retained.user, 1)
            has_bytes = (is_own and size <= old_size) or self.byte_shares.allows(retained.user, size)
            if not (has_topic and has_bytes):
                self._count(earlier, 1, old_size)
                return False
        self._count(retained.user, 1, size)
        self._records.store(name, value)
        if retained.expires_ms:
            self._note_expiry(retained.expires_ms, topic)
        return True

    def _note_expiry(self, expires_ms: int, topic: str) -> None:
        heappush(self._expiring, (expires_ms, topic))
        if not self._tidied and len(self._expiring) > 2 * self.count + STALE_MIN:
            self._tidied, self._expiring = self._expiring, []
        for _ in range(min(TIDIED_AT_ONCE, len(self._tidied))):
            entry = self._tidied.pop()  # without its last element a heap is still a heap
            if self._is_current(entry):
                heappush(self._expiring, entry)

    def _is_current(self, entry: tuple[int, str]) -> bool:
        value = self._records.maybe_value(_PREFIX + entry[1])
        return value is not None and _expiry_of(value) == entry[0]

    def _remove_expired(self, now_ms: int) -> None:
        for _ in range(EXPIRED_AT_ONCE):
            expiring = self._expiring
            if not expiring or (self._tidied and self._tidied[0] < expiring[0]):
                expiring = self._tidied
            if not expiring or expiring[0][0] > now_ms:
                return
            entry = heappop(expiring)
            if self._is_current(entry):
                self.remove(entry[1])

    def remove(self, topic: str) -> bool:
        """Remove the retained message of `topic`; False: there was nothing."""
        name = _PREFIX + topic
        old = self._records.maybe_value(name)
        if old is None:
            return False
        self._records.forget(name)
        self._count(_user_of(old), -1, -len(name) - len(old))
        self.root.remove(topic)
        return True

    def maybe(self, topic: str, now_ms: i64) -> Retained | None:
        """Return the retained message of `topic`, unless it has expired."""
        value = self._records.maybe_value(_PREFIX + topic)
        if value is None:
            return None
        found = _decoded(value)
        if 0 < found.expires_ms <= now_ms:
            self.remove(topic)
            return None
        return found

    def close(self) -> None:
        """Release everything: the vhost is deleted."""
        reclamation = self._records.log.reclamation
        reclamation.add_tree(self.root)
        reclamation.add(self._expiring, 0)
        reclamation.add(self._tidied, 0)
        self._expiring = []
        self._tidied = []


def _expiry_of(value: bytes) -> int:
    return int.from_bytes(value[8:16], "big")


def _user_of(value: bytes) -> str:
    if not value[16] & 0x80:
        return ""
    return value[_HEAD_BYTES + 1 : _HEAD_BYTES + 1 + value[_HEAD_BYTES]].decode(errors="replace")


def _decoded(value: bytes) -> Retained:
    size = int.from_bytes(value[16:_HEAD_BYTES], "big")
    at = _HEAD_BYTES
    user = _user_of(value)
    if size & _HAS_USER:
        size -= _HAS_USER
        at = _HEAD_BYTES + 1 + value[_HEAD_BYTES]
    published_ms = int.from_bytes(value[:8], "big")
    return Retained(user, published_ms, _expiry_of(value), value[at : at + size], value[at + size :])


class RetainedSearch:
    """Finds the topics that a filter matches, a level of the trie at each `next`."""

    def __init__(self, retained: RetainedMessages, filter_: str) -> None:
        self._filter = filter_
        self._words = _NO_WORDS  # split when the search begins, to save memory: very many searches may wait
        # Levels still to look at, each with how many words of the filter led there.
        self._left: list[tuple[list[TopicLevel], int]] = [([retained.root], 0)]

    def is_over(self) -> bool:
        """Tell whether all levels were looked at."""
        return not self._left

    def next(self) -> str | None:
        """Look at one more level; return the topic that ends there, if it matches."""
        levels, at = self._left[-1]
        level = levels.pop()
        if not levels:
            self._left.pop()
        words = self._words
        if not words:
            words = self._words = self._filter.split("/")
        if at == len(words):
            return self._maybe(level.topic)
        word = words[at]
        if word in ("#", "+"):
            if level.below:
                self._left.append((list(level.below.values()), at if word == "#" else at + 1))
            return self._maybe(level.topic) if word == "#" else None
        below = level.child(word)
        if below is not None:
            self._left.append(([below], at + 1))
        return None

    def _maybe(self, topic: str | None) -> str | None:
        """Return a topic, unless it begins with $ and the filter with a wildcard."""
        hidden = topic is not None and topic.startswith("$") and self._words[0] in ("#", "+")
        return None if hidden else topic
