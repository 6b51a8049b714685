"""The contents of a simulated disk, and the part of them that is not synced yet: files and directories.

1. A file is its image on the disk plus the changes since its last sync, in order; a directory is its names on the disk
   plus the changes since its last sync, in order. Together they are the readable contents.
2. Changes and durable images never change themselves: file systems and their crash states share them.
"""

from __future__ import annotations

from typing import Final

SECTOR_BYTES: Final = 512
ROOT: Final = "."


class Write:
    """Bytes that came to a file at `offset`. Never changed, so that copies of a file system share it."""

    __slots__ = ("data", "offset", "sectors", "sequence")

    def __init__(self, sequence: int, offset: int, data: bytes) -> None:
        self.sequence = sequence
        self.offset = offset
        self.data = data
        self.sectors = (offset + len(data) - 1) // SECTOR_BYTES - offset // SECTOR_BYTES + 1

    def apply(self, image: bytearray) -> None:
        _write_at(image, self.offset, self.data)

    def apply_sectors(self, image: bytearray, mask: int) -> None:
        """Apply it where the bit of a touched sector is set, bit 0 being the first one."""
        first = self.offset // SECTOR_BYTES
        for n in range(self.sectors):
            if mask >> n & 1:
                start = max((first + n) * SECTOR_BYTES, self.offset) - self.offset
                end = (first + n + 1) * SECTOR_BYTES - self.offset
                _write_at(image, self.offset + start, self.data[start:end])


class Resize:
    """A new size of a file. In one piece: `sectors` is 1."""

    __slots__ = ("length", "sectors", "sequence")

    def __init__(self, sequence: int, length: int) -> None:
        self.sequence = sequence
        self.length = length
        self.sectors = 1

    def apply(self, image: bytearray) -> None:
        resize(image, self.length)

    def apply_sectors(self, image: bytearray, mask: int) -> None:
        if mask & 1:
            self.apply(image)


Change = Write | Resize


def _write_at(image: bytearray, offset: int, data: bytes) -> None:
    if offset > len(image):
        image.extend(bytes(offset - len(image)))
    image[offset : offset + len(data)] = data


def resize(image: bytearray, length: int) -> None:
    if length < len(image):
        del image[length:]
    else:
        image.extend(bytes(length - len(image)))


class Inode:
    """A file, whatever its name.

    `current` is what is read, None for `durable`. `lost`: `durable` plus `unsynced` is not `current`, since a
    sync has failed. `bad`: which bytes cannot be read, from where to where.
    """

    __slots__ = ("bad", "current", "durable", "lost", "unsynced")

    def __init__(self, durable: bytes) -> None:
        self.durable = durable
        self.current: bytearray | None = None
        self.unsynced: list[Change] = []
        self.lost = False
        self.bad: list[tuple[int, int]] = []

    def image(self) -> bytes | bytearray:
        return self.durable if self.current is None else self.current

    def change(self, change: Change) -> None:
        if self.current is None:
            self.current = bytearray(self.durable)
        change.apply(self.current)
        self.unsynced.append(change)

    def sync(self) -> None:
        if self.unsynced:
            self.durable = self.synced_image()
            self.unsynced = []

    def synced_image(self) -> bytes:
        if not self.lost and self.current is not None:
            return bytes(self.current)
        image = bytearray(self.durable)
        for change in self.unsynced:
            change.apply(image)
        return bytes(image)

    def lose_unsynced(self) -> None:
        if self.unsynced:
            self.unsynced = []
            self.lost = True

    def copy(self) -> Inode:
        inode = Inode(self.durable)
        inode.current = None if self.current is None else bytearray(self.current)
        inode.unsynced = self.unsynced.copy()
        inode.lost = self.lost
        inode.bad = self.bad.copy()
        return inode


# The object of a name: a file, or None, a directory. Directories keep their path, which is where to find them.
Names = dict[str, Inode | None]


class NameChange:
    """A change of names in a directory: `old` goes, `new` comes. Without `old` a create, without `new` an unlink."""

    __slots__ = ("inode", "new", "old", "sequence")

    def __init__(self, sequence: int, old: str | None, new: str | None, inode: Inode | None) -> None:
        self.sequence = sequence
        self.old = old
        self.new = new
        self.inode = inode

    def apply(self, names: Names) -> None:
        if self.old is not None:
            del names[self.old]
        if self.new is not None:
            names[self.new] = self.inode


class Directory:
    """`names` and `durable` are one object as long as nothing is unsynced."""

    __slots__ = ("durable", "names", "unsynced")

    def __init__(self, durable: Names) -> None:
        self.durable = durable
        self.names = durable
        self.unsynced: list[NameChange] = []

    def change(self, change: NameChange) -> None:
        if not self.unsynced:
            self.names = self.durable.copy()
        change.apply(self.names)
        self.unsynced.append(change)

    def sync(self) -> None:
        self.durable = self.names
        self.unsynced = []

    def versions(self) -> list[Names]:
        """Return the names as they are when no, one, two ... of the unsynced changes survive."""
        versions = [self.durable]
        for change in self.unsynced:
            names = versions[-1].copy()
            change.apply(names)
            versions.append(names)
        return versions


def join(directory: str, name: str) -> str:
    return name if directory == ROOT else f"{directory}/{name}"
