"""The width step of residual streams with hand-written gradients: coefficients and read in one autograd function.

It returns the streams, so that their gradient passes back from the write through the read, which adds its own part in
place. Names: `r` the inverse RMS (rstd), `y = r W x` the projections, `c` what is made of them. Backward, with `dy` the
projections' gradient and K the width of x:

    dx = r (Wᵀ dy − (r dy·y / K) x) + pre dh + the streams' own gradient        dW = Σ_tokens r dy xᵀ

A *row* x is one stream of a token (Hyper-Connections) or all of them (mHC). Backend compiled folds the norm of h into
the read; its large matrix products stay PyTorch's. Shapes: T tokens, N streams, D width, k projections, M rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from leadline.ops.compiled_body import applied, run, tracing
from leadline.ops.next_norm import BodyNorm, NextNorm, for_body, normed, over_tokens
from leadline.ops.precision import no_autocast, wide
from leadline.ops.stream_mixing import compiled
from leadline.ops.stream_mixing.compiled import Made
from leadline.ops.stream_mixing.lean import birkhoff, sinkhorn, weighted_sum
from leadline.ops.stream_mixing.reference import StreamRead


class Saved(NamedTuple):
    """What a backward pass takes: streams (T, N, D), scale (k), projections (k, T, N) or (k, T), the inverse RMS (T, N)
    or (T), pre and post (T, N)."""

    streams: Tensor
    scale: Tensor
    y: Tensor
    rstd: Tensor
    pre: Tensor
    post: Tensor


class Upstream(NamedTuple):
    """The gradients of pre (T, N), h (T, D), mixing (T, N, N) or its logits (R, T), and post (T, N)."""

    pre: Tensor | None
    h: Tensor | None
    mixing: Tensor | None
    post: Tensor | None


Slopes = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]
"""What multiplies weights (k, T, N) or (k, T), and rows (T, N) or (T, 1), in the streams' gradient; gradients of bias,
scale and h (T, D); and, with a norm, what its gain's gradient sums over tokens (T, D)."""


Parameters = tuple[Tensor, Tensor, Tensor]
"""Weight (k, D) or (k, K), static (k, N) or bias (k), scale (k)."""


def hyper_read(
    streams_TND: Tensor, parameters: Parameters, eps: float, norm: NextNorm | None, compile_bodies: bool
) -> StreamRead:
    """See `leadline.ops.stream_mixing.hyper_read`."""
    return _read(True, compile_bodies, streams_TND, parameters, eps, norm)


def manifold_read(
    streams_TND: Tensor,
    parameters: Parameters,
    kind: str,
    iterations: int,
    eps: float,
    norm: NextNorm | None,
    compile_bodies: bool,
) -> StreamRead:
    """See `leadline.ops.stream_mixing.manifold_read`."""
    n = streams_TND.shape[1]
    found = _read(False, compile_bodies, streams_TND, parameters, eps, norm)
    if kind == "sinkhorn":
        mixing_NNT = sinkhorn(found.mixing.unflatten(0, (n, n)), iterations, compile_bodies)
    else:
        mixing_NNT = birkhoff(found.mixing, n)
    return found._replace(mixing=mixing_NNT.permute(2, 0, 1))


def with_norm(found: StreamRead, norm: NextNorm | None) -> StreamRead:
    """The read with the norm of h in place of h, as an operator of its own."""
    return found if norm is None else found._replace(h=normed(found.h, norm))


def _read(
    hyper: bool, compile_bodies: bool, streams_TND: Tensor, parameters: Parameters, eps: float, norm: NextNorm | None
) -> StreamRead:
    """For mHC `mixing` is its logits (R, T)."""
    dtype = wide(streams_TND.dtype)
    now, later = (norm, None) if compile_bodies else (None, norm)
    weight, bias, scale_k = (tensor.to(dtype) for tensor in parameters)
    arguments = (hyper, compile_bodies, eps, streams_TND, weight, bias, scale_k)
    body_norm = for_body(now, dtype)
    if torch.is_grad_enabled():
        found = StreamRead(*_Read.apply(*arguments, *(body_norm or (None, None))))
    else:
        found = StreamRead(*_forward(*arguments, body_norm)[:4], streams_TND)
    return with_norm(found, later)


def _forward(
    hyper: bool,
    compile_bodies: bool,
    eps: float,
    streams_TND: Tensor,
    weight: Tensor,
    bias: Tensor,
    scale_k: Tensor,
    norm: BodyNorm | None,
) -> Made:
    if compile_bodies:
        body = compiled.hyper if hyper else compiled.manifold
        found: Made = tuple(run(body, streams_TND, weight, bias, scale_k, eps, norm))
        return found
    x_MK = streams_TND.reshape(-1, weight.shape[1]).to(weight.dtype)
    rstd_M = torch.linalg.vector_norm(x_MK, dim=-1).square_().div_(x_MK.shape[1]).add_(eps).rsqrt_()
    y_kM = torch.mm(weight, x_MK.t()).mul_(rstd_M)
    return (_hyper_made if hyper else _manifold_made)(streams_TND, y_kM, rstd_M, bias, scale_k)


def _hyper_made(streams_TND: Tensor, y_kM: Tensor, rstd_M: Tensor, static_kN: Tensor, scale_k: Tensor) -> Made:
    y_kTN = y_kM.unflatten(1, streams_TND.shape[:2])
    made_kTN = torch.addcmul(static_kN.unsqueeze(1), scale_k.view(-1, 1, 1), torch.tanh(y_kTN))
    pre_TN, mixing_TNN, post_TN = made_kTN[0].clone(), made_kTN[1:-1].transpose(0, 1).contiguous(), made_kTN[-1].clone()
    h_TD = weighted_sum(streams_TND.to(y_kM.dtype), pre_TN).to(streams_TND.dtype)
    return pre_TN, h_TD, mixing_TNN, post_TN, y_kTN, rstd_M.view(streams_TND.shape[:2]), None


def _manifold_made(streams_TND: Tensor, y_kT: Tensor, rstd_T: Tensor, bias_k: Tensor, scale_k: Tensor) -> Made:
    n = streams_TND.shape[1]
    made_kT = torch.addcmul(bias_k.unsqueeze(1), scale_k.unsqueeze(1), y_kT)
    gates_TN = torch.sigmoid(made_kT[: 2 * n]).t()
    pre_TN, post_TN = gates_TN[:, :n].contiguous(), (gates_TN[:, n:] * 2).contiguous()
    h_TD = weighted_sum(streams_TND.to(y_kT.dtype), pre_TN).to(streams_TND.dtype)
    return pre_TN, h_TD, made_kT[2 * n :].clone(), post_TN, y_kT, rstd_T, None


class _Read(torch.autograd.Function):
    """For mHC everything but the mixing, which `sinkhorn` and `birkhoff` make of the logits (R, T)."""

    @staticmethod
    def forward(
        ctx: Any, hyper: bool, compile_bodies: bool, eps: float, streams_TND: Tensor, *tensors: Any
    ) -> tuple[Tensor, ...]:
        weight, bias, scale_k, *norm = tensors
        body_norm = None if norm[0] is None else BodyNorm(*norm)
        found = _forward(hyper, compile_bodies, eps, streams_TND, weight, bias, scale_k, body_norm)
        pre_TN, h_TD, mixing, post_TN, y, rstd, norm_rstd_T = found
        ctx.set_materialize_grads(False)
        ctx.hyper, ctx.compile_bodies = hyper, compile_bodies
        ctx.save_for_backward(streams_TND, scale_k, y, rstd, pre_TN, post_TN, weight, *norm, norm_rstd_T)
        return pre_TN, h_TD, mixing, post_TN, streams_TND.view_as(streams_TND)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        *upstream, given_TND = grads
        *saved, weight, gain_D, norm_eps, norm_rstd_T = ctx.saved_tensors
        streams_TND, pre_TN = saved[0], saved[4]
        norm = None if gain_D is None else (BodyNorm(gain_D, norm_eps), norm_rstd_T)
        with no_autocast(streams_TND):
            body = _hyper_slopes if ctx.hyper else _manifold_slopes
            slope, pull, dbias, dscale_k, dh_TD, part_TD = applied(
                ctx.compile_bodies, body, Saved(*saved), Upstream(*upstream), norm
            )
            slope_kM, x_MK = slope.flatten(1), streams_TND.reshape(-1, weight.shape[1]).to(weight.dtype)
            if ctx.compile_bodies:
                product = (weight, slope) if ctx.hyper else torch.mm(slope_kM.t(), weight).view(streams_TND.shape)
                grad_TND = run(compiled.gradients, streams_TND, product, pull, pre_TN, (dh_TD, given_TND))
            else:
                if given_TND is None:
                    grad_MK = torch.mm(slope_kM.t(), weight)
                else:
                    grad_MK = torch.addmm(given_TND.reshape(x_MK.shape).to(weight.dtype), slope_kM.t(), weight)
                grad_TND = grad_MK.addcmul_(x_MK, pull.reshape(-1, 1)).view(streams_TND.shape)
                if dh_TD is not None:
                    grad_TND = torch.addcmul(grad_TND, pre_TN.unsqueeze(-1), dh_TD.unsqueeze(1))
                grad_TND = grad_TND.to(streams_TND.dtype)
            dgain_D = None
            if gain_D is not None:
                dgain_D = torch.zeros_like(gain_D) if part_TD is None else over_tokens(part_TD).to(gain_D.dtype)
            return None, None, None, grad_TND, torch.mm(slope_kM, x_MK), dbias, dscale_k, dgain_D, None


def _through_h(
    saved: Saved, given: Upstream, norm: tuple[BodyNorm, Tensor] | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """In a body: the gradients of pre (T, N) and h (T, D), and what the gain's gradient sums over tokens (T, D)."""
    dpre_TN = torch.zeros_like(saved.pre) if given.pre is None else given.pre
    if given.h is None:
        return dpre_TN, None, None
    dh_TD, part_TD = given.h.to(saved.pre.dtype), None
    if norm is not None:
        dh_TD, part_TD = compiled.through_norm(saved.streams, saved.pre, dh_TD, *norm)
    if tracing():
        return dpre_TN + compiled.along(saved.streams, dh_TD), dh_TD, part_TD
    return dpre_TN + torch.bmm(saved.streams.to(dh_TD.dtype), dh_TD.unsqueeze(-1)).squeeze(-1), dh_TD, part_TD


def _hyper_slopes(saved: Saved, given: Upstream, norm: tuple[BodyNorm, Tensor] | None) -> Slopes:
    """A body, compiled or not."""
    dpre_TN, dh_TD, part_TD = _through_h(saved, given, norm)
    zeros_TN, (count, dim) = torch.zeros_like(saved.pre), saved.streams.shape[1:]
    dmixing_TNN = zeros_TN.unsqueeze(1).expand(-1, count, -1) if given.mixing is None else given.mixing
    dpost_TN = zeros_TN if given.post is None else given.post
    dmade_kTN = torch.cat((dpre_TN.unsqueeze(0), dmixing_TNN.transpose(0, 1), dpost_TN.unsqueeze(0)))
    tanh_kTN = torch.tanh(saved.y)
    slope_kTN = dmade_kTN * saved.scale.view(-1, 1, 1) * (1 - tanh_kTN * tanh_kTN) * saved.rstd
    pull_TN = -(slope_kTN * saved.y).sum(0) * saved.rstd / dim
    return slope_kTN, pull_TN, dmade_kTN.sum(1), (dmade_kTN * tanh_kTN).sum((1, 2)), dh_TD, part_TD


def _manifold_slopes(saved: Saved, given: Upstream, norm: tuple[BodyNorm, Tensor] | None) -> Slopes:
    """A body, compiled or not."""
    dpre_TN, dh_TD, part_TD = _through_h(saved, given, norm)
    pre_TN, post_TN, count = saved.pre, saved.post, saved.streams.shape[1]
    dpost_TN = torch.zeros_like(post_TN) if given.post is None else given.post * post_TN * (1 - 0.5 * post_TN)
    dlogits_RT = torch.zeros_like(saved.y[2 * count :]) if given.mixing is None else given.mixing
    dmade_kT = torch.cat(((dpre_TN * pre_TN * (1 - pre_TN)).t(), dpost_TN.t(), dlogits_RT))
    slope_kT = dmade_kT * saved.scale.unsqueeze(1) * saved.rstd
    pull_T = -(slope_kT * saved.y).sum(0) * saved.rstd / (count * saved.streams.shape[2])
    return slope_kT, pull_T.unsqueeze(1), dmade_kT.sum(1), (dmade_kT * saved.y).sum(1), dh_TD, part_TD
