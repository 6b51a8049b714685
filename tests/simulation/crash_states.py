"""The states that a crash at one moment may leave on a simulated disk.

Follows simulated_file_system.py (1) to (3). Crash states are made by the hundred thousand: each image of a file is
built once however many states it is part of, and a state costs its objects, no copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from operator import itemgetter
from random import Random
from typing import Final

from simulation.disk import ROOT, Directory, Inode, Names, Resize, join, resize

_ALL: Final = -1  # every sector of a change, as a mask
# With no more combinations than that, and than four times as many as are asked for, all of them are tried.
_COMBINATIONS_MAX: Final = 2048
# After this number of draws in a row without a new crash state there are hardly any left.
_FRUITLESS_DRAWS_MAX: Final = 24


class _Survival:
    """What survives of one file's changes: a mask of sectors for each, and perhaps the last size whatever else."""

    __slots__ = ("masks", "size")

    def __init__(self, masks: tuple[int, ...], size: bool = False) -> None:
        self.masks = masks
        self.size = size


class _UnsyncedFile:
    """The images that a crash may leave of one file, each built once. `distinct` makes equal images one object."""

    def __init__(self, inode: Inode, distinct: dict[bytes, bytes]) -> None:
        self.changes = tuple(inode.unsynced)
        self.none = _Survival((0,) * len(self.changes))
        self.all = _Survival((_ALL,) * len(self.changes))
        self._durable = inode.durable
        everything = inode.synced_image()
        self._size = len(everything)
        resized = self._size != len(self._durable) or any(isinstance(change, Resize) for change in self.changes)
        self._sizes = (False, True) if resized else (False,)
        self._distinct = distinct
        self._images = {(self.all.masks, False): distinct.setdefault(everything, everything)}

    def prefix(self, count: int, *, size: bool = False) -> _Survival:
        return _Survival((_ALL,) * count + (0,) * (len(self.changes) - count), size)

    def image(self, survival: _Survival) -> bytes:
        key = (survival.masks, survival.size)
        image = self._images.get(key)
        if image is None:
            built = self._build(survival)
            image = self._images[key] = self._distinct.setdefault(built, built)
        return image

    def _build(self, survival: _Survival) -> bytes:
        image = bytearray(self._durable)
        for change, mask in zip(self.changes, survival.masks, strict=True):
            if mask == _ALL:
                change.apply(image)
            elif mask:
                change.apply_sectors(image, mask)
        if survival.size:
            resize(image, self._size)
        return bytes(image)

    def count_bound(self) -> int:
        """Return a number that the images are not more than."""
        return len(self._sizes) << sum(change.sectors for change in self.changes)

    def all_cases(self) -> list[_Survival]:
        """Return every case that differs from the others in its image."""
        cases: dict[int, _Survival] = {}
        for masks in product(*(range(1 << change.sectors) for change in self.changes)):
            for size in self._sizes:
                survival = _Survival(masks, size)
                cases.setdefault(id(self.image(survival)), survival)
        return list(cases.values())

    def simple_cases(self) -> Iterator[_Survival]:
        count = len(self.changes)
        for n in range(count):
            yield self.prefix(n, size=True)
            yield self.prefix(n)
            yield _Survival((0,) * n + (_ALL,) + (0,) * (count - n - 1))
            yield _Survival((_ALL,) * n + (0,) + (_ALL,) * (count - n - 1))
            sectors = self.changes[n].sectors
            for torn in {1, (1 << sectors // 2) - 1, (1 << sectors - 1) - 1} if sectors > 1 else ():
                yield _Survival((_ALL,) * n + (torn,) + (0,) * (count - n - 1))
                yield _Survival((_ALL,) * n + (~torn & (1 << sectors) - 1,) + (0,) * (count - n - 1), size=True)

    def random_case(self, random: Random) -> _Survival:
        choice = random.random()
        if choice < 0.3:
            return self.all if choice < 0.2 else self.none
        count = len(self.changes)
        size = random.random() < 0.25
        if choice < 0.5:
            return self.prefix(random.randrange(count + 1), size=size)
        torn = choice < 0.8
        masks = []
        for change in self.changes:
            if torn and change.sectors > 1:
                masks.append(random.getrandbits(change.sectors))
            else:
                masks.append(-random.getrandbits(1))
        return _Survival(tuple(masks), size)


class _Layout:
    """The names that are left. `files`: of each its bytes, or its index among the unsynced files, in order of path.

    `directories`: of each its path, and its names with their index in `files`, -1 for a directory. `shape` is all
    names; equal ones are one object.
    """

    __slots__ = ("directories", "files", "shape")

    def __init__(self) -> None:
        self.directories: list[tuple[str, list[tuple[str, int]]]] = []
        self.files: list[bytes | int] = []
        self.shape: object = None


# How many changes of each unsynced directory survive, and what of each unsynced file.
_Choice = tuple[tuple[int, ...], tuple[_Survival, ...]]


class CrashPoint:
    """The states that a crash at one moment may leave."""

    def __init__(self, directories: dict[str, Directory]) -> None:
        self._versions = {path: directory.versions() for path, directory in directories.items()}
        self._unsynced_directories = [path for path, directory in directories.items() if directory.unsynced]
        self._directory_changes = [directories[path].unsynced.copy() for path in self._unsynced_directories]
        inodes: dict[int, Inode] = {}
        for versions in self._versions.values():
            for names in versions:
                inodes.update((id(inode), inode) for inode in names.values() if inode is not None)
        distinct: dict[bytes, bytes] = {}
        self._files: list[_UnsyncedFile] = []
        self._sources: dict[int, bytes | int] = {}
        for key, inode in inodes.items():
            self._sources[key] = distinct.setdefault(inode.durable, inode.durable)
            if inode.unsynced:
                self._sources[key] = len(self._files)
                self._files.append(_UnsyncedFile(inode, distinct))
        self._layouts: dict[tuple[int, ...], _Layout] = {}
        self._shapes: dict[object, object] = {}

    def states(self, random: Random, limit: int) -> Iterator[dict[str, Directory]]:
        """Yield at most `limit` different states, each as its directories by path, with nothing unsynced."""
        seen: set[object] = set()
        bound = self._count_bound()
        most = min(limit, bound)
        exhaustive = bound <= min(4 * limit, _COMBINATIONS_MAX)
        fruitless = 0
        for choice in self._choices(random, exhaustive):
            cuts, survivals = choice
            layout = self._layout(cuts)
            images = [
                source if isinstance(source, bytes) else self._files[source].image(survivals[source])
                for source in layout.files
            ]
            key = (id(layout.shape), *map(id, images))
            if key not in seen:
                fruitless = 0
                seen.add(key)
                yield self._state(layout, images)
                if len(seen) >= most:
                    return
            elif not exhaustive and (fruitless := fruitless + 1) == _FRUITLESS_DRAWS_MAX:
                return

    def _count_bound(self) -> int:
        """Return a number that the states are not more than."""
        bound = 1
        for changes in self._directory_changes:
            bound *= len(changes) + 1
        for file in self._files:
            bound *= file.count_bound()
        return bound

    def _choices(self, random: Random, exhaustive: bool) -> Iterator[_Choice]:
        """Yield ways to crash, the first of them before any that cost something to work out."""
        none = tuple(file.none for file in self._files)
        every = tuple(file.all for file in self._files)
        no_names = (0,) * len(self._directory_changes)
        all_names = tuple(len(changes) for changes in self._directory_changes)
        yield all_names, every
        yield no_names, none
        yield all_names, none
        yield no_names, every
        if exhaustive:
            names = product(*(range(count + 1) for count in all_names))
            choices = list(product(names, product(*(file.all_cases() for file in self._files))))
            random.shuffle(choices)
            yield from choices
            return
        simple = [*self._prefixes(), *self._one_at_a_time(no_names, all_names, none, every)]
        random.shuffle(simple)
        for choice in simple:
            yield choice
            yield self._random_choice(random, all_names)
        while True:
            yield self._random_choice(random, all_names)

    def _prefixes(self) -> Iterator[_Choice]:
        """Yield what survives when everything up to a moment does, content and names together."""
        moments = [change.sequence for changes in self._directory_changes for change in changes]
        moments += [change.sequence for file in self._files for change in file.changes]
        for moment in sorted(moments):
            yield (
                tuple(sum(change.sequence <= moment for change in changes) for changes in self._directory_changes),
                tuple(file.prefix(sum(change.sequence <= moment for change in file.changes)) for file in self._files),
            )

    def _one_at_a_time(
        self,
        no_names: tuple[int, ...],
        all_names: tuple[int, ...],
        none: tuple[_Survival, ...],
        every: tuple[_Survival, ...],
    ) -> Iterator[_Choice]:
        """Yield each simple case of one directory or file, while of the others all or nothing survives."""
        for n, changes in enumerate(self._directory_changes):
            for cut in range(len(changes) + 1):
                yield (*all_names[:n], cut, *all_names[n + 1 :]), every
                yield (*all_names[:n], cut, *all_names[n + 1 :]), none
                yield (*no_names[:n], cut, *no_names[n + 1 :]), every
        for n, file in enumerate(self._files):
            for case in file.simple_cases():
                yield all_names, (*every[:n], case, *every[n + 1 :])
                yield all_names, (*none[:n], case, *none[n + 1 :])

    def _random_choice(self, random: Random, all_names: tuple[int, ...]) -> _Choice:
        names = all_names if random.random() < 0.6 else tuple(random.randrange(count + 1) for count in all_names)
        return names, tuple(file.random_case(random) for file in self._files)

    def _layout(self, cuts: tuple[int, ...]) -> _Layout:
        layout = self._layouts.get(cuts)
        if layout is None:
            layout = self._layouts[cuts] = _Layout()
            surviving = dict(zip(self._unsynced_directories, cuts, strict=True))
            paths = [ROOT]
            for path in paths:
                entries: list[tuple[str, int]] = []
                for name, inode in sorted(self._versions[path][surviving.get(path, 0)].items(), key=itemgetter(0)):
                    if inode is None:
                        entries.append((name, -1))
                        paths.append(join(path, name))
                    else:
                        entries.append((name, len(layout.files)))
                        layout.files.append(self._sources[id(inode)])
                layout.directories.append((path, entries))
            shape = tuple((path, *entries) for path, entries in layout.directories)
            layout.shape = self._shapes.setdefault(shape, shape)
        return layout

    def _state(self, layout: _Layout, images: list[bytes]) -> dict[str, Directory]:
        state: dict[str, Directory] = {}
        for path, entries in layout.directories:
            names: Names = {name: None if index < 0 else Inode(images[index]) for name, index in entries}
            state[path] = Directory(names)
        return state
