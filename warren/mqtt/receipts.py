"""The answers to an MQTT client's PUBLISH packets: PUBACK and PUBREC, as confirms.

1. PUBACK and PUBREC mean what a confirm means; see `channels.confirms`.
2. A message of QoS 2 is taken over once: its packet id is remembered (`vhosts.kept_sessions`) in the frame of the log
   that has the message, even if its connection ends first. PUBREC waits for that frame, even without a subscriber.
3. A refused message is not remembered: its packet id may be used for another message.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.channels.confirms import Confirms, PendingConfirms
from warren.mqtt.reason_codes import RECEIVE_MAXIMUM, MqttError
from warren.msgstore.log.message import Message
from warren.queues.outcome import REFUSED

if TYPE_CHECKING:
    from warren.mqtt.session import MqttSession

PACKET_IDS: Final = 65535
# This bit, set in a packet id, means that it is of QoS 2.
OF_QOS_2: Final = 1 << 16


class Receipts(Confirms):
    """The receipts of one session."""

    def __init__(self, pending: PendingConfirms, session: MqttSession, *, syncs: bool) -> None:
        super().__init__(pending, session.ledger.outbox, syncs=syncs)
        self._session: MqttSession | None = session
        self._sessions = session.sessions
        self._kept = session.kept
        # Number of a publish, packet id with its QoS, reason.
        self._waiting: deque[tuple[int, int, int]] = deque()
        self._arriving: int = 0  # the packet id of QoS 2 whose publish is under way
        self._arriving_crc: int = 0
        self.waiting_of_qos_1: int = 0

    def expect(self, packet_id: int, qos: i64, reason: int, crc: int) -> None:
        """Answer `packet_id` when the next publish is confirmed. `crc`: of a message of QoS 2.

        Raises:
            MqttError: more messages wait for an answer than there are packet ids.
        """
        if len(self._waiting) >= PACKET_IDS:
            raise MqttError(RECEIVE_MAXIMUM, f"more than {PACKET_IDS} messages that await PUBACK or PUBREC")
        if qos == 2:
            self._arriving = packet_id
            self._arriving_crc = crc
            self._waiting.append((int(self.published) + 1, packet_id | OF_QOS_2, reason))
        else:
            self.waiting_of_qos_1 += 1
            self._waiting.append((int(self.published) + 1, packet_id, reason))

    def expect_again(self, packet_id: int) -> bool:
        """Answer a packet id of QoS 2 again, when all publishes so far are confirmed; False: they are already."""
        if self.unanswered_count() == 0:
            return False
        if len(self._waiting) >= PACKET_IDS:
            raise MqttError(RECEIVE_MAXIMUM, f"more than {PACKET_IDS} messages that await PUBACK or PUBREC")
        self._waiting.append((int(self.published), packet_id | OF_QOS_2, 0))
        return True

    def count_publish(self, message: Message, outcome: i64, ticket: i64) -> None:
        super().count_publish(message, outcome, ticket)
        packet_id = self._arriving
        if packet_id:
            self._arriving = 0
            kept = self._kept
            if outcome == REFUSED or kept.owner is None:
                return
            if self._sessions.receive(kept, packet_id, self._arriving_crc):
                self.await_batch()

    def write_confirmed(self, up_to: i64, count: i64) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= up_to:
            _, packet_id, reason = waiting.popleft()
            self._answer(packet_id, reason)

    def _answer(self, packet_id: int, reason: int) -> None:
        session = self._session
        if packet_id < OF_QOS_2:
            self.waiting_of_qos_1 -= 1
        if session is not None:
            session.write_receipt(packet_id & 0xFFFF, 2 if packet_id & OF_QOS_2 else 1, reason)

    def write_refused(self, number: i64) -> None:
        for at, (waiting, packet_id, _) in enumerate(self._waiting):
            if waiting == number:
                del self._waiting[at]
                if packet_id < OF_QOS_2:
                    self.waiting_of_qos_1 -= 1
                if self._session is not None:
                    self._session.refused(packet_id & 0xFFFF, 2 if packet_id & OF_QOS_2 else 1)
                return

    def close(self) -> None:
        super().close()
        self._session = None
