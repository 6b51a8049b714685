"""Whether a peer is still there: its traffic in both directions, and the heartbeats we owe it (specification 4.2.7).

1. A peer from which nothing came for twice the agreed interval, or as many as its protocol requires, is gone. Any bytes
   count as a sign of life. While we do not read, its silence does not count.
2. It gets a heartbeat when we sent it nothing for half the interval.
3. A peer that takes none of its waiting bytes is stuck, whether it sends heartbeats or not.
4. Time between two ticks counts up to half of the time allowed, for (1) and (3): if we or the machine were stopped, the
   delayed bytes are read and written before the next tick.
5. Until a peer is open, and while it closes, a deadline takes the place of all that.

Time is an argument. The connection reports the bytes sent and received, and acts on the answers.
"""

from __future__ import annotations

from mypy_extensions import i64, mypyc_attr

from warren.amqp.outbox import Outbox


@mypyc_attr(acyclic=True)
class Heartbeats:
    """The heartbeats of one peer in both directions, checked in every tick of an open connection.

    `deadline_s`: when its handshake or its close has to be over.
    """

    def __init__(self, now_s: float, deadline_s: float) -> None:
        self.interval_s: int = 0  # how often the peer has promised to send something; 0: never
        self.silent_intervals: float = 2.0  # after so many of these without a word it is gone
        self.own_interval_s: int = 0  # how often we promised to send it something; 0: never
        self.deadline_s: float = deadline_s
        self.is_given_up: bool = False  # the peer can no longer be told anything
        self._received_bytes: i64 = 0
        self._sent_bytes: i64 = 0
        self._silent_s: float = 0.0  # time without received bytes
        self._quiet_s: float = now_s  # time of the last sent bytes
        self._stuck_s: float = 0.0  # time in which the peer has taken none of its waiting bytes
        self._ticked_s: float = now_s

    def tick(
        self,
        now_s: float,
        received_bytes: i64,
        outbox: Outbox,
        *,
        is_read: bool,
        send_timeout_s: float,
    ) -> None:
        """Note the totals of received and sent bytes."""
        passed_s = now_s - self._ticked_s
        if received_bytes != self._received_bytes or not is_read:
            self._received_bytes = received_bytes
            self._silent_s = 0.0
        else:
            self._silent_s += min(passed_s, self.silent_intervals * self.interval_s / 2)
        if outbox.sent_bytes != self._sent_bytes:
            # Sent at some time since the last tick: reckon with the earliest, or a short interval is missed.
            self._sent_bytes = outbox.sent_bytes
            self._quiet_s = self._ticked_s
            self._stuck_s = 0.0
        elif outbox.waiting_bytes() == 0:
            self._stuck_s = 0.0
            outbox.rest()
        else:
            self._stuck_s += min(passed_s, send_timeout_s / 2)
        self._ticked_s = now_s

    def is_stuck(self, send_timeout_s: float) -> bool:
        """Tell whether the peer has taken none of its waiting bytes in `send_timeout_s`; 0: no limit."""
        return send_timeout_s > 0 and self._stuck_s >= send_timeout_s

    def is_gone(self) -> bool:
        """Tell whether the silence lasts longer than the peer has promised."""
        return self.interval_s > 0 and self._silent_s > self.silent_intervals * self.interval_s

    def is_due(self) -> bool:
        """Tell whether to send a heartbeat now, and count it as sent."""
        interval_s = self.own_interval_s
        if interval_s == 0 or self._ticked_s - self._quiet_s < interval_s / 2:
            return False
        self._quiet_s = self._ticked_s
        return True
