"""Other people's implementations of the same work, where they are installed. None of them is needed.

A peer is checked against its own maths, written down here in plain PyTorch: it need not be ours.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leadline.bench.cases import EPS, Inputs, Maker

Peer = Callable[[Inputs], Sequence[Tensor]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PeerCase:
    """A peer of an operator's case.

    Attributes:
        case: whose peer it is.
        name: as the table shows it.
        package: what must be installed; empty for plain PyTorch.
        make: its inputs.
        work: its outputs.
        truth: the same outputs by its own maths; None where that is the case's reference.
        tolerance: of its check, relative; peers that compute in float32 whatever they get need a wide one.
        devices: where it runs.
    """

    case: str
    name: str
    package: str = ""
    make: Callable[[Maker], Inputs] | None = None
    work: Peer
    truth: Peer | None = None
    tolerance: float = 1e-5
    devices: tuple[str, ...] = ("cpu", "cuda")

    def why_not(self, device: torch.device) -> str:
        """Why it can't run here; empty where it can."""
        if device.type not in self.devices:
            return f"it runs on {' and '.join(self.devices)} only"
        if self.package and not installed(self.package):
            return f"{self.package} is not installed"
        return ""


@functools.cache
def installed(package: str) -> bool:
    """Whether a package can be imported, whatever its import does."""
    try:
        importlib.import_module(IMPORTS[package])
    except Exception:
        return False
    return True


IMPORTS = {
    "hyper-connections": "hyper_connections",
    "flash-linear-attention": "fla.ops.attnres",
    "liger-kernel": "liger_kernel.transformers.functional",
    "flash-attn-res": "flash_attn_res",
}


def stacked_read(i: Inputs) -> Sequence[Tensor]:
    """Attention over depth as it is usually written: stack, normalise a copy, score, softmax, sum.

    The formula of flash-linear-attention's naive read; where that package is installed, its own function runs.
    """
    sources, query, gain = i.several("source"), i.tensors["query"], i.tensors["gain"]
    if installed("flash-linear-attention"):
        naive: Callable[..., Tensor] = importlib.import_module("fla.ops.attnres").naive_attnres
        return [naive(query, sources, gain, rms_eps=EPS)]
    values = torch.stack(sources)
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    keys = F.rms_norm(values, values.shape[-1:], gain.to(values.dtype), EPS)
    weights = torch.softmax(torch.einsum("ntd,d->nt", keys, query.to(values.dtype)), dim=0)
    return [torch.einsum("nt,ntd->td", weights, values).to(sources[0].dtype)]


def liger_read(i: Inputs) -> Sequence[Tensor]:
    """Liger's fused read; it takes the sources stacked, so the stack is part of the work."""
    read = importlib.import_module(IMPORTS["liger-kernel"]).liger_attn_res
    stacked = torch.stack(i.several("source")).unsqueeze(1)
    return [read(stacked, i.tensors["query"], i.tensors["gain"], EPS).squeeze(0)]


def fla_fused_read(i: Inputs) -> Sequence[Tensor]:
    """flash-linear-attention's fused read."""
    read = importlib.import_module(IMPORTS["flash-linear-attention"]).fused_attnres
    return [read(i.tensors["query"], i.several("source"), i.tensors["gain"], rms_eps=EPS)]


def flash_read(i: Inputs) -> Sequence[Tensor]:
    """flash-attn-res, its first phase for one query; the gain goes into the query, the stack is part of the work."""
    read = importlib.import_module(IMPORTS["flash-attn-res"]).phase_1_batched_attention_triton_op
    stacked = torch.stack(i.several("source")).unsqueeze(1)
    mixed, _ = read(stacked, (i.tensors["query"] * i.tensors["gain"]).unsqueeze(0), EPS)
    return [mixed[0].squeeze(0).to(stacked.dtype)]


def hyper_inputs(m: Maker) -> Inputs:
    """Streams as hyper-connections wants them, (N, T, D), an output, and its mHC module off its start."""
    package = importlib.import_module("hyper_connections")
    streams = m.tensor(m.sizes.count, m.sizes.tokens, m.sizes.dim)
    output = m.tensor(1, m.sizes.tokens, m.sizes.dim)
    module = package.mHC(m.sizes.count, dim=m.sizes.dim, layer_index=1).to(m.device, m.dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=m.generator, dtype=torch.float64)
            parameter.add_((0.05 * noise).to(parameter))
    return Inputs(tensors={"streams": streams, "output": output}, modules={"module": module})


def hyper_step(i: Inputs) -> Sequence[Tensor]:
    """One step of the package's mHC: what the branch reads, and the streams after its output was added."""
    read, add = i.modules["module"](i.tensors["streams"])
    return [read, add(i.tensors["output"])]


@functools.cache
def _compiled_step() -> Callable[[Any, Tensor, Tensor], tuple[Tensor, Tensor]]:
    def step(module: Any, streams: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
        read, add = module(streams)
        return read, add(output)

    return torch.compile(step, dynamic=False)


def hyper_compiled_step(i: Inputs) -> Sequence[Tensor]:
    """The same under `torch.compile`, read and write in one graph, for the one shape."""
    return _compiled_step()(i.modules["module"], i.tensors["streams"], i.tensors["output"])


def hyper_truth(i: Inputs) -> Sequence[Tensor]:
    """Its mHC in plain maths: each stream makes its own coefficients; Sinkhorn over the streams' rows and columns.

    The package's mixing has the stream that is read first and the one that is written second, and mixes before the
    output joins.
    """
    module: Any = i.modules["module"]
    streams = i.tensors["streams"]
    x = streams.double().transpose(0, 1)  # (T, N, D)
    gain = module.norm.gamma.double() + 1
    normed = x / x.norm(dim=-1, keepdim=True).clamp(min=1e-12) * x.shape[-1] ** 0.5 * gain
    count = streams.shape[0]
    dynamic = normed @ module.dynamic_alpha_fn.double()[0]
    scale = torch.cat((module.pre_branch_scale, module.residual_scale.expand(count))).double()
    alpha = dynamic * scale + module.static_alpha.double()
    pre, mixing = alpha[..., 0].sigmoid(), alpha[..., 1:]
    mixing = (mixing - mixing.amax(-2, keepdim=True).detach()).exp()
    for _ in range(20):
        mixing = mixing / mixing.sum(-2, keepdim=True)
        mixing = mixing / mixing.sum(-1, keepdim=True)
    dynamic = normed @ module.dynamic_beta_fn.double() * module.h_post_scale.double() + module.static_beta.double()
    post = 2 * dynamic.sigmoid()
    read = (pre.unsqueeze(-1) * x).sum(-2)
    output = i.tensors["output"][0].double().unsqueeze(1)
    written = torch.einsum("tsr,tsd->trd", mixing, x) + post.unsqueeze(-1) * output
    return [read.unsqueeze(0), written.transpose(0, 1)]


def two_rms_norms(i: Inputs) -> Sequence[Tensor]:
    """What bounded tanh stands in for: PyTorch's own RMSNorm, twice."""
    return [F.rms_norm(x, x.shape[-1:], gain.to(x.dtype), EPS) for x, gain in _sites(i)]


def two_plain_norms(i: Inputs) -> Sequence[Tensor]:
    """The same by its formula."""
    return [x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * gain for x, gain in _sites(i)]


def _sites(i: Inputs) -> list[tuple[Tensor, Tensor]]:
    return [(i.tensors["first"], i.tensors["gain"]), (i.tensors["second"], i.tensors["second gain"])]


_HYPER = PeerCase(
    case="mhc step", name="hyper-connections", package="hyper-connections",
    make=hyper_inputs, work=hyper_step, truth=hyper_truth, tolerance=1e-4,
)  # fmt: skip

PEERS: tuple[PeerCase, ...] = (
    PeerCase(case="depth attention", name="stacked read", work=stacked_read),
    PeerCase(case="depth attention", name="flash-linear-attention fused", package="flash-linear-attention",
             work=fla_fused_read, tolerance=1e-4, devices=("cuda",)),
    PeerCase(case="depth attention", name="liger", package="liger-kernel",
             work=liger_read, tolerance=1e-3, devices=("cuda",)),
    PeerCase(case="depth attention", name="flash-attn-res", package="flash-attn-res",
             work=flash_read, tolerance=3e-2, devices=("cuda",)),
    _HYPER,
    dataclasses.replace(_HYPER, name="hyper-connections compiled", work=hyper_compiled_step),
    PeerCase(case="bounded tanh", name="two RMSNorms", work=two_rms_norms, truth=two_plain_norms),
)  # fmt: skip
