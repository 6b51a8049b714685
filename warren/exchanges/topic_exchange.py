"""Topic exchanges: binding keys are patterns of words, kept in a trie.

Dots separate the words. In a binding key ``*`` matches exactly one word, and ``#`` zero or more. The empty
key has no word at all; any other empty word, as in ``a..b``, counts as a word.

For a message, the walk through the trie keeps the set of nodes that its words so far lead to. A ``#`` node stays in the
set whatever the next word is. Entering a node also enters its ``#`` child, since ``#`` may match no word.

1. Every node other than the root has a binding or a child: unbinding removes the nodes that have neither.
2. A node enters the set at most once per word. With two ``#`` per key at most (`HASHES_MAX`), the work for a
   message grows with the number of its words times the number of nodes that match so far. It does not grow with
   the number of ways to match. Each node for a word is a step of `Content.steps_left`.
3. The bindings of a node are looked at once per message, however many of its routing keys lead there.
4. A node with one child by word keeps it without a dict: most nodes of a large trie are links of such chains. Where no
   binding key continues, as at the end of most of them, the first binding of the bucket takes the place of a node.
5. A child by word is either the only one of its node, or in the dict of the node, never both.

Source: AMQP 0-9-1 section 3.1.3.3 "the topic exchange type"; empty words as RabbitMQ 3.10.8 treats them.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from warren.amqp.declarations import ExchangeDeclaration
from warren.amqp.errors import PRECONDITION_FAILED, ChannelException
from warren.exchanges.binding import Binding, append_bucket, chained_in_bucket, unchained_in_bucket
from warren.exchanges.content import Content
from warren.exchanges.exchange import Exchange
from warren.queues.destination import Destination

WORDS_MAX: Final = 128
HASHES_MAX: Final = 2


class TopicNode:
    """The place in the trie that the words of some binding keys lead to. ``first``: of the bindings that end here."""

    def __init__(self) -> None:
        self.first: Binding | None = None
        self.star: TopicNode | Binding | None = None
        self.hash: TopicHash | None = None
        self.only_word: str | None = None
        self.only_child: TopicNode | Binding | None = None
        self.other_children: dict[str, TopicNode | Binding] | None = None

    def child(self, word: str) -> TopicNode | Binding | None:
        """Return the child that `word` of a routing key leads to, wildcards aside."""
        if self.only_word == word:
            return self.only_child
        if self.other_children is not None:
            return self.other_children.get(word)
        return None

    def child_of_pattern(self, word: str) -> TopicNode | Binding | None:
        """Return the child that `word` of a binding key leads to."""
        if word == "*":
            return self.star
        if word == "#":
            return self.hash
        return self.child(word)

    def put(self, word: str, child: TopicNode | Binding) -> None:
        """Set the child for `word` of a binding key, in place of an earlier one."""
        if word == "*":
            self.star = child
        elif word == "#":
            assert isinstance(child, TopicHash)
            self.hash = child
        elif self.only_word == word:
            self.only_child = child
        elif self.other_children is not None and word in self.other_children:
            self.other_children[word] = child
        elif self.only_child is None:
            self.only_word = word
            self.only_child = child
        elif self.other_children is None:
            self.other_children = {word: child}
        else:
            self.other_children[word] = child

    def remove(self, word: str) -> None:
        """Forget the child that `word` of a binding key leads to."""
        if word == "*":
            self.star = None
        elif word == "#":
            self.hash = None
        elif self.only_word == word:
            self.only_word = None
            self.only_child = None
        else:
            assert self.other_children is not None
            del self.other_children[word]
            if not self.other_children:
                self.other_children = None

    def is_empty(self) -> bool:
        return (
            self.first is None
            and self.star is None
            and self.hash is None
            and self.only_child is None
            and self.other_children is None
        )


class TopicHash(TopicNode):
    """The node of a ``#``. ``step``: the last step of a walk that reached it."""

    def __init__(self) -> None:
        super().__init__()
        self.step: i64 = 0


class TopicExchange(Exchange):
    """An exchange of type ``topic``."""

    def __init__(self, declaration: ExchangeDeclaration) -> None:
        super().__init__(declaration)
        self._root = TopicNode()
        self._step: i64 = 0

    def match(self, routing_key: str, content: Content, found: list[Destination]) -> None:
        for place in self._reached(routing_key, content):
            append_bucket(_first_of(place), found)

    def match_keys(self, routing_keys: list[str], content: Content, found: list[Destination]) -> None:
        if len(routing_keys) == 1:
            self.match(routing_keys[0], content, found)
            return
        places: dict[TopicNode | Binding, None] = {}
        for routing_key in routing_keys:
            for place in self._reached(routing_key, content):
                places[place] = None
            if content.steps_left < 0:
                return
        for place in places:
            append_bucket(_first_of(place), found)

    def _reached(self, routing_key: str, content: Content) -> list[TopicNode | Binding]:
        """Return the places that the words of `routing_key` lead to; an empty list when no steps are left."""
        places: list[TopicNode | Binding] = []
        self._step += 1
        self._enter(self._root, places)
        if routing_key:
            for word in routing_key.split("."):
                content.steps_left -= len(places)
                if content.steps_left < 0:
                    return []
                places = self._advance(places, word)
                if not places:
                    break
        return places

    def check_binding(self, routing_key: str, arguments: bytes) -> None:
        words = routing_key.split(".")
        if len(words) > WORDS_MAX:
            raise ChannelException(
                PRECONDITION_FAILED, f"binding key has {len(words)} words, at most {WORDS_MAX} are allowed"
            )
        hashes = words.count("#")
        if hashes > HASHES_MAX:
            raise ChannelException(
                PRECONDITION_FAILED,
                f"binding key '{routing_key}' has {hashes} '#' words, at most {HASHES_MAX} are allowed",
            )

    def _advance(self, places: list[TopicNode | Binding], word: str) -> list[TopicNode | Binding]:
        """Return the places that `word` leads to from `places`."""
        reached: list[TopicNode | Binding] = []
        self._step += 1
        for node in places:
            if not isinstance(node, TopicNode):
                continue
            # Parents come before their children: a parent that enters this node again has done so by now.
            if isinstance(node, TopicHash) and node.step != self._step:
                self._enter(node, reached)
            child = node.child(word)
            if child is not None:
                self._enter(child, reached)
            star = node.star
            if star is not None:
                self._enter(star, reached)
        return reached

    def _enter(self, place: TopicNode | Binding, reached: list[TopicNode | Binding]) -> None:
        """Append `place`, and the ``#`` nodes below it that can be reached without a word."""
        reached.append(place)
        if not isinstance(place, TopicNode):
            return
        below = place.hash
        while below is not None:
            below.step = self._step
            reached.append(below)
            below = below.hash

    def _index(self, binding: Binding) -> None:
        words = _words(binding.routing_key)
        is_at_node = not words or words[-1] == "#"
        node = self._root
        for word in words if is_at_node else words[:-1]:
            node = _node_below(node, word)
        end = node if is_at_node else node.child_of_pattern(words[-1])
        if isinstance(end, TopicNode):
            end.first = chained_in_bucket(end.first, binding)
        elif end is None:
            node.put(words[-1], chained_in_bucket(None, binding))
        else:
            chained_in_bucket(end, binding)

    def _unindex(self, binding: Binding) -> None:
        words = _words(binding.routing_key)
        path: list[TopicNode] = []
        end: TopicNode | Binding = self._root
        for word in words:
            assert isinstance(end, TopicNode)
            path.append(end)
            below = end.child_of_pattern(word)
            assert below is not None
            end = below
        before = _first_of(end)
        assert before is not None
        first = unchained_in_bucket(before, binding)
        if isinstance(end, TopicNode):
            end.first = first
        elif first is not None:
            path[-1].put(words[-1], first)
            return
        else:
            end = path.pop()
            end.remove(words[len(path)])
        while path and end.is_empty():
            end = path.pop()
            end.remove(words[len(path)])


def _first_of(place: TopicNode | Binding) -> Binding | None:
    """Return the first of the bindings whose keys end at a place of the trie."""
    return place.first if isinstance(place, TopicNode) else place


def _node_below(node: TopicNode, word: str) -> TopicNode:
    """Return the child that `word` of a binding key leads to, as a node that other words may continue from."""
    below = node.child_of_pattern(word)
    if isinstance(below, TopicNode):
        return below
    grown = TopicHash() if word == "#" else TopicNode()
    grown.first = below
    node.put(word, grown)
    return grown


def _words(binding_key: str) -> list[str]:
    return binding_key.split(".") if binding_key else []
