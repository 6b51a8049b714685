"""Checking a store: every byte that a checksum covers, and that everything fits together.

1. The log first (``log_check``), then the checkpoint, then the state that a broker would start with: every live entry
   of every queue leads to an intact message that has that place, and the segments count their references right. Then
   the sealed files of streams (``sealed_check``).
2. A queue's problems are reported up to `TOLD_MAX`, then counted.
3. Damage that a repair has given up is reported as given up, and no longer as a problem (``given_up``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from warren.msgstore.log.queue_index import QueueIndex
from warren.msgstore.tools.given_up import GIVEN_UP, GivenUp
from warren.msgstore.tools.lines import PROBLEM, Line, UnreadableStore, problem
from warren.msgstore.tools.log_check import LogCheck
from warren.msgstore.tools.log_files import StoreFiles
from warren.msgstore.tools.sealed_check import SealedCheck
from warren.msgstore.tools.stored_state import (
    LogReader,
    LostPage,
    References,
    StoredState,
    name_fields,
    queue_count,
    read_checkpoint,
    recovered,
)

TOLD_MAX: Final = 20


def verify(files: StoreFiles) -> Iterator[Line]:
    """Check everything, then yield one line of type ``summary``. Raises UnreadableStore."""
    known = GivenUp(files.fs)
    given_up = 0
    for found in check(files):
        line = known.judged(found)
        given_up += line["type"] == GIVEN_UP
        if given_up and line["type"] == "summary":
            problems = found["problems"]
            assert isinstance(problems, int)
            line = {**found, "problems": problems - given_up, "given_up": given_up}
        yield line


def check(files: StoreFiles) -> Iterator[Line]:
    """Check everything, whatever was given up before, then yield one line of type ``summary``."""
    checkpoint, fault = read_checkpoint(files)
    log = LogCheck(files, checkpoint)
    problems = 0
    for line in log.lines():
        problems += line["type"] == PROBLEM
        yield line
    if fault is not None:
        problems += 1
        yield problem(f"checkpoint: {fault}")
    summary: Line = {}
    with LogReader(files) as reader:
        state: StoredState | None = None
        messages = 0
        try:
            state = recovered(files, reader)
        except UnreadableStore as error:
            problems += 1
            yield problem(f"a broker would not start: {error}")
        else:
            check = StateCheck(state)
            for line in check.lines():
                problems += line["type"] == PROBLEM
                yield line
            summary = {"queues": queue_count(state.queues())}
            messages = check.messages
        sealed = SealedCheck(files, log.store_id or bytes(16), state)
        for line in sealed.lines():
            problems += line["type"] == PROBLEM
            yield line
        if state is not None:
            summary["messages"] = messages + sealed.messages - sealed.in_log_too
        if sealed.files:
            summary["sealed"] = {"files": sealed.files, "chunks": sealed.chunks, "messages": sealed.messages}
    yield {
        "type": "summary",
        "store_id": None if log.store_id is None else log.store_id.hex(),
        "segments": len(files.segments),
        "frames": log.frames,
        "records": log.records,
        "payload_bytes": log.payload_bytes,
        "durable_lsn": log.durable_lsn,
        "end_lsn": log.end_lsn,
        **summary,
        "problems": problems,
    }


class StateCheck:
    """The indexes against the log."""

    def __init__(self, state: StoredState) -> None:
        self.messages = 0
        self._state = state

    def lines(self) -> Iterator[Line]:
        """Yield the problems."""
        state = self._state
        references = References(state)
        lost_pages = 0
        for index in state.queues():
            faults = 0
            live = 0
            for entry in state.entries(index):
                if isinstance(entry, LostPage):
                    lost_pages += 1
                    fault: str | None = f"a page of the index with {entry.live} messages is lost"
                    number = entry.page_number * int(index.page_entries)
                    live += entry.live
                else:
                    live += 1
                    number = entry.number
                    references.refer(entry.lsn, entry.length)
                    data = state.message(index, entry)
                    fault = data if isinstance(data, str) else None
                if fault is not None:
                    faults += 1
                    if faults <= TOLD_MAX:
                        yield problem(fault, **_queue(index), sequence_number=number, lsn=entry.lsn)
            if faults > TOLD_MAX:
                yield problem(f"{faults - TOLD_MAX} more problems with this queue", **_queue(index))
            if live != index.live_count:
                yield problem(f"{live} messages in a queue that counts {index.live_count}", **_queue(index))
            self.messages += live
            references.refer_to_pages(index)
        if not lost_pages and references.refer_to_doomed():
            for segment, counted, said in references.differences():
                yield problem(f"{counted} references to a segment that counts {said}", segment=segment)


def _queue(index: QueueIndex) -> Line:
    return {"queue_id": int(index.queue_id), **name_fields(index)}
