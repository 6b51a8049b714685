"""A broker whose stdout and stderr are full, closed or on a full disk serves, and stops when it is told to."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from broker_process import wait_until
from free_ports import free_port

HEADER = b"AMQP\x00\x00\x09\x01"


def command(directory: Path, port: int) -> list[str]:
    listeners = ["--amqp", f"127.0.0.1:{port}", "--http", "off", "--prometheus", "off"]
    return [sys.executable, "-m", "warren", "serve", "--data-dir", str(directory / "data"), *listeners]


def serves(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as sock:
            sock.sendall(HEADER)
            return bool(sock.recv(8))
    except OSError:
        return False


@pytest.mark.long
@pytest.mark.parametrize("streams", ["2>&-", ">&-", "<&- >&- 2>&-", ">/dev/full", "2>/dev/full", ">/dev/full 2>&1"])
def test_streams_that_take_nothing(tmp_path: Path, streams: str) -> None:
    port = free_port()
    words = " ".join(f"'{word}'" for word in command(tmp_path, port))
    process = subprocess.Popen(["sh", "-c", f"exec {words} {streams}"], stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: serves(port), "the broker to serve")
        assert process.poll() is None
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_a_pipe_that_nobody_reads(tmp_path: Path) -> None:
    port = free_port()
    reading, writing = os.pipe()
    process: Any = subprocess.Popen(
        command(tmp_path, port), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=writing
    )
    os.set_blocking(writing, False)
    try:
        heard = b""
        while b" started " not in heard:
            heard += os.read(reading, 65536)
        assert serves(port)
        with suppress(BlockingIOError):
            while True:
                os.write(writing, b"\n" * 65536)
        os.set_blocking(writing, True)  # as the broker has it: they share that
        # Each of these has a line in the log.
        for _ in range(20):
            assert serves(port)
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(writing)
        os.close(reading)
