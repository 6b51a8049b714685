"""Work that Ctrl-C ends at once, whatever it waits for.

A signal becomes KeyboardInterrupt in the main thread, wherever that is: in the middle of a call from an engine into
Python the engine may take it for the failure of something that it can do without. So the main thread only waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final, TypeVar

# A query that is interrupted before it has begun does not notice: it is interrupted until it has ended.
AGAIN_S: Final = 0.1

_Result = TypeVar("_Result")


def interruptible(work: Callable[[], _Result], interrupt: Callable[[], None]) -> _Result:
    """Return what `work` returns, in a thread of its own; in the main thread. `interrupt` has it end early.

    Raises:
        KeyboardInterrupt: it was interrupted, and has ended. Interrupted again, it is not waited for.
    """
    future: Future[_Result] = Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=run, name="interruptible", daemon=True)
    try:
        thread.start()  # which waits for the thread to begin: that, too, may be interrupted
        return future.result()
    except KeyboardInterrupt:
        while not (future.cancel() or future.done()):
            interrupt()
            wait([future], AGAIN_S)
        raise
