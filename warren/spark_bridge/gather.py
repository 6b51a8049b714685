"""Values that lie scattered in bytes, gathered all at once: numbers of any alignment, and slices as Arrow binaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Positions = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


def be_numbers(data: Bytes, at: Positions, kind: str) -> npt.NDArray[Any]:
    """Return the numbers of type `kind`, such as ``>u4``, that begin at the positions `at`, all within `data`."""
    size = np.dtype(kind).itemsize
    if len(at) == 0 or len(data) < size:
        return np.zeros(0, np.dtype(kind).newbyteorder("="))
    # Numbers at every position, overlapping; indexing copies those that are wanted.
    every: npt.NDArray[Any] = np.ndarray((len(data) - size + 1,), dtype=kind, buffer=data, strides=(1,))
    return every[at].astype(np.dtype(kind).newbyteorder("="))


def runs(data: Bytes, at: Positions, size: int) -> npt.NDArray[Any]:
    """Return the `size` bytes from each of the positions `at` on, comparable as wholes."""
    every: npt.NDArray[Any] = np.ndarray((len(data) - size + 1,), dtype=f"V{size}", buffer=data, strides=(1,))
    return every[at]


def slices(data: Bytes, columns: Sequence[tuple[Positions, Positions]]) -> pa.Array:
    """Return binaries over `data` without copying it: slice n of row r is element 2 * (r * len(columns) + n).

    `columns`: where each slice begins and ends, row by row; read row after row, all positions ascend. The elements
    between are what lies between the slices.
    """
    count = len(columns[0][0])
    bounds = np.empty((count, 2 * len(columns)), np.int32)
    for number, (starts, ends) in enumerate(columns):
        bounds[:, 2 * number] = starts
        bounds[:, 2 * number + 1] = ends
    last = bounds[-1:, -1] if count else np.zeros(1, np.int32)
    ends_of_all = np.concatenate((bounds.reshape(-1), last))
    buffers = [None, pa.py_buffer(ends_of_all), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(ends_of_all) - 1, buffers)
