"""Parameters and FLOPs, counted from a configuration; and the tokens that a FLOP budget buys.

One multiplication and one addition are two FLOPs. Matrix products are exact: they equal what PyTorch's FLOP counter
counts under the math attention backend, which takes causal attention as the whole T by T square. Depth operators are
mostly arithmetic on vectors, which that counter doesn't see; all of it is counted by formula and listed apart.

D is the width, n streams. Reading one source or stream costs 2D for its score and 2D for its share in the mix; a mean
square costs 2D, once a read, or once a write where the connection keeps it. A stack from which sublayers were cut out
has the places that are left, and its connection sees only what these have written.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from torch import nn

from leadline.connections import (
    Additive,
    AttentionResiduals,
    Connection,
    HyperConnections,
    ManifoldHyperConnections,
    MultiGate,
    Readout,
    Site,
)
from leadline.errors import UsageError
from leadline.models import Decoder, DecoderConfig, LayerConfig
from leadline.norms import Norm

BACKWARD = 2
"""The backward pass costs two forward passes: one product for the input's gradient, one for the weight's."""


@dataclasses.dataclass(frozen=True)
class ParameterCount:
    """Parameters of a decoder.

    Attributes:
        embedding: the embedding, its scalar and, if it is untied, the head.
        matrices: attention's and the MLPs' matrices.
        norms: gains, biases and scalars of norms.
        connection: the connection's sites and readout.
    """

    embedding: int
    matrices: int
    norms: int
    connection: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.embedding + self.matrices + self.norms + self.connection


@dataclasses.dataclass(frozen=True)
class FlopCount:
    """FLOPs per token at one sequence length.

    Attributes:
        projections: attention's and the MLPs' matrix products, forward.
        scores: attention's scores and their use, forward.
        head: the head's matrix product, forward.
        depth: the connection's arithmetic, forward, by formula.
    """

    projections: int
    scores: int
    head: int
    depth: int

    @property
    def matmul(self) -> int:
        """Matrix products in a forward pass, as PyTorch's counter sees them."""
        return self.projections + self.scores + self.head

    @property
    def forward(self) -> int:
        """A forward pass, depth operators included."""
        return self.matmul + self.depth

    @property
    def training(self) -> int:
        """A forward and a backward pass of the matrix products: three forward passes."""
        return (1 + BACKWARD) * self.matmul

    @property
    def training_depth(self) -> int:
        """A forward and a backward pass of the depth operators."""
        return (1 + BACKWARD) * self.depth

    @property
    def training_total(self) -> int:
        """What a training token costs in all; budgets are counted in it."""
        return self.training + self.training_depth


def count_parameters(config: DecoderConfig) -> ParameterCount:
    """The parameters of the decoder, counted on one that has shapes but no values."""
    model = Decoder(config, device="meta")
    counts = {"embedding": 0, "matrices": 0, "norms": 0, "connection": 0}
    for name, parameter in model.named_parameters():
        counts[_group(model, name)] += parameter.numel()
    return ParameterCount(**counts)


def _group(model: nn.Module, name: str) -> str:
    module: nn.Module = model
    for part in name.split(".")[:-1]:
        module = module.get_submodule(part)
        if isinstance(module, Site | Readout):
            return "connection"
        if isinstance(module, Norm):
            return "norms"
    return "matrices" if name.startswith("blocks.") else "embedding"


def count_flops(config: DecoderConfig, context: int | None = None) -> FlopCount:
    """FLOPs per token of sequences of `context` tokens; the configuration's own length unless given.

    A block that repeats costs what it costs each time; what was cut out costs nothing.
    """
    context = config.context if context is None else context
    if context < 1:
        raise UsageError(f"context={context} must be at least 1")
    layers = [config.layers[layer] for layer in config.block_layers]
    return FlopCount(
        projections=sum(_projections(layer, config.dim) for layer in layers),
        scores=sum(
            4 * context * layer.attention.heads * layer.attention.head_dim for layer in layers if layer.attention
        ),
        head=2 * config.dim * config.vocab_size,
        depth=depth_flops(config.connection, config.dim, config.places),
    )


def _projections(layer: LayerConfig, dim: int) -> int:
    columns = 0
    if layer.attention is not None:
        columns += 2 * layer.attention.head_dim * (layer.attention.heads + layer.attention.kv_heads)
    if layer.mlp is not None:
        columns += 3 * layer.mlp.hidden
    return 2 * dim * columns


def tokens_for(flops: float, config: DecoderConfig, batch_tokens: int, context: int | None = None) -> int:
    """Training tokens that a budget of training FLOPs buys, in whole steps of `batch_tokens`.

    Raises:
        UsageError: the budget doesn't buy one step; the smallest that does is named.
    """
    if batch_tokens < 1:
        raise UsageError(f"batch_tokens={batch_tokens} must be at least 1")
    per_step = count_flops(config, context).training_total * batch_tokens
    steps = int(flops // per_step)
    if steps < 1:
        raise UsageError(f"flops={flops:.4g} does not buy one step of {batch_tokens} tokens; {per_step:.4g} would")
    return steps * batch_tokens


def equal_flops(
    flops: float, configs: Mapping[str, DecoderConfig], batch_tokens: int, context: int | None = None
) -> dict[str, int]:
    """Training tokens of every named configuration, so that each costs at most `flops`, within one step of it."""
    return {name: tokens_for(flops, config, batch_tokens, context) for name, config in configs.items()}


def depth_flops(connection: Connection, dim: int, places: int | Sequence[int]) -> int:
    """FLOPs per token of all reads and writes of a stack and of its readout.

    Args:
        dim: the width.
        places: the number that each sublayer has in the stack that the connection is built for; of a whole stack,
            how many sublayers there are.
    """
    places = range(places) if isinstance(places, int) else places
    formula = _FORMULAS.get(type(connection))
    if formula is None:
        raise TypeError(f"no FLOP formula for {type(connection).__name__}")
    return formula(connection, dim, places)


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


def _multi_gate(connection: MultiGate, dim: int, places: Sequence[int]) -> int:
    streams, total, live = connection.streams, 0, 1
    for _ in places:
        total += 6 * dim * live if live > 1 else 0
        if live == streams:
            total += 5 * dim * live + (2 * dim if live == 1 else 0)
        live = min(live + 1, streams)
    return total + (6 * dim * live if live > 1 else 0)


def _hyper_connections(connection: HyperConnections, dim: int, places: Sequence[int]) -> int:
    n = connection.streams
    norm, projections, mixing = 2 * n * dim, 2 * n * dim * (n + 2), 2 * n * dim * (n + 2)
    return len(places) * (norm + projections + mixing) + (n - 1) * dim


def _manifold(connection: ManifoldHyperConnections, dim: int, places: Sequence[int]) -> int:
    n = connection.streams
    lite = connection.mixing == "birkhoff"
    scores = math.factorial(n) if lite else n * n
    matrix = 2 * math.factorial(n) * n if lite else connection.sinkhorn_iterations * 4 * n * n
    norm, projections, mixing = 2 * n * dim, 2 * n * dim * (2 * n + scores), 2 * n * dim * (n + 2)
    return len(places) * (norm + projections + matrix + mixing) + (n - 1) * dim


_FORMULAS: dict[type[Connection], Callable[..., int]] = {
    Additive: _additive,
    AttentionResiduals: _attention_residuals,
    MultiGate: _multi_gate,
    HyperConnections: _hyper_connections,
    ManifoldHyperConnections: _manifold,
}
