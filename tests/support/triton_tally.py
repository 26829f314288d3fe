"""Counts what Triton's interpreter loads and stores, by tensor: only lanes that a mask lets through count.

    with tally() as counted:
        operator(...)
    assert counted.read(source) == tokens * dim

Addresses under the interpreter are those of the tensors, so that loads and stores are told apart by tensor: give `read`
and `written` a tensor, or a saved or returned one. Needs TRITON_INTERPRET=1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder


@dataclass
class Tally:
    """Addresses and sizes of what was loaded and stored, one entry an operation."""

    loads: list[tuple[np.ndarray, int]] = field(default_factory=list)
    stores: list[tuple[np.ndarray, int]] = field(default_factory=list)

    def read(self, *tensors: Tensor) -> int:
        """Elements loaded from these tensors (of all, without any named)."""
        return _elements(self.loads, tensors)

    def written(self, *tensors: Tensor) -> int:
        """Elements stored to these tensors (to all, without any named)."""
        return _elements(self.stores, tensors)

    @property
    def bytes_read(self) -> int:
        return sum(addresses.size * size for addresses, size in self.loads)

    @property
    def bytes_written(self) -> int:
        return sum(addresses.size * size for addresses, size in self.stores)

    def stray(self, *tensors: Tensor) -> int:
        """Elements loaded or stored outside all of these tensors."""
        everything = [*self.loads, *self.stores]
        return _elements(everything, ()) - _elements(everything, tensors)


@contextlib.contextmanager
def tally() -> Iterator[Tally]:
    """Counts inside the block."""
    counted = Tally()
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def counting_load(self: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
        counted.loads.append(_passed(ptrs, mask))
        return load(self, ptrs, mask, *rest)

    def counting_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        counted.stores.append(_passed(ptrs, mask))
        return store(self, ptrs, value, mask, *rest)

    with (
        mock.patch.object(InterpreterBuilder, "create_masked_load", counting_load),
        mock.patch.object(InterpreterBuilder, "create_masked_store", counting_store),
    ):
        yield counted


def _passed(ptrs: Any, mask: Any) -> tuple[np.ndarray, int]:
    addresses = np.asarray(ptrs.data).astype(np.uint64)
    passes = np.broadcast_to(np.asarray(mask.data).astype(bool), addresses.shape)
    return addresses[passes].ravel(), ptrs.get_element_ty().primitive_bitwidth // 8


def _elements(operations: list[tuple[np.ndarray, int]], tensors: tuple[Tensor, ...]) -> int:
    if not tensors:
        return sum(addresses.size for addresses, _ in operations)
    spans = {_span(tensor) for tensor in tensors}
    return sum(
        int(((addresses >= start) & (addresses < stop)).sum()) for addresses, _ in operations for start, stop in spans
    )


def _span(tensor: Tensor) -> tuple[int, int]:
    """From the first to behind the last byte that the tensor reaches."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    reach = reach + 1 if tensor.numel() else 0
    return tensor.data_ptr(), tensor.data_ptr() + reach * tensor.element_size()
