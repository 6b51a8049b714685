"""Images of a running broker: a start on a copy of one finds what there was, and nothing that came later.

The numbers in parentheses are the invariants in the header of ``warren/server/copies/images.py``.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio
from image_copies import copy, images_of, take

from warren.server.catalogue.catalogue import Catalogue
from warren.server.copies.images import DIRECTORY, Image, ImageError
from warren.server.staging.stage_files import PartHead, StageFiles
from warren.server.threads import CATALOGUE, Purpose
from warren.testing.broker import Broker
from warren.vhosts.metadata import QueuePut

WITHIN_S = 30


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(data_dir=tmp_path / "data") as broker:
        yield broker


def bodies(broker: Broker, queue: str) -> list[bytes]:
    return [message.body for message in broker.queue(queue).messages()]


def test_a_start_on_a_copy_has_what_was_there_and_nothing_later(broker: Broker, tmp_path: Path) -> None:
    """(1)"""
    broker.declare_queue("orders", durable=True)
    for number in range(50):
        broker.publish("", "orders", b"%d" % number)
    image = take(broker)
    broker.declare_queue("later", durable=True)
    broker.publish("", "orders", b"later")
    broker.publish("", "later", b"later")
    with Broker(data_dir=copy(broker, image, tmp_path / "copy")) as restored:
        assert bodies(restored, "orders") == [b"%d" % number for number in range(50)]
        names = restored.on_loop(lambda: sorted(restored.engine.vhosts["/"].queues))
        assert names == ["orders"]
    assert len(bodies(broker, "orders")) == 51


def test_changes_that_sql_does_not_have_yet_are_in_the_log_of_the_image(broker: Broker, tmp_path: Path) -> None:
    """(2)"""
    life = broker._require_life()
    writer = life.application._writer
    held, free, taken = threading.Event(), trio.Event(), threading.Event()
    found: list[Image] = []

    async def hold() -> None:
        async with writer.standing_still():
            held.set()
            await free.wait()

    async def take_in_turn() -> None:
        found.append(await life.management.images.take("copy"))
        taken.set()

    def is_waiting() -> bool:
        return writer._applying.statistics().tasks_waiting == 1

    broker.on_loop(lambda: life.spawn(hold))
    assert held.wait(WITHIN_S)
    broker.on_loop(lambda: life.spawn(take_in_turn))
    broker.wait_until(is_waiting)
    for number in range(5):
        broker.declare_queue(f"q{number}", durable=True)
    before = broker.on_loop(lambda: life.management.broker.journal.lane.applied)
    broker.on_loop(free.set)
    assert taken.wait(WITHIN_S)
    directory = copy(broker, found[0], tmp_path / "copy")
    catalogue = Catalogue.open(f"sqlite:///{directory / 'catalogue.db'}")
    assert catalogue.applied(found[0].position.store_id) == before
    assert not [change for change in catalogue.load() if isinstance(change, QueuePut)]
    catalogue.close()
    with Broker(data_dir=directory) as restored:
        assert restored.on_loop(lambda: sorted(restored.engine.vhosts["/"].queues)) == [f"q{n}" for n in range(5)]


def test_what_is_declared_while_the_metadata_are_copied_is_not_in_the_copy(broker: Broker, tmp_path: Path) -> None:
    """(2)"""
    life = broker._require_life()
    images = images_of(broker)
    copying, resume, taken = threading.Event(), trio.Event(), threading.Event()
    found: list[Image] = []

    async def slowly(purpose: Purpose, work: Callable[[], Any], *, abandon: bool = False) -> Any:
        if purpose == CATALOGUE:
            copying.set()
            await resume.wait()
        return work()

    async def take_slowly() -> None:
        found.append(await images.take("copy"))
        taken.set()

    images._in_thread = slowly
    broker.declare_queue("orders", durable=True)
    broker.on_loop(lambda: life.spawn(take_slowly))
    assert copying.wait(WITHIN_S)
    broker.declare_queue("later", durable=True)
    broker.on_loop(resume.set)
    assert taken.wait(WITHIN_S)
    directory = copy(broker, found[0], tmp_path / "copy")
    with Broker(data_dir=directory) as restored:
        assert restored.on_loop(lambda: sorted(restored.engine.vhosts["/"].queues)) == ["orders"]
    lane = life.management.broker.journal.lane
    broker.wait_until(lambda: not broker.on_loop(lane.is_behind), what="SQL has what was declared meanwhile")


def test_staged_parts_are_in_it_although_they_are_removed_later(broker: Broker, tmp_path: Path) -> None:
    """(3)"""
    files = StageFiles(tmp_path / "data")
    files.write(PartHead("/", "stage", 1, "guest", 5, []), b"")
    image = take(broker)
    files.remove("/", "stage")
    directory = copy(broker, image, tmp_path / "copy")
    (found,) = StageFiles(directory).scan()
    assert isinstance(found, PartHead)
    assert (found.stage, found.part) == ("stage", 1)


def test_a_part_that_is_written_again_meanwhile_is_the_later_one(broker: Broker, tmp_path: Path) -> None:
    """(3)"""
    files = StageFiles(tmp_path / "data")
    parts = [PartHead("/", "s", 0, "guest", at_ms, []) for at_ms in (1, 2)]
    images = images_of(broker)
    files.write(parts[0], b"")

    async def meanwhile(purpose: Purpose, work: Callable[[], Any], *, abandon: bool = False) -> Any:
        if purpose == CATALOGUE:
            files.write(parts[1], b"")
        return work()

    images._in_thread = meanwhile
    directory = copy(broker, take(broker), tmp_path / "copy")
    assert list(StageFiles(directory).scan()) == [parts[1]]


def test_what_is_released_leaves_nothing(broker: Broker, tmp_path: Path) -> None:
    """(4)"""
    broker.declare_queue("orders", durable=True)
    image = take(broker)
    assert image.size > 0
    broker._require_life().wait_for(lambda: images_of(broker).release("copy"))
    pins = tmp_path / "data" / "messages" / "pins"
    broker.wait_until(lambda: not os.listdir(pins))
    assert not (tmp_path / "data" / DIRECTORY / "copy").exists()
    file = next(iter(image.files.values()))
    with pytest.raises(ImageError):
        broker._require_life().wait_for(lambda: images_of(broker).read(image, file, 0, 10))


def test_what_a_killed_process_has_left_is_removed_at_the_next_start(broker: Broker, tmp_path: Path) -> None:
    """(4)"""
    broker.declare_queue("orders", durable=True)
    take(broker)
    broker.crash()
    assert os.listdir(tmp_path / "data" / "messages" / "pins")
    broker.start()
    assert not os.listdir(tmp_path / "data" / "messages" / "pins")
    assert not (tmp_path / "data" / DIRECTORY / "copy").exists()


def test_damaged_metadata_are_found_while_the_broker_still_has_them(broker: Broker, tmp_path: Path) -> None:
    """(5)"""
    broker.declare_queue("orders", durable=True)
    lane = broker.engine.journal.lane
    broker.wait_until(lambda: not broker.on_loop(lane.is_behind))
    with closing(sqlite3.connect(tmp_path / "data" / "catalogue.db")) as damager:
        damager.execute("PRAGMA writable_schema = ON")
        # An index that no longer belongs to its table.
        damager.execute(
            "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master WHERE name = 'warren_users') "
            "WHERE name = 'warren_bindings_to'"
        )
        damager.commit()
    with pytest.raises(ImageError, match="the metadata store is damaged"):
        take(broker)
    assert not (tmp_path / "data" / DIRECTORY / "copy").exists()
    broker.declare_queue("later", durable=True)


def test_the_copy_of_the_metadata_is_one_file_that_a_catalogue_opens(broker: Broker, tmp_path: Path) -> None:
    image = take(broker)
    directory = copy(broker, image, tmp_path / "copy")
    assert sorted(os.listdir(directory)) == ["catalogue.db", "messages"]
    catalogue = Catalogue.open(f"sqlite:///{directory / 'catalogue.db'}")
    try:
        assert [type(change).__name__ for change in catalogue.load()].count("VhostPut") == 1
    finally:
        catalogue.close()
