"""A base for tests with unittest: a broker for each class, empty in every test."""

from __future__ import annotations

import unittest
from typing import Any, ClassVar

from warren.testing.broker import Broker


class BrokerTestCase(unittest.TestCase):
    """Has a running broker as `broker`, made with `broker_options`: the arguments of `Broker`.

    Beside IsolatedAsyncioTestCase it comes first among the bases.
    """

    broker_options: ClassVar[dict[str, Any]] = {}
    broker: ClassVar[Broker]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.broker = Broker(**cls.broker_options)
        cls.addClassCleanup(cls.broker.close)
        cls.broker.start()

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        """Run the test, and reset the broker when all its clean-ups are done."""
        try:
            return super().run(result)
        finally:
            self.broker.reset()
