"""Rows of checkpoint tensors into packed weights, on all threads."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from octavo import _cpu
from octavo.contracts.tensor import DType, HostTensor

_CHUNK_ELEMENTS = 2 << 20
"""Elements of a checkpoint tensor converted at once: what loading needs beside the result."""

_BATCH_BYTES = 16 << 20
"""Of rows that are packed together, and are in memory then, as pages of a mapped file. Two batches
are there at most: one is packed, one is collected."""


class Packer:
    """Fills packed weights: at once or, inside `in_background`, in batches of many weights, each
    long enough to be worth dividing among threads, while the caller collects the next one."""

    def __init__(self, device: _cpu.Device) -> None:
        self._device = device
        self._batch = _cpu.PackTasks()
        self._num_bytes = 0
        self._thread: ThreadPoolExecutor | None = None
        self._packing: Future[None] | None = None

    def put(
        self, packed: _cpu.PackedLinear | _cpu.PackedTable, first: int, tensor: HostTensor
    ) -> None:
        """Fill rows of a packed weight from `first` on. Blocks that it does not hold are
        dequantized natively, to the values that `HostTensor.to_float32` gives."""
        if tensor.dtype.is_block_format:
            blocks = np.ascontiguousarray(tensor.data)
            packed.put_blocks(self._batch, first, tensor.dtype.value, blocks)
            self._added(blocks.nbytes)
            return
        for rows in _row_chunks(tensor):
            packed.put_rows(self._batch, first, rows)
            self._added(rows.nbytes)
            first += len(rows)

    @contextmanager
    def in_background(self) -> Iterator[None]:
        """All weights are filled when it ends; where it ends by an exception, some are not."""
        with ThreadPoolExecutor(1) as self._thread:
            try:
                yield
                self._pack()
                self._wait()
            finally:
                self._batch, self._num_bytes = _cpu.PackTasks(), 0
                self._thread = self._packing = None

    def _added(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        if self._thread is None or self._num_bytes >= _BATCH_BYTES:
            self._pack()

    def _pack(self) -> None:
        batch, self._batch, self._num_bytes = self._batch, _cpu.PackTasks(), 0
        if self._thread is None:
            batch.run(self._device)
        else:
            self._wait()
            self._packing = self._thread.submit(batch.run, self._device)

    def _wait(self) -> None:
        if self._packing is not None:
            self._packing.result()


def _row_chunks(tensor: HostTensor) -> Iterator[np.ndarray]:
    """Rows of a matrix, a few at a time: float32, or uint16 where it is bfloat16."""
    rows, columns = tensor.shape
    step = max(32, _CHUNK_ELEMENTS // max(columns, 1) // 32 * 32)
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        data = np.ascontiguousarray(tensor.data[start:stop])
        if tensor.dtype is DType.BF16:
            yield data
        else:
            part = HostTensor(data, tensor.dtype, (stop - start, columns))
            yield np.ascontiguousarray(part.to_float32(), dtype=np.float32)
