"""Signs of life for the sessions of a query: a batch may take longer than the lease of its claims.

1. Every session is marked three times in its lease, independently of its reader, until this process ends or the
   heartbeat is stopped. The thread is a daemon: it does not keep a process alive.
2. It makes no decisions. A session that another query has opened is no longer marked; the reader notices that at its
   next call.
3. No error ends it: it prints the error, and marks the sessions again after the usual pause. It waits for an answer
   half as long as that, so that a connection that was cut without a word is replaced before a lease ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from warren.spark_bridge.bridge_errors import BridgeError, Fenced, NoDrain
from warren.spark_bridge.control import BrokerClient
from warren.spark_bridge.worker_output import say

SIGNS_PER_LEASE: Final = 3


class Heartbeat:
    """Marks sessions of drains named `name`. `connect` makes a client for the thread, `wait` is for tests."""

    def __init__(
        self,
        connect: Callable[[], BrokerClient],
        name: str,
        lease_s: int,
        *,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self._connect = connect
        self._name = name
        self._pause_s = lease_s / SIGNS_PER_LEASE
        self._stopped = threading.Event()
        self._wait = self._stopped.wait if wait is None else wait
        self._epochs: dict[str, int] = {}
        self._thread: threading.Thread | None = None

    def keep(self, queue: str, epoch: int) -> None:
        """Mark the session of `queue` from now on."""
        self._epochs[queue] = epoch
        if self._thread is None and not self._stopped.is_set():
            self._thread = threading.Thread(target=self.run, name="warren-heartbeat", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop renewing the leases."""
        self._stopped.set()

    def run(self) -> None:
        """Mark all sessions repeatedly, until it is stopped."""
        with self._connect().impatient(self._pause_s / 2) as client:
            while not self._wait(self._pause_s):
                self.beat(client)

    def beat(self, client: BrokerClient) -> None:
        """Mark all sessions once."""
        for queue, epoch in list(self._epochs.items()):
            try:
                client.mark(queue, self._name, epoch)
            except (Fenced, NoDrain):
                del self._epochs[queue]
            except Exception as error:  # whatever it is: without signs the claims go back while a batch is written
                text = str(error) if isinstance(error, BridgeError) else f"{type(error).__name__}: {error}"
                say(f"no sign of life for what is claimed of queue {queue!r}: {text}")
