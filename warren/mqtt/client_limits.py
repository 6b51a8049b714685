"""The limits that an MQTT client states in CONNECT: Receive Maximum, Maximum Packet Size, Request Problem Information.

1. A packet that is larger than the client's Maximum Packet Size is not sent. Answers of a fixed size are smaller than
   the CONNACK that the client accepted. If an answer is too large because of its reason string, that is left out. If
   another answer is too large, the connection ends.
2. Limits are never changed after they are made. So clients that state the same limits share one object, for up to
   `KNOWN_MAX` different limits.

Source: MQTT 5, sections 3.1.2.11.3, 3.1.2.11.4 and 3.1.2.11.7. Before 5.0 a client cannot state limits.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from warren.mqtt.packets import PACKET_MAX, RECEIVE_MAX, REQUEST_PROBLEM, V5, Connect
from warren.mqtt.reason_codes import TOO_LARGE, MqttError

# A longer reason string is cut off here. If the client's Maximum Packet Size is too small for it, it is left out.
REASON_CHARACTERS: Final = 256
REASON_BYTES: Final = 4 * REASON_CHARACTERS + 16
# The most unanswered messages of QoS 1 and 2 for a client that cannot state a limit, and for one that states none.
RECEIVE_MAX_OLD: Final = 100
RECEIVE_MAX_DEFAULT: Final = 65535
# Clients of one kind state the same limits. Beyond this number of different limits, clients get objects of their own.
KNOWN_MAX: Final = 64


@mypyc_attr(acyclic=True)
class ClientLimits:
    """The limits of one client. `packet_max_bytes`: 0: any size. `takes_problems`: refusals may include the reason."""

    def __init__(self, receive_max: int, packet_max_bytes: int = 0, *, takes_problems: bool = False) -> None:
        self.receive_max = receive_max
        self.packet_max_bytes = packet_max_bytes
        self.takes_words: bool = packet_max_bytes == 0 or packet_max_bytes > REASON_BYTES  # a reason string fits
        self.takes_problems: bool = takes_problems and self.takes_words

    def takes(self, answer: bytes) -> bool:
        """Tell whether the client takes a packet as large as `answer`."""
        return self.packet_max_bytes == 0 or len(answer) <= self.packet_max_bytes

    def check(self, answer: bytes) -> None:
        """Make sure that the client takes an answer. Such an answer cannot be shortened or left out.

        Raises:
            MqttError: it is larger than the client's Maximum Packet Size.
        """
        if not self.takes(answer):
            most = self.packet_max_bytes
            raise MqttError(TOO_LARGE, f"an answer of {len(answer)} bytes exceeds the client's maximum of {most}")

    def words(self, explanation: str) -> str:
        """Return the reason string for an explanation; empty where the client does not take so much."""
        return explanation[:REASON_CHARACTERS] if self.takes_words else ""


OLD: Final = ClientLimits(RECEIVE_MAX_OLD)
DEFAULTS: Final = ClientLimits(RECEIVE_MAX_DEFAULT, takes_problems=True)
_known: Final = {(RECEIVE_MAX_DEFAULT, 0, True): DEFAULTS}  # by the values that clients of 5.0 state


def limits_of(connect: Connect) -> ClientLimits:
    """Return the limits that CONNECT states."""
    if connect.version != V5:
        return OLD
    stated = connect.properties
    receive_max = stated.number(RECEIVE_MAX, RECEIVE_MAX_DEFAULT)
    packet_max_bytes = stated.number(PACKET_MAX, 0)
    takes_problems = stated.number(REQUEST_PROBLEM, 1) == 1
    found = _known.get((receive_max, packet_max_bytes, takes_problems))
    if found is None:
        found = ClientLimits(receive_max, packet_max_bytes, takes_problems=takes_problems)
        if len(_known) < KNOWN_MAX:
            _known[(receive_max, packet_max_bytes, takes_problems)] = found
    return found
