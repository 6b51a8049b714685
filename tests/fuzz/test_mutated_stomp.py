"""Broken frames of STOMP; ``make fuzz`` is the long run (WARREN_TEST_FUZZ_FRAMES: how many mutated frames).

`fuzzer` lists the requirements, `stomp_transcript` the frames that a client may be sent.
"""

from __future__ import annotations

import os
import random

import pytest

from .fuzzer import Fuzzer
from .stomp_client import RandomStompClient

# Five times as many valid ones are sent between them.
MUTATED_FRAMES = int(os.environ.get("WARREN_TEST_FUZZ_FRAMES", "3000"))
LEAST_FRAMES = 2600  # below, memory cannot be judged


@pytest.mark.timeout(300 + MUTATED_FRAMES // 50)
def test_broken_frames_of_stomp_get_normal_answers_or_an_error_and_memory_stays_flat() -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}, again with (in tests/): python -m fuzz --protocol stomp --seed {seed}")
    fuzzer = Fuzzer(seed, kind=RandomStompClient)
    fuzzer.run(max(MUTATED_FRAMES, LEAST_FRAMES))
    print(f"{fuzzer.counts['mutated']} mutated of {fuzzer.counts['frames']} frames, memory {fuzzer.memory[-1]}")
    fuzzer.check_memory(growth_blocks_max=2000, growth_bytes_max=16 << 20)
    # A fuzzer that is refused at the door tests the door only.
    for command in ("CONNECTED", "MESSAGE", "RECEIPT", "ERROR"):
        assert fuzzer.counts[f"received {command}"] > 100, f"hardly anybody was sent {command}"
    for name in ("frame_error", "syntax_error", "not_allowed", "precondition_failed"):
        assert fuzzer.counts[f"ERROR {name}"] > 0, f"nobody was sent {name}"


def test_the_same_seed_gives_the_same_answers_over_stomp() -> None:
    runs = [Fuzzer(7, kind=RandomStompClient), Fuzzer(7, kind=RandomStompClient)]
    for fuzzer in runs:
        fuzzer.run(250)
    assert runs[0].counts == runs[1].counts
    assert runs[0].digest.hexdigest() == runs[1].digest.hexdigest()
