"""What the depth operators cost per token, by formula, forward. D is the width, n streams.

Reading one source or stream costs 2D for its score and 2D for its share in the mix; a mean square costs 2D, once a
read, or once a write where the connection keeps it.
"""

from __future__ import annotations

import math

from leadline.connections import (
    Additive,
    AttentionResiduals,
    Connection,
    HyperConnections,
    ManifoldHyperConnections,
    MultiGate,
)


def depth_flops(connection: Connection, dim: int, sublayers: int) -> int:
    """FLOPs per token of all reads and writes of a stack and of its readout."""
    if isinstance(connection, Additive):
        return _additive(connection, dim, sublayers)
    if isinstance(connection, AttentionResiduals):
        return _attention_residuals(connection, dim, sublayers)
    if isinstance(connection, MultiGate):
        return _multi_gate(connection.streams, dim, sublayers)
    if isinstance(connection, HyperConnections):
        return _hyper_connections(connection.streams, dim, sublayers)
    if isinstance(connection, ManifoldHyperConnections):
        return _manifold(connection, dim, sublayers)
    raise TypeError(f"no FLOP formula for {type(connection).__name__}")


def _additive(connection: Additive, dim: int, sublayers: int) -> int:
    post = sublayers if connection.post_norm_blocks is None else min(sublayers, 2 * connection.post_norm_blocks)
    post = 0 if connection.post_norm == "none" else post
    branch = 0 if connection.branch == "none" else dim
    scaled = 0 if connection.alpha == 1.0 else dim
    return sublayers * (dim + branch) + post * (4 * dim + scaled)


def _attention_residuals(connection: AttentionResiduals, dim: int, sublayers: int) -> int:
    size = connection.block_size or 1
    # A source's root is worked out once, when it is written, where `connection.root` keeps it.
    kept = connection.keyed and connection.weights == "softmax"
    per_source = 2 * dim + (0 if connection.weights == "static" else 2 * dim)
    per_source += 2 * dim if connection.keyed and not kept else 0
    roots = 2 * dim * (sublayers + 1) if kept else 0

    def sources(index: int, open_block: bool) -> int:
        found = 1 + index // size + (1 if open_block else 0)
        return found if connection.window is None else min(found, 1 + connection.window)

    reads = [sources(index, index % size > 0) for index in range(sublayers)]
    reads.append(sources(sublayers, sublayers % size > 0))
    partial_sums = dim * (sublayers - -(-sublayers // size))
    return sum(per_source * k for k in reads if k > 1) + partial_sums + roots


def _multi_gate(streams: int, dim: int, sublayers: int) -> int:
    total = 0
    for index in range(sublayers):
        live = min(index + 1, streams)
        total += 6 * dim * live if live > 1 else 0
        if index >= streams - 1:
            total += 5 * dim * live + (2 * dim if live == 1 else 0)
    last = min(sublayers + 1, streams)
    return total + (6 * dim * last if last > 1 else 0)


def _hyper_connections(streams: int, dim: int, sublayers: int) -> int:
    n = streams
    norm, projections, mixing = 2 * n * dim, 2 * n * dim * (n + 2), 2 * n * dim * (n + 2)
    return sublayers * (norm + projections + mixing) + (n - 1) * dim


def _manifold(connection: ManifoldHyperConnections, dim: int, sublayers: int) -> int:
    n = connection.streams
    lite = connection.mixing == "birkhoff"
    scores = math.factorial(n) if lite else n * n
    matrix = 2 * math.factorial(n) * n if lite else connection.sinkhorn_iterations * 4 * n * n
    norm, projections, mixing = 2 * n * dim, 2 * n * dim * (2 * n + scores), 2 * n * dim * (n + 2)
    return sublayers * (norm + projections + matrix + mixing) + (n - 1) * dim
