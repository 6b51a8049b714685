"""The time of passing bytes on by itself, and its place on the pages of benchmarks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3]))
from benchmarks import relay, results

MACHINE = results.Machine("a processor", 2, 4, "a system", "3.11", 0.0)


def test_a_relay_passes_on_whole_pieces_and_says_what_it_took() -> None:
    found = relay.measure(0.05)
    assert found.passed_bytes > 0
    assert found.passed_bytes % relay.PIECE_BYTES == 0  # all that was sent, to the end
    assert found.cpu_us(2048) == pytest.approx(2 * found.cpu_us(1024))


def test_a_relay_that_fails_is_told() -> None:
    with pytest.raises(RuntimeError, match="the relay has failed"):
        relay.measure(0.01, core=100_000)  # no machine has it


def test_large_messages_are_shown_beside_what_passing_them_on_takes() -> None:
    measured = results.Measured()
    broker = {"received_per_s": 1000.0, "tool_cpu_share": 0.5, "delivery_latency_us": {"p50": 1.0, "p99": 2.0}}
    for name, cpu_us in (("Warren, one core", 30.0), ("RabbitMQ, one core", 60.0)):
        found = {**broker, "broker_cpu_us_per_received": cpu_us}
        measured.loads.setdefault("64k-auto", {})[name] = [found]
    measured.relayed["64k-auto"] = [relay.PassedOn(65536 * 1000, 0.02)]
    page = results.markdown(measured, MACHINE, rounds=1, seconds=1)
    assert "| 64 KiB, auto-ack | 20.0 | 30.0 (1.5) | 60.0 (3.0) |" in page
