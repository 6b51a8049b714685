"""Images of a broker under test, copied by their interface: into a data directory, or into a directory of backups."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from warren.backup.directory import BackupDirectory, Manifest
from warren.server.copies.images import Image, ImageFile, Images
from warren.testing.broker import Broker

PIECE_BYTES = 10_000


def images_of(broker: Broker) -> Images:
    return broker._require_life().management.images


def take(broker: Broker, holder: str = "copy") -> Image:
    return broker._require_life().wait_for(lambda: images_of(broker).take(holder))


def release(broker: Broker, holder: str = "copy") -> None:
    broker._require_life().wait_for(lambda: images_of(broker).release(holder))


def pieces(broker: Broker, image: Image, file: ImageFile) -> Iterator[bytes]:
    offset = 0
    while offset < file.size:
        read = partial(images_of(broker).read, image, file, offset, PIECE_BYTES)
        piece = broker._require_life().wait_for(read)
        assert piece
        yield piece
        offset += len(piece)


def copy(broker: Broker, image: Image, directory: Path) -> Path:
    """Copy an image into a data directory."""
    for file in image.files.values():
        path = directory / file.name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(b"".join(pieces(broker, image, file)))
    return directory


def back_up(broker: Broker, path: Path) -> Manifest:
    """Make a backup, without a client in between."""
    image = take(broker)
    position = image.position
    with BackupDirectory.writing(path, position.store_id.hex()) as directory:
        number = max(directory.numbers(), default=0) + 1
        files = [
            directory.put(file.name, file.size, file.identity, pieces(broker, image, file))
            for file in image.files.values()
        ]
        manifest = Manifest(
            number,
            "0.1.0",
            position.store_id.hex(),
            image.taken_ms,
            position.lsn,
            position.crc,
            position.segment,
            position.epoch,
            tuple(files),
        )
        directory.add(manifest)
    release(broker)
    return manifest
