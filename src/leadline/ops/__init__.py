"""The arithmetic of depth: each operator as a plain reference and with hand-written gradients."""

from __future__ import annotations

from leadline.choices import Backend
from leadline.ops.bounded_tanh import attention_gain, bounded_tanh, bounded_tanh_reuse
from leadline.ops.choice import use_backend
from leadline.ops.cross_entropy import chunked_cross_entropy
from leadline.ops.depth_attention import depth_attention
from leadline.ops.multi_gate import multi_gate_step
from leadline.ops.stream_mixing import birkhoff, sinkhorn

__all__ = [
    "Backend",
    "attention_gain",
    "birkhoff",
    "bounded_tanh",
    "bounded_tanh_reuse",
    "chunked_cross_entropy",
    "depth_attention",
    "multi_gate_step",
    "sinkhorn",
    "use_backend",
]
