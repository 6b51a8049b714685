"""What an MQTT client takes, as its CONNECT says: Receive Maximum, Maximum Packet Size, Request Problem Information.

1. A packet that is larger than the client takes is not sent. Answers of a fixed size are smaller than the CONNACK that
   it took. A reason string is left out, another answer ends the connection.
2. Limits are never changed after they are made: clients that state the same share theirs, as far as `KNOWN_MAX` goes.

Source: MQTT 5, sections 3.1.2.11.3, 3.1.2.11.4 and 3.1.2.11.7. Before 5.0 a client cannot state any.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from warren.mqtt.packets import PACKET_MAX, RECEIVE_MAX, REQUEST_PROBLEM, V5, Connect
from warren.mqtt.reason_codes import TOO_LARGE, MqttError

# Limit for a reason string: the rest is cut off; with a smaller Maximum Packet Size it is left out.
REASON_CHARACTERS: Final = 256
REASON_BYTES: Final = 4 * REASON_CHARACTERS + 16
# The messages of QoS 1 and 2 that may be out to a client that cannot set a limit, and to one that does not.
RECEIVE_MAX_OLD: Final = 100
RECEIVE_MAX_DEFAULT: Final = 65535
# Clients of one kind state the same. With more different limits than this, some clients have limits of their own.
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
        """Tell whether the client takes a packet so large."""
        return self.packet_max_bytes == 0 or len(answer) <= self.packet_max_bytes

    def check(self, answer: bytes) -> None:
        """Make sure that the client takes an answer which can neither be sent in part nor be left out.

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
_known: Final = {(RECEIVE_MAX_DEFAULT, 0, True): DEFAULTS}  # by what clients of 5.0 state


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
