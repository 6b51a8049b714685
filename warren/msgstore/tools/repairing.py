"""Repairing a store: a checkpoint that a broker can start with, made of everything that is still readable.

    a segment without a usable header       the header is made again from its frames; a segment without any goes to the
                                            quarantine. When nothing else tells the store's id, the head at the place of
                                            the first frame does: a head further on may be a publisher's
    corruption in the log                   the segment is copied to the quarantine; records in it that are whole count,
                                            and the new checkpoint begins after it
    the checkpoint is usable                it and the frames after it say which messages are live, as at every start
    a page of the index is lost             the whole log is searched for its messages
    no checkpoint, or not a usable one      the whole log says which messages are live (``rebuilding``)
    the index leads to missing records      the entries are dropped, and the queue counts them as damaged
    a segment counts its references wrong   they are counted
    a sealed file has no usable header,     it is made again, and a file that was set aside gets its name back; one
      or was set aside                        without a whole chunk, or whose place is taken, is set aside
    damage in a sealed file                 the file is copied to the quarantine; the rest of it is served as it is
    offsets neither sealed nor in the log   the queue counts them as damaged

1. Nothing is deleted: everything replaced was copied to the quarantine before.
2. Messages searched for in the whole log come at least once: some of them may have been acknowledged.
3. The checkpoint is written last. Dying before that loses nothing, and another repair continues.
4. A dry run does all of it except the changes.
5. While the disk does not give a part of the log nothing is changed: unreadable bytes are not lost.
6. Damage that cannot be repaired is given up (``given_up``): it is reported, and remembered for `verify`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from warren.msgstore.files.file_system import replace_file, write_all
from warren.msgstore.files.new_segments import NEW
from warren.msgstore.files.quarantine import QUARANTINE
from warren.msgstore.files.segment_header import SegmentHeader as EngineHeader
from warren.msgstore.files.segment_header import remade_header
from warren.msgstore.files.segment_names import LOG, segment_path
from warren.msgstore.files.store import Store, wall_time_ms
from warren.msgstore.log.checkpoint import seal, snapshot
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import QueueIndex
from warren.msgstore.tools.format import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
)
from warren.msgstore.tools.given_up import GIVEN_UP, GivenUp, give_up
from warren.msgstore.tools.lines import PROBLEM, Line, UnreadableStore, note
from warren.msgstore.tools.log_check import LogCheck, foreign_frame
from warren.msgstore.tools.log_files import SegmentFile, StoreFiles
from warren.msgstore.tools.rebuilding import Rebuild, messages_of_pages
from warren.msgstore.tools.sealed_check import tail_gap
from warren.msgstore.tools.sealed_repair import SealedRepair
from warren.msgstore.tools.sealed_streams import SealedStream, read_streams
from warren.msgstore.tools.stored_state import (
    CheckpointFacts,
    LogReader,
    LostPage,
    References,
    StoredState,
    header_of,
    name_fields,
    queue_count,
    read_checkpoint,
    recovered,
    unsealed,
)
from warren.msgstore.tools.verification import check, verify

ACTION: Final = "action"
AT_LEAST_ONCE: Final = (
    "messages come back at least once: some that were acknowledged may be among them, "
    "because the acknowledgement is not in the log any more"
)


class Repair:
    """One repair of `files`; a dry run without `store`."""

    def __init__(self, files: StoreFiles, store: Store | None) -> None:
        self._files = files
        self._store = store
        self._actions = 0
        self._at_least_once = False

    def lines(self) -> Iterator[Line]:
        """Yield the actions, or the planned ones, then the queues and one line of type ``summary``."""
        checkpoint, fault = read_checkpoint(self._files)
        self._need_all(checkpoint)
        yield from self._repair_headers(checkpoint)
        check = LogCheck(self._files, checkpoint)
        for _ in check.lines():
            pass
        for gap in check.foreign():
            yield foreign_frame(gap)
        yield from self._copy_rot(check)
        with LogReader(self._files) as reader:
            state = None
            if fault is not None:
                yield self._action(f"the checkpoint is replaced: {fault}")
            else:
                try:
                    state = recovered(self._files, reader)
                except UnreadableStore as error:
                    yield self._action(f"the index is made again from the log: {error}")
            if state is None:
                if check.algorithm is None:
                    raise UnreadableStore("none of the segments can be read")
                state = StoredState(Rebuild(self._files, check).run(), reader)
                self._at_least_once = True
            yield from self._refill_pages(state, check)
            yield from self._drop_dangling(state)
            yield from self._settle_segments(state)
            streams = read_streams(self._files.fs, state.log.store_id, in_full=True)
            yield from self._repair_sealed(state, streams)
            if self._actions:
                yield self._action("a new checkpoint is written")
                if self._store is not None:
                    self._write_checkpoint(state.log, fault)
            elif count := sum(line["type"] == PROBLEM for line in verify(StoreFiles(self._files.fs))):
                yield self._action("the damage is given up: it cannot be repaired", problems=count)
            else:
                yield note("nothing to repair")
            if self._store is not None:
                yield from self._give_up()
            yield from self._summary(state, streams)

    def _need_all(self, checkpoint: CheckpointFacts | None) -> None:
        """Read the whole log once.

        Raises:
            UnreadableStore: the disk does not give all of it now.
        """
        for _ in LogCheck(self._files, checkpoint).lines():
            pass
        if self._files.unread:
            raise UnreadableStore(
                f"the disk does not give all of {', '.join(sorted(self._files.unread))}: nothing was changed. Try "
                "again, or copy the data directory as far as it can be read (ddrescue), and repair the copy"
            )

    def _give_up(self) -> Iterator[Line]:
        """Remember the remaining problems, and yield them; nothing is written when they are remembered already."""
        fs = self._files.fs
        repaired = StoreFiles(fs)
        repaired.trusts_copies = False  # an operator who has given messages up may empty the quarantine
        known = GivenUp(fs)
        found = list(check(repaired))
        if any(known.judged(line)["type"] == PROBLEM for line in found):
            for line in give_up(fs, found, wall_time_ms()):
                yield {**line, "type": GIVEN_UP}

    # --- files --------------------------------------------------------------------------------------------------------

    def _repair_headers(self, checkpoint: CheckpointFacts | None) -> Iterator[Line]:
        for number in list(self._files.segments):
            with self._files.segment(number) as file:
                if file.fault is None:
                    continue
                fault = file.fault
                header = self._maybe_header(file, checkpoint)
                content = b"" if header is None else file.range(SEGMENT_HEADER_BYTES, file.size)
            if header is None:
                what = f"moved to the quarantine: {fault}, and no frame of this store is intact"
                yield self._action(what, segment=number)
                if self._store is not None:
                    self._store.set_aside(number)
                self._files.segments.remove(number)
                continue
            yield self._action(f"the header is made again from the frames: {fault}", segment=number)
            self._files.headers[number] = header
            if self._store is not None:
                self._store.quarantine(number)
                self._replace(segment_path(number), SegmentHeader.build(header) + content)

    def _maybe_header(self, damaged: SegmentFile, checkpoint: CheckpointFacts | None) -> Any:
        """Return the header that fits an intact frame of the segment."""
        others: list[EngineHeader] = []
        for number in self._files.segments:
            with self._files.segment(number) as file:
                if file.header is not None:
                    others.append(header_of(file))

        def read(_number: int, offset: int, length: int) -> bytes:
            return damaged.range(offset, length)

        usable = None if checkpoint is None else self._files.maybe_checkpoint()
        found = remade_header(read, damaged.number, damaged.size, others, usable)
        if found is None:
            return None
        capacity = max([damaged.size, *(header.capacity for header in others)])
        later = [header.base_lsn for header in others if header.number > damaged.number]
        if later:
            # The space up to the next segment is free: an old one there is gone, or it is this one's.
            capacity = min(capacity, max(later[0] - found.base_lsn, damaged.size))
        fields = {
            "algorithm": found.algorithm,
            "store_id": found.store_id,
            "segment": found.number,
            "base_lsn": found.base_lsn,
            "capacity": capacity,
            "epoch": found.epoch,
        }
        return SegmentHeader.parse(SegmentHeader.build(fields))

    def _copy_rot(self, check: LogCheck) -> Iterator[Line]:
        copied = {name.partition("-")[0] for name in self._files.quarantined()}
        for number, gaps in sorted(Counter(gap.segment for gap in check.corrupt).items()):
            if f"{number:010d}" not in copied:
                yield self._action("copied to the quarantine: corruption in synced data", segment=number, places=gaps)
                if self._store is not None:
                    self._store.quarantine(number)

    def _replace(self, path: str, data: bytes) -> None:
        """Put another file in the place of a segment, which may have a second name in the quarantine."""
        fs = self._files.fs
        replace_file(fs, NEW, path, data, lambda handle, _: fs.sync(handle))
        fs.sync_directory(LOG)

    def _write(self, path: str, data: bytes) -> None:
        fs = self._files.fs
        handle = fs.open(path, writable=True)
        try:
            write_all(fs, handle, [data], 0)
            fs.sync(handle)
        finally:
            fs.close(handle)

    def _write_checkpoint(self, log: MessageLog, fault: str | None) -> None:
        assert self._store is not None
        fs = self._files.fs
        old = self._files.maybe_checkpoint()
        if old is not None:
            taken = set(self._files.quarantined())
            name = next(name for at in range(len(taken) + 1) if (name := f"checkpoint-{at}") not in taken)
            path = f"{QUARANTINE}/{name}"
            fs.close(fs.create(path, 0))
            self._write(path, old)
            fs.sync_directory(QUARANTINE)
        self._store.write_checkpoint(seal(snapshot(log), log.checksum, int(log.last_crc)))

    # --- the index ----------------------------------------------------------------------------------------------------

    def _refill_pages(self, state: StoredState, check: LogCheck) -> Iterator[Line]:
        lost: dict[tuple[int, int], LostPage] = {}
        for index in state.queues():
            for entry in state.entries(index):
                if isinstance(entry, LostPage):
                    lost[int(index.queue_id), entry.page_number] = entry
                    index.drop_page(entry.page)
        if not lost:
            return
        self._at_least_once = True
        size = int(state.log.page_entries)
        refilled: Counter[tuple[int, int]] = Counter()
        for (queue_id, number), message in messages_of_pages(self._files, check, set(lost), size).items():
            state.log.indexes[queue_id].add(number, *message)
            refilled[queue_id, number // size] += 1
        for (queue_id, page_number), page in lost.items():
            index = state.log.indexes[queue_id]
            found = refilled[queue_id, page_number]
            index.damaged_count += max(0, page.live - found)
            yield self._action(
                "a lost page of the index is made again from the log",
                **_queue(index),
                sequence_number=page_number * size,
                messages=page.live,
                found=found,
            )

    def _drop_dangling(self, state: StoredState) -> Iterator[Line]:
        for index in state.queues():
            faults: Counter[str] = Counter()
            dangling: list[int] = []
            for entry in state.entries(index):
                assert not isinstance(entry, LostPage), "lost pages are made again before"
                fault = state.message(index, entry)
                if isinstance(fault, str):
                    faults[fault] += 1
                    dangling.append(entry.number)
            for number in dangling:
                self._make_resident(state, index, number // int(index.page_entries))
                index.forget(number)
                index.damaged_count += 1
            for text, count in faults.items():
                yield self._action(f"dropped from the index: {text}", **_queue(index), messages=count)

    def _settle_segments(self, state: StoredState) -> Iterator[Line]:
        """Correct the reference counts of segments, and forget segments that are not there."""
        references = References(state)
        for index in state.queues():
            for entry in state.entries(index):
                assert not isinstance(entry, LostPage)
                references.refer(entry.lsn, entry.length)
            references.refer_to_pages(index)
        counts, sizes = references.counts.copy(), references.bytes.copy()
        if not self._actions:
            if not references.refer_to_doomed():
                yield self._action("references are counted: a page whose messages are gone is lost")
            else:
                for number, counted, said in references.differences():
                    yield self._action(f"{counted} references counted, not {said}", segment=number)
        # Pages whose messages are gone need not be released one by one.
        state.log.doomed.restore([])
        present = {header.number for header in state.reader.headers}
        missing: list[int] = []
        for segment in state.log.segments.segments:
            number = int(segment.number)
            if number not in present:
                yield self._action("no longer expected: the segment is missing", segment=number)
                missing.append(number)
            segment.live_refs, segment.live_bytes = counts[number], sizes[number]
        state.log.segments.remove(missing)

    def _make_resident(self, state: StoredState, index: QueueIndex, page_number: int) -> None:
        page = index.page(page_number)
        assert page is not None
        if not page.resident:
            words = state.words(index, page, page_number)
            assert words is not None
            index.page_loaded(page, words, 1 << 62)

    # --- sealed files -------------------------------------------------------------------------------------------------

    def _repair_sealed(self, state: StoredState, streams: dict[int, SealedStream]) -> Iterator[Line]:
        """Repair the files of streams; `streams` is the state afterwards."""
        repair = SealedRepair(self._files, state, streams, is_dry=self._store is None)
        for what, where in repair.files():
            yield self._action(what, **where)
        for stream in streams.values():
            index = state.log.indexes.get(stream.id)
            if index is None:
                continue
            missing = sum(end - first for first, end in [*stream.gaps(), *tail_gap(state, stream)])
            if missing > index.damaged_count:
                index.damaged_count += missing
                what = "counted as damaged: neither sealed nor in the log"
                yield self._action(what, **_queue(index), messages=missing)

    # --- telling ------------------------------------------------------------------------------------------------------

    def _action(self, what: str, **where: object) -> Line:
        self._actions += 1
        return {"type": ACTION, "what": what, **where, "applied": self._store is not None}

    def _summary(self, state: StoredState, streams: dict[int, SealedStream]) -> Iterator[Line]:
        queues = state.queues()
        messages = 0
        for index in queues:
            count = int(index.live_count)
            stream = streams.get(int(index.queue_id))
            if stream is not None:
                count = stream.count + unsealed(state, index, stream.end).count
            messages += count
            line: Line = {"type": "queue", **_queue(index), "messages": count}
            if not index.name:
                line["what"] = "its name is no longer in the log"
            if index.damaged_count:
                line["damaged"] = int(index.damaged_count)
            yield line
        if self._at_least_once:
            yield note(AT_LEAST_ONCE)
        yield {
            "type": "summary",
            "queues": queue_count(queues),
            "messages": messages,
            "actions": self._actions,
            "applied": self._store is not None,
        }


def _queue(index: QueueIndex) -> Line:
    return {"queue_id": int(index.queue_id), **name_fields(index)}
