"""A data directory's cluster state is there again after a restart, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from warren.replication import cluster_state
from warren.replication.cluster_state import ClusterState
from warren.replication.handshake import Node
from warren.server.start_errors import StartError

ONE, TWO = Node("rabbit@one", b"1" * 16), Node("rabbit@två", b"2" * 16)
STATE = ClusterState(b"1" * 16, 3, 7, ONE, frozenset({ONE, TWO}), 2)


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    cluster_state.write(tmp_path, STATE)
    assert cluster_state.read(tmp_path) == STATE
    assert [path.name for path in tmp_path.iterdir()] == [cluster_state.NAME]
    assert (tmp_path / cluster_state.NAME).stat().st_mode & 0o777 == 0o600


def test_a_directory_without_one_is_a_new_node_each_time(tmp_path: Path) -> None:
    first, second = cluster_state.read(tmp_path), cluster_state.read(tmp_path)
    assert first.incarnation != second.incarnation
    assert first.in_sync == frozenset()
    assert first.leader is None


def test_a_write_that_was_cut_off_leaves_what_was_there(tmp_path: Path) -> None:
    cluster_state.write(tmp_path, STATE)
    (tmp_path / f"{cluster_state.NAME}.tmp").write_text('{"form')
    assert cluster_state.read(tmp_path) == STATE
    after = cluster_state.recorded(STATE, frozenset({ONE}))
    cluster_state.write(tmp_path, after)
    assert cluster_state.read(tmp_path) == after
    assert (after.version, after.in_sync) == (8, frozenset({ONE}))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 2}, "newer Warren"),
        ({"incarnation": "ab"}, "32 digits"),
        ({"in_sync": [["rabbit@one"]]}, "cannot be used"),
        ({"in_sync": 7}, "cannot be used"),
        ({"epoch": None}, "cannot be used"),
    ],
)
def test_what_cannot_be_used_is_said_with_what_to_do(change: dict[str, object], reason: str, tmp_path: Path) -> None:
    cluster_state.write(tmp_path, STATE)
    path = tmp_path / cluster_state.NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(StartError, match=reason):
        cluster_state.read(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"format": 1}'])
def test_garbage_is_refused_in_a_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / cluster_state.NAME).write_bytes(content)
    with pytest.raises(StartError, match="empty data directory"):
        cluster_state.read(tmp_path)
