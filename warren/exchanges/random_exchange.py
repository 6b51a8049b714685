"""Random exchanges: a message goes to the destination of one binding. Each binding is equally likely.

1. The choices are a function of the seed and of the messages before, so a test can repeat them.

Source: RabbitMQ's ``x-random`` and ``x-local-random``, which is the same here: every queue is local.
"""

from __future__ import annotations

from warren.amqp.declarations import ExchangeDeclaration
from warren.amqp.errors import PRECONDITION_FAILED, ChannelException
from warren.exchanges.choosing_exchange import ChoosingExchange
from warren.exchanges.content import Content
from warren.exchanges.stable_hash import Xorshift


class RandomExchange(ChoosingExchange):
    """An exchange of type ``x-random``. The binding key is ignored."""

    def __init__(self, declaration: ExchangeDeclaration, seed: int) -> None:
        super().__init__(declaration)
        self.cacheable = False
        self._generator = Xorshift(seed)

    def _choose(self, routing_keys: list[str], content: Content) -> int:
        return self._generator.below(self.places.total)


class LocalRandomExchange(RandomExchange):
    """An exchange of type ``x-local-random``. The binding key is empty."""

    def check_binding(self, routing_key: str, arguments: bytes) -> None:
        if routing_key:
            raise ChannelException(PRECONDITION_FAILED, f"Non empty binding '{routing_key}' key not permitted")
