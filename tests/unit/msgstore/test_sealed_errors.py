"""The files of sealed streams on a disk that fills up and fails.

In parentheses: the invariants in the header of ``msgstore/files/sealed_files.py``.
"""

from __future__ import annotations

import errno
from random import Random

import pytest
from simulation.simulated_file_system import SimulatedFileSystem
from unit.msgstore.sealed_disk import (
    Stream,
    bounds,
    fail_next,
    opened,
    rows_of,
    same,
)

from warren.msgstore.files.sealed_files import sealed_path
from warren.msgstore.files.store_errors import StoreFailedError, StoreFullError
from warren.msgstore.log.columns import CHUNK_HEAD_BYTES
from warren.msgstore.log.jobs import DropJob


def test_a_chunk_that_did_not_fit_is_written_when_it_does() -> None:
    """(1)"""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store, body=Random(1).randbytes(300))
    stream.seal(5)
    for begins in (False, True, False):
        job = stream.job(9, begins=begins)
        left = 0
        while True:
            fs.capacity = sum(map(len, fs.contents().values())) + left
            try:
                job.carry_out(store)
                break
            except StoreFullError:
                assert job.head == b"", "it is not reported"
                for state in fs.crash_states(left, 6):
                    _, found = opened(state)
                    assert (found.problems, same(found.tables[7], stream.table)) == ([], True)
                left += 400
        assert left > 400
        fs.capacity = None
        stream.enter(job)
        assert same(opened(fs.kill9())[1].tables[7], stream.table)
    assert len(rows_of(store, 7, stream.table)) == 32


@pytest.mark.parametrize("operation", ["create", "open", "write", "sync_directory"])
def test_a_job_that_met_a_shortage_can_be_repeated(operation: str) -> None:
    """(1)"""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store)
    stream.seal(5)
    store.close()
    store, _ = opened(fs)
    stream.store = store
    job = stream.job(6, begins=operation != "open")
    fail_next(fs, operation, errno.EMFILE)
    with pytest.raises(StoreFullError):
        job.carry_out(store)
    assert job.head == b""
    job.carry_out(store)
    stream.enter(job)
    assert len(rows_of(store, 7, stream.table)) == 11
    (state,) = fs.crash_states(0, 1)
    assert same(opened(state)[1].tables[7], stream.table)


@pytest.mark.parametrize("operation", ["create", "write", "sync", "sync_directory"])
def test_a_chunk_whose_writing_failed_is_not_reported_and_the_store_has_failed(operation: str) -> None:
    """(1)"""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store)
    stream.seal(5)
    job = stream.job(6, begins=True)
    fail_next(fs, operation, errno.EIO)
    with pytest.raises(StoreFailedError):
        job.carry_out(store)
    assert (job.placed_at, job.head) == (0, b"")
    with pytest.raises(StoreFailedError):
        stream.job(6).carry_out(store)
    with pytest.raises(StoreFailedError):
        DropJob(7, [0]).carry_out(store)
    for state in fs.crash_states(0, 20):
        _, found = opened(state)
        assert bounds(found.tables[7])[:1] == [[(0, 5)]]


def test_a_swap_that_met_a_shortage_can_be_repeated() -> None:
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store)
    stream.seal(5)
    stream.seal(6, begins=True)
    made = stream.job(4, begins=True)
    made.segment, made.is_replacement = 0, True
    made.carry_out(store)
    content = fs.contents()[f"{sealed_path(7, 0)}.new"]
    fail_next(fs, "sync_directory", errno.EMFILE)
    with pytest.raises(StoreFullError):
        store.swap_sealed(7, [0, 5])
    store.swap_sealed(7, [0, 5])
    (state,) = fs.crash_states(0, 1)
    assert state.contents()[sealed_path(7, 0)] == content
    assert sealed_path(7, 5) not in fs.contents()


def test_a_start_that_meets_an_error_changes_nothing() -> None:
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store)
    stream.seal(5)
    stream.seal(6)
    store.close()
    before = fs.contents()
    errors = [("names", errno.EIO), ("size", errno.EIO), ("open", errno.EACCES), ("read", errno.ENOMEM)]
    for operation, number in errors:
        failing = fs.kill9()
        fail_next(failing, operation, number)
        with pytest.raises(StoreFailedError):
            opened(failing)
        assert failing.contents() == before


def test_an_end_that_the_log_does_not_have_any_more_is_not_taken_for_a_torn_one() -> None:
    """(2)"""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store)
    stream.seal(5)
    stream.seal(6)
    store.close()
    path, at = stream.path(0), stream.jobs[1].placed_at
    fs.flip_bit(path, at + CHUNK_HEAD_BYTES, 1)
    before = fs.contents()[path]
    store, found = opened(fs, log_end=11)
    assert found.problems == [f"{path} is damaged at byte {at}"]
    assert (bounds(found.tables[7]), fs.contents()[path]) == ([[(0, 5)]], before)
    stream.store, stream.table = store, found.tables[7]
    stream.table.end = 11
    stream.seal(3)
    assert fs.contents()[path].startswith(before)
    store.close()
    for log_end in (15, 14):
        begun = sealed_path(7, 14)
        fs.close(fs.create(begun, 40))
        _, found = opened(fs, log_end=log_end)
        assert begun not in fs.contents()
        assert (f"{begun}.unusable" in fs.contents()) == (log_end == 15), "something may have been in it"
        if log_end == 15:
            fs.unlink(f"{begun}.unusable")
