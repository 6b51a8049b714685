"""A short run of the fuzzer; ``make fuzz`` is the long one (WARREN_TEST_FUZZ_FRAMES: how many mutated frames)."""

from __future__ import annotations

import os
import random

import pytest

from .fuzzer import Fuzzer

# Six times as many valid ones are sent between them.
MUTATED_FRAMES = int(os.environ.get("WARREN_TEST_FUZZ_FRAMES", "12000"))
LEAST_FRAMES = 12_000  # below, memory cannot be judged


@pytest.mark.timeout(300 + MUTATED_FRAMES // 50)
def test_broken_frames_get_normal_answers_or_a_proper_close_and_memory_stays_flat() -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}, again with (in tests/): python -m fuzz --seed {seed} --frames {MUTATED_FRAMES}")
    fuzzer = Fuzzer(seed)
    fuzzer.run(max(MUTATED_FRAMES, LEAST_FRAMES))
    print(f"{fuzzer.counts['mutated']} mutated of {fuzzer.counts['frames']} frames, memory {fuzzer.memory[-1]}")
    fuzzer.check_memory(growth_blocks_max=2000, growth_bytes_max=16 << 20)
    # A fuzzer that is refused at the door tests the door only.
    assert fuzzer.counts["channel.close"] > 100
    for code in (501, 502, 503, 504, 505, 540):
        assert fuzzer.counts[f"connection.close {code}"] > 0, f"nobody was closed with {code}"


def test_the_same_seed_gives_the_same_answers() -> None:
    runs = [Fuzzer(seed=7), Fuzzer(seed=7)]
    for fuzzer in runs:
        fuzzer.run(1000)
    assert runs[0].counts == runs[1].counts
    assert runs[0].digest.hexdigest() == runs[1].digest.hexdigest()
