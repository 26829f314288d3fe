"""How a sublayer reads from depth and writes back: one file per connection."""

from __future__ import annotations

from leadline.connections.additive import Additive, AdditiveState
from leadline.connections.attention_residuals import AttentionResiduals, AttentionState
from leadline.connections.base import Connection, Depth, Readout, Site, State
from leadline.connections.hyper import HyperConnections, StreamsState
from leadline.connections.manifold import ManifoldHyperConnections
from leadline.connections.multi_gate import MultiGate, MultiGateState

CONNECTIONS: dict[str, type[Connection]] = {
    c.kind: c for c in (Additive, AttentionResiduals, MultiGate, HyperConnections, ManifoldHyperConnections)
}
"""Every connection by its kind."""

__all__ = [
    "CONNECTIONS",
    "Additive",
    "AdditiveState",
    "AttentionResiduals",
    "AttentionState",
    "Connection",
    "Depth",
    "HyperConnections",
    "ManifoldHyperConnections",
    "MultiGate",
    "MultiGateState",
    "Readout",
    "Site",
    "State",
    "StreamsState",
]
