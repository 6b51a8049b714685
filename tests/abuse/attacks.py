"""Attacks of hostile peers: single inputs, each of which is valid and cheap to send, and bounded in count and time.

``python -m abuse.attacks NAME AMQP_PORT HTTP_PORT AMQPS_PORT HTTPS_PORT MQTT_PORT``, in tests/, makes one of them, in a
process of its own, so that it does not slow down the innocent client that is measured beside it. ``mallory`` has no tag
and may do everything in vhost ``abuse``; ``mallet`` is a policymaker there; some attacks do not log in.

An attack that is refused (a close, a 4xx, a hang-up) has been answered well. `test_attacks` lists the requirements. The
modules ``attacks_on_…`` have the attacks, by what is attacked, and `attack_words` has what these are made of.
"""

from __future__ import annotations

import contextlib
import os
import sys

from . import (
    attacks_on_connections,
    attacks_on_disk,
    attacks_on_management,
    attacks_on_memory,
    attacks_on_turns,
)
from .attack_words import ENTERED, Attack, Ports

# How far attackers give way to the broker and the bystander: they have machines of their own.
NICE = int(os.environ.get("WARREN_TEST_ABUSE_NICE", "0"))
# The order in which attacks are made.
SUBJECTS = (
    attacks_on_connections,
    attacks_on_turns,
    attacks_on_disk,
    attacks_on_memory,
    attacks_on_management,
)
ATTACKS: dict[str, Attack] = {
    name: made for subject in SUBJECTS for name, made in ENTERED.items() if made.__module__ == subject.__name__
}


def main() -> None:
    name, *ports = sys.argv[1:]
    os.nice(NICE)
    with contextlib.suppress(OSError):
        ATTACKS[name](Ports(*map(int, ports)))


if __name__ == "__main__":
    main()
