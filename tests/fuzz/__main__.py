"""Fuzz the engine, in tests/: ``python -m fuzz [--protocol P] [--frames N] [--seed S] [--first BATCH]``.

N frames are mutated, of 0-9-1 unless P says otherwise.
"""

from __future__ import annotations

import argparse
import random
import sys

from .amqp10_client import RandomAmqp10Client
from .fuzzer import Fuzzer, RandomClient
from .random_peer import RandomPeer
from .stomp_client import RandomStompClient

KINDS: dict[str, type[RandomPeer]] = {each.NAME: each for each in (RandomClient, RandomAmqp10Client, RandomStompClient)}


def _progress(fuzzer: Fuzzer) -> None:
    counts = fuzzer.counts
    print(f"\rbatch {fuzzer.batch}: {counts['mutated']} mutated frames", end="", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Feed broken frames to the engine.")
    parser.add_argument("--protocol", choices=KINDS, default=RandomClient.NAME)
    parser.add_argument("--frames", type=int, default=1_000_000, help="mutated frames to send (%(default)s)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--first", type=int, default=0, help="batch to begin with (%(default)s)")
    options = parser.parse_args()
    print(f"{options.protocol}, seed {options.seed}, from batch {options.first}")
    fuzzer = Fuzzer(options.seed, options.first, KINDS[options.protocol])
    fuzzer.run(options.frames, _progress)
    print(file=sys.stderr)
    for what, count in sorted(fuzzer.counts.items()):
        print(f"{count:10} {what}")
    print(f"digest of all answers: {fuzzer.digest.hexdigest()[:16]}")
    if len(fuzzer.memory) >= 2:
        for point in (fuzzer.memory[0], fuzzer.memory[-1]):
            resident_mb = point.resident_bytes / 1e6
            print(f"after batch {point.batch}: {point.blocks} blocks, {resident_mb:.1f} MB resident")
        fuzzer.check_memory(growth_blocks_max=2000, growth_bytes_max=16 << 20)
    print("every answer was normal or a proper close")


if __name__ == "__main__":
    main()
