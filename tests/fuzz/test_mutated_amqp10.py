"""Broken frames of AMQP 1.0; ``make fuzz`` is the long run (WARREN_TEST_FUZZ_FRAMES: how many mutated frames).

`fuzzer` lists the requirements, `amqp10_transcript` the frames that a client may be sent.
"""

from __future__ import annotations

import os
import random

import pytest

from .amqp10_client import RandomAmqp10Client
from .fuzzer import Fuzzer

# Six times as many valid ones are sent between them.
MUTATED_FRAMES = int(os.environ.get("WARREN_TEST_FUZZ_FRAMES", "3000"))
LEAST_FRAMES = 2600  # below, memory cannot be judged
RECEIVED = {
    "0x10": "open",
    "0x11": "begin",
    "0x12": "attach",
    "0x13": "flow",
    "0x14": "transfer",
    "0x15": "disposition",
    "0x16": "detach",
    "0x17": "end",
    "0x18": "close",
    "0x40": "sasl-mechanisms",
    "0x44": "sasl-outcome",
}


@pytest.mark.timeout(300 + MUTATED_FRAMES // 50)
def test_broken_frames_of_amqp_1_0_get_normal_answers_or_the_end_and_memory_stays_flat() -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}, again with (in tests/): python -m fuzz --protocol amqp10 --seed {seed}")
    fuzzer = Fuzzer(seed, kind=RandomAmqp10Client)
    fuzzer.run(max(MUTATED_FRAMES, LEAST_FRAMES))
    print(f"{fuzzer.counts['mutated']} mutated of {fuzzer.counts['frames']} frames, memory {fuzzer.memory[-1]}")
    fuzzer.check_memory(growth_blocks_max=2000, growth_bytes_max=16 << 20)
    # A fuzzer that is refused at the door tests the door only.
    for what, name in RECEIVED.items():
        assert fuzzer.counts[f"received {what}"] > 0, f"nobody was sent {name}"
    for what in ("detach with an error", "end with an error", "delivery in parts", "answer to a disposition"):
        assert fuzzer.counts[f"received {what}"] > 0, f"nobody was sent: {what}"
    for condition in ("decode-error", "illegal-state", "invalid-field", "connection:framing-error"):
        assert fuzzer.counts[f"close amqp:{condition}"] > 0, f"nobody was closed with {condition}"


def test_the_same_seed_gives_the_same_answers_over_amqp_1_0() -> None:
    runs = [Fuzzer(7, kind=RandomAmqp10Client), Fuzzer(7, kind=RandomAmqp10Client)]
    for fuzzer in runs:
        fuzzer.run(250)
    assert runs[0].counts == runs[1].counts
    assert runs[0].digest.hexdigest() == runs[1].digest.hexdigest()
