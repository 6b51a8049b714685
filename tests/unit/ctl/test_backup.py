"""`warren ctl backup` by itself: its rate, and its output. With a broker: integration/management."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import pytest

from warren.backup.directory import FILES
from warren.ctl.backup import CRC_HEADER, Pace, _bytes_per_s
from warren.ctl.exit_codes import CtlError

from .conftest import Ctl
from .fake_api import FakeApi, Reply


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_rate_is_kept_however_large_the_pieces_are() -> None:
    for size in (1, 1000, 5000):
        clock = Clock()
        pace = Pace(1000, clock, clock.sleep)
        for _ in range(10_000 // size):
            pace.moved(size)
        assert clock.now == pytest.approx(110)


def test_what_was_not_used_is_not_made_up_for() -> None:
    clock = Clock()
    pace = Pace(1000, clock, clock.sleep)
    clock.now += 60
    pace.moved(5000)
    assert clock.now == pytest.approx(165)


def test_without_a_rate_nothing_waits() -> None:
    clock = Clock()
    Pace(0, clock, clock.sleep).moved(1 << 40)
    assert clock.now == 100


@pytest.mark.parametrize(("rate", "size"), [(0, 1 << 20), (10**9, 1 << 20), (20_000, 200_000), (1, 10)])
def test_no_piece_takes_so_long_that_the_broker_lets_go(rate: int, size: int) -> None:
    clock = Clock()
    pace = Pace(rate, clock, clock.sleep)
    assert pace.piece(1 << 20) == size
    pace.moved(size)
    assert clock.now <= 110


@pytest.mark.parametrize(
    ("text", "rate"), [("0", 0), ("50MB", 50_000_000), ("1 GiB", 1 << 30), ("5kb", 5000), ("7", 7), ("100mb", 10**8)]
)
def test_a_rate_is_a_number_with_a_unit(text: str, rate: int) -> None:
    assert _bytes_per_s(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "-1", "1.5MB", "MB", "1XB", "9" * 20])
def test_another_text_is_no_rate(text: str) -> None:
    with pytest.raises(CtlError, match="--rate"):
        _bytes_per_s(text)


class BackingUpApi(FakeApi):
    """An API of a broker with a backup of one file; `crc_header` is how a node before it writes that name."""

    def __init__(self, crc_header: str = CRC_HEADER) -> None:
        super().__init__()
        position = {"lsn": 4096, "crc": 7, "segment": 1, "epoch": 1, "taken_at": 1000}
        held = {"backup": "b", "state": "ready", "warren": "0.1.0", "store_id": "0123456789abcdef" * 2, **position}
        self.answer("POST", "warren/backups", held, 201)
        self.answer("GET", "warren/backups/b/files", [{"name": "catalogue.db", "bytes": 7, "identity": ""}])
        self.answer("GET", "warren/backups/b/data", b"content", headers=((crc_header, f"{crc32(b'content'):08x}"),))
        self.answer("DELETE", "warren/backups/b", None, 204)


class DamagingApi(BackingUpApi):
    """An API that damages the copy as soon as it is asked to delete its own."""

    def __init__(self, copies: Path) -> None:
        super().__init__()
        self._copies = copies

    def reply_to(self, method: str, path: str) -> Reply:
        if method == "DELETE":
            for copy in (self._copies / FILES).iterdir():
                copy.write_bytes(b"cOntent")
        return super().reply_to(method, path)


def test_the_broker_lets_go_before_what_was_copied_is_read_back(ctl: Ctl, tmp_path: Path) -> None:
    """(3)"""
    api = DamagingApi(tmp_path / "backups")
    try:
        ended = ctl("--url", api.url, "backup", str(tmp_path / "backups"))
    finally:
        api.close()
    assert ended.exit_code == 1
    assert "is damaged: it is catalogue.db" in ended.err
    assert not list((tmp_path / "backups").glob("0*.json"))


@pytest.mark.parametrize("crc_header", [CRC_HEADER.lower(), CRC_HEADER.upper()])
def test_a_backup_comes_through_a_follower_or_a_proxy_that_writes_headers_in_other_letters(
    ctl: Ctl, tmp_path: Path, crc_header: str
) -> None:
    api = BackingUpApi(crc_header)
    try:
        ended = ctl("--url", api.url, "backup", str(tmp_path / "backups"))
    finally:
        api.close()
    assert ended.exit_code == 0, ended.err
    assert list((tmp_path / "backups").glob("0*.json"))
