"""What clients did and saw, and whether what a broker holds after a restart can be true.

`History` is told every step of every client in the order in which one thread took them: *sent* before sending,
*answered* on reading. It judges every delivery at once and everything that a restarted broker holds in `restarted`. It
does not know brokers or sockets; made-up histories test it.

1. Only steps that a client saw count. A confirm that the broker may have sent, but no client read, does not count. An
   ack that was sent may be processed or not. An answer that arrived is certain.
2. A `Place` is one message in one queue, and places are what is judged:

       must be there       it arrived for certain (confirmed, committed, found after a restart), is persistent in a
                           durable queue, and nothing that could take it away was ever sent
       must not be there   it is transient, or its transaction was not committed, or it is gone for certain: acked in
                           a transaction whose commit was answered, its queue deleted and that answered, missing after
                           an earlier restart; acked or purged and that processed, before a clean stop or before
                           something was sent that was stored later on (there is one log, so it holds both)
       may be there        all else

3. The contents after a restart become certain: found messages must be found again, missing ones must not come back.
4. Order is judged within a queue: the messages that the last restart showed come first, in that order; then, for each
   publisher, its messages in the order of sending. Requeued messages are in their old place again after a restart.
5. A publish to several queues and a transaction are one thing: in every queue or in none, acks included.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from struct import pack

from warren.amqp.field_table import encode_table
from warren.amqp.properties import BasicProperties

BODY_BYTES_MAX = 300 << 10
_BLOCK = random.Random(0).randbytes(BODY_BYTES_MAX + (64 << 10))


class Rule(StrEnum):
    """Rules that a broker can break."""

    LOST = "lost"
    INVENTED = "invented"
    ALTERED = "altered"
    DISORDERED = "out of order"
    DUPLICATED = "there twice"
    RETURNED = "returned"
    TORN = "torn"
    PREMATURE = "visible before its commit"
    UNFLAGGED = "delivered again without the redelivered flag"
    FLAGGED = "flagged as redelivered without ever having been delivered"


@dataclass(frozen=True)
class Violation:
    """A rule and the case in which it was broken."""

    rule: Rule
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


class TransactionState(Enum):
    OPEN = auto()
    COMMITTING = auto()
    COMMITTED = auto()
    ROLLED_BACK = auto()


class Transaction:
    """One tx of one channel: its publishes and acks."""

    __slots__ = ("acked", "messages", "state")

    def __init__(self) -> None:
        self.state = TransactionState.OPEN
        self.messages: list[Message] = []
        self.acked: list[Place] = []

    def may_be_applied(self) -> bool:
        return self.state in (TransactionState.COMMITTING, TransactionState.COMMITTED)


@dataclass(frozen=True, slots=True)
class Sighting:
    """One message as a broker delivered it."""

    queue: str
    exchange: str
    routing_key: str
    header: bytes
    body: bytes
    redelivered: bool


class Message:
    """One message as it was published. `number` counts all messages of a history; it is the message_id."""

    __slots__ = ("body_bytes", "exchange", "number", "persistent", "places", "publisher", "routing_key", "transaction")

    def __init__(
        self,
        number: int,
        publisher: str,
        exchange: str,
        routing_key: str,
        queues: Iterable[str],
        body_bytes: int,
        *,
        persistent: bool,
        transaction: Transaction | None,
    ) -> None:
        assert body_bytes <= BODY_BYTES_MAX
        self.number = number
        self.publisher = publisher
        self.exchange = exchange
        self.routing_key = routing_key
        self.persistent = persistent
        self.body_bytes = body_bytes
        self.transaction = transaction
        self.places = {queue: Place(self, queue) for queue in queues}

    def body(self) -> bytes:
        """Return the body: the number, then bytes that depend on it, cut to size."""
        start = self.number * 7919 % (len(_BLOCK) - BODY_BYTES_MAX)
        return (pack(">Q", self.number) + _BLOCK[start : start + self.body_bytes])[: self.body_bytes]

    def header(self) -> bytes:
        """Return the payload of the header frame: content_type, sometimes headers, delivery_mode, message_id."""
        properties = BasicProperties()
        properties.content_type = "text/crash"
        if self.number % 3 == 0:
            properties.headers = encode_table({"number": self.number & 0xFFFF, "t\u00e4g": "w\u00e4rren", "even": True})
        properties.delivery_mode = 2 if self.persistent else 1
        properties.message_id = str(self.number)
        return pack(">HHQ", 60, 0, self.body_bytes) + properties.encode()

    def sighting(self, queue: str, *, redelivered: bool = False) -> Sighting:
        """Return how a faultless broker delivers it."""
        return Sighting(queue, self.exchange, self.routing_key, self.header(), self.body(), redelivered)

    def __str__(self) -> str:
        kind = "persistent" if self.persistent else "transient"
        return f"{kind} message {self.number} of {self.publisher} ({self.body_bytes} bytes)"


class Place:
    """One message in one queue, and what is known about it."""

    __slots__ = (
        "ack_transaction",
        "acked",
        "arrived",
        "delivered",
        "gone",
        "message",
        "queue",
        "rank",
        "settled_at",
        "swept",
    )

    def __init__(self, message: Message, queue: str) -> None:
        self.message = message
        self.queue = queue
        self.arrived = False  # certainly
        self.delivered = False  # somebody saw it
        self.acked = False  # an ack, or a reject without requeue, was sent
        self.swept = False  # it may have met a purge or the end of its queue
        self.settled_at = -1  # the last message sent when it was known that what took it away was processed
        self.ack_transaction: Transaction | None = None
        self.gone = ""  # why it must no longer be seen
        self.rank = -1  # its position when the last restart was looked at

    def may_be_gone(self) -> bool:
        in_doubt = self.ack_transaction is not None and self.ack_transaction.may_be_applied()
        return bool(self.acked or self.swept or in_doubt or self.gone)

    def __str__(self) -> str:
        return f"{self.message} in queue {self.queue}"


class History:
    """All that happened to one data directory. `transient_queues` do not outlive a broker."""

    def __init__(self, transient_queues: Iterable[str] = ()) -> None:
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()
        self._transient_queues = frozenset(transient_queues)
        self._messages: dict[int, Message] = {}
        self._live: dict[Place, None] = {}
        self._transactions: list[Transaction] = []
        self._consumed: set[str] = set()
        self._unstable: dict[str, list[Place]] = {}
        self._first_times: dict[tuple[str, str], int] = {}
        self._stored_number = 0  # the last message of which it is known that it is on disk
        self._life = 0

    # --- what clients do --------------------------------------------------------------------------------------------

    def publish(
        self,
        publisher: str,
        exchange: str,
        routing_key: str,
        queues: Iterable[str],
        body_bytes: int,
        *,
        persistent: bool = True,
        transaction: Transaction | None = None,
    ) -> Message:
        """Note a message that is about to be sent; `queues` are those it will be routed to."""
        number = len(self._messages) + 1
        message = Message(
            number,
            f"{publisher}/{self._life}",
            exchange,
            routing_key,
            queues,
            body_bytes,
            persistent=persistent,
            transaction=transaction,
        )
        self._messages[number] = message
        for place in message.places.values():
            place.swept = place.queue in self._unstable
            self._live[place] = None
        if transaction is not None:
            transaction.messages.append(message)
        self.counts["published"] += 1
        return message

    def confirmed(self, message: Message) -> None:
        """Note that the broker confirmed a message."""
        self._arrived(message)
        self.counts["confirmed"] += 1

    def _arrived(self, message: Message) -> None:
        for place in message.places.values():
            place.arrived = True
            # One that was swept may never have come to a queue, and then it is on no disk.
            if self._is_kept(place) and not place.swept:
                self._stored_number = max(self._stored_number, message.number)

    def begin(self) -> Transaction:
        """Begin a transaction."""
        transaction = Transaction()
        self._transactions.append(transaction)
        return transaction

    def ack_in(self, transaction: Transaction, place: Place) -> None:
        """Note an ack in a transaction."""
        assert place.ack_transaction is None
        place.ack_transaction = transaction
        transaction.acked.append(place)

    def commit(self, transaction: Transaction) -> None:
        """Note a tx.commit that is about to be sent."""
        assert transaction.state is TransactionState.OPEN
        transaction.state = TransactionState.COMMITTING

    def committed(self, transaction: Transaction) -> None:
        """Note that the commit was answered."""
        transaction.state = TransactionState.COMMITTED
        for message in transaction.messages:
            self._arrived(message)
        for place in transaction.acked:
            place.gone = place.gone or "acked in a committed transaction"
        self.counts["committed"] += 1

    def roll_back(self, transaction: Transaction) -> None:
        """Note a tx.rollback that is about to be sent: nothing of the transaction will ever be, its acks are void."""
        assert transaction.state is TransactionState.OPEN
        transaction.state = TransactionState.ROLLED_BACK
        for place in transaction.acked:
            place.ack_transaction = None
        self.counts["rolled back"] += 1

    def acked(self, place: Place) -> None:
        """Note an ack, or a reject without requeue, that is about to be sent outside a transaction."""
        place.acked = True
        self.counts["acked"] += 1

    def processed(self, places: Iterable[Place]) -> None:
        """Note that a later request on the same channel as the acks of `places` was answered."""
        for place in places:
            place.settled_at = len(self._messages)

    def consume(self, queue: str) -> None:
        """Note that a consumer is about to be asked for."""
        self._consumed.add(queue)

    def purge(self, queue: str) -> None:
        """Note a queue.purge that is about to be sent."""
        self._sweep(queue)

    def purged(self, queue: str) -> None:
        """Note that it was answered."""
        swept = self._unstable.pop(queue)
        if queue not in self._consumed:
            # Of a queue with consumers, what is on its way to them is not purged.
            self.processed(swept)
        self.counts["purged"] += 1

    def delete(self, queue: str) -> None:
        """Note a queue.delete that is about to be sent."""
        self._sweep(queue)

    def deleted(self, queue: str) -> None:
        """Note that it was answered. Until `declared` nothing is known about what is sent to the queue."""
        for place in self._unstable[queue]:
            place.gone = place.gone or "its queue was deleted"
        self._unstable[queue] = []
        self.counts["queues deleted"] += 1

    def declared(self, queue: str) -> None:
        """Note that a deleted queue exists again, with its bindings."""
        self._unstable.pop(queue, None)

    def is_stable(self, queue: str) -> bool:
        """Tell whether no purge or delete of the queue is under way."""
        return queue not in self._unstable

    def _sweep(self, queue: str) -> None:
        assert queue not in self._unstable
        certain = []
        for place in self._live:
            if place.queue == queue:
                place.swept = True
                if place.arrived and not place.gone:
                    certain.append(place)
        self._unstable[queue] = certain

    # --- what clients see -------------------------------------------------------------------------------------------

    def delivered(self, sighting: Sighting, consumer: str) -> Place | None:
        """Judge a delivery to `consumer`; return the place it came from, None for what never was."""
        place = self._recognise(sighting)
        if place is None:
            return None
        # Deliveries of a queue that another connection deletes may still be on their way.
        if place.gone and not place.swept:
            self._violated(Rule.RETURNED, f"{place} was delivered to {consumer}, {place.gone}")
        self._check_visible(place)
        if place.delivered and not sighting.redelivered:
            self._violated(Rule.UNFLAGGED, f"{place}, to {consumer}")
        if not sighting.redelivered:
            stream = (f"{consumer}/{self._life}", f"{place.queue} from {place.message.publisher}")
            if self._first_times.get(stream, 0) >= place.message.number:
                self._violated(Rule.DISORDERED, f"{place}, to {consumer}, came after {self._first_times[stream]}")
            self._first_times[stream] = place.message.number
        place.delivered = True
        self.counts["delivered"] += 1
        return place

    def restarted(self, found: Mapping[str, Sequence[Sighting]], *, clean: bool) -> dict[str, list[Place]]:
        """Judge what each queue holds, in order, after the broker was started again; `clean`: it had been stopped.

        Returns the places found. From then on they are what is certain (3).
        """
        self.counts["restarts"] += 1
        seen: dict[Place, None] = {}
        places: dict[str, list[Place]] = {}
        for queue, sightings in found.items():
            places[queue] = []
            for sighting in sightings:
                place = self._recognise(sighting)
                if place is None:
                    continue
                if place in seen:
                    self._violated(Rule.DUPLICATED, f"{place}")
                    continue
                seen[place] = None
                places[queue].append(place)
                self._check_may_be_there(place, clean)
                self._check_flag(place, sighting.redelivered, clean)
            self._check_order(places[queue])
        for place in self._live:
            if place not in seen and self._must_be_there(place):
                self._violated(Rule.LOST, f"{place}")
        self._check_fan_outs(seen)
        for transaction in self._transactions:
            if transaction.may_be_applied():
                self._check_transaction(transaction, seen)
        self._adopt(seen, places)
        self.counts["found"] += len(seen)
        return places

    def _adopt(self, seen: dict[Place, None], places: Mapping[str, Sequence[Place]]) -> None:
        for place in self._live:
            if place not in seen:
                place.gone = place.gone or "it was missing after an earlier restart"
                place.ack_transaction = None
        self._life += 1
        self._live = seen
        self._transactions.clear()
        self._consumed.clear()
        self._unstable.clear()
        self._first_times.clear()
        for in_queue in places.values():
            for rank, place in enumerate(in_queue):
                place.rank = rank
                place.arrived = place.delivered = True
                place.acked = place.swept = False
                place.settled_at = -1
                place.ack_transaction = None
                place.gone = ""

    # --- the rules --------------------------------------------------------------------------------------------------

    def _violated(self, rule: Rule, text: str) -> None:
        self.violations.append(Violation(rule, text))

    def _recognise(self, sighting: Sighting) -> Place | None:
        number = _message_number(sighting.header)
        message = self._messages.get(number) if number is not None else None
        if message is None:
            self._violated(Rule.INVENTED, f"nobody sent {sighting.header[:200]!r} in queue {sighting.queue}")
            return None
        place = message.places.get(sighting.queue)
        if place is None:
            self._violated(Rule.INVENTED, f"{message} was not for queue {sighting.queue}")
            return None
        for part, got, sent in (
            ("header", sighting.header, message.header()),
            ("body", sighting.body, message.body()),
            ("exchange", sighting.exchange, message.exchange),
            ("routing_key", sighting.routing_key, message.routing_key),
        ):
            if got != sent:
                self._violated(Rule.ALTERED, f"{place}: the {part} is {got[:60]!r}…, not {sent[:60]!r}…")
        return place

    def _is_kept(self, place: Place) -> bool:
        return place.message.persistent and place.queue not in self._transient_queues

    def _must_be_there(self, place: Place) -> bool:
        return place.arrived and self._is_kept(place) and not place.may_be_gone()

    def _check_visible(self, place: Place) -> None:
        transaction = place.message.transaction
        if transaction is not None and not transaction.may_be_applied() and place.rank < 0:
            self._violated(Rule.PREMATURE, f"{place}: its transaction is {transaction.state.name}")

    def _check_may_be_there(self, place: Place, clean: bool) -> None:
        self._check_visible(place)
        if place.gone:
            self._violated(Rule.RETURNED, f"{place}: {place.gone}")
        elif not self._is_kept(place):
            self._violated(Rule.RETURNED, f"{place}: it is transient")
        elif place.settled_at >= 0 and (clean or place.settled_at < self._stored_number):
            when = "a clean stop" if clean else f"message {self._stored_number}, which was stored, was sent"
            self._violated(Rule.RETURNED, f"{place}: it was acked or purged before {when}")

    def _check_flag(self, place: Place, redelivered: bool, clean: bool) -> None:
        if place.delivered and not redelivered:
            self._violated(Rule.UNFLAGGED, f"{place}, after a restart")
        elif clean and redelivered and not place.delivered and place.queue not in self._consumed:
            self._violated(Rule.FLAGGED, f"{place}, after a clean stop")

    def _check_order(self, in_queue: Sequence[Place]) -> None:
        last_rank = -1
        new = None
        last_numbers: dict[str, int] = {}
        for place in in_queue:
            if place.rank < 0:
                new = place
            elif new is not None:
                self._violated(Rule.DISORDERED, f"{place} was there before {new} and comes behind it")
            elif place.rank <= last_rank:
                self._violated(Rule.DISORDERED, f"{place} changed its place since the last restart")
            last_rank = max(last_rank, place.rank)
            publisher, number = place.message.publisher, place.message.number
            if number < last_numbers.get(publisher, 0):
                self._violated(Rule.DISORDERED, f"{place} comes behind {last_numbers[publisher]}")
            last_numbers[publisher] = number

    def _check_fan_outs(self, seen: Mapping[Place, None]) -> None:
        messages = {place.message: None for place in self._live if len(place.message.places) > 1}
        for message in messages:
            there = [place for place in message.places.values() if place in seen]
            missing = [place for place in message.places.values() if place not in seen and self._is_telling(place)]
            if there and missing:
                queues = " and ".join(place.queue for place in missing)
                self._violated(Rule.TORN, f"{there[0]}, but not in {queues}")

    def _is_telling(self, place: Place) -> bool:
        """Tell whether a place that is empty was never filled: nothing could have taken it away."""
        return self._is_kept(place) and not place.may_be_gone()

    def _check_transaction(self, transaction: Transaction, seen: Mapping[Place, None]) -> None:
        done: list[str] = []
        undone: list[str] = []
        for message in transaction.messages:
            for place in message.places.values():
                if place in seen:
                    done.append(f"{place} is there")
                elif self._is_telling(place):
                    undone.append(f"{place} is not there")
        for place in transaction.acked:
            if place in seen:
                undone.append(f"the acked {place} is there")
            elif place.arrived and self._is_kept(place) and not place.swept:
                done.append(f"the acked {place} is gone")
        if done and undone:
            self._violated(Rule.TORN, f"{done[0]}, but {undone[0]}, of one transaction")


def _message_number(header: bytes) -> int | None:
    """Return the message_id that a content header payload ends with; None for one that is not ours."""
    for size in range(1, 20):
        # No digit is below 20: only one size can fit.
        if len(header) > size and header[-size - 1] == size and header[-size:].isdigit():
            return int(header[-size:])
    return None
