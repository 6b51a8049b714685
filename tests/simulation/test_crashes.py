"""The whole store on a simulated disk: crashes everywhere, errors at every call, corruption, and what comes back.

The invariants (I1 to I11) are in `simulation.crashes`. A crash state is a disk that differs from all others of its test
and was recovered and read through the queues. `WARREN_TEST_CRASH_STATES` is the least number of states in these tests
and `test_random_lives.py` together; each test has its share. Below `SHORT_STATES`, as in `make test`, sequences after a
setup are of the small alphabet. Everything follows from the seed, which is printed; long runs use a new one each time.
"""

from __future__ import annotations

from random import Random
from typing import Final

import pytest

from simulation.disk_faults import CHANGES, Corruption, try_fault
from simulation.sequences import (
    LETTERS,
    PLAIN_LETTERS,
    RULED_LETTERS,
    RULED_SETUPS,
    SETUPS,
    SHORT_SHAPE,
    SMALL,
    all_sequences,
    try_sequences,
)
from simulation.simulated_file_system import Fault
from simulation.states import SEED, SEQUENCE_STATES, STATES, TIME_LIMIT

SHORT_STATES: Final = 10_000
RULED_SEQUENCE_STATES: Final = 20_000 if STATES >= 100_000 else 1_000
FAULTED_SEQUENCES: Final = 20 * max(1, STATES // 1_000_000) if STATES >= 100_000 else 10
FLIPS: Final = max(500 if STATES < SHORT_STATES else 1500, STATES // 30)
pytestmark = TIME_LIMIT


def test_every_sequence_of_three_operations_survives_every_crash() -> None:
    """All letters on an empty store; I1 to I7, at every change of the disk in the last operation."""
    longest = 3 if STATES >= 100_000 else 2
    letters = PLAIN_LETTERS
    states = try_sequences(all_sequences(letters, longest), SETUPS[0])
    for setup in SETUPS[1:]:
        if longest > 2:
            states += try_sequences(all_sequences(letters if STATES >= 1_000_000 else SMALL, longest), setup)
        states += try_sequences(all_sequences(SMALL if STATES < SHORT_STATES else letters, 2), setup)
    print(f"{states} crash states")
    assert states >= SEQUENCE_STATES


def test_every_sequence_of_three_operations_of_queues_with_rules_survives_every_crash() -> None:
    """Dead letters, expiry, counted returns, delays, retries, priorities, lengths; every message in one place."""
    longest = 3 if STATES >= 100_000 else 2
    states = try_sequences(all_sequences(RULED_LETTERS, longest), RULED_SETUPS[0], shape=SHORT_SHAPE)
    for setup in RULED_SETUPS[1:]:
        letters = "".join(LETTERS) if STATES >= 1_000_000 else RULED_LETTERS
        states += try_sequences(all_sequences(letters, longest - 1), setup, shape=SHORT_SHAPE)
    print(f"{states} crash states")
    assert states >= RULED_SEQUENCE_STATES


def random_letters(seed: int, length: int) -> str:
    letters = ("pffgkKtcmipsuABTrxdo", "eeqhylUGGGnnjvvbwkcmis")[seed % 2]
    return "".join(Random(seed).choice(letters) for _ in range(length))


FAULTS: Final = [
    *((Fault.EIO, operation) for operation in CHANGES),
    *((Fault.ENOSPC, operation) for operation in ("create", "write", "truncate", "rename", "mkdir")),
    (Fault.SHORT_WRITE, "write"),
    (Fault.FAILED_SYNC, "sync"),
]


@pytest.mark.parametrize(("fault", "operation"), FAULTS, ids=lambda value: getattr(value, "name", value))
def test_one_error_at_any_call_loses_nothing_that_was_promised(fault: Fault, operation: str) -> None:
    """Some sequences, every call of each. No space: the broker continues. Anything else: it stops; I1 to I7, I11."""
    states = runs = stops = 0
    for number in range(FAULTED_SEQUENCES):
        letters = random_letters(SEED * 1000 + number, 7)
        nth_call = 1
        while True:
            outcome = try_fault(letters, fault, operation, nth_call, limit=4)
            states += outcome.states
            if not outcome.hit:
                break
            runs += 1
            stops += outcome.stopped
            nth_call += 1
    print(f"{runs} errors in {operation}, {stops} stops, {states} crash states")
    assert runs >= FAULTED_SEQUENCES // 2
    if fault in (Fault.ENOSPC, Fault.SHORT_WRITE):
        assert stops == 0, "the broker stopped although there was only no space"
    elif operation in ("sync", "sync_directory", "write"):
        assert stops == runs, "the broker went on after an error of the disk"


def test_rot_is_reported_and_never_served() -> None:
    """I9: bits and sectors of what was synced, and a broker that lives on with it."""
    random = Random(SEED)
    flips = reported = 0
    while flips < FLIPS:
        corruption = Corruption(random_letters(random.randrange(1 << 30), random.randint(1, 12)))
        for _ in range(50):
            corruption.spoil(random)
            flips += 1
        reported += corruption.reported
    print(f"seed {SEED}: {flips} places spoiled, {reported} of them reported")
    assert reported > flips // 3
