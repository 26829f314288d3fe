"""Tensors as rows of their last dimension, without copies where strides allow."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Rows(NamedTuple):
    """Row r of a tensor (..., D) starts at `(r // inner) * outer_stride + (r % inner) * inner_stride`.

    Attributes:
        tensor: with unit stride along D; the one given, or a contiguous copy where its strides allow no such form.
        inner: rows that lie `inner_stride` apart.
        outer_stride, inner_stride: in elements.
    """

    tensor: Tensor
    inner: int
    outer_stride: int
    inner_stride: int

    @property
    def strides(self) -> tuple[int, int, int]:
        return self[1:]

    @property
    def even(self) -> bool:
        """Whether every row starts a multiple of 16 elements after the tensor's own start."""
        return self.outer_stride % 16 == 0 and self.inner_stride % 16 == 0


def as_strided_rows(tensor: Tensor, skip: int = 0) -> Rows:
    """The rows of each part of `tensor` that its first `skip` dimensions number."""
    if tensor.stride(-1) != 1 and tensor.shape[-1] != 1:
        tensor = tensor.contiguous()
    folded: list[tuple[int, int]] = []
    for size, stride in zip(tensor.shape[skip:-1], tensor.stride()[skip:-1], strict=True):
        if size == 1:
            continue
        if folded and folded[-1][1] == size * stride:
            folded[-1] = (folded[-1][0] * size, stride)
        else:
            folded.append((size, stride))
    if len(folded) > 2:
        return as_strided_rows(tensor.contiguous(), skip)
    if len(folded) < 2:
        size, stride = folded[0] if folded else (1, tensor.shape[-1])
        return Rows(tensor, max(1, size), 0, stride)
    (_, outer_stride), (inner, inner_stride) = folded
    return Rows(tensor, max(1, inner), outer_stride, inner_stride)
