"""The part all links share: deliveries of a source channel become publishes on a destination channel.

1. The ack mode says when a delivery is acked at the source. on-confirm: only after the destination has confirmed its
   publish, so the source still has it if anything fails before. on-publish: after its bytes went to the operating
   system. no-ack: never.
2. Acks are cumulative, and stop before the oldest publish that is not settled. A delivery that is not forwarded (too
   many hops) is settled when all before it are.
3. A publish that the destination refuses (basic.nack) is requeued at the source. Then nothing is published for
   `RETRY_S`: a full destination must not cause a busy loop. If a mandatory message comes back, the transfer ends before
   it handles the confirm of that message: the message stays in the source.
4. If the headers of a message leave no room for the link's own headers, the link decides whether the message is sent
   without them or not at all. Otherwise the message would block all messages after it, as long as it exists.
5. With a limit, exactly so many messages are settled. Deliveries beyond it are requeued when the channel closes.
6. At most `PENDING_MAX` publishes and a batch wait for confirms, however many the source sends. While a source does not
   read its acks, nothing more is taken from it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

import trio

from warren.amqp_client.channel import Confirm, Delivery
from warren.amqp_client.client_errors import BrokerError
from warren.links.amqp_client import Channel, LinkError, Signal

NO_ACK: Final = "no-ack"
ON_PUBLISH: Final = "on-publish"
ON_CONFIRM: Final = "on-confirm"
RETRY_S: Final = 1.0
SPARE_CONFIRMS: Final = 100
PENDING_MAX: Final = 1 << 16  # the largest prefetch count
# Deliveries that are handled before other tasks get a turn.
BATCH: Final = 50
# The same limit for headers, which links read and write: so many bytes take about a millisecond.
BATCH_HEADER_BYTES: Final = 16 << 10


class Publish(NamedTuple):
    """A message as the destination gets it."""

    exchange: str
    routing_key: str
    properties: bytes
    mandatory: bool


# Makes the publish of a delivery, with the headers of the link (True) or without; None: it is not forwarded.
Rewrite = Callable[[Delivery, bool], Publish | None]


class SettlementWindow:
    """Publishes not yet settled, in order, each with the delivery tag it came from.

    Confirms of single publishes are kept until all publishes before are settled: at most two for each publish that
    waits, and `SPARE_CONFIRMS`. The cost of a refusal does not depend on how many publishes wait.
    """

    def __init__(self) -> None:
        # Sequence number to delivery tag, oldest first. A delivery that is not forwarded has a negative number of its
        # own. Not a dict: that would search through all removed entries to find its first one.
        self._waiting: OrderedDict[int, int] = OrderedDict()
        self._skips = 0
        self._confirmed_to = 0
        self._single: set[int] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def published(self, sequence: int, delivery_tag: int) -> None:
        """Note a publish; sequence numbers rise."""
        self._waiting[sequence] = delivery_tag

    def skipped(self, delivery_tag: int) -> None:
        """Note a delivery that is not forwarded."""
        self._skips += 1
        self._waiting[-self._skips] = delivery_tag

    def confirmed(self, confirm: Confirm) -> None:
        """Take in an ack of the destination."""
        if confirm.multiple:
            self._confirmed_to = max(self._confirmed_to, confirm.sequence)
        else:
            self._single.add(confirm.sequence)

    def refused(self, confirm: Confirm) -> list[int]:
        """Take in a nack of the destination; remove and return the delivery tags that it covers.

        A `multiple` nack also settles the confirmed publishes that it covers: call `settle` before the next nack.
        """
        waiting = self._waiting
        if not confirm.multiple:
            if self._is_confirmed(confirm.sequence):
                return []
            tag = waiting.pop(confirm.sequence, None)
            return [] if tag is None else [tag]
        refused = []
        for sequence in waiting:
            if sequence > confirm.sequence:
                break
            if not self._is_confirmed(sequence):
                refused.append(sequence)
        return [waiting.pop(sequence) for sequence in refused]

    def _is_confirmed(self, sequence: int) -> bool:
        return sequence <= self._confirmed_to or sequence in self._single

    def settle(self) -> tuple[int, int]:
        """Return the delivery tag up to which all is settled (0: nothing new), and how many publishes that settles."""
        tag = count = 0
        waiting = self._waiting
        while waiting:
            sequence = next(iter(waiting))
            if not self._is_confirmed(sequence):
                break
            self._single.discard(sequence)
            tag = waiting.popitem(last=False)[1]
            count += sequence > 0
        if len(self._single) > 2 * len(waiting) + SPARE_CONFIRMS:
            # The destination has confirmed some publishes twice: drop the confirms of those that no longer wait.
            self._single &= waiting.keys()
        return tag, count


class Transfer:
    """One source channel, one destination channel, one ack mode. Consumers are the caller's."""

    def __init__(
        self, source: Channel, destination: Channel, ack_mode: str, rewrite: Rewrite, limit: int | None = None
    ) -> None:
        self._source = source
        self._destination = destination
        self._ack_mode = ack_mode
        self._rewrite = rewrite
        self._window = SettlementWindow()
        self._not_before = 0.0
        self._settled = Signal()
        self.to_publish = limit
        self.to_settle = limit
        self.forwarded = 0
        self.refused = 0

    @property
    def pending(self) -> int:
        """Publishes that are not confirmed yet."""
        return len(self._window)

    @property
    def blocked(self) -> bool:
        """Whether the destination is full at present."""
        return self._destination.connection.blocked_reason is not None or trio.current_time() < self._not_before

    async def run(self) -> None:
        """Move messages until the limit is reached.

        Raises:
            BrokerError: either side ended, the consumer was cancelled, or a mandatory message found no queue.
        """
        failure: BrokerError | None = None
        async with trio.open_nursery() as nursery:

            async def guarded(task: Callable[[], object]) -> None:
                nonlocal failure
                try:
                    await task()  # type: ignore[misc]
                except BrokerError as error:
                    failure = failure or error.fresh()
                nursery.cancel_scope.cancel()

            nursery.start_soon(guarded, self._watch_source)
            if self._ack_mode == ON_CONFIRM:
                nursery.start_soon(guarded, self._settle)
            else:
                nursery.start_soon(guarded, self._watch_destination)
            await guarded(self._forward)
        if failure is not None:
            raise failure.fresh()

    async def _watch_source(self) -> None:
        """Notice the end of the source while `_forward` waits for the destination."""
        while True:
            self._source.check()
            if self._source.cancelled:
                raise LinkError(
                    f"{self._source.connection.where} cancelled the consumer: its queue is gone, or an operator did it"
                )
            await self._source.changed.wait()

    async def _watch_destination(self) -> None:
        while True:
            self._destination.check()
            self._check_returned()
            await self._destination.changed.wait()

    def _check_returned(self) -> None:
        for returned in self._destination.returned:
            where = self._destination.connection.where
            raise LinkError(f"{where} has no queue for a message with routing key '{returned.routing_key}'")

    async def _forward(self) -> None:
        source, destination = self._source, self._destination
        while self.to_settle is None or self.to_settle > 0:
            if self.to_publish == 0 or not source.deliveries:
                source.check()
                await (self._settled.wait() if self.to_publish == 0 else source.changed.wait())
                continue
            if len(self._window) >= PENDING_MAX:
                await self._settled.wait()
                continue
            await source.connection.has_room()
            await destination.connection.writable()
            if trio.current_time() < self._not_before:
                await trio.sleep_until(self._not_before)
                continue
            batch = source.take_deliveries(BATCH if self.to_publish is None else min(BATCH, self.to_publish))
            header_bytes = 0
            for delivery in batch:
                self._publish(delivery)
                header_bytes += len(delivery.properties)
                if header_bytes > BATCH_HEADER_BYTES:
                    header_bytes = 0
                    await trio.lowlevel.checkpoint()
            if self._ack_mode == ON_PUBLISH and batch:
                await destination.connection.flushed()
                source.ack(batch[-1].delivery_tag, multiple=True)
            if self._ack_mode != ON_CONFIRM and self.to_settle is not None:
                self.to_settle = self.to_publish
            await trio.lowlevel.checkpoint()
        await destination.connection.flushed()

    def _publish(self, delivery: Delivery) -> None:
        message = self._rewrite(delivery, True)
        if message is not None and not self._takes(message, delivery):
            message = self._rewrite(delivery, False)
        if message is None:
            if self._ack_mode == ON_CONFIRM:
                self._window.skipped(delivery.delivery_tag)
                # If no publish is outstanding before this one, no confirm will come that settles it.
                if len(self._window) == 1:
                    self._ack_settled()
            return
        exchange, routing_key, properties, mandatory = message
        sequence = self._destination.publish(exchange, routing_key, properties, delivery.body, mandatory=mandatory)
        self.forwarded += 1
        if self._ack_mode == ON_CONFIRM:
            self._window.published(sequence, delivery.delivery_tag)
        if self.to_publish is not None:
            self.to_publish -= 1

    def _takes(self, message: Publish, delivery: Delivery) -> bool:
        """Tell whether the destination accepts the properties as the link has changed them, if it has."""
        return message.properties is delivery.properties or self._destination.takes(message.properties)

    async def _settle(self) -> None:
        destination = self._destination
        while True:
            self._check_returned()
            destination.check()
            if not destination.confirms:
                await destination.changed.wait()
                continue
            for confirm in destination.take_confirms():
                if confirm.accepted:
                    self._window.confirmed(confirm)
                else:
                    self._give_back(confirm)
            self._ack_settled()
            await trio.lowlevel.checkpoint()

    def _give_back(self, confirm: Confirm) -> None:
        tags = self._window.refused(confirm)
        for tag in tags:
            self._source.requeue(tag)
        self._ack_settled()
        self.refused += len(tags)
        self.forwarded -= len(tags)
        self._not_before = trio.current_time() + RETRY_S
        if self.to_publish is not None:
            self.to_publish += len(tags)
        self._settled.wake()

    def _ack_settled(self) -> None:
        tag, count = self._window.settle()
        if tag:
            self._source.ack(tag, multiple=True)
        if self.to_settle is not None:
            self.to_settle -= count
        self._settled.wake()
