"""Mixed topic bindings and routing keys under a seed, and an independent count of what must be delivered.

Keys have four words of four letters, so all have one length (19 bytes) and deliveries keep theirs. Each
position has a vocabulary of ten words. Of a thousand bindings half are literal, 20 % have one `*`, 15 % two,
10 % end in `#` after two words, 5 % begin with it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Final

_WORDS: Final = 4
_VOCABULARY: Final = 10
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"


class TopicPatterns:
    """``bindings`` binding keys and ``keys`` routing keys drawn under ``seed``."""

    def __init__(self, *, bindings: int, keys: int, seed: int) -> None:
        draw = random.Random(seed)
        self._vocabulary = [
            draw.sample(
                [a + b + c + d for a in "bdfk" for b in "aeiou" for c in "lmnr" for d in _LETTERS],
                _VOCABULARY,
            )
            for _ in range(_WORDS)
        ]
        self.routing_keys = [".".join(self._words(draw)) for _ in range(keys)]
        self.binding_keys = [self._binding_key(draw) for _ in range(bindings)]

    def _words(self, draw: random.Random) -> list[str]:
        return [draw.choice(vocabulary) for vocabulary in self._vocabulary]

    def _binding_key(self, draw: random.Random) -> str:
        words = self._words(draw)
        shape = draw.random()
        if shape < 0.5:
            pass
        elif shape < 0.7:
            words[draw.randrange(_WORDS)] = "*"
        elif shape < 0.85:
            for position in draw.sample(range(_WORDS), 2):
                words[position] = "*"
        elif shape < 0.95:
            words[2:] = ["#"]
        else:
            words[:2] = ["#"]
        return ".".join(words)


def queues_hit(routing_keys: Sequence[str], binding_keys: Sequence[str], queues: int) -> list[list[int]]:
    """Return for each routing key the queues that get a copy, when binding ``i`` belongs to queue ``i %
    queues``.
    """
    compiled = [re.compile(_expression(binding_key)) for binding_key in binding_keys]
    return [
        sorted({index % queues for index, expression in enumerate(compiled) if expression.fullmatch("." + routing_key)})
        for routing_key in routing_keys
    ]


def _expression(binding_key: str) -> str:
    pieces = {"*": r"\.[^.]+", "#": r"(?:\.[^.]*)*"}
    return "".join(pieces.get(word) or r"\." + re.escape(word) for word in binding_key.split("."))
