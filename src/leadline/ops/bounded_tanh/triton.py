"""Bounded hyperbolic tanh as fused GPU kernels: one pass forward and one backward at either site.

Elements moved per token, D wide; m is 1 where the mean counts, else 0:

| | read | written |
|---|---|---|
| first site, forward | D | D + 3 + m; D + 1 without gradients |
| first site, backward | 2D + 3 + m | D |
| second site, forward | D + 2 | D + 2; D without gradients |
| second site, backward | 2D + 2 | D + 1 |

A row stays in registers between its reduction and its result, so nothing is read twice; the second site has no
reduction forward. Saved for backward: the input by reference and 2 + m scalars a token; the tanh is recomputed.
Parameters are read once a program. A program owns a fixed share of the tokens and writes one row of the gradient of the
gain and one number of λ's; PyTorch adds them: the same bits every run. Second derivatives raise: take the reference for
those.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from leadline.ops.bounded_tanh import kernels
from leadline.ops.bounded_tanh.reference import as_wide
from leadline.ops.kernels import Tile, device_of, padded, partial_rows, warps_for, wide_type
from leadline.ops.precision import wide
from leadline.ops.rows import as_strided_rows


def tile_for(dtype: torch.dtype, dim: int) -> Tile:
    """Whole rows, about 16 numbers of them in each lane or 8 doubles."""
    width = padded(dim)
    rows = max(1, 1024 // width)
    return Tile(rows, width, warps_for(rows * width, 8 if dtype == torch.float64 else 16))


def programs(rows: int, tile: Tile) -> int:
    """How many share the tokens; a forward pass takes as many as a backward pass."""
    return min(partial_rows(rows), -(-rows // tile.rows))


def _form(x: Tensor, tile: Tile, even: bool, **more: Any) -> kernels.Form:
    levels = 8 if x.dtype == torch.float64 else 5
    return kernels.Form(x.shape[-1], wide_type(x.dtype), levels, tile.rows, tile.columns, even, **more)


def _count(x: Tensor) -> int:
    return x.shape[:-1].numel()


@torch.library.custom_op("leadline::bounded_tanh_first", mutates_args=())
def first_site(
    x: Tensor, gain: Tensor, lam: Tensor, kappa: float, eps: float, with_mean: bool, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the second moment, and what the backward pass needs: empty unless it is to be kept."""
    y, moment, stats = _first_results(x, gain, lam, kappa, eps, with_mean, keep)
    if count := _count(x):
        rows, tile = as_strided_rows(x), tile_for(x.dtype, x.shape[-1])
        form = _form(x, tile, rows.even, KAPPA=float(kappa), WITH_MEAN=with_mean, KEEP=keep)
        given = kernels.Inputs(rows.tensor, gain.contiguous(), lam)
        with device_of(x):
            kernels.first_forward[(programs(count, tile),)](
                given, kernels.Results(y, moment, stats), count, *rows.strides, eps, FORM=form, num_warps=tile.warps
            )
    return y, moment, stats


@first_site.register_fake
def _first_results(
    x: Tensor, gain: Tensor, lam: Tensor, kappa: float, eps: float, with_mean: bool, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    moment = x.new_empty((*x.shape[:-1], 1), dtype=wide(x.dtype))
    return x.new_empty(x.shape), moment, _stats(x, 2 + with_mean, keep)


def _stats(x: Tensor, numbers: int, keep: bool) -> Tensor:
    return x.new_empty((*x.shape[:-1], numbers) if keep else 0, dtype=wide(x.dtype))


@torch.library.custom_op("leadline::bounded_tanh_second", mutates_args=())
def second_site(
    x: Tensor,
    gain: Tensor,
    lam: Tensor,
    lam_first: Tensor,
    moment: Tensor,
    c: Tensor,
    kappa: float,
    eps: float,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """y for moment and c as vectors, one element a token; and what the backward pass needs."""
    y, stats = x.new_empty(x.shape), _stats(x, 2, keep)
    if count := _count(x):
        rows, tile = as_strided_rows(x), tile_for(x.dtype, x.shape[-1])
        form = _form(x, tile, rows.even, KAPPA=float(kappa), KEEP=keep)
        given = kernels.Inputs(rows.tensor, gain.contiguous(), lam, lam_first, moment, c)
        strides = (*rows.strides, moment.stride(0), c.stride(0))
        with device_of(x):
            kernels.second_forward[(programs(count, tile),)](
                given, kernels.Results(y, None, stats), count, *strides, eps, FORM=form, num_warps=tile.warps
            )
    return y, stats


@second_site.register_fake
def _(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), _stats(x, 2, rest[-1])


@torch.library.custom_op("leadline::bounded_tanh_gradients", mutates_args=())
def site_gradients(
    x: Tensor, gain: Tensor, lam: Tensor, stats: Tensor, dy: Tensor, dmoment: Tensor | None, first: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of x, gain, λ and, at the second site, the second moment; there dmoment is given as None."""
    count, rows, dy_rows = _count(x), as_strided_rows(x), as_strided_rows(dy)
    tile = tile_for(x.dtype, x.shape[-1])
    dx = x.new_empty(x.shape)
    own = x.new_empty(0 if first else count, dtype=wide(x.dtype))
    dlam = x.new_empty(programs(count, tile), dtype=own.dtype)
    dgain = x.new_empty((len(dlam), x.shape[-1]), dtype=own.dtype)
    flat = None if dmoment is None else dmoment.reshape(-1)
    through = flat if first else own
    if count:
        there = {"WITH_MEAN": stats.shape[-1] == 3, "FIRST": first, "DMOMENT": through is not None}
        form = _form(x, tile, rows.even and dy_rows.even, **there)
        strides = (*rows.strides, *dy_rows.strides, 0 if through is None else through.stride(0))
        with device_of(x):
            kernels.site_backward[(len(dlam),)](
                kernels.Inputs(rows.tensor, gain.contiguous(), lam),
                kernels.Incoming(stats, dy_rows.tensor),
                kernels.Grads(dx, dgain, dlam, through),
                count,
                *strides,
                FORM=form,
                num_warps=tile.warps,
            )
    return dx, dgain.sum(0).to(gain.dtype), dlam.sum().to(lam.dtype).reshape(lam.shape), own


@site_gradients.register_fake
def _(x: Tensor, gain: Tensor, lam: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    own = x.new_empty(0 if rest[-1] else _count(x), dtype=wide(x.dtype))
    return x.new_empty(x.shape), gain.new_empty(gain.shape), lam.new_empty(lam.shape), own


class _First(torch.autograd.Function):
    """Ties the results of `first_site` to its inputs.

    The kernel runs before: `torch.compile` can't take a number that it traces as data, κ or eps, into a function.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gain: Tensor, lam: Tensor, y: Tensor, moment: Tensor, stats: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, gain, lam, stats)
        return y.view_as(y), moment.view_as(moment)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, dmoment: Tensor | None) -> tuple[Tensor | None, ...]:
        x, gain, lam, stats = ctx.saved_tensors
        if dy is None and dmoment is None:
            return (None,) * 6
        dy = x.new_zeros(()).expand(x.shape) if dy is None else dy
        dx, dgain, dlam, _ = site_gradients(x, gain, lam, stats, dy, dmoment, True)
        return dx, dgain, dlam, None, None, None


class _Second(torch.autograd.Function):
    """Ties the results of `second_site` to its inputs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, lam: Tensor, moment: Tensor, y: Tensor, stats: Tensor) -> Tensor:
        ctx.save_for_backward(x, gain, lam, stats)
        return y.view_as(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return *site_gradients(*ctx.saved_tensors, dy, None, False), None, None


def bounded_tanh_triton(
    x: Tensor, gain: Tensor, lam: Tensor | float, kappa: float, eps: float, with_mean: bool = False
) -> tuple[Tensor, Tensor]:
    """See `leadline.ops.bounded_tanh`."""
    lam, keep = as_wide(lam, x), torch.is_grad_enabled()
    with torch.no_grad():
        y, moment, stats = first_site(x, gain, lam, kappa, eps, with_mean, keep)
    return _First.apply(x, gain, lam, y, moment, stats) if keep else (y, moment)


def bounded_tanh_reuse_triton(
    x: Tensor,
    gain: Tensor,
    lam: Tensor | float,
    lam_first: Tensor | float,
    kappa: float,
    second_moment: Tensor,
    c: Tensor,
    eps: float,
) -> Tensor:
    """See `leadline.ops.bounded_tanh_reuse`."""
    lam, keep = as_wide(lam, x), torch.is_grad_enabled()
    each = (*x.shape[:-1], 1)
    moment = as_wide(second_moment, x).expand(each).reshape(-1)
    with torch.no_grad():
        flat = as_wide(c, x).expand(each).reshape(-1)
        y, stats = second_site(x, gain, lam, as_wide(lam_first, x), moment, flat, kappa, eps, keep)
    return _Second.apply(x, gain, lam, moment, y, stats) if keep else y
