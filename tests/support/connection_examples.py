"""An example of every connection and of every variant of one, by name: what the tests over all connections run over.

A new connection adds its examples here, and those tests pick it up.
"""

from __future__ import annotations

from leadline.connections.additive import Additive
from leadline.connections.attention_residuals import AttentionResiduals
from leadline.connections.base import Connection
from leadline.connections.hyper import HyperConnections
from leadline.connections.manifold import ManifoldHyperConnections
from leadline.connections.multi_gate import MultiGate

EXAMPLES: dict[str, Connection] = {
    "additive": Additive(),
    "post-ln": Additive(post_norm="layernorm"),
    "post-rmsnorm": Additive(post_norm="rmsnorm"),
    "deepnorm": Additive(post_norm="layernorm", alpha="deepnorm"),
    "mix-ln": Additive(post_norm="layernorm", post_norm_blocks=1),
    "layerscale": Additive(branch="layerscale"),
    "rezero": Additive(branch="rezero"),
    "attnres": AttentionResiduals(),
    "attnres-block": AttentionResiduals(block_size=3),
    "attnres-no-key-norm": AttentionResiduals(key_norm=False),
    "attnres-sigmoid": AttentionResiduals(weights="sigmoid"),
    "attnres-static": AttentionResiduals(block_size=2, weights="static"),
    "attnres-window": AttentionResiduals(window=2),
    "mgr-competitive": MultiGate(streams=3, gate="competitive", gate_init="prenorm"),
    "mgr-independent": MultiGate(streams=3, gate="independent", gate_init="prenorm"),
    "mgr-competitive-paper": MultiGate(streams=2, gate="competitive", gate_init="paper"),
    "mgr-independent-paper": MultiGate(streams=2, gate="independent", gate_init="paper"),
    "mgr-invert": MultiGate(streams=3, gate_init="prenorm", memory="invert"),
    "hc": HyperConnections(),
    "hc-one-stream": HyperConnections(streams=1),
    "hc-two-streams": HyperConnections(streams=2),
    "mhc": ManifoldHyperConnections(),
    "mhc-three-streams": ManifoldHyperConnections(streams=3, sinkhorn_iterations=5),
    "mhc-lite": ManifoldHyperConnections(mixing="birkhoff"),
    "mhc-lite-two-streams": ManifoldHyperConnections(streams=2, mixing="birkhoff"),
}
"""Fits stacks of 6 sublayers and more. Where a start equals PreNorm's is tested by these names too."""
