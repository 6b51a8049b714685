"""A real broker inside a test's own process, for the tests of programs that use AMQP: `Broker`.

    with warren.testing.Broker() as broker:
        application = Application(broker.url)
        ...
        broker.assert_published(exchange="orders", routing_key="order.created")

It is the broker that `warren serve` runs, in a thread of its own and with its disk in memory. Its methods and its
faults are described in ``docs/testing-with-warren.md``.

Nothing is imported until it is used: pytest loads the plugin (`warren.testing.pytest_plugin`) at every start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warren.testing.broker import Broker, BrokerDown
    from warren.testing.messages import Death, Properties, PublishedMessage, QueuedMessage
    from warren.testing.process import ProcessFailed, WarrenProcess
    from warren.testing.unittest_case import BrokerTestCase
    from warren.testing.views import ConnectionView, QueueView

__all__ = [
    "Broker",
    "BrokerDown",
    "BrokerTestCase",
    "ConnectionView",
    "Death",
    "ProcessFailed",
    "Properties",
    "PublishedMessage",
    "QueueView",
    "QueuedMessage",
    "WarrenProcess",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'warren.testing' has no attribute {name!r}")
    if name in ("ProcessFailed", "WarrenProcess"):
        from warren.testing import process

        return getattr(process, name)
    if name == "BrokerTestCase":
        from warren.testing import unittest_case

        return unittest_case.BrokerTestCase
    from warren.testing import broker, messages, views

    for module in (broker, messages, views):
        if hasattr(module, name):
            return getattr(module, name)
    raise AssertionError(name)
