"""An innocent client in a process of its own: ``python -m soak.innocent PORT`` prints how long it had to wait.

A line is ``confirm SECONDS`` for a persistent message in a durable queue, one at a time, or ``login SECONDS`` for a new
connection. Waits that the end of the broker cuts off are not counted. It ends when its standard input does.
"""

from __future__ import annotations

import sys
import threading
import time

from warren.amqp import methods
from warren.amqp_client import frames
from warren.perf.client import Address, BrokerError, PerfConnection

QUEUE = "innocent"
PAUSE_S = 0.01
LOGIN_EVERY = 100


def main() -> None:
    address = Address(port=int(sys.argv[1]))
    over = threading.Event()
    threading.Thread(target=_end_with_input, args=(over,), daemon=True).start()
    while not over.wait(0.05):
        try:
            _serve(address, over)
        except BrokerError:
            continue  # it is away, and comes back


def _end_with_input(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


def _serve(address: Address, over: threading.Event) -> None:
    with PerfConnection.open(address, name=QUEUE) as connection:
        connection.declare_queue(QUEUE, durable=True, arguments={"x-max-length": 10})
        connection.confirm_select()
        properties = frames.encode_properties(persistent=True)
        message = frames.publish(1, "", QUEUE, b"x" * 100, frame_max_bytes=0, properties=properties)
        number = 0
        while not over.wait(PAUSE_S):
            number += 1
            if number % LOGIN_EVERY == 0:
                began_s = time.monotonic()
                PerfConnection.open(address, name=f"{QUEUE} login").close()
                _say("login", began_s)
            began_s = time.monotonic()
            connection.send(message)
            connection.wait_for(methods.BasicAck)
            _say("confirm", began_s)


def _say(what: str, began_s: float) -> None:
    print(f"{what} {time.monotonic() - began_s:.6f}", flush=True)


if __name__ == "__main__":
    main()
