"""The trie of topics of MQTT, or of filters of topics: a level for each part between slashes."""

from __future__ import annotations

from warren.msgstore.log.reclamation import Branch


class TopicLevel(Branch):
    """A level, with those below it by their words. `topic`: the topic or filter that ends here."""

    def __init__(self) -> None:
        super().__init__()
        self.topic: str | None = None

    def is_empty(self) -> bool:
        """Tell whether nothing ends here or goes through here."""
        # A method: once an attribute was set to None, mypyc assumes that an attribute of the same name is None in other
        # objects, too.
        return self.topic is None and not self.below

    def child(self, word: str) -> TopicLevel | None:
        """Return the level that `word` leads to."""
        found: TopicLevel | None = self.below.get(word)
        return found

    def put(self, topic: str) -> None:
        """Add a topic below this level."""
        level = self
        for word in topic.split("/"):
            below = level.child(word)
            if below is None:
                below = TopicLevel()
                level.below[word] = below
            level = below
        level.topic = topic

    def remove(self, topic: str) -> None:
        """Remove a topic, which is there."""
        path: list[tuple[TopicLevel, str]] = []
        level = self
        for word in topic.split("/"):
            path.append((level, word))
            level = level.below[word]
        level.topic = None
        while path and level.is_empty():
            level, word = path.pop()
            del level.below[word]
