"""The claims of a test about a broker: waited for, and on failure reported together with what was found.

    Assertions        the claims as methods of `Broker`; those that wait block the caller's thread
    AsyncAssertions   the same to be awaited, under asyncio and under trio: `Broker.aio`

1. A claim is an `Expectation`: it looks once, and says what is wrong. Waiting is done here, for both kinds.
2. The test runner shows the line of the test: pytest by ``__tracebackhide__``, unittest by ``__unittest``.
3. On an event loop nothing of `Assertions` waits: it would hold up the clients that it waits for.
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypedDict, TypeVar, Unpack

import trio

from warren.testing.messages import SHOWN_MAX, Body, PublishedMessage, QueuedMessage, Text, Wanted

if TYPE_CHECKING:
    from warren.testing.broker import Broker

__unittest = True

WITHIN_S: Final = 2.0
POLL_S: Final = 0.002

_Value = TypeVar("_Value")


class Filter(TypedDict, total=False):
    """Which messages are meant: those that fit everything given.

    Names may be patterns, searched in the name. A body is bytes, text, its value as JSON (a dict or list), or a
    function of the bytes. `headers` have to be there, others may be.
    """

    exchange: Text | None
    routing_key: Text | None
    body: Body | None
    headers: Mapping[str, object] | None
    vhost: str | None


class PublishedFilter(Filter, total=False):
    """The same of messages that were published; `queue` is one that it went to."""

    queue: str | None


class Expectation(ABC, Generic[_Value]):
    """A condition that is expected to become true."""

    @abstractmethod
    def look(self) -> _Value | None:
        """Return the result for the test, when it is true now; else None."""

    @abstractmethod
    def problem(self) -> str:
        """Describe the failure, in one sentence without a period."""

    @abstractmethod
    def instead(self) -> str:
        """Describe the actual state, in lines of their own."""

    @property
    def may_come(self) -> bool:
        """Whether waiting can help."""
        return True


class Published(Expectation[list[PublishedMessage]]):
    """`count` messages were published that fit; None: any number but 0."""

    def __init__(self, broker: Broker, count: int | None, wanted: PublishedFilter) -> None:
        self._broker = broker
        self._count = count
        self._wanted = Wanted(**wanted)
        self._found: list[PublishedMessage] = []

    @property
    def may_come(self) -> bool:
        return self._count is None or len(self._found) < self._count

    def look(self) -> list[PublishedMessage] | None:
        self._found = [message for message in self._broker.published if self._wanted.fits(message)]
        return _as_many(self._found, self._count)

    def problem(self) -> str:
        if self._count is None:
            return f"no message was published{self._wanted}"
        return f"{_messages(self._count)} should have been published{self._wanted}, but {_were(self._found)}"

    def instead(self) -> str:
        return self._wanted.explain(self._broker.published)


class Queued(Expectation[list[QueuedMessage]]):
    """`count` messages wait in a queue that fit; None: any number but 0."""

    def __init__(self, broker: Broker, queue: str, count: int | None, wanted: Filter) -> None:
        self._broker = broker
        self._queue = broker.queue(queue, wanted.get("vhost"))
        self._count = count
        self._wanted = Wanted(**wanted)
        self._all: list[QueuedMessage] = []
        self._found: list[QueuedMessage] = []

    def look(self) -> list[QueuedMessage] | None:
        self._all = self._queue.messages() if self._queue.exists else []
        self._found = [message for message in self._all if self._wanted.fits(message)]
        return _as_many(self._found, self._count)

    def problem(self) -> str:
        name = repr(self._queue.name)
        if not self._queue.exists:
            return f"queue {name} should have messages, but does not exist"
        if self._count is None:
            return f"no message waits in queue {name}{self._wanted}"
        return f"{_messages(self._count)} should be waiting in queue {name}{self._wanted}, but {_are(self._found)}"

    def instead(self) -> str:
        if not self._queue.exists:
            return _queues_of(self._broker, self._queue.vhost)
        lines = [self._wanted.explain(self._all, "Waiting"), *_beside(self._queue.counts())]
        return "\n".join(lines)


class DeadLettered(Expectation[list[QueuedMessage]]):
    """`count` messages wait somewhere in the vhost that have died in a queue; None: any number but 0."""

    def __init__(
        self, broker: Broker, queue: str, reason: str | None, to: str | None, count: int | None, wanted: Filter
    ) -> None:
        self._broker = broker
        self._vhost = broker.vhosts[0] if wanted.get("vhost") is None else str(wanted.get("vhost"))
        self._died_in = queue
        self._reason = reason
        self._to = to
        self._count = count
        self._wanted = Wanted(**wanted)
        self._all: list[QueuedMessage] = []
        self._found: list[QueuedMessage] = []

    def look(self) -> list[QueuedMessage] | None:
        names = self._broker.queues(self._vhost) if self._to is None else [self._to]
        views = [self._broker.queue(name, self._vhost) for name in names]
        waiting = [message for view in views if view.exists for message in view.messages()]
        self._all = [message for message in waiting if message.deaths]
        self._found = [message for message in self._all if self._died(message) and self._wanted.fits(message)]
        return _as_many(self._found, self._count)

    def _died(self, message: QueuedMessage) -> bool:
        return any(
            death.queue == self._died_in and (self._reason is None or death.reason == self._reason)
            for death in message.deaths
        )

    def problem(self) -> str:
        how = f" as {self._reason}" if self._reason is not None else ""
        how += f" to queue {self._to!r}" if self._to is not None else ""
        what = f"dead-lettered by queue {self._died_in!r}{how}{self._wanted}"
        if self._count is None:
            return f"no message was {what}"
        return f"{_messages(self._count)} should have been {what}, but {_were(self._found)}"

    def instead(self) -> str:
        if not self._all:
            return "No dead letter waits in any queue." if self._to is None else "No dead letter waits there."
        lines = [f"Dead letters, {len(self._all)} in all:"]
        for message in self._all[:SHOWN_MAX]:
            deaths = ", then ".join(f"{death.reason} in {death.queue!r}" for death in reversed(message.deaths))
            lines.append(f"  in queue {message.queue!r}: {message}, {deaths}")
        if len(self._all) > SHOWN_MAX:
            lines.append(f"  ({len(self._all) - SHOWN_MAX} more)")
        return "\n".join(lines)


class Empty(Expectation[bool]):
    """Nothing is left in a queue: neither ready nor out with a consumer nor held."""

    def __init__(self, broker: Broker, queue: str, vhost: str | None) -> None:
        self._broker = broker
        self._queue = broker.queue(queue, vhost)
        self._counts: dict[str, int] = {}
        self._exists = False

    def look(self) -> bool | None:
        self._exists = self._queue.exists
        self._counts = self._queue.counts() if self._exists else {}
        return True if self._exists and not any(self._counts.values()) else None

    def problem(self) -> str:
        if not self._exists:
            return f"queue {self._queue.name!r} should be empty, but does not exist"
        left = ", ".join(f"{count} {name}" for name, count in self._counts.items() if count)
        return f"queue {self._queue.name!r} did not become empty: {left}"

    def instead(self) -> str:
        if not self._queue.exists:
            return _queues_of(self._broker, self._queue.vhost)
        consumers = self._queue.consumers
        lines = [f"Its consumers: {', '.join(consumers)}." if consumers else "It has no consumer."]
        waiting = self._queue.messages()
        lines += [f"  {number}. {message}" for number, message in enumerate(waiting[:SHOWN_MAX], start=1)]
        if len(waiting) > SHOWN_MAX:
            lines.append(f"  ({len(waiting) - SHOWN_MAX} more)")
        return "\n".join(lines)


class Consumed(Expectation[tuple[str, ...]]):
    """A queue has `count` consumers; None: any number but 0."""

    def __init__(self, broker: Broker, queue: str, count: int | None, vhost: str | None) -> None:
        self._broker = broker
        self._queue = broker.queue(queue, vhost)
        self._count = count
        self._tags: tuple[str, ...] = ()

    def look(self) -> tuple[str, ...] | None:
        self._tags = self._queue.consumers if self._queue.exists else ()
        fits = len(self._tags) == self._count if self._count is not None else bool(self._tags)
        return self._tags if fits else None

    def problem(self) -> str:
        name = repr(self._queue.name)
        if self._count is None:
            return f"queue {name} has no consumer"
        return f"queue {name} should have {self._count} consumers, but has {len(self._tags)}"

    def instead(self) -> str:
        broker = self._broker
        lines = [f"Consumers: {', '.join(self._tags)}."] if self._tags else []
        if not self._queue.exists:
            lines.append(f"There is no such queue. {_queues_of(broker, self._queue.vhost)}")
        lines.append(f"Connections: {', '.join(repr(each.name) for each in broker.connections) or 'none'}.")
        return "\n".join(lines)


class Condition(Expectation[bool]):
    """Whatever a function says."""

    def __init__(self, condition: Callable[[], object], what: str) -> None:
        self._condition = condition
        self._what = what

    def look(self) -> bool | None:
        return True if self._condition() else None

    def problem(self) -> str:
        return f"{self._what or 'the condition'} did not become true"

    def instead(self) -> str:
        return ""


class Assertions(ABC):
    """The claims of `Broker`."""

    def assert_published(
        self, *, count: int | None = None, within_s: float = WITHIN_S, **wanted: Unpack[PublishedFilter]
    ) -> list[PublishedMessage]:
        """Fail unless such messages (`find_published`) were published: `count` of them, by default any number but 0.

        Waits up to `within_s` for them, for clients publish without waiting; but not on an event loop, which it would
        hold up together with its clients. With ``count=0`` it does not wait at all. Returns the messages.
        """
        __tracebackhide__ = True
        return _wait(self._broker(), Published(self._broker(), count, wanted), within_s)

    def assert_queued(
        self, queue: str, *, count: int | None = None, within_s: float = WITHIN_S, **wanted: Unpack[Filter]
    ) -> list[QueuedMessage]:
        """Fail unless such messages wait in `queue`, likewise. Returns them."""
        __tracebackhide__ = True
        return _wait(self._broker(), Queued(self._broker(), queue, count, wanted), within_s)

    def assert_dead_lettered(
        self,
        queue: str,
        *,
        reason: str | None = None,
        to: str | None = None,
        count: int | None = None,
        within_s: float = WITHIN_S,
        **wanted: Unpack[Filter],
    ) -> list[QueuedMessage]:
        """Fail unless such messages died in `queue` and wait elsewhere now, likewise. Returns them.

        `reason` is ``rejected``, ``expired``, ``maxlen`` or ``delivery_limit``, `to` the queue where they wait.
        """
        __tracebackhide__ = True
        return _wait(self._broker(), DeadLettered(self._broker(), queue, reason, to, count, wanted), within_s)

    def assert_queue_empties(self, queue: str, *, vhost: str | None = None, within_s: float = WITHIN_S) -> None:
        """Fail unless everything in `queue` is consumed and acknowledged within `within_s`; held messages count too."""
        __tracebackhide__ = True
        _wait(self._broker(), Empty(self._broker(), queue, vhost), within_s)

    def assert_consumed(
        self, queue: str, *, count: int | None = None, vhost: str | None = None, within_s: float = WITHIN_S
    ) -> tuple[str, ...]:
        """Fail unless `queue` has consumers, or gets them within `within_s`. Returns their tags."""
        __tracebackhide__ = True
        return _wait(self._broker(), Consumed(self._broker(), queue, count, vhost), within_s)

    def wait_until(self, condition: Callable[[], object], timeout_s: float = WITHIN_S, what: str = "") -> None:
        """Wait until `condition` is true; `what` describes the condition in the failure.

        Raises:
            AssertionError: it did not become true.
            RuntimeError: it is not, and this is an event loop: ``await broker.aio.wait_until(...)``.
        """
        __tracebackhide__ = True
        expected = Condition(condition, what)
        if expected.look() is None:
            if is_on_event_loop():
                raise RuntimeError("wait_until would stop this event loop: await broker.aio.wait_until(…)")
            _wait(self._broker(), expected, timeout_s)

    @abstractmethod
    def _broker(self) -> Broker:
        """Return the broker that all of this is about."""


class AsyncAssertions:
    """The claims of `Assertions`, awaited while the event loop runs."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def assert_published(
        self, *, count: int | None = None, within_s: float = WITHIN_S, **wanted: Unpack[PublishedFilter]
    ) -> list[PublishedMessage]:
        """Assert as `Assertions.assert_published`."""
        __tracebackhide__ = True
        return await _awaited(self._broker, Published(self._broker, count, wanted), within_s)

    async def assert_queued(
        self, queue: str, *, count: int | None = None, within_s: float = WITHIN_S, **wanted: Unpack[Filter]
    ) -> list[QueuedMessage]:
        """Assert as `Assertions.assert_queued`."""
        __tracebackhide__ = True
        return await _awaited(self._broker, Queued(self._broker, queue, count, wanted), within_s)

    async def assert_dead_lettered(
        self,
        queue: str,
        *,
        reason: str | None = None,
        to: str | None = None,
        count: int | None = None,
        within_s: float = WITHIN_S,
        **wanted: Unpack[Filter],
    ) -> list[QueuedMessage]:
        """Assert as `Assertions.assert_dead_lettered`."""
        __tracebackhide__ = True
        return await _awaited(self._broker, DeadLettered(self._broker, queue, reason, to, count, wanted), within_s)

    async def assert_queue_empties(self, queue: str, *, vhost: str | None = None, within_s: float = WITHIN_S) -> None:
        """Assert as `Assertions.assert_queue_empties`."""
        __tracebackhide__ = True
        await _awaited(self._broker, Empty(self._broker, queue, vhost), within_s)

    async def assert_consumed(
        self, queue: str, *, count: int | None = None, vhost: str | None = None, within_s: float = WITHIN_S
    ) -> tuple[str, ...]:
        """Assert as `Assertions.assert_consumed`."""
        __tracebackhide__ = True
        return await _awaited(self._broker, Consumed(self._broker, queue, count, vhost), within_s)

    async def wait_until(self, condition: Callable[[], object], timeout_s: float = WITHIN_S, what: str = "") -> None:
        """Wait as `Assertions.wait_until`."""
        __tracebackhide__ = True
        await _awaited(self._broker, Condition(condition, what), timeout_s)


def is_on_event_loop() -> bool:
    """Tell whether waiting here would stop an event loop of the test's."""
    if trio.lowlevel.in_trio_run():
        return True
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _wait(broker: Broker, expected: Expectation[_Value], within_s: float) -> _Value:
    __tracebackhide__ = True
    _receive(broker)
    on_loop = is_on_event_loop()
    deadline_s = time.monotonic() + within_s
    while (value := expected.look()) is None:
        if on_loop or not expected.may_come or time.monotonic() >= deadline_s:
            raise _failure(expected, within_s, on_loop=on_loop)
        time.sleep(POLL_S)
    return value


async def _awaited(broker: Broker, expected: Expectation[_Value], within_s: float) -> _Value:
    __tracebackhide__ = True
    _receive(broker)
    sleep = _sleep()
    deadline_s = time.monotonic() + within_s
    while (value := expected.look()) is None:
        if not expected.may_come or time.monotonic() >= deadline_s:
            raise _failure(expected, within_s)
        await sleep(POLL_S)
    return value


def _sleep() -> Callable[[float], Any]:
    """Return how to sleep on the event loop that runs here."""
    if trio.lowlevel.in_trio_run():
        return trio.sleep
    import asyncio

    return asyncio.sleep


def _receive(broker: Broker) -> None:
    """Wait until the broker has handled all that it has received."""
    if broker.is_up:
        broker.on_loop(_nothing)


def _failure(expected: Expectation[Any], within_s: float, *, on_loop: bool = False) -> AssertionError:
    waited = "not waited for: this is an event loop, await broker.aio" if on_loop else f"within {within_s:g} s"
    lines = (f"{expected.problem()} ({waited}).", expected.instead())
    return AssertionError("\n".join(line for line in lines if line))


def _as_many(found: list[_Value], count: int | None) -> list[_Value] | None:
    return found if len(found) == count or (count is None and found) else None


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"


def _were(found: list[Any]) -> str:
    return "1 was" if len(found) == 1 else f"{len(found)} were"


def _are(found: list[Any]) -> str:
    return "1 is" if len(found) == 1 else f"{len(found)} are"


def _queues_of(broker: Broker, vhost: str) -> str:
    names = broker.queues(vhost)
    more = ", …" if len(names) > SHOWN_MAX else ""
    return f"Queues in vhost {vhost!r}: {', '.join(map(repr, names[:SHOWN_MAX])) or 'none'}{more}."


def _beside(counts: dict[str, int]) -> list[str]:
    others = ", ".join(f"{count} {name}" for name, count in counts.items() if count and name != "ready")
    return [f"Beside these: {others}."] if others else []


def _nothing() -> None:
    """Do nothing."""
