"""What the depth operators cost per token, by formula, forward. D is the width, n streams.

Reading one source or stream costs 2D for its score and 2D for its share in the mix; a mean square costs 2D, once a
read, or once a write where the connection keeps it. A stack from which sublayers were cut out has the places that are
left, and its connection sees only what these have written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from leadline.connections import (
    Additive,
    AttentionResiduals,
    Connection,
    HyperConnections,
    ManifoldHyperConnections,
    MultiGate,
)


def depth_flops(connection: Connection, dim: int, places: int | Sequence[int]) -> int:
    """FLOPs per token of all reads and writes of a stack and of its readout.

    Args:
        dim: the width.
        places: the number that each sublayer has in the stack that the connection is built for; of a whole stack,
            how many sublayers there are.
    """
    places = range(places) if isinstance(places, int) else places
    if isinstance(connection, Additive):
        return _additive(connection, dim, places)
    if isinstance(connection, AttentionResiduals):
        return _attention_residuals(connection, dim, places)
    if isinstance(connection, MultiGate):
        return _multi_gate(connection.streams, dim, places)
    if isinstance(connection, HyperConnections):
        return _hyper_connections(connection.streams, dim, len(places))
    if isinstance(connection, ManifoldHyperConnections):
        return _manifold(connection, dim, len(places))
    raise TypeError(f"no FLOP formula for {type(connection).__name__}")


def _additive(connection: Additive, dim: int, places: Sequence[int]) -> int:
    after = connection.post_norm_blocks
    post = sum(1 for place in places if after is None or place // 2 < after)
    post = 0 if connection.post_norm == "none" else post
    branch = 0 if connection.branch == "none" else dim
    scaled = 0 if connection.alpha == 1.0 else dim
    return len(places) * (dim + branch) + post * (4 * dim + scaled)


def _attention_residuals(connection: AttentionResiduals, dim: int, places: Sequence[int]) -> int:
    size = connection.block_size or 1
    # A source's root is computed once, when it is written, where `connection.root` keeps it.
    kept = connection.keyed and connection.weights == "softmax"
    per_source = 2 * dim + (0 if connection.weights == "static" else 2 * dim)
    per_source += 2 * dim if connection.keyed and not kept else 0
    roots = 2 * dim * (len(places) + 1) if kept else 0
    written: list[int] = []  # the blocks that have a source
    reads, partial_sums = [], 0
    for place in places:
        reads.append(connection.seen(1 + len(written)))
        if written and written[-1] == place // size:
            partial_sums += dim
        else:
            written.append(place // size)
    reads.append(connection.seen(1 + len(written)))
    return sum(per_source * k for k in reads if k > 1) + partial_sums + roots


def _multi_gate(streams: int, dim: int, places: Sequence[int]) -> int:
    total, live = 0, 1
    for _ in places:
        total += 6 * dim * live if live > 1 else 0
        if live == streams:
            total += 5 * dim * live + (2 * dim if live == 1 else 0)
        live = min(live + 1, streams)
    return total + (6 * dim * live if live > 1 else 0)


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
