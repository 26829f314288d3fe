"""How a sublayer reads from depth and writes back: one file per connection."""

from __future__ import annotations

from leadline.connections.additive import Additive
from leadline.connections.attention_residuals import AttentionResiduals
from leadline.connections.base import Connection, Depth, Readout, Site, State
from leadline.connections.hyper import HyperConnections
from leadline.connections.manifold import ManifoldHyperConnections
from leadline.connections.multi_gate import MultiGate

CONNECTIONS: dict[str, type[Connection]] = {
    c.kind: c for c in (Additive, AttentionResiduals, MultiGate, HyperConnections, ManifoldHyperConnections)
}
"""Every connection by its kind."""

__all__ = [
    "CONNECTIONS",
    "Additive",
    "AttentionResiduals",
    "Connection",
    "Depth",
    "HyperConnections",
    "ManifoldHyperConnections",
    "MultiGate",
    "Readout",
    "Site",
    "State",
]
