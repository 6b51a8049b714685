"""Claim queues: the messages that a drain has taken out of a queue and not acknowledged yet, by number.

    queue  --claim-->  claim queue: first ... next_number  --settle_below-->  gone
           <-give_back-                                    --settle_oldest->  back, held, dead-lettered, or gone

1. Claiming a message, and giving it back, takes it out of one queue and puts it into the other in one call of the
   engine, and so in one frame of the log: after a crash it is in exactly one of them.
2. Everything is stored, whatever its delivery mode. Offsets are sequence numbers without gaps. A number that was synced
   never stands for another message, even if the queue was empty during a restart.
3. Only claims come in, and they leave only from the beginning, by number. Publishes are refused, and so are consumers,
   basic.get and purges; policies do not apply, and nothing expires. A claim may be read again and again.
4. A claim keeps its exchange, routing key, properties and body, and whether it may have been delivered before. It keeps
   the time when it was published; where that is not known, it has the time when it was claimed.
5. The oldest number is known exactly once `find_first` has told it: after a restart a page of the index may have to be
   read for that. A number that is told earlier is not larger.

The declaration of a claim queue names its drain. Access to it is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from warren.amqp.declarations import QueueDeclaration
from warren.amqp.errors import ACCESS_REFUSED, AmqpError, ChannelException
from warren.amqp.field_table import decode_table, encode_table
from warren.amqp.properties import expiration_ms_of, is_persistent
from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import IndexPage, QueueIndex
from warren.queues.base_queue import BaseQueue
from warren.queues.dead_letter import REJECTED
from warren.queues.lanes import LANE_SHIFT, NUMBER_MASK
from warren.queues.offset_backlog import OffsetBacklog
from warren.queues.offset_queue import OffsetQueue, OffsetRead
from warren.queues.origin import CHANNEL, RELEASED
from warren.queues.outcome import REFUSED
from warren.queues.queue import Queue
from warren.queues.queue_host import QueueHost
from warren.queues.receiver import Room
from warren.queues.retry import DELIVERY_COUNT, count_of

# Arguments of the declaration: the drain that the claims belong to.
SOURCE: Final = "x-drain-queue"
CONSUMER: Final = "x-drain-consumer"

# Names of the records about a claim queue begin with these: its session, and the verdicts of its reader (see
# `server.draining`). They go with the claim queue, in the same frame of the log.
SESSION_RECORD: Final = "drain of "
_VERDICTS_RECORD: Final = "verdicts of drain "

# The verdict of a reader on claims that it does not simply acknowledge.
REQUEUE: Final = 1  # processing failed: back to the queue
DEAD_LETTER: Final = 2
LIMIT: Final = 3  # acknowledged, except those that have failed more often than they may

# How much one call of the engine claims or gives back; at least one message.
PIECE_MESSAGES: Final = 512
PIECE_BYTES: Final = 1 << 20

_IDENTITY_BITS: Final = 64
_NO_END: Final = NUMBER_MASK + 1
_NO_ROOM: Final = Room()


def verdicts_record(claims: str, page: int) -> str:
    """Return the name of the record with a page of the verdicts about the claim queue called `claims`."""
    return f"{_VERDICTS_RECORD}{claims}/{page}" if page else f"{_VERDICTS_RECORD}{claims}"


def claims_arguments(queue: str, consumer: str) -> bytes:
    """Return the arguments with which a claim queue is declared."""
    return encode_table({SOURCE: queue, CONSUMER: consumer})


class Verdict:
    """The way in which claims leave; `kind` as above.

    `delay_ms`: of `REQUEUE`; negative: by the rules of the queue. `failures`, `limit`: of `LIMIT`: how often the claims
    have failed since they were claimed, in addition to their own count, and how often they may.
    """

    def __init__(self, kind: i64, *, delay_ms: i64 = -1, failures: i64 = 0, limit: i64 = 0) -> None:
        self.kind: i64 = kind
        self.delay_ms: i64 = delay_ms
        self.failures: i64 = failures
        self.limit: i64 = limit


class Claimed:
    """The messages claimed by one call. `waits`: whether there are more is known only after a read from disk."""

    def __init__(self, most: i64, room_bytes: i64, *, any_size: bool) -> None:
        self.count: i64 = 0
        self.body_bytes: i64 = 0
        self._memory_bytes: i64 = 0
        self.waits: bool = False
        self.is_full: bool = False
        self._most: i64 = most
        self._room_bytes: i64 = room_bytes
        self._any_size: bool = any_size  # the first message may have any size

    def has_room(self, message: Message) -> bool:
        """Tell whether `message` may be claimed as well, and note it if not."""
        room_bytes: i64 = self._room_bytes - self.body_bytes
        is_first = self.count == 0 and self._any_size
        if self.count >= self._most or self._memory_bytes >= PIECE_BYTES:
            self.is_full = True
        if message.body_bytes > room_bytes and not is_first:
            self.is_full = True
        return not self.is_full

    def add(self, message: Message) -> None:
        """Count a message."""
        self.count += 1
        self.body_bytes += message.body_bytes
        self._memory_bytes += message.memory_bytes


class ClaimBacklog(OffsetBacklog):
    """The claims of one drain; `first` is the oldest, or the next to come. Claims with a batch are not in memory."""

    def __init__(self, log: MessageLog) -> None:
        super().__init__(log)
        self.first: i64 = 0

    def first_number(self) -> i64:
        return self.first

    def restore(self, index: QueueIndex) -> None:
        super().restore(index)
        self.first = index.first_page * index.page_entries if index.live_count else index.next_number

    def batch_closed(self) -> None:
        """Release claims from memory: a closed batch has stored them."""
        if self.tail.items:
            self._extend_middle()
            self._batch_reaches(self.tail_from())
        if self.middle.count:
            self._offer_pages()

    def lacks_page(self, number: i64) -> bool:
        """Tell whether `drop_to` needs a page of the index that is not in memory: one that it cuts in two."""
        index = self.index
        if index is None or number % index.page_entries == 0:
            return False
        page = index.page(number // index.page_entries)
        return page is not None and not page.resident

    def drop_to(self, end: i64) -> tuple[int, int]:
        """Forget the claims before `end`, which is synced; `lacks_page` is False. Return how many, and their bytes."""
        index = self.index
        assert index is not None and self.first <= end <= self.synced_to()
        size: i64 = index.page_entries
        start: i64 = self.first
        page = index.page(start // size)
        if page is not None and not page.resident:
            start = start // size * size  # everything before is gone already, so this page goes whole and unread
        count, body_bytes = self._forget_stored(index, start, end)
        self.first = end
        middle = self.need_middle()
        middle.count -= count
        middle.start = end
        return count, body_bytes

    def given_up(self, count: i64, body_bytes: i64) -> None:
        self.need_middle().count -= count
        self.on_loaded(int(count), int(body_bytes))

    def page_lost(self, page_number: i64, page: IndexPage) -> i64:
        self.need_middle().count -= page.live
        return page.live


class ClaimQueue(OffsetQueue):
    """The claims of one drain. ``arguments`` is the encoded table of its declaration: see `claims_arguments`."""

    def __init__(
        self, declaration: QueueDeclaration, runnable: list[BaseQueue], host: QueueHost, store_id: int = 0
    ) -> None:
        self.messages = ClaimBacklog(host.log)
        super().__init__(declaration, runnable, host, store_id, self.messages, knows_deliveries=True)
        self.messages.on_loaded = self.ready.lost
        table = decode_table(declaration.arguments)
        source = table.get(SOURCE)
        consumer = table.get(CONSUMER)
        self.source_name = source if isinstance(source, str) else ""
        self.consumer_name = consumer if isinstance(consumer, str) else ""
        self._first_is_known: bool = True  # see (5)

    def restore(self, index: QueueIndex, clean: bool) -> None:
        super().restore(index, clean)
        self._first_is_known = index.live_count == 0

    def close(self) -> None:
        super().close()
        self._host.forget(SESSION_RECORD + self.name)
        page = 0
        while self._host.maybe_remembered(verdicts_record(self.name, page)) is not None:
            self._host.forget(verdicts_record(self.name, page))
            page += 1

    def find_first(self, told: Callable[[int], None]) -> None:
        """Report the number of the oldest claim, or of the next to come: immediately, or after a look on disk."""
        messages = self.messages
        index = messages.index
        if self._first_is_known or self.deleted or index is None:
            told(int(messages.first))
            return
        size: i64 = index.page_entries
        number: i64 = messages.first
        tail: i64 = messages.tail_from()
        while number < tail:
            page = index.page(number // size)
            if page is not None and not page.resident:
                _FirstRead(self, index, number, told).begin()
                return
            stop: i64 = min((number // size + 1) * size, tail)
            while number < stop and (page is None or index.lsn_of(number) == 0):
                number += 1
            if number < stop:
                break
        messages.first = number
        self._first_is_known = True
        told(int(number))

    # --- claims ---------------------------------------------------------------------------------------------------

    def claim(self, queue: Queue, most: i64, room_bytes: i64, any_size: bool, ends: list[int]) -> Claimed:
        """Claim the messages that would leave `queue` next: at most `most`, `room_bytes` of bodies and `PIECE_BYTES`.

        `any_size`: the first may be larger. `ends`: for each lane the number from which messages are not claimed, see
        `ends_of`; empty: all may be. Expired messages are not claimed, and go first. `basic_get.call_when_ready` tells
        a caller that waits for that, or for the disk.
        """
        claimed = Claimed(most, room_bytes, any_size=any_size)
        if queue.is_shut or queue.deleted or self.deleted:
            return claimed
        queue.used()
        if queue.keeper is not None and not queue.keeper.expiry.expire():
            claimed.waits = True
            return claimed
        lanes: i64 = queue.ready.lane_count
        lane: i64 = 0
        while lane < lanes and not claimed.is_full and not claimed.waits:
            end: i64 = ends[lane] if ends else i64(_NO_END)
            if end > 0:
                self._claim_returned(queue, lane, end, most, claimed)
                self._claim_waiting(queue, lane, end, claimed)
            lane += 1
        queue.look_again()
        return claimed

    def _claim_returned(self, queue: Queue, lane: i64, end: i64, most: i64, claimed: Claimed) -> None:
        """Claim messages of a lane that were returned, or set aside in it."""
        ready = queue.ready
        keeper = queue.keeper
        lane_bits: i64 = lane << LANE_SHIFT
        count: i64 = most
        while count == most:
            found = ready.returned.between(lane_bits, lane_bits | (end - 1), int(most))
            count = len(found)
            for place, message in found:
                if not claimed.has_room(message):
                    return
                if ready.returned.maybe_at(place) is None:
                    return
                is_expired = keeper is not None and keeper.expiry.is_expired(message)
                if not is_expired:
                    self._add(message, ready.returned.may_have_been_delivered(place), claimed)
                ready.maybe_take_out(place)
                if keeper is not None and is_expired:
                    keeper.expiry.expired_at_hand_out(message, place)
                else:
                    ready.settle(message, place)

    def _claim_waiting(self, queue: Queue, lane: i64, end: i64, claimed: Claimed) -> None:
        """Claim from the backlog of a lane."""
        ready = queue.ready
        keeper = queue.keeper
        backlog = ready.backlog(lane)
        while not backlog.is_empty():
            if not backlog.ready_or_fetch():
                claimed.waits = True
                return
            number: i64 = backlog.oldest_number()
            message = backlog.oldest()
            if number >= end or not claimed.has_room(message):
                return
            is_expired = keeper is not None and keeper.expiry.is_expired(message)
            if not is_expired:
                self._add(message, number < backlog.delivered_before or message.attempts > 0, claimed)
            ready.take_head(lane)
            if keeper is not None and is_expired:
                keeper.expiry.expired_at_hand_out(message, ready.next_place)
            else:
                ready.settle(message, ready.next_place)

    def _add(self, message: Message, redelivered: bool, claimed: Claimed) -> None:
        """Take over a message that leaves its queue then: this may fail."""
        kept = message.copy()
        kept.persistent = True
        kept.attempts = 1 if redelivered else 0
        if kept.time_ms == 0:
            kept.time_ms = self._log.now_ms
        if not self.is_life_noted:
            self.note_life()
        self.ready.store(kept, self.ready.append(kept, 0))
        self.published += 1
        self.not_by_channels += 1
        claimed.add(message)

    def settle_below(self, number: i64, told: Callable[[], None]) -> None:
        """Forget the claims before `number`, which is synced; tell at once, or when their index has been read."""
        messages = self.messages
        index = messages.index
        if index is not None and not self.deleted and number > messages.first:
            if messages.lacks_page(number):
                _SettleRead(self, index, number, told).begin()
                return
            self.drop_to(number)
        told()

    def drop_to(self, end: i64) -> None:
        """Forget the claims before `end`, whose index is there."""
        count, body_bytes = self.messages.drop_to(end)
        self.ready.lost(count, body_bytes)
        self.acked += count
        self._first_is_known = True

    def give_back(self, queue: Queue, told: Callable[[int], None]) -> None:
        """Return the oldest claims to `queue`, a piece at a time; tell how many those were, 0: nothing is left.

        They join the end of the queue, flagged as redelivered, and their time to live begins again. Neither limits nor
        deduplication keep them out. `find_first` must have told. Claims that are not synced yet stay.
        """
        self._read_oldest(queue, self.messages.synced_to(), None, told)

    def settle_oldest(self, queue: Queue | None, end: i64, verdict: Verdict, told: Callable[[int], None]) -> None:
        """Settle the oldest claims before `end`, which is synced, by a verdict, in pieces as in `give_back`.

        Dead letters go back to `queue` if it no longer has a dead letter exchange. `queue` None: it is gone. Then
        claims are only acknowledged, up to the first that needs the queue.
        """
        self._read_oldest(queue, end, verdict, told)

    def _read_oldest(self, queue: Queue | None, end: i64, verdict: Verdict | None, told: Callable[[int], None]) -> None:
        messages = self.messages
        index = messages.index
        stop: i64 = min(messages.first + PIECE_MESSAGES, end)
        if self.deleted or index is None or messages.first >= stop:
            told(0)
        else:
            _ReturnRead(self, index, queue, stop, verdict, told).begin()

    def returned(self, queue: Queue | None, messages: list[Message | None], end: i64, verdict: Verdict | None) -> int:
        """Return or settle these claims, all before `end`, and forget them; None cannot be read. Tell how many.

        When `queue` is gone, the first claim that needs it stays, and so do the later ones.
        """
        count = 0
        number: i64 = self.messages.first
        for message in messages:
            if message is not None:
                if verdict is None or not _is_acknowledged(message, verdict):
                    if queue is None or queue.deleted:
                        end = number
                        break
                    self._leave(queue, message, verdict)
                count += 1
            number += 1
        if end > self.messages.first:
            self.drop_to(end)
        return count

    def _leave(self, queue: Queue, message: Message, verdict: Verdict | None) -> None:
        header = message.header_payload()
        back = message.copy()
        back.persistent = is_persistent(header) or queue.rules.is_quorum
        back.expiration_ms = expiration_ms_of(header)
        back.attempts = 1
        if verdict is None:
            queue.accept(back, RELEASED)
            return
        keeper = queue.need_keeper()
        retries = keeper.retries
        if verdict.kind == LIMIT:
            retries.gives_up(back)
        elif verdict.kind == DEAD_LETTER and keeper.deaths.may_dead_letter():
            keeper.deaths.add_placeless(back, REJECTED)
        else:
            retries.fails(back, verdict.delay_ms, self._log.now_ms)

    # --- what claim queues do not do ------------------------------------------------------------------------------

    def publish(self, message: Message) -> i64:
        """Refuse a publish."""
        self.refused += 1
        return REFUSED

    def accept(self, message: Message, origin: i64) -> i64:
        """Refuse a message."""
        if origin == CHANNEL:
            self.refused += 1
        return REFUSED

    def hold(self, message: Message, until_ms: i64, origin: i64) -> i64:
        """Refuse to hold a message."""
        return self.accept(message, origin)

    def maybe_room(self) -> Room | None:
        return _NO_ROOM

    def check_allows(self, method: str) -> None:
        if method != "queue.delete" or self.ready_count:  # only the drain has these messages
            raise self.refusal(method)

    def refusal(self, what: str) -> AmqpError:
        text = f"queue '{self.name}' in vhost '{self.vhost_name}' holds the claims of a drain"
        return ChannelException(ACCESS_REFUSED, text)

    def check_invariants(self) -> None:
        super().check_invariants()
        messages = self.messages
        assert self.unacked_count == 0 and not self.consumers
        assert messages.first <= messages.synced_to() <= messages.next_number
        index = messages.index
        if self._first_is_known and index is not None and not index.damaged_count:
            assert self.ready.count == messages.next_number - messages.first


class _FirstRead(OffsetRead):
    """Reads the page of the index in which the oldest claim is looked for."""

    def __init__(self, queue: ClaimQueue, index: QueueIndex, number: i64, told: Callable[[int], None]) -> None:
        super().__init__(queue, index, number, number + 1)
        self._queue = queue
        self._told = told

    def fetched(self, messages: list[Message | None]) -> None:
        self._queue.find_first(self._told)
        self._queue.messages.offer_loaded(self.loaded)


class _SettleRead(OffsetRead):
    """Reads the page of the index that contains the end of settled claims."""

    def __init__(self, queue: ClaimQueue, index: QueueIndex, end: i64, told: Callable[[], None]) -> None:
        super().__init__(queue, index, end, end + 1)
        self._queue = queue
        self._end: i64 = end
        self._told = told

    def fetched(self, messages: list[Message | None]) -> None:
        queue = self._queue
        if not queue.deleted and self._end > queue.messages.first:
            queue.drop_to(self._end)
        self._told()
        queue.messages.offer_loaded(self.loaded)


class _ReturnRead(OffsetRead):
    """Reads claims that leave by a verdict, or go back."""

    def __init__(
        self,
        claims: ClaimQueue,
        index: QueueIndex,
        queue: Queue | None,
        end: i64,
        verdict: Verdict | None,
        told: Callable[[int], None],
    ) -> None:
        super().__init__(claims, index, claims.messages.first, end, PIECE_BYTES)
        self._claims = claims
        self._queue = queue
        self._verdict = verdict
        self._told = told

    def fetched(self, messages: list[Message | None]) -> None:
        claims = self._claims
        count = 0
        if not claims.deleted and self.first == claims.messages.first:
            count = claims.returned(self._queue, messages, self.reached(), self._verdict)
        self._told(count)
        claims.messages.offer_loaded(self.loaded)


def _is_acknowledged(message: Message, verdict: Verdict) -> bool:
    """Tell whether a claim is simply acknowledged: its batch has failed, but not more often than the message may."""
    return verdict.kind == LIMIT and count_of(message, DELIVERY_COUNT) + verdict.failures <= verdict.limit


# --- marks ------------------------------------------------------------------------------------------------------------


def mark_of(queue: BaseQueue) -> int:
    """Return a mark of the current end of `queue`: its identity, and the next number of each lane."""
    mark = _identity(queue)
    shift = _IDENTITY_BITS
    lane = 0
    while lane < queue.ready.lane_count:
        mark |= int(queue.ready.backlog(lane).next_number) << shift
        shift += LANE_SHIFT
        lane += 1
    return mark


def ends_of(queue: BaseQueue, mark: int) -> list[int]:
    """Return for each lane the number up to which messages came before `mark`; 0 if the mark is of another queue."""
    lanes = queue.ready.lane_count
    if mark & ((1 << _IDENTITY_BITS) - 1) != _identity(queue):
        return [0] * lanes
    numbers = mark >> _IDENTITY_BITS
    return [(numbers >> (LANE_SHIFT * lane)) & NUMBER_MASK for lane in range(lanes)]


def _identity(queue: BaseQueue) -> int:
    return queue.store_id if queue.durable else 0
