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
4. A node with one child by word keeps it without a dict: most nodes of a large trie are links of such chains. Where
   nothing has gone on, as at the end of most binding keys, the node is a mere `TopicLeaf`.

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


class TopicLeaf:
    """The place in the trie where the words of some binding keys end; no others go on from here."""

    def __init__(self) -> None:
        self.first: Binding | None = None

    def is_empty(self) -> bool:
        return self.first is None


class TopicNode(TopicLeaf):
    """The place in the trie where the words of some binding keys lead."""

    def __init__(self) -> None:
        super().__init__()
        self.star: TopicLeaf | None = None
        self.hash: TopicHash | None = None
        self.only_word: str | None = None
        self.only_child: TopicLeaf | None = None
        self.other_children: dict[str, TopicLeaf] | None = None

    def child(self, word: str) -> TopicLeaf | None:
        """Return the child that `word` of a routing key leads to, wildcards aside."""
        if self.only_word == word:
            return self.only_child
        if self.other_children is not None:
            return self.other_children.get(word)
        return None

    def child_of_pattern(self, word: str) -> TopicLeaf | None:
        """Return the child that `word` of a binding key leads to."""
        if word == "*":
            return self.star
        if word == "#":
            return self.hash
        return self.child(word)

    def put(self, word: str, child: TopicLeaf) -> None:
        """Have `word` of a binding key lead to `child`, in place of what it led to."""
        if word == "*":
            self.star = child
        elif word == "#":
            assert isinstance(child, TopicHash)
            self.hash = child
        elif self.only_child is None or self.only_word == word:
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
        for node in self._reached(routing_key, content):
            append_bucket(node.first, found)

    def match_keys(self, routing_keys: list[str], content: Content, found: list[Destination]) -> None:
        if len(routing_keys) == 1:
            self.match(routing_keys[0], content, found)
            return
        nodes: dict[TopicLeaf, None] = {}
        for routing_key in routing_keys:
            for node in self._reached(routing_key, content):
                nodes[node] = None
            if content.steps_left < 0:
                return
        for node in nodes:
            append_bucket(node.first, found)

    def _reached(self, routing_key: str, content: Content) -> list[TopicLeaf]:
        """Return the nodes that the words of `routing_key` lead to, none when there are no steps left."""
        nodes: list[TopicLeaf] = []
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

    def _advance(self, nodes: list[TopicLeaf], word: str) -> list[TopicLeaf]:
        """Return the nodes that `word` leads to from `nodes`."""
        reached: list[TopicLeaf] = []
        self._step += 1
        for node in nodes:
            if not isinstance(node, TopicNode):
                continue
            # Parents stand before their children: if a parent enters this node again, it has done so by now.
            if isinstance(node, TopicHash) and node.step != self._step:
                self._enter(node, reached)
            child = node.child(word)
            if child is not None:
                self._enter(child, reached)
            star = node.star
            if star is not None:
                self._enter(star, reached)
        return reached

    def _enter(self, node: TopicLeaf, reached: list[TopicLeaf]) -> None:
        """Append `node` and the ``#`` nodes that no word at all leads to from there."""
        reached.append(node)
        if not isinstance(node, TopicNode):
            return
        below = node.hash
        while below is not None:
            below.step = self._step
            reached.append(below)
            below = below.hash

    def _index(self, binding: Binding) -> None:
        words = _words(binding.routing_key)
        node = self._root
        for word in words[:-1]:
            node = _node_below(node, word)
        end: TopicLeaf = node
        if words:
            end = _leaf_below(node, words[-1])
        end.first = chained_in_bucket(end.first, binding)

    def _unindex(self, binding: Binding) -> None:
        words = _words(binding.routing_key)
        path: list[TopicNode] = []
        end: TopicLeaf = self._root
        for word in words:
            assert isinstance(end, TopicNode)
            path.append(end)
            below = end.child_of_pattern(word)
            assert below is not None
            end = below
        assert end.first is not None
        end.first = unchained_in_bucket(end.first, binding)
        while path and end.is_empty():
            end = path.pop()
            assert isinstance(end, TopicNode)
            end.remove(words[len(path)])


def _leaf_below(node: TopicNode, word: str) -> TopicLeaf:
    """Return the child that `word` of a binding key leads to, a new leaf when there is none."""
    below = node.child_of_pattern(word)
    if below is None:
        below = TopicHash() if word == "#" else TopicLeaf()
        node.put(word, below)
    return below


def _node_below(node: TopicNode, word: str) -> TopicNode:
    """Return the child that `word` of a binding key leads to, from which other words may go on."""
    below = node.child_of_pattern(word)
    if isinstance(below, TopicNode):
        return below
    grown = TopicHash() if word == "#" else TopicNode()
    if below is not None:
        grown.first = below.first
    node.put(word, grown)
    return grown


def _words(binding_key: str) -> list[str]:
    return binding_key.split(".") if binding_key else []
