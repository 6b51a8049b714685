"""Topics and filters of MQTT, and their routing and binding keys in the topic exchange.

    /    level separator    .
    .                       /       both are exchanged, so nothing is lost: `a.b/c` is the key `a/b.c`
    +    one level          *       in filters
    #    any levels         #

If a level of a filter is just ``*``, it is a wildcard in the binding key. `Filters` drops the additional messages of
such a subscription. It also drops topics that begin with $ and match a wildcard at the beginning.

Source: MQTT 5.0, section 4.7; the mapping is that of RabbitMQ's plugin, but for the dot.
"""

from __future__ import annotations

from typing import Final

from warren.amqp.codec import NAME_MAX_BYTES
from warren.exchanges.topic_exchange import WORDS_MAX
from warren.mqtt.packets import check_filter
from warren.mqtt.reason_codes import BAD_FILTER, BAD_TOPIC, MqttError
from warren.msgstore.log.reclamation import Reclamation
from warren.vhosts.topic_levels import TopicLevel

EXCHANGE: Final = "amq.topic"
SHARED: Final = "$share/"
FEW: Final = 4  # subscriptions of a session that are compared one by one
SHARED_QUEUE_PREFIX: Final = "mqtt-shared-"
_SWAPPED: Final = str.maketrans("/.", "./")
_TO_BINDING: Final = str.maketrans("/.+", "./*")
_FROM_BINDING: Final = str.maketrans("./*", "/.+")


def routing_key(topic: str) -> str:
    """Return the routing key of a topic.

    Raises:
        MqttError: it is longer than a key may be.
    """
    if len(topic.encode()) > NAME_MAX_BYTES:
        raise MqttError(BAD_TOPIC, f"the topic is longer than {NAME_MAX_BYTES} bytes")
    return topic.translate(_SWAPPED)


def topic_of(key: str) -> str:
    """Return the topic of a message that was published with a routing key."""
    return key.translate(_SWAPPED)


def is_topic(topic: str) -> bool:
    """Tell whether a topic is valid: a routing key may be empty or have wildcards, and a topic may not."""
    return topic != "" and "+" not in topic and "#" not in topic


def binding_key(filter_: str) -> str:
    """Return the binding key of a filter.

    Raises:
        MqttError: the filter is not valid, is longer than a key may be, or has too many levels for a key.
    """
    check_filter(filter_)
    if len(filter_.encode()) > NAME_MAX_BYTES:
        raise MqttError(BAD_FILTER, f"the filter is longer than {NAME_MAX_BYTES} bytes")
    if filter_.count("/") >= WORDS_MAX:
        raise MqttError(BAD_FILTER, f"the filter has more than {WORDS_MAX} levels")
    return filter_.translate(_TO_BINDING)


def filter_of(key: str) -> str:
    """Return the filter of a binding key. This is not the right one if a level of the filter was just ``*``."""
    return key.translate(_FROM_BINDING)


def split_shared(filter_: str) -> tuple[str, str]:
    """Return the filter of a subscription without the group that shares it, and that group; ``""``: it is not shared.

    Raises:
        MqttError: it begins as a shared subscription, but is not a valid one.
    """
    if not filter_.startswith(SHARED):
        return filter_, ""
    group, slash, rest = filter_[len(SHARED) :].partition("/")
    if group == "" or slash == "" or rest == "" or "+" in group or "#" in group:
        raise MqttError(
            BAD_FILTER, f"{filter_[:64]!a} is not a shared filter: $share/GROUP/FILTER, wildcards in FILTER only"
        )
    return rest, group


def shared_queue(group: str, filter_: str) -> str:
    """Return the name of the queue of a group for a filter.

    Raises:
        MqttError: it is longer than a name may be.
    """
    name = f"{SHARED_QUEUE_PREFIX}{group}/{filter_}"
    if len(name.encode()) > NAME_MAX_BYTES or "\r" in name or "\n" in name:
        raise MqttError(BAD_FILTER, f"the queue '{name[:64]!a}' has a line break in its name, or too long a name")
    return name


def has_star(filter_: str) -> bool:
    """Tell whether a level of `filter_` is just ``*``."""
    return "*" in filter_.split("/")


class Subscription:
    """A filter with the options of its subscriber. `identifier`: 0, not set."""

    def __init__(
        self, filter_: str, qos: int, no_local: bool, as_published: bool, identifier: int, arguments: bytes
    ) -> None:
        self.filter = filter_
        self.qos = qos
        self.no_local = no_local
        self.as_published = as_published
        self.identifier = identifier
        self.arguments = arguments  # of its binding

    def described(self) -> dict[str, object]:
        """Return it as the management API shows it."""
        return {
            "filter": self.filter,
            "qos": self.qos,
            "no_local": self.no_local,
            "retain_as_published": self.as_published,
            "identifier": self.identifier or None,
        }


def matches(filter_: str, topic: str) -> bool:
    """Tell whether a filter matches a topic."""
    if filter_ == topic:
        return True
    if "+" not in filter_ and "#" not in filter_:
        return False
    words = topic.split("/")
    wanted = filter_.split("/")
    if words[0].startswith("$") and wanted[0] in ("+", "#"):
        return False
    at = 0
    for word in wanted:
        if word == "#":
            return True
        if at == len(words) or word not in ("+", words[at]):
            return False
        at += 1
    return at == len(words)


_NONE: Final[list[Subscription]] = []  # shared by all that are empty: never changed


class Filters:
    """The subscriptions of a session, by filter; also finds those that match a topic.

    A few of them are kept as a list: most clients have one or two, and dicts are large. More are kept in a dict and a
    trie.
    """

    def __init__(self) -> None:
        self._few = _NONE
        self._all: dict[str, Subscription] | None = None
        self._root: TopicLevel | None = None

    def __len__(self) -> int:
        return len(self._few) if self._all is None else len(self._all)

    def values(self) -> list[Subscription]:
        """Return all of them."""
        return list(self._few) if self._all is None else list(self._all.values())

    def get(self, filter_: str) -> Subscription | None:
        """Return the subscription with `filter_`."""
        if self._all is not None:
            return self._all.get(filter_)
        for each in self._few:
            if each.filter == filter_:
                return each
        return None

    def clear(self, reclamation: Reclamation) -> None:
        """Forget all; if they are very many, later turns free them."""
        self._few = _NONE
        if self._all is not None and self._root is not None:
            reclamation.add_named(self._all, 0)
            reclamation.add_tree(self._root)
        self._all = None
        self._root = None

    def put(self, subscription: Subscription) -> None:
        """Add a subscription, in place of one with the same filter."""
        found = self._all
        root = self._root
        if found is not None and root is not None:
            found[subscription.filter] = subscription
            root.put(subscription.filter)
            return
        few = [each for each in self._few if each.filter != subscription.filter]
        few.append(subscription)
        if len(few) <= FEW:
            self._few = few[:]  # a copy has no spare room
            return
        root = TopicLevel()
        for each in few:
            root.put(each.filter)
        self._root = root
        self._all = {each.filter: each for each in few}
        self._few = _NONE

    def remove(self, filter_: str) -> None:
        """Forget the subscription with `filter_`. It must exist."""
        root = self._root
        found = self._all
        if root is None or found is None:
            self._few = [each for each in self._few if each.filter != filter_]
            return
        del found[filter_]
        root.remove(filter_)

    def matching(self, topic: str) -> list[Subscription]:
        """Return the subscriptions whose filters match `topic`."""
        root = self._root
        found = self._all
        if root is None or found is None:
            return [each for each in self._few if matches(each.filter, topic)]
        words = topic.split("/")
        ends: list[TopicLevel] = []
        levels = [root]
        is_first = True
        for word in words:
            following: list[TopicLevel] = []
            wild = not (is_first and word.startswith("$"))
            is_first = False
            for level in levels:
                exact = level.child(word)
                if exact is not None and word not in ("+", "#"):
                    following.append(exact)
                if wild:
                    any_one = level.child("+")
                    if any_one is not None:
                        following.append(any_one)
                    rest = level.child("#")
                    if rest is not None:
                        ends.append(rest)
            levels = following
        for level in levels:
            ends.append(level)
            rest = level.child("#")
            if rest is not None:
                ends.append(rest)
        return [found[end.topic] for end in ends if end.topic is not None]
