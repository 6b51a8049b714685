"""A leader's entries come out as they went in, however the network cuts them; wrong bytes are reported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.msgstore.log.checksum import CRC32, CRC32C, checksum_function
from warren.msgstore.log.records import frame_header
from warren.replication import entries as entries_module
from warren.replication.entries import (
    EPOCHS_MAX,
    FILES_MAX,
    FROM_FOLLOWER,
    FROM_LEADER,
    NUMBERS_MAX,
    PIECE_BYTES,
    PREAMBLE,
    TEXT_BYTES_MAX,
    VERSION,
    Ack,
    Beacon,
    BeginImage,
    BeginSegment,
    Catalogue,
    CatalogueCopy,
    CaughtUp,
    CheckpointPiece,
    ChunkPiece,
    Committed,
    Decoder,
    Drop,
    Entry,
    EntryError,
    Frame,
    HaveBytes,
    ImageBytes,
    ImagePiece,
    Objection,
    Position,
    SealedFile,
    SealedList,
    Stop,
    Swap,
    Sync,
    Truncate,
    Unlink,
    Unmake,
    WantBytes,
    checkpoint_pieces,
    chunk_pieces,
    encoded,
    entries_of,
    sealed_lists,
)

from .wire import thorough

ALL = (*FROM_LEADER, *FROM_FOLLOWER)
HEAD_BYTES = 12

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
some = st.binary(min_size=1, max_size=40)
numbers = st.lists(u64, min_size=1, max_size=5).map(tuple)


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    payload = draw(st.binary(max_size=60))
    payload += bytes(-len(payload) % 8)
    lsn = draw(st.integers(0, 2**60))
    head = frame_header(checksum_function(CRC32), [payload], len(payload), lsn, 0, 0, 1, 0, 1, bytes(8))
    return Frame(head, (payload,))


@st.composite
def positions(draw: st.DrawFn) -> Position:
    epochs = sorted(draw(st.dictionaries(u32, u64, max_size=5)).items())
    return Position(
        draw(st.binary(min_size=16, max_size=16)), draw(u64), draw(u64), draw(u64), draw(u32), tuple(epochs)
    )


@st.composite
def pieces_of_a_checkpoint(draw: st.DrawFn) -> CheckpointPiece:
    data, before, behind = draw(some), draw(st.integers(0, 2**40)), draw(st.integers(0, 2**40))
    return CheckpointPiece(draw(u64), before + len(data) + behind, before, data)


entries: st.SearchStrategy[Entry] = st.one_of(
    st.builds(BeginSegment, st.binary(min_size=64, max_size=64)),
    frames(),
    st.builds(Sync, u64),
    pieces_of_a_checkpoint(),
    st.builds(Unlink, u64, numbers),
    st.builds(ChunkPiece, u64, u64, u64, st.booleans(), st.booleans(), some),
    st.builds(Drop, u64, u64, numbers),
    st.builds(Swap, u64, u64, numbers),
    st.builds(Unmake, u64, u64, u64),
    st.builds(Committed, u64),
    st.builds(Catalogue, u64, u64, st.lists(st.binary(max_size=20), max_size=4).map(tuple)),
    st.builds(CatalogueCopy, u64, st.booleans(), st.lists(st.binary(max_size=20), max_size=4).map(tuple)),
    st.builds(Beacon, u64, u64, u64, u32),
    st.builds(Truncate, u64, u32),
    st.builds(CaughtUp, u64),
    st.builds(BeginImage, u64),
    st.builds(ImagePiece, u64, u64, some),
    st.builds(ImageBytes, u64, u64, some),
    positions(),
    st.builds(SealedList, st.lists(st.builds(SealedFile, u64, u64, u64, u32), max_size=4).map(tuple), st.booleans()),
    st.builds(Ack, u64, u64, u64, u64, u32),
    st.builds(Objection, u32, u64),
    st.builds(
        WantBytes,
        u64,
        u64,
        st.integers(0, 2**62 - 1),
        st.integers(0, 2**62 - 1),
        st.integers(1, PIECE_BYTES),
    ),
    st.builds(HaveBytes, u64, st.binary(max_size=40)),
    st.builds(Stop, st.text(st.characters(exclude_categories=["Cs"]), max_size=30)),
)


def bytes_of(sent: Sequence[Entry]) -> bytes:
    return PREAMBLE + b"".join(b"".join(encoded(entry)) for entry in sent)


def received(decoder: Decoder) -> Iterator[Entry]:
    while (entry := decoder.maybe_entry()) is not None:
        yield entry


@thorough(300)
@given(st.lists(entries, max_size=6), st.lists(st.integers(0, 600), max_size=6))
def test_entries_come_out_as_they_went_in_however_they_are_cut(sent: list[Entry], cuts: list[int]) -> None:
    data = bytes_of(sent)
    decoder = Decoder(ALL)
    found: list[Entry] = []
    for start, end in pairwise([0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]):
        decoder.feed(data[start:end])
        found += received(decoder)
    assert found == sent


@thorough(100)
@given(st.lists(entries, max_size=6), st.integers(1, 100), st.integers(1, 40))
def test_entries_come_out_as_they_went_in_whatever_counts_as_large(sent: list[Entry], step: int, large: int) -> None:
    data = bytes_of(sent)
    found: list[Entry] = []
    with mock.patch.object(entries_module, "_CHUNK_BYTES", large):
        decoder = Decoder(ALL)
        for start in range(0, len(data), step):
            decoder.feed(data[start : start + step])
            found += received(decoder)
    assert found == sent


def test_a_piece_of_an_image_has_a_crc_of_its_own_by_either_algorithm() -> None:
    for algorithm in (CRC32, CRC32C):
        with mock.patch.object(entries_module, "default_algorithm", lambda algorithm=algorithm: algorithm):
            data = bytes_of([ImageBytes(1, 64, b"bytes of a file")])
        assert list(entries_of(data, ALL)) == [ImageBytes(1, 64, b"bytes of a file")]
        for damaged in (len(data) - 1, len(PREAMBLE) + 12 + 7, len(PREAMBLE) + 12 + 19, len(PREAMBLE) + 12 + 23):
            with pytest.raises(EntryError, match="checksum"):
                list(entries_of(data[:damaged] + bytes([data[damaged] ^ 1]) + data[damaged + 1 :], ALL))


def test_every_kind_is_drawn_and_has_a_number_of_its_own() -> None:
    assert len({entry_type.KIND for entry_type in ALL}) == len(set(ALL)) == 25


@thorough(300)
@given(st.lists(entries, min_size=1, max_size=3), st.data())
def test_an_entry_with_other_bytes_is_never_believed(sent: list[Entry], data: st.DataObject) -> None:
    """But for what is in a frame, which has a crc of its own."""
    good = bytes_of(sent[:-1])
    last = bytearray(b"".join(encoded(sent[-1])))
    most = HEAD_BYTES if isinstance(sent[-1], Frame) else len(last)
    last[data.draw(st.integers(0, most - 1))] ^= data.draw(st.integers(1, 255))
    decoder = Decoder(ALL)
    decoder.feed(good + last)
    found: list[Entry] = []
    with suppress(EntryError):  # or it waits for more
        for entry in received(decoder):
            found.append(entry)  # those before the error count
    assert found == sent[:-1]


@thorough(300)
@given(st.binary(max_size=200))
def test_garbage_is_an_error_or_waits_for_more_and_an_error_stays(garbage: bytes) -> None:
    decoder = Decoder(ALL)
    decoder.feed(PREAMBLE + garbage)
    try:
        list(received(decoder))
    except EntryError as error:
        decoder.feed(b"".join(encoded(Sync(1))))
        with pytest.raises(EntryError, match=str(error).split(":")[0]):
            decoder.maybe_entry()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"GET / HTTP/1.1\r\n", "that is not a broker with replication"),
        (PREAMBLE[:6] + (VERSION + 1).to_bytes(2, "big"), f"entries of version {VERSION + 1}"),
        (
            PREAMBLE + (8).to_bytes(4, "big") + bytes([99]) + bytes(7),
            "byte 8 of the link: an unexpected entry of kind 99",
        ),
        (PREAMBLE + (9).to_bytes(4, "big") + bytes([3]) + bytes(7), "Sync of 9 bytes: it has 8 to 8"),
        (PREAMBLE + (0xFFFFFFFF).to_bytes(4, "big") + bytes([4]) + bytes(7), "CheckpointPiece of 4294967295 bytes"),
        (PREAMBLE + (8).to_bytes(4, "big") + bytes([3]) + bytes(15), "Sync with a wrong checksum"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(data: bytes, text: str) -> None:
    with pytest.raises(EntryError, match=text):
        list(entries_of(data, ALL))


def test_the_place_of_an_error_counts_what_was_taken_before() -> None:
    decoder = Decoder(FROM_LEADER)
    good = bytes_of([Sync(1), Sync(2)])
    decoder.feed(good)
    assert list(received(decoder)) == [Sync(1), Sync(2)]
    decoder.feed(b"".join(encoded(Stop("over"))) + bytes(12))
    assert decoder.maybe_entry() == Stop("over")
    with pytest.raises(EntryError, match=f"^byte {len(good) + HEAD_BYTES + 4} of the link"):
        decoder.maybe_entry()


def test_what_a_follower_sends_is_not_taken_from_a_leader() -> None:
    with pytest.raises(EntryError, match="unexpected entry"):
        list(entries_of(bytes_of([Ack(1, 1, 1, 1, 1)]), FROM_LEADER))


def test_a_length_beyond_what_its_kind_has_is_refused_before_the_body_comes() -> None:
    for entry_type in ALL:
        least, most = entry_type.LENGTHS
        for length in {least - 1, most + 1}:
            if 0 <= length < 2**32:
                data = PREAMBLE + length.to_bytes(4, "big") + bytes([entry_type.KIND]) + bytes(7)
                with pytest.raises(EntryError, match=f"{entry_type.__name__} of {length} bytes"):
                    list(entries_of(data, ALL))


def test_a_frame_whose_head_says_another_length_is_refused() -> None:
    frame = Frame(frame_header(checksum_function(CRC32), [bytes(8)], 8, 0, 0, 0, 1, 0, 1, bytes(8)), (bytes(16),))
    with pytest.raises(EntryError, match="another length"):
        list(entries_of(bytes_of([frame]), ALL))


def test_a_frame_says_where_it_lies_and_how_its_chain_goes_on() -> None:
    head = frame_header(checksum_function(CRC32), [bytes(16)], 16, 4096, 0, 0, 1, 0, 1, bytes(8))
    frame = Frame(head, (bytes(8), bytes(8)))
    assert (frame.lsn, frame.end_lsn, frame.crc) == (4096, 4096 + 56 + 16, int.from_bytes(head[-4:], "big"))
    (again,) = entries_of(bytes_of([frame]), ALL)
    assert again == replace(frame, payload=(bytes(16),))  # a received one is one piece


@pytest.mark.parametrize("size", [1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES - 1])
def test_what_is_large_comes_in_pieces_that_make_it_whole(size: int) -> None:
    content = bytes(range(251)) * (size // 251 + 1)
    content = content[:size]
    pieces = list(entries_of(bytes_of([*checkpoint_pieces(7, content)]), ALL))
    assert b"".join(bytes(piece.data) for piece in pieces if isinstance(piece, CheckpointPiece)) == content
    is_last = [piece.is_last for piece in pieces if isinstance(piece, CheckpointPiece)]
    assert is_last == [False] * (len(pieces) - 1) + [True]
    chunk = list(entries_of(bytes_of([*chunk_pieces(1, 2, 64, content)]), ALL))
    image = bytearray()
    for piece in chunk:
        assert isinstance(piece, ChunkPiece)
        assert piece.position == 64 + len(image)
        assert piece.has_more == (piece is not chunk[-1])
        image += piece.data
    assert image == content


@pytest.mark.parametrize("count", [0, 1, FILES_MAX, FILES_MAX + 1])
def test_a_long_list_of_files_comes_in_parts_of_which_the_last_says_so(count: int) -> None:
    files = [SealedFile(1, first, 64, 0) for first in range(count)]
    lists = [entry for entry in entries_of(bytes_of([*sealed_lists(files)]), ALL) if isinstance(entry, SealedList)]
    assert [file for part in lists for file in part.files] == files
    assert [part.has_more for part in lists] == [True] * (len(lists) - 1) + [False]


def test_the_largest_of_each_kind_can_be_sent() -> None:
    epochs = tuple((epoch, epoch) for epoch in range(EPOCHS_MAX))
    many = tuple(range(NUMBERS_MAX))
    sent: list[Entry] = [Position(bytes(16), 1, 1, 1, 1, epochs), Unlink(1, many), Drop(1, 1, many), Swap(1, 1, many)]
    assert list(entries_of(bytes_of(sent), ALL)) == sent


def test_a_long_reason_is_cut_between_letters() -> None:
    (stop,) = entries_of(bytes_of([Stop("ä" * TEXT_BYTES_MAX)]), ALL)
    assert stop == Stop("ä" * (TEXT_BYTES_MAX // 2))
    (stop,) = entries_of(bytes_of([Stop("a" + "ä" * TEXT_BYTES_MAX)]), ALL)
    assert stop == Stop("a" + "ä" * ((TEXT_BYTES_MAX - 1) // 2))
