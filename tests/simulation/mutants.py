"""Breaks the store on purpose, one mutant at a time: each time the crash simulation has to fail.

    make mutants                               all of them
    make mutants ARGS="no-directory-sync ..."  some of them

The simulation runs with a small number of crash states. ``source_mutants.py`` says how a mutant is tried, and has the
exit codes.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from source_mutants import Mutant, lines, mutant, try_mutants

STATES: Final = os.environ.get("WARREN_TEST_MUTANT_STATES", "12000")
STORE_TESTS: Final = (
    "simulation/test_removals.py",
    "simulation/test_metadata.py",
    "simulation/test_queues_with_rules.py",
    "simulation/test_crashes.py",
    "simulation/test_random_lives.py",
    "simulation/test_compaction.py",
    "simulation/test_sealing.py",
    "simulation/test_own_writes.py",
)
REPLICA_TESTS: Final = ("simulation/test_replicas.py",)
READ_TESTS: Final = ("simulation/test_failing_reads.py", "unit/queues/test_damage.py")

STORE: Final = "msgstore/files/store.py"
AHEAD: Final = "msgstore/files/contents_ahead.py"
READS: Final = "msgstore/files/segment_reads.py"
FAIL_STOP: Final = "msgstore/files/fail_stop.py"
FILE_SYSTEM: Final = "msgstore/files/file_system.py"
LOG: Final = "msgstore/log/message_log.py"
BATCH: Final = "msgstore/log/batch.py"
OWN_WRITES: Final = "msgstore/log/own_writes.py"
RECOVERY: Final = "msgstore/files/recovery.py"
REPLAY: Final = "msgstore/log/replay.py"
CHECKPOINT: Final = "msgstore/log/checkpoint.py"
CHECKPOINT_CYCLE: Final = "msgstore/log/checkpoint_cycle.py"
COMPACTION: Final = "msgstore/log/compaction.py"
INDEX: Final = "msgstore/log/queue_index.py"
RETRY: Final = "queues/retry.py"
BASE_QUEUE: Final = "queues/base_queue.py"
BACKLOG: Final = "queues/backlog.py"
OFFSET_BACKLOG: Final = "queues/offset_backlog.py"
EXPIRY: Final = "queues/expiry.py"
HELD_LANES: Final = "queues/held_lanes.py"
HELD: Final = "queues/held_messages.py"
REPLICA: Final = "replication/replica_store.py"
SHIPPING: Final = "replication/shipping.py"
SEALED: Final = "msgstore/files/sealed_files.py"
STREAM_BACKLOG: Final = "streams/backlog.py"
SEALER: Final = "streams/sealer.py"
REMOVALS: Final = "msgstore/log/removals.py"
LANE: Final = "vhosts/metadata_lane.py"
JOURNAL: Final = "vhosts/metadata_journal.py"

ACKS: Final = lines(
    "for index in self.acking:",
    "    index.write_acks(writer)",
)
PAGES: Final = lines("self._write_pages(writer)")
COPIES: Final = lines("self._write_copies(writer)")
SYNC: Final = lines("    self._fs.sync(handle)", "except OSError as error:")
DEAD: Final = "[int(s.number) for s in log.segments.segments if s.is_dead()]"
FORGET: Final = "    self.log.segments.release(word0 & LSN_MASK, word1 >> LENGTH_SHIFT, word0 & DROPPABLE != 0)"

MUTANTS: Final = (
    # --- commits, and recovery of what they wrote ---
    mutant(
        "no-directory-sync",
        "the file of a new segment is gone with all that was confirmed",
        (STORE, lines("self._sync_directory(LOG)", "self._is_named = True", indent=12), lines("pass", indent=12)),
    ),
    mutant(
        "confirm-before-sync",
        "what was confirmed is gone after a power cut",
        (LOG, "(batch.wants_sync and is_last) or self._is_new,", "self._is_new,"),
    ),
    mutant(
        "all-of-it-ahead",
        "a confirmed transaction of large messages is not there after a restart",
        (AHEAD, "if begun.chunks.get(offset) is chunk:", "if begun.chunks:"),
    ),
    mutant(
        "commit-without-sync",
        "the same, one layer below",
        (STORE, lines("self._sync(self._handle, segment_path(self._number))", indent=12), ""),
    ),
    mutant(
        "no-crc-check",
        "half a frame is taken for a whole one",
        (REPLAY, "    if crc != unsigned_word(data, at + 52):\n        return None\n", ""),
    ),
    mutant(
        "crc-without-header",
        "corruption in a frame's header passes",
        ("msgstore/log/records.py", "    crc = checksum(head, 0)\n    for chunk", "    crc = 0\n    for chunk"),
        (REPLAY, ", checksum(data[at : at + 52], 0))\n", ", 0)\n"),
    ),
    mutant(
        "corruption-taken-for-a-torn-tail",
        "one bad sector cuts the log, silently, with everything behind it",
        (RECOVERY, "after = self._later_frame(image, pos, file, following)\n", "after = None\n"),
    ),
    mutant(
        "failed-sync-tried-again",
        "the second sync succeeds without what the first one lost",
        (
            FAIL_STOP,
            SYNC,
            lines(
                "    try:",
                "        self._fs.sync(handle)",
                "    except OSError:",
                "        self._fs.sync(handle)",
                "except OSError as error:",
            ),
        ),
    ),
    mutant(
        "chain-not-checked",
        "a segment that has lost its end is taken for a whole one",
        (RECOVERY, "if found is not None and found[0].previous_crc != expected_crc:", "if False:"),
        (
            RECOVERY,
            "return first is not None and first[0].previous_crc == expected_crc\n",
            "return first is not None\n",
        ),
    ),
    mutant(
        "purge-without-the-open-batch",
        "what was purged before it was written comes back with the next start",
        (BATCH, lines("index.void_rows(first, end)"), ""),
    ),
    # --- checkpoints and pages ---
    mutant(
        "checkpoint-counts-what-was-purged",
        "a file of the log is needed for ever, by nothing",
        (CHECKPOINT, lines("log.reclamation.release_pages()", indent=4), ""),
    ),
    mutant(
        "checkpoint-before-the-log",
        "the checkpoint knows messages that the log has lost",
        (
            CHECKPOINT_CYCLE,
            lines("if job is None or log.durable_lsn < job.lsn:"),
            lines("if job is None:"),
        ),
    ),
    mutant(
        "ack-counted-twice",
        "a segment is removed with messages in it",
        (
            INDEX,
            lines(FORGET, "    if page.live == 0:", indent=4),
            lines("    for _ in range(2):", "    " + FORGET, "    if page.live == 0:", indent=4),
        ),
    ),
    mutant(
        "unlink-before-the-checkpoint",
        "after a crash the last checkpoint misses a segment",
        (
            CHECKPOINT_CYCLE,
            lines(f"self._dead = {DEAD}"),
            lines(
                "self._dead = []",
                f"dead = {DEAD}",
                "if dead:",
                "    log.segments.remove(dead)",
                "    log.unlink_jobs.append(UnlinkJob(dead))",
            ),
        ),
    ),
    mutant(
        "clean-whatever-follows",
        "after a crash messages that were delivered are not flagged",
        (RECOVERY, " and checkpoint.clean and found.frames == 0 and", " and checkpoint.clean and"),
    ),
    mutant(
        "start-not-synced",
        "the same, when the crash comes soon after a clean start",
        (
            LOG,
            lines("self.batch.epoch_time_ms = time_ms", "self.force()"),
            lines("self.batch.epoch_time_ms = time_ms", "self.batch.is_forced = True"),
        ),
    ),
    mutant(
        "checkpoint-renamed-unsynced",
        "an empty checkpoint: the broker does not start",
        (FILE_SYSTEM, lines("sync(handle, making)"), ""),
    ),
    mutant(
        "absent-page-taken-as-settled",
        "what is acknowledged in a long backlog comes back, or more goes than was acknowledged",
        (REPLAY, lines("if page is None or page.resident:", "    return"), lines("return")),
        (
            INDEX,
            lines('assert page.resident, "entries of an absent page are settled"'),
            lines("if not page.resident:", "    return"),
        ),
    ),
    mutant(
        "page-behind-the-copies",
        "an index page points to where its messages were before compaction",
        (BATCH, PAGES, ""),
        (BATCH, COPIES, COPIES + PAGES),
    ),
    mutant(
        "acks-behind-the-page",
        "a segment counts references that nobody has, and stays",
        (BATCH, ACKS, ""),
        (BATCH, PAGES, PAGES + ACKS),
    ),
    # --- queues ---
    mutant(
        "requeue-with-a-new-number",
        "what was given back and then acknowledged comes back",
        (
            "queues/ready_messages.py",
            "self.returned.put(message, place, is_unanswered)\n",
            "self.returned.put(message, self._backlog.skip_number(), is_unanswered)\n",
        ),
    ),
    mutant(
        "short-write-ignored",
        "the second half of a frame is missing",
        ("msgstore/files/file_system.py", lines("pending = _behind(pending, written)"), lines("pending = ()")),
    ),
    mutant(
        "recovered-and-not-synced",
        "what a killed process had written, and the next one served, is gone after a power cut",
        (RECOVERY, lines("self._files.sync_segments(replayed)"), ""),
    ),
    mutant(
        "sealed-and-not-synced",
        "the end of a segment is gone although the next one is there",
        (STORE, lines("self._sync(handle, segment_path(self._number))"), ""),
    ),
    mutant(
        "segment-named-before-its-header",
        "a segment without a header: the log ends before it",
        (STORE, lines("self._sync(file.handle, file.path)", indent=12), ""),
    ),
    mutant(
        "copy-without-its-time",
        "what compaction has moved never expires",
        (COMPACTION, "(DROPPABLE | TIMED | EXPIRES | DELIVERED |", "(DROPPABLE | DELIVERED |"),
    ),
    mutant(
        "replay-forgets-what-expires",
        "what expires stays after a crash, until somebody takes it",
        (
            REPLAY,
            "index.add(number, lsn, flags & EXPIRES, length, body_bytes)",
            "index.add(number, lsn, 0, length, body_bytes)",
        ),
    ),
    mutant(
        "letter-in-an-earlier-batch",
        "after a crash a message that expired is in its queue and in the dead letter queue",
        (
            "queues/queue_host.py",
            lines("if place >= 0:", "    queue.ready.settle(message, place)"),
            lines(
                "if place >= 0:",
                "    late = getattr(queue.rules, 'late', [])",
                "    queue.rules.late = [(message, place)]",
                "    for settled in late:",
                "        queue.ready.settle(*settled)",
            ),
        ),
    ),
    mutant(
        "letter-not-stored",
        "after a crash a message that died is nowhere",
        (
            "queues/dead_letter.py",
            "made.persistent = is_persistent(header.payload)",
            "made.persistent = False",
        ),
    ),
    mutant(
        "replaced-without-ack",
        "a segment counts references that nobody has, or the broker does not start",
        (
            BATCH,
            lines("    index.note_ack(number)", "    index.forget(number)"),
            lines("    index.forget(number)"),
        ),
    ),
    mutant(
        "replaced-in-memory-only",
        "after a crash a message that came back is nowhere",
        (
            RETRY,
            "index.log.batch.replace(index, delivery.message, message, place & NUMBER_MASK)",
            "index.log.batch.settle(index, delivery.message, place & NUMBER_MASK)",
        ),
    ),
    mutant(
        "released-and-not-settled",
        "after a crash a delayed message comes twice",
        (
            HELD,
            lines("    self.log.batch.settle(index, message, number)", "self.count -= 1"),
            lines("    pass", "self.count -= 1"),
        ),
    ),
    mutant(
        "held-without-its-time",
        "after a crash a delayed message comes at once",
        (HELD, lines("message.time_ms = until_ms", "self.count += 1"), lines("self.count += 1")),
    ),
    mutant(
        "page-given-up-under-held-messages",
        "a delayed message that was due is not delivered before the next start",
        (
            "queues/held_memory.py",
            lines("if self.reads or self._is_storing or not index.unload_candidates:"),
            lines("if not index.unload_candidates:"),
        ),
        (
            "queues/disk_reads.py",
            lines("index.page_loaded(page, page_entries(data, 0), log.void_below_lsn)", indent=16),
            lines(
                "index.page_loaded(page, page_entries(data, 0), log.void_below_lsn)",
                "index.unload_candidates.append(number)",
                indent=16,
            ),
        ),
        (
            "queues/fetch.py",
            lines("if page is not None and not page.resident:", indent=12),
            lines("if False:", indent=12),
        ),
    ),
    mutant(
        "taken-out-of-the-middle-uncounted",
        "a queue waits for messages that are gone, for ever",
        (
            BACKLOG,
            lines("middle.count -= 1", "if middle.count == 0:", "    self._void_read()"),
            "",
        ),
    ),
    mutant(
        "middle-gone-and-nobody-told",
        "a consumer gets nothing although messages wait",
        (EXPIRY, lines("queue.look_again()"), lines("self.plan()")),
    ),
    mutant(
        "expired-while-it-was-loaded",
        "a message that has expired is served all the same, after its dead letter",
        (
            "queues/middle_reader.py",
            lines("if index.lsn_of_resident(number) == 0 or middle.has_taken(number):", indent=12),
            lines("if middle.has_taken(number):", indent=12),
        ),
    ),
    mutant(
        "deadlines-not-looked-for",
        "after a restart nothing expires behind what does not",
        (EXPIRY, "_EarlyScan(self.log, index, self).advance()", "pass"),
    ),
    mutant(
        "lane-forgotten",
        "after a restart messages of low priority are nobody's",
        (
            BATCH,
            "index.vhost.encode(), index.name.encode(), index.lane, index.transient)",
            "index.vhost.encode(), index.name.encode(), 0, index.transient)",
        ),
    ),
    mutant(
        "lanes-of-an-earlier-queue",
        "of two lanes of the same name one is not served",
        (
            BASE_QUEUE,
            lines("return index.queue_id >= queue.store_id and queue.has_lane(index.lane)", indent=4),
            lines("return queue.has_lane(index.lane)", indent=4),
        ),
    ),
    mutant(
        "refused-letter-in-memory-only",
        "after a crash a letter that nobody took is nowhere",
        (
            HELD_LANES,
            lines("stored: bool = message.persistent and self._queue.stores"),
            lines("stored: bool = message.persistent and self._queue.stores and lane.code != UNDELIVERED"),
        ),
    ),
    # --- frames of one batch, and own writes ---
    mutant(
        "batch-closed-in-the-middle",
        "after a crash half a transaction, or half a move, is there",
        (
            BATCH,
            "    def _touch(self, index: QueueIndex) -> None:\n",
            lines(
                "    if len(self.messages) > 2 and self._log.in_flight is None:",
                "        self._log._close(self)",
                "",
                "def _touch(self, index: QueueIndex) -> None:",
                indent=4,
            ),
        ),
    ),
    mutant(
        "portion-in-the-wrong-place",
        "messages of a long transaction cannot be read back",
        (LOG, "        batch.enter(ahead.lsn + FRAME_HEADER_BYTES)\n", "        batch.enter(ahead.lsn)\n"),
    ),
    mutant(
        "portion-goes-on-in-the-old-segment",
        "what is written behind a long transaction lies where its segment is",
        (
            LOG,
            "        self.next_base_lsn = segment.base_lsn + segment.capacity\n        self.next_lsn",
            "        self.next_lsn",
        ),
    ),
    mutant(
        "half-a-batch-counts",
        "after a crash half a large transaction is there",
        (REPLAY, "        if frame.is_continued:\n", "        if False:\n"),
    ),
    mutant(
        "half-a-batch-waits-for-the-next-life",
        "the rest of a transaction that died with its process comes to life with the next batch",
        (
            REPLAY,
            "        self.epoch_begins(frame.epoch)\n        if frame.is_continued:",
            "        if frame.is_continued:",
        ),
    ),
    mutant(
        "second-frame-before-the-first-of-an-epoch-is-synced",
        "a start after a power cut reports corruption where nothing is corrupt",
        (LOG, "(batch.wants_sync and is_last) or self._is_new,", "batch.wants_sync and is_last,"),
    ),
    mutant(
        "letters-do-not-wait-for-the-disk",
        "one publish with dead letters holds the confirms of everybody",
        (
            "vhosts/dead_lettering.py",
            "            return WRITES",
            "            return NOTHING",
        ),
    ),
    mutant(
        "returns-do-not-wait-for-the-disk",
        "a consumer that leaves holds the confirms of everybody",
        ("channels/jobs.py", "            if self.need == NOTHING:\n", "            if False:\n"),
    ),
    mutant(
        "returns-are-stored-on-a-full-disk",
        "the disk goes below its floor",
        (OWN_WRITES, "return not self.disk_is_short", "return True"),
    ),
    mutant(
        "share-that-nobody-counts",
        "what the broker writes by itself fills whole batches",
        (OWN_WRITES, "        self._bytes += wrote\n", ""),
    ),
    mutant(
        "flag-lost-on-disk",
        "a message that was tried before looks as if it were new",
        ("msgstore/log/records.py", lines("if flags & DELIVERED:", "    message.attempts = 1"), ""),
    ),
    # --- sealed files of streams ---
    mutant(
        "chunk-without-sync",
        "what a stream has sealed, and the log forgotten, is gone after a power cut",
        (
            SEALED,
            lines("write_all(self._fs, handle, pieces, position)", "if not has_more:", "    self._sync(handle, path)"),
            lines("write_all(self._fs, handle, pieces, position)"),
        ),
    ),
    mutant(
        "sealed-file-without-directory-sync",
        "the same, with the whole file",
        (SEALED, lines("if begins:", "    self._sync_directory(STREAMS)"), ""),
    ),
    mutant(
        "forgotten-before-it-is-sealed",
        "the log forgets what is only about to be written",
        (
            SEALER,
            lines("self._job = job", "self.log.seal_jobs.append(job)"),
            lines(
                "self._job = job",
                "self.log.seal_jobs.append(job)",
                "stream.messages.sealed(job.end)",
                "self.log.force()",
            ),
        ),
    ),
    mutant(
        "sealed-before-it-is-synced",
        "after a power cut an offset stands for another message than the one in the chunk",
        (
            OFFSET_BACKLOG,
            lines("    if lsn > durable_lsn:", "        break"),
            lines("    if lsn > durable_lsn + (1 << 60):", "        break"),
        ),
    ),
    mutant(
        "half-a-chunk-is-one",
        "a torn chunk is taken for a whole one, and the log forgets its messages",
        (
            SEALED,
            "if data is None or not is_whole(head, data):\n",
            "if data is None:\n",
        ),
    ),
    mutant(
        "chunk-found-and-not-synced",
        "what a killed process has written is served, forgotten by the log, and gone after a power cut",
        (
            SEALED,
            lines("    self._fs.truncate(handle, position)", "self._sync(handle, path)", indent=20),
            lines("    self._fs.truncate(handle, position)", indent=20),
        ),
    ),
    mutant(
        "sealed-twice",
        "after a crash messages are in the log and in a chunk, and counted twice",
        (
            STREAM_BACKLOG,
            lines("end: i64 = self.sealer.table.end", "self.sealed(end)"),
            lines("end: i64 = self.sealer.table.end"),
        ),
    ),
    mutant(
        "chunk-at-the-wrong-place",
        "a chunk is written over the one before",
        (
            SEALER,
            "            position = segments[-1].file_bytes\n",
            "            position = segments[-1].chunks[-1].position\n",
        ),
    ),
    mutant(
        "segment-of-another-stream",
        "two streams write into one file",
        (
            SEALED,
            'return f"{STREAMS}/{stream_id:0{_ID_DIGITS}d}-',
            'return f"{STREAMS}/{stream_id // 2:0{_ID_DIGITS}d}-',
        ),
    ),
    mutant(
        "next-chunk-before-this-one",
        "what was gathered meanwhile begins where the chunk that is being written began",
        (SEALER, lines("if job is not None:", "    first = job.end"), ""),
    ),
    mutant(
        "file-dropped-that-is-written",
        "retention removes the segment that the next chunk goes into",
        (SEALER, "return len(self.table.segments) > 1\n", "return len(self.table.segments) > 0\n"),
    ),
    mutant(
        "compacted-file-not-synced",
        "of a compacted stream neither the old nor the new file is whole",
        (
            SEALED,
            lines("if not has_more:", "    self._sync(handle, path)"),
            lines("if not has_more and not is_replacement:", "    self._sync(handle, path)"),
        ),
    ),
    mutant(
        "merged-file-removed-too-early",
        "the segments that were put together are gone before the file that has them is in their place",
        (
            SEALED,
            lines(
                "if self._renamed != path:",
                "    self._fs.rename(path + REPLACEMENT, path)",
                "    self._renamed = path",
                "self._sync_directory(STREAMS)",
            ),
            "",
        ),
        (
            SEALED,
            "                self._fs.unlink(sealed_path(stream_id, segment))\n\n    def unmake",
            "                self._fs.unlink(sealed_path(stream_id, segment))\n"
            "        self._fs.rename(path + REPLACEMENT, path)\n\n    def unmake",
        ),
    ),
    mutant(
        "last-of-a-key-removed",
        "compaction by key keeps the first message of each instead of the last",
        (
            "streams/compaction.py",
            "            if key in self._keys:\n                return\n",
            "            if key not in self._keys:\n                self._keys.add(key)\n                return\n",
        ),
    ),
    # --- replication ---
    mutant(
        "follower-acks-before-the-sync",
        "what was confirmed is on no disk but the leader's",
        (REPLICA, lines("self._sync(self._handle, segment_path(self._current.number))"), ""),
    ),
    mutant(
        "follower-does-not-sync-what-it-cut",
        "what was cut off the log is back after a power cut, and the next frames do not continue it",
        (REPLICA, lines("self._store.sync_segments([header.number for header in ahead])"), ""),
    ),
    mutant(
        "follower-obeys-a-deposed-leader",
        "two leaders confirm different messages",
        (REPLICA, "        if epoch != self._leader_epoch:\n", "        if epoch > self._leader_epoch:\n"),
    ),
    mutant(
        "catching-up-is-not-marked",
        "the torn end of what was caught up with is taken for corruption",
        (REPLICA, lines("self._marker.put(self.received_lsn)", indent=12), lines("pass", indent=12)),
    ),
    mutant(
        "chunk-acked-before-it-is-written",
        "what a stream has sealed, and the log forgotten, is on no disk but the leader's",
        (REPLICA, "has_more=entry.has_more", "has_more=True"),
    ),
    mutant(
        "follower-unlinks-before-the-checkpoint",
        "a power cut brings the old checkpoint back, and what it refers to is gone",
        (
            "replication/replica_checkpoint.py",
            '        self.give_up()\n        self._sync_directory(".")\n',
            "        self.give_up()\n",
        ),
    ),
    mutant(
        "follower-segment-without-directory-sync",
        "a segment that was acknowledged has no name after a power cut",
        (REPLICA, lines("self._sync_directory(LOG)", indent=12), lines("pass", indent=12)),
    ),
    mutant(
        "follower-seals-without-sync",
        "the end of a segment is gone when the next one has frames",
        (REPLICA, lines("self._sync_log(self.received_lsn, always=True)"), ""),
    ),
    mutant(
        "truncation-where-the-next-epoch-begins",
        "a follower keeps frames that the leader never had",
        (SHIPPING, "return end if first is not None", "return bound if first is not None"),
    ),
    mutant(
        "unfinished-commit-not-shipped",
        "a follower that comes while the leader's disk is full misses a frame",
        (SHIPPING, lines("for entry in self._unwritten:", "    attachment.publish(encoded(entry))", indent=12), ""),
    ),
    mutant(
        "catch-up-without-the-checkpoint",
        "a follower refuses to remove what its own checkpoint still refers to",
        (SHIPPING, lines("self._hold_checkpoint(attachment)", indent=16), ""),
    ),
    mutant(
        "image-adopted-unsynced",
        "a power cut behind the end of an image takes messages that every node but this one has",
        (REPLICA, lines("image.end_segment()"), ""),
    ),
    mutant(
        "image-before-its-checkpoint",
        "a power cut while an image comes in leaves neither the old log nor the new one",
        (REPLICA, lines("finish(self._fs, self._sync_directory)", "self._read_log()"), lines("self._read_log()")),
    ),
    mutant(
        "image-where-the-log-goes-on-is-not-sent",
        "a follower is sent a log with a gap, and can never follow",
        (SHIPPING, lines("return first.base_lsn != 0", indent=12), lines("return False", indent=12)),
    ),
    mutant(
        "frame-claims-what-was-only-written",
        "a torn tail is taken for corruption, and the log goes on behind it",
        (STORE, lines("self.committed_lsn,", "time_ms,", indent=16), lines("self._end_lsn,", "time_ms,", indent=16)),
    ),
    mutant(
        "committed-when-it-is-written",
        "a checkpoint, a chunk or SQL has what a power cut takes back",
        (STORE, lines("job.committed_lsn = self.committed_lsn"), lines("job.committed_lsn = self._end_lsn")),
    ),
    mutant(
        "batch-reported-before-it-is-committed",
        "what was confirmed is missing when another copy leads",
        (
            STORE,
            lines("    self._synced()", "job.committed_lsn = self.committed_lsn"),
            lines("    pass", "job.committed_lsn = self.committed_lsn"),
        ),
    ),
    # --- removals and epochs ---
    mutant(
        "file-removed-at-once",
        "a stream that is being deleted, or shortened, has no files, and is there after a power cut",
        (
            REMOVALS,
            lines("if not self._is_held and not log.batch.is_begun and log.durable_lsn >= log.next_lsn:"),
            lines("if True:"),
        ),
    ),
    mutant(
        "file-removed-with-the-batch-before",
        "the same, when the disk has just synced",
        (REMOVALS, "lsn = int(self._log.next_lsn)\n", "lsn = int(self._log.durable_lsn)\n"),
    ),
    mutant(
        "file-removed-while-an-import-gathers",
        "a policy of an import that a crash takes back has shortened a stream",
        (REMOVALS, lines("self._is_held = True"), lines("self._is_held = False")),
    ),
    mutant(
        "checkpoint-before-removals-are-over",
        "files of a deleted stream are there for ever, and reported at every start",
        (CHECKPOINT_CYCLE, lines("if not log.removals.are_under_way():"), lines("if True:")),
    ),
    mutant(
        "removal-not-synced",
        "the same, after a power cut",
        (
            SEALED,
            lines("        self._fs.unlink(sealed_path(job.stream_id, segment))", "self._sync_directory(STREAMS)"),
            lines("        self._fs.unlink(sealed_path(job.stream_id, segment))"),
        ),
    ),
    mutant(
        "deleted-stream-left-behind",
        "the same, after a crash in the middle of it",
        (REPLAY, lines("self.log.sealed.deleted.add(queue_id)", indent=12), ""),
    ),
    mutant(
        "epoch-not-raised",
        "two lives of a store cannot be told apart",
        (RECOVERY, lines("    return highest + 1"), lines("    return max(highest, 1)")),
    ),
    mutant(
        "epoch-of-a-torn-start-again",
        "two copies of a log seem to be the same where they are not",
        (RECOVERY, "highest = max([int(self._log.epoch), *begun])", "highest = int(self._log.epoch)"),
    ),
    mutant(
        "epochs-not-in-the-checkpoint",
        "no copy finds out up to where it is the same, and each is made anew",
        (
            CHECKPOINT,
            lines("epochs = log.epochs.entries", indent=4),
            lines("epochs = log.epochs.entries[:0]", indent=4),
        ),
    ),
    mutant(
        "epoch-begins-with-the-checkpoint",
        "a copy is cut at the wrong place",
        (
            RECOVERY,
            lines("    self._log.epochs.begin(epoch, first_lsn)"),
            lines("    self._log.epochs.begin(epoch, first_lsn + 8)"),
        ),
    ),
    mutant(
        "epochs-forgotten-too-early",
        "a copy that lacks nothing but the latest is made anew",
        (
            "msgstore/log/epoch_table.py",
            "entries[ended + 1][1] < lsn:",
            "entries[ended][1] < lsn:",
        ),
    ),
    # --- metadata ---
    mutant(
        "declared-before-it-is-synced",
        "a queue whose declaration was answered is gone after a power cut",
        (JOURNAL, lines("    log.wait(batch, True)"), lines("    log.wait(batch, False)")),
    ),
    mutant(
        "import-in-several-frames",
        "after a crash half of an import is there",
        (
            JOURNAL,
            lines(
                "    if not journal.log.hold_batch():",
                "        self._waits = True",
                "        return False",
                "    self._holds = True",
            ),
            lines("    self._holds = True"),
        ),
    ),
    mutant(
        "sql-ahead-of-the-log",
        "SQL has a queue that the log has lost, and its number is given again",
        (
            LANE,
            lines("self.put(number, encode_change(change), 0)"),
            lines("self.put(number, encode_change(change), 0)", "self.durable = number + 1"),
        ),
    ),
    mutant(
        "change-forgotten-that-sql-does-not-have",
        "after a restart a queue is missing, or one is there that was deleted",
        (
            LANE,
            lines("    self.log.batch.settle_range(index, self.applied, end)"),
            lines("    self.log.batch.settle_range(index, self.applied, end + 1)"),
        ),
    ),
    mutant(
        "changes-of-the-last-life-forgotten",
        "what SQL did not have at the crash it never gets",
        (
            LANE,
            lines("    self.next_number = applied", "self.durable = self.next_number", "self.applied = applied"),
            lines("    self.next_number = applied", "self.durable = self.next_number", "self.applied = self.durable"),
        ),
    ),
    # --- reads that fail ---
    mutant(
        "read-errors-are-empty",
        "a read that fails once is taken for damage, and the messages are gone",
        (
            READS,
            "            raise unreadable(segment_path(number), error, number, lsn) from None\n",
            '            return b""\n',
        ),
    ),
    mutant(
        "read-errors-at-a-start-are-zeros",
        "a start takes what it cannot read for a torn end, and cuts it",
        (
            STORE,
            "            raise unreadable(path, error, number) from None\n\n    def sync_segments",
            '            return self._quarantine._maybe_read(number) or b""\n\n    def sync_segments',
        ),
    ),
    mutant(
        "read-drops-damaged-pages",
        "a checkpoint forgets a page that is damaged, and what it referred to goes",
        (
            INDEX,
            "        self.need_damage().pages[int(self.first_page + at)] = page\n",
            "",
        ),
    ),
    mutant(
        "read-purges-damaged-messages",
        "a purge lets go of a damaged message, and its segment is removed",
        (BATCH, "        if damage is not None and not damage.is_empty():\n", "        if False:\n"),
    ),
    mutant(
        "read-counts-damage-again",
        "each restart counts the same damage once more",
        (CHECKPOINT, "        damaged_count -= len(damage.numbers)\n", "        pass\n"),
    ),
    mutant(
        "read-checkpoint-forgets-damaged-pages",
        "a restart does not find a damaged page again",
        (
            CHECKPOINT,
            "            if index.page(number) is None:\n                damaged_pages",
            "            if False:\n                damaged_pages",
        ),
    ),
)


def tests_of(broken: Mutant | None) -> tuple[str, ...]:
    """Return the tests that have to find `broken`."""
    if broken is None:
        return (*STORE_TESTS, *REPLICA_TESTS, *READ_TESTS)
    if broken.name.startswith("read-"):
        return READ_TESTS
    is_replication = all(change.path.startswith("replication/") for change in broken.changes)
    return REPLICA_TESTS if is_replication else STORE_TESTS


if __name__ == "__main__":
    sys.exit(try_mutants(sys.argv[1:], MUTANTS, tests_of, {"WARREN_TEST_CRASH_STATES": STATES}))
