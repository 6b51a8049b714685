"""Topic exchanges: binding keys are patterns of words, kept in a trie.

Words are what stands between dots; ``*`` in a binding key is exactly one word, ``#`` zero or more. The empty
key has no word at all; any other empty word, as in ``a..b``, counts as a word.

A message walks the trie with the set of nodes that its words so far lead to. A ``#`` node stays in the set
whatever the next word is, and entering a node enters its ``#`` child too, since ``#`` may stand for nothing.

1. Every node other than the root has a binding or a child: unbinding prunes.
2. A node enters the set at most once per word. With two ``#`` per key at most (`HASHES_MAX`), the work for a
   message grows with the number of its words times the nodes that match so far, never with the number of ways
   to match. Each node for a word is a step of `Content.steps_left`.
3. The bindings of a node are looked at once per message, however many of its routing keys lead there.
4. A node with one child by word keeps it without a dict: most nodes of a large trie are links of such chains.

Source: AMQP 0-9-1 section 3.1.3.3 "the topic exchange type"; empty words as RabbitMQ 3.10.8 treats them.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from warren.amqp.declarations import ExchangeDeclaration
from warren.amqp.errors import PRECONDITION_FAILED, ChannelException
from warren.exchanges.binding import Binding, append_bucket, chained_in_bucket, unchained_in_bucket
from warren.exchanges.content import Content
from warren.exchanges.destination import Destination
from warren.exchanges.exchange import Exchange

WORDS_MAX: Final = 128
HASHES_MAX: Final = 2


class TopicNode:
    """The place in the trie where the words of some binding keys lead."""

    def __init__(self, is_hash: bool) -> None:
        self.is_hash = is_hash
        self.first: Binding | None = None
        self.star: TopicNode | None = None
        self.hash: TopicNode | None = None
        self.only_word: str | None = None
        self.only_child: TopicNode | None = None
        self.other_children: dict[str, TopicNode] | None = None
        # The last step of a walk that reached this ``#`` node.
        self.step: i64 = 0

    def child(self, word: str) -> TopicNode | None:
        """Return the child that `word` of a routing key leads to, wildcards aside."""
        if self.only_word == word:
            return self.only_child
        if self.other_children is not None:
            return self.other_children.get(word)
        return None

    def child_of_pattern(self, word: str) -> TopicNode | None:
        """Return the child that `word` of a binding key leads to."""
        if word == "*":
            return self.star
        if word == "#":
            return self.hash
        return self.child(word)

    def add(self, word: str) -> TopicNode:
        """Create and return the child that `word` of a binding key leads to."""
        node = TopicNode(word == "#")
        if word == "*":
            self.star = node
        elif word == "#":
            self.hash = node
        elif self.only_child is None:
            self.only_word = word
            self.only_child = node
        elif self.other_children is None:
            self.other_children = {word: node}
        else:
            self.other_children[word] = node
        return node

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


class TopicExchange(Exchange):
    """An exchange of type ``topic``."""

    def __init__(self, declaration: ExchangeDeclaration) -> None:
        super().__init__(declaration)
        self._root = TopicNode(False)
        self._step: i64 = 0

    def match(self, routing_key: str, content: Content, found: list[Destination]) -> None:
        for node in self._reached(routing_key, content):
            append_bucket(node.first, found)

    def match_keys(self, routing_keys: list[str], content: Content, found: list[Destination]) -> None:
        if len(routing_keys) == 1:
            self.match(routing_keys[0], content, found)
            return
        nodes: dict[TopicNode, None] = {}
        for routing_key in routing_keys:
            for node in self._reached(routing_key, content):
                nodes[node] = None
            if content.steps_left < 0:
                return
        for node in nodes:
            append_bucket(node.first, found)

    def _reached(self, routing_key: str, content: Content) -> list[TopicNode]:
        """Return the nodes that the words of `routing_key` lead to, none when there are no steps left."""
        nodes: list[TopicNode] = []
        self._step += 1
        self._enter(self._root, nodes)
        if routing_key:
            for word in routing_key.split("."):
                content.steps_left -= len(nodes)
                if content.steps_left < 0:
                    return []
                nodes = self._advance(nodes, word)
                if not nodes:
                    break
        return nodes

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

    def _advance(self, nodes: list[TopicNode], word: str) -> list[TopicNode]:
        """Return the nodes that `word` leads to from `nodes`."""
        reached: list[TopicNode] = []
        self._step += 1
        for node in nodes:
            # Parents stand before their children: if a parent enters this node again, it has done so by now.
            if node.is_hash and node.step != self._step:
                self._enter(node, reached)
            child = node.child(word)
            if child is not None:
                self._enter(child, reached)
            star = node.star
            if star is not None:
                self._enter(star, reached)
        return reached

    def _enter(self, node: TopicNode, reached: list[TopicNode]) -> None:
        """Append `node` and the ``#`` nodes that no word at all leads to from there."""
        reached.append(node)
        below = node.hash
        while below is not None:
            below.step = self._step
            reached.append(below)
            below = below.hash

    def _index(self, binding: Binding) -> None:
        node = self._root
        for word in _words(binding.routing_key):
            below = node.child_of_pattern(word)
            node = node.add(word) if below is None else below
        node.first = chained_in_bucket(node.first, binding)

    def _unindex(self, binding: Binding) -> None:
        words = _words(binding.routing_key)
        path: list[TopicNode] = [self._root]
        node = self._root
        for word in words:
            below = node.child_of_pattern(word)
            assert below is not None
            node = below
            path.append(node)
        assert node.first is not None
        node.first = unchained_in_bucket(node.first, binding)
        depth = len(words)
        while depth > 0 and path[depth].is_empty():
            depth -= 1
            path[depth].remove(words[depth])


def _words(binding_key: str) -> list[str]:
    return binding_key.split(".") if binding_key else []
